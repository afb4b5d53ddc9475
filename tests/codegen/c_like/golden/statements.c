#include <stdbool.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

void kiln_assertion_failed(const char *message);
void kiln_parallel_for(void (*body)(void *, int64_t, int64_t), void *closure, int64_t n);

static inline int8_t max_i8(int8_t a, int8_t b)
{
    return (a > b) ? a : b;
}

static inline uint32_t bits_of_f32_u(float x)
{
    union { float from; uint32_t to; } bits;
    bits.from = x;
    return bits.to;
}

static inline float f32_of_bits_u(uint32_t x)
{
    union { uint32_t from; float to; } bits;
    bits.from = x;
    return bits.to;
}

static inline float abs_f32(float x)
{
    return f32_of_bits_u((bits_of_f32_u(x) & 2147483647u));
}

static inline float copysign_f32(float size, float sign)
{
    return f32_of_bits_u((bits_of_f32_u(size) | (bits_of_f32_u(sign) & 2147483648u)));
}

static inline float round_f32(float x)
{
    const float size = abs_f32(x);
    float near = (size + 8388608.0f) - 8388608.0f;
    near = copysign_f32(near, x);
    return (size < 8388608.0f) ? near : x;
}

static inline int8_t i8_of_f32(float x)
{
    return x != x ? 0 : (x >= 128.0f) ? 127 : (x <= -129.0f) ? -128 : (int8_t)x;
}

/* every_form
 * reads X: int8[n, 8]
 * writes Y: int8[n, 8]
 * takes on: bool
 * takes k: int64
 * takes n: int64
 * schedule: loops
 */
struct every_form_loop {
    const int8_t *X;
    int8_t *Y;
    bool on;
    int64_t k;
};

static void every_form_loop(void *closure, int64_t begin, int64_t end)
{
    const struct every_form_loop *const given = closure;
    const int8_t *restrict const X = given->X;
    int8_t *restrict const Y = given->Y;
    const bool on = given->on;
    const int64_t k = given->k;
    for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = 0; j < 8; ++j) {
            if (on) {
                Y[i * 8 + j] = (int8_t)(max_i8(X[i * 8 + ((int64_t)((uint64_t)j + (uint64_t)k) & 7)], -128) + X[i * 8 + j / 2]);
            } else {
                Y[i * 8 + j] = i8_of_f32(round_f32((float)X[i * 8 + j] * 0x1.99999ap-4f));
            }
        }
    }
}

void every_form(const int8_t *restrict X, int8_t *restrict Y, uint8_t on, int64_t k, int64_t n);

void every_form(const int8_t *restrict X, int8_t *restrict Y, uint8_t on, int64_t k, int64_t n)
{
    if (!(k >= 0)) {
        kiln_assertion_failed("k is negative");
        return;
    }
    struct every_form_loop closure;
    closure.X = X;
    closure.Y = Y;
    closure.on = on;
    closure.k = k;
    kiln_parallel_for(every_form_loop, &closure, n);
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
