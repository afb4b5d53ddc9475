//! Tensors that own aligned memory, and views of borrowed memory.

use crate::error::{self, Error, Result};
use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::align_of;
use std::ptr::NonNull;

/// An element type; `kiln_dtype` in `kiln.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

impl DType {
    const fn new(code: u8, bits: u8) -> DType {
        DType { code, bits, lanes: 1 }
    }

    /// The element type of a name such as `float32`.
    pub fn named(name: &str) -> Option<DType> {
        Some(match name {
            "bool" => Bool::DTYPE,
            "int8" => i8::DTYPE,
            "int16" => i16::DTYPE,
            "int32" => i32::DTYPE,
            "int64" => i64::DTYPE,
            "uint8" => u8::DTYPE,
            "uint16" => u16::DTYPE,
            "uint32" => u32::DTYPE,
            "uint64" => u64::DTYPE,
            "float16" => F16::DTYPE,
            "bfloat16" => BF16::DTYPE,
            "float32" => f32::DTYPE,
            "float64" => f64::DTYPE,
            "float8_e4m3fn" => F8E4M3FN::DTYPE,
            "float8_e4m3fnuz" => F8E4M3FNUZ::DTYPE,
            "float8_e5m2" => F8E5M2::DTYPE,
            "float8_e5m2fnuz" => F8E5M2FNUZ::DTYPE,
            "float8_e8m0fnu" => F8E8M0FNU::DTYPE,
            // A byte for each element: DLPack packs those of fewer bits.
            "float6_e2m3fn" | "float6_e3m2fn" | "float4_e2m1fn" | "uint4" | "uint2" => u8::DTYPE,
            "int4" | "int2" => i8::DTYPE,
            _ => return None,
        })
    }
}

/// A Rust type that tensors can hold.
///
/// # Safety
/// `DTYPE` must describe the type's bytes, and every bit pattern must be a valid value.
pub unsafe trait Element: Copy {
    const DTYPE: DType;
}

/// IEEE half precision, as its bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F16(pub u16);
/// The upper half of an `f32`, as its bits.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BF16(pub u16);
/// A float of 8 bits, as its bits, by DLPack's code.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F8<const CODE: u8>(pub u8);
pub type F8E4M3FN = F8<10>;
pub type F8E4M3FNUZ = F8<11>;
pub type F8E5M2 = F8<12>;
pub type F8E5M2FNUZ = F8<13>;
pub type F8E8M0FNU = F8<14>;
/// A bool as a byte, 0 or 1. (`bool` itself is no `Element`: other bytes would be undefined
/// behaviour.)
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bool(pub u8);

macro_rules! elements {
    ($($kind:ty: $code:expr, $bits:expr;)*) => {
        $(unsafe impl Element for $kind { const DTYPE: DType = DType::new($code, $bits); })*
    };
}

// SAFETY: any byte is one.
unsafe impl<const CODE: u8> Element for F8<CODE> {
    const DTYPE: DType = DType::new(CODE, 8);
}

elements! {
    Bool: 6, 8;
    i8: 0, 8; i16: 0, 16; i32: 0, 32; i64: 0, 64;
    u8: 1, 8; u16: 1, 16; u32: 1, 32; u64: 1, 64;
    F16: 2, 16; f32: 2, 32; f64: 2, 64;
    BF16: 4, 16;
}

/// `kiln_tensor` of `kiln.h`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawTensor {
    pub data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `KILN_MAX_RANK` of `kiln.h`.
const MOST_DIMS: i32 = 16;

/// The number of elements; `ERROR_SHAPE` for a negative size, or more than any memory holds.
fn count(shape: &[i64]) -> Result<usize> {
    let too_many = || Error::new(error::ERROR_SHAPE, "a tensor cannot have that many elements");
    shape.iter().try_fold(1usize, |n, size| {
        let size = usize::try_from(*size).map_err(|_| too_many())?;
        n.checked_mul(size).filter(|n| *n < usize::MAX >> 5).ok_or_else(too_many)
    })
}

/// A tensor that a call reads; its elements are borrowed for `'a`, so this does not compile:
///
/// ```compile_fail,E0597
/// let view = {
///     let row = vec![0.0_f32; 8];
///     tensorkiln::View::new(&row, &[8])
/// };
/// assert_eq!(view.unwrap().shape(), [8]);
/// ```
#[derive(Clone)]
pub struct View<'a> {
    data: *const c_void,
    dtype: DType,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    borrowed: PhantomData<&'a ()>,
}

/// A tensor that a call writes; its elements are borrowed exclusively for `'a`.
pub struct ViewMut<'a> {
    view: View<'a>,
    borrowed: PhantomData<&'a mut ()>,
}

// SAFETY: a view is a reference to plain numbers, shared or exclusive.
unsafe impl Send for View<'_> {}
unsafe impl Sync for View<'_> {}
unsafe impl Send for ViewMut<'_> {}

fn check_length(shape: &[i64], length: usize) -> Result<()> {
    let expected = count(shape)?;
    if expected == length {
        return Ok(());
    }
    let sentence = format!("a tensor of {expected} elements was given {length}");
    Err(Error::new(error::ERROR_COUNT, sentence))
}

/// Checks that a strided view, whose first element is number `start` of `length` elements, stays
/// within them.
fn check_strides(shape: &[i64], strides: &[i64], start: usize, length: usize) -> Result<()> {
    if shape.len() != strides.len() {
        let (sizes, given) = (shape.len(), strides.len());
        let sentence = format!("a view of {sizes} dimensions was given {given} strides");
        return Err(Error::new(error::ERROR_RANK, sentence));
    }
    if count(shape)? == 0 {
        return Ok(());
    }
    let (mut first, mut last) = (start as i128, start as i128);
    for (size, stride) in shape.iter().zip(strides) {
        let reach = i128::from(size - 1) * i128::from(*stride);
        *(if reach < 0 { &mut first } else { &mut last }) += reach;
    }
    if first >= 0 && last < length as i128 {
        return Ok(());
    }
    let sentence = format!("a view reaches from element {first} to {last} of {length}");
    Err(Error::new(error::ERROR_SHAPE, sentence))
}

fn is_packed(shape: &[i64], strides: &[i64]) -> bool {
    let mut step = Some(1i64); // the stride of a contiguous tensor; None: it overflows
    let fits = shape.iter().zip(strides).rev().fold(true, |fits, (size, stride)| {
        let follows = *size == 1 || Some(*stride) == step;
        step = step.and_then(|step| step.checked_mul(*size));
        fits && follows
    });
    fits || shape.contains(&0)
}

/// The address and number of the elements of a contiguous view. Errors: `ERROR_DTYPE`,
/// `ERROR_ARGUMENT` for a view that is not contiguous, `ERROR_NULL` for a null or misaligned
/// address.
fn packed<T: Element>(view: &View<'_>) -> Result<(*const T, usize)> {
    let length = count(&view.shape)?;
    let data: *const T = view.data.cast();
    let refuse = |code, what: &str| Err(Error::new(code, what));
    if T::DTYPE != view.dtype {
        return refuse(error::ERROR_DTYPE, "the tensor holds elements of another type");
    }
    if view.strides.as_ref().is_some_and(|strides| !is_packed(&view.shape, strides)) {
        let what = "the elements of a view with strides are not contiguous";
        return refuse(error::ERROR_ARGUMENT, what);
    }
    if length == 0 {
        return Ok((NonNull::dangling().as_ptr(), 0));
    }
    if data.is_null() || data as usize % align_of::<T>() != 0 {
        return refuse(error::ERROR_NULL, "the elements lie at no address of their type");
    }
    Ok((data, length))
}

impl<'a> View<'a> {
    /// A view of contiguous row-major elements; `ERROR_COUNT` unless their number is the shape's.
    pub fn new<T: Element>(elements: &'a [T], shape: &[i64]) -> Result<View<'a>> {
        check_length(shape, elements.len())?;
        // SAFETY: the slice has all elements of the shape.
        Ok(unsafe { View::from_raw(elements.as_ptr().cast(), T::DTYPE, shape, None) })
    }

    /// A view with strides, which count elements and may be negative; the first element of the
    /// tensor is `elements[start]`. `ERROR_SHAPE` if the view reaches beyond the slice.
    pub fn strided<T: Element>(
        elements: &'a [T],
        shape: &[i64],
        strides: &[i64],
        start: usize,
    ) -> Result<View<'a>> {
        check_strides(shape, strides, start, elements.len())?;
        let first = elements.as_ptr().wrapping_add(start).cast();
        // SAFETY: the slice has all elements of the view.
        Ok(unsafe { View::from_raw(first, T::DTYPE, shape, Some(strides)) })
    }

    /// A view of memory described by hand; strides count elements.
    ///
    /// # Safety
    /// All elements must be readable for `'a`, and there must be as many strides as sizes.
    pub unsafe fn from_raw(
        data: *const c_void,
        dtype: DType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> View<'a> {
        let (shape, strides) = (shape.to_vec(), strides.map(<[i64]>::to_vec));
        View { data, dtype, shape, strides, borrowed: PhantomData }
    }

    /// A view of a tensor that a library passes.
    ///
    /// # Safety
    /// `raw` must be valid, and its elements readable, for `'a`.
    pub(crate) unsafe fn from_tensor(raw: &RawTensor) -> Result<View<'a>> {
        if raw.device_type != 1 {
            let sentence = format!(
                "a view must be in CPU memory (device type 1), received device type {}",
                raw.device_type
            );
            return Err(Error::new(error::ERROR_DEVICE, sentence));
        }
        if !(0..=MOST_DIMS).contains(&raw.ndim) {
            let sentence =
                format!("a view has at most {MOST_DIMS} dimensions, received {}", raw.ndim);
            return Err(Error::new(error::ERROR_RANK, sentence));
        }
        let ndim = raw.ndim as usize;
        let row = |at: *const i64| match ndim {
            0 => &[],
            // SAFETY: shape and strides have `ndim` entries.
            _ => unsafe { std::slice::from_raw_parts(at, ndim) },
        };
        let strides = (!raw.strides.is_null()).then(|| row(raw.strides));
        let data = raw.data.cast::<u8>().wrapping_add(raw.byte_offset as usize).cast();
        // SAFETY: the caller of this function guarantees it.
        Ok(unsafe { View::from_raw(data, raw.dtype, row(raw.shape), strides) })
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The elements in row-major order. `ERROR_DTYPE` if `T` is not their type, `ERROR_ARGUMENT` if
    /// they are not contiguous.
    pub fn values<T: Element>(&self) -> Result<&'a [T]> {
        let (data, length) = packed::<T>(self)?;
        // SAFETY: every constructor guarantees that the elements are readable for `'a`.
        Ok(unsafe { std::slice::from_raw_parts(data, length) })
    }

    /// The bytes of the elements; `ERROR_ARGUMENT` if they are not contiguous.
    pub fn bytes(&self) -> Result<&'a [u8]> {
        let bytes =
            count(&self.shape)? * usize::from(self.dtype.bits / 8) * usize::from(self.dtype.lanes);
        let plain = View { dtype: u8::DTYPE, ..self.clone() };
        let (data, _) = packed::<u8>(&plain)?;
        // SAFETY: as for `values`.
        Ok(unsafe { std::slice::from_raw_parts(data, bytes) })
    }

    /// A writable view of the same elements, for an output that `Module::call` receives.
    ///
    /// # Safety
    /// The elements must be writable, and not used otherwise while the new view exists.
    pub unsafe fn assume_mut(&self) -> ViewMut<'a> {
        ViewMut { view: self.clone(), borrowed: PhantomData }
    }

    pub(crate) fn raw(&self) -> RawTensor {
        RawTensor {
            data: self.data.cast_mut(),
            device_type: 1,
            device_id: 0,
            ndim: self.shape.len() as i32,
            dtype: self.dtype,
            shape: self.shape.as_ptr(),
            strides: self.strides.as_ref().map_or(std::ptr::null(), |s| s.as_ptr()),
            byte_offset: 0,
        }
    }
}

impl<'a> ViewMut<'a> {
    /// As `View::new`.
    pub fn new<T: Element>(elements: &'a mut [T], shape: &[i64]) -> Result<ViewMut<'a>> {
        check_length(shape, elements.len())?;
        // SAFETY: the slice has all elements of the shape, and is borrowed exclusively.
        Ok(unsafe { ViewMut::from_raw(elements.as_mut_ptr().cast(), T::DTYPE, shape, None) })
    }

    /// As `View::strided`.
    pub fn strided<T: Element>(
        elements: &'a mut [T],
        shape: &[i64],
        strides: &[i64],
        start: usize,
    ) -> Result<ViewMut<'a>> {
        check_strides(shape, strides, start, elements.len())?;
        let first = elements.as_mut_ptr().wrapping_add(start).cast();
        // SAFETY: the slice has all elements of the view, and is borrowed exclusively.
        Ok(unsafe { ViewMut::from_raw(first, T::DTYPE, shape, Some(strides)) })
    }

    /// As `View::values`, to be written.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        let (data, length) = packed::<T>(&self.view)?;
        // SAFETY: as for `View::values`, and borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(data.cast_mut(), length) })
    }

    /// As `View::from_raw`.
    ///
    /// # Safety
    /// As there; the elements must also be writable, and not used otherwise for `'a`.
    pub unsafe fn from_raw(
        data: *mut c_void,
        dtype: DType,
        shape: &[i64],
        strides: Option<&[i64]>,
    ) -> ViewMut<'a> {
        let view = unsafe { View::from_raw(data, dtype, shape, strides) };
        ViewMut { view, borrowed: PhantomData }
    }

    pub(crate) fn raw(&self) -> RawTensor {
        self.view.raw()
    }
}

/// A tensor that owns contiguous row-major elements in 64-byte aligned memory.
pub struct Tensor {
    dtype: DType,
    shape: Vec<i64>,
    count: usize,
    layout: Layout,
    data: NonNull<u8>,
}

// SAFETY: a tensor owns plain numbers.
unsafe impl Send for Tensor {}
unsafe impl Sync for Tensor {}

impl Tensor {
    /// A tensor of zeros. `ERROR_SHAPE` for a negative size or too many elements; aborts if memory
    /// is short, as `Vec` does.
    pub fn zeros(dtype: DType, shape: &[i64]) -> Result<Tensor> {
        let count = count(shape)?;
        let bytes = count * usize::from(dtype.bits / 8) * usize::from(dtype.lanes);
        let layout = Layout::from_size_align(bytes.max(1), 64).map_err(|_| {
            Error::new(error::ERROR_SHAPE, "a tensor cannot have that many elements")
        })?;
        // SAFETY: the size is not 0.
        let data = NonNull::new(unsafe { alloc_zeroed(layout) });
        let data = data.unwrap_or_else(|| handle_alloc_error(layout));
        Ok(Tensor { dtype, shape: shape.to_vec(), count, layout, data })
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    fn check<T: Element>(&self) -> Result<()> {
        if T::DTYPE == self.dtype {
            return Ok(());
        }
        Err(Error::new(error::ERROR_DTYPE, "the tensor holds elements of another type"))
    }

    /// The elements in row-major order; `ERROR_DTYPE` if `T` is not their type.
    pub fn values<T: Element>(&self) -> Result<&[T]> {
        self.check::<T>()?;
        // SAFETY: there are `count` initialised elements of that type.
        Ok(unsafe { std::slice::from_raw_parts(self.data.as_ptr().cast(), self.count) })
    }

    /// As `values`, to be written.
    pub fn values_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check::<T>()?;
        // SAFETY: as `values`, and borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().cast(), self.count) })
    }

    pub fn view(&self) -> View<'_> {
        // SAFETY: the tensor has all its elements.
        unsafe { View::from_raw(self.data.as_ptr().cast(), self.dtype, &self.shape, None) }
    }

    pub fn view_mut(&mut self) -> ViewMut<'_> {
        // SAFETY: the same, and borrowed exclusively.
        unsafe { ViewMut::from_raw(self.data.as_ptr().cast(), self.dtype, &self.shape, None) }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.data.as_ptr(), self.layout) }
    }
}
