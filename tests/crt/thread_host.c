/* What threads of a host need: `stack NET.so` prints how much of its stack a call of `main` takes in a
 * new thread; `memory NET.so` calls it in a thread that has never called the library, while there is
 * no memory, and again when there is; `open NET.so OTHER.so` opens a library in the thread. */
#include "kiln_host.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/resource.h>

#ifndef STACK
#define STACK ((size_t)256 << 10)
#endif

static kiln_host_library *library;
static kiln_host_executor *executor;
static const kiln_host_function *f;
static sem_t go, done;
static int code, again, refused;
static char sentence[256];
static const char *other; /* a library to open in the thread, or NULL */

static int call(void)
{
    static float x[8], y[8];
    int64_t shape[] = {2, 4};
    const kiln_tensor in = kiln_host_tensor(x, kiln_host_dtype(2, 32), shape, 2);
    const kiln_tensor out = kiln_host_tensor(y, kiln_host_dtype(2, 32), shape, 2);
    const kiln_tensor *all[] = {&in, &out};
    return library->api.executor_run(executor->executor, f->index, all, 2);
}

static void *work(void *unused)
{
    (void)unused;
    kiln_host_library *opened = NULL;
    kiln_host_error error;
    sem_wait(&go);
    if (other != NULL && kiln_host_open(other, &opened, &error) != KILN_OK)
        fprintf(stderr, "%s\n", error.sentence);
    code = other != NULL ? opened == NULL : call();
    kiln_host_close(opened);
    strncpy(sentence, code == 0 ? "" : library->api.last_error(), sizeof sentence - 1);
    sem_post(&done);
    sem_wait(&go);
    again = other != NULL ? 0 : call();
    refused = other != NULL ? 0 : library->api.executor_run(executor->executor, f->index, NULL, 2);
    sem_post(&done);
    return NULL;
}

/* Take all memory, in ever smaller blocks, which are a list. */
static void **take_all(void)
{
    struct rlimit limit = {(rlim_t)1 << 20, RLIM_INFINITY}; /* below what is used: no more mappings */
    void **blocks = NULL;
    setrlimit(RLIMIT_AS, &limit);
    for (size_t size = (size_t)1 << 20; size >= 32; size /= 2)
        for (void **block; (block = (void **)malloc(size)) != NULL; blocks = block)
            *block = blocks;
    return blocks;
}

static void give_all(void **blocks)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_AS, &limit);
    while (blocks != NULL) {
        void **const next = (void **)*blocks;
        free(blocks);
        blocks = next;
    }
}

int main(int argc, char **argv)
{
    kiln_host_error error;
    pthread_attr_t attributes;
    pthread_t thread;
    if (argc < 3 || kiln_host_open(argv[2], &library, &error) != KILN_OK ||
        kiln_host_executor_create(library, &executor, &error) != KILN_OK ||
        kiln_host_find(library, "main", &f, &error) != KILN_OK || call() != KILN_OK) {
        fprintf(stderr, "%s\n", error.sentence);
        return 1;
    }
    other = argc > 3 ? argv[3] : NULL;
    unsigned char *const stack = (unsigned char *)mmap(NULL, STACK, PROT_READ | PROT_WRITE,
                                                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, 0x5a, STACK);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    sem_init(&go, 0, 0);
    sem_init(&done, 0, 0);
    if (pthread_create(&thread, &attributes, work, NULL) != 0)
        return 2;
    void **const blocks = strcmp(argv[1], "memory") == 0 ? take_all() : NULL;
    sem_post(&go);
    sem_wait(&done);
    give_all(blocks);
    sem_post(&go);
    sem_wait(&done);
    pthread_join(thread, NULL);
    size_t unused = 0;
    while (unused < STACK && stack[unused] == 0x5a)
        unused++;
    printf("%d %d %d %zu %s\n", code, again, refused, STACK - unused, sentence);
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
    return 0;
}
