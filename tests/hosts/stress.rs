//! Lifetimes, ownership and threads of the crate; prints "done".

use tensorkiln::{Bool, Element, Executor, Library, Tensor, View, ViewMut};

fn row(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 7) as f32 - 3.0).collect()
}

fn run(executor: &Executor) -> tensorkiln::Result<Vec<f32>> {
    let data = row(33 * 8);
    let outputs = executor.run("main", &[View::new(&data, &[33, 8])?])?;
    assert_eq!(outputs[0].shape(), [33, 4]);
    assert_eq!(outputs[0].values::<f32>()?.as_ptr() as usize % 64, 0);
    Ok(outputs[0].values::<f32>()?.to_vec())
}

fn code<T>(result: tensorkiln::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.code())
}

fn tensors(executor: &Executor) -> tensorkiln::Result<()> {
    let (data, mut out) = (row(16), vec![0.0_f32; 8]);
    let x = View::new(&data, &[2, 8])?;
    executor.run_into("main", &[x.clone()], &mut [ViewMut::new(&mut out, &[2, 4])?])?;
    let mut wide = vec![0.0_f32; 32];
    for (i, value) in data.iter().enumerate() {
        wide[2 * i] = *value;
    }
    let gaps = View::strided(&wide, &[2, 8], &[16, 2], 0)?;
    assert_eq!(executor.run("main", &[gaps])?[0].values::<f32>()?, &out[..]);
    let mut tensor = Tensor::zeros(Bool::DTYPE, &[0, 5])?;
    assert!(tensor.values_mut::<Bool>()?.is_empty());
    assert_eq!(code(tensor.values::<f32>()), tensorkiln::error::ERROR_DTYPE);
    assert_eq!(code(View::new(&data, &[3, 8])), tensorkiln::error::ERROR_COUNT);
    assert_eq!(
        code(Tensor::zeros(f32::DTYPE, &[1 << 40, 1 << 40])),
        tensorkiln::error::ERROR_SHAPE
    );
    assert_eq!(code(Tensor::zeros(f32::DTYPE, &[-1])), tensorkiln::error::ERROR_SHAPE);
    let one = vec![1.0_f32];
    let mut two = vec![0.0_f32];
    let both = [View::new(&one, &[1])?, View::new(&one, &[1])?];
    assert_eq!(code(executor.run("add_one", &both)), tensorkiln::error::ERROR_ARGUMENT);
    executor.run_into("add_one", &both[..1], &mut [ViewMut::new(&mut two, &[1])?])?;
    assert_eq!(two, [2.0]);
    assert_eq!(code(executor.run("ma\0in", &[])), tensorkiln::error::ERROR_NAME);
    strides(&data)
}

/// No view reaches outside its slice.
fn strides(data: &[f32]) -> tensorkiln::Result<()> {
    assert_eq!(View::strided(data, &[2, 8], &[8, 1], 0)?.values::<f32>()?, data);
    let backwards = View::strided(data, &[16], &[-1], 15)?;
    assert_eq!(code(backwards.values::<f32>()), tensorkiln::error::ERROR_ARGUMENT);
    assert!(View::strided(data, &[0, 8], &[1000, 1], 99)?.values::<f32>()?.is_empty());
    for (sizes, steps, start) in [
        ([2, 8], [9, 1], 0),
        ([2, 8], [8, 1], 1),
        ([2, 8], [-1, 1], 0),
        ([2, 8], [i64::MAX, i64::MAX], 0),
    ] {
        let refused = View::strided(data, &sizes, &steps, start);
        assert_eq!(code(refused), tensorkiln::error::ERROR_SHAPE, "{sizes:?} {steps:?} {start}");
    }
    assert_eq!(code(View::strided(data, &[16], &[1, 1], 0)), tensorkiln::error::ERROR_RANK);
    let mut own = data.to_vec();
    assert_eq!(ViewMut::strided(&mut own, &[8], &[1], 8)?.values_mut::<f32>()?, &data[8..]);
    // SAFETY: memory that nobody looks at.
    let nowhere = unsafe { View::from_raw(std::ptr::null(), f32::DTYPE, &[1], None) };
    assert_eq!(code(nowhere.values::<f32>()), tensorkiln::error::ERROR_NULL);
    Ok(())
}

fn numbers(library: &Library) -> tensorkiln::Result<()> {
    let (mut x, y) = ([1.0_f32, 2.0], [0.0_f32; 2]);
    library.call("scale", &mut [ViewMut::new(&mut x, &[2])?.into(), 3.0.into(), 4.into()])?;
    assert_eq!(x, [7.0, 10.0]);
    let mut few = [ViewMut::new(&mut x, &[2])?.into()];
    assert_eq!(code(library.call("scale", &mut few)), tensorkiln::error::ERROR_COUNT);
    let mut read_only = [View::new(&y, &[2])?.into(), 3.0.into(), 4.into()];
    assert_eq!(code(library.call("scale", &mut read_only)), tensorkiln::error::ERROR_ARGUMENT);
    assert!(library.address("kiln_no").is_null() && library.address("kiln\0no").is_null());
    let address = library.address("kiln_abi_version");
    // SAFETY: kiln.h declares it so.
    let version: extern "C" fn() -> i32 = unsafe { std::mem::transmute(address) };
    assert_eq!(version(), 2);
    library.set_num_threads(3);
    assert_eq!(library.num_threads(), 3);
    library.set_num_threads(0);
    assert_eq!(code(library.make_string("no values here")), tensorkiln::error::ERROR_NAME);
    assert_eq!(code(Executor::new(library)?.invoke("main", &[])), tensorkiln::error::ERROR_NAME);
    let refused = library.register_loader("none", |_, _| unreachable!());
    assert_eq!(code(refused), tensorkiln::error::ERROR_NAME);
    Ok(())
}

/// What threads may share and send.
fn shared<T: Send + Sync>() {}

fn main() -> tensorkiln::Result<()> {
    let path = std::env::args().nth(1).expect("a library");
    let executor = Executor::new(&Library::open(&path)?)?; // which lives on without the library
    let expected = run(&executor)?;
    tensors(&executor)?;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let own = Executor::new(&Library::open(&path).unwrap()).unwrap();
                for i in 0..100 {
                    let which = if i % 2 == 0 { &own } else { &executor };
                    assert_eq!(run(which).unwrap(), expected);
                }
            });
        }
    });
    shared::<(Library, Executor, Tensor, tensorkiln::Value, View<'_>, tensorkiln::Error)>();
    numbers(&Library::open(&path)?)?;
    println!("done");
    Ok(())
}
