#include <math.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("sse3,ssse3,sse4.1,sse4.2,popcnt,avx,f16c,fma,avx2,bmi,bmi2,lzcnt"))), apply_to = function)
#pragma STDC FP_CONTRACT ON
#pragma clang diagnostic ignored "-Wpsabi"
#elif defined(__GNUC__)
#pragma GCC target("sse3,ssse3,sse4.1,sse4.2,popcnt,avx,f16c,fma,avx2,bmi,bmi2,lzcnt")
#pragma GCC optimize("fp-contract=fast")
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x8_in_memory
    __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef int32_t i32x4 __attribute__((vector_size(16)));
typedef float f32x2 __attribute__((vector_size(8)));
typedef int32_t i32x2 __attribute__((vector_size(8)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));

ALWAYS_INLINE f32x8 splat_f32x8(float x)
{
    return (f32x8){x, x, x, x, x, x, x, x};
}

ALWAYS_INLINE f32x8 load_f32x8(const float *p)
{
    return *(const f32x8_in_memory *)p;
}

ALWAYS_INLINE f32x8 select_f32x8(i32x8 mask, f32x8 a, f32x8 b)
{
    return (f32x8)((mask & (i32x8)a) | (~mask & (i32x8)b));
}

ALWAYS_INLINE f32x8 max_f32x8(f32x8 a, f32x8 b)
{
    return select_f32x8((i32x8)(a > b), a, b);
}

ALWAYS_INLINE f32x4 select_f32x4(i32x4 mask, f32x4 a, f32x4 b)
{
    return (f32x4)((mask & (i32x4)a) | (~mask & (i32x4)b));
}

ALWAYS_INLINE f32x4 max_f32x4(f32x4 a, f32x4 b)
{
    return select_f32x4((i32x4)(a > b), a, b);
}

ALWAYS_INLINE f32x2 select_f32x2(i32x2 mask, f32x2 a, f32x2 b)
{
    return (f32x2)((mask & (i32x2)a) | (~mask & (i32x2)b));
}

ALWAYS_INLINE f32x2 max_f32x2(f32x2 a, f32x2 b)
{
    return select_f32x2((i32x2)(a > b), a, b);
}

static inline float max_f32(float a, float b)
{
    return (a > b) ? a : b;
}

ALWAYS_INLINE float max_of_f32x8(f32x8 x)
{
    const f32x4 low4 = (f32x4){x[0], x[1], x[2], x[3]};
    const f32x4 high4 = (f32x4){x[4], x[5], x[6], x[7]};
    const f32x4 x4 = max_f32x4(low4, high4);
    const f32x2 low2 = (f32x2){x4[0], x4[1]};
    const f32x2 high2 = (f32x2){x4[2], x4[3]};
    const f32x2 x2 = max_f32x2(low2, high2);
    return max_f32(x2[0], x2[1]);
}

ALWAYS_INLINE i32x8 splat_i32x8(int32_t x)
{
    return (i32x8){x, x, x, x, x, x, x, x};
}

ALWAYS_INLINE f32x8 exp_nonpositive_f32x8(f32x8 a0)
{
    const f32x8 m0 = max_f32x8(splat_f32x8(-0x1.5d589ep+6f), a0);
    const f32x8 m1 = m0 * splat_f32x8(0x1.715476p+0f) + splat_f32x8(0x1.8000fep+23f);
    const f32x8 m2 = m1 - splat_f32x8(0x1.8000fep+23f);
    const f32x8 m3 = m2 * splat_f32x8(-0x1.62e4p-1f) + m0;
    const f32x8 m4 = m2 * splat_f32x8(-0x1.7f7d1cp-20f) + m3;
    const f32x8 m5 = splat_f32x8(0x1.6a2436p-10f) * m4 + splat_f32x8(0x1.1239ep-7f);
    const f32x8 m6 = m5 * m4 + splat_f32x8(0x1.5558f2p-5f);
    const f32x8 m7 = m6 * m4 + splat_f32x8(0x1.555492p-3f);
    const f32x8 m8 = m7 * m4 + splat_f32x8(0x1.fffffcp-2f);
    const f32x8 m9 = m8 * m4;
    const f32x8 m10 = m9 * m4 + m4;
    const i32x8 m11 = (i32x8)m1;
    const i32x8 m12 = (i32x8)((u32x8)m11 << (u32x8)splat_i32x8(23));
    const f32x8 m13 = (f32x8)m12;
    const f32x8 m14 = select_f32x8((i32x8)(a0 < splat_f32x8(-0x1.5d589ep+6f)), splat_f32x8(0.0f), m13);
    const f32x8 m15 = m10 + splat_f32x8(1.0f);
    const f32x8 m16 = m15 * m14;
    return m16;
}

ALWAYS_INLINE void store_f32x8(float *p, f32x8 x)
{
    *(f32x8_in_memory *)p = x;
}

static inline int32_t bits_of_f32(float x)
{
    union { float from; int32_t to; } bits;
    bits.from = x;
    return bits.to;
}

static inline float f32_of_bits(int32_t x)
{
    union { int32_t from; float to; } bits;
    bits.from = x;
    return bits.to;
}

static inline float exp_nonpositive_f32(float a0)
{
    const float m0 = max_f32(-0x1.5d589ep+6f, a0);
    const float m1 = m0 * 0x1.715476p+0f + 0x1.8000fep+23f;
    const float m2 = m1 - 0x1.8000fep+23f;
    const float m3 = m2 * -0x1.62e4p-1f + m0;
    const float m4 = m2 * -0x1.7f7d1cp-20f + m3;
    const float m5 = 0x1.6a2436p-10f * m4 + 0x1.1239ep-7f;
    const float m6 = m5 * m4 + 0x1.5558f2p-5f;
    const float m7 = m6 * m4 + 0x1.555492p-3f;
    const float m8 = m7 * m4 + 0x1.fffffcp-2f;
    const float m9 = m8 * m4;
    const float m10 = m9 * m4 + m4;
    const int32_t m11 = bits_of_f32(m1);
    const int32_t m12 = (int32_t)((uint32_t)m11 << 23);
    const float m13 = f32_of_bits(m12);
    const float m14 = a0 < -0x1.5d589ep+6f ? 0.0f : m13;
    const float m15 = m10 + 1.0f;
    const float m16 = m15 * m14;
    return m16;
}

ALWAYS_INLINE float sum_of_f32x8(f32x8 x)
{
    const f32x4 low4 = (f32x4){x[0], x[1], x[2], x[3]};
    const f32x4 high4 = (f32x4){x[4], x[5], x[6], x[7]};
    const f32x4 x4 = low4 + high4;
    const f32x2 low2 = (f32x2){x4[0], x4[1]};
    const f32x2 high2 = (f32x2){x4[2], x4[3]};
    const f32x2 x2 = low2 + high2;
    return x2[0] + x2[1];
}

/* net_kernel_softmax
 * reads p0: float32[4, 20]
 * writes out: float32[4, 20]
 * schedule: softmax_rows
 */
void net_kernel_softmax(const float *restrict p0, float *restrict out);

void net_kernel_softmax(const float *restrict p0, float *restrict out)
{
    for (int64_t i0 = 0; i0 < 4; ++i0) {
        float top_0;
        float total_0;
        float scale_0;
        top_0 = -INFINITY;
        f32x8 top_rf_0;
        top_rf_0 = splat_f32x8(-INFINITY);
        for (int64_t k_0 = 0; k_0 < 2; ++k_0) {
            top_rf_0 = max_f32x8(top_rf_0, load_f32x8(p0 + (i0 * 20 + k_0 * 8)));
        }
        top_0 = max_f32(top_0, max_of_f32x8(top_rf_0));
        for (int64_t k_tail = 16; k_tail < 20; ++k_tail) {
            top_0 = max_f32(top_0, p0[i0 * 20 + k_tail]);
        }
        for (int64_t j_0 = 0; j_0 < 2; ++j_0) {
            store_f32x8(out + (i0 * 20 + j_0 * 8), exp_nonpositive_f32x8(load_f32x8(p0 + (i0 * 20 + j_0 * 8)) - splat_f32x8(top_0)));
        }
        for (int64_t j_tail = 16; j_tail < 20; ++j_tail) {
            out[i0 * 20 + j_tail] = exp_nonpositive_f32(p0[i0 * 20 + j_tail] - top_0);
        }
        total_0 = -0.0f;
        f32x8 total_rf_0;
        total_rf_0 = splat_f32x8(-0.0f);
        for (int64_t k_1_0 = 0; k_1_0 < 2; ++k_1_0) {
            total_rf_0 = total_rf_0 + load_f32x8(out + (i0 * 20 + k_1_0 * 8));
        }
        total_0 = total_0 + sum_of_f32x8(total_rf_0);
        for (int64_t k_1_tail = 16; k_1_tail < 20; ++k_1_tail) {
            total_0 = total_0 + out[i0 * 20 + k_1_tail];
        }
        scale_0 = 1.0f / total_0;
        for (int64_t j_1_0 = 0; j_1_0 < 2; ++j_1_0) {
            store_f32x8(out + (i0 * 20 + j_1_0 * 8), load_f32x8(out + (i0 * 20 + j_1_0 * 8)) * splat_f32x8(scale_0));
        }
        for (int64_t j_1_tail = 16; j_1_tail < 20; ++j_1_tail) {
            out[i0 * 20 + j_1_tail] = out[i0 * 20 + j_1_tail] * scale_0;
        }
    }
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#if defined(__clang__)
#pragma clang attribute pop
#endif
