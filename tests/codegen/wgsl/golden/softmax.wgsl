// softmax_device.wgsl
// softmax_device
// reads p0: float32[3, 100]
// writes out: float32[3, 100]
// schedule: gpu_softmax
@group(0) @binding(0) var<storage, read> p0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
var<workgroup> top_part: array<f32, 128>;
var<workgroup> top_sum: array<f32, 8>;
var<workgroup> top_sum_1: array<f32, 1>;
var<workgroup> total_part: array<f32, 128>;
var<workgroup> total_sum: array<f32, 8>;
var<workgroup> total_sum_1: array<f32, 1>;
var<private> infinity_bits: u32 = 0x7f800000u;

fn max_f32(a: f32, b: f32) -> f32
{
    return select(b, a, (a > b));
}

fn round_f32(x: f32) -> f32
{
    return round(x);
}

fn i32_of_f32(x: f32) -> i32
{
    return select(select(select(i32(x), i32(-2147483648), (x < -0x1p+31f)), 2147483647, (x >= 0x1p+31f)), 0, ((bitcast<u32>(x) & 2147483647u) > 2139095040u));
}

fn exp_nonpositive_f32(a0: f32) -> f32
{
    let m0 = max_f32(-0x1.5d589ep+6f, a0);
    let m1 = m0 * 0x1.715476p+0f;
    let m2 = round_f32(m1);
    let m3 = m2 + 127.0f;
    let m4 = m2 * -0x1.62e4p-1f + m0;
    let m5 = m2 * -0x1.7f7d1cp-20f + m4;
    let m6 = 0x1.6a2436p-10f * m5 + 0x1.1239ep-7f;
    let m7 = m6 * m5 + 0x1.5558f2p-5f;
    let m8 = m7 * m5 + 0x1.555492p-3f;
    let m9 = m8 * m5 + 0x1.fffffcp-2f;
    let m10 = m9 * m5;
    let m11 = m10 * m5 + m5;
    let m12 = i32_of_f32(m3);
    let m13 = i32(u32(m12) << 23);
    let m14 = bitcast<f32>(m13);
    let m15 = select(m14, 0.0f, (a0 < -0x1.5d589ep+6f));
    let m16 = m11 + 1.0f;
    let m17 = m16 * m15;
    return m17;
}

@compute @workgroup_size(128, 1, 1)
fn softmax_device(@builtin(workgroup_id) block_id: vec3<u32>,
                  @builtin(local_invocation_id) thread_id: vec3<u32>)
{
    let i0 = i32(block_id.x);
    {
        let thread = i32(thread_id.x);
        var top_acc_0: f32;
        top_acc_0 = -bitcast<f32>(infinity_bits);
        if (thread < 100) {
            top_acc_0 = max_f32(top_acc_0, p0[i0 * 100 + thread]);
        }
        top_part[thread] = top_acc_0;
    }
    workgroupBarrier();
    storageBarrier();
    {
        let thread_1 = i32(thread_id.x);
        if (thread_1 < 8) {
            var top_sum_acc_0: f32;
            top_sum_acc_0 = top_part[thread_1];
            for (var i: i32 = 1; i < 16; i++) {
                top_sum_acc_0 = max_f32(top_sum_acc_0, top_part[i * 8 + thread_1]);
            }
            top_sum[thread_1] = top_sum_acc_0;
        }
    }
    workgroupBarrier();
    storageBarrier();
    {
        let thread_2 = i32(thread_id.x);
        if (thread_2 < 1) {
            var top_sum_acc_0: f32;
            top_sum_acc_0 = top_sum[0];
            for (var i_1: i32 = 1; i_1 < 8; i_1++) {
                top_sum_acc_0 = max_f32(top_sum_acc_0, top_sum[i_1]);
            }
            top_sum_1[0] = top_sum_acc_0;
        }
    }
    workgroupBarrier();
    storageBarrier();
    {
        let thread_3 = i32(thread_id.x);
        if (thread_3 < 100) {
            out[i0 * 100 + thread_3] = exp_nonpositive_f32(p0[i0 * 100 + thread_3] - top_sum_1[0]);
        }
    }
    {
        let thread_4 = i32(thread_id.x);
        var total_acc_0: f32;
        total_acc_0 = -0.0f;
        if (thread_4 < 100) {
            total_acc_0 = total_acc_0 + out[i0 * 100 + thread_4];
        }
        total_part[thread_4] = total_acc_0;
    }
    workgroupBarrier();
    storageBarrier();
    {
        let thread_5 = i32(thread_id.x);
        if (thread_5 < 8) {
            var total_sum_acc_0: f32;
            total_sum_acc_0 = total_part[thread_5];
            for (var i_2: i32 = 1; i_2 < 16; i_2++) {
                total_sum_acc_0 = total_sum_acc_0 + total_part[i_2 * 8 + thread_5];
            }
            total_sum[thread_5] = total_sum_acc_0;
        }
    }
    workgroupBarrier();
    storageBarrier();
    {
        let thread_6 = i32(thread_id.x);
        if (thread_6 < 1) {
            var total_sum_acc_0: f32;
            total_sum_acc_0 = total_sum[0];
            for (var i_3: i32 = 1; i_3 < 8; i_3++) {
                total_sum_acc_0 = total_sum_acc_0 + total_sum[i_3];
            }
            total_sum_1[0] = total_sum_acc_0;
        }
    }
    workgroupBarrier();
    storageBarrier();
    {
        let thread_7 = i32(thread_id.x);
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
   "file": "softmax_device.wgsl",
   "buffers": [
    {
     "name": "p0",
     "dtype": "float32",
     "access": "read"
    },
    {
     "name": "out",
     "dtype": "float32",
     "access": "read_write"
    }
   ],
   "numbers": [],
   "grid": [
    3,
    1,
    1
   ],
   "block": [
    128,
    1,
    1
   ],
   "shared_bytes": 1120
  }
 }
}
