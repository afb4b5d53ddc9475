/* Semihosting as Arm specified it, which QEMU serves for RISC-V too. */
#include "board.h"
#include <string.h>

enum { OPEN = 1, CLOSE, WRITE0 = 4, WRITE, READ, LENGTH = 12, EXIT_EXTENDED = 32 };
enum { READ_BINARY = 1, WRITE_BINARY = 5 };
#define EXITED 0x20026 /* ADP_Stopped_ApplicationExit */

static intptr_t call(intptr_t what, const void *block)
{
#if defined(__arm__)
    register intptr_t r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
#else
    register intptr_t a0 __asm__("a0") = what;
    register const void *a1 __asm__("a1") = block;
    /* The three instructions must be of 32 bits, and in one page. */
    __asm__ volatile(".option push\n.option norvc\n.balign 16\n"
                     "slli zero, zero, 0x1f\nebreak\nsrai zero, zero, 7\n.option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
#endif
}

static int opened(const char *name, intptr_t mode)
{
    const intptr_t block[] = {(intptr_t)name, mode, (intptr_t)strlen(name)};
    const intptr_t file = call(OPEN, block);
    if (file < 0)
        board_fail(name);
    return (int)file;
}

int board_open_to_read(const char *name)
{
    return opened(name, READ_BINARY);
}

int board_open_to_write(const char *name)
{
    return opened(name, WRITE_BINARY);
}

size_t board_size(int file)
{
    const intptr_t block[] = {file};
    return (size_t)call(LENGTH, block);
}

void board_read(int file, void *to, size_t bytes)
{
    const intptr_t block[] = {file, (intptr_t)to, (intptr_t)bytes};
    if (call(READ, block) != 0) /* how many bytes were not read */
        board_fail("the input ends early");
}

void board_write(int file, const void *from, size_t bytes)
{
    const intptr_t block[] = {file, (intptr_t)from, (intptr_t)bytes};
    if (call(WRITE, block) != 0)
        board_fail("a file cannot be written");
}

void board_close(int file)
{
    const intptr_t block[] = {file};
    call(CLOSE, block);
}

void board_exit(int status)
{
    const intptr_t block[] = {EXITED, status};
    for (;;)
        call(EXIT_EXTENDED, block);
}

void board_fail(const char *sentence)
{
    call(WRITE0, sentence);
    call(WRITE0, "\n");
    board_exit(2);
}
