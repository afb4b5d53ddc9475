/* moved LIBRARY FOLDER LINK TARGET: opens a library; goes to another folder, and lets a link lead
 * somewhere else ("-": not); then runs `main` on ones for the first time, and prints the first result.
 * Defined PLAIN: by dlopen() and the C entry `model_main` alone. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "check.h"
#include "kiln_host.h"

#include <unistd.h>

enum { IN = 80, OUT = 14 };

static kiln_host_error error;

static void move(char **argv)
{
    if (strcmp(argv[2], "-") != 0)
        CHECK(chdir(argv[2]) == 0);
    if (strcmp(argv[3], "-") != 0)
        CHECK(unlink(argv[3]) == 0 && symlink(argv[4], argv[3]) == 0);
}

int main(int argc, char **argv)
{
    static float in[IN], out[OUT];
    (void)argc;
    for (int i = 0; i < IN; i++)
        in[i] = 1;
#if defined(PLAIN)
    int (*run)(const float *x, float *y);
    void *const handle = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(handle != NULL);
    move(argv);
    void *const address = dlsym(handle, "model_main");
    CHECK(address != NULL);
    memcpy(&run, &address, sizeof run);
    const int code = run(in, out);
#else
    kiln_host_library *library;
    kiln_host_executor *executor;
    const kiln_host_function *f;
    int64_t from[] = {2, 40}, to[] = {2, 7};
    const kiln_tensor x = kiln_host_tensor(in, kiln_host_dtype(2, 32), from, 2);
    const kiln_tensor y = kiln_host_tensor(out, kiln_host_dtype(2, 32), to, 2);
    CHECK(kiln_host_open(argv[1], &library, &error) == KILN_OK);
    move(argv);
    CHECK(kiln_host_executor_create(library, &executor, &error) == KILN_OK);
    CHECK(kiln_host_find(library, "main", &f, &error) == KILN_OK);
    const int code = kiln_host_run(executor, f, &x, 1, &y, 1, &error);
#endif
    return printf("%d %.4f\n", code, (double)out[0]) < 0;
}
