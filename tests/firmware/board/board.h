/* What a program of these tests has of its machine: files of the host by semihosting, a count of
 * instructions, and an end. There is no heap: whoever calls malloc ends the run (traps.c). */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

/* A file in the emulator's working directory, open in binary mode; ends the run if it cannot be. */
int board_open_to_read(const char *name);
int board_open_to_write(const char *name);
size_t board_size(int file);
/* All of the bytes, or the run ends. */
void board_read(int file, void *to, size_t bytes);
void board_write(int file, const void *from, size_t bytes);
void board_close(int file);

#if defined(__arm__)
#define BOARD_MOVE "mov"
#else
#define BOARD_MOVE "mv"
#endif

/* Instructions since the machine started: with `-icount shift=0` each takes a nanosecond of its
 * clocks. In the header, since a call would be seen on the stack that a program measures. */
static inline uint64_t board_instructions(void)
{
#if defined(__arm__)
    /* A counter of the FPGA of Arm's boards: a step is BOARD_QUARTERS / 4 instructions. */
    return (uint64_t)*(volatile uint32_t *)BOARD_COUNTER * BOARD_QUARTERS / 4;
#elif __riscv_xlen == 64
    uint64_t count;
    __asm__ volatile(".option push\n.option arch, +zicsr\n"
                     "csrr %0, minstret\n.option pop"
                     : "=r"(count));
    return count;
#else
    uint32_t high, low, again;
    do
        __asm__ volatile(".option push\n.option arch, +zicsr\n"
                         "csrr %0, minstreth\ncsrr %1, minstret\ncsrr %2, minstreth\n.option pop"
                         : "=r"(high), "=r"(low), "=r"(again));
    while (high != again);
    return (uint64_t)high << 32 | low;
#endif
}

/* End the emulator with this status, after a sentence on its standard error. */
_Noreturn void board_fail(const char *sentence);
_Noreturn void board_exit(int status);

int main(void);

#endif
