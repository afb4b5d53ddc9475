// kernels.cl
static inline float4 max_f32x4(float4 a, float4 b)
{
    return select(b, a, (a > b));
}

/* add_relu_device
 * reads p0: float32[300]
 * writes out: float32[300]
 * schedule: gpu_loops
 */
__kernel __attribute__((reqd_work_group_size(128, 1, 1)))
void add_relu_device(__global const uchar *p0_memory, long p0_start, __global uchar *out_memory,
                     long out_start)
{
    __global const float *const p0 = (__global const float *)(p0_memory + p0_start);
    __global float *const out = (__global float *)(out_memory + out_start);
    const int j_0_1 = (int)get_local_id(0);
    if (j_0_1 < 75) {
        vstore4(max_f32x4((float4)(0.0f), vload4(0, p0 + j_0_1 * 4) + (float4)(1.0f)), 0, out + j_0_1 * 4);
    }
}

// kernels.fmap.json
{
 "format": 1,
 "functions": {
  "add_relu_device": {
   "params": [
    "buffer",
    "buffer"
   ],
   "block": [
    128,
    1,
    1
   ],
   "shared_bytes": 0,
   "extensions": []
  }
 }
}
