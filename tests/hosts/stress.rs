//! Lifetimes, ownership and threads of the crate; prints "done".

use kiln::{Bool, Element, Executor, Library, Tensor, View, ViewMut};

fn row(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 7) as f32 - 3.0).collect()
}

fn run(executor: &Executor) -> kiln::Result<Vec<f32>> {
    let data = row(33 * 8);
    let outputs = executor.run("main", &[View::new(&data, &[33, 8])?])?;
    assert_eq!(outputs[0].shape(), [33, 4]);
    assert_eq!(outputs[0].values::<f32>()?.as_ptr() as usize % 64, 0);
    Ok(outputs[0].values::<f32>()?.to_vec())
}

fn code<T>(result: kiln::Result<T>) -> i32 {
    result.err().map_or(0, |error| error.code())
}

fn tensors(executor: &Executor) -> kiln::Result<()> {
    let (data, mut out) = (row(16), vec![0.0_f32; 8]);
    let x = View::new(&data, &[2, 8])?;
    executor.run_into("main", &[x.clone()], &mut [ViewMut::new(&mut out, &[2, 4])?])?;
    let mut wide = vec![0.0_f32; 32];
    for (i, value) in data.iter().enumerate() {
        wide[2 * i] = *value;
    }
    // SAFETY: the strides stay within `wide`.
    let gaps = unsafe { View::from_raw(wide.as_ptr().cast(), f32::DTYPE, &[2, 8], Some(&[16, 2])) };
    assert_eq!(executor.run("main", &[gaps])?[0].values::<f32>()?, &out[..]);
    let mut tensor = Tensor::zeros(Bool::DTYPE, &[0, 5])?;
    assert!(tensor.values_mut::<Bool>()?.is_empty());
    assert_eq!(code(tensor.values::<f32>()), kiln::error::ERROR_DTYPE);
    assert_eq!(code(View::new(&data, &[3, 8])), kiln::error::ERROR_COUNT);
    assert_eq!(code(Tensor::zeros(f32::DTYPE, &[1 << 40, 1 << 40])), kiln::error::ERROR_SHAPE);
    assert_eq!(code(Tensor::zeros(f32::DTYPE, &[-1])), kiln::error::ERROR_SHAPE);
    let one = vec![1.0_f32];
    let mut two = vec![0.0_f32];
    let both = [View::new(&one, &[1])?, View::new(&one, &[1])?];
    assert_eq!(code(executor.run("add_one", &both)), kiln::error::ERROR_ARGUMENT);
    executor.run_into("add_one", &both[..1], &mut [ViewMut::new(&mut two, &[1])?])?;
    assert_eq!(two, [2.0]);
    assert_eq!(code(executor.run("ma\0in", &[])), kiln::error::ERROR_NAME);
    Ok(())
}

fn main() -> kiln::Result<()> {
    let path = std::env::args().nth(1).expect("a library");
    let executor = Executor::new(&Library::open(&path)?)?; // which lives on without the library
    let expected = run(&executor)?;
    tensors(&executor)?;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let own = Executor::new(&Library::open(&path).unwrap()).unwrap();
                for i in 0..200 {
                    let which = if i % 2 == 0 { &own } else { &executor };
                    assert_eq!(run(which).unwrap(), expected);
                }
            });
        }
    });
    let library = Library::open(&path)?;
    library.set_num_threads(3);
    assert_eq!(library.num_threads(), 3);
    println!("done");
    Ok(())
}
