//! As devices.c.

use tensorkiln::{Executor, Library, Result, View};

fn run(arguments: &[String]) -> Result<Vec<f32>> {
    let executor = Executor::new(&Library::open(&arguments[1])?)?;
    let (device, index) = (arguments[2].parse().expect("a number"), arguments[3].parse());
    executor.set_device(device, index.expect("a number"))?;
    let outputs = executor.run("main", &[View::new(&[1.0_f32; 7], &[7])?])?;
    Ok(outputs[0].values::<f32>()?.to_vec())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match run(&arguments) {
        Ok(values) => values.iter().for_each(|y| print!("{y:.5} ")),
        Err(error) => print!("{} {error}", error.code()),
    }
}
