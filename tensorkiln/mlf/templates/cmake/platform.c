/* The platform of a computer: inputs are bytes of standard input, outputs those of standard output,
 * one tensor after the other. */
#include "platform.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void platform_start(void)
{
}

void platform_read(const char *tensor, void *data, size_t size)
{
    if (fread(data, 1, size, stdin) != size) {
        fprintf(stderr, "%s: standard input ends before its %lu bytes\n", tensor,
                (unsigned long)size);
        exit(1);
    }
}

void platform_write(const char *tensor, const void *data, size_t size)
{
    if (fwrite(data, 1, size, stdout) != size) {
        fprintf(stderr, "%s: cannot be written\n", tensor);
        exit(1);
    }
}

uint32_t platform_ticks(void)
{
    return (uint32_t)clock();
}

int platform_stop(int32_t code, uint32_t ticks)
{
    const double seconds = (double)ticks / (double)CLOCKS_PER_SEC;
    fprintf(stderr, "returned %ld after %.6f s\n", (long)code, seconds);
    return code != 0;
}
