// kernels.cl
static inline float max_f32(float a, float b)
{
    return (a > b) ? a : b;
}

/* linear_relu_device
 * reads p0: float32[70, 9]
 * reads p1: float32[9, 20]
 * reads p2: float32[20]
 * writes out: float32[70, 20]
 * schedule: gpu_contraction
 */
__kernel __attribute__((reqd_work_group_size(256, 1, 1)))
void linear_relu_device(__global const uchar *p0_memory, long p0_start,
                        __global const uchar *p1_memory, long p1_start,
                        __global const uchar *p2_memory, long p2_start, __global uchar *out_memory,
                        long out_start)
{
    __global const float *restrict const p0 = (__global const float *)(p0_memory + p0_start);
    __global const float *restrict const p1 = (__global const float *)(p1_memory + p1_start);
    __global const float *restrict const p2 = (__global const float *)(p2_memory + p2_start);
    __global float *restrict const out = (__global float *)(out_memory + out_start);
    __local float left[1054] __attribute__((aligned(64)));
    __local float right[512] __attribute__((aligned(64)));
    const int y = (int)get_group_id(1);
    float sums_0, sums_0_1, sums_1, sums_1_1, sums_2, sums_2_1, sums_3, sums_3_1;
    {
        sums_0 = -0.0f;
        sums_0_1 = -0.0f;
        sums_1 = -0.0f;
        sums_1_1 = -0.0f;
        sums_2 = -0.0f;
        sums_2_1 = -0.0f;
        sums_3 = -0.0f;
        sums_3_1 = -0.0f;
    }
    {
        const int j_k_1_1 = (int)get_local_id(0);
        for (int j_k_1_0 = 0; j_k_1_0 < 4; ++j_k_1_0) {
            if (((y * 64 + j_k_1_0 * 16 + j_k_1_1 / 16) < 70) && ((j_k_1_1 % 16) < 9)) {
                left[j_k_1_1 % 16 * 66 + j_k_1_0 * 16 + j_k_1_1 / 16] = p0[y * 576 + j_k_1_0 * 144 + j_k_1_1 / 16 * 9 + j_k_1_1 % 16];
            } else {
                left[j_k_1_1 % 16 * 66 + j_k_1_0 * 16 + j_k_1_1 / 16] = 0.0f;
            }
        }
    }
    {
        const int k_2_j_1_1 = (int)get_local_id(0);
        for (int k_2_j_1_0 = 0; k_2_j_1_0 < 2; ++k_2_j_1_0) {
            if (((k_2_j_1_1 % 32) < 20) && ((k_2_j_1_0 * 8 + k_2_j_1_1 / 32) < 9)) {
                right[k_2_j_1_0 * 256 + k_2_j_1_1 / 32 * 32 + k_2_j_1_1 % 32] = p1[k_2_j_1_0 * 160 + k_2_j_1_1 / 32 * 20 + k_2_j_1_1 % 32];
            } else {
                right[k_2_j_1_0 * 256 + k_2_j_1_1 / 32 * 32 + k_2_j_1_1 % 32] = 0.0f;
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_1 = (int)get_local_id(0);
        for (int term = 0; term < 16; ++term) {
            float row_0, row_1, row_2, row_3;
            float column_0, column_1;
            row_0 = left[term * 66 + thread_1 / 16];
            row_1 = left[term * 66 + thread_1 / 16 + 16];
            row_2 = left[term * 66 + thread_1 / 16 + 32];
            row_3 = left[term * 66 + thread_1 / 16 + 48];
            column_0 = right[term * 32 + thread_1 % 16];
            column_1 = right[term * 32 + thread_1 % 16 + 16];
            sums_0 = sums_0 + row_0 * column_0;
            sums_0_1 = sums_0_1 + row_0 * column_1;
            sums_1 = sums_1 + row_1 * column_0;
            sums_1_1 = sums_1_1 + row_1 * column_1;
            sums_2 = sums_2 + row_2 * column_0;
            sums_2_1 = sums_2_1 + row_2 * column_1;
            sums_3 = sums_3 + row_3 * column_0;
            sums_3_1 = sums_3_1 + row_3 * column_1;
        }
    }
    {
        const int thread_2 = (int)get_local_id(0);
        if (((y * 64 + thread_2 / 16) < 70) && ((thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16] = max_f32(0.0f, sums_0 + p2[thread_2 % 16]);
        }
        if (((y * 64 + thread_2 / 16) < 70) && ((16 + thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 16] = max_f32(0.0f, sums_0_1 + p2[thread_2 % 16 + 16]);
        }
        if (((y * 64 + 16 + thread_2 / 16) < 70) && ((thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 320] = max_f32(0.0f, sums_1 + p2[thread_2 % 16]);
        }
        if (((y * 64 + 16 + thread_2 / 16) < 70) && ((16 + thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 336] = max_f32(0.0f, sums_1_1 + p2[thread_2 % 16 + 16]);
        }
        if (((y * 64 + 32 + thread_2 / 16) < 70) && ((thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 640] = max_f32(0.0f, sums_2 + p2[thread_2 % 16]);
        }
        if (((y * 64 + 32 + thread_2 / 16) < 70) && ((16 + thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 656] = max_f32(0.0f, sums_2_1 + p2[thread_2 % 16 + 16]);
        }
        if (((y * 64 + 48 + thread_2 / 16) < 70) && ((thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 960] = max_f32(0.0f, sums_3 + p2[thread_2 % 16]);
        }
        if (((y * 64 + 48 + thread_2 / 16) < 70) && ((16 + thread_2 % 16) < 20)) {
            out[y * 1280 + thread_2 / 16 * 20 + thread_2 % 16 + 976] = max_f32(0.0f, sums_3_1 + p2[thread_2 % 16 + 16]);
        }
    }
}

// kernels.fmap.json
{
 "format": 1,
 "functions": {
  "linear_relu_device": {
   "params": [
    "buffer",
    "buffer",
    "buffer",
    "buffer"
   ],
   "block": [
    256,
    1,
    1
   ],
   "shared_bytes": 6272,
   "extensions": []
  }
 }
}
