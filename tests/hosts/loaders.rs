//! As loaders.c.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use tensorkiln::{error, Artifact, Error, Executor, Library, Module, View};

static LIVE: AtomicI32 = AtomicI32::new(0);
static IS_FAILING: AtomicBool = AtomicBool::new(false);

struct Device {
    number: f32,
}

impl Module for Device {
    fn call(&self, function: &str, tensors: &[View<'_>], _sizes: &[i64]) -> tensorkiln::Result<()> {
        if function != "streamer_mul" {
            return Err(Error::new(error::ERROR_NAME, format!("no function '{function}'")));
        }
        if IS_FAILING.load(SeqCst) {
            return Err(Error::new(error::ERROR_CALLBACK, "the device has stopped"));
        }
        // SAFETY: the function's output.
        let mut out = unsafe { tensors[1].assume_mut() };
        for (y, x) in out.values_mut::<f32>()?.iter_mut().zip(tensors[0].values::<f32>()?) {
            *y = x * self.number;
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, SeqCst);
    }
}

fn load(_target_key: &str, artifacts: &[Artifact<'_>]) -> tensorkiln::Result<Box<dyn Module>> {
    if IS_FAILING.load(SeqCst) {
        return Err(Error::new(error::ERROR_CALLBACK, "the device is on fire"));
    }
    let stream = String::from_utf8_lossy(artifacts[0].content);
    let (_command, number) = stream.split_once(' ').expect("a command and a number");
    LIVE.fetch_add(1, SeqCst);
    Ok(Box::new(Device { number: number.trim().parse().expect("a number") }))
}

fn run(executor: &Executor) {
    let row: Vec<f32> = (0..12).map(|i| i as f32 / 4.0 - 1.0).collect();
    match View::new(&row, &[3, 4]).and_then(|x| executor.run("main", &[x])) {
        Ok(outputs) => {
            outputs[0].values::<f32>().unwrap().iter().for_each(|value| print!("{value:.6} "));
            println!();
        }
        Err(error) => println!("{} {error}", error.code()),
    }
}

fn lives(path: &str) -> tensorkiln::Result<()> {
    let library = Library::open(path)?;
    let executor = Executor::new(&library)?;
    run(&executor);
    library.register_loader("stream", load)?;
    for is_failing in [true, false, true] {
        IS_FAILING.store(is_failing, SeqCst);
        run(&executor);
    }
    Ok(())
}

fn main() -> tensorkiln::Result<()> {
    lives(&std::env::args().nth(1).expect("a library"))?;
    println!("{} live", LIVE.load(SeqCst));
    Ok(())
}
