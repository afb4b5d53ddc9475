/* Runs a network in the stripped form that make.py exports: without runtime, in memory that this
 * program provides.
 *
 * `one` has static sizes: its workspace is a static array, and nothing is allocated. `many` takes
 * any number of rows: net_many_storage_size() gives the size of each workspace buffer for the most
 * rows, and the buffers are kept from call to call. */
#include "net.h"
#include <math.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 5, IN = 8, OUT = 4 };
extern const float net_input[ROWS * IN], net_expected[ROWS * OUT]; /* expected.c */

#ifdef NET_ONE_STORAGE_0_BYTES
static alignas(64) char memory[NET_ONE_STORAGE_0_BYTES];
static void *const one_storage[] = {memory};
#else
static void *const *const one_storage = NULL; /* this network needs no workspace */
#endif

static int differs(const char *what, const float *got, int count)
{
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - net_expected[i]) < 1e-5f))
            return printf("%s: element %d is %g, expected %g\n", what, i, got[i], net_expected[i]);
    return printf("%s: %d numbers as expected\n", what, count), 0;
}

/* Allocate the workspace buffers of `many` for that many rows; NULL if memory is short. */
static void **make_storages(int64_t rows)
{
    const int count = net_many_storage_count();
    void **storage = calloc((size_t)count + 1, sizeof *storage);
    for (int i = 0; storage != NULL && i < count; i++) {
        const int64_t bytes = net_many_storage_size(i, rows);
        storage[i] = bytes < 0 ? NULL : aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
        if (storage[i] == NULL)
            return NULL;
    }
    return storage;
}

int main(void)
{
    float y[ROWS * OUT];
    if (net_one_run(one_storage, net_input, y) != 0 || differs("one", y, OUT))
        return 1;
    void **storage = make_storages(ROWS);
    if (storage == NULL)
        return printf("out of memory\n"), 1;
    for (int rows = 1; rows <= ROWS; rows += 2)
        if (net_many_run(storage, net_input, y, rows) != 0 || differs("many", y, rows * OUT))
            return 1;
    printf("0 rows: %d\n", net_many_run(storage, net_input, y, 0));
    for (int i = 0; i < net_many_storage_count(); i++)
        free(storage[i]);
    free(storage);
    return 0;
}
