//! As moved.c.

use tensorkiln::{Executor, Library, View};

fn main() {
    let given: Vec<String> = std::env::args().collect();
    let library = Library::open(&given[1]).expect("a library");
    if given[2] != "-" {
        std::env::set_current_dir(&given[2]).expect("a folder");
    }
    if given[3] != "-" {
        std::fs::remove_file(&given[3]).expect("a link");
        std::os::unix::fs::symlink(&given[4], &given[3]).expect("a link");
    }
    let executor = Executor::new(&library).expect("an executor");
    let ones = vec![1.0_f32; 80];
    let x = View::new(&ones, &[2, 40]).expect("a view");
    let outputs = executor.run("main", &[x]).expect("a result");
    println!("0 {:.4}", outputs[0].values::<f32>().expect("numbers")[0]);
}
