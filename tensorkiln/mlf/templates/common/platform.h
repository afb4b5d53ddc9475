/* platform.h: what main.c needs of the board. platform.c has it for a computer, or for an operating
 * system; replace it by your own. */
#ifndef PLATFORM_H
#define PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called first: clocks, console, sensors. */
void platform_start(void);

/* Fill an input of the model, `size` bytes in the order of memory. */
void platform_read(const char *tensor, void *data, size_t size);

/* Take an output of the model. */
void platform_write(const char *tensor, const void *data, size_t size);

/* A counter that wraps around, to tell how long a run takes. */
uint32_t platform_ticks(void);

/* Called last: `code` is 0, or what the run that failed returned, which took `ticks`. */
int platform_stop(int32_t code, uint32_t ticks);

#ifdef __cplusplus
}
#endif
#endif
