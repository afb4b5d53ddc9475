/* Loads a compiled library and answers requests about it, so that tests reach a library of
 * another machine through an emulator: emulator ./driver LIBRARY, requests on stdin, replies on
 * stdout. Numbers are little-endian.
 *
 *   request   u8 what, u32 bytes, name, u32 inputs, tensors, u32 outputs, a dtype each
 *   what      't' set the number of threads (to `inputs`; nothing follows it)
 *             'r' run a graph function in the executor: outputs are made here
 *             'c' call a tensor function: all tensors come back, changed or not
 *             'm' metadata
 *   tensor    u8 code, u8 bits, i32 rank, i64 dimensions, elements
 *   reply     i32 status; after a failure u32 bytes, sentence; else the tensors, or the text
 */
#include "kiln.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 64

static struct {
    int (*function_index)(const char *);
    int (*create)(kiln_executor **);
    void (*destroy)(kiln_executor *);
    int (*run)(kiln_executor *, int, const kiln_tensor *const *, int);
    int (*output_shape)(int, const kiln_tensor *const *, int, int, int64_t *, int *);
    int (*call)(int, const kiln_value *, int);
    const char *(*last_error)(void);
    const char *(*metadata)(void);
    void (*set_num_threads)(int);
} lib;

static const char *const names[] = {
    "kiln_function_index", "kiln_executor_create", "kiln_executor_destroy", "kiln_executor_run",
    "kiln_output_shape", "kiln_call", "kiln_last_error", "kiln_metadata", "kiln_set_num_threads",
};

static void get(void *to, size_t bytes)
{
    if (bytes != 0 && fread(to, 1, bytes, stdin) != bytes)
        exit(feof(stdin) ? 0 : 3);
}

static void put(const void *from, size_t bytes)
{
    if (bytes != 0 && fwrite(from, 1, bytes, stdout) != bytes)
        exit(4);
}

static uint32_t get_count(void)
{
    uint32_t count;
    return get(&count, sizeof count), count;
}

static size_t bytes_of(const kiln_tensor *t)
{
    size_t bytes = t->dtype.bits / 8;
    for (int i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes;
}

static void make(kiln_tensor *t, int64_t *shape, const kiln_dtype dtype, int ndim)
{
    const kiln_tensor made = {NULL, 1, 0, ndim, dtype, shape, NULL, 0};
    *t = made;
    const size_t bytes = (bytes_of(t) + 127) / 64 * 64;
    if (posix_memalign(&t->data, 64, bytes) != 0)
        exit(5);
    memset(t->data, 0xff, bytes); /* not a number, in every float format */
}

static kiln_dtype get_dtype(void)
{
    kiln_dtype dtype = {0, 0, 1};
    get(&dtype.code, 1);
    get(&dtype.bits, 1);
    return dtype;
}

static void get_tensor(kiln_tensor *t, int64_t *shape)
{
    const kiln_dtype dtype = get_dtype();
    int32_t ndim;
    get(&ndim, sizeof ndim);
    get(shape, (size_t)ndim * sizeof *shape);
    make(t, shape, dtype, ndim);
    get(t->data, bytes_of(t));
}

static void put_tensor(const kiln_tensor *t)
{
    put(&t->dtype.code, 1);
    put(&t->dtype.bits, 1);
    put(&t->ndim, sizeof t->ndim);
    put(t->shape, (size_t)t->ndim * sizeof *t->shape);
    put(t->data, bytes_of(t));
}

static void put_text(const char *text)
{
    const uint32_t bytes = (uint32_t)strlen(text);
    put(&bytes, sizeof bytes);
    put(text, bytes);
}

static void answer(kiln_executor *executor, int what, const char *name)
{
    static kiln_tensor tensor[2 * MOST];
    static int64_t shape[2 * MOST][KILN_MAX_RANK];
    const kiln_tensor *all[2 * MOST];
    kiln_value values[MOST];
    const int inputs = (int)get_count();
    for (int i = 0; i < inputs; i++)
        get_tensor(&tensor[i], shape[i]);
    const int outputs = (int)get_count(), count = inputs + outputs;
    if (inputs > MOST || outputs > MOST)
        exit(6);
    for (int i = 0; i < count; i++)
        all[i] = &tensor[i];
    const int function = lib.function_index(name);
    int32_t status = function < 0 ? KILN_ERROR_NAME : KILN_OK;
    for (int i = 0; i < outputs; i++) { /* after a failure too: the request ends behind them */
        const kiln_dtype dtype = get_dtype();
        int ndim = 0;
        if (status == KILN_OK)
            status = lib.output_shape(function, all, inputs, i, shape[inputs + i], &ndim);
        make(&tensor[inputs + i], shape[inputs + i], dtype, status == KILN_OK ? ndim : 0);
    }
    if (status == KILN_OK && what == 'r') {
        status = lib.run(executor, function, all, count);
    } else if (status == KILN_OK) {
        for (int i = 0; i < inputs; i++) {
            values[i].kind = KILN_TENSOR;
            values[i].small = 0;
            values[i].as.pointer = &tensor[i];
        }
        status = lib.call(function, values, inputs);
    }
    put(&status, sizeof status);
    if (status != KILN_OK)
        put_text(lib.last_error());
    for (int i = what == 'r' ? inputs : 0; i < count && status == KILN_OK; i++)
        put_tensor(&tensor[i]);
    for (int i = 0; i < count; i++)
        free(tensor[i].data);
}

int main(int argc, char **argv)
{
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL)
        return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: driver LIBRARY"), 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *symbol = dlsym(library, names[i]);
        if (symbol == NULL)
            return fprintf(stderr, "no %s in %s\n", names[i], argv[1]), 1;
        memcpy((char *)&lib + i * sizeof symbol, &symbol, sizeof symbol);
    }
    kiln_executor *executor;
    if (lib.create(&executor) != KILN_OK)
        return fprintf(stderr, "%s\n", lib.last_error()), 1;
    for (;;) {
        char what, name[256];
        get(&what, 1);
        const uint32_t bytes = get_count();
        if (bytes >= sizeof name)
            return 7;
        get(name, bytes);
        name[bytes] = 0;
        const int32_t good = KILN_OK;
        if (what == 't') {
            lib.set_num_threads((int)get_count());
            put(&good, sizeof good);
        } else if (what == 'm') {
            get_count();
            put(&good, sizeof good);
            put_text(lib.metadata());
        } else {
            answer(executor, what, name);
        }
        fflush(stdout);
    }
}
