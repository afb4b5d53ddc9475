/* The kernels of tests/runtime/device_library.py as an emulator would have made them of its PTX. */
#include <stdint.h>

#ifndef FACTOR_AT
#define FACTOR_AT 0 /* among the floats that the parameter has */
#endif

static const char *message = "";

const char *emulator_message(void);
const char *emulator_message(void)
{
    return message;
}

static int64_t number(const void *argument)
{
    return *(const int64_t *)argument;
}

static float *buffer(const void *argument)
{
    return *(float *const *)argument;
}

/* Loop over the threads i of a grid along x; 1 with a message if a launch is not one of ours. */
#define THREADS(grid, block, shared, i, n)                                                         \
    if (block[0] != 64 || block[1] != 1 || grid[1] != 1 || shared != 0)                            \
        return message = "not the blocks of add and scale", 1;                                     \
    for (int64_t i = 0; i < (int64_t)grid[0] * 64; i++)                                            \
        if (i < n)

int emulate_add(const unsigned grid[3], const unsigned block[3], unsigned shared, void **arguments);
int emulate_add(const unsigned grid[3], const unsigned block[3], unsigned shared, void **arguments)
{
    const float *const x = buffer(arguments[0]), *const w = buffer(arguments[1]);
    float *const y = buffer(arguments[2]);
    const int64_t n = number(arguments[3]);
    THREADS(grid, block, shared, i, n)
        y[i] = x[i] + w[i];
    return 0;
}

int emulate_scale(const unsigned grid[3], const unsigned block[3], unsigned shared, void **arguments);
int emulate_scale(const unsigned grid[3], const unsigned block[3], unsigned shared, void **arguments)
{
    float *const x = buffer(arguments[0]);
    const float factor = ((const float *)arguments[1])[FACTOR_AT];
    const int64_t n = number(arguments[2]);
#ifdef RACE
    if (factor == RACE)
        return message = "thread 3 of block 0 races with thread 5", 2;
#endif
    THREADS(grid, block, shared, i, n)
        x[i] *= factor;
    return 0;
}
