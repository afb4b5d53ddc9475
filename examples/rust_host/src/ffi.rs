//! The C functions of a loaded library, by `dlopen` and `dlsym` alone.

use crate::error::{self, Error, Result};
use crate::tensor::RawTensor;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::mem::{size_of, transmute_copy};
use std::path::Path;

const ABI_VERSION: c_int = 2;
const RTLD_NOW: c_int = 2;

#[cfg_attr(target_os = "linux", link(name = "dl"))]
extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(handle: *mut c_void) -> c_int;
    fn dlerror() -> *const c_char;
}

fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the loader and the library return text that ends with NUL.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// Declares the functions of `kiln.h` that every library has and this crate uses.
macro_rules! api {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Api {
            handle: *mut c_void,
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            fn bind(handle: *mut c_void, path: &str) -> Result<Api> {
                Ok(Api { handle, $($name: find(handle, path, concat!("kiln_", stringify!($name)))?,)* })
            }
        }
    };
}

api! {
    open: fn() -> c_int;
    last_error: fn() -> *const c_char;
    function_index: fn(*const c_char) -> c_int;
    executor_create: fn(*mut *mut c_void) -> c_int;
    executor_destroy: fn(*mut c_void);
    executor_run: fn(*mut c_void, c_int, *const *const RawTensor, c_int) -> c_int;
    executor_set_num_threads: fn(*mut c_void, c_int);
    output_shape: fn(c_int, *const *const RawTensor, c_int, c_int, *mut i64, *mut c_int) -> c_int;
    set_num_threads: fn(c_int);
    get_num_threads: fn() -> c_int;
}

// SAFETY: "All functions may be called from any thread" (kiln.h).
unsafe impl Send for Api {}
unsafe impl Sync for Api {}

/// Closes the library when binding its functions fails.
struct Handle(*mut c_void);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it came from `dlopen`, and nothing of it is in use.
        unsafe { dlclose(self.0) };
    }
}

fn find<F: Copy>(handle: *mut c_void, path: &str, name: &str) -> Result<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    let symbol = CString::new(name).expect("names of functions have no NUL");
    // SAFETY: the handle is open.
    let address = unsafe { dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        let sentence = format!("'{path}' is no library of ours: it has no {name}");
        return Err(Error::new(error::ERROR_LIBRARY, sentence));
    }
    // SAFETY: kiln.h declares the function so, for the version that was checked.
    Ok(unsafe { transmute_copy(&address) })
}

fn check_version(handle: *mut c_void, path: &str) -> Result<()> {
    let version: unsafe extern "C" fn() -> c_int = find(handle, path, "kiln_abi_version")?;
    // SAFETY: a function without arguments.
    let version = unsafe { version() };
    if version == ABI_VERSION {
        return Ok(());
    }
    let sentence =
        format!("'{path}' has library interface {version}, this Tensorkiln knows {ABI_VERSION}");
    Err(Error::new(error::ERROR_VERSION, sentence))
}

impl Api {
    /// Loads a file that is known to be a library of ours.
    pub fn load(path: &Path) -> Result<Api> {
        let name = path.display().to_string();
        let refused =
            |why: String| Error::new(error::ERROR_LOAD, format!("cannot load '{name}': {why}"));
        let full = path.canonicalize().map_err(|why| refused(why.to_string()))?;
        let full = CString::new(full.into_os_string().into_encoded_bytes())
            .map_err(|why| refused(why.to_string()))?;
        // SAFETY: the path ends with NUL; libraries of ours run nothing when they are loaded.
        let handle = unsafe { dlopen(full.as_ptr(), RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: the last failure of this thread.
            return Err(refused(text(unsafe { dlerror() })));
        }
        let handle = Handle(handle);
        check_version(handle.0, &name)?;
        let api = Api::bind(handle.0, &name)?;
        std::mem::forget(handle); // `api` closes it
                                  // SAFETY: a function without arguments.
        let code = unsafe { (api.open)() };
        api.check(code)?;
        Ok(api)
    }

    /// A result code as a result.
    pub fn check(&self, code: c_int) -> Result<()> {
        // SAFETY: a function without arguments; its text lasts until this thread's next failure.
        (code == 0)
            .then_some(())
            .ok_or_else(|| Error::new(code, text(unsafe { (self.last_error)() })))
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(Handle(self.handle));
    }
}
