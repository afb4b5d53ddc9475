//! Values that outer functions take and give, functions of the host, arguments of tensor functions.

use crate::error::{self, Error, Result};
use crate::ffi::{
    RawData, RawValue, Values, KIND_BOOL, KIND_FLOAT, KIND_FUNCTION, KIND_INT, KIND_NONE,
    KIND_SMALL_STRING, KIND_STRING, KIND_TENSOR,
};
use crate::tensor::{RawTensor, View, ViewMut};
use crate::{Library, Loaded};
use std::ffi::{c_int, c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Weak;

/// Nothing, a number, a string, a shape, a tensor, a tuple or a function. Objects are shared by clones
/// and keep their library loaded; `Library::make_...` makes them.
///
/// What is seen of a value goes with it:
///
/// ```compile_fail,E0515
/// fn escapes(value: kiln::Value) -> kiln::View<'static> {
///     value.tensor().unwrap()
/// }
/// ```
pub struct Value {
    raw: RawValue,
    library: Option<Library>, // None for numbers
}

// SAFETY: objects count their references atomically and are not written to; functions of the host
// are Send and Sync.
unsafe impl Send for Value {}
unsafe impl Sync for Value {}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value { raw: RawValue::integer(KIND_INT, number), library: None }
    }
}

/// What a plain `5.into()` is, since there are integers of two signs.
impl From<i32> for Value {
    fn from(number: i32) -> Value {
        i64::from(number).into()
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value { raw: RawValue::unsigned(number), library: None }
    }
}

impl From<bool> for Value {
    fn from(truth: bool) -> Value {
        Value { raw: RawValue::integer(KIND_BOOL, truth.into()), library: None }
    }
}

impl From<f64> for Value {
    fn from(real: f64) -> Value {
        let raw = RawValue { kind: KIND_FLOAT, small: 0, data: RawData { real } };
        Value { raw, library: None }
    }
}

impl Clone for Value {
    fn clone(&self) -> Value {
        if let Some((_, api)) = self.object() {
            // SAFETY: the value lives.
            unsafe { (api.retain)(&self.raw) }
        }
        Value { raw: self.raw, library: self.library.clone() }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let mut raw = self.raw;
        if let Some((_, api)) = self.object() {
            // SAFETY: it has one reference.
            unsafe { (api.release)(&mut raw) }
        }
    }
}

impl Value {
    pub const NONE: Value = Value { raw: RawValue::NONE, library: None };

    fn object(&self) -> Option<(&Library, &Values)> {
        let library = self.library.as_ref()?;
        Some((library, library.loaded.api.values.as_ref()?))
    }

    /// Takes over a reference.
    pub(crate) fn own(library: &Library, raw: RawValue) -> Value {
        Value { raw, library: Some(library.clone()) }
    }

    /// Shares a value of this library's.
    fn share(library: &Library, raw: &RawValue) -> Result<Value> {
        if (KIND_TENSOR..KIND_SMALL_STRING).contains(&raw.kind) {
            let what = "a value that is only lent cannot be kept";
            return Err(Error::new(error::ERROR_ARGUMENT, what));
        }
        // SAFETY: somebody keeps it alive for the time of this call.
        unsafe { (library.loaded.values()?.retain)(raw) };
        Ok(Value::own(library, *raw))
    }

    /// As `kiln.h` has them, borrowed. Objects are of this library: others may be unloaded before it.
    pub(crate) fn raw_of(library: &Library, values: &[Value]) -> Result<Vec<RawValue>> {
        let here = library.loaded.api.handle;
        let foreign = |value: &Value| {
            value.raw.kind >= KIND_STRING
                && !value.library.as_ref().is_some_and(|l| l.loaded.api.handle == here)
        };
        if let Some(i) = values.iter().position(foreign) {
            let sentence = format!("argument {i} is a value of another library");
            return Err(Error::new(error::ERROR_ARGUMENT, sentence));
        }
        Ok(values.iter().map(|value| value.raw).collect())
    }

    fn need<T>(&self, found: Option<T>, what: &str) -> Result<T> {
        found.ok_or_else(|| Error::new(error::ERROR_ARGUMENT, format!("the value is no {what}")))
    }

    /// Of `enum kiln_kind`.
    pub fn kind(&self) -> i32 {
        self.raw.kind
    }

    pub fn is_none(&self) -> bool {
        self.raw.kind == KIND_NONE
    }

    /// What is in it; an error when that is something else. So do those that follow.
    pub fn integer(&self) -> Result<i64> {
        // SAFETY: all bytes are set, whatever the kind says of them.
        let found = (self.raw.kind == KIND_INT).then_some(unsafe { self.raw.data.integer });
        self.need(found, "integer")
    }

    pub fn boolean(&self) -> Result<bool> {
        // SAFETY: all bytes are set, whatever the kind says of them.
        let found = (self.raw.kind == KIND_BOOL).then_some(unsafe { self.raw.data.integer } != 0);
        self.need(found, "bool")
    }

    pub fn real(&self) -> Result<f64> {
        // SAFETY: all bytes are set, whatever the kind says of them.
        let found = (self.raw.kind == KIND_FLOAT).then_some(unsafe { self.raw.data.real });
        self.need(found, "number with a fraction")
    }

    /// The bytes of a string; which are text of UTF-8 in those that a model has.
    pub fn string(&self) -> Result<&[u8]> {
        let mut bytes = 0;
        // SAFETY: the value lives; so do the bytes with it.
        let found = self.object().and_then(|(_, api)| unsafe {
            let at = (api.string_of)(&self.raw, &mut bytes);
            (!at.is_null()).then(|| std::slice::from_raw_parts(at.cast(), bytes as usize))
        });
        self.need(found, "string")
    }

    pub fn shape(&self) -> Result<&[i64]> {
        let mut count = 0;
        // SAFETY: as above.
        let found = self.object().and_then(|(_, api)| unsafe {
            let at = (api.shape_of)(&self.raw, &mut count);
            (!at.is_null()).then(|| std::slice::from_raw_parts(at, count as usize))
        });
        self.need(found, "shape")
    }

    pub fn tensor(&self) -> Result<View<'_>> {
        // SAFETY: as above.
        let found =
            self.object().and_then(|(_, api)| unsafe { (api.tensor_of)(&self.raw).as_ref() });
        // SAFETY: it is a tensor, which lives with this value.
        unsafe { View::from_tensor(self.need(found, "tensor")?) }
    }

    pub fn items(&self) -> Result<Vec<Value>> {
        let mut count = 0;
        // SAFETY: as above.
        let found = self.object().and_then(|(library, api)| unsafe {
            let at = (api.items_of)(&self.raw, &mut count);
            (!at.is_null()).then(|| (library, std::slice::from_raw_parts(at, count as usize)))
        });
        let (library, items) = self.need(found, "tuple")?;
        items.iter().map(|item| Value::share(library, item)).collect()
    }

    /// Calls a function.
    pub fn call(&self, arguments: &[Value]) -> Result<Value> {
        let found = self.object().filter(|_| self.raw.kind == KIND_FUNCTION);
        let (library, api) = self.need(found, "function")?;
        let given = Value::raw_of(library, arguments)?;
        library.make(|made| {
            // SAFETY: all values live.
            unsafe { (api.call_value)(&self.raw, given.as_ptr(), given.len() as c_int, made) }
        })
    }
}

/// Values for functions of this library.
impl Library {
    /// A value that a function of `kiln.h` leaves at the address.
    pub(crate) fn make(&self, function: impl FnOnce(*mut RawValue) -> c_int) -> Result<Value> {
        let mut made = RawValue::NONE;
        self.loaded.api.check(function(&mut made))?;
        Ok(Value::own(self, made))
    }

    pub fn make_string(&self, text: impl AsRef<[u8]>) -> Result<Value> {
        let (api, text) = (self.loaded.values()?, text.as_ref());
        // SAFETY: address and size of bytes.
        self.make(|made| unsafe {
            (api.make_string)(text.as_ptr().cast(), text.len() as i64, made)
        })
    }

    pub fn make_shape(&self, sizes: &[i64]) -> Result<Value> {
        let api = self.loaded.values()?;
        // SAFETY: address and number of sizes.
        self.make(|made| unsafe { (api.make_shape)(sizes.as_ptr(), sizes.len() as c_int, made) })
    }

    /// A copy of a tensor without gaps.
    pub fn make_tensor(&self, tensor: &View<'_>) -> Result<Value> {
        let (api, bytes) = (self.loaded.values()?, tensor.bytes()?);
        let (shape, ndim) = (tensor.shape().as_ptr(), tensor.shape().len() as c_int);
        // SAFETY: address and number of sizes.
        let made =
            self.make(|made| unsafe { (api.make_tensor)(shape, ndim, tensor.dtype(), made) })?;
        // SAFETY: it is a new tensor of as many bytes.
        unsafe {
            let to: *const RawTensor = (api.tensor_of)(&made.raw);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (*to).data.cast(), bytes.len());
        }
        Ok(made)
    }

    pub fn make_tuple(&self, items: &[Value]) -> Result<Value> {
        let (api, given) = (self.loaded.values()?, Value::raw_of(self, items)?);
        // SAFETY: all items live.
        self.make(|made| unsafe { (api.make_tuple)(given.as_ptr(), given.len() as c_int, made) })
    }

    /// A function of the host, to be called with values, by any thread.
    pub fn make_function<F>(&self, function: F) -> Result<Value>
    where
        F: Fn(&[Value]) -> Result<Value> + Send + Sync + 'static,
    {
        let api = self.loaded.values()?;
        let library = std::sync::Arc::downgrade(&self.loaded);
        let context = Box::into_raw(Box::new(HostFunction { library, function })).cast();
        let made =
            // SAFETY: both functions take this context.
            self.make(|made| unsafe { (api.make_function)(call::<F>, context, destroy::<F>, made) });
        if made.is_err() {
            // SAFETY: nobody else has it.
            unsafe { destroy::<F>(context) }
        }
        made
    }

    /// Gives the library's call_packed a function of the host by name, until this library is dropped.
    pub fn register_function<F>(&self, name: &str, function: F) -> Result<()>
    where
        F: Fn(&[Value]) -> Result<Value> + Send + Sync + 'static,
    {
        let (made, name) = (self.make_function(function)?, c_name(name)?);
        // SAFETY: text that ends with NUL, and a value that lives.
        let code = unsafe { (self.loaded.values()?.register_function)(name.as_ptr(), &made.raw) };
        self.loaded.kept().functions.push(name);
        self.loaded.api.check(code)
    }

    /// Objects that this library has made and nobody has given back.
    pub fn live_objects(&self) -> Result<i64> {
        // SAFETY: a function without arguments.
        Ok(unsafe { (self.loaded.values()?.live_objects)() })
    }
}

pub(crate) fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::new(error::ERROR_NAME, "a name has no NUL"))
}

/// Runs `f`; its error, or that it panicked, becomes a code and the library's last error.
pub(crate) fn guarded(
    set_last_error: unsafe extern "C" fn(*const std::ffi::c_char),
    f: impl FnOnce() -> Result<()>,
) -> c_int {
    let done = catch_unwind(AssertUnwindSafe(f));
    let done = done.unwrap_or_else(|_| Err(Error::new(error::ERROR_CALLBACK, "the host panicked")));
    let Err(error) = done else { return 0 };
    if let Ok(sentence) = CString::new(error.to_string()) {
        // SAFETY: text that ends with NUL, and is copied.
        unsafe { set_last_error(sentence.as_ptr()) }
    }
    if error.code() == 0 {
        error::ERROR_CALLBACK
    } else {
        error.code()
    }
}

struct HostFunction<F> {
    library: Weak<Loaded>, // which holds this: it must not hold itself
    function: F,
}

unsafe extern "C" fn call<F: Fn(&[Value]) -> Result<Value>>(
    context: *mut c_void,
    arguments: *const RawValue,
    count: i32,
    result: *mut RawValue,
) -> c_int {
    // SAFETY: made by `make_function`, and alive while it is called.
    let this = unsafe { &*context.cast::<HostFunction<F>>() };
    let Some(loaded) = this.library.upgrade() else { return error::ERROR_CALLBACK };
    let library = Library { loaded };
    let Ok(api) = library.loaded.values() else { return error::ERROR_CALLBACK };
    guarded(api.set_last_error, || {
        let given: Vec<Value> = (0..count as usize)
            // SAFETY: there are that many.
            .map(|i| Value::share(&library, unsafe { &*arguments.add(i) }))
            .collect::<Result<_>>()?;
        let made = (this.function)(&given)?;
        let raw = Value::raw_of(&library, std::slice::from_ref(&made))?[0];
        // SAFETY: there is room for a result, and its reference is handed over.
        unsafe {
            (api.retain)(&raw);
            result.write(raw);
        }
        Ok(())
    })
}

unsafe extern "C" fn destroy<F>(context: *mut c_void) {
    // SAFETY: the last use of what `make_function` made. A panic must not cross the library.
    let this = unsafe { Box::from_raw(context.cast::<HostFunction<F>>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(this)));
}

/// An argument of a tensor function.
pub enum Argument<'a> {
    In(View<'a>),
    Out(ViewMut<'a>),
    Int(i64),
    UInt(u64),
    Bool(bool),
    Float(f64),
}

macro_rules! arguments {
    ($($kind:ty: $variant:ident;)*) => {
        $(impl<'a> From<$kind> for Argument<'a> {
            fn from(value: $kind) -> Argument<'a> { Argument::$variant(value) }
        })*
    };
}

arguments! { View<'a>: In; ViewMut<'a>: Out; i64: Int; u64: UInt; bool: Bool; f64: Float; }

/// What a plain `5.into()` is, since there are integers of two signs.
impl From<i32> for Argument<'_> {
    fn from(value: i32) -> Self {
        i64::from(value).into()
    }
}

impl Argument<'_> {
    pub(crate) fn tensor(&self) -> Option<RawTensor> {
        match self {
            Argument::In(view) => Some(view.raw()),
            Argument::Out(view) => Some(view.raw()),
            _ => None,
        }
    }

    /// As `kiln.h` has it; the tensor is lent.
    pub(crate) fn raw(&self, tensor: &Option<RawTensor>) -> RawValue {
        match self {
            Argument::In(_) | Argument::Out(_) => {
                let pointer = tensor.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
                let data = RawData { pointer: pointer.cast_mut().cast() };
                RawValue { kind: KIND_TENSOR, small: 0, data }
            }
            Argument::Int(number) => RawValue::integer(KIND_INT, *number),
            Argument::UInt(number) => RawValue::unsigned(*number),
            Argument::Bool(truth) => RawValue::integer(KIND_BOOL, (*truth).into()),
            Argument::Float(real) => {
                RawValue { kind: KIND_FLOAT, small: 0, data: RawData { real: *real } }
            }
        }
    }
}
