/* sizes.h - size arithmetic that detects overflow of 64 bits. The functions set a flag in `large`
 * instead of failing; the caller evaluates a whole expression and then rejects the call with
 * kiln_fits(). Generated C computes sizes with these functions only. */
#ifndef KILN_SIZES_H
#define KILN_SIZES_H

#include <stdint.h>

typedef struct kiln_large {
    int now;          /* an operation since the last kiln_named() overflowed */
    const char *what; /* the first named size that overflowed; 0: none did */
} kiln_large;

static inline int64_t kiln_add(int64_t a, int64_t b, kiln_large *large)
{
    int64_t sum;
    large->now |= __builtin_add_overflow(a, b, &sum);
    return sum;
}

static inline int64_t kiln_sub(int64_t a, int64_t b, kiln_large *large)
{
    int64_t difference;
    large->now |= __builtin_sub_overflow(a, b, &difference);
    return difference;
}

static inline int64_t kiln_mul(int64_t a, int64_t b, kiln_large *large)
{
    int64_t product;
    large->now |= __builtin_mul_overflow(a, b, &product);
    return product;
}

/* Division that rounds down, as Python's //; 0 for b = 0. */
static inline int64_t kiln_divide(int64_t a, int64_t b, kiln_large *large)
{
    if (b == 0 || b == -1)
        return kiln_mul(a, b, large);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* The same for entry files of earlier versions, which do not check for overflow. */
static inline int64_t kiln_floordiv(int64_t a, int64_t b)
{
    kiln_large nobody_asks = {0, 0};
    return kiln_divide(a, b, &nobody_asks);
}

/* The remainder of that division, as Python's %, with the sign of b; 0 for b = 0. */
static inline int64_t kiln_floormod(int64_t a, int64_t b)
{
    const int64_t rest = b == 0 || b == -1 ? 0 : a % b;
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static inline int64_t kiln_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t kiln_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Return the size, after noting an overflow if it is outside low..high, the range of its C type. */
static inline int64_t kiln_within(int64_t size, int64_t low, int64_t high, kiln_large *large)
{
    large->now |= size < low || size > high;
    return size;
}

/* End an expression: return its value, and record `what`, its name for messages, if any operation
 * in it overflowed. */
static inline int64_t kiln_named(int64_t size, const char *what, kiln_large *large)
{
    if (large->now && large->what == 0)
        large->what = what;
    large->now = 0;
    return size;
}

#endif
