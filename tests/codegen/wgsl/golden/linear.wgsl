// linear_relu_device.wgsl
// linear_relu_device
// reads p0: float32[70, 9]
// reads p1: float32[9, 20]
// reads p2: float32[20]
// writes out: float32[70, 20]
// schedule: gpu_contraction
@group(0) @binding(0) var<storage, read> p0: array<f32>;
@group(0) @binding(1) var<storage, read> p1: array<f32>;
@group(0) @binding(2) var<storage, read> p2: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
var<workgroup> left: array<f32, 1054>;
var<workgroup> right: array<f32, 512>;

fn max_f32(a: f32, b: f32) -> f32
{
    return select(b, a, (a > b));
}

@compute @workgroup_size(256, 1, 1)
fn linear_relu_device(@builtin(workgroup_id) block_id: vec3<u32>,
                      @builtin(local_invocation_id) thread_id: vec3<u32>)
{
    let y = i32(block_id.y);
    let x = i32(block_id.x);
    var sums_0: f32;
    var sums_0_1: f32;
    var sums_1: f32;
    var sums_1_1: f32;
    var sums_2: f32;
    var sums_2_1: f32;
    var sums_3: f32;
    var sums_3_1: f32;
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
        let j_k_1_1 = i32(thread_id.x);
        for (var j_k_1_0: i32 = 0; j_k_1_0 < 4; j_k_1_0++) {
            if (((y * 64 + j_k_1_0 * 16 + j_k_1_1 / 16) < 70) && ((j_k_1_1 % 16) < 9)) {
                left[j_k_1_1 % 16 * 66 + j_k_1_0 * 16 + j_k_1_1 / 16] = p0[y * 576 + j_k_1_0 * 144 + j_k_1_1 / 16 * 9 + j_k_1_1 % 16];
            } else {
                left[j_k_1_1 % 16 * 66 + j_k_1_0 * 16 + j_k_1_1 / 16] = 0.0f;
            }
        }
    }
    {
        let k_2_j_1_1 = i32(thread_id.x);
        for (var k_2_j_1_0: i32 = 0; k_2_j_1_0 < 2; k_2_j_1_0++) {
            if (((k_2_j_1_1 % 32) < 20) && ((k_2_j_1_0 * 8 + k_2_j_1_1 / 32) < 9)) {
                right[k_2_j_1_0 * 256 + k_2_j_1_1 / 32 * 32 + k_2_j_1_1 % 32] = p1[k_2_j_1_0 * 160 + k_2_j_1_1 / 32 * 20 + k_2_j_1_1 % 32];
            } else {
                right[k_2_j_1_0 * 256 + k_2_j_1_1 / 32 * 32 + k_2_j_1_1 % 32] = 0.0f;
            }
        }
    }
    workgroupBarrier();
    {
        let thread_1 = i32(thread_id.x);
        for (var term: i32 = 0; term < 16; term++) {
            var row_0: f32;
            var row_1: f32;
            var row_2: f32;
            var row_3: f32;
            var column_0: f32;
            var column_1: f32;
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
        let thread_2 = i32(thread_id.x);
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
   "file": "linear_relu_device.wgsl",
   "buffers": [
    {
     "name": "p0",
     "dtype": "float32",
     "access": "read"
    },
    {
     "name": "p1",
     "dtype": "float32",
     "access": "read"
    },
    {
     "name": "p2",
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
    1,
    2,
    1
   ],
   "block": [
    256,
    1,
    1
   ],
   "shared_bytes": 6272
  }
 }
}
