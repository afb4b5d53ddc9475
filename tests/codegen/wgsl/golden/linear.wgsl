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
var<workgroup> left: array<f32, 1084>;
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
    var sums_0_0_0_0: f32;
    var sums_0_0_0_0_1: f32;
    var sums_0_1_0_0: f32;
    var sums_0_1_0_0_1: f32;
    var sums_0_2_0_0: f32;
    var sums_0_2_0_0_1: f32;
    var sums_0_3_0_0: f32;
    var sums_0_3_0_0_1: f32;
    {
        sums_0_0_0_0 = -0.0f;
        sums_0_0_0_0_1 = -0.0f;
        sums_0_1_0_0 = -0.0f;
        sums_0_1_0_0_1 = -0.0f;
        sums_0_2_0_0 = -0.0f;
        sums_0_2_0_0_1 = -0.0f;
        sums_0_3_0_0 = -0.0f;
        sums_0_3_0_0_1 = -0.0f;
    }
    {
        let ko_jo_ki_1 = i32(thread_id.x);
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
        let ki_1_ko_1_j_1_0_1 = i32(thread_id.x);
        if (ki_1_ko_1_j_1_0_1 < 128) {
            if (((ki_1_ko_1_j_1_0_1 % 8) < 5) && ((ki_1_ko_1_j_1_0_1 / 8) < 9)) {
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4] = p1[ki_1_ko_1_j_1_0_1 / 8 * 20 + ki_1_ko_1_j_1_0_1 % 8 * 4];
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 1] = p1[ki_1_ko_1_j_1_0_1 / 8 * 20 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 1];
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 2] = p1[ki_1_ko_1_j_1_0_1 / 8 * 20 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 2];
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 3] = p1[ki_1_ko_1_j_1_0_1 / 8 * 20 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 3];
            } else {
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4] = 0.0f;
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 1] = 0.0f;
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 2] = 0.0f;
                right[ki_1_ko_1_j_1_0_1 / 8 * 32 + ki_1_ko_1_j_1_0_1 % 8 * 4 + 3] = 0.0f;
            }
        }
    }
    workgroupBarrier();
    {
        let thread_1 = i32(thread_id.x);
        for (var term: i32 = 0; term < 16; term++) {
            var row_0: f32;
            var row_0_1: f32;
            var row_0_2: f32;
            var row_0_3: f32;
            var column_0_0: f32;
            var column_0_0_1: f32;
            row_0 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4];
            row_0_1 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4 + 1];
            row_0_2 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4 + 2];
            row_0_3 = left[term * 68 + thread_1 / 64 * 16 + thread_1 / 8 % 4 * 4 + 3];
            column_0_0 = right[term * 32 + thread_1 / 32 % 2 * 16 + thread_1 % 8 * 2];
            column_0_0_1 = right[term * 32 + thread_1 / 32 % 2 * 16 + thread_1 % 8 * 2 + 1];
            let lane = sums_0_0_0_0 + row_0 * column_0_0;
            let lane_2 = sums_0_0_0_0_1 + row_0 * column_0_0_1;
            sums_0_0_0_0 = lane;
            sums_0_0_0_0_1 = lane_2;
            let lane_3 = sums_0_1_0_0 + row_0_1 * column_0_0;
            let lane_4 = sums_0_1_0_0_1 + row_0_1 * column_0_0_1;
            sums_0_1_0_0 = lane_3;
            sums_0_1_0_0_1 = lane_4;
            let lane_5 = sums_0_2_0_0 + row_0_2 * column_0_0;
            let lane_6 = sums_0_2_0_0_1 + row_0_2 * column_0_0_1;
            sums_0_2_0_0 = lane_5;
            sums_0_2_0_0_1 = lane_6;
            let lane_7 = sums_0_3_0_0 + row_0_3 * column_0_0;
            let lane_8 = sums_0_3_0_0_1 + row_0_3 * column_0_0_1;
            sums_0_3_0_0 = lane_7;
            sums_0_3_0_0_1 = lane_8;
        }
    }
    {
        let thread_2 = i32(thread_id.x);
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2] = max_f32(0.0f, sums_0_0_0_0 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2]);
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 1] = max_f32(0.0f, sums_0_0_0_0_1 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 1]);
        }
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4 + 1) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 20] = max_f32(0.0f, sums_0_1_0_0 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2]);
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 21] = max_f32(0.0f, sums_0_1_0_0_1 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 1]);
        }
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4 + 2) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 40] = max_f32(0.0f, sums_0_2_0_0 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2]);
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 41] = max_f32(0.0f, sums_0_2_0_0_1 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 1]);
        }
        if (((y * 64 + thread_2 / 64 * 16 + thread_2 / 8 % 4 * 4 + 3) < 70) && ((thread_2 / 32 % 2 * 8 + thread_2 % 8) < 10)) {
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 60] = max_f32(0.0f, sums_0_3_0_0 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2]);
            out[y * 1280 + thread_2 / 64 * 320 + thread_2 / 8 % 4 * 80 + thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 61] = max_f32(0.0f, sums_0_3_0_0_1 + p2[thread_2 / 32 % 2 * 16 + thread_2 % 8 * 2 + 1]);
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
   "shared_bytes": 6384
  }
 }
}
