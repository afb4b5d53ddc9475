/* Runs a function of any compiled model from C; names, shapes and types are read at run time.
 *
 *   kiln compile mlp.onnx -o mlp.so --headers include
 *   gcc -std=c99 -Iinclude -o any_model any_model.c -ldl
 *   ./any_model ./mlp.so main batch=4
 *
 * Each input is filled with 0 to 6, repeated (in steps of 0.25 for floating point). For each output
 * it prints the shape and the sum of the elements. Symbolic sizes such as `batch` are 1 unless the
 * command line gives a number. Without a function name it lists all functions. */
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

/* The value of element i, after setting it to *set unless that is NULL. */
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

/* Make tensors[at] a tensor of zeros, with the sizes in shapes[at]; 0 if memory is short. */
static int make_room(int at, kiln_dtype dtype, int ndim)
{
    tensors[at] = kiln_host_tensor(NULL, dtype, shapes[at], ndim);
    tensors[at].data = calloc((size_t)elements(&tensors[at]) + 1, dtype.bits / 8u);
    return tensors[at].data != NULL;
}

/* The size of a dimension; a symbolic one from arguments like "batch=4". */
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

/* Make the inputs: 0, 1, ... 6 and again from 0; in quarters for floating point. */
static int make_inputs(const kiln_host_function *f, char **sizes, int count, kiln_host_error *error)
{
    for (int p = 0; p < f->n_inputs; p++) {
        const int ndim = f->inputs[p].ndim < 0 ? 0 : f->inputs[p].ndim;
        for (int d = 0; d < ndim; d++)
            shapes[p][d] = size_of(&f->inputs[p].dims[d], sizes, count);
        if (!make_room(p, f->inputs[p].type, ndim))
            return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
        for (int64_t i = 0; i < elements(&tensors[p]); i++) {
            const double value = (double)(i % 7) * (tensors[p].dtype.code == 2 ? 0.25 : 1);
            element(&tensors[p], i, &value);
        }
    }
    return KILN_OK;
}

/* Make the outputs, whose shapes may depend on the inputs. */
static int make_outputs(const kiln_host_library *library, const kiln_host_function *f,
                        kiln_host_error *error)
{
    for (int i = 0; i < f->n_outputs; i++) {
        const int at = f->n_inputs + i;
        int ndim;
        const int code = kiln_host_output_shape(library, f, tensors, f->n_inputs, i, shapes[at],
                                                &ndim, error);
        if (code != KILN_OK)
            return code;
        if (!make_room(at, f->outputs[i].type, ndim))
            return kiln_host_fail(error, KILN_ERROR_MEMORY, "out of memory");
    }
    return KILN_OK;
}

static void print_output(const kiln_host_param *param, const kiln_tensor *tensor)
{
    double sum = 0;
    printf("%s: %s [", param->name, param->dtype);
    for (int d = 0; d < tensor->ndim; d++)
        printf(d == 0 ? "%lld" : ", %lld", (long long)tensor->shape[d]);
    for (int64_t i = 0; i < elements(tensor); i++)
        sum += element(tensor, i, NULL);
    printf("] sum %.5f\n", sum);
}

static int run(const kiln_host_library *library, const kiln_host_executor *executor,
               const char *name, char **sizes, int count, kiln_host_error *error)
{
    const kiln_host_function *f;
    int code = kiln_host_find(library, name, &f, error);
    if (code != KILN_OK)
        return code;
    const kiln_tensor *const outputs = tensors + f->n_inputs;
    if (f->n_inputs + f->n_outputs > MAX_TENSORS)
        return kiln_host_fail(error, KILN_ERROR_COUNT, "%s has more than %d tensors", name,
                              MAX_TENSORS);
    if ((code = make_inputs(f, sizes, count, error)) != KILN_OK ||
        (code = make_outputs(library, f, error)) != KILN_OK ||
        (code = kiln_host_run(executor, f, tensors, f->n_inputs, outputs, f->n_outputs, error)) !=
            KILN_OK)
        return code;
    for (int i = 0; i < f->n_outputs; i++)
        print_output(&f->outputs[i], &outputs[i]);
    return KILN_OK;
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
