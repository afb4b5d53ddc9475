/* element.h - loads one element of a tensor as a number, for any element type. */
#ifndef KILN_ELEMENT_H
#define KILN_ELEMENT_H

#include "outer.h"

enum { KILN_CODE_INT = 0, KILN_CODE_UINT = 1, KILN_CODE_FLOAT = 2, KILN_CODE_BFLOAT = 4,
       KILN_CODE_BOOL = 6 };

/* The value of an IEEE half-precision number. */
static inline double kiln_half(uint16_t bits)
{
    const double sign = bits & 0x8000 ? -1.0 : 1.0;
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double value = fraction / 1024.0;
    if (exponent == 31)
        return fraction != 0 ? __builtin_nan("") : sign * __builtin_inf();
    value = exponent != 0 ? 1.0 + value : value * 2.0;
    for (int e = exponent; e < 15; e++)
        value *= 0.5;
    for (int e = exponent; e > 15; e--)
        value *= 2.0;
    return sign * value;
}

/* Unaligned loads, because DLPack allows any byte_offset. The builtin with a constant size compiles
 * to one instruction, unlike memcpy() of mem.c. */
#define KILN_LOAD(type, name)                                                                      \
    static inline type kiln_load_##name(const char *at)                                            \
    {                                                                                              \
        type value;                                                                                \
        __builtin_memcpy(&value, at, sizeof value);                                                \
        return value;                                                                              \
    }
KILN_LOAD(int8_t, i8)
KILN_LOAD(int16_t, i16)
KILN_LOAD(int32_t, i32)
KILN_LOAD(int64_t, i64)
KILN_LOAD(uint8_t, u8)
KILN_LOAD(uint16_t, u16)
KILN_LOAD(uint32_t, u32)
KILN_LOAD(uint64_t, u64)
KILN_LOAD(float, f32)
KILN_LOAD(double, f64)
#undef KILN_LOAD

static inline double kiln_load_real(kiln_dtype dtype, const char *at)
{
    union {
        uint32_t bits;
        float value;
    } word;
    if (dtype.code == KILN_CODE_BFLOAT) {
        word.bits = (uint32_t)kiln_load_u16(at) << 16;
        return word.value;
    }
    return dtype.bits == 16   ? kiln_half(kiln_load_u16(at))
           : dtype.bits == 32 ? (double)kiln_load_f32(at)
                              : kiln_load_f64(at);
}

static inline int64_t kiln_load_int(kiln_dtype dtype, const char *at)
{
    return dtype.bits == 8    ? kiln_load_i8(at)
           : dtype.bits == 16 ? kiln_load_i16(at)
           : dtype.bits == 32 ? kiln_load_i32(at)
                              : kiln_load_i64(at);
}

static inline uint64_t kiln_load_uint(kiln_dtype dtype, const char *at)
{
    return dtype.bits == 8    ? kiln_load_u8(at)
           : dtype.bits == 16 ? kiln_load_u16(at)
           : dtype.bits == 32 ? kiln_load_u32(at)
                              : kiln_load_u64(at);
}

static inline int kiln_is_real(kiln_dtype dtype)
{
    return dtype.code == KILN_CODE_FLOAT || dtype.code == KILN_CODE_BFLOAT;
}

/* Whether the loads above support the type. */
static inline int kiln_is_number(kiln_dtype dtype)
{
    const int bits = dtype.bits, whole = bits == 8 || bits == 16 || bits == 32 || bits == 64;
    switch (dtype.code) {
    case KILN_CODE_INT:
    case KILN_CODE_UINT: return whole && dtype.lanes == 1;
    case KILN_CODE_FLOAT: return whole && bits != 8 && dtype.lanes == 1;
    case KILN_CODE_BFLOAT: return bits == 16 && dtype.lanes == 1;
    case KILN_CODE_BOOL: return bits == 8 && dtype.lanes == 1;
    default: return 0;
    }
}

/* The same as an error, for operators that read elements of any type. */
static inline int kiln_check_number_type(const char *function, kiln_dtype dtype)
{
    char text[40];
    if (kiln_is_number(dtype))
        return KILN_OK;
    kiln_dtype_text(text, sizeof text, dtype);
    return kiln_fail(KILN_ERROR_DTYPE, "%s: the tensor must hold numbers or bools, received %s",
                     function, text);
}

static inline int kiln_is_zero(kiln_dtype dtype, const char *at)
{
    return kiln_is_real(dtype) ? kiln_load_real(dtype, at) == 0 : kiln_load_uint(dtype, at) == 0;
}

#endif
