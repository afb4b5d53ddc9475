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

#if defined(__GNUC__)
#define ALIGNED(bytes) __attribute__((aligned(bytes)))
#else
#define ALIGNED(bytes)
#endif

typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x4_in_memory
    __attribute__((vector_size(16), aligned(4), may_alias));
typedef float f32x2 __attribute__((vector_size(8)));
typedef float f32x2_in_memory
    __attribute__((vector_size(8), aligned(4), may_alias));
typedef int32_t i32x4 __attribute__((vector_size(16)));

ALWAYS_INLINE f32x4 splat_f32x4(float x)
{
    return (f32x4){x, x, x, x};
}

ALWAYS_INLINE void store_f32x4(float *p, f32x4 x)
{
    *(f32x4_in_memory *)p = x;
}

ALWAYS_INLINE f32x2 load_f32x2(const float *p)
{
    return *(const f32x2_in_memory *)p;
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

/* net_kernel_linear_relu
 * reads p0: float32[4, 16]
 * reads p1: float32[4, 8, 8]
 * writes out: float32[4, 16]
 * schedule: linear_packed
 */
void net_kernel_linear_relu(const float *restrict p0, const float *restrict p1, float *restrict out);

void net_kernel_linear_relu(const float *restrict p0, const float *restrict p1, float *restrict out)
{
    for (int64_t panel = 0; panel < 4; ++panel) {
        float total[16] ALIGNED(64);
        store_f32x4(total, splat_f32x4(0.0f));
        store_f32x4(total + 4, splat_f32x4(0.0f));
        store_f32x4(total + 8, splat_f32x4(0.0f));
        store_f32x4(total + 12, splat_f32x4(0.0f));
        f32x4 part_0_0, part_0_1, part_1_0, part_1_1, part_2_0, part_2_1, part_3_0, part_3_1;
        part_0_0 = splat_f32x4(0.0f);
        part_0_1 = splat_f32x4(0.0f);
        part_1_0 = splat_f32x4(0.0f);
        part_1_1 = splat_f32x4(0.0f);
        part_2_0 = splat_f32x4(0.0f);
        part_2_1 = splat_f32x4(0.0f);
        part_3_0 = splat_f32x4(0.0f);
        part_3_1 = splat_f32x4(0.0f);
        for (int64_t k_0 = 0; k_0 < 2; ++k_0) {
            const f32x2 t1 = load_f32x2(p0 + k_0 * 8);
            part_0_0 = (f32x4){t1[0], t1[1], t1[0], t1[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32)) + part_0_0;
            const f32x2 t2 = load_f32x2(p0 + k_0 * 8);
            part_0_1 = (f32x4){t2[0], t2[1], t2[0], t2[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 4)) + part_0_1;
            const f32x2 t3 = load_f32x2(p0 + (k_0 * 8 + 16));
            part_1_0 = (f32x4){t3[0], t3[1], t3[0], t3[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32)) + part_1_0;
            const f32x2 t4 = load_f32x2(p0 + (k_0 * 8 + 16));
            part_1_1 = (f32x4){t4[0], t4[1], t4[0], t4[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 4)) + part_1_1;
            const f32x2 t5 = load_f32x2(p0 + (k_0 * 8 + 32));
            part_2_0 = (f32x4){t5[0], t5[1], t5[0], t5[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32)) + part_2_0;
            const f32x2 t6 = load_f32x2(p0 + (k_0 * 8 + 32));
            part_2_1 = (f32x4){t6[0], t6[1], t6[0], t6[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 4)) + part_2_1;
            const f32x2 t7 = load_f32x2(p0 + (k_0 * 8 + 48));
            part_3_0 = (f32x4){t7[0], t7[1], t7[0], t7[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32)) + part_3_0;
            const f32x2 t8 = load_f32x2(p0 + (k_0 * 8 + 48));
            part_3_1 = (f32x4){t8[0], t8[1], t8[0], t8[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 4)) + part_3_1;
            const f32x2 t9 = load_f32x2(p0 + (k_0 * 8 + 2));
            part_0_0 = (f32x4){t9[0], t9[1], t9[0], t9[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 8)) + part_0_0;
            const f32x2 t10 = load_f32x2(p0 + (k_0 * 8 + 2));
            part_0_1 = (f32x4){t10[0], t10[1], t10[0], t10[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 12)) + part_0_1;
            const f32x2 t11 = load_f32x2(p0 + (k_0 * 8 + 18));
            part_1_0 = (f32x4){t11[0], t11[1], t11[0], t11[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 8)) + part_1_0;
            const f32x2 t12 = load_f32x2(p0 + (k_0 * 8 + 18));
            part_1_1 = (f32x4){t12[0], t12[1], t12[0], t12[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 12)) + part_1_1;
            const f32x2 t13 = load_f32x2(p0 + (k_0 * 8 + 34));
            part_2_0 = (f32x4){t13[0], t13[1], t13[0], t13[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 8)) + part_2_0;
            const f32x2 t14 = load_f32x2(p0 + (k_0 * 8 + 34));
            part_2_1 = (f32x4){t14[0], t14[1], t14[0], t14[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 12)) + part_2_1;
            const f32x2 t15 = load_f32x2(p0 + (k_0 * 8 + 50));
            part_3_0 = (f32x4){t15[0], t15[1], t15[0], t15[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 8)) + part_3_0;
            const f32x2 t16 = load_f32x2(p0 + (k_0 * 8 + 50));
            part_3_1 = (f32x4){t16[0], t16[1], t16[0], t16[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 12)) + part_3_1;
            const f32x2 t17 = load_f32x2(p0 + (k_0 * 8 + 4));
            part_0_0 = (f32x4){t17[0], t17[1], t17[0], t17[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 16)) + part_0_0;
            const f32x2 t18 = load_f32x2(p0 + (k_0 * 8 + 4));
            part_0_1 = (f32x4){t18[0], t18[1], t18[0], t18[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 20)) + part_0_1;
            const f32x2 t19 = load_f32x2(p0 + (k_0 * 8 + 20));
            part_1_0 = (f32x4){t19[0], t19[1], t19[0], t19[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 16)) + part_1_0;
            const f32x2 t20 = load_f32x2(p0 + (k_0 * 8 + 20));
            part_1_1 = (f32x4){t20[0], t20[1], t20[0], t20[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 20)) + part_1_1;
            const f32x2 t21 = load_f32x2(p0 + (k_0 * 8 + 36));
            part_2_0 = (f32x4){t21[0], t21[1], t21[0], t21[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 16)) + part_2_0;
            const f32x2 t22 = load_f32x2(p0 + (k_0 * 8 + 36));
            part_2_1 = (f32x4){t22[0], t22[1], t22[0], t22[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 20)) + part_2_1;
            const f32x2 t23 = load_f32x2(p0 + (k_0 * 8 + 52));
            part_3_0 = (f32x4){t23[0], t23[1], t23[0], t23[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 16)) + part_3_0;
            const f32x2 t24 = load_f32x2(p0 + (k_0 * 8 + 52));
            part_3_1 = (f32x4){t24[0], t24[1], t24[0], t24[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 20)) + part_3_1;
            const f32x2 t25 = load_f32x2(p0 + (k_0 * 8 + 6));
            part_0_0 = (f32x4){t25[0], t25[1], t25[0], t25[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 24)) + part_0_0;
            const f32x2 t26 = load_f32x2(p0 + (k_0 * 8 + 6));
            part_0_1 = (f32x4){t26[0], t26[1], t26[0], t26[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 28)) + part_0_1;
            const f32x2 t27 = load_f32x2(p0 + (k_0 * 8 + 22));
            part_1_0 = (f32x4){t27[0], t27[1], t27[0], t27[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 24)) + part_1_0;
            const f32x2 t28 = load_f32x2(p0 + (k_0 * 8 + 22));
            part_1_1 = (f32x4){t28[0], t28[1], t28[0], t28[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 28)) + part_1_1;
            const f32x2 t29 = load_f32x2(p0 + (k_0 * 8 + 38));
            part_2_0 = (f32x4){t29[0], t29[1], t29[0], t29[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 24)) + part_2_0;
            const f32x2 t30 = load_f32x2(p0 + (k_0 * 8 + 38));
            part_2_1 = (f32x4){t30[0], t30[1], t30[0], t30[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 28)) + part_2_1;
            const f32x2 t31 = load_f32x2(p0 + (k_0 * 8 + 54));
            part_3_0 = (f32x4){t31[0], t31[1], t31[0], t31[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 24)) + part_3_0;
            const f32x2 t32 = load_f32x2(p0 + (k_0 * 8 + 54));
            part_3_1 = (f32x4){t32[0], t32[1], t32[0], t32[1]} * load_f32x4(p1 + (panel * 64 + k_0 * 32 + 28)) + part_3_1;
        }
        const f32x4 t33 = part_0_0;
        const f32x4 t34 = part_0_1;
        store_f32x4(total, load_f32x4(total) + ((f32x4){t33[0], t33[2], t34[0], t34[2]} + (f32x4){t33[1], t33[3], t34[1], t34[3]}));
        const f32x4 t35 = part_1_0;
        const f32x4 t36 = part_1_1;
        store_f32x4(total + 4, load_f32x4(total + 4) + ((f32x4){t35[0], t35[2], t36[0], t36[2]} + (f32x4){t35[1], t35[3], t36[1], t36[3]}));
        const f32x4 t37 = part_2_0;
        const f32x4 t38 = part_2_1;
        store_f32x4(total + 8, load_f32x4(total + 8) + ((f32x4){t37[0], t37[2], t38[0], t38[2]} + (f32x4){t37[1], t37[3], t38[1], t38[3]}));
        const f32x4 t39 = part_3_0;
        const f32x4 t40 = part_3_1;
        store_f32x4(total + 12, load_f32x4(total + 12) + ((f32x4){t39[0], t39[2], t40[0], t40[2]} + (f32x4){t39[1], t39[3], t40[1], t40[3]}));
        store_f32x4(out + panel * 4, max_f32x4(splat_f32x4(0.0f), load_f32x4(total)));
        store_f32x4(out + (panel * 4 + 16), max_f32x4(splat_f32x4(0.0f), load_f32x4(total + 4)));
        store_f32x4(out + (panel * 4 + 32), max_f32x4(splat_f32x4(0.0f), load_f32x4(total + 8)));
        store_f32x4(out + (panel * 4 + 48), max_f32x4(splat_f32x4(0.0f), load_f32x4(total + 12)));
    }
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
