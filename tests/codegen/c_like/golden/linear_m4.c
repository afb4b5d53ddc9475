#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT ON
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

static inline float max_f32(float a, float b)
{
    return (a > b) ? a : b;
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
    for (int32_t panel = 0; panel < 2; ++panel) {
        for (int32_t row_0 = 0; row_0 < 2; ++row_0) {
            float total_0_0, total_0_1, total_0_2, total_0_3, total_0_4, total_0_5, total_0_6, total_0_7, total_1_0, total_1_1, total_1_2, total_1_3, total_1_4, total_1_5, total_1_6, total_1_7;
            total_0_0 = 0.0f;
            total_0_1 = 0.0f;
            total_0_2 = 0.0f;
            total_0_3 = 0.0f;
            total_0_4 = 0.0f;
            total_0_5 = 0.0f;
            total_0_6 = 0.0f;
            total_0_7 = 0.0f;
            total_1_0 = 0.0f;
            total_1_1 = 0.0f;
            total_1_2 = 0.0f;
            total_1_3 = 0.0f;
            total_1_4 = 0.0f;
            total_1_5 = 0.0f;
            total_1_6 = 0.0f;
            total_1_7 = 0.0f;
            for (int32_t k_0 = 0; k_0 < 4; ++k_0) {
                total_0_0 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32] + total_0_0;
                total_0_1 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 1] + total_0_1;
                total_0_2 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 2] + total_0_2;
                total_0_3 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 3] + total_0_3;
                total_0_4 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 4] + total_0_4;
                total_0_5 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 5] + total_0_5;
                total_0_6 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 6] + total_0_6;
                total_0_7 = p0[row_0 * 32 + k_0 * 4] * p1[panel * 128 + k_0 * 32 + 7] + total_0_7;
                total_1_0 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32] + total_1_0;
                total_1_1 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 1] + total_1_1;
                total_1_2 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 2] + total_1_2;
                total_1_3 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 3] + total_1_3;
                total_1_4 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 4] + total_1_4;
                total_1_5 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 5] + total_1_5;
                total_1_6 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 6] + total_1_6;
                total_1_7 = p0[row_0 * 32 + k_0 * 4 + 16] * p1[panel * 128 + k_0 * 32 + 7] + total_1_7;
                total_0_0 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 8] + total_0_0;
                total_0_1 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 9] + total_0_1;
                total_0_2 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 10] + total_0_2;
                total_0_3 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 11] + total_0_3;
                total_0_4 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 12] + total_0_4;
                total_0_5 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 13] + total_0_5;
                total_0_6 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 14] + total_0_6;
                total_0_7 = p0[row_0 * 32 + k_0 * 4 + 1] * p1[panel * 128 + k_0 * 32 + 15] + total_0_7;
                total_1_0 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 8] + total_1_0;
                total_1_1 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 9] + total_1_1;
                total_1_2 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 10] + total_1_2;
                total_1_3 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 11] + total_1_3;
                total_1_4 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 12] + total_1_4;
                total_1_5 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 13] + total_1_5;
                total_1_6 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 14] + total_1_6;
                total_1_7 = p0[row_0 * 32 + k_0 * 4 + 17] * p1[panel * 128 + k_0 * 32 + 15] + total_1_7;
                total_0_0 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 16] + total_0_0;
                total_0_1 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 17] + total_0_1;
                total_0_2 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 18] + total_0_2;
                total_0_3 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 19] + total_0_3;
                total_0_4 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 20] + total_0_4;
                total_0_5 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 21] + total_0_5;
                total_0_6 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 22] + total_0_6;
                total_0_7 = p0[row_0 * 32 + k_0 * 4 + 2] * p1[panel * 128 + k_0 * 32 + 23] + total_0_7;
                total_1_0 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 16] + total_1_0;
                total_1_1 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 17] + total_1_1;
                total_1_2 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 18] + total_1_2;
                total_1_3 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 19] + total_1_3;
                total_1_4 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 20] + total_1_4;
                total_1_5 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 21] + total_1_5;
                total_1_6 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 22] + total_1_6;
                total_1_7 = p0[row_0 * 32 + k_0 * 4 + 18] * p1[panel * 128 + k_0 * 32 + 23] + total_1_7;
                total_0_0 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 24] + total_0_0;
                total_0_1 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 25] + total_0_1;
                total_0_2 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 26] + total_0_2;
                total_0_3 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 27] + total_0_3;
                total_0_4 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 28] + total_0_4;
                total_0_5 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 29] + total_0_5;
                total_0_6 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 30] + total_0_6;
                total_0_7 = p0[row_0 * 32 + k_0 * 4 + 3] * p1[panel * 128 + k_0 * 32 + 31] + total_0_7;
                total_1_0 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 24] + total_1_0;
                total_1_1 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 25] + total_1_1;
                total_1_2 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 26] + total_1_2;
                total_1_3 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 27] + total_1_3;
                total_1_4 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 28] + total_1_4;
                total_1_5 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 29] + total_1_5;
                total_1_6 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 30] + total_1_6;
                total_1_7 = p0[row_0 * 32 + k_0 * 4 + 19] * p1[panel * 128 + k_0 * 32 + 31] + total_1_7;
            }
            out[row_0 * 32 + panel * 8] = max_f32(0.0f, total_0_0);
            out[row_0 * 32 + panel * 8 + 1] = max_f32(0.0f, total_0_1);
            out[row_0 * 32 + panel * 8 + 2] = max_f32(0.0f, total_0_2);
            out[row_0 * 32 + panel * 8 + 3] = max_f32(0.0f, total_0_3);
            out[row_0 * 32 + panel * 8 + 4] = max_f32(0.0f, total_0_4);
            out[row_0 * 32 + panel * 8 + 5] = max_f32(0.0f, total_0_5);
            out[row_0 * 32 + panel * 8 + 6] = max_f32(0.0f, total_0_6);
            out[row_0 * 32 + panel * 8 + 7] = max_f32(0.0f, total_0_7);
            out[row_0 * 32 + panel * 8 + 16] = max_f32(0.0f, total_1_0);
            out[row_0 * 32 + panel * 8 + 17] = max_f32(0.0f, total_1_1);
            out[row_0 * 32 + panel * 8 + 18] = max_f32(0.0f, total_1_2);
            out[row_0 * 32 + panel * 8 + 19] = max_f32(0.0f, total_1_3);
            out[row_0 * 32 + panel * 8 + 20] = max_f32(0.0f, total_1_4);
            out[row_0 * 32 + panel * 8 + 21] = max_f32(0.0f, total_1_5);
            out[row_0 * 32 + panel * 8 + 22] = max_f32(0.0f, total_1_6);
            out[row_0 * 32 + panel * 8 + 23] = max_f32(0.0f, total_1_7);
        }
    }
}

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
