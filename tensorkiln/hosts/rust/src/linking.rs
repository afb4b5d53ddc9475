//! What a build script says to cargo, so that a model is linked into the program.

use crate::error::{self, Error, Result};
use std::path::{Path, PathBuf};

/// For the build script of a program: links the static library of a model into it, `mlp.a` for
/// `link_model("mlp")`, and what the model's header, `mlp.h`, says that the library needs. Both lie
/// in the folder that the environment variable `MLP_LIB_DIR` names, the header in the one of
/// `MLP_INCLUDE_DIR` if that is set. The crate must be among the `build-dependencies`.
///
/// `ERROR_NAME` for a name that is not one of C, `ERROR_ENVIRONMENT` for a variable that is not set
/// or no text, `ERROR_FILE` for a file that is not there, `ERROR_LIBRARY` for another file's header.
pub fn link_model(name: &str) -> Result<()> {
    let is_c =
        |i: usize, c: char| c == '_' || c.is_ascii_alphabetic() || i > 0 && c.is_ascii_digit();
    if name.is_empty() || !name.chars().enumerate().all(|(i, c)| is_c(i, c)) {
        let sentence = format!("a model is named as in its header, like \"mlp\", not {name:?}");
        return Err(Error::new(error::ERROR_NAME, sentence));
    }
    let capitals = name.to_ascii_uppercase();
    let library = folder(&format!("{capitals}_LIB_DIR"))?.ok_or_else(|| {
        let sentence =
            format!("{capitals}_LIB_DIR is not set: it names the folder of {name}.a and {name}.h");
        Error::new(error::ERROR_ENVIRONMENT, sentence)
    })?;
    let headers = folder(&format!("{capitals}_INCLUDE_DIR"))?;
    let header = headers.as_ref().unwrap_or(&library).join(format!("{name}.h"));
    let archive = library.join(format!("{name}.a"));
    require(&archive)?;
    let needs = needs(&header, &capitals)?;
    println!("cargo:rerun-if-changed={}", archive.display());
    println!("cargo:rustc-link-search=native={}", library.display());
    println!("cargo:rustc-link-lib=static:+verbatim={name}.a");
    needs.iter().for_each(|argument| println!("cargo:{}", directive(argument)));
    Ok(())
}

/// The absolute path of the folder that a variable names, if it is set: rustc runs elsewhere than
/// the build script.
fn folder(variable: &str) -> Result<Option<PathBuf>> {
    println!("cargo:rerun-if-env-changed={variable}");
    let Some(folder) = std::env::var_os(variable).filter(|folder| !folder.is_empty()) else {
        return Ok(None);
    };
    let refused = |what: String| {
        Error::new(error::ERROR_ENVIRONMENT, format!("{variable} is {folder:?}{what}"))
    };
    let path = std::fs::canonicalize(&folder).map_err(|why| refused(format!(": {why}")))?;
    if path.to_str().map_or(true, |text| text.contains('\n')) {
        return Err(refused(", which cargo cannot be told: it is no line of text".to_string()));
    }
    Ok(Some(path))
}

fn require(file: &Path) -> Result<()> {
    if file.is_file() {
        return Ok(());
    }
    Err(Error::new(error::ERROR_FILE, format!("no such file: '{}'", file.display())))
}

/// The arguments of a linker behind the model's library, from its header.
fn needs(header: &Path, capitals: &str) -> Result<Vec<String>> {
    require(header)?;
    println!("cargo:rerun-if-changed={}", header.display());
    let refused =
        |code: i32, what: &str| Error::new(code, format!("'{}' {what}", header.display()));
    let text = std::fs::read_to_string(header)
        .map_err(|why| refused(error::ERROR_FILE, &format!("cannot be read: {why}")))?;
    let value = |macro_name: &str| {
        let start = format!("#define {capitals}_{macro_name} ");
        text.lines().find_map(|line| line.strip_prefix(start.as_str()))
    };
    if value("H").map_or(true, |number| !number.starts_with("0x")) {
        return Err(refused(error::ERROR_LIBRARY, "is not the header of that model"));
    }
    let words = value("LINK").unwrap_or("\"\"").trim_matches('"');
    if words.contains('\\') {
        let what = format!("names libraries that cargo cannot be told: {words}");
        return Err(refused(error::ERROR_LIBRARY, &what));
    }
    Ok(words.split_whitespace().map(str::to_string).collect())
}

/// What cargo calls an argument of a linker.
fn directive(argument: &str) -> String {
    if let Some(library) = argument.strip_prefix("-l") {
        return match library.strip_prefix(':') {
            Some(file) => format!("rustc-link-lib=dylib:+verbatim={file}"),
            None => format!("rustc-link-lib={library}"),
        };
    }
    match argument.strip_prefix("-L") {
        Some(folder) => format!("rustc-link-search=native={folder}"),
        None => format!("rustc-link-arg={argument}"),
    }
}

#[cfg(test)]
mod tests {
    use super::directive;

    #[test]
    fn arguments_of_linkers() {
        for (argument, expected) in [
            ("-lm", "rustc-link-lib=m"),
            ("-l:libx.so.1", "rustc-link-lib=dylib:+verbatim=libx.so.1"),
            ("-L/opt/x", "rustc-link-search=native=/opt/x"),
            ("/opt/x/libx.a", "rustc-link-arg=/opt/x/libx.a"),
        ] {
            assert_eq!(directive(argument), expected);
        }
    }
}
