//! As again.c.

use std::collections::VecDeque;
use std::io::Read;
use tensorkiln::{Executor, Library, View};

fn main() {
    let path = std::env::args().nth(1).expect("a library");
    let mut all: VecDeque<Library> = VecDeque::new();
    for word in std::io::stdin().bytes() {
        match word.expect("a byte") {
            b'o' => match Library::open(&path) {
                Ok(library) => all.push_back(library),
                Err(error) => print!("{} {error}", error.code()),
            },
            _ => drop(all.pop_front()),
        }
        for library in &all {
            let executor = Executor::new(library).expect("an executor");
            let x = View::new(&[1.0_f32], &[1, 1]).expect("a view");
            let outputs = executor.run("main", &[x]).expect("a result");
            print!("{} ", outputs[0].values::<f32>().expect("numbers")[0]);
        }
        println!();
    }
}
