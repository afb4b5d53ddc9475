//! As values.c.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};
use tensorkiln::{Element, Executor, Library, Value, View};

static IS_FAILING: AtomicBool = AtomicBool::new(false);
static DESTROYED: AtomicI32 = AtomicI32::new(0);

fn print_error<T>(result: tensorkiln::Result<T>) {
    match result {
        Ok(_) => println!("0 "),
        Err(error) => println!("{} {error}", error.code()),
    }
}

struct Counted;

impl Drop for Counted {
    fn drop(&mut self) {
        DESTROYED.fetch_add(1, SeqCst);
    }
}

fn hook() -> impl Fn(&[Value]) -> tensorkiln::Result<Value> + Send + Sync {
    let counted = Counted;
    move |arguments| {
        let _ = &counted;
        match arguments {
            [one] if !IS_FAILING.load(SeqCst) => Ok(one.clone()),
            _ => Err(tensorkiln::Error::new(tensorkiln::error::ERROR_CALLBACK, "the host said no")),
        }
    }
}

fn number(value: &Value) -> tensorkiln::Result<f32> {
    Ok(value.tensor()?.values::<f32>()?[0])
}

fn print_result(result: &Value, row: &Value) -> tensorkiln::Result<()> {
    let items = result.items()?;
    let tensors = items[2].items()?;
    let kept = tensors[2].tensor()?;
    let values = kept.values::<i64>()?;
    print!("{} {:?} ", String::from_utf8_lossy(items[0].string()?), items[1].shape()?);
    print!("{} {} ", number(&tensors[0])?, number(&tensors[1])?);
    println!("{:?} {} {}", kept.shape(), values[0], values[1]);
    let again = items[3].call(&[row.clone()])?;
    println!("{} of {}", again.tensor()?.shape()[0], number(&again)?);
    print_error(items[3].call(&[]));
    Ok(())
}

fn run(path: &str) -> tensorkiln::Result<()> {
    let library = Library::open(path)?;
    let executor = Executor::new(&library)?;
    let row = library.make_tensor(&View::new(&[1.0_f32, 0.0, 2.0], &[3])?)?;
    let label = library.make_string("a string of some length")?;
    let shape = library.make_shape(&[4, 5])?;
    let arguments = [row.clone(), label, shape, library.make_function(hook())?];
    let with = |label| [row.clone(), label, arguments[2].clone(), arguments[3].clone()];
    print_error(executor.invoke("main", &arguments));
    library.register_function("hook", hook())?;
    print_result(&executor.invoke("main", &arguments)?, &row)?;

    IS_FAILING.store(true, SeqCst);
    print_error(executor.invoke("main", &arguments));
    IS_FAILING.store(false, SeqCst);
    for label in [3.into(), 0.5.into(), true.into(), row.clone()] {
        print_error(executor.invoke("main", &with(label)));
    }
    print_error(executor.invoke("main", &arguments[..3]));

    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    executor.invoke("main", &arguments).unwrap();
                }
            });
        }
    });

    // What C has no form of.
    let other = Library::open(path)?;
    let tuple =
        library.make_tuple(&[1.into(), true.into(), 2.5.into(), row.clone(), Value::NONE])?;
    let copy = tuple.clone();
    drop(tuple);
    let items = copy.items()?;
    assert!(items[0].integer()? == 1 && items[1].boolean()? && items[2].real()? == 2.5);
    assert!(items[4].is_none() && items[3].kind() == 70);
    print_error(items[0].string());
    print_error(items[0].call(&[]));
    print_error(library.make_tensor(&View::strided(&[0.0_f32; 8], &[2, 2], &[4, 2], 0)?));
    other.make_tuple(&[row])?; // the same file: the same library in memory
    let panics = library.make_function(|_| panic!("not across the library"))?;
    std::panic::set_hook(Box::new(|_| ()));
    let refused = panics.call(&[]).err().expect("an error");
    assert_eq!((refused.code(), refused.to_string().as_str()), (13, "the host panicked"));
    assert_eq!(f32::DTYPE, copy.items()?[3].tensor()?.dtype());
    Ok(())
}

fn main() -> tensorkiln::Result<()> {
    let path = std::env::args().nth(1).expect("a library");
    let library = Library::open(&path)?; // keeps it loaded, to be asked afterwards
    run(&path)?;
    println!("{} live, {} gone", library.live_objects()?, DESTROYED.load(SeqCst));
    Ok(())
}
