/* dtypes LIBRARY: each function, called like its element type, copies five of them; checks and names
 * all whose bytes came through. */
#include "kiln_host.h"

int main(int argc, char **argv)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *library;
    kiln_host_executor *executor;
    if (kiln_host_open(argv[argc - 1], &library, &error) != KILN_OK ||
        kiln_host_executor_create(library, &executor, &error) != KILN_OK)
        return puts(error.sentence), 1;
    for (int i = 0; i < library->file.n_functions; i++) {
        const kiln_host_function *const f = &library->file.functions[i];
        const kiln_dtype dtype = kiln_host_dtype_named(f->name);
        const size_t bytes = 5 * dtype.bits / 8u;
        double from[5], to[5] = {0};
        int64_t shape[] = {5};
        for (size_t b = 0; b < bytes; b++)
            ((unsigned char *)from)[b] = (unsigned char)(dtype.code == 6 ? b % 2 : 37 * b + 1);
        const kiln_tensor x = kiln_host_tensor(from, dtype, shape, 1);
        const kiln_tensor y = kiln_host_tensor(to, dtype, shape, 1);
        if (kiln_host_run(executor, f, &x, 1, &y, 1, &error) != KILN_OK)
            puts(error.sentence);
        else if (memcmp(from, to, bytes) == 0)
            puts(f->name);
    }
    kiln_host_executor_destroy(executor);
    kiln_host_close(library);
    return 0;
}
