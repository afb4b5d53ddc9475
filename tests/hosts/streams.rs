//! As streams.c.

use tensorkiln::{Executor, Library, Result, View};

fn run(arguments: &[String]) -> Result<(Vec<f32>, i64, i64)> {
    let number = |i: usize| arguments[i].parse::<i32>().expect("a number");
    let executor = Executor::new(&Library::open(&arguments[1])?)?;
    if number(4) == 1 {
        executor.set_graphs(true)?;
    }
    let stream = number(3) as usize as *mut std::ffi::c_void;
    // SAFETY: CUDA's default stream, and calls wait for what they copy to the host.
    unsafe { executor.set_stream(number(2), stream)? };
    let input = [1.0_f32; 7];
    executor.run("main", &[View::new(&input, &[7])?])?;
    let outputs = executor.run("main", &[View::new(&input, &[7])?])?;
    let values = outputs[0].values::<f32>()?.to_vec();
    Ok((values, executor.graph_count(0), executor.graph_count(1)))
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match run(&arguments) {
        Ok((values, launched, made)) => {
            values.iter().for_each(|y| print!("{y:.5} "));
            print!("{launched} {made}");
        }
        Err(error) => print!("{} {error}", error.code()),
    }
}
