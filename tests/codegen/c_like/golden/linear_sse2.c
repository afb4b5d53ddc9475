#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#pragma clang diagnostic ignored "-Wpsabi"
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x4_in_memory
    __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t i32x4 __attribute__((vector_size(16)));

ALWAYS_INLINE f32x4 splat_f32x4(float x)
{
    return (f32x4){x, x, x, x};
}

ALWAYS_INLINE f32x4 load_f32x4(const float *p)
{
    return *(const f32x4_in_memory *)p;
}

ALWAYS_INLINE f32x4 select_f32x4(i32x4 mask, f32x4 a, f32x4 b)
{
    return (f32x4)((mask & (i32x4)a) | (~mask & (i32x4)b));
}

ALWAYS_INLINE f32x4 max_f32x4(f32x4 a, f32x4 b)
{
    return select_f32x4((i32x4)(a > b), a, b);
}

ALWAYS_INLINE void store_f32x4(float *p, f32x4 x)
{
    *(f32x4_in_memory *)p = x;
}

/* net_kernel_linear_relu
 * reads p0: float32[4, 16]
 * reads p1: float32[2, 16, 8]
 * writes out: float32[4, 16]
 * schedule: linear_packed
 */
void net_kernel_linear_relu(const float *restrict p0, const float *restrict p1, float *restrict out);

void net_kernel_linear_relu(const float *restrict p0, const float *restrict p1, float *restrict out)
{
    for (int64_t panel = 0; panel < 2; ++panel) {
        f32x4 total_0_0, total_0_1, total_1_0, total_1_1, total_2_0, total_2_1, total_3_0, total_3_1;
        total_0_0 = splat_f32x4(0.0f);
        total_0_1 = splat_f32x4(0.0f);
        total_1_0 = splat_f32x4(0.0f);
        total_1_1 = splat_f32x4(0.0f);
        total_2_0 = splat_f32x4(0.0f);
        total_2_1 = splat_f32x4(0.0f);
        total_3_0 = splat_f32x4(0.0f);
        total_3_1 = splat_f32x4(0.0f);
        for (int64_t k_0 = 0; k_0 < 4; ++k_0) {
            total_0_0 = splat_f32x4(p0[k_0 * 4]) * load_f32x4(p1 + (panel * 128 + k_0 * 32)) + total_0_0;
            total_0_1 = splat_f32x4(p0[k_0 * 4]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 4)) + total_0_1;
            total_1_0 = splat_f32x4(p0[k_0 * 4 + 16]) * load_f32x4(p1 + (panel * 128 + k_0 * 32)) + total_1_0;
            total_1_1 = splat_f32x4(p0[k_0 * 4 + 16]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 4)) + total_1_1;
            total_2_0 = splat_f32x4(p0[k_0 * 4 + 32]) * load_f32x4(p1 + (panel * 128 + k_0 * 32)) + total_2_0;
            total_2_1 = splat_f32x4(p0[k_0 * 4 + 32]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 4)) + total_2_1;
            total_3_0 = splat_f32x4(p0[k_0 * 4 + 48]) * load_f32x4(p1 + (panel * 128 + k_0 * 32)) + total_3_0;
            total_3_1 = splat_f32x4(p0[k_0 * 4 + 48]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 4)) + total_3_1;
            total_0_0 = splat_f32x4(p0[k_0 * 4 + 1]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 8)) + total_0_0;
            total_0_1 = splat_f32x4(p0[k_0 * 4 + 1]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 12)) + total_0_1;
            total_1_0 = splat_f32x4(p0[k_0 * 4 + 17]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 8)) + total_1_0;
            total_1_1 = splat_f32x4(p0[k_0 * 4 + 17]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 12)) + total_1_1;
            total_2_0 = splat_f32x4(p0[k_0 * 4 + 33]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 8)) + total_2_0;
            total_2_1 = splat_f32x4(p0[k_0 * 4 + 33]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 12)) + total_2_1;
            total_3_0 = splat_f32x4(p0[k_0 * 4 + 49]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 8)) + total_3_0;
            total_3_1 = splat_f32x4(p0[k_0 * 4 + 49]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 12)) + total_3_1;
            total_0_0 = splat_f32x4(p0[k_0 * 4 + 2]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 16)) + total_0_0;
            total_0_1 = splat_f32x4(p0[k_0 * 4 + 2]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 20)) + total_0_1;
            total_1_0 = splat_f32x4(p0[k_0 * 4 + 18]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 16)) + total_1_0;
            total_1_1 = splat_f32x4(p0[k_0 * 4 + 18]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 20)) + total_1_1;
            total_2_0 = splat_f32x4(p0[k_0 * 4 + 34]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 16)) + total_2_0;
            total_2_1 = splat_f32x4(p0[k_0 * 4 + 34]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 20)) + total_2_1;
            total_3_0 = splat_f32x4(p0[k_0 * 4 + 50]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 16)) + total_3_0;
            total_3_1 = splat_f32x4(p0[k_0 * 4 + 50]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 20)) + total_3_1;
            total_0_0 = splat_f32x4(p0[k_0 * 4 + 3]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 24)) + total_0_0;
            total_0_1 = splat_f32x4(p0[k_0 * 4 + 3]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 28)) + total_0_1;
            total_1_0 = splat_f32x4(p0[k_0 * 4 + 19]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 24)) + total_1_0;
            total_1_1 = splat_f32x4(p0[k_0 * 4 + 19]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 28)) + total_1_1;
            total_2_0 = splat_f32x4(p0[k_0 * 4 + 35]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 24)) + total_2_0;
            total_2_1 = splat_f32x4(p0[k_0 * 4 + 35]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 28)) + total_2_1;
            total_3_0 = splat_f32x4(p0[k_0 * 4 + 51]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 24)) + total_3_0;
            total_3_1 = splat_f32x4(p0[k_0 * 4 + 51]) * load_f32x4(p1 + (panel * 128 + k_0 * 32 + 28)) + total_3_1;
        }
        store_f32x4(out + panel * 8, max_f32x4(splat_f32x4(0.0f), total_0_0));
        store_f32x4(out + (panel * 8 + 4), max_f32x4(splat_f32x4(0.0f), total_0_1));
        store_f32x4(out + (panel * 8 + 16), max_f32x4(splat_f32x4(0.0f), total_1_0));
        store_f32x4(out + (panel * 8 + 20), max_f32x4(splat_f32x4(0.0f), total_1_1));
        store_f32x4(out + (panel * 8 + 32), max_f32x4(splat_f32x4(0.0f), total_2_0));
        store_f32x4(out + (panel * 8 + 36), max_f32x4(splat_f32x4(0.0f), total_2_1));
        store_f32x4(out + (panel * 8 + 48), max_f32x4(splat_f32x4(0.0f), total_3_0));
        store_f32x4(out + (panel * 8 + 52), max_f32x4(splat_f32x4(0.0f), total_3_1));
    }
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
