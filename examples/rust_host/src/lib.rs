//! Runs libraries made by Tensorkiln. Needs the standard library and `dlopen`, nothing else.
//!
//! ```no_run
//! use kiln::{Executor, Library, View};
//!
//! fn main() -> kiln::Result<()> {
//!     let library = Library::open("net.so")?;
//!     let executor = Executor::new(&library)?;
//!     let image = vec![0.0_f32; 784];
//!     let outputs = executor.run("main", &[View::new(&image, &[1, 784])?])?;
//!     println!("{:?}", outputs[0].values::<f32>()?);
//!     Ok(())
//! }
//! ```
//!
//! A library stays loaded until it and its executors are dropped, in any order. Libraries and
//! executors may be used by any number of threads at once; an executor is quickest when used by one.

pub mod error;
mod ffi;
mod json;
mod library_file;
mod tensor;

pub use error::{Error, Result};
pub use library_file::{Dim, Function, Param};
pub use tensor::{Bool, DType, Element, Tensor, View, ViewMut, BF16, F16};

use ffi::Api;
use library_file::join;
use std::ffi::{c_int, c_void, CString};
use std::path::Path;
use std::sync::Arc;
use tensor::RawTensor;

const MAX_RANK: usize = 16;

struct Loaded {
    api: Api,
    functions: Vec<Function>,
    path: String,
}

/// A loaded library.
#[derive(Clone)]
pub struct Library {
    loaded: Arc<Loaded>,
}

impl Library {
    /// Opens a library by path. No code of the file runs before it is known to be a library of ours,
    /// whole, and for this machine; whoever made it is trusted from then on.
    pub fn open(path: impl AsRef<Path>) -> Result<Library> {
        let functions = library_file::read(path.as_ref())?;
        let api = Api::load(path.as_ref())?;
        let path = path.as_ref().display().to_string();
        Ok(Library { loaded: Arc::new(Loaded { api, functions, path }) })
    }

    pub fn functions(&self) -> &[Function] {
        &self.loaded.functions
    }

    pub fn function(&self, name: &str) -> Result<&Function> {
        let found = self.loaded.functions.iter().find(|f| f.name == name);
        found.ok_or_else(|| match self.loaded.index(name) {
            Err(error) => error, // the library has the words
            Ok(_) => library_file::no_library(&self.loaded.path, "its metadata is damaged"),
        })
    }

    /// Threads that calls into this library may use; 0 is the default.
    pub fn set_num_threads(&self, threads: i32) {
        // SAFETY: any number will do.
        unsafe { (self.loaded.api.set_num_threads)(threads) }
    }

    pub fn num_threads(&self) -> i32 {
        // SAFETY: a function without arguments.
        unsafe { (self.loaded.api.get_num_threads)() }
    }
}

impl Loaded {
    fn index(&self, name: &str) -> Result<c_int> {
        let symbol = CString::new(name)
            .map_err(|_| Error::new(error::ERROR_NAME, "the name of a function has no NUL"))?;
        // SAFETY: text that ends with NUL.
        let index = unsafe { (self.api.function_index)(symbol.as_ptr()) };
        if index < 0 {
            self.api.check(error::ERROR_NAME)?;
        }
        Ok(index)
    }
}

/// Runs functions of a library; owns the memory for their intermediate results.
pub struct Executor {
    library: Library, // outlives the executor
    executor: *mut c_void,
}

// SAFETY: "One executor may be used by several threads at once" (kiln.h).
unsafe impl Send for Executor {}
unsafe impl Sync for Executor {}

impl Executor {
    pub fn new(library: &Library) -> Result<Executor> {
        let mut executor = std::ptr::null_mut();
        let api = &library.loaded.api;
        // SAFETY: there is room for the address.
        api.check(unsafe { (api.executor_create)(&mut executor) })?;
        Ok(Executor { library: library.clone(), executor })
    }

    /// Runs a graph function; returns new tensors, one for each output.
    pub fn run(&self, name: &str, inputs: &[View<'_>]) -> Result<Vec<Tensor>> {
        let f = self.library.function(name)?;
        check_count(f, "input", &f.inputs, inputs.len())?;
        let index = self.library.loaded.index(name)?;
        let raw: Vec<RawTensor> = inputs.iter().map(View::raw).collect();
        let mut outputs = Vec::with_capacity(f.outputs.len());
        for (i, param) in f.outputs.iter().enumerate() {
            let shape = self.output_shape(index, &raw, i)?;
            let dtype = param.element_type().ok_or_else(|| {
                Error::new(error::ERROR_DTYPE, format!("{name}: this host has no {}", param.dtype))
            })?;
            outputs.push(Tensor::zeros(dtype, &shape)?);
        }
        let mut views: Vec<ViewMut<'_>> = outputs.iter_mut().map(Tensor::view_mut).collect();
        self.run_into(name, inputs, &mut views)?;
        Ok(outputs)
    }

    /// Runs a function into memory of the caller's. Parameters of a tensor function are `inputs` and
    /// then `outputs`; those that it writes must be among the latter.
    pub fn run_into(
        &self,
        name: &str,
        inputs: &[View<'_>],
        outputs: &mut [ViewMut<'_>],
    ) -> Result<()> {
        let f = self.library.function(name)?;
        check_count(f, "input", &f.inputs, inputs.len())?;
        check_count(f, "output", &f.outputs, outputs.len())?;
        check_roles(f, inputs.len())?;
        let index = self.library.loaded.index(name)?;
        let raw = inputs.iter().map(View::raw).chain(outputs.iter().map(ViewMut::raw));
        let raw: Vec<RawTensor> = raw.collect();
        let all: Vec<*const RawTensor> = raw.iter().map(std::ptr::from_ref).collect();
        let api = &self.library.loaded.api;
        // SAFETY: views describe memory that is borrowed for the call; the library checks the rest.
        let code =
            unsafe { (api.executor_run)(self.executor, index, all.as_ptr(), all.len() as c_int) };
        api.check(code)
    }

    /// Threads that one call may use, the calling one included; 0 means the library's.
    pub fn set_num_threads(&self, threads: i32) {
        // SAFETY: the executor lives.
        unsafe { (self.library.loaded.api.executor_set_num_threads)(self.executor, threads) }
    }

    fn output_shape(&self, index: c_int, inputs: &[RawTensor], output: usize) -> Result<Vec<i64>> {
        let all: Vec<*const RawTensor> = inputs.iter().map(std::ptr::from_ref).collect();
        let (mut shape, mut ndim) = ([0; MAX_RANK], 0);
        let api = &self.library.loaded.api;
        // SAFETY: there is room for KILN_MAX_RANK sizes.
        api.check(unsafe {
            (api.output_shape)(
                index,
                all.as_ptr(),
                all.len() as c_int,
                output as c_int,
                shape.as_mut_ptr(),
                &mut ndim,
            )
        })?;
        Ok(shape[..ndim as usize].to_vec())
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        unsafe { (self.library.loaded.api.executor_destroy)(self.executor) }
    }
}

/// A `View` is only read.
fn check_roles(f: &Function, inputs: usize) -> Result<()> {
    let written = |p: &&Param| p.role == "out" || p.role == "inout";
    f.inputs.iter().take(inputs).find(written).map_or(Ok(()), |param| {
        let sentence =
            format!("{}: argument '{}' is written to: it is an output", f.name, param.name);
        Err(Error::new(error::ERROR_ARGUMENT, sentence))
    })
}

/// What only graph functions tell apart; of others the library has the words.
fn check_count(f: &Function, what: &str, params: &[Param], received: usize) -> Result<()> {
    let expected = params.len();
    if f.kind != "graph" || expected == received {
        return Ok(());
    }
    let plural = if expected == 1 { "" } else { "s" };
    let names = if params.is_empty() { "none".to_string() } else { join(params) };
    let name = &f.name;
    let sentence =
        format!("{name}: expected {expected} {what}{plural} ({names}), received {received}");
    Err(Error::new(error::ERROR_COUNT, sentence))
}
