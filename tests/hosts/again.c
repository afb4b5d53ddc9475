/* For each 'o' that comes in, opens the library once more; for each 'c', closes the one that has
 * been open longest. Then says what `main` of all that are open makes of a 1. */
#include "kiln_host.h"

static int show(const kiln_host_library *library, kiln_host_error *error)
{
    const kiln_host_function *f;
    kiln_host_executor *executor;
    float x = 1, y = 0;
    int64_t shape[] = {1, 1};
    const kiln_tensor in = kiln_host_tensor(&x, kiln_host_dtype(2, 32), shape, 2);
    const kiln_tensor out = kiln_host_tensor(&y, kiln_host_dtype(2, 32), shape, 2);
    int code = kiln_host_executor_create(library, &executor, error);
    if (code == KILN_OK)
        code = kiln_host_find(library, "main", &f, error);
    if (code == KILN_OK)
        code = kiln_host_run(executor, f, &in, 1, &out, 1, error);
    kiln_host_executor_destroy(executor);
    printf("%g ", (double)y);
    return code;
}

int main(int argc, char **argv)
{
    kiln_host_library *all[16];
    kiln_host_error error;
    int first = 0, count = 0, word;
    while ((word = getchar()) != EOF) {
        int code = KILN_OK;
        if (word == 'o' && (code = kiln_host_open(argv[argc - 1], &all[count], &error)) == KILN_OK)
            count++;
        else if (word == 'c')
            kiln_host_close(all[first++]);
        for (int i = first; i < count && code == KILN_OK; i++)
            code = show(all[i], &error);
        if (code != KILN_OK)
            printf("%d %s", error.code, error.sentence);
        puts("");
        fflush(stdout);
    }
    while (first < count)
        kiln_host_close(all[first++]);
    return 0;
}
