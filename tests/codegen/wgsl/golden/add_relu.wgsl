// add_relu_device.wgsl
// add_relu_device
// reads p0: float32[300]
// writes out: float32[300]
// schedule: gpu_loops
@group(0) @binding(0) var<storage, read> p0: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn max_f32(a: f32, b: f32) -> f32
{
    return select(b, a, (a > b));
}

@compute @workgroup_size(128, 1, 1)
fn add_relu_device(@builtin(local_invocation_id) thread_id: vec3<u32>)
{
    let j_0_1 = i32(thread_id.x);
    if (j_0_1 < 75) {
        out[j_0_1 * 4] = max_f32(0.0f, p0[j_0_1 * 4] + 1.0f);
        out[j_0_1 * 4 + 1] = max_f32(0.0f, p0[j_0_1 * 4 + 1] + 1.0f);
        out[j_0_1 * 4 + 2] = max_f32(0.0f, p0[j_0_1 * 4 + 2] + 1.0f);
        out[j_0_1 * 4 + 3] = max_f32(0.0f, p0[j_0_1 * 4 + 3] + 1.0f);
    }
}

// kernels.fmap.json
{
 "format": 1,
 "functions": {
  "add_relu_device": {
   "file": "add_relu_device.wgsl",
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
    1,
    1,
    1
   ],
   "block": [
    128,
    1,
    1
   ],
   "shared_bytes": 0
  }
 }
}
