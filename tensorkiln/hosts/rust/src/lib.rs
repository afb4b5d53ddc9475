#![doc = include_str!("../README.md")]
//!
//! A library stays loaded until all its `Library`, `Executor` and `Value` objects are dropped, in
//! any order. Libraries and executors may be used by any number of threads at once; several threads
//! in one executor are slower than each in its own.
//!
//! An `Error` has a code of `kiln.h`, or of `kiln_library_file.h` while a library is opened;
//! comments name the codes that a function adds to those of the C function it is based on.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("Tensorkiln makes libraries for 64-bit systems only");

mod digest;
pub mod error;
mod ffi;
mod json;
mod library_file;
mod linking;
mod loader;
mod tensor;
mod value;

pub use error::{Error, Result};
pub use library_file::{Dim, Function, Param};
pub use linking::link_model;
pub use loader::{Artifact, Module};
pub use tensor::{
    Bool, DType, Element, Tensor, View, ViewMut, BF16, F16, F8, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, F8E8M0FNU,
};
pub use value::{Argument, Value};

use ffi::{Api, RawValue};
use library_file::join;
use std::any::Any;
use std::env::consts::DLL_SUFFIX;
use std::ffi::{c_int, c_void, CString};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensor::RawTensor;

const MAX_RANK: usize = 16;

/// What the host has registered in a library: removed when the library is closed.
#[derive(Default)]
struct Kept {
    functions: Vec<CString>,
    loaders: Vec<(CString, Arc<dyn Any + Send + Sync>)>,
}

struct Loaded {
    api: Api,
    functions: Vec<Function>,
    path: String,
    kept: Mutex<Kept>,
}

/// A loaded library. Clones share it.
#[derive(Clone)]
pub struct Library {
    loaded: Arc<Loaded>,
}

impl Library {
    /// Opens the library at `path`; a path without `/` is looked up in the working directory. No
    /// code of the file runs before its metadata and machine have been checked; after that it is
    /// trusted.
    pub fn open(path: impl AsRef<Path>) -> Result<Library> {
        let path = path.as_ref();
        let (functions, api) = Library::read_and_load(path)?;
        let path = path.display().to_string();
        let kept = Mutex::default();
        let loaded = Loaded { api, functions, path, kept };
        for function in &loaded.functions {
            loaded.index(&function.name).map_err(|why| {
                let what = format!("its metadata is damaged: {why}");
                library_file::no_library(&loaded.path, &what)
            })?;
        }
        Ok(Library { loaded: Arc::new(loaded) })
    }

    /// Opens the library of that name in the folder of the program: for `mlp`, `mlp.so`.
    /// `ERROR_NAME` for what is more than a name.
    pub fn named(name: &str) -> Result<Library> {
        if name.is_empty() || name.contains('/') || name.ends_with(DLL_SUFFIX) {
            let sentence =
                format!("a library is named without folder and suffix, like \"mlp\", not {name:?}");
            return Err(Error::new(error::ERROR_NAME, sentence));
        }
        let file = format!("{name}{}", DLL_SUFFIX);
        let program = std::env::current_exe().map_err(|why| {
            Error::new(error::ERROR_FILE, format!("cannot find the program beside '{file}': {why}"))
        })?;
        Library::open(program.with_file_name(file))
    }

    /// Reads and loads the same file; tries again, up to 8 times, if it is replaced in between.
    fn read_and_load(path: &Path) -> Result<(Vec<Function>, Api)> {
        let mut attempts = 8;
        loop {
            let (described, opened) = library_file::read(path)?;
            let which = opened.which;
            match Api::load(path, opened, &described.dependencies) {
                Ok(api) => return Ok((described.functions, api)),
                Err(error) if attempts == 0 || !which.is_replaced(path) => return Err(error),
                Err(_) => attempts -= 1,
            }
        }
    }

    /// All functions, in the order of the metadata.
    pub fn functions(&self) -> &[Function] {
        &self.loaded.functions
    }

    /// The function of that name; `ERROR_NAME` if there is none.
    pub fn function(&self, name: &str) -> Result<&Function> {
        let found = self.loaded.functions.iter().find(|f| f.name == name);
        found.ok_or_else(|| match self.loaded.index(name) {
            Err(error) => error, // with the library's sentence
            Ok(_) => library_file::no_library(&self.loaded.path, "its metadata is damaged"),
        })
    }

    /// Calls a tensor function with tensors and numbers in the order of its parameters, as
    /// `kiln_call`. Tensors that it writes must be `Argument::Out`, or the call fails with
    /// `ERROR_ARGUMENT`.
    pub fn call(&self, name: &str, arguments: &mut [Argument<'_>]) -> Result<()> {
        let f = self.function(name)?;
        for (param, argument) in f.inputs.iter().zip(arguments.iter()) {
            if matches!(argument, Argument::In(_)) {
                check_read_only(f, param)?;
            }
        }
        let index = self.loaded.index(name)?;
        let tensors: Vec<Option<RawTensor>> = arguments.iter().map(Argument::tensor).collect();
        let all: Vec<RawValue> = arguments.iter().zip(&tensors).map(|(a, t)| a.raw(t)).collect();
        let api = &self.loaded.api;
        // SAFETY: views describe memory borrowed for the call; the library checks all arguments.
        api.check(unsafe { (api.core.call)(index, all.as_ptr(), all.len() as c_int) })
    }

    /// The address of a symbol, function or data, that the library exports; null if it does not.
    pub fn address(&self, symbol: &str) -> *mut c_void {
        self.loaded.api.address(symbol)
    }

    /// Sets how many threads one call may use, the calling one included; 0 is the default.
    pub fn set_num_threads(&self, threads: i32) {
        // SAFETY: every number is valid.
        unsafe { (self.loaded.api.core.set_num_threads)(threads) }
    }

    /// The number of threads that is in force, at least 1.
    pub fn num_threads(&self) -> i32 {
        // SAFETY: a function without arguments.
        unsafe { (self.loaded.api.core.get_num_threads)() }
    }
}

impl Loaded {
    fn values(&self) -> Result<&ffi::Values> {
        self.api.values.as_ref().ok_or_else(|| {
            let sentence = format!("'{}' has no outer functions, so it takes no values", self.path);
            Error::new(error::ERROR_NAME, sentence)
        })
    }

    fn loaders(&self) -> Result<&ffi::Loaders> {
        self.api.loaders.as_ref().ok_or_else(|| {
            let sentence = format!("'{}' carries no artifacts for loaders", self.path);
            Error::new(error::ERROR_NAME, sentence)
        })
    }

    /// Never held during calls of the library, which has its own locks.
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self, name: &str) -> Result<c_int> {
        let symbol = value::c_name(name)?;
        // SAFETY: text that ends with NUL.
        let index = unsafe { (self.api.core.function_index)(symbol.as_ptr()) };
        if index < 0 {
            self.api.check(error::ERROR_NAME)?;
        }
        Ok(index)
    }
}

impl Drop for Loaded {
    /// Removes what the host has registered, because the code may stay loaded, if the program has
    /// opened the file twice.
    fn drop(&mut self) {
        let kept = std::mem::take(&mut *self.kept());
        for (name, values) in kept.functions.iter().zip(self.api.values.iter().cycle()) {
            // SAFETY: text that ends with NUL; null removes the name.
            unsafe { (values.register_function)(name.as_ptr(), std::ptr::null()) };
        }
        for ((name, _), loaders) in kept.loaders.iter().zip(self.api.loaders.iter().cycle()) {
            // SAFETY: the same.
            unsafe { (loaders.register_loader)(name.as_ptr(), std::ptr::null()) };
        }
    }
}

/// Runs functions of a library; owns the workspace for their intermediate results, and keeps the
/// library loaded.
pub struct Executor {
    library: Library, // must outlive `executor`
    executor: *mut c_void,
}

// SAFETY: "One executor may be used by several threads at once" (kiln.h).
unsafe impl Send for Executor {}
unsafe impl Sync for Executor {}

impl Executor {
    /// Creates an executor. Codes: those of `kiln_executor_create`.
    pub fn new(library: &Library) -> Result<Executor> {
        let mut executor = std::ptr::null_mut();
        let api = &library.loaded.api;
        // SAFETY: there is room for the address.
        api.check(unsafe { (api.core.executor_create)(&mut executor) })?;
        Ok(Executor { library: library.clone(), executor })
    }

    /// Runs a graph function; returns one new tensor for each output.
    pub fn run(&self, name: &str, inputs: &[View<'_>]) -> Result<Vec<Tensor>> {
        let f = self.library.function(name)?;
        check_counts(f, inputs.len(), f.outputs.len())?;
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

    /// Runs a graph or tensor function, writing to memory of the caller's. For a tensor function,
    /// `inputs` followed by `outputs` are its parameters in order; every parameter that it writes
    /// must be among `outputs`.
    pub fn run_into(
        &self,
        name: &str,
        inputs: &[View<'_>],
        outputs: &mut [ViewMut<'_>],
    ) -> Result<()> {
        let f = self.library.function(name)?;
        check_counts(f, inputs.len(), outputs.len())?;
        f.inputs.iter().take(inputs.len()).try_for_each(|param| check_read_only(f, param))?;
        let index = self.library.loaded.index(name)?;
        let raw = inputs.iter().map(View::raw).chain(outputs.iter().map(ViewMut::raw));
        let raw: Vec<RawTensor> = raw.collect();
        let all: Vec<*const RawTensor> = raw.iter().map(std::ptr::from_ref).collect();
        let api = &self.library.loaded.api;
        // SAFETY: views describe memory borrowed for the call; the library checks all arguments.
        let code = unsafe {
            (api.core.executor_run)(self.executor, index, all.as_ptr(), all.len() as c_int)
        };
        api.check(code)
    }

    /// Calls any function of a library that has an outer function, as `kiln_executor_invoke`.
    /// `ERROR_ARGUMENT` if an argument is an object of another library.
    pub fn invoke(&self, name: &str, arguments: &[Value]) -> Result<Value> {
        let library = &self.library;
        let f = library.function(name)?;
        let (api, index) = (library.loaded.values()?, library.loaded.index(name)?);
        if f.kind == "outer" {
            check_count(f, "input", &f.inputs, arguments.len())?;
        }
        let given = Value::raw_of(library, arguments)?;
        let count = given.len() as c_int;
        library.make(|made| {
            // SAFETY: all values are alive during the call.
            unsafe { (api.executor_invoke)(self.executor, index, given.as_ptr(), count, made) }
        })
    }

    /// Chooses and opens the device of this system, by its index among those of its kind, that runs
    /// code of device `device`, in a context of the library's. Codes: those of
    /// `kiln_executor_set_device`; `ERROR_ARGUMENT` also for a library without devices.
    pub fn set_device(&self, device: i32, index: i32) -> Result<()> {
        let devices = self.devices(&format!("there is no number {device}"))?;
        let context = std::ptr::null_mut();
        // SAFETY: the executor lives; without a context the library makes its own.
        self.library
            .loaded
            .api
            .check(unsafe { (devices.executor_set_device)(self.executor, device, index, context) })
    }

    /// Lets calls queue what they do on device `device` in a stream of the program's, and return
    /// without waiting for it unless they copy from or to the host; null: in one of the library's.
    /// Codes: those of `kiln_executor_set_stream`; `ERROR_ARGUMENT` also for a library without
    /// devices.
    ///
    /// # Safety
    /// The stream must be one of that device, and live until another one is set and what was queued
    /// in it is done, as must the tensors of calls.
    pub unsafe fn set_stream(&self, device: i32, stream: *mut c_void) -> Result<()> {
        let devices = self.devices("so it takes no stream")?;
        // SAFETY: the executor lives, and so does the stream.
        self.library
            .loaded
            .api
            .check(unsafe { (devices.executor_set_stream)(self.executor, device, stream) })
    }

    /// Lets runs be CUDA graphs, or lets them not. Codes: those of `kiln_executor_set_graphs`;
    /// `ERROR_ARGUMENT` also for a library without devices.
    pub fn set_graphs(&self, on: bool) -> Result<()> {
        let devices = self.devices("so its runs cannot be graphs")?;
        // SAFETY: the executor lives.
        self.library
            .loaded
            .api
            .check(unsafe { (devices.executor_set_graphs)(self.executor, c_int::from(on)) })
    }

    /// A count of graphs, by `enum kiln_graph_count` of kiln.h; 0 in a library without devices.
    pub fn graph_count(&self, what: i32) -> i64 {
        let devices = self.library.loaded.api.devices.as_ref();
        // SAFETY: the executor lives.
        devices.map_or(0, |api| unsafe { (api.executor_graph_count)(self.executor, what) })
    }

    fn devices(&self, what: &str) -> Result<&ffi::Devices> {
        let loaded = &self.library.loaded;
        loaded.api.devices.as_ref().ok_or_else(|| {
            let sentence = format!("'{}' has no devices, {what}", loaded.path);
            Error::new(error::ERROR_ARGUMENT, sentence)
        })
    }

    /// The size of the workspace in bytes: the most that one call has needed so far.
    pub fn workspace_bytes(&self) -> i64 {
        // SAFETY: the executor lives.
        unsafe { (self.library.loaded.api.core.executor_workspace_bytes)(self.executor) }
    }

    /// Sets how many threads one call may use, the calling one included; 0: the library's number.
    pub fn set_num_threads(&self, threads: i32) {
        // SAFETY: the executor lives.
        unsafe { (self.library.loaded.api.core.executor_set_num_threads)(self.executor, threads) }
    }

    fn output_shape(&self, index: c_int, inputs: &[RawTensor], output: usize) -> Result<Vec<i64>> {
        let all: Vec<*const RawTensor> = inputs.iter().map(std::ptr::from_ref).collect();
        let (mut shape, mut ndim) = ([0; MAX_RANK], 0);
        let api = &self.library.loaded.api;
        // SAFETY: there is room for KILN_MAX_RANK sizes.
        api.check(unsafe {
            (api.core.output_shape)(
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
        // SAFETY: `&mut self` excludes other users.
        unsafe { (self.library.loaded.api.core.executor_destroy)(self.executor) }
    }
}

/// Rejects a parameter that is written, since a `View` is read-only.
fn check_read_only(f: &Function, param: &Param) -> Result<()> {
    if param.role != "out" && param.role != "inout" {
        return Ok(());
    }
    let sentence = format!("{}: argument '{}' is written to: it is an output", f.name, param.name);
    Err(Error::new(error::ERROR_ARGUMENT, sentence))
}

/// Checks the numbers of inputs and outputs of a graph function; the library checks other
/// functions.
fn check_counts(f: &Function, inputs: usize, outputs: usize) -> Result<()> {
    if f.kind != "graph" {
        return Ok(());
    }
    check_count(f, "input", &f.inputs, inputs)?;
    check_count(f, "output", &f.outputs, outputs)
}

fn check_count(f: &Function, what: &str, params: &[Param], received: usize) -> Result<()> {
    let expected = params.len();
    if expected == received {
        return Ok(());
    }
    let plural = if expected == 1 { "" } else { "s" };
    let names = if params.is_empty() { "none".to_string() } else { join(params) };
    let name = &f.name;
    let sentence =
        format!("{name}: expected {expected} {what}{plural} ({names}), received {received}");
    Err(Error::new(error::ERROR_COUNT, sentence))
}
