//! Errors: a code and a sentence.

use std::fmt;

/// Codes below 100 are those of `enum kiln_code`; `kiln.h` explains each.
pub const ERROR_COUNT: i32 = 1;
pub const ERROR_RANK: i32 = 2;
pub const ERROR_SHAPE: i32 = 3;
pub const ERROR_DTYPE: i32 = 4;
pub const ERROR_DEVICE: i32 = 5;
pub const ERROR_NULL: i32 = 6;
pub const ERROR_ARGUMENT: i32 = 7;
pub const ERROR_MEMORY: i32 = 8;
pub const ERROR_CPU: i32 = 9;
pub const ERROR_NAME: i32 = 10;
pub const ERROR_HOST: i32 = 11;
pub const ERROR_CONDITION: i32 = 12;
pub const ERROR_CALLBACK: i32 = 13;
pub const ERROR_DEPTH: i32 = 14;
pub const ERROR_ASSERTION: i32 = 15;
pub const ERROR_CONTAINER: i32 = 16;
pub const ERROR_LOADER: i32 = 17;
pub const ERROR_WEIGHTS: i32 = 18;
pub const ERROR_RANGE: i32 = 19;
pub const ERROR_ENVIRONMENT: i32 = 20;
pub const ERROR_DRIVER: i32 = 21;
pub const ERROR_NO_DEVICE: i32 = 22;
pub const ERROR_CAPABILITY: i32 = 23;
pub const ERROR_DEVICE_MEMORY: i32 = 24;
pub const ERROR_BUILD: i32 = 25;
pub const ERROR_LAUNCH: i32 = 26;
pub const ERROR_EXECUTION: i32 = 27;
pub const ERROR_DEVICE_LOST: i32 = 28;
pub const ERROR_INDEX: i32 = 29;
/// Codes from 100 on are errors while a library is opened, those of `enum kiln_host_code` in
/// `kiln_library_file.h`.
pub const ERROR_FILE: i32 = 100;
pub const ERROR_LIBRARY: i32 = 101;
pub const ERROR_VERSION: i32 = 102;
pub const ERROR_MACHINE: i32 = 103;
pub const ERROR_LOAD: i32 = 104;

/// A failure: the same code and sentence that C, C++ and Python hosts give for the same mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    code: i32,
    sentence: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error for a function or a loader of the host to return.
    pub fn new(code: i32, sentence: impl Into<String>) -> Error {
        Error { code, sentence: sentence.into() }
    }

    /// One of the `ERROR_...` constants.
    pub fn code(&self) -> i32 {
        self.code
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}
