/* streams <library> <device> <stream> <graphs>: runs `main` of seven ones twice with the device's work
 * in that stream (a number; 0: the library's own), as graphs if the last is 1; says what went wrong, or
 * the result, and how many graphs were launched and made. */
#include "kiln_host.h"

static int run(const kiln_host_executor *executor, float *y, kiln_host_error *error)
{
    float x[7] = {1, 1, 1, 1, 1, 1, 1};
    int64_t shape[] = {7};
    const kiln_tensor in = kiln_host_tensor(x, kiln_host_dtype(2, 32), shape, 1);
    const kiln_tensor out = kiln_host_tensor(y, kiln_host_dtype(2, 32), shape, 1);
    const kiln_host_function *f;
    const int code = kiln_host_find(executor->library, "main", &f, error);
    return code == KILN_OK ? kiln_host_run(executor, f, &in, 1, &out, 1, error) : code;
}

int main(int argc, char **argv)
{
    kiln_host_error error;
    kiln_host_library *library = NULL;
    kiln_host_executor *executor = NULL;
    float y[7] = {0};
    int code = argc != 5 ? 1 : kiln_host_open(argv[1], &library, &error);
    if (code == KILN_OK)
        code = kiln_host_executor_create(library, &executor, &error);
    if (code == KILN_OK && atoi(argv[4]) == 1)
        code = kiln_host_set_graphs(executor, 1, &error);
    if (code == KILN_OK)
        code = kiln_host_set_stream(executor, atoi(argv[2]), (void *)(intptr_t)atoi(argv[3]), &error);
    for (int i = 0; i < 2 && code == KILN_OK; i++)
        code = run(executor, y, &error);
    if (code != KILN_OK)
        printf("%d %s", error.code, error.sentence);
    for (int i = 0; i < 7 && code == KILN_OK; i++)
        printf("%.5f ", (double)y[i]);
    if (code == KILN_OK)
        printf("%d %d", (int)kiln_host_graph_count(executor, KILN_GRAPH_LAUNCHED),
               (int)kiln_host_graph_count(executor, KILN_GRAPH_MADE));
    kiln_host_executor_destroy(executor);
    if (library != NULL)
        kiln_host_close(library);
    return 0;
}
