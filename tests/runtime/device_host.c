/* Drives the library of device_library.py on a stand-in for a driver, which DRIVER, a file
 * device_host_<kind>.h, knows.
 *
 *     device_host <library> table    every call of every function of the driver fails in turn
 *     device_host <library> once     one life: what it prints is the result of each step
 *     device_host <library> quiet    the second run of a function makes nothing new
 *     device_host <library> graphs   nor does one whose launches are graphs
 *     device_host <library> threads  runs in several threads, on two executors
 *     device_host <library> fork     a child of a process that uses devices, and one before that
 *     device_host <library> exit     exit() while executors are there and a thread is running */
#include "kiln.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define N 1000

static void *driver, *library;
static __thread char sentence[1024];

/* The address of a symbol as a pointer to a function of type `type`. */
#define SYMBOL(from, name, type) ((type)(uintptr_t)dlsym(from, name))
typedef int (*create_fn)(kiln_executor **);
typedef void (*destroy_fn)(kiln_executor *);
typedef int (*set_fn)(kiln_executor *, int, int, void *);
typedef int (*run_fn)(kiln_executor *, int, const kiln_tensor *const *, int);
typedef int (*index_fn)(const char *);
typedef const char *(*error_fn)(void);

static int note(int code)
{
    snprintf(sentence, sizeof sentence, "%s",
             code == 0 ? "" : SYMBOL(library, "kiln_last_error", error_fn)());
    return code;
}

static int run_on(kiln_executor *executor, const char *function, void *x, void *y, int32_t device,
                  int64_t n)
{
    int64_t shape[] = {n};
    const kiln_tensor in = {x, device, 0, 1, {2, 32, 1}, shape, NULL, 0};
    const kiln_tensor out = {y, device, 0, 1, {2, 32, 1}, shape, NULL, 0};
    const kiln_tensor *const tensors[] = {&in, &out};
    const int index = SYMBOL(library, "kiln_function_index", index_fn)(function);
    return note(SYMBOL(library, "kiln_executor_run", run_fn)(executor, index, tensors, 2));
}

static int run(kiln_executor *executor, const char *function, void *x, void *y, int32_t device)
{
    return run_on(executor, function, x, y, device, N);
}

/* main and across on the host's arrays; they must agree. */
static int run_both(kiln_executor *executor)
{
    static __thread float x[N], y[N], z[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)i;
    int code = run(executor, "main", x, y, 1);
    if (code == 0)
        code = run(executor, "across", x, z, 1);
    if (code == 0 && memcmp(y, z, sizeof y) != 0) {
        printf("main and across disagree\n");
        exit(3);
    }
    return code;
}

#include DRIVER

/* One life of the library: load, run, unload. The first failure ends it. */
static int life(const char *path)
{
    kiln_executor *executor = NULL;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        printf("%s\n", dlerror());
        exit(3);
    }
    int code = note(SYMBOL(library, "kiln_executor_create", create_fn)(&executor));
    if (code == 0)
        code = run_both(executor);
    if (code == 0)
        code = run_there(executor);
    SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executor);
    dlclose(library);
    return code;
}

static void fail(const char *name, int n, int code)
{
    SYMBOL(driver, "fake_fail", void (*)(const char *, int, int))(name, n, code);
}

static int calls(const char *name)
{
    return SYMBOL(driver, "fake_calls", int (*)(const char *))(name);
}

static int live(void)
{
    return SYMBOL(driver, "fake_live", int (*)(void))();
}

/* Print "function call error code live sentence" for each failing call. */
static int table(const char *path)
{
    fail("", 0, 0);
    if (life(path) != 0)
        return 4;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        fail("", 0, 0);
        life(path);
        const int n = calls(functions[f]);
        for (int i = 1; i <= n; i++)
            for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
                fail(functions[f], i, errors[e]);
                const int code = life(path);
                printf("%s %d %d %d %d %s\n", functions[f], i, errors[e], code, live(), sentence);
            }
    }
    return 0;
}

static int quiet(const char *path, int graphs)
{
    typedef int (*graphs_fn)(kiln_executor *, int);
    kiln_executor *executor = NULL;
    library = dlopen(path, RTLD_NOW);
    SYMBOL(library, "kiln_executor_create", create_fn)(&executor);
    int code = note(SYMBOL(library, "kiln_executor_set_graphs", graphs_fn)(executor, graphs));
    code |= run_both(executor);
    fail("", 0, 0);
    code |= run_both(executor);
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        if (calls(functions[f]) != 0)
            printf("%s %d\n", functions[f], calls(functions[f]));
    SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executor);
    dlclose(library);
    return code;
}

static kiln_executor *executors[2];

/* An executor, whose runs are graphs if its devices have some. */
static kiln_executor *create_one(int graphs)
{
    typedef int (*graphs_fn)(kiln_executor *, int);
    kiln_executor *executor = NULL;
    SYMBOL(library, "kiln_executor_create", create_fn)(&executor);
    SYMBOL(library, "kiln_executor_set_graphs", graphs_fn)(executor, graphs);
    return executor;
}

static void *work(void *number)
{
    for (int i = 0; i < 50; i++)
        if (run_both(executors[(size_t)number % 2]) != 0) {
            printf("%s\n", sentence);
            exit(3);
        }
    return NULL;
}

static int threads(const char *path)
{
    pthread_t all[4];
    library = dlopen(path, RTLD_NOW);
    for (int i = 0; i < 2; i++)
        executors[i] = create_one(i == 1);
    for (size_t i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, work, (void *)i);
    for (size_t i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
    for (int i = 0; i < 2; i++)
        SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executors[i]);
    dlclose(library);
    return live();
}

static int child(void)
{
    int status = 0;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        kiln_executor *executor = NULL;
        float x[N] = {0}, y[N];
        SYMBOL(library, "kiln_executor_create", create_fn)(&executor);
        const int code = run_both(executor);
        printf("%d %s\n", code, sentence);
        printf("%d\n", run(executor, "host_only", x, y, 1));
        SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executor);
        if (executors[0] != NULL)
            SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executors[0]);
        dlclose(library);
        fflush(stdout);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    return status;
}

static int forks(const char *path)
{
    library = dlopen(path, RTLD_NOW);
    int code = child();
    executors[0] = create_one(1);
    code |= run_both(executors[0]);
    code |= child();
    code |= run_both(executors[0]);
    SYMBOL(library, "kiln_executor_destroy", destroy_fn)(executors[0]);
    dlclose(library);
    return code | live();
}

static void *forever(void *nothing)
{
    for (;;)
        run_both(executors[0]);
    return nothing;
}

static int leave(const char *path)
{
    pthread_t thread;
    library = dlopen(path, RTLD_NOW);
    for (int i = 0; i < 2; i++)
        executors[i] = create_one(i == 1);
    if (run_both(executors[1]) != 0)
        return 4;
    pthread_create(&thread, NULL, forever, NULL);
    usleep(20000);
    return 0; /* and exit() */
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    const char *what = arguments[2];
    driver = dlopen(DRIVER_LIBRARY, RTLD_NOW);
    if (driver == NULL && strcmp(what, "once") != 0)
        return 2;
    if (strcmp(what, "table") == 0)
        return table(arguments[1]);
    if (strcmp(what, "quiet") == 0)
        return quiet(arguments[1], 0);
    if (strcmp(what, "graphs") == 0)
        return quiet(arguments[1], 1);
    if (strcmp(what, "threads") == 0)
        return threads(arguments[1]);
    if (strcmp(what, "fork") == 0)
        return forks(arguments[1]);
    if (strcmp(what, "exit") == 0)
        return leave(arguments[1]);
    const int code = life(arguments[1]);
    printf("%d %s\n", code, sentence);
    return 0;
}
