/* memcpy and friends. Compilers call them for plain assignments and loops; having our own keeps
 * the library free of memcpy@GLIBC_2.14 and of a libc on bare metal. Compiled with -fno-builtin,
 * or the loops below would be turned into calls of themselves. */
#include <stddef.h>
#include <stdint.h>

void *memcpy(void *to, const void *from, size_t n);
void *memmove(void *to, const void *from, size_t n);
void *memset(void *to, int byte, size_t n);
int memcmp(const void *a, const void *b, size_t n);
int bcmp(const void *a, const void *b, size_t n);

/* 16 bytes at any address, free of type-based aliasing rules. */
typedef struct {
    uint64_t half[2];
} __attribute__((packed, aligned(1), may_alias)) chunk;

void *memcpy(void *to, const void *from, size_t n)
{
    char *t = to;
    const char *f = from;
#if defined(__x86_64__)
    if (n >= 2048) { /* string moves beat loops of 16 bytes on every CPU since 2013 */
        __asm__ volatile("rep movsb" : "+D"(t), "+S"(f), "+c"(n) : : "memory");
        return to;
    }
#endif
    for (; n >= 16; n -= 16, t += 16, f += 16)
        *(chunk *)t = *(const chunk *)f;
    for (; n > 0; n--)
        *t++ = *f++;
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    char *t = to;
    const char *f = from;
    if ((uintptr_t)t - (uintptr_t)f >= n) /* also true when t lies below f */
        return memcpy(to, from, n);
    for (; n >= 16; n -= 16) {
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
