/* Runs a function of any compiled model from C: names, shapes and types are learnt at run time.
 *
 *   kiln compile mlp.onnx -o mlp.so --headers include
 *   gcc -std=c99 -Iinclude -o any_model any_model.c -ldl
 *   ./any_model ./mlp.so main batch=4
 *
 * Inputs count up in small steps; of each output it prints the shape and the sum. Sizes that the
 * model leaves open are 1 where the command line says nothing. */
#include "kiln_host.h"

enum { MAX_TENSORS = 64 };

static kiln_tensor tensors[MAX_TENSORS]; /* inputs, then outputs */
static int64_t shapes[MAX_TENSORS][KILN_MAX_RANK];

static int64_t elements(const kiln_tensor *t)
{
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++)
        count *= t->shape[d];
    return count;
}

static double element(const kiln_tensor *t, int64_t i, const double *set)
{
#define ELEMENT(c, b, type)                              \
    if (t->dtype.code == (c) && t->dtype.bits == (b)) {  \
        if (set != NULL)                                 \
            ((type *)t->data)[i] = (type)*set;           \
        return (double)((type *)t->data)[i];             \
    }
    ELEMENT(2, 32, float)
    ELEMENT(2, 64, double)
    ELEMENT(0, 8, int8_t)
    ELEMENT(0, 32, int32_t)
    ELEMENT(0, 64, int64_t)
    ELEMENT(1, 8, uint8_t)
    ELEMENT(6, 8, uint8_t)
#undef ELEMENT
    return 0;
}

/* A tensor with room for its elements, in zeros. */
static int make_room(int at, kiln_dtype dtype, int ndim)
{
    tensors[at] = kiln_host_tensor(NULL, dtype, shapes[at], ndim);
    tensors[at].data = calloc((size_t)elements(&tensors[at]) + 1, dtype.bits / 8u);
    return tensors[at].data != NULL;
}

static int64_t size_of(const kiln_host_dim *dim, char **sizes, int count)
{
    const size_t length = strlen(dim->text);
    for (int i = 0; dim->size < 0 && i < count; i++)
        if (strncmp(sizes[i], dim->text, length) == 0 && sizes[i][length] == '=')
            return strtoll(sizes[i] + length + 1, NULL, 10);
    return dim->size < 0 ? 1 : dim->size;
}

static void list(const kiln_host_library *library)
{
    char text[256];
    for (int i = 0; i < library->file.n_functions; i++) {
        const kiln_host_function *f = &library->file.functions[i];
        printf("%s function %s\n", f->kind, f->name);
        for (int p = 0; p < f->n_inputs + f->n_outputs; p++) {
            const kiln_host_param *param =
                p < f->n_inputs ? &f->inputs[p] : &f->outputs[p - f->n_inputs];
            kiln_host_show(param, text, sizeof text);
            printf("  %s %s\n", param->role, text);
        }
    }
}

static int run(const kiln_host_library *library, const kiln_host_executor *executor,
               const char *name, char **sizes, int count, kiln_host_error *error)
{
    const kiln_host_function *f;
    int code = kiln_host_find(library, name, &f, error), ndim;
    if (code != KILN_OK)
        return code;
    const int inputs = f->n_inputs, all = inputs + f->n_outputs;
    if (strcmp(f->kind, "graph") != 0 || all > MAX_TENSORS)
        return kiln_host_fail(error, KILN_ERROR_ARGUMENT, "%s is no graph function of at most %d "
                              "tensors", name, MAX_TENSORS);
    for (int p = 0; p < inputs; p++) {
        for (int d = 0; d < f->inputs[p].ndim; d++)
            shapes[p][d] = size_of(&f->inputs[p].dims[d], sizes, count);
        if (!make_room(p, f->inputs[p].type, f->inputs[p].ndim))
            return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
        for (int64_t i = 0; i < elements(&tensors[p]); i++) {
            const double value = (double)(i % 7) * (tensors[p].dtype.code == 2 ? 0.25 : 1);
            element(&tensors[p], i, &value);
        }
    }
    for (int p = inputs; p < all; p++) {
        code = kiln_host_output_shape(library, f, tensors, inputs, p - inputs, shapes[p], &ndim,
                                      error);
        if (code != KILN_OK)
            return code;
        if (!make_room(p, f->outputs[p - inputs].type, ndim))
            return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    }
    code = kiln_host_run(executor, f, tensors, inputs, tensors + inputs, all - inputs, error);
    for (int p = inputs; p < all && code == KILN_OK; p++) {
        double sum = 0;
        printf("%s: %s [", f->outputs[p - inputs].name, f->outputs[p - inputs].dtype);
        for (int d = 0; d < tensors[p].ndim; d++)
            printf(d == 0 ? "%lld" : ", %lld", (long long)tensors[p].shape[d]);
        for (int64_t i = 0; i < elements(&tensors[p]); i++)
            sum += element(&tensors[p], i, NULL);
        printf("] sum %.5f\n", sum);
    }
    return code;
}

int main(int argc, char **argv)
{
    kiln_host_error error;
    kiln_host_library *library = NULL;
    kiln_host_executor *executor = NULL;
    if (argc < 2)
        return fprintf(stderr, "usage: any_model LIBRARY [FUNCTION [SIZE=NUMBER ...]]\n"), 2;
    int code = kiln_host_open(argv[1], &library, &error);
    if (code == KILN_OK && argc == 2)
        list(library);
    if (code == KILN_OK)
        code = kiln_host_executor_create(library, &executor, &error);
    if (code == KILN_OK && argc > 2)
        code = run(library, executor, argv[2], argv + 3, argc - 3, &error);
    if (code != KILN_OK)
        fprintf(stderr, "error %d: %s\n", code, error.sentence);
    for (int p = 0; p < MAX_TENSORS; p++)
        free(tensors[p].data);
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
    return code == KILN_OK ? 0 : 1;
}
