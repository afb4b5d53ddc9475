/* Runs a network from the archive that make.py exports: without runtime and without a heap.
 *
 * `one` has static sizes: its workspace is a static array. `many` takes any number of rows:
 * kiln_net_many_workspace_size() gives the size of the workspace for the most rows, and one array
 * serves every call. */
#include "kiln_net.h"
#include <math.h>
#include <stdalign.h>
#include <stdio.h>

enum { ROWS = 5, IN = 8, OUT = 4, MOST = 4096 };
extern const float net_input[ROWS * IN], net_expected[ROWS * OUT]; /* expected.c */

static alignas(64) char one_memory[KILN_NET_ONE_WORKSPACE_SIZE + 1], many_memory[MOST];
static float y[ROWS * OUT];

static int differs(const char *what, int count)
{
    for (int i = 0; i < count; i++)
        if (!(fabsf(y[i] - net_expected[i]) < 1e-5f))
            return printf("%s: element %d is %g, expected %g\n", what, i, y[i], net_expected[i]);
    return printf("%s: %d numbers as expected\n", what, count), 0;
}

int main(void)
{
    const struct kiln_net_one_inputs one_in = {.x = net_input};
    const struct kiln_net_one_outputs one_out = {.output0 = y};
    const struct kiln_net_one_pools one_pools = {.workspace = one_memory};
    if (kiln_net_one_run(&one_in, &one_out, &one_pools) != 0 || differs("one", OUT))
        return 1;

    const struct kiln_net_many_inputs in = {.x = net_input};
    const struct kiln_net_many_outputs out = {.output0 = y};
    const struct kiln_net_many_pools pools = {.workspace = many_memory};
    if (kiln_net_many_workspace_size(ROWS) > MOST)
        return printf("the workspace is too small\n"), 1;
    for (int rows = 1; rows <= ROWS; rows += 2)
        if (kiln_net_many_run(&in, &out, &pools, rows) != 0 || differs("many", rows * OUT))
            return 1;
    printf("0 rows: %d\n", kiln_net_many_run(&in, &out, &pools, 0));
    return 0;
}
