/* devices <library> <device> <index>: chooses that device; says what went wrong, or what `main`
 * makes of seven ones. */
#include "kiln_host.h"

int main(int argc, char **argv)
{
    kiln_host_error error;
    kiln_host_library *library = NULL;
    kiln_host_executor *executor = NULL;
    const kiln_host_function *f;
    float x[7] = {1, 1, 1, 1, 1, 1, 1}, y[7] = {0};
    int64_t shape[] = {7};
    const kiln_tensor in = kiln_host_tensor(x, kiln_host_dtype(2, 32), shape, 1);
    const kiln_tensor out = kiln_host_tensor(y, kiln_host_dtype(2, 32), shape, 1);
    int code = argc != 4 ? 1 : kiln_host_open(argv[1], &library, &error);
    if (code == KILN_OK)
        code = kiln_host_executor_create(library, &executor, &error);
    if (code == KILN_OK)
        code = kiln_host_set_device(executor, atoi(argv[2]), atoi(argv[3]), NULL, &error);
    if (code == KILN_OK)
        code = kiln_host_find(library, "main", &f, &error);
    if (code == KILN_OK)
        code = kiln_host_run(executor, f, &in, 1, &out, 1, &error);
    if (code == KILN_OK)
        for (int i = 0; i < 7; i++)
            printf("%.5f ", (double)y[i]);
    else
        printf("%d %s", error.code, error.sentence);
    kiln_host_executor_destroy(executor);
    if (library != NULL)
        kiln_host_close(library);
    return 0;
}
