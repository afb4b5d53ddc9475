/* The memory functions that compilers call for assignments and loops. With its own, a library does
 * not depend on memcpy@GLIBC_2.14, nor on a C library on bare metal. Compiled with -fno-builtin, as
 * the compiler would otherwise turn the loops below into calls of these same functions. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);
int bcmp(const void *a, const void *b, size_t n);

/* 16 bytes, free of type-based aliasing rules, at any address where the machine loads words from any;
 * elsewhere a compiler would copy them by a call of memcpy(), from within it. */
#if defined(__x86_64__) || defined(__i386__) || defined(__ARM_FEATURE_UNALIGNED) ||                \
    defined(__riscv_misaligned_fast)
#define ALIGNMENT 1
#else
#define ALIGNMENT 8
#endif
typedef struct {
    uint64_t half[2];
} __attribute__((packed, aligned(ALIGNMENT), may_alias)) chunk;

static int is_aligned(const char *address)
{
    return (uintptr_t)address % ALIGNMENT == 0;
}

void *memcpy(void *to, const void *from, size_t n)
{
    char *t = to;
    const char *f = from;
#if defined(__x86_64__)
    if (n >= 2048) { /* CPUs since 2013 (ERMSB) copy faster with it than with the loop below */
        __asm__ volatile("rep movsb" : "+D"(t), "+S"(f), "+c"(n) : : "memory");
        return to;
    }
#endif
    for (; n > 0 && !is_aligned(t); n--)
        *t++ = *f++;
    for (; n >= 16 && is_aligned(f); n -= 16, t += 16, f += 16)
        *(chunk *)t = *(const chunk *)f;
    for (; n > 0; n--)
        *t++ = *f++;
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    char *t = to;
    const char *f = from;
    if ((uintptr_t)t - (uintptr_t)f >= n) /* true for t < f too: the difference wraps around */
        return memcpy(to, from, n);
    for (; n > 0 && !is_aligned(t + n); n--)
        t[n - 1] = f[n - 1];
    for (; n >= 16 && is_aligned(f + n); n -= 16) {
        chunk last = *(const chunk *)(f + n - 16);
        *(chunk *)(t + n - 16) = last;
    }
    for (; n > 0; n--)
        t[n - 1] = f[n - 1];
    return to;
}

void *memset(void *to, int byte, size_t n)
{
    char *t = to;
    const uint64_t pattern = 0x0101010101010101u * (uint64_t)(unsigned char)byte;
    const chunk fill = {{pattern, pattern}};
    for (; n > 0 && !is_aligned(t); n--)
        *t++ = (char)byte;
    for (; n >= 16; n -= 16, t += 16)
        *(chunk *)t = fill;
    for (; n > 0; n--)
        *t++ = (char)byte;
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    for (; n > 0; n--, x++, y++)
        if (*x != *y)
            return *x - *y;
    return 0;
}

int bcmp(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n);
}
