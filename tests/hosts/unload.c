/* Unloading libraries that share a pool of threads, by dlclose() alone. The first argument says what,
 * the others are libraries, "name=path" each; all compute the same.
 *
 *   owner    the first to start threads goes first
 *   cycles   1,000 lives of two libraries that overlap, at flat memory
 *   many     eight threads load, call and drop
 *   lock     kernels that want the loader's lock, while another library is unloaded
 *   fork     a child unloads what its parent uses
 *   exit     the end of a process in which a thread goes on calling
 *   late     what exit() calls unloads them
 *   inside   a kernel unloads its own library */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                          \
    do {                                                          \
        if (!(condition)) {                                       \
            printf("line %d: %s\n", __LINE__, #condition);        \
            fflush(stdout);                                       \
            _exit(1);                                             \
        }                                                         \
    } while (0)

enum { ROWS = 100, IN = 8, OUT = 4, MOST = 8, THREADS = 3 };

typedef struct library {
    void *handle;
    int (*main)(int64_t n, const float *x, float *y);
} library;

static char names[MOST][64];
static const char *paths[MOST];
static int count;
static int own_threads = 1; /* of a sanitizer, perhaps */
static float input[ROWS * IN], expected[ROWS * OUT];

/* Through memory: C has no conversion between a function's address and a void *. */
static void find(const library *lib, const char *symbol, void *function)
{
    void *const address = dlsym(lib->handle, symbol);
    CHECK(address != NULL);
    memcpy(function, &address, sizeof address);
}

/* ThreadSanitizer does not know that the loader has a lock: without one that it sees, what a library
 * does when it goes races with what the next one does at the same address. */
#if defined(__SANITIZE_THREAD__)
static pthread_mutex_t loader = PTHREAD_MUTEX_INITIALIZER;
#define LOADER(call) (pthread_mutex_##call(&loader))
#else
#define LOADER(call) ((void)0)
#endif

static library load(int which)
{
    LOADER(lock);
    library lib = {dlopen(paths[which], RTLD_NOW | RTLD_LOCAL), NULL};
    LOADER(unlock);
    char entry[80];
    void (*set_num_threads)(int);
    if (lib.handle == NULL)
        puts(dlerror());
    CHECK(lib.handle != NULL);
    snprintf(entry, sizeof entry, "%s_main", names[which]);
    find(&lib, entry, &lib.main);
    find(&lib, "kiln_set_num_threads", &set_num_threads);
    set_num_threads(THREADS);
    return lib;
}

static void run(const library *lib)
{
    float out[ROWS * OUT] = {0};
    CHECK(lib->main(ROWS, input, out) == 0);
    CHECK(memcmp(out, expected, sizeof out) == 0);
}

static void drop(library *lib)
{
    LOADER(lock);
    CHECK(dlclose(lib->handle) == 0);
    LOADER(unlock);
    lib->handle = NULL;
}

/* ---- what is left ------------------------------------------------------------------------- */

static int lines(const char *file, const char *of)
{
    char line[1024];
    int found = 0;
    FILE *stream = fopen(file, "r");
    while (stream != NULL && fgets(line, sizeof line, stream) != NULL)
        found += of == NULL || strstr(line, of) != NULL;
    if (stream != NULL)
        fclose(stream);
    return found;
}

static int mapped(int which)
{
    return lines("/proc/self/maps", paths[which]);
}

static long resident(void)
{
    long pages[2] = {0, 0};
    FILE *stream = fopen("/proc/self/statm", "r");
    CHECK(stream != NULL && fscanf(stream, "%ld %ld", &pages[0], &pages[1]) == 2);
    fclose(stream);
    return pages[1] * (sysconf(_SC_PAGESIZE) / 1024);
}

static int tasks(void)
{
    int found = -2;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder != NULL);
    while (readdir(folder) != NULL)
        found++;
    closedir(folder);
    return found;
}

/* A thread that was joined is still listed for a moment. */
static int comes_down_to(int wanted)
{
    for (int i = 0; i < 2000 && tasks() != wanted; i++)
        usleep(1000);
    return tasks() == wanted;
}

static void nothing_left(void)
{
    for (int i = 0; i < count; i++)
        CHECK(mapped(i) == 0);
    CHECK(comes_down_to(own_threads));
}

/* ---- owner -------------------------------------------------------------------------------- */

static void owner(void)
{
    library a = load(0);
    run(&a);
    CHECK(tasks() == own_threads + THREADS - 1);
    library b = load(1);
    run(&b);
    run(&a);
    CHECK(tasks() == own_threads + THREADS - 1); /* the same threads */
    CHECK(mapped(0) > 0 && mapped(1) > 0);
    drop(&a);
    CHECK(mapped(0) == 0 && mapped(1) > 0);
    for (int i = 0; i < 100; i++)
        run(&b);
    CHECK(comes_down_to(own_threads + THREADS - 1));
    a = load(0); /* and the other way round */
    run(&a);
    drop(&b);
    CHECK(mapped(0) > 0 && mapped(1) == 0);
    for (int i = 0; i < 100; i++)
        run(&a);
    CHECK(comes_down_to(own_threads + THREADS - 1));
    drop(&a);
    nothing_left();
}

/* ---- cycles ------------------------------------------------------------------------------- */

static void cycles(int times)
{
    long memory = 0;
    int maps = 0;
    for (int i = 0; i <= times; i++) {
        library a = load(0), b = load(1);
        run(&a);
        run(&b);
        drop(i % 2 ? &a : &b);
        run(i % 2 ? &b : &a);
        drop(i % 2 ? &b : &a);
        if (i == times / 10) {
            memory = resident();
            maps = lines("/proc/self/maps", NULL);
        }
    }
    nothing_left();
    printf("%ld KiB more, %d maps more\n", resident() - memory,
           lines("/proc/self/maps", NULL) - maps);
}

/* ---- many --------------------------------------------------------------------------------- */

static int rounds;

static void *one_of_many(void *argument)
{
    const int me = (int)(intptr_t)argument;
    for (int i = 0; i < rounds; i++) {
        library lib = load((me + i) % count), other = load((me / 2 + i) % count);
        run(&lib);
        run(&other);
        drop(i % 3 ? &lib : &other);
        run(i % 3 ? &other : &lib);
        drop(i % 3 ? &other : &lib);
    }
    return NULL;
}

static void many(void)
{
    pthread_t thread[8];
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&thread[i], NULL, one_of_many, (void *)(intptr_t)i) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    nothing_left();
}

/* ---- lock --------------------------------------------------------------------------------- */

static uint32_t stop;

static void *until_stopped(void *argument)
{
    const library *const lib = argument;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
        run(lib);
    return NULL;
}

/* Library 1 calls dlopen() in each piece of its loops. */
static void lock(void)
{
    library b = load(1);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, until_stopped, &b) == 0);
    for (int i = 0; i < rounds; i++) {
        library a = load(0);
        run(&a);
        drop(&a);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    CHECK(pthread_join(thread, NULL) == 0);
    drop(&b);
    nothing_left();
}

/* ---- fork --------------------------------------------------------------------------------- */

static void forks(void)
{
    library a = load(0), b = load(1);
    run(&a);
    run(&b);
    for (int i = 0; i < 20; i++) {
        const pid_t child = fork();
        if (child == 0) {
            drop(i % 2 ? &a : &b);
            library *const kept = i % 2 ? &b : &a;
            if (i % 4 < 2)
                run(kept);
            drop(kept);
            nothing_left();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        run(&a);
        run(&b);
    }
    drop(&a);
    run(&b);
    drop(&b);
    const pid_t child = fork(); /* nobody of those who are gone is called */
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    nothing_left();
}

/* ---- exit --------------------------------------------------------------------------------- */

static library kept[2];

static void leave_running(void)
{
    static pthread_t thread;
    kept[0] = load(0);
    kept[1] = load(1);
    run(&kept[0]);
    CHECK(pthread_create(&thread, NULL, until_stopped, &kept[1]) == 0);
    usleep(2000);
}

static void drop_late(void)
{
    drop(&kept[0]);
    run(&kept[1]);
    drop(&kept[1]);
    nothing_left();
}

static void late(void)
{
    CHECK(atexit(drop_late) == 0);
    kept[0] = load(0);
    kept[1] = load(1);
    run(&kept[0]);
    run(&kept[1]);
}

/* ---- inside ------------------------------------------------------------------------------- */

static library own;

static void drop_own(void)
{
    drop(&own);
}

static void inside(void)
{
    void (**hook)(void);
    own = load(0);
    find(&own, "piece_hook", &hook);
    *hook = drop_own;
    run(&own); /* does not return */
}

int main(int argc, char **argv)
{
    const char *const what = argv[1];
    for (; count < MOST && count + 3 < argc; count++) {
        const char *const path = (strchr)(argv[count + 3], '=') + 1;
        memcpy(names[count], argv[count + 3], (size_t)(path - argv[count + 3]) - 1);
        paths[count] = path;
    }
    rounds = (int)strtol(argv[2], NULL, 10);
    for (int i = 0; i < ROWS * IN; i++)
        input[i] = (float)(i % 7) - 3;
    library lib = load(0);
    CHECK(lib.main(ROWS, input, expected) == 0);
    drop(&lib);
    if (getenv("HELPER_THREADS") != NULL)
        own_threads += (int)strtol(getenv("HELPER_THREADS"), NULL, 10);
    CHECK(comes_down_to(own_threads));
    if (strcmp(what, "owner") == 0)
        owner();
    else if (strcmp(what, "cycles") == 0)
        cycles(rounds);
    else if (strcmp(what, "many") == 0)
        many();
    else if (strcmp(what, "lock") == 0)
        lock();
    else if (strcmp(what, "fork") == 0)
        forks();
    else if (strcmp(what, "exit") == 0)
        leave_running();
    else if (strcmp(what, "late") == 0)
        late();
    else
        inside();
    return 0;
}
