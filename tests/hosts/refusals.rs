//! As refusals.c.

use kiln::{DType, Executor, Library, View, ViewMut};
use std::ffi::c_void;

fn parts(text: &str, memory: &mut [f64]) -> (*mut c_void, DType, Vec<i64>) {
    let words: Vec<&str> = text.split(':').collect();
    let sizes = words[2].split('x').filter(|size| !size.is_empty());
    let shape = sizes.map(|size| size.parse().unwrap()).collect();
    let data = if words.len() > 3 { std::ptr::null_mut() } else { memory.as_mut_ptr().cast() };
    (data, DType::named(words[1]).unwrap(), shape)
}

fn run(arguments: &[String]) -> kiln::Result<()> {
    let library = Library::open(&arguments[1])?;
    if arguments.len() == 2 {
        return Ok(());
    }
    let executor = Executor::new(&library)?;
    let mut memory: Vec<Vec<f64>> = arguments.iter().map(|_| vec![0.0; 4096]).collect();
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for (word, memory) in arguments.iter().zip(&mut memory).skip(3) {
        let (data, dtype, shape) = parts(word, memory);
        // SAFETY: there is more memory than any of the shapes needs.
        unsafe {
            if word.starts_with("in") {
                inputs.push(View::from_raw(data, dtype, &shape, None));
            } else {
                outputs.push(ViewMut::from_raw(data, dtype, &shape, None));
            }
        }
    }
    executor.run_into(&arguments[2], &inputs, &mut outputs)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match run(&arguments) {
        Ok(()) => println!("0\n"),
        Err(error) => println!("{}\n{error}", error.code()),
    }
}
