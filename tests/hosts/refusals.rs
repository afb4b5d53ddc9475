//! As refusals.c; there is no tensor of another device to be made here.

use std::ffi::c_void;
use tensorkiln::{Argument, DType, Executor, Library, View, ViewMut};

struct Parts {
    data: *mut c_void,
    dtype: DType,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
}

fn parts(text: &str, memory: &mut [f64]) -> Parts {
    let words: Vec<&str> = text.split(':').collect();
    let how = *words.get(3).unwrap_or(&"");
    let sizes = words[2].split('x').filter(|size| !size.is_empty());
    let shape: Vec<i64> = sizes.map(|size| size.parse().unwrap()).collect();
    if how == "ones" {
        memory.fill(f64::from_bits(u64::MAX / 255));
    }
    let data: *mut u8 = memory.as_mut_ptr().cast();
    let data = match how {
        "null" => std::ptr::null_mut(),
        "odd" => data.wrapping_add(1),
        _ => data,
    };
    let behind = |d: usize| shape[d + 1..].iter().product::<i64>();
    let strides = (how == "gaps").then(|| (0..shape.len()).map(|d| 2 * behind(d)).collect());
    Parts { data: data.cast(), dtype: DType::named(words[1]).unwrap(), shape, strides }
}

fn number(word: &str) -> Argument<'static> {
    let text = word.rsplit(':').next().unwrap();
    match &word[2..3] {
        "i" => Argument::Int(text.parse().unwrap()),
        "b" => Argument::Bool(text != "0"),
        _ => Argument::Float(text.parse().unwrap()),
    }
}

fn run(arguments: &[String]) -> tensorkiln::Result<()> {
    let library = Library::open(&arguments[1])?;
    if arguments.len() == 2 {
        return Ok(());
    }
    match arguments[2].as_str() {
        "@loader" => return library.register_loader("none", |_, _| unreachable!()),
        "@invoke" => return Executor::new(&library)?.invoke("main", &[]).map(|_| ()),
        _ => (),
    }
    let words = &arguments[3..];
    let mut memory: Vec<Vec<f64>> = words.iter().map(|_| vec![0.0; 4096]).collect();
    let (mut inputs, mut outputs, mut all) = (Vec::new(), Vec::new(), Vec::new());
    let has_number = words.iter().any(|word| word.starts_with('v'));
    for (word, memory) in words.iter().zip(&mut memory) {
        if word.starts_with('v') {
            all.push(number(word));
            continue;
        }
        let Parts { data, dtype, shape, strides } = parts(word, memory);
        // SAFETY: there is more memory than any of the shapes needs.
        unsafe {
            if word.starts_with("in") {
                let view = View::from_raw(data, dtype, &shape, strides.as_deref());
                if has_number {
                    all.push(view.into())
                } else {
                    inputs.push(view)
                }
            } else {
                let view = ViewMut::from_raw(data, dtype, &shape, strides.as_deref());
                if has_number {
                    all.push(view.into())
                } else {
                    outputs.push(view)
                }
            }
        }
    }
    if has_number {
        library.call(&arguments[2], &mut all)
    } else {
        Executor::new(&library)?.run_into(&arguments[2], &inputs, &mut outputs)
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    match run(&arguments) {
        Ok(()) => println!("0\n"),
        Err(error) => println!("{}\n{error}", error.code()),
    }
}
