/* Converts numbers to the type of a parameter. A number that the type cannot hold is an error:
 * nothing wraps around. Every error names the argument, what was expected and what was received. */
#include "crt.h"
#include <stdio.h>

enum { INT_CODE = 0, UINT_CODE = 1, FLOAT_CODE = 2, BFLOAT_CODE = 4, BOOL_CODE = 6 };

static int is_real(kiln_dtype dtype)
{
    return dtype.code == FLOAT_CODE || dtype.code == BFLOAT_CODE;
}

/* The bits of the nearest float16, ties to even; infinity from 65520 on. */
static uint16_t half_bits(double value)
{
    union {
        double value;
        uint64_t bits;
    } x = {value}, sum;
    const uint16_t sign = (uint16_t)(x.bits >> 48 & 0x8000);
    x.bits &= ~((uint64_t)1 << 63);
    if (x.value != x.value)
        return sign | 0x7e00;
    if (x.value >= 65520)
        return sign | 0x7c00;
    if (x.value < 0x1p-14) { /* subnormal: the sum's last place is 2^-24, so the addition rounds to
                                multiples of it, whose number is then in the low bits */
        sum.value = x.value + 0x1.8p28;
        return sign | (uint16_t)(sum.bits & 0x7ff);
    }
    x.bits += ((uint64_t)1 << 41) - 1 + (x.bits >> 42 & 1);
    return sign | (uint16_t)((x.bits >> 42) - (1008 << 10));
}

/* The bits of the bfloat16 nearest to the float32 nearest to a number: rounded twice, as
 * literals in tensor programs are. */
static uint16_t bfloat_bits(double value)
{
    union {
        float value;
        uint32_t bits;
    } x = {(float)value};
    if (x.value != x.value)
        return (uint16_t)(x.bits >> 16 | 0x40);
    return (uint16_t)((x.bits + 0x7fff + (x.bits >> 16 & 1)) >> 16);
}

/* Store a number in a floating-point type; 0 if a finite number would become infinite. */
static int put_real(kiln_dtype dtype, double value, kiln_scalar *scalar)
{
    const int finite = value - value == 0;
    if (dtype.bits == 64 || dtype.bits == 32) {
        scalar->real = value;
        const float narrow = (float)value;
        return dtype.bits == 64 || !finite || narrow - narrow == 0;
    }
    const int half = dtype.code == FLOAT_CODE;
    scalar->integer = half ? half_bits(value) : bfloat_bits(value);
    const int64_t infinite = half ? 0x7c00 : 0x7f80;
    return !finite || (scalar->integer & 0x7fff) != infinite;
}

/* Store an integer; 0 if it is out of range. With `high`, `integer` holds the bits of a uint64_t
 * from 2^63 on. */
static int put_integer(kiln_dtype dtype, int64_t integer, int high, kiln_scalar *scalar)
{
    scalar->integer = integer;
    if (dtype.code == BOOL_CODE)
        return !high && (integer == 0 || integer == 1);
    if (dtype.code == UINT_CODE)
        return dtype.bits == 64 ? high || integer >= 0
                                : !high && integer >= 0 && integer >> dtype.bits == 0;
    const uint64_t from_lowest = (uint64_t)integer + ((uint64_t)1 << (dtype.bits - 1));
    return !high && (dtype.bits == 64 || from_lowest >> dtype.bits == 0);
}

static double real_of(int64_t integer, int high)
{
    return high ? (double)(uint64_t)integer : (double)integer;
}

/* Store a number: 1 if it fits, 0 if it is out of range, -1 if the type takes no such kind of
 * value. */
static int put_number(kiln_dtype dtype, const kiln_value *value, kiln_scalar *scalar)
{
    const int high = value->kind == KILN_UINT, integer = high || value->kind == KILN_INT;
    if (!is_real(dtype))
        return integer || value->kind == KILN_BOOL
                   ? put_integer(dtype, value->as.integer, high, scalar)
                   : -1;
    if (value->kind == KILN_FLOAT)
        return put_real(dtype, value->as.real, scalar);
    return integer ? put_real(dtype, real_of(value->as.integer, high), scalar) : -1;
}

static int out_of_range(const char *function, const char *what, kiln_dtype dtype,
                        const kiln_value *value)
{
    char expected[80], name[24], received[48];
    const int bits = dtype.bits, is_signed = dtype.code == INT_CODE;
    kiln_dtype_text(name, sizeof name, dtype);
    if (dtype.code == BOOL_CODE)
        snprintf(expected, sizeof expected, "0 or 1 (%s)", name);
    else if (is_real(dtype))
        snprintf(expected, sizeof expected, "a number in the range of %s", name);
    else
        snprintf(expected, sizeof expected, "an integer from %lld to %llu (%s)",
                 is_signed ? (long long)(-((int64_t)1 << (bits - 2)) * 2) : 0LL,
                 ~(unsigned long long)0 >> (64 - bits + is_signed), name);
    if (value->kind == KILN_FLOAT)
        snprintf(received, sizeof received, "%.9g", value->as.real);
    else if (value->kind == KILN_UINT)
        snprintf(received, sizeof received, "%llu", (unsigned long long)value->as.integer);
    else
        snprintf(received, sizeof received, "%lld", (long long)value->as.integer);
    return kiln_fail(KILN_ERROR_RANGE, "%s: %s must be %s, received %s", function, what, expected,
                     received);
}

int kiln_check_number(const char *function, const char *what, kiln_dtype dtype,
                      const kiln_value *value)
{
    kiln_scalar scalar;
    const int put = put_number(dtype, value, &scalar);
    return put == 0 ? out_of_range(function, what, dtype, value) : KILN_OK;
}

int kiln_fit_scalar(const char *function, const kiln_param *param, const kiln_value *value,
                    kiln_scalar *scalar)
{
    char what[256];
    const int put = put_number(param->dtype, value, scalar);
    if (put > 0)
        return KILN_OK;
    snprintf(what, sizeof what, "argument '%s'", param->name);
    if (put == 0)
        return out_of_range(function, what, param->dtype, value);
    return kiln_fail(KILN_ERROR_ARGUMENT, "%s: %s must be %s, received %s", function, what,
                     is_real(param->dtype) ? "a number" : "an integer",
                     value->kind == KILN_FLOAT    ? "a number with a fraction"
                     : value->kind == KILN_BOOL   ? "a bool"
                     : value->kind == KILN_TENSOR ? "a tensor"
                     : value->kind == KILN_NONE   ? "nothing"
                                                  : "something else");
}

/* A plain C entry passes int64_t, uint64_t (for uint64) or double, according to the parameter's
 * type. */
int kiln_fit_plain(const char *function, const kiln_param *param, kiln_scalar *scalar)
{
    kiln_value value = {KILN_INT, 0, {scalar->integer}};
    if (is_real(param->dtype)) {
        value.kind = KILN_FLOAT;
        value.as.real = scalar->real;
    } else if (param->dtype.code == UINT_CODE && param->dtype.bits == 64) {
        value.kind = KILN_UINT;
    }
    return kiln_fit_scalar(function, param, &value, scalar);
}
