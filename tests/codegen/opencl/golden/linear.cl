// kernels.cl
static inline float2 max_f32x2(float2 a, float2 b)
{
    return select(b, a, (a > b));
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
    __local float left[1084] __attribute__((aligned(64)));
    __local float right[512] __attribute__((aligned(64)));
    const int y = (int)get_group_id(1);
    float2 sums_0_0_0_0, sums_0_1_0_0, sums_0_2_0_0, sums_0_3_0_0;
    {
        sums_0_0_0_0 = (float2)(-0.0f);
        sums_0_1_0_0 = (float2)(-0.0f);
        sums_0_2_0_0 = (float2)(-0.0f);
        sums_0_3_0_0 = (float2)(-0.0f);
    }
    {
        const int ko_jo_ki_1 = (int)get_local_id(0);
        if (((y * 64 + ko_jo_ki_1 / 8) < 70) && ((ko_jo_ki_1 % 8) < 9)) {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8] = p0[y * 576 + ko_jo_ki_1 / 8 * 9 + ko_jo_ki_1 % 8];
        } else {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8] = 0.0f;
        }
        if (((y * 64 + 32 + ko_jo_ki_1 / 8) < 70) && ((ko_jo_ki_1 % 8) < 9)) {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8 + 32] = p0[y * 576 + ko_jo_ki_1 / 8 * 9 + ko_jo_ki_1 % 8 + 288];
        } else {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8 + 32] = 0.0f;
        }
        if (((y * 64 + ko_jo_ki_1 / 8) < 70) && ((8 + ko_jo_ki_1 % 8) < 9)) {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8 + 544] = p0[y * 576 + ko_jo_ki_1 / 8 * 9 + ko_jo_ki_1 % 8 + 8];
        } else {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8 + 544] = 0.0f;
        }
        if (((y * 64 + 32 + ko_jo_ki_1 / 8) < 70) && ((8 + ko_jo_ki_1 % 8) < 9)) {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8 + 576] = p0[y * 576 + ko_jo_ki_1 / 8 * 9 + ko_jo_ki_1 % 8 + 296];
        } else {
            left[ko_jo_ki_1 % 8 * 68 + ko_jo_ki_1 / 8 + 576] = 0.0f;
        }
    }
    {
        const int ki_1_ko_1_j_1_0_1 = (int)get_local_id(0);
        if (ki_1_ko_1_j_1_0_1 < 128) {
            if (((ki_1_ko_1_j_1_0_1 % 8) < 5) && ((ki_1_ko_1_j_1_0_1 / 8) < 9)) {
                vstore4(vload4(0, p1 + (ki_1_ko_1_j_1_0_1 / 8 * 20 + ki_1_ko_1_j_1_0_1 % 8 * 4)), 0, right + (ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4));
            } else {
                vstore4((float4)(0.0f), 0, right + (ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4));
            }
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    {
        const int thread_1 = (int)get_local_id(0);
        for (int term = 0; term < 16; ++term) {
            float row_0, row_0_1, row_0_2, row_0_3;
            float2 column_0_0;
            row_0 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4];
            row_0_1 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4 + 1];
            row_0_2 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4 + 2];
            row_0_3 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4 + 3];
            column_0_0 = vload2(0, right + (term * 32 + thread_1 / 32 % 2 * 16 + thread_1 % 8 * 2));
            sums_0_0_0_0 = sums_0_0_0_0 + (float2)(row_0) * column_0_0;
            sums_0_1_0_0 = sums_0_1_0_0 + (float2)(row_0_1) * column_0_0;
            sums_0_2_0_0 = sums_0_2_0_0 + (float2)(row_0_2) * column_0_0;
            sums_0_3_0_0 = sums_0_3_0_0 + (float2)(row_0_3) * column_0_0;
        }
    }
    {
        const int thread_2 = (int)get_local_id(0);
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            vstore2(max_f32x2((float2)(0.0f), sums_0_0_0_0 + vload2(0, p2 + (thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2))), 0, out + (y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2));
        }
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4 + 1) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            vstore2(max_f32x2((float2)(0.0f), sums_0_1_0_0 + vload2(0, p2 + (thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2))), 0, out + (y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 20));
        }
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4 + 2) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            vstore2(max_f32x2((float2)(0.0f), sums_0_2_0_0 + vload2(0, p2 + (thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2))), 0, out + (y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 40));
        }
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4 + 3) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            vstore2(max_f32x2((float2)(0.0f), sums_0_3_0_0 + vload2(0, p2 + (thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2))), 0, out + (y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 60));
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
   "shared_bytes": 6400,
   "extensions": []
  }
 }
}
