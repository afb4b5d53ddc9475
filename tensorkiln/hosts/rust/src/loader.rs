//! Loaders, which make modules of the artifacts that a library carries.

use crate::error::{self, Error, Result};
use crate::ffi::{text, RawArtifact, RawLoader, RawValue, KIND_INT, KIND_TENSOR};
use crate::tensor::{RawTensor, View};
use crate::value::{c_name, guarded};
use crate::Library;
use std::ffi::{c_char, c_int, c_void};
use std::mem::size_of;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

/// An artifact that a library carries, such as the binary of a device.
pub struct Artifact<'a> {
    pub codegen_id: String,
    pub file_name: String,
    pub target_key: String,
    pub content: &'a [u8],
}

/// What a loader makes of artifacts: functions, for example of a device. Dropped when the library
/// is unloaded.
pub trait Module: Send + Sync {
    /// Runs a function. `tensors` are its tensor parameters in order, outputs last (write to them
    /// with `View::assume_mut`); `sizes` are its integer parameters. Return an error with
    /// `ERROR_NAME` if the module has no function of that name: the modules that this one imports
    /// are then tried. Called by several threads at once.
    fn call(&self, function: &str, tensors: &[View<'_>], sizes: &[i64]) -> Result<()>;
}

type SetLastError = unsafe extern "C" fn(*const c_char);

struct Registered<L> {
    set_last_error: SetLastError,
    loader: L,
}

struct LoadedModule {
    set_last_error: SetLastError,
    module: Box<dyn Module>,
}

impl Library {
    /// Registers a loader under a name, in place of an earlier one, until the library is closed.
    /// The loader makes a module of all artifacts for it and one target key, its first argument; it
    /// runs under a lock of the library. `ERROR_NAME` if the library carries no artifacts for
    /// loaders.
    pub fn register_loader<L>(&self, name: &str, loader: L) -> Result<()>
    where
        L: Fn(&str, &[Artifact<'_>]) -> Result<Box<dyn Module>> + Send + Sync + 'static,
    {
        let (api, name) = (self.loaded.loaders()?, c_name(name)?);
        let kept = Arc::new(Registered { set_last_error: api.set_last_error, loader });
        let context = Arc::as_ptr(&kept).cast_mut().cast();
        let raw = RawLoader {
            size: size_of::<RawLoader>() as u32,
            context,
            load: load::<L>,
            call,
            unload,
        };
        // SAFETY: the context lives until the loader is removed, when the library is closed.
        let code = unsafe { (api.register_loader)(name.as_ptr(), &raw) };
        self.loaded.kept().loaders.push((name, kept));
        self.loaded.api.check(code)
    }
}

unsafe extern "C" fn load<L>(
    context: *mut c_void,
    target_key: *const c_char,
    artifacts: *const RawArtifact,
    count: c_int,
    module: *mut *mut c_void,
) -> c_int
where
    L: Fn(&str, &[Artifact<'_>]) -> Result<Box<dyn Module>>,
{
    // SAFETY: `register_loader` registered this function with this context.
    let this = unsafe { &*context.cast::<Registered<L>>() };
    guarded(this.set_last_error, || {
        let all: Vec<Artifact<'_>> = (0..count as usize)
            // SAFETY: `artifacts` has `count` items.
            .map(|i| unsafe { artifact(&*artifacts.add(i)) })
            .collect();
        let made = (this.loader)(&text(target_key), &all)?;
        let made = LoadedModule { set_last_error: this.set_last_error, module: made };
        // SAFETY: there is room for an address.
        unsafe { module.write(Box::into_raw(Box::new(made)).cast()) };
        Ok(())
    })
}

/// # Safety
/// The content lives for `'a`.
unsafe fn artifact<'a>(raw: &RawArtifact) -> Artifact<'a> {
    let content = match raw.bytes {
        0 => &[],
        // SAFETY: `content` has that many bytes.
        bytes => unsafe { std::slice::from_raw_parts(raw.content.cast(), bytes as usize) },
    };
    Artifact {
        codegen_id: text(raw.codegen_id),
        file_name: text(raw.file_name),
        target_key: text(raw.target_key),
        content,
    }
}

unsafe extern "C" fn call(
    module: *mut c_void,
    function: *const c_char,
    arguments: *const RawValue,
    count: i32,
    result: *mut RawValue,
) -> c_int {
    // SAFETY: made by `load`, and there is room for a result.
    let this = unsafe {
        result.write(RawValue::NONE);
        &*module.cast::<LoadedModule>()
    };
    guarded(this.set_last_error, || {
        let (mut tensors, mut sizes) = (Vec::new(), Vec::new());
        let function = text(function);
        for i in 0..count as usize {
            // SAFETY: `arguments` has `count` items, and the kind says which member is set.
            unsafe {
                let argument = &*arguments.add(i);
                match argument.kind {
                    KIND_TENSOR => {
                        let tensor = argument.data.pointer.cast::<RawTensor>();
                        tensors.push(View::from_tensor(&*tensor)?);
                    }
                    KIND_INT => sizes.push(argument.data.integer),
                    _ => {
                        let what = "is neither a tensor nor an integer";
                        let sentence = format!("{function}: argument {i} {what}");
                        return Err(Error::new(error::ERROR_ARGUMENT, sentence));
                    }
                }
            }
        }
        this.module.call(&function, &tensors, &sizes)
    })
}

unsafe extern "C" fn unload(module: *mut c_void) {
    // SAFETY: made by `load`, and not used any more. A panic must not unwind into the library.
    let this = unsafe { Box::from_raw(module.cast::<LoadedModule>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(this)));
}
