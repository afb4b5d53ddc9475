/* os.h for Linux, and for systems like it as far as they have the same functions. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* affinity, dladdr, futex: before the first header of the system */
#endif
#include "os.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <link.h>
#include <linux/futex.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#endif

/* The packaged compiler has no headers of bionic, and compiles with musl's. These differ in the place of
 * errno, in numbers of sysconf(), which is not called here, and in stdin, stdout and stderr; what they
 * agree in is in tests/emulated/bionic_abi.c. */
#if defined(__ANDROID__)
extern int *__errno(void);
#undef errno
#define errno (*__errno())
#endif

/* An array of -1 elements is refused: numbers of threads and keys fit into os.h's. */
typedef char kiln_os_fits[sizeof(pthread_t) <= sizeof(uintptr_t) &&
                                  sizeof(pthread_key_t) <= sizeof(uintptr_t) &&
                                  PATH_MAX + 64 <= KILN_OS_PATH
                              ? 1
                              : -1];

/* ---- memory ---------------------------------------------------------------------------------- */

void *kiln_os_allocate(size_t bytes, size_t alignment)
{
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}

kiln_os_free kiln_os_deleter(void)
{
    return free;
}

int64_t kiln_os_page_size(void)
{
#if defined(__ANDROID__)
    return (int64_t)getauxval(AT_PAGESZ);
#else
    return sysconf(_SC_PAGESIZE);
#endif
}

static void *mapped(size_t bytes, int protection, int flags)
{
    void *const address = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return address == MAP_FAILED ? NULL : address;
}

void *kiln_os_map(size_t bytes)
{
    return mapped(bytes, PROT_READ | PROT_WRITE, 0);
}

void *kiln_os_map_huge(size_t bytes)
{
    const size_t room = bytes + KILN_OS_HUGE_PAGE;
    char *const block = kiln_os_map(room);
    if (block == NULL)
        return NULL;
    char *const base = (char *)(((uintptr_t)block + KILN_OS_HUGE_PAGE - 1) &
                                ~(uintptr_t)(KILN_OS_HUGE_PAGE - 1));
    if (base != block)
        munmap(block, (size_t)(base - block));
    munmap(base + bytes, (size_t)(block + room - (base + bytes)));
#if defined(MADV_HUGEPAGE)
    madvise(base, bytes & ~(KILN_OS_HUGE_PAGE - 1), MADV_HUGEPAGE);
#endif
    return base;
}

#if defined(KILN_DEVICES)
void *kiln_os_reserve(size_t bytes)
{
    return mapped(bytes, PROT_NONE, MAP_NORESERVE);
}
#endif

void kiln_os_unmap(void *address, size_t bytes)
{
    munmap(address, bytes);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* In (strchr)(...) the parentheses suppress the macro of that name in newer C23 headers. */

int kiln_os_path_beside(const void *address, const char *suffix, char path[KILN_OS_PATH])
{
    Dl_info here;
    path[0] = 0;
    if (dladdr(address, &here) == 0 || here.dli_fname == NULL ||
        realpath(here.dli_fname, path) == NULL) {
        path[0] = 0; /* realpath() may leave a part */
        return 0;
    }
    char *const dot = (strrchr)(path, '.');
    const int has_suffix = dot != NULL && (strchr)(dot, '/') == NULL;
    memcpy(has_suffix ? dot : path + strlen(path), suffix, strlen(suffix) + 1);
    return 1;
}

int kiln_os_open_file(const char *path)
{
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

void kiln_os_close_file(int file)
{
    close(file);
}

int64_t kiln_os_file_bytes(int file)
{
    return lseek(file, 0, SEEK_END);
}

int64_t kiln_os_read_head(int file, void *to, size_t bytes)
{
    return lseek(file, 0, SEEK_SET) == 0 ? read(file, to, bytes) : -1;
}

int kiln_os_map_file(void *address, size_t bytes, int file, uint64_t start)
{
    return mmap(address, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, (off_t)start) !=
           MAP_FAILED;
}

const char *kiln_os_failure(void)
{
    return strerror(errno);
}

/* ---- threads --------------------------------------------------------------------------------- */

uintptr_t kiln_os_this_thread(void)
{
    return (uintptr_t)pthread_self();
}

/* The thread inherits that all signals are blocked, so that the host's threads handle them. */
int kiln_os_start_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    const int is_started = pthread_create(&thread, NULL, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return is_started;
}

void kiln_os_join_thread(uintptr_t thread)
{
    pthread_join((pthread_t)thread, NULL);
}

#define USUAL_STACK ((size_t)8 << 20) /* of a first thread, where a larger limit is not believed */

/* Of the first thread of a process glibc reads it from /proc; without that the stack is taken to
 * begin here, and to be half as large as the limit says, because some of it is used already. */
char *kiln_os_stack(size_t *size)
{
    pthread_attr_t attributes;
    struct rlimit limit;
    void *low = NULL;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &low, size);
        pthread_attr_destroy(&attributes);
        return low;
    }
    const int is_limited = getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < USUAL_STACK;
    *size = (is_limited ? (size_t)limit.rlim_cur : USUAL_STACK) / 2;
    return (char *)__builtin_frame_address(0) - *size;
}

#if defined(KILN_OS_NO_THREAD_VARIABLES)
#define VALUE_DELETER free
#else
#define VALUE_DELETER NULL
#endif

int kiln_os_new_key(uintptr_t *key)
{
    pthread_key_t made;
    if (pthread_key_create(&made, VALUE_DELETER) != 0)
        return 0;
    *key = (uintptr_t)made;
    return 1;
}

void kiln_os_delete_key(uintptr_t key)
{
    pthread_key_delete((pthread_key_t)key);
}

void *kiln_os_value(uintptr_t key)
{
    return pthread_getspecific((pthread_key_t)key);
}

void kiln_os_set_value(uintptr_t key, void *value)
{
    pthread_setspecific((pthread_key_t)key, value);
}

#if defined(__linux__)
void kiln_os_yield(void)
{
    syscall(SYS_sched_yield);
}

void kiln_os_wait(uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

void kiln_os_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 0x7fffffff, NULL, NULL, 0);
}
#else
static pthread_mutex_t word_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t word_changed = PTHREAD_COND_INITIALIZER;

void kiln_os_yield(void)
{
    sched_yield();
}

void kiln_os_wait(uint32_t *word, uint32_t value)
{
    pthread_mutex_lock(&word_lock);
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value)
        pthread_cond_wait(&word_changed, &word_lock);
    pthread_mutex_unlock(&word_lock);
}

void kiln_os_wake(uint32_t *word)
{
    (void)word;
    pthread_mutex_lock(&word_lock);
    pthread_cond_broadcast(&word_changed);
    pthread_mutex_unlock(&word_lock);
}
#endif

/* ---- time ------------------------------------------------------------------------------------ */

int64_t kiln_os_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- libraries ------------------------------------------------------------------------------- */

#if defined(KILN_DEVICES)
void *kiln_os_open_library(const char *name)
{
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

void kiln_os_close_library(void *library)
{
    dlclose(library);
}
#endif

void *kiln_os_symbol(void *library, const char *name)
{
    return dlsym(library != NULL ? library : RTLD_DEFAULT, name);
}

#if defined(KILN_OS_CAN_SHARE)
typedef struct errand {
    void (*run)(void *context);
    void *context;
} errand;

static int run_errand(struct dl_phdr_info *image, size_t size, void *context)
{
    const errand *const task = context;
    (void)image;
    (void)size;
    task->run(task->context);
    return 1;
}

/* dl_iterate_phdr() holds the dynamic linker's lock during its callback. */
int kiln_os_under_loaders_lock(void (*run)(void *context), void *context)
{
    errand task = {run, context};
    return dl_iterate_phdr(run_errand, &task) == 1;
}

/* Whether memory is in a readable segment of a loaded image. Program headers and notes are not
 * trusted: a stripped or damaged file may contain any address. */
static int is_mapped(const struct dl_phdr_info *image, uintptr_t start, size_t size)
{
    for (int i = 0; i < image->dlpi_phnum; i++) {
        const uintptr_t first = image->dlpi_addr + image->dlpi_phdr[i].p_vaddr;
        const size_t length = image->dlpi_phdr[i].p_memsz;
        if (image->dlpi_phdr[i].p_type == PT_LOAD && (image->dlpi_phdr[i].p_flags & PF_R) &&
            start >= first && start - first <= length && size <= length - (start - first))
            return 1;
    }
    return 0;
}

/* Search a segment of `bytes` bytes of notes for ours; return the value that its variable has. */
static void *value_of_note(const struct dl_phdr_info *image, const char *note, size_t bytes,
                           int64_t number)
{
    static const char owner[12] = "tensorkiln";
    uint32_t head[3]; /* ELF note header: name size, content size, type */
    int64_t content[2];
    while (bytes >= sizeof head) {
        memcpy(head, note, sizeof head);
        const size_t name = sizeof head, start = name + (((size_t)head[0] + 3) & ~(size_t)3);
        const size_t size = start + (((size_t)head[1] + 3) & ~(size_t)3);
        if (size > bytes)
            return NULL;
        if (head[0] == 11 && head[1] == sizeof content && head[2] == KILN_OS_NOTE_TYPE &&
            memcmp(note + name, owner, sizeof owner) == 0) {
            memcpy(content, note + start, sizeof content);
            const uintptr_t place = (uintptr_t)note + start + 8 + (uintptr_t)content[1];
            if (content[0] == number && is_mapped(image, place, sizeof(void *))) {
                void *const value = __atomic_load_n((void *const *)place, __ATOMIC_SEQ_CST);
                if (value != NULL)
                    return value;
            }
        }
        note += size;
        bytes -= size;
    }
    return NULL;
}

typedef struct publication {
    int64_t number;
    void *value;
} publication;

static int look_into(struct dl_phdr_info *image, size_t size, void *context)
{
    publication *const wanted = context;
    (void)size;
    for (int i = 0; i < image->dlpi_phnum && wanted->value == NULL; i++) {
        const uintptr_t start = image->dlpi_addr + image->dlpi_phdr[i].p_vaddr;
        const size_t bytes = image->dlpi_phdr[i].p_memsz;
        if (image->dlpi_phdr[i].p_type == PT_NOTE && image->dlpi_phdr[i].p_align <= 4 &&
            is_mapped(image, start, bytes))
            wanted->value = value_of_note(image, (const char *)start, bytes, wanted->number);
    }
    return wanted->value != NULL;
}

void *kiln_os_published(int64_t number)
{
    publication wanted = {number, NULL};
    dl_iterate_phdr(look_into, &wanted);
    return wanted.value;
}
#else
int kiln_os_under_loaders_lock(void (*run)(void *context), void *context)
{
    (void)run;
    (void)context;
    return 0;
}

void *kiln_os_published(int64_t number)
{
    (void)number;
    return NULL;
}
#endif

/* ---- the process ----------------------------------------------------------------------------- */

int32_t kiln_os_process_id(void)
{
    return getpid();
}

#if defined(__GLIBC__) || defined(__ANDROID__)
/* __register_atfork() is what pthread_atfork() calls, which is in a static part of glibc, and of bionic, that
 * libraries are not linked with. It is weak because musl, where some load libraries for glibc, does
 * not have it. The handlers of both functions have an owner: __cxa_finalize(owner) removes them, so
 * that none is called after the library is unloaded. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
extern int __cxa_atexit(void (*)(void *), void *, void *);
extern void __cxa_finalize(void *);

void kiln_os_watch(void (*in_child)(void), void (*at_exit)(void *), void *owner)
{
    if (__register_atfork != NULL)
        __register_atfork(NULL, NULL, in_child, owner);
    __cxa_atexit(at_exit, NULL, owner);
}

void kiln_os_unwatch(void *owner)
{
    __cxa_finalize(owner);
}
#else
void kiln_os_watch(void (*in_child)(void), void (*at_exit)(void *), void *owner)
{
    (void)owner;
    pthread_atfork(NULL, NULL, in_child); /* cannot be removed again */
    at_exit(NULL); /* musl never unloads: destructors run at exit() only */
}

void kiln_os_unwatch(void *owner)
{
    (void)owner;
}
#endif

void kiln_os_abort(const char *sentence)
{
    if (write(2, sentence, strlen(sentence)) < 0)
        abort();
    abort();
}

/* ---- processors ------------------------------------------------------------------------------ */

#if defined(__linux__)
/* Where Linux has cgroups; tests define other paths. */
#if !defined(CGROUP_LIST)
#define CGROUP_LIST "/proc/self/cgroup"
#define CGROUP_TREE "/sys/fs/cgroup"
#endif

static int lesser(int a, int b)
{
    return a < b ? a : b;
}

/* Read a file as text with a final NUL, truncated to the buffer; 0 if it is empty or unreadable. */
static int read_text(const char *path, char *text, size_t size)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    size_t used = 0;
    ssize_t count;
    while (used + 1 < size && (count = read(file, text + used, size - 1 - used)) > 0)
        used += (size_t)count;
    close(file);
    text[used] = 0;
    return used > 0;
}

/* The whole processors of a quota, at least 1. A fraction is dropped: a thread that is throttled half
 * of the time would make all others wait for it. */
static int whole_processors(long quota, long period)
{
    if (quota <= 0 || period <= 0)
        return INT_MAX;
    const long whole = quota / period;
    return whole < 1 ? 1 : whole > INT_MAX ? INT_MAX : (int)whole;
}

/* Processors of one cgroup directory; INT_MAX without a limit. Version 2 has cpu.max ("200000 100000",
 * or "max 100000"), version 1 has a file each for quota and period. */
static int folder_quota(const char *folder, int version)
{
    char path[PATH_MAX + 32], text[64], *period;
    if (version == 2) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_text(path, text, sizeof text) || text[0] == 'm')
            return INT_MAX;
        const long quota = strtol(text, &period, 10);
        return whole_processors(quota, strtol(period, NULL, 10));
    }
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (!read_text(path, text, sizeof text))
        return INT_MAX;
    const long quota = strtol(text, NULL, 10);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    return read_text(path, text, sizeof text) ? whole_processors(quota, strtol(text, NULL, 10))
                                              : INT_MAX;
}

/* The smallest quota of our cgroup and all its ancestors. */
static int tree_quota(const char *root, const char *group, int version)
{
    char folder[PATH_MAX];
    const size_t floor = strlen(root);
    int least = INT_MAX;
    if (snprintf(folder, sizeof folder, "%s%s", root, group) >= (int)sizeof folder)
        return INT_MAX;
    for (;;) {
        least = lesser(least, folder_quota(folder, version));
        char *slash = (strrchr)(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < floor)
            return least;
        *slash = 0;
    }
}

/* Whether the controller "cpu" is in a list such as "cpuacct,cpu". */
static int lists_cpu(const char *names)
{
    for (const char *name = names; name != NULL; name = (strchr)(name, ',')) {
        name += *name == ',';
        if (strncmp(name, "cpu", 3) == 0 && (name[3] == 0 || name[3] == ','))
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
            least = lesser(least, tree_quota(CGROUP_TREE, group, 2));
        else if (lists_cpu(names))
            least = lesser(least, tree_quota(CGROUP_TREE "/cpu", group, 1));
    }
    return least;
}

static int allowed_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = 0;
        for (size_t i = 0; i < CPU_SETSIZE; i++)
            count += CPU_ISSET(i, &set) != 0;
        return count > 0 ? count : 1;
    }
#if defined(__ANDROID__)
    return 1; /* no kernel of Android has more processors than a set */
#else
    const long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than 1024 processors */
    return online < 1 ? 1 : (int)online;
#endif
}

int kiln_os_processors(void)
{
    return lesser(allowed_processors(), cgroup_quota());
}
#else
int kiln_os_processors(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : (int)online;
}
#endif

/* Linux does not save 8 KiB of tiles for threads of others, and ends a process that uses them without
 * asking. It refuses where a thread has an alternate stack for signals that would be too small to
 * save them on. */
int kiln_os_permit_tiles(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

int kiln_os_feature_word(int number, uint64_t *word)
{
#if defined(__linux__) && defined(__aarch64__)
    *word = getauxval(number == 0 ? AT_HWCAP : AT_HWCAP2);
    return 1;
#elif defined(__linux__) && defined(__riscv) && __riscv_xlen == 64
    enum { PROBE = 258, EXTENSIONS = 4 }; /* riscv_hwprobe, RISCV_HWPROBE_KEY_IMA_EXT_0 */
    struct {
        int64_t key;
        uint64_t value;
    } pair = {EXTENSIONS, 0};
    if (number == 0)
        *word = getauxval(AT_HWCAP);
    else if (syscall(PROBE, &pair, (size_t)1, (size_t)0, NULL, 0u) == 0 && pair.key == EXTENSIONS)
        *word = pair.value;
    else
        return 0;
    return 1;
#else
    (void)number;
    (void)word;
    return 0;
#endif
}
