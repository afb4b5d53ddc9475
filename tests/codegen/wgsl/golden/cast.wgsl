// cast_device.wgsl
// cast_device
// reads p0: bool[35]
// writes out: float16[35]
// schedule: gpu_loops
@group(0) @binding(0) var<storage, read> p0: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<atomic<u32>>;

fn u8_of_word(word: u32, at: i32) -> u32
{
    return extractBits(u32(word), u32(at & 3) * 8u, 8u);
}

fn f16_of_f32(x: f32) -> u32
{
    let bits = u32(bitcast<i32>(x));
    let size = bits & 2147483647u;
    let sign = (bits >> 16) & 32768u;
    let sunk = u32(bitcast<i32>(bitcast<f32>(i32(i32(size))) + 0.5f));
    let small = sunk - 1056964608u;
    let odd = (size >> 13) & 1u;
    let near = size - 939520001u + odd;
    let finite = select(near >> 13, small, (size < 947912704u));
    let out = select(finite, select(31744u, 32256u, (size > 2139095040u)), (size >= 1199570944u));
    return extractBits(u32(out | sign), 0u, 16u);
}

@compute @workgroup_size(64, 1, 1)
fn cast_device(@builtin(local_invocation_id) thread_id: vec3<u32>)
{
    let j_1 = i32(thread_id.x);
    if (j_1 < 35) {
        let shift = u32(j_1 & 1) * 16u;
        let t1 = u32(f16_of_f32(f32(u8_of_word(p0[j_1 >> 2], j_1) != 0u)));
        atomicAnd(&out[j_1 >> 1], ~(65535u << shift));
        atomicOr(&out[j_1 >> 1], t1 << shift);
    }
}

// kernels.fmap.json
{
 "format": 1,
 "functions": {
  "cast_device": {
   "file": "cast_device.wgsl",
   "buffers": [
    {
     "name": "p0",
     "dtype": "bool",
     "access": "read"
    },
    {
     "name": "out",
     "dtype": "float16",
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
    64,
    1,
    1
   ],
   "shared_bytes": 0
  }
 }
}
