/* Cases that open and close libraries: repeatedly, with reads that fail, and from another
 * directory. The system functions that kiln_host.h calls in this file are those of faults.c. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Open a library again with a fault at its n-th system call: it must succeed, or fail with a
 * code. */
void opening(draws *d)
{
    const int kind = seldom(d, 2) ? ALLOCATION : SHORT_READ + (int)draw(d, 4);
    const char *path = paths[draw(d, N_LIBRARIES)];
    say("\n: opening %s with fault %d\n", path, kind);
    for (long at = 0; at < 400; at += 1 + (long)draw(d, 8)) {
        kiln_host_error error = {0, ""};
        kiln_host_library *opened = NULL;
        plan_fault(kind, at);
        const int code = kiln_host_open(path, &opened, &error);
        const int done = !fault_happened();
        plan_fault(0, 0);
        if (code != KILN_OK && error.sentence[0] == 0)
            found("error %d has no sentence", code);
        if (code != KILN_OK && (done || kind == SHORT_READ || kind == INTERRUPTED))
            found("failure %ld: %s", at, error.sentence);
        kiln_host_close(opened);
        if (done)
            break;
    }
}

/* Open and close libraries in random order, with calls in between. */
void lives(draws *d)
{
    kiln_host_library *opened[3] = {NULL, NULL, NULL};
    say("\n: lives:");
    for (int i = 0; i < 9; i++) {
        kiln_host_error error = {0, ""};
        kiln_executor *executor = NULL;
        const int k = (int)draw(d, 3);
        kiln_host_close(opened[k]);
        if (kiln_host_open(paths[k], &opened[k], &error) != KILN_OK) {
            found("%s", error.sentence);
            break;
        }
        check_code(opened[k], opened[k]->api.executor_create(&executor), "kiln_executor_create");
        call_function(d, opened[k], &opened[k]->file.functions[draw(d, 5) %
                      (uint64_t)opened[k]->file.n_functions], executor);
        opened[k]->api.executor_destroy(executor);
    }
    for (int k = 0; k < 3; k++)
        kiln_host_close(opened[k]);
}

/* Open a library by a relative path, then change to a directory where a library of the same name
 * has other weights. */
void elsewhere(draws *d)
{
    kiln_host_error error = {0, ""};
    kiln_host_library *opened = NULL;
    const kiln_host_function *f;
    kiln_host_executor *executor = NULL;
    float x[8] = {1}, y[4] = {0};
    int64_t in[] = {1, 8}, out[] = {1, 4};
    const kiln_dtype f32 = kiln_host_dtype(2, 32);
    const kiln_tensor input = kiln_host_tensor(x, f32, in, 2), output = kiln_host_tensor(y, f32, out, 2);
    const char *const to = seldom(d, 2) ? "../other" : "..";
    say("\n: weights beside, then %s\n", to);
    char *const before = getcwd(NULL, 0);
    void *handle = NULL;
    int (*entry)(int64_t n, const float *x, float *y) = NULL;
    if (before == NULL || chdir("beside") != 0)
        abort();
    handle = dlopen("./net.so", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL || chdir(to) != 0)
        abort();
    void *const address = dlsym(handle, "graphs_dense");
    memcpy(&entry, &address, sizeof entry);
    const int code = entry(1, x, y);
    if (code != KILN_OK)
        found("dense in another folder gave %d", code);
    else if (y[0] != 0 || y[3] != 0) /* negative weights in its first row: relu gives 0 */
        found("the weights of another file were taken: %g %g", (double)y[0], (double)y[3]);
    dlclose(handle);
    if (chdir(before) != 0 || chdir("beside") != 0)
        abort();
    if (kiln_host_open("net.so", &opened, &error) != KILN_OK || chdir("../other") != 0 ||
        kiln_host_executor_create(opened, &executor, &error) != KILN_OK ||
        kiln_host_find(opened, "dense", &f, &error) != KILN_OK ||
        kiln_host_run(executor, f, &input, 1, &output, 1, &error) != KILN_OK)
        found("opened by kiln_host.h: %s", error.sentence);
    else if (y[0] != 0 || y[3] != 0)
        found("by kiln_host.h the weights of another file were taken");
    kiln_host_executor_destroy(executor);
    kiln_host_close(opened);
    if (chdir(before) != 0)
        abort();
    free(before);
}

/* Open a file whose metadata is megabytes of dimensions: it is rejected, or read with memory
 * proportional to its size. */
void large_metadata(draws *d)
{
    static const char *const names[] = {"dims-1.so", "dims-57.so"}; /* the second is too large */
    const char *const path = names[draw(d, 2)];
    kiln_host_error error = {0, ""};
    kiln_host_library *opened = NULL;
    const size_t before = asked_bytes();
    say("\n: %s\n", path);
    const int code = kiln_host_open(path, &opened, &error);
    const size_t asked = asked_bytes() - before;
    if (asked > (size_t)100 << 20)
        found("%zu bytes of memory for what a library says of itself", asked);
    if (code == KILN_OK ? path == names[1] : error.sentence[0] == 0)
        found("%s was opened, or has no sentence: %d", path, code);
    kiln_host_close(opened);
}
