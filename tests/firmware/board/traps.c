/* The heap that is not there. */
#include "board.h"

void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *old, size_t size);
void free(void *old);
void *_sbrk(ptrdiff_t more);
void *sbrk(ptrdiff_t more);

void *malloc(size_t size)
{
    (void)size;
    board_fail("malloc was called");
}

void *calloc(size_t count, size_t size)
{
    (void)count;
    (void)size;
    board_fail("calloc was called");
}

void *realloc(void *old, size_t size)
{
    (void)old;
    (void)size;
    board_fail("realloc was called");
}

void free(void *old)
{
    (void)old;
    board_fail("free was called");
}

void *_sbrk(ptrdiff_t more)
{
    (void)more;
    board_fail("_sbrk was called");
}

void *sbrk(ptrdiff_t more)
{
    return _sbrk(more);
}
