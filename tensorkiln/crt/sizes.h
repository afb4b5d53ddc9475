/* sizes.h - arithmetic of sizes: what does not fit into 64 bits is noted, and the call is refused.
 * Generated C and the runtime compute with sizes by these alone; each takes the same note. */
#ifndef KILN_SIZES_H
#define KILN_SIZES_H

#include <stdint.h>

typedef struct kiln_large {
    int now;          /* something since the last kiln_named() was too large */
    const char *what; /* the first of the named sizes that are; 0: all fit */
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

/* Division rounds down, as it does in Python; by 0 it is 0. */
static inline int64_t kiln_divide(int64_t a, int64_t b, kiln_large *large)
{
    if (b == 0 || b == -1)
        return kiln_mul(a, b, large);
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

/* The same for entry files of former versions, which check nothing. */
static inline int64_t kiln_floordiv(int64_t a, int64_t b)
{
    kiln_large nobody_asks = {0, 0};
    return kiln_divide(a, b, &nobody_asks);
}

/* What is left of it, of the sign of `b`. */
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

/* Notes a size that its type in C does not hold. */
static inline int64_t kiln_within(int64_t size, int64_t low, int64_t high, kiln_large *large)
{
    large->now |= size < low || size > high;
    return size;
}

/* A size that is complete, and what it is called should it be too large. */
static inline int64_t kiln_named(int64_t size, const char *what, kiln_large *large)
{
    if (large->now && large->what == 0)
        large->what = what;
    large->now = 0;
    return size;
}

#endif
