/* refusals LIBRARY [FUNCTION [in|out:DTYPE:SHAPE[:null|odd|ones|gaps|device] | v:int|float|bool:NUMBER ...]]:
 * prints the code and the sentence. With a number among them they are the arguments of one call.
 * FUNCTION "@invoke" calls `main` with values, "@loader" registers a loader. */
#include "kiln_host.h"

static double memory[4096];

static kiln_tensor tensor_of(char *text, int64_t *shape, int64_t *strides)
{
    char *const dtype = strchr(text, ':') + 1, *sizes = strchr(dtype, ':');
    int64_t step = 2;
    int ndim = 0;
    *sizes++ = 0;
    while (*sizes >= '0' && *sizes <= '9') {
        shape[ndim++] = strtoll(sizes, &sizes, 10);
        sizes += *sizes == 'x';
    }
    kiln_tensor made = kiln_host_tensor(memory, kiln_host_dtype_named(dtype), shape, ndim);
    if (strcmp(sizes, ":null") == 0)
        made.data = NULL;
    if (strcmp(sizes, ":odd") == 0)
        made.data = (char *)memory + 1;
    if (strcmp(sizes, ":device") == 0)
        made.device_type = 2;
    if (strcmp(sizes, ":ones") == 0)
        memset(memory, 1, sizeof memory);
    if (strcmp(sizes, ":gaps") == 0)
        made.strides = strides;
    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = step;
        step *= shape[d];
    }
    return made;
}

static kiln_value number_of(const char *text)
{
    const char *const number = strrchr(text, ':') + 1;
    return text[2] == 'i'   ? kiln_host_int(strtoll(number, NULL, 10))
           : text[2] == 'b' ? kiln_host_bool(*number != '0')
                            : kiln_host_float(strtod(number, NULL));
}

static int call(const kiln_host_library *library, const char *name, const kiln_value *arguments,
                int count, kiln_host_error *error)
{
    const kiln_host_function *f;
    const int code = kiln_host_find(library, name, &f, error);
    return code != KILN_OK ? code : kiln_host_call(library, f, arguments, count, error);
}

/* What only some libraries can do. */
static int ask(const char *what, const kiln_host_library *library, kiln_host_error *error)
{
    const kiln_host_function *f;
    kiln_host_executor *executor;
    kiln_value result;
    if (strcmp(what, "@loader") == 0)
        return kiln_host_register_loader(library, "none", NULL, error);
    int code = kiln_host_executor_create(library, &executor, error);
    if (code == KILN_OK)
        code = kiln_host_find(library, "main", &f, error);
    if (code == KILN_OK)
        code = kiln_host_invoke(executor, f, NULL, 0, &result, error);
    kiln_host_executor_destroy(executor);
    return code;
}

static int run(char **words, int count, const kiln_host_library *library, kiln_host_error *error)
{
    kiln_tensor tensors[8], inputs[8], outputs[8];
    kiln_value arguments[8];
    int64_t shapes[8][KILN_MAX_RANK], strides[8][KILN_MAX_RANK];
    int n_inputs = 0, n_outputs = 0, has_number = 0;
    kiln_host_executor *executor;
    const kiln_host_function *f;
    if (words[0][0] == '@')
        return ask(words[0], library, error);
    for (int i = 0; i < count - 1; i++)
        if (words[i + 1][0] == 'v') {
            arguments[i] = number_of(words[i + 1]);
            has_number = 1;
        } else {
            kiln_tensor *const to =
                words[i + 1][0] == 'i' ? &inputs[n_inputs++] : &outputs[n_outputs++];
            *to = tensors[i] = tensor_of(words[i + 1], shapes[i], strides[i]);
            arguments[i] = kiln_host_lend(&tensors[i]);
        }
    if (has_number)
        return call(library, words[0], arguments, count - 1, error);
    int code = kiln_host_executor_create(library, &executor, error);
    if (code == KILN_OK)
        code = kiln_host_find(library, words[0], &f, error);
    if (code == KILN_OK)
        code = kiln_host_run(executor, f, inputs, n_inputs, outputs, n_outputs, error);
    kiln_host_executor_destroy(executor);
    return code;
}

int main(int argc, char **argv)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *library;
    int code = kiln_host_open(argv[1], &library, &error);
    if (code == KILN_OK && argc > 2)
        code = run(argv + 2, argc - 2, library, &error);
    kiln_host_close(library);
    printf("%d\n%s\n", code, error.sentence);
    return code == error.code ? 0 : 1;
}
