// kernels.cl
static inline float max_f32(float a, float b)
{
    return (a > b) ? a : b;
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
    const int m11 = as_int(m1);
    const int m12 = (int)((uint)m11 << 23);
    const float m13 = as_float(m12);
    const float m14 = a0 < -0x1.5d589ep+6f ? 0.0f : m13;
    const float m15 = m10 + 1.0f;
    const float m16 = m15 * m14;
    return m16;
}

/* softmax_device
 * reads p0: float32[3, 100]
 * writes out: float32[3, 100]
 * schedule: gpu_softmax
 */
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void softmax_device(__global const uchar *p0_memory, long p0_start, __global uchar *out_memory,
                    long out_start)
{
    __global const float *restrict const p0 = (__global const float *)(p0_memory + p0_start);
    __global float *restrict const out = (__global float *)(out_memory + out_start);
    __local float top_part[128] __attribute__((aligned(64)));
    __local float top_sum[8] __attribute__((aligned(64)));
    __local float top_sum_1[1] __attribute__((aligned(64)));
    __local float total_part[128] __attribute__((aligned(64)));
    __local float total_sum[8] __attribute__((aligned(64)));
    __local float total_sum_1[1] __attribute__((aligned(64)));
    const int i0 = (int)get_group_id(0);
    {
        const int thread = (int)get_local_id(0);
        float top_acc_0;
        top_acc_0 = -INFINITY;
        if (thread < 100) {
            top_acc_0 = max_f32(top_acc_0, p0[i0 * 100 + thread]);
        }
        top_part[thread] = top_acc_0;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_1 = (int)get_local_id(0);
        if (thread_1 < 8) {
            float top_sum_acc_0;
            top_sum_acc_0 = top_part[thread_1];
            for (int i = 1; i < 16; ++i) {
                top_sum_acc_0 = max_f32(top_sum_acc_0, top_part[i * 8 + thread_1]);
            }
            top_sum[thread_1] = top_sum_acc_0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_2 = (int)get_local_id(0);
        if (thread_2 < 1) {
            float top_sum_acc_0;
            top_sum_acc_0 = top_sum[0];
            for (int i_1 = 1; i_1 < 8; ++i_1) {
                top_sum_acc_0 = max_f32(top_sum_acc_0, top_sum[i_1]);
            }
            top_sum_1[0] = top_sum_acc_0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_3 = (int)get_local_id(0);
        if (thread_3 < 100) {
            out[i0 * 100 + thread_3] = exp_nonpositive_f32(p0[i0 * 100 + thread_3] - top_sum_1[0]);
        }
    }
    {
        const int thread_4 = (int)get_local_id(0);
        float total_acc_0;
        total_acc_0 = -0.0f;
        if (thread_4 < 100) {
            total_acc_0 = total_acc_0 + out[i0 * 100 + thread_4];
        }
        total_part[thread_4] = total_acc_0;
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_5 = (int)get_local_id(0);
        if (thread_5 < 8) {
            float total_sum_acc_0;
            total_sum_acc_0 = total_part[thread_5];
            for (int i_2 = 1; i_2 < 16; ++i_2) {
                total_sum_acc_0 = total_sum_acc_0 + total_part[i_2 * 8 + thread_5];
            }
            total_sum[thread_5] = total_sum_acc_0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_6 = (int)get_local_id(0);
        if (thread_6 < 1) {
            float total_sum_acc_0;
            total_sum_acc_0 = total_sum[0];
            for (int i_3 = 1; i_3 < 8; ++i_3) {
                total_sum_acc_0 = total_sum_acc_0 + total_sum[i_3];
            }
            total_sum_1[0] = total_sum_acc_0;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_7 = (int)get_local_id(0);
        if (thread_7 < 100) {
            out[i0 * 100 + thread_7] = out[i0 * 100 + thread_7] * (1.0f / total_sum_1[0]);
        }
    }
}

// kernels.fmap.json
{
 "format": 1,
 "functions": {
  "softmax_device": {
   "params": [
    "buffer",
    "buffer"
   ],
   "block": [
    128,
    1,
    1
   ],
   "shared_bytes": 1220,
   "extensions": []
  }
 }
}
