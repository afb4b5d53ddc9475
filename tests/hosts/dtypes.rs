//! As dtypes.c.

use tensorkiln::{
    Bool, Element, Executor, Library, Tensor, BF16, F16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ,
    F8E8M0FNU,
};

fn copy<T: Element>(executor: &Executor, name: &str) -> tensorkiln::Result<()> {
    let mut x = Tensor::zeros(T::DTYPE, &[5])?;
    let bytes: Vec<u8> = (0..5 * std::mem::size_of::<T>())
        .map(|b| if T::DTYPE == Bool::DTYPE { b % 2 } else { 37 * b + 1 } as u8)
        .collect();
    for (value, bytes) in
        x.values_mut::<T>()?.iter_mut().zip(bytes.chunks(std::mem::size_of::<T>()))
    {
        // SAFETY: as many bytes, any of which are an element.
        *value = unsafe { bytes.as_ptr().cast::<T>().read_unaligned() };
    }
    let outputs = executor.run(name, &[x.view()])?;
    if outputs[0].values::<T>()?.len() == 5 && outputs[0].view().bytes()? == bytes {
        println!("{name}");
    }
    Ok(())
}

fn main() -> tensorkiln::Result<()> {
    let executor = Executor::new(&Library::open(std::env::args().nth(1).expect("a library"))?)?;
    copy::<f32>(&executor, "float32")?;
    copy::<f64>(&executor, "float64")?;
    copy::<F16>(&executor, "float16")?;
    copy::<BF16>(&executor, "bfloat16")?;
    copy::<i8>(&executor, "int8")?;
    copy::<i16>(&executor, "int16")?;
    copy::<i32>(&executor, "int32")?;
    copy::<i64>(&executor, "int64")?;
    copy::<u8>(&executor, "uint8")?;
    copy::<u16>(&executor, "uint16")?;
    copy::<u32>(&executor, "uint32")?;
    copy::<u64>(&executor, "uint64")?;
    copy::<Bool>(&executor, "bool")?;
    copy::<F8E4M3FN>(&executor, "float8_e4m3fn")?;
    copy::<F8E4M3FNUZ>(&executor, "float8_e4m3fnuz")?;
    copy::<F8E5M2>(&executor, "float8_e5m2")?;
    copy::<F8E5M2FNUZ>(&executor, "float8_e5m2fnuz")?;
    copy::<F8E8M0FNU>(&executor, "float8_e8m0fnu")?;
    copy::<u8>(&executor, "float6_e2m3fn")?;
    copy::<u8>(&executor, "float6_e3m2fn")?;
    copy::<u8>(&executor, "float4_e2m1fn")?;
    copy::<i8>(&executor, "int4")?;
    copy::<u8>(&executor, "uint4")?;
    copy::<i8>(&executor, "int2")?;
    copy::<u8>(&executor, "uint2")
}
