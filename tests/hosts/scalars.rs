//! As scalars.c.

use tensorkiln::{Argument, DType, Library, ViewMut};

fn number(word: &str) -> Argument<'static> {
    let text = &word[2..];
    match &word[..1] {
        "i" => text.parse::<i64>().unwrap().into(),
        "u" => text.parse::<u64>().unwrap().into(),
        "b" => (text != "0").into(),
        _ => f64::from_bits(u64::from_str_radix(text, 16).unwrap()).into(),
    }
}

fn call(library: &Library, line: &str) {
    let (name, words) = line.split_once(' ').unwrap();
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut room: Vec<u64> = vec![0; words.len()];
    let mut arguments: Vec<Argument> = Vec::new();
    for (word, place) in words.iter().zip(&mut room) {
        arguments.push(match word.strip_prefix("t:") {
            None => number(word),
            // SAFETY: no element has more than 8 bytes.
            Some(name) => unsafe {
                let at: *mut u64 = place;
                ViewMut::from_raw(at.cast(), DType::named(name).unwrap(), &[1], None).into()
            },
        });
    }
    match library.call(name, &mut arguments) {
        Err(error) => println!("{} {error}", error.code()),
        Ok(()) => {
            drop(arguments);
            let tensors = words.iter().zip(&room).filter(|(word, _)| word.starts_with('t'));
            let shown: String = tensors.map(|(_, place)| format!(" {place:016x}")).collect();
            println!("0{shown}");
        }
    }
}

fn main() -> tensorkiln::Result<()> {
    let library = Library::open(&std::env::args().nth(1).expect("a library"))?;
    for line in std::io::stdin().lines() {
        call(&library, &line.expect("text"));
    }
    Ok(())
}
