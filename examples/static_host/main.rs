//! The same as main.c, in Rust.
//!
//!     rustc -O -o static_rust main.rs -C link-arg=mlp.a -lpthread -ldl -lm
//!
//! With cargo, `build.rs` calls `tensorkiln::link_model("mlp")`.

use std::ffi::{c_char, c_int, CStr};

// As mlp.h declares them.
extern "C" {
    fn mlp_main(batch: i64, image: *const f32, logits: *mut f32) -> c_int;
    fn mlp_last_error() -> *const c_char;
    fn mlp_set_num_threads(threads: c_int);
}

const INPUTS: usize = 784;
const OUTPUTS: usize = 10;

fn run(image: &[f32], logits: &mut [f32]) -> Result<(), (i32, String)> {
    let rows = image.len() / INPUTS;
    assert_eq!((image.len(), logits.len()), (rows * INPUTS, rows * OUTPUTS));
    // SAFETY: the library reads and writes exactly the elements that the assertion counts.
    said(unsafe { mlp_main(rows as i64, image.as_ptr(), logits.as_mut_ptr()) })
}

fn said(code: i32) -> Result<(), (i32, String)> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the text is valid until this thread's next failure.
    Err((code, unsafe { CStr::from_ptr(mlp_last_error()) }.to_string_lossy().into_owned()))
}

fn main() {
    let image: Vec<f32> = (0..2 * INPUTS).map(|i| (i % 7) as f32 / 4.0).collect();
    let mut logits = vec![0.0; 2 * OUTPUTS];
    unsafe { mlp_set_num_threads(1) } // no thread is ever created
    run(&image, &mut logits).expect("the sizes are the model's");
    logits.iter().for_each(|value| print!("{value:.5} "));
    // SAFETY: sizes are checked before any memory is read.
    let nothing = unsafe { mlp_main(-1, std::ptr::null(), std::ptr::null_mut()) };
    let (code, sentence) = said(nothing).expect_err("-1 rows");
    println!("\nerror {code}: {sentence}");
}
