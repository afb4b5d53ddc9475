//! The C functions of a loaded library, found with `dlopen` and `dlsym`.

use crate::error::{self, Error, Result};
use crate::library_file::{Dependency, Identity, Opened};
use crate::tensor::{DType, RawTensor};
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::fs::File;
use std::mem::{size_of, transmute_copy};
use std::os::fd::AsRawFd;
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

/// A copy of a C string, with invalid UTF-8 replaced; empty for null.
pub fn text(at: *const c_char) -> String {
    if at.is_null() {
        return String::new();
    }
    // SAFETY: the loader and the library return text that ends with NUL.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

/// `kiln_value` of `kiln.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawValue {
    pub kind: i32,
    pub small: u32,
    pub data: RawData,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union RawData {
    pub integer: i64,
    pub real: f64,
    pub pointer: *mut c_void,
}

pub const KIND_NONE: i32 = 0;
pub const KIND_INT: i32 = 1;
pub const KIND_BOOL: i32 = 2;
pub const KIND_FLOAT: i32 = 3;
pub const KIND_TENSOR: i32 = 7;
/// Kinds from `KIND_TENSOR` up to before this one are views, valid during a call only.
pub const KIND_SMALL_STRING: i32 = 11;
pub const KIND_UINT: i32 = 63;
/// The first kind of reference-counted objects.
pub const KIND_STRING: i32 = 65;
pub const KIND_FUNCTION: i32 = 68;

impl RawValue {
    pub const NONE: RawValue = RawValue::integer(KIND_NONE, 0);

    pub const fn integer(kind: i32, integer: i64) -> RawValue {
        RawValue { kind, small: 0, data: RawData { integer } }
    }

    pub const fn unsigned(number: u64) -> RawValue {
        let kind = if number >> 63 != 0 { KIND_UINT } else { KIND_INT };
        RawValue::integer(kind, number as i64)
    }
}

pub type Callback = unsafe extern "C" fn(*mut c_void, *const RawValue, i32, *mut RawValue) -> c_int;

#[repr(C)]
pub struct RawArtifact {
    pub codegen_id: *const c_char,
    pub file_name: *const c_char,
    pub target_key: *const c_char,
    pub content: *const c_void,
    pub bytes: u64,
}

#[repr(C)]
pub struct RawLoader {
    pub size: u32,
    pub context: *mut c_void,
    pub load: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const RawArtifact,
        c_int,
        *mut *mut c_void,
    ) -> c_int,
    pub call: unsafe extern "C" fn(
        *mut c_void,
        *const c_char,
        *const RawValue,
        i32,
        *mut RawValue,
    ) -> c_int,
    pub unload: unsafe extern "C" fn(*mut c_void),
}

/// Declares a struct whose fields are pointers to functions of `kiln.h`.
macro_rules! functions {
    ($set:ident: $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct $set {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $set {
            fn bind(handle: *mut c_void, path: &str) -> Result<$set> {
                Ok($set { $($name: find(handle, path, concat!("kiln_", stringify!($name)))?,)* })
            }
        }
    };
}

functions! { Core: // of every library
    open: fn() -> c_int;
    last_error: fn() -> *const c_char;
    function_index: fn(*const c_char) -> c_int;
    executor_create: fn(*mut *mut c_void) -> c_int;
    executor_destroy: fn(*mut c_void);
    executor_run: fn(*mut c_void, c_int, *const *const RawTensor, c_int) -> c_int;
    executor_workspace_bytes: fn(*const c_void) -> i64;
    executor_set_num_threads: fn(*mut c_void, c_int);
    output_shape: fn(c_int, *const *const RawTensor, c_int, c_int, *mut i64, *mut c_int) -> c_int;
    call: fn(c_int, *const RawValue, c_int) -> c_int;
    set_num_threads: fn(c_int);
    get_num_threads: fn() -> c_int;
}

functions! { Values: // of a library with outer functions
    executor_invoke: fn(*mut c_void, c_int, *const RawValue, c_int, *mut RawValue) -> c_int;
    call_value: fn(*const RawValue, *const RawValue, c_int, *mut RawValue) -> c_int;
    make_tensor: fn(*const i64, c_int, DType, *mut RawValue) -> c_int;
    make_tuple: fn(*const RawValue, c_int, *mut RawValue) -> c_int;
    make_shape: fn(*const i64, c_int, *mut RawValue) -> c_int;
    make_string: fn(*const c_char, i64, *mut RawValue) -> c_int;
    make_function: fn(Callback, *mut c_void, unsafe extern "C" fn(*mut c_void), *mut RawValue) -> c_int;
    register_function: fn(*const c_char, *const RawValue) -> c_int;
    set_last_error: fn(*const c_char);
    tensor_of: fn(*const RawValue) -> *const RawTensor;
    string_of: fn(*const RawValue, *mut i64) -> *const c_char;
    shape_of: fn(*const RawValue, *mut c_int) -> *const i64;
    items_of: fn(*const RawValue, *mut c_int) -> *const RawValue;
    retain: fn(*const RawValue);
    release: fn(*mut RawValue);
    live_objects: fn() -> i64;
}

functions! { Loaders: // of a library with artifacts for loaders
    register_loader: fn(*const c_char, *const RawLoader) -> c_int;
    set_last_error: fn(*const c_char);
}

functions! { Devices: // of a library with devices
    executor_set_device: fn(*mut c_void, c_int, c_int, *mut c_void) -> c_int;
    executor_set_stream: fn(*mut c_void, c_int, *mut c_void) -> c_int;
    executor_set_graphs: fn(*mut c_void, c_int) -> c_int;
    executor_graph_count: fn(*const c_void, c_int) -> i64;
}

/// The functions of an open library, which is closed when this is dropped. `values` is `None` in a
/// library without outer functions, `loaders` in one without artifacts for loaders, `devices` in one
/// without devices.
pub struct Api {
    pub handle: *mut c_void,
    pub core: Core,
    pub values: Option<Values>,
    pub loaders: Option<Loaders>,
    pub devices: Option<Devices>,
    _file: File, // debuggers read it by its descriptor
}

impl Api {
    fn bind(handle: *mut c_void, path: &str, file: File) -> Result<Api> {
        let core = Core::bind(handle, path)?;
        let values = Values::bind(handle, path).ok();
        let loaders = Loaders::bind(handle, path).ok();
        let devices = Devices::bind(handle, path).ok();
        Ok(Api { handle, core, values, loaders, devices, _file: file })
    }
}

// SAFETY: "All functions may be called from any thread" (kiln.h).
unsafe impl Send for Api {}
unsafe impl Sync for Api {}

/// Closes a library when dropped, for example if binding its functions fails.
struct Handle(*mut c_void);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: it came from `dlopen`, and no code or data of the library is in use.
        unsafe { dlclose(self.0) };
    }
}

/// The address of an exported function, as the function pointer type `F`.
fn find<F: Copy>(handle: *mut c_void, path: &str, name: &str) -> Result<F> {
    assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
    let symbol = CString::new(name).expect("names of functions have no NUL");
    // SAFETY: the handle is open.
    let address = unsafe { dlsym(handle, symbol.as_ptr()) };
    if address.is_null() {
        let sentence = format!("'{path}' is not a Tensorkiln library: it has no {name}");
        return Err(Error::new(error::ERROR_LIBRARY, sentence));
    }
    // SAFETY: `F` is the type that kiln.h declares, for the interface version that was checked.
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

fn replaced(path: &str) -> String {
    format!("'{path}' was replaced while it was loaded")
}

/// A sentence on the library that the dynamic loader did not find, if `why`, the words of dlerror(),
/// say that: with the dependency that it comes with.
fn missing(why: &str, path: &Path, needs: &[Dependency]) -> Option<String> {
    let (file, _) = why.split_once(": cannot open shared object file: No such file")?;
    if Path::new(file) == path {
        return None;
    }
    let last = file.rsplit('/').next().unwrap_or(file);
    let from = needs.iter().find(|d| d.libraries.iter().any(|library| library == last));
    let what = from.map_or(String::new(), |d| format!(": dependency {}", d.what));
    Some(format!("it needs '{file}', which is not there{what}"))
}

/// The name of the descriptor that was read; `None` if it leads elsewhere, as in a container with
/// another one's `/proc`. By it the file is opened that was compared with its digest: at its path,
/// another process could put another one in between, whose constructors would run.
fn descriptor_name(opened: &Opened) -> Option<String> {
    let name = format!("/proc/{}/fd/{}", std::process::id(), opened.file.as_raw_fd());
    (!opened.needs_name && !opened.which.is_replaced(Path::new(&name))).then_some(name)
}

/// A spelling of a name that is unique to the file. glibc returns a loaded library for a
/// name that it has seen before, without looking at the file; only for a new name does it compare
/// device and inode. So a number made of device and inode is inserted, whose bits from the lowest
/// on are written as `./` for 1 and `/` for 0: with 6, `dir/net.so` becomes `dir//././net.so`.
fn respelled(name: &[u8], which: &Identity) -> Vec<u8> {
    let at = name.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let mut other = name[..at].to_vec();
    let mut bits = which.inode.wrapping_add(which.device.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    while bits != 0 {
        other.extend_from_slice(if bits & 1 == 1 { b"./" } else { b"/" });
        bits >>= 1;
    }
    other.extend_from_slice(&name[at..]);
    other
}

impl Api {
    /// Loads the file whose description has been read. If it needs libraries beside it, it is opened
    /// by its path, of which the dynamic loader takes the folder.
    pub fn load(path: &Path, opened: Opened, needs: &[Dependency]) -> Result<Api> {
        let name = path.display().to_string();
        let refused = |why: String| {
            let why = missing(&why, path, needs).unwrap_or(why);
            Error::new(error::ERROR_LOAD, format!("cannot load '{name}': {why}"))
        };
        let mut file = path.as_os_str().as_encoded_bytes().to_vec();
        if !file.contains(&b'/') {
            file.splice(0..0, *b"./"); // never the search path
        }
        let by_descriptor = descriptor_name(&opened);
        let spelled = by_descriptor.as_ref().map_or(&file[..], |name| name.as_bytes());
        let other = respelled(spelled, &opened.which);
        let shown = String::from_utf8_lossy(&other).into_owned();
        let open = |file: Vec<u8>| -> Result<Handle> {
            let file = CString::new(file).map_err(|why| refused(why.to_string()))?;
            // SAFETY: the path ends with NUL; constructors of Tensorkiln libraries have no
            // preconditions.
            let handle = unsafe { dlopen(file.as_ptr(), RTLD_NOW) };
            if handle.is_null() {
                // SAFETY: the last failure of this thread.
                let why = text(unsafe { dlerror() });
                let why = if by_descriptor.is_some() { why.replace(&shown, &name) } else { why };
                return Err(refused(why));
            }
            Ok(Handle(handle))
        };
        let (handle, is_changed) = if by_descriptor.is_none() {
            let first = open(file)?; // debuggers show this name
            let handle = open(other)?;
            drop(first); // the same library, which `handle` keeps loaded
            (handle, opened.which.is_replaced(path))
        } else {
            (open(other)?, opened.is_changed())
        };
        if is_changed {
            return Err(Error::new(error::ERROR_FILE, replaced(&name)));
        }
        check_version(handle.0, &name)?;
        let api = Api::bind(handle.0, &name, opened.file)?;
        std::mem::forget(handle); // `api` closes it
                                  // SAFETY: a function without arguments.
        let code = unsafe { (api.core.open)() };
        api.check(code)?;
        Ok(api)
    }

    /// The address of an exported symbol, or null.
    pub fn address(&self, symbol: &str) -> *mut c_void {
        let symbol = CString::new(symbol);
        // SAFETY: the handle is open, and the text ends with NUL.
        symbol.map_or(std::ptr::null_mut(), |symbol| unsafe { dlsym(self.handle, symbol.as_ptr()) })
    }

    /// Converts a result code, with the library's sentence, to a `Result`.
    pub fn check(&self, code: c_int) -> Result<()> {
        // SAFETY: a function without arguments; its text lasts until this thread's next failure.
        (code == 0)
            .then_some(())
            .ok_or_else(|| Error::new(code, text(unsafe { (self.core.last_error)() })))
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        drop(Handle(self.handle));
    }
}
