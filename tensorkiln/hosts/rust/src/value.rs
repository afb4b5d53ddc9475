//! Arguments and results of outer functions, functions of the host, arguments of tensor functions.

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

/// An argument or result of an outer function: nothing, a number, a string, a shape, a tensor, a
/// tuple or a function. `From` makes numbers, `Library::make_...` the others, which are
/// reference-counted: clones share the object, and keep its library loaded.
///
/// Views of the content borrow the value, so this does not compile:
///
/// ```compile_fail,E0515
/// fn escapes(value: tensorkiln::Value) -> tensorkiln::View<'static> {
///     value.tensor().unwrap()
/// }
/// ```
pub struct Value {
    raw: RawValue,
    library: Option<Library>, // None for nothing, and for a number from the host
}

// SAFETY: reference counts are atomic and objects are immutable; functions of the host are Send and
// Sync.
unsafe impl Send for Value {}
unsafe impl Sync for Value {}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value { raw: RawValue::integer(KIND_INT, number), library: None }
    }
}

/// For `5.into()`: with i64 and u64 alone, the type of the literal would default to i32 and not
/// compile.
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
            // SAFETY: `self` has a reference.
            unsafe { (api.retain)(&self.raw) }
        }
        Value { raw: self.raw, library: self.library.clone() }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        let mut raw = self.raw;
        if let Some((_, api)) = self.object() {
            // SAFETY: `self` has a reference, which this gives back.
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

    /// A value that takes over the caller's reference.
    pub(crate) fn own(library: &Library, raw: RawValue) -> Value {
        Value { raw, library: Some(library.clone()) }
    }

    /// A value with a reference of its own; `ERROR_ARGUMENT` for a view, which would dangle.
    fn share(library: &Library, raw: &RawValue) -> Result<Value> {
        if (KIND_TENSOR..KIND_SMALL_STRING).contains(&raw.kind) {
            let what = "a value that is only lent cannot be kept";
            return Err(Error::new(error::ERROR_ARGUMENT, what));
        }
        // SAFETY: the caller's value keeps the object alive during this call.
        unsafe { (library.loaded.values()?.retain)(raw) };
        Ok(Value::own(library, *raw))
    }

    /// The values as `kiln.h` describes them, without references of their own. Objects must be of
    /// this library: it could store one of another library, which may be unloaded first.
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
        found.ok_or_else(|| Error::new(error::ERROR_ARGUMENT, format!("the value is not {what}")))
    }

    /// A value of `enum kiln_kind`.
    pub fn kind(&self) -> i32 {
        self.raw.kind
    }

    pub fn is_none(&self) -> bool {
        self.raw.kind == KIND_NONE
    }

    /// The content. This and the methods below return `ERROR_ARGUMENT` for a value of another kind,
    /// and convert nothing: `real` of an integer is an error, and so is `integer` from 2^63 on.
    pub fn integer(&self) -> Result<i64> {
        // SAFETY: all bytes of the union are initialised, whatever the kind is.
        let found = (self.raw.kind == KIND_INT).then_some(unsafe { self.raw.data.integer });
        self.need(found, "an integer")
    }

    pub fn boolean(&self) -> Result<bool> {
        // SAFETY: all bytes of the union are initialised, whatever the kind is.
        let found = (self.raw.kind == KIND_BOOL).then_some(unsafe { self.raw.data.integer } != 0);
        self.need(found, "a bool")
    }

    pub fn real(&self) -> Result<f64> {
        // SAFETY: all bytes of the union are initialised, whatever the kind is.
        let found = (self.raw.kind == KIND_FLOAT).then_some(unsafe { self.raw.data.real });
        self.need(found, "a number with a fraction")
    }

    /// The bytes of a string or of bytes. Strings of a model are UTF-8; those of a host may not be.
    pub fn string(&self) -> Result<&[u8]> {
        let mut bytes = 0;
        // SAFETY: `self` keeps the object and its bytes alive.
        let found = self.object().and_then(|(_, api)| unsafe {
            let at = (api.string_of)(&self.raw, &mut bytes);
            (!at.is_null()).then(|| std::slice::from_raw_parts(at.cast(), bytes as usize))
        });
        self.need(found, "a string")
    }

    /// The sizes of a shape.
    pub fn shape(&self) -> Result<&[i64]> {
        let mut count = 0;
        // SAFETY: as for `string`.
        let found = self.object().and_then(|(_, api)| unsafe {
            let at = (api.shape_of)(&self.raw, &mut count);
            (!at.is_null()).then(|| std::slice::from_raw_parts(at, count as usize))
        });
        self.need(found, "a shape")
    }

    /// A view of a tensor.
    pub fn tensor(&self) -> Result<View<'_>> {
        // SAFETY: as for `string`.
        let found =
            self.object().and_then(|(_, api)| unsafe { (api.tensor_of)(&self.raw).as_ref() });
        // SAFETY: `self` keeps the tensor alive.
        unsafe { View::from_tensor(self.need(found, "a tensor")?) }
    }

    /// The items of a tuple, sharing their objects.
    pub fn items(&self) -> Result<Vec<Value>> {
        let mut count = 0;
        // SAFETY: as for `string`.
        let found = self.object().and_then(|(library, api)| unsafe {
            let at = (api.items_of)(&self.raw, &mut count);
            (!at.is_null()).then(|| (library, std::slice::from_raw_parts(at, count as usize)))
        });
        let (library, items) = self.need(found, "a tuple")?;
        items.iter().map(|item| Value::share(library, item)).collect()
    }

    /// Calls a function value, as `kiln_call_value`. Objects among the arguments must be of the
    /// same library.
    pub fn call(&self, arguments: &[Value]) -> Result<Value> {
        let found = self.object().filter(|_| self.raw.kind == KIND_FUNCTION);
        let (library, api) = self.need(found, "a function")?;
        let given = Value::raw_of(library, arguments)?;
        library.make(|made| {
            // SAFETY: all values are alive during the call.
            unsafe { (api.call_value)(&self.raw, given.as_ptr(), given.len() as c_int, made) }
        })
    }
}

/// Values for functions of this library; `ERROR_NAME` if it has no outer functions.
impl Library {
    /// The value that a function of `kiln.h` writes to the address it is given.
    pub(crate) fn make(&self, function: impl FnOnce(*mut RawValue) -> c_int) -> Result<Value> {
        let mut made = RawValue::NONE;
        self.loaded.api.check(function(&mut made))?;
        Ok(Value::own(self, made))
    }

    /// A string: a copy of these bytes, which should be UTF-8.
    pub fn make_string(&self, text: impl AsRef<[u8]>) -> Result<Value> {
        let (api, text) = (self.loaded.values()?, text.as_ref());
        // SAFETY: address and size of bytes.
        self.make(|made| unsafe {
            (api.make_string)(text.as_ptr().cast(), text.len() as i64, made)
        })
    }

    /// A shape: a copy of these sizes.
    pub fn make_shape(&self, sizes: &[i64]) -> Result<Value> {
        let api = self.loaded.values()?;
        // SAFETY: address and number of sizes.
        self.make(|made| unsafe { (api.make_shape)(sizes.as_ptr(), sizes.len() as c_int, made) })
    }

    /// A copy of a contiguous tensor; `ERROR_ARGUMENT` for any other.
    pub fn make_tensor(&self, tensor: &View<'_>) -> Result<Value> {
        let (api, bytes) = (self.loaded.values()?, tensor.bytes()?);
        let (shape, ndim) = (tensor.shape().as_ptr(), tensor.shape().len() as c_int);
        // SAFETY: address and number of sizes.
        let made =
            self.make(|made| unsafe { (api.make_tensor)(shape, ndim, tensor.dtype(), made) })?;
        // SAFETY: `made` is a new tensor of that many bytes.
        unsafe {
            let to: *const RawTensor = (api.tensor_of)(&made.raw);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (*to).data.cast(), bytes.len());
        }
        Ok(made)
    }

    /// A tuple that shares these items, which must be numbers or values of this library.
    pub fn make_tuple(&self, items: &[Value]) -> Result<Value> {
        let (api, given) = (self.loaded.values()?, Value::raw_of(self, items)?);
        // SAFETY: all items are alive during the call.
        self.make(|made| unsafe { (api.make_tuple)(given.as_ptr(), given.len() as c_int, made) })
    }

    /// A function of the host. It may be called by any thread, and by several at once; an error or
    /// a panic becomes `ERROR_CALLBACK` of the caller. Dropped with the last reference.
    pub fn make_function<F>(&self, function: F) -> Result<Value>
    where
        F: Fn(&[Value]) -> Result<Value> + Send + Sync + 'static,
    {
        let api = self.loaded.values()?;
        let library = std::sync::Arc::downgrade(&self.loaded);
        let context = Box::into_raw(Box::new(HostFunction { library, function })).cast();
        let made =
            // SAFETY: `call::<F>` and `destroy::<F>` expect this type of context.
            self.make(|made| unsafe { (api.make_function)(call::<F>, context, destroy::<F>, made) });
        if made.is_err() {
            // SAFETY: on failure the library has not taken over the context.
            unsafe { destroy::<F>(context) }
        }
        made
    }

    /// Registers a function of the host under a name for the library's call_packed, in place of an
    /// earlier one, until the library is closed.
    pub fn register_function<F>(&self, name: &str, function: F) -> Result<()>
    where
        F: Fn(&[Value]) -> Result<Value> + Send + Sync + 'static,
    {
        let (made, name) = (self.make_function(function)?, c_name(name)?);
        // SAFETY: text that ends with NUL, and a value that is alive.
        let code = unsafe { (self.loaded.values()?.register_function)(name.as_ptr(), &made.raw) };
        self.loaded.kept().functions.push(name);
        self.loaded.api.check(code)
    }

    /// The number of objects that this library has made and that are not freed yet.
    pub fn live_objects(&self) -> Result<i64> {
        // SAFETY: a function without arguments.
        Ok(unsafe { (self.loaded.values()?.live_objects)() })
    }
}

pub(crate) fn c_name(name: &str) -> Result<CString> {
    CString::new(name).map_err(|_| Error::new(error::ERROR_NAME, "a name has no NUL"))
}

/// Runs `f`; converts an error or a panic to a code, and its text to the library's last error.
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
    library: Weak<Loaded>, // weak, because the library may own this object
    function: F,
}

unsafe extern "C" fn call<F: Fn(&[Value]) -> Result<Value>>(
    context: *mut c_void,
    arguments: *const RawValue,
    count: i32,
    result: *mut RawValue,
) -> c_int {
    // SAFETY: `make_function` made the context, which is alive during calls.
    let this = unsafe { &*context.cast::<HostFunction<F>>() };
    let Some(loaded) = this.library.upgrade() else { return error::ERROR_CALLBACK };
    let library = Library { loaded };
    let Ok(api) = library.loaded.values() else { return error::ERROR_CALLBACK };
    guarded(api.set_last_error, || {
        let given: Vec<Value> = (0..count as usize)
            // SAFETY: `arguments` has `count` items.
            .map(|i| Value::share(&library, unsafe { &*arguments.add(i) }))
            .collect::<Result<_>>()?;
        let made = (this.function)(&given)?;
        let raw = Value::raw_of(&library, std::slice::from_ref(&made))?[0];
        // SAFETY: `result` is writable; its new reference becomes the caller's.
        unsafe {
            (api.retain)(&raw);
            result.write(raw);
        }
        Ok(())
    })
}

unsafe extern "C" fn destroy<F>(context: *mut c_void) {
    // SAFETY: the last use of the context that `make_function` made. A panic must not unwind into
    // the library.
    let this = unsafe { Box::from_raw(context.cast::<HostFunction<F>>()) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(this)));
}

/// An argument of a tensor function: `In` is a tensor that it reads, `Out` one that it writes.
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

/// For `5.into()`, as for `Value`.
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

    /// The argument as `kiln.h` describes it; `tensor` is borrowed and must outlive the call.
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
