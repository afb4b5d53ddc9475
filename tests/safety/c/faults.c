/* Fault injection: replacements of the system functions that libraries call, which can be made to
 * fail. Libraries are linked with --wrap. */
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_MEMORY ((size_t)1 << 30) /* larger allocations fail, on every machine */

static __thread int planned;
static __thread long left;
static __thread size_t asked;

void plan_fault(int kind, long at)
{
    planned = kind;
    left = at;
}

int fault_happened(void)
{
    return planned != 0 && left < 0;
}

static int fails(int kind)
{
    return planned == kind && left >= 0 && left-- == 0;
}

size_t asked_bytes(void)
{
    return asked;
}

static int no_memory(size_t size)
{
    asked += size;
    if (!fails(ALLOCATION) && size <= MOST_MEMORY)
        return 0;
    errno = ENOMEM;
    return 1;
}

/* The wrappers, which libraries call instead of malloc(), calloc(), and so on. */
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
int __wrap_posix_memalign(void **made, size_t align, size_t size);
void *__wrap_mmap(void *at, size_t size, int access, int flags, int file, off_t offset);
int safety_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with);
int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_read(int file, void *to, size_t size);

void *__wrap_malloc(size_t size)
{
    return no_memory(size) ? NULL : malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || no_memory(bytes))
        return NULL;
    return calloc(count, size);
}

int __wrap_posix_memalign(void **made, size_t align, size_t size)
{
    return no_memory(size) ? ENOMEM : posix_memalign(made, align, size);
}

void *__wrap_mmap(void *at, size_t size, int access, int flags, int file, off_t offset)
{
    const int limited = (flags & MAP_NORESERVE) == 0 && size > MOST_MEMORY;
    if (limited || fails(MAPPING)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return mmap(at, size, access, flags, file, offset);
}

int safety_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with)
{
    return fails(THREAD) ? EAGAIN : pthread_create(thread, how, run, with);
}

int __wrap_open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    const int mode = (flags & O_CREAT) ? va_arg(more, int) : 0;
    va_end(more);
    if ((flags & O_CLOEXEC) == 0)
        found("%s is opened so that other programs inherit it", path);
    if (fails(OPENING)) {
        errno = EMFILE;
        return -1;
    }
    return open(path, flags, mode);
}

ssize_t __wrap_read(int file, void *to, size_t size)
{
    if (fails(INTERRUPTED)) {
        errno = EINTR;
        return -1;
    }
    if (fails(READ_ERROR)) {
        errno = EIO;
        return -1;
    }
    return read(file, to, size > 1 && fails(SHORT_READ) ? size / 2 : size);
}
