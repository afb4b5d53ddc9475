/* modules LIBRARY HOW: threads call a function of a loader, ask for its module, set it anew and
 * register loaders, all at once; then the process ends beneath them: by exit() ("exit"), in one of
 * the calls ("inside"), or after they have ended ("after"). */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "check.h"
#include "kiln_host.h"

#include <pthread.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 300 };

static kiln_host_library *library;
static kiln_host_error error;
static int live, is_ending;
static uint32_t rounds, stop;

static int load(void *context, const char *target_key, const kiln_artifact *artifacts, int n,
                void **module)
{
    (void)context, (void)target_key, (void)artifacts, (void)n;
    int *const made = (int *)malloc(sizeof *made);
    if (made == NULL)
        return KILN_ERROR_MEMORY;
    *made = 2;
    __atomic_add_fetch(&live, 1, __ATOMIC_SEQ_CST);
    *module = made;
    return KILN_OK;
}

static int multiply(void *module, const char *function, const kiln_value *arguments, int32_t n,
                    kiln_value *result)
{
    const kiln_tensor *const x = (const kiln_tensor *)arguments[0].as.pointer;
    const kiln_tensor *const y = (const kiln_tensor *)arguments[1].as.pointer;
    (void)function, (void)n;
    if (__atomic_load_n(&is_ending, __ATOMIC_SEQ_CST) == 1 &&
        __atomic_exchange_n(&is_ending, 2, __ATOMIC_SEQ_CST) == 1)
        exit(0); /* one thread may */
    for (int i = 0; i < 4; i++)
        ((float *)y->data)[i] = (float)*(const int *)module * ((const float *)x->data)[i];
    result->kind = KILN_NONE;
    return KILN_OK;
}

static void unload(void *module)
{
    __atomic_sub_fetch(&live, 1, __ATOMIC_SEQ_CST);
    free(module);
}

static const kiln_loader loader = {sizeof loader, NULL, load, multiply, unload};
static const kiln_loader functions = {sizeof functions, NULL, NULL, multiply, NULL};
static int kept = 2;

static int call(void)
{
    float in[4] = {1, 2, 3, 4}, out[4] = {0};
    int64_t shape[] = {4};
    kiln_tensor x = kiln_host_tensor(in, kiln_host_dtype(2, 32), shape, 1);
    kiln_tensor y = kiln_host_tensor(out, kiln_host_dtype(2, 32), shape, 1);
    kiln_value arguments[2];
    memset(arguments, 0, sizeof arguments);
    arguments[0].kind = arguments[1].kind = KILN_TENSOR;
    arguments[0].as.pointer = &x;
    arguments[1].as.pointer = &y;
    const int code =
        library->api.call(library->api.function_index("loaded"), arguments, 2);
    return code == KILN_OK && out[3] != 8 ? -1 : code; /* NOLINT */
}

static void *work(void *argument)
{
    const int me = (int)(intptr_t)argument;
    while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
        const int code = call();
        /* What comes after exit() has taken the loaders finds none. */
        CHECK(code == KILN_OK || (code == KILN_ERROR_LOADER && me >= 0));
        if (me == 1)
            CHECK(library->api.set_module("tests_forks", "", &functions, &kept) == KILN_OK);
        if (me == 2)
            CHECK(library->api.register_loader("tests_other", &loader) == KILN_OK);
        if (me == 3)
            library->api.module("tests_forks", "");
        __atomic_add_fetch(&rounds, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread[THREADS];
    (void)argc;
    CHECK(kiln_host_open(argv[1], &library, &error) == KILN_OK);
    CHECK(library->api.register_loader("tests_forks", &loader) == KILN_OK);
    CHECK(call() == KILN_OK);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, work, (void *)(intptr_t)i) == 0);
    while (__atomic_load_n(&rounds, __ATOMIC_SEQ_CST) < ROUNDS)
        usleep(100);
    if (strcmp(argv[2], "exit") == 0)
        return 0;
    if (strcmp(argv[2], "inside") == 0) {
        __atomic_store_n(&is_ending, 1, __ATOMIC_SEQ_CST);
        pause();
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    kiln_host_close(library);
    return 0;
}
