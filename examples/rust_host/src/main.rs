//! Runs a function of any compiled model from Rust.
//!
//!     kiln compile mlp.onnx -o mlp.so
//!     cargo run -- ./mlp.so main batch=4
//!
//! Prints the same as `../c_host/any_model.c`: each input is filled with 0 to 6, repeated (in steps
//! of 0.25 for floating point), and for each output it prints the shape and the sum of the
//! elements. Symbolic sizes such as `batch` are 1 unless the command line gives a number.

use std::collections::HashMap;
use std::process::ExitCode;
use tensorkiln::{Dim, Element, Error, Executor, Library, Param, Tensor};

type Sizes = HashMap<String, i64>;

/// Element types that convert to `f64` and back.
trait Number: Element {
    fn to(self) -> f64;
    fn from(value: f64) -> Self;
    const STEP: f64;
}

macro_rules! numbers {
    ($($kind:ty: $step:expr;)*) => {$(
        impl Number for $kind {
            fn to(self) -> f64 { self as f64 }
            fn from(value: f64) -> Self { value as $kind }
            const STEP: f64 = $step;
        }
    )*};
}

numbers! { f32: 0.25; f64: 0.25; i8: 1.0; i32: 1.0; i64: 1.0; u8: 1.0; }

fn fill<T: Number>(tensor: &mut Tensor) -> tensorkiln::Result<()> {
    for (i, value) in tensor.values_mut::<T>()?.iter_mut().enumerate() {
        *value = T::from((i % 7) as f64 * T::STEP);
    }
    Ok(())
}

fn sum<T: Number>(tensor: &Tensor) -> tensorkiln::Result<f64> {
    Ok(tensor.values::<T>()?.iter().map(|value| value.to()).sum())
}

/// Calls a generic function with the element type of this name.
macro_rules! by_type {
    ($name:expr, $function:ident($($argument:expr),*)) => {
        match $name {
            "float32" => $function::<f32>($($argument),*),
            "float64" => $function::<f64>($($argument),*),
            "int8" => $function::<i8>($($argument),*),
            "int32" => $function::<i32>($($argument),*),
            "int64" => $function::<i64>($($argument),*),
            "uint8" => $function::<u8>($($argument),*),
            other => Err(Error::new(tensorkiln::error::ERROR_DTYPE, format!("this example knows no {other}"))),
        }
    };
}

fn make_input(param: &Param, sizes: &Sizes) -> tensorkiln::Result<Tensor> {
    let size = |dim: &Dim| match dim {
        Dim::Fixed(size) => *size,
        Dim::Open(name) => *sizes.get(name).unwrap_or(&1),
    };
    let shape: Vec<i64> = param.shape.iter().flatten().map(size).collect();
    let dtype = param.element_type().ok_or_else(|| {
        Error::new(tensorkiln::error::ERROR_DTYPE, format!("this example knows no {}", param.dtype))
    })?;
    let mut made = Tensor::zeros(dtype, &shape)?;
    by_type!(param.dtype.as_str(), fill(&mut made))?;
    Ok(made)
}

fn list(library: &Library) {
    for f in library.functions() {
        println!("{} function {}", f.kind, f.name);
        for param in f.inputs.iter().chain(&f.outputs) {
            println!("  {} {param}", param.role);
        }
    }
}

fn run(library: &Library, name: &str, sizes: &Sizes) -> tensorkiln::Result<()> {
    let f = library.function(name)?;
    let executor = Executor::new(library)?;
    let inputs: Vec<Tensor> =
        f.inputs.iter().map(|param| make_input(param, sizes)).collect::<tensorkiln::Result<_>>()?;
    let views: Vec<_> = inputs.iter().map(Tensor::view).collect();
    for (param, output) in f.outputs.iter().zip(executor.run(name, &views)?) {
        let total = by_type!(param.dtype.as_str(), sum(&output))?;
        println!("{}: {} {:?} sum {total:.5}", param.name, param.dtype, output.shape());
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() < 2 {
        eprintln!("usage: rust_host LIBRARY [FUNCTION [SIZE=NUMBER ...]]");
        return ExitCode::from(2);
    }
    let given = arguments.iter().skip(3).filter_map(|word| word.split_once('='));
    let sizes: Sizes =
        given.filter_map(|(name, size)| Some((name.to_string(), size.parse().ok()?))).collect();
    let done = Library::open(&arguments[1]).and_then(|library| match arguments.get(2) {
        None => {
            list(&library);
            Ok(())
        }
        Some(name) => run(&library, name, &sizes),
    });
    if let Err(error) = done {
        eprintln!("error {}: {error}", error.code());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
