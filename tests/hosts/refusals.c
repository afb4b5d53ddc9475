/* refusals LIBRARY [FUNCTION [in|out:DTYPE:SHAPE[:null] ...]]: prints the code and the sentence. */
#include "kiln_host.h"

static double memory[4096];

static kiln_tensor tensor_of(char *text, int64_t *shape)
{
    char *const dtype = strchr(text, ':') + 1, *sizes = strchr(dtype, ':');
    const int is_null = strstr(sizes, ":null") != NULL;
    int ndim = 0;
    *sizes++ = 0;
    while (*sizes >= '0' && *sizes <= '9') {
        shape[ndim++] = strtoll(sizes, &sizes, 10);
        sizes += *sizes == 'x';
    }
    return kiln_host_tensor(is_null ? NULL : memory, kiln_host_dtype_named(dtype), shape, ndim);
}

static int run(char **words, int count, const kiln_host_library *library, kiln_host_error *error)
{
    kiln_tensor inputs[8], outputs[8];
    int64_t shapes[16][KILN_MAX_RANK];
    int n_inputs = 0, n_outputs = 0;
    kiln_host_executor *executor;
    const kiln_host_function *f;
    int code = kiln_host_executor_create(library, &executor, error);
    for (int i = 1; i < count; i++)
        if (words[i][0] == 'i')
            inputs[n_inputs++] = tensor_of(words[i], shapes[i]);
        else
            outputs[n_outputs++] = tensor_of(words[i], shapes[i]);
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
