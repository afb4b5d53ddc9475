/* Cases with other processes: children of fork(), and new processes of this driver that end during
 * calls, or have unusual environment variables. */
#include "driver.h"

#include <pthread.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- fork() ---------------------------------------------------------------------------------- */

enum { FORKS = 8, USERS = 4, SECONDS = 20 };

/* A thread of the parent that holds one of the library's locks for about half of the time. It
 * allocates no memory: the lock of a sanitizer's allocator might stay held in the child. */
typedef struct lock_user {
    pthread_t thread;
    int which;
    uint32_t rounds;
} lock_user;

static int is_over, is_resting;

static int call_scalar(void)
{
    float in = 2, out = 0;
    const kiln_host_api *api = &libraries[0]->api;
    const kiln_tensor x = kiln_host_tensor(&in, kiln_host_dtype(2, 32), NULL, 0);
    const kiln_tensor y = kiln_host_tensor(&out, kiln_host_dtype(2, 32), NULL, 0);
    const kiln_value both[] = {kiln_host_lend(&x), kiln_host_lend(&y)};
    const int code = api->call(api->function_index("scalar"), both, 2);
    return code == KILN_OK && out + 2 == 0 ? KILN_OK : 1;
}

/* Run a loop of 256 * 256 iterations on the threads of the pool. */
static int call_loop(void)
{
    float in = 0, out = 0;
    int64_t shape[] = {1, 1};
    const kiln_host_api *api = &libraries[0]->api;
    const kiln_tensor x = kiln_host_tensor(&in, kiln_host_dtype(2, 32), shape, 2);
    const kiln_tensor y = kiln_host_tensor(&out, kiln_host_dtype(2, 32), NULL, 0);
    const kiln_value both[] = {kiln_host_lend(&x), kiln_host_lend(&y)};
    const int code = api->call(api->function_index("grow"), both, 2);
    return code == KILN_OK && out > 65000 ? KILN_OK : 1;
}

static int use_lock(int which)
{
    switch (which) {
    case 0: return libraries[2]->api.has_loader("nobody");                       /* modules */
    case 1: return libraries[1]->api.register_function("safety.nobody", NULL); /* names */
    default: return call_scalar();                                                 /* workspaces */
    }
}

static void *use_locks(void *argument)
{
    lock_user *user = argument;
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
        if (__atomic_load_n(&is_resting, __ATOMIC_SEQ_CST))
            usleep(200);
        else if (use_lock(user->which) != KILN_OK)
            found("a call of kind %d failed beside a fork", user->which);
        else
            __atomic_add_fetch(&user->rounds, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* Wait until each thread has used its lock `more` times, so that a fork is likely to find one
 * held. */
static void await_rounds(lock_user *users, uint32_t more)
{
    __atomic_store_n(&is_resting, 0, __ATOMIC_SEQ_CST);
    for (int i = 0; i < USERS; i++) {
        const uint32_t before = __atomic_load_n(&users[i].rounds, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&users[i].rounds, __ATOMIC_SEQ_CST) - before < more)
            usleep(20);
    }
}

static int child_of_fork(void)
{
    int wrong = 0;
    alarm(SECONDS); /* ends a deadlocked child; the parent's threads are paused meanwhile */
    for (int which = 0; which < 3; which++)
        wrong |= use_lock(which) != KILN_OK;
    return wrong | (call_loop() != KILN_OK) << 1;
}

/* Fork while other threads are in calls; the child must be able to take each lock and use the
 * pool. */
void a_fork(draws *d)
{
    lock_user users[USERS];
    is_over = is_resting = 0;
    say("\n: forks:\n");
    libraries[0]->api.set_num_threads(2);
    if (call_loop() != KILN_OK)
        found("a loop of two threads failed");
    for (int i = 0; i < USERS; i++) {
        users[i].which = i;
        users[i].rounds = 0;
        if (pthread_create(&users[i].thread, NULL, use_locks, &users[i]) != 0)
            abort();
    }
    for (int i = 0, status = 0; i < FORKS && status == 0; i++) {
        await_rounds(users, 20 + (uint32_t)draw(d, 50));
        const pid_t child = fork();
        if (child == 0)
            _exit(child_of_fork());
        __atomic_store_n(&is_resting, 1, __ATOMIC_SEQ_CST);
        if (child < 0 || waitpid(child, &status, 0) != child)
            abort();
        if (status != 0)
            found("fork %d: the child ended with status %d (%s)", i, status,
                  WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit");
    }
    __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < USERS; i++)
        pthread_join(users[i].thread, NULL);
    libraries[0]->api.set_num_threads(0);
}

/* ---- new processes of this driver ------------------------------------------------------------ */

extern char **environ;

/* Run `driver alone WHAT HOW`; its exit status is 0 if nothing was wrong. */
static void run_alone(const char *what, const char *how)
{
    char *const words[] = {(char *)(uintptr_t) "driver", (char *)(uintptr_t) "alone",
                           (char *)(uintptr_t)what, (char *)(uintptr_t)how, NULL};
    pid_t child;
    int status = 0;
    if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ) != 0 ||
        waitpid(child, &status, 0) != child)
        abort();
    if (status != 0)
        found("'%s %s' ended with status %d (%s)", what, how, status,
              WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "exit");
}

/* Values of KILN_NUM_THREADS, and whether a library accepts them or fails to open. */
static const struct {
    const char *text;
    int is_right;
} wishes[] = {
    {"", 1}, {"0", 1}, {"1", 1}, {"2", 1}, {"4096", 1}, {"-0", 1}, {"0007", 1}, {"4097", 0},
    {"4294967295", 0}, {"4294967297", 0}, {"18446744073709551617", 0}, {"-1", 0}, {"garbage", 0},
    {" 1", 0}, {"1 ", 0}, {"2x", 0}, {"0x2", 0}, {"1.5", 0}, {"-", 0}, {"\xff", 0},
};

void environment(draws *d)
{
    const size_t k = draw(d, sizeof wishes / sizeof *wishes);
    say("\n: KILN_NUM_THREADS '%s'\n", wishes[k].text);
    setenv("KILN_NUM_THREADS", wishes[k].text, 1);
    run_alone(wishes[k].is_right ? "right" : "wrong", "");
    unsetenv("KILN_NUM_THREADS");
}

static int number_of_threads(int is_right)
{
    kiln_host_error error = {0, ""};
    const int code = kiln_host_open(paths[0], &libraries[0], &error);
    if (!is_right)
        return code != KILN_ERROR_ENVIRONMENT || strstr(error.sentence, "KILN_NUM_THREADS") == NULL;
    if (code != KILN_OK)
        return 1;
    const int threads = libraries[0]->api.get_num_threads();
    return threads < 1 || threads > 4096 || call_loop() != KILN_OK;
}

/* ---- exit() during calls of modules ---------------------------------------------------------- */

static int is_ending;
static uint32_t module_rounds;

static int load_number(void *context, const char *key, const kiln_artifact *artifacts, int count,
                       void **module)
{
    int *const number = malloc(sizeof *number);
    (void)context, (void)key, (void)artifacts, (void)count;
    if (number == NULL)
        return KILN_ERROR_MEMORY;
    *number = 5;
    *module = number;
    return KILN_OK;
}

static int look_at_number(void *module, const char *function, const kiln_value *arguments,
                          int32_t count, kiln_value *result)
{
    (void)function, (void)arguments, (void)count, (void)result;
    for (int i = 0; i < 3; i++) {
        if (*(volatile int *)module != 5)
            abort();
        if (__atomic_load_n(&is_ending, __ATOMIC_SEQ_CST) == 1 &&
            __atomic_exchange_n(&is_ending, 2, __ATOMIC_SEQ_CST) == 1)
            exit(0); /* only one thread may call it */
        usleep(10);
    }
    return KILN_OK;
}

static const kiln_loader number_loader = {sizeof number_loader, NULL, load_number, look_at_number, free};

static void *use_modules(void *argument)
{
    const kiln_host_api *api = &libraries[2]->api;
    for (int i = 0; argument == NULL || i < 20; i++) {
        kiln_value result = kiln_host_value(KILN_NONE);
        const int code = api->call_import("stream", "", "streamer_mul", NULL, 0, &result);
        if (code != KILN_OK && code != KILN_ERROR_LOADER) /* exit() removes the loaders */
            found("call_import gave %d: %s", code, api->last_error());
        api->module("stream", "");
        api->register_loader("other", i % 2 == 0 ? &number_loader : NULL);
        __atomic_add_fetch(&module_rounds, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* End the process while threads call modules ("exit"), from within such a call ("inside"), or close
 * the library after all calls ("closed"). */
static int end_beneath_modules(const char *how)
{
    pthread_t threads[3];
    kiln_host_error error = {0, ""};
    const int closes = strcmp(how, "closed") == 0;
    if (kiln_host_open(paths[2], &libraries[2], &error) != KILN_OK ||
        libraries[2]->api.register_loader("stream", &number_loader) != KILN_OK)
        return 1;
    for (int i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, use_modules, closes ? &is_ending : NULL) != 0)
            abort();
    for (int i = 0; i < 3 && closes; i++)
        pthread_join(threads[i], NULL);
    while (__atomic_load_n(&module_rounds, __ATOMIC_SEQ_CST) < 30)
        usleep(50);
    if (strcmp(how, "inside") == 0) {
        __atomic_store_n(&is_ending, 1, __ATOMIC_SEQ_CST);
        pause();
    }
    if (closes)
        kiln_host_close(libraries[2]);
    return 0;
}

void ending(draws *d)
{
    static const char *const ways[] = {"exit", "inside", "closed"};
    const char *const how = ways[draw(d, 3)];
    say("\n: the process ends: %s\n", how);
    run_alone("modules", how);
}

int alone(const char *what, const char *how)
{
    return strcmp(what, "modules") == 0 ? end_beneath_modules(how)
                                        : number_of_threads(strcmp(what, "right") == 0);
}
