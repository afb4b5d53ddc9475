/* The default number of threads of a call: the CPUs that this process can really use; the stack that
 * is left to this thread. */
#include "crt.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* Where Linux has cgroups; tests define other paths. */
#if !defined(CGROUP_LIST)
#define CGROUP_LIST "/proc/self/cgroup"
#define CGROUP_TREE "/sys/fs/cgroup"
#endif

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

#if defined(__linux__)
/* Read a file as text with a final NUL, truncated to the buffer; 0 if it is empty or unreadable. */
static int read_text(const char *path, char *text, size_t size)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    size_t used = 0;
    ssize_t got;
    while (used + 1 < size && (got = read(file, text + used, size - 1 - used)) > 0)
        used += (size_t)got;
    close(file);
    text[used] = 0;
    return used > 0;
}

/* The whole CPUs of a quota, at least 1. A fraction is dropped: a thread that is throttled half of
 * the time would make all others wait for it. */
static int cpus_of(long quota, long period)
{
    if (quota <= 0 || period <= 0)
        return INT_MAX;
    const long whole = quota / period;
    return whole < 1 ? 1 : whole > INT_MAX ? INT_MAX : (int)whole;
}

/* CPUs of one cgroup directory; INT_MAX without a limit. Version 2 has cpu.max ("200000 100000", or
 * "max 100000"), version 1 has a file each for quota and period. */
static int folder_quota(const char *folder, int version)
{
    char path[PATH_MAX + 32], text[64], *rest;
    if (version == 2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_text(path, text, sizeof text) || text[0] == 'm')
            return INT_MAX;
        const long quota = strtol(text, &rest, 10);
        return cpus_of(quota, strtol(rest, NULL, 10));
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text))
        return INT_MAX;
    const long quota = strtol(text, NULL, 10);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_text(path, text, sizeof text) ? cpus_of(quota, strtol(text, NULL, 10)) : INT_MAX;
}

/* In (strchr)(...) the parentheses suppress the macro of that name in newer C23 headers. */

/* The smallest quota of our cgroup and all its ancestors. */
static int tree_quota(const char *root, const char *group, int version)
{
    char folder[PATH_MAX];
    const size_t floor = strlen(root);
    int least = INT_MAX;
    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return INT_MAX;
    for (;;) {
        least = smaller(least, folder_quota(folder, version));
        char *slash = (strrchr)(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < floor)
            return least;
        *slash = 0;
    }
}

/* Whether the controller "cpu" is in a list such as "cpuacct,cpu". */
static int lists_cpu(const char *names)
{
    for (const char *at = names; at != NULL; at = (strchr)(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "cpu", 3) == 0 && (at[3] == 0 || at[3] == ','))
            return 1;
    }
    return 0;
}

/* Lines of /proc/self/cgroup read "0::/group" (version 2) or "4:cpu,cpuacct:/group". */
static int cgroup_quota(void)
{
    char text[4096];
    int least = INT_MAX;
    if (!read_text(CGROUP_LIST, text, sizeof text))
        return INT_MAX;
    for (char *line = text, *next; line != NULL && *line != 0; line = next) {
        next = (strchr)(line, '\n');
        if (next != NULL)
            *next++ = 0;
        char *names = (strchr)(line, ':');
        char *group = names == NULL ? NULL : (strchr)(names + 1, ':');
        if (group == NULL)
            continue;
        *names++ = 0;
        *group++ = 0;
        if (*names == 0)
            least = smaller(least, tree_quota(CGROUP_TREE, group, 2));
        else if (lists_cpu(names))
            least = smaller(least, tree_quota(CGROUP_TREE "/cpu", group, 1));
    }
    return least;
}

static int allowed_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = 0;
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            count += CPU_ISSET(i, &set) != 0;
        return count > 0 ? count : 1;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 CPUs */
    return online < 1 ? 1 : (int)online;
}
#else
static int cgroup_quota(void)
{
    return INT_MAX;
}

static int allowed_cpus(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : (int)online;
}
#endif

int kiln_wished_threads(void)
{
    const char *text = getenv("KILN_NUM_THREADS");
    if (text == NULL || *text == 0)
        return 0;
    const char *digit = text + (*text == '-');
    int value = 0;
    for (int i = 0; digit[i] != 0 || i == 0; i++) {
        if (digit[i] < '0' || digit[i] > '9' || i == 40)
            return -1;
        value = smaller(value * 10 + (digit[i] - '0'), KILN_MOST_THREADS + 1);
    }
    return value > KILN_MOST_THREADS || (value > 0 && *text == '-') ? -1 : value;
}

int kiln_default_threads(void)
{
    static int known; /* threads that race compute the same value */
    int threads = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (threads != 0)
        return threads;
    threads = smaller(allowed_cpus(), cgroup_quota());
    const int wish = kiln_wished_threads();
    if (wish > 0)
        threads = smaller(threads, wish);
    __atomic_store_n(&known, threads, __ATOMIC_RELAXED);
    return threads;
}

/* ---- the stack ---------------------------------------------------------------------------- */

#define STACK_KEPT ((size_t)512 << 10) /* reserved for kernels and the host's callbacks */
#define STACK_OF_CALL (24 << 10)       /* of a call, without its kernels */
#define STACK_USUAL ((size_t)8 << 20)  /* of a first thread, where a larger limit is not believed */

/* The lowest address of this thread's stack. Of the first thread of a process glibc reads it from
 * /proc; without that the stack is taken to begin here, and to be half as large as the limit says,
 * because some of it is used already. */
static char *find_stack(size_t *size)
{
    pthread_attr_t attributes;
    struct rlimit limit;
    void *low = NULL;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &low, size);
        pthread_attr_destroy(&attributes);
        return low;
    }
    const int is_limited = getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < STACK_USUAL;
    *size = (is_limited ? (size_t)limit.rlim_cur : STACK_USUAL) / 2;
    return (char *)__builtin_frame_address(0) - *size;
}

/* This thread, with what is known of its stack; NULL as kiln_this_thread(). STACK_KEPT is reserved, or
 * half of a stack below twice that. */
static const kiln_thread *with_stack(void)
{
    kiln_thread *const t = kiln_this_thread();
    size_t size = 0;
    if (t != NULL && t->stack == NULL) {
        t->stack = find_stack(&size);
        t->stack_floor = t->stack + (size / 2 < STACK_KEPT ? size / 2 : STACK_KEPT);
    }
    return t;
}

int kiln_stack_is_used_up(void)
{
    const kiln_thread *const t = with_stack();
    return t == NULL || (char *)__builtin_frame_address(0) < t->stack_floor;
}

int kiln_check_stack(void)
{
    const kiln_thread *const t = with_stack();
    if (t == NULL)
        return KILN_ERROR_MEMORY;
    const int64_t space = (char *)__builtin_frame_address(0) - t->stack;
    return space >= STACK_OF_CALL
               ? KILN_OK
               : kiln_fail(KILN_ERROR_DEPTH, "this thread has %lld bytes of stack left, and a call "
                           "takes up to %d", (long long)space, STACK_OF_CALL);
}
