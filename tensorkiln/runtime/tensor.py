"""Tensor: a NumPy array on a device. Also DLPack descriptions of the tensors that callers pass."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from tensorkiln.base.element_types import CODE_NAMES, NARROW_TYPES, PARAMETER_TYPES, program_type
from tensorkiln.base.packages import missing_package
from tensorkiln.runtime.actual_types import is_a, shown
from tensorkiln.runtime.device import CPU, CUDA, Device, cpu
from tensorkiln.runtime.failures import (
    ArgumentTypeError,
    ArgumentValueError,
    WorkspaceMemoryError,
)

ALIGN = 64
LARGE = 65536  # bytes; smaller results are not aligned: that costs more time than it saves

Array = NDArray[Any]


def dtype_named(name: DTypeLike) -> np.dtype[Any]:
    """NumPy's dtype for a name or type; bfloat16 and types of fewer bits are of package ml_dtypes.

    Raises ArgumentTypeError: code `dtype` for an unknown one, `missing-package` for one of that
    package where it is not installed.
    """
    try:
        return np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        pass
    try:
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(name)))
        return dtype
    except ImportError:
        row = PARAMETER_TYPES.get(str(name))
        if row is not None and not row.in_numpy:
            missing = missing_package("ml_dtypes", f"element type {name!s:.80}")
            raise ArgumentTypeError(
                missing.message, code="missing-package", hint=missing.hint
            ) from None
        raise ArgumentTypeError(f"unknown element type {name!r:.80}", code="dtype") from None
    except (AttributeError, TypeError, ValueError):
        raise ArgumentTypeError(f"unknown element type {name!r:.80}", code="dtype") from None


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An uninitialised row-major array whose data is aligned to 64 bytes. WorkspaceMemoryError
    without memory for it."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    try:
        raw = np.empty(count + ALIGN, np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: more than an address space
        message = f"out of memory for {dtype} {list(shape)}"
        raise WorkspaceMemoryError(message, code="out-of-memory") from error
    start = -raw.ctypes.data % ALIGN
    return np.ndarray(tuple(shape), dtype, raw, start)


def output_maker(nbytes: int) -> Callable[[tuple[int, ...], np.dtype[Any]], Array]:
    """The allocator `f(shape, dtype)` for results of `nbytes` bytes: aligned from LARGE on."""
    return np.empty if nbytes < LARGE else aligned_empty


_HOST = cpu()  # shared: creating one takes longer than the rest of creating a tensor


class Tensor(NDArrayOperatorsMixin):
    """A tensor in host memory. Exchanges data with NumPy, torch and others without copies.

    It behaves as `numpy()`, the array that shares its memory: operators, indexing, NumPy's
    functions and the methods of arrays accept it and return NumPy arrays.
    """

    __slots__ = ("_array", "device")

    def __init__(self, array: Array, device: Device | None = None):
        self._array = array
        self.device = device or _HOST

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions."""
        return self._array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type as a NumPy dtype; `tensor.dtype == "float32"` works."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    def numpy(self) -> Array:
        """The data as a NumPy array that shares this tensor's memory."""
        return self._array

    def copyto(self, target: Any) -> Any:
        """Copy the elements to `target`, a tensor of the same shape and type on any device, and
        return it. Raises ArgumentTypeError and ArgumentValueError for any other target."""
        copyfrom = getattr(type(target), "copyfrom", None)
        if copyfrom is not None:
            copyfrom(target, self)
            return target
        array = as_array(target, numbers=False)
        if array is None:
            raise ArgumentTypeError(
                f"copyto: expected a tensor, received {type(target).__name__}",
                code="argument-kind",
                hint="tk.nd.array(x, device) copies to a device",
            )
        if array.shape != self.shape or array.dtype != self.dtype or not array.flags.writeable:
            raise ArgumentValueError(
                f"copyto: expected a writable tensor, {self.dtype} {list(self.shape)}, received "
                f"{array.dtype} {list(array.shape)}",
                code="shape-mismatch",
            )
        np.copyto(array, self._array)
        return target

    def __dlpack__(self, **options: Any) -> object:
        """A DLPack capsule that shares this tensor's memory."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and index."""
        return (self.device.dlpack_type, self.device.index)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """Called by `np.asarray`; shares memory unless `dtype` differs or `copy` is True."""
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        """Apply a ufunc or operator to the arrays; with `out`, return the objects given there."""
        if out:
            options["out"] = _arrays(out)
        arrays = getattr(ufunc, method)(*_arrays(inputs), **_arrays(options))
        if len(out) == 1:
            return out[0]
        return (
            tuple(m if o is None else o for o, m in zip(out, arrays, strict=True))
            if out
            else arrays
        )

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Apply another function of NumPy, such as `np.concatenate`, to the arrays."""
        return function(*_arrays(args), **_arrays(options))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Any other public attribute of the array: `sum`, `T`, `tolist`, ..."""
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.numpy(), name)

    def __pow__(self, exponent: Any) -> Any:
        """The array's own `**`, which for some exponents is not np.power: `x ** 2` is np.square."""
        return self.numpy() ** _arrays(exponent)

    def __getitem__(self, key: Any) -> Any:
        """Index the array: a view of the memory, or an element."""
        return self.numpy()[_arrays(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into the memory."""
        self.numpy()[_arrays(key)] = _arrays(value)

    def __len__(self) -> int:
        """Size of the first dimension."""
        return len(self.numpy())

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the first dimension."""
        return iter(self.numpy())

    def __contains__(self, value: object) -> bool:
        """Whether any element equals `value`."""
        return _arrays(value) in self.numpy()

    def __bool__(self) -> bool:
        """The truth of the only element; ValueError for several, as with arrays."""
        return bool(self.numpy())

    def __int__(self) -> int:
        """The only element, truncated; TypeError for several, as with arrays."""
        return int(self.numpy())

    def __float__(self) -> float:
        """The only element; TypeError for several."""
        return float(self.numpy())

    def __complex__(self) -> complex:
        """The only element; TypeError for several."""
        return complex(self.numpy())

    def __index__(self) -> int:
        """The only element, of an integer tensor without dimensions; TypeError for others."""
        return operator.index(self.numpy())

    def __format__(self, spec: str) -> str:
        """Format a tensor without dimensions by `spec`; without `spec`, as str()."""
        return format(self.numpy(), spec) if spec else str(self)

    def __repr__(self) -> str:
        """Shape, type, device and values."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"Tensor({shape} {self.dtype} on {self.device})\n{self.numpy()!r}"


def _arrays(value: Any) -> Any:
    """Replace Tensors by their arrays, also in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.numpy()
    if type(value) in (tuple, list):
        return type(value)(map(_arrays, value))
    return {k: _arrays(v) for k, v in value.items()} if type(value) is dict else value


class DLTensor(ctypes.Structure):
    """`DLTensor` of DLPack, `kiln_tensor` in kiln.h; strides count elements."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_CODES = {"i": 0, "u": 1, "f": 2}  # of NumPy's kinds, also for types that we do not have
_NAMES = {(t.code, t.bits): t.name for t in PARAMETER_TYPES.values() if t.bits >= 8}


def dtype_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """DLPack's code and bits of an element type; ArgumentTypeError (code `dtype-mismatch`) for one
    that it does not have, or packs, as those of fewer than 8 bits."""
    row = PARAMETER_TYPES.get(dtype.name)
    if row is not None and row.bits >= 8 and dtype.isnative:
        return row.dlpack
    if dtype.kind not in _CODES or not dtype.isnative:
        hint = f"as bytes: x.view({row.storage!r})" if is_byte_wise(dtype.name) and row else ""
        raise ArgumentTypeError(
            f"arrays of {dtype} cannot be passed", code="dtype-mismatch", hint=hint
        )
    return _CODES[dtype.kind], dtype.itemsize * 8


def dtype_of_code(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Inverse of `dtype_code`; ArgumentTypeError (code `dtype`) for what NumPy does not have."""
    if lanes == 1 and (code, bits) in _NAMES:
        return dtype_named(_NAMES[code, bits])
    if lanes != 1 or code not in _CODES.values() or bits % 8:
        raise ArgumentTypeError(
            f"unknown element type of DLPack: code {code}, {bits} bits, {lanes} lanes", code="dtype"
        )
    return dtype_named(f"{CODE_NAMES[code]}{bits}")


# Raises what PyCapsule_GetPointer raises: pythonapi checks for a pending exception.
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
capsule_pointer.restype = ctypes.c_void_p


def describe_array(array: Array, *, writable: bool = False) -> tuple[DLTensor, Array]:
    """A DLTensor for an array, even one that NumPy does not export (read-only, bfloat16), and the
    array that must outlive it: the given one, or a contiguous copy if a stride is not a multiple
    of the element size.

    Raises ArgumentTypeError for an unsupported dtype, and for such strides if `writable`.
    """
    dtype = array.dtype
    code, bits = dtype_code(dtype)
    steps = zip(array.shape, array.strides, strict=True)
    if any(stride % dtype.itemsize for size, stride in steps if size > 1):
        if writable:
            raise ArgumentTypeError(
                "an array whose strides are not multiples of the element size cannot be an output",
                code="strides",
            )
        array = np.ascontiguousarray(array)
    sizes = ctypes.c_int64 * array.ndim
    strides = sizes(*(stride // dtype.itemsize for stride in array.strides))
    view = DLTensor(
        array.ctypes.data,
        CPU,
        0,
        array.ndim,
        code,
        bits,
        1,
        sizes(*array.shape),
        strides,
        0,
    )
    return view, array


class DescribedTensor:
    """A tensor of ours outside of the host's memory, which keeps a DLTensor of itself: a capsule of
    DLPack, made for each call, would take longer than the call."""

    __slots__ = ()

    def described(self, stream: int | None) -> int:
        """The address of a DLTensor that lives as long as the tensor. Work on it that is queued is
        done before what `stream` does next; None: it is done now."""
        raise NotImplementedError


def as_array(value: Any, *, numbers: bool = True) -> Array | None:
    """A Tensor or NumPy array as a plain ndarray (subclasses may override `shape` and others); None
    for everything else. With `numbers`, NumPy's scalars become arrays without dimensions."""
    if is_a(value, Tensor):
        value = value.numpy()
    if is_a(value, np.ndarray) or (numbers and is_a(value, np.generic)):
        return np.asarray(value)
    return None


def is_byte_wise(dtype: str) -> bool:
    """Whether an element type of fewer than 8 bits: a parameter of it takes bytes."""
    return dtype in NARROW_TYPES and NARROW_TYPES[dtype].bits < 8


def as_passed(value: Any, dtype: str, label: str) -> Any:
    """`value` as what a parameter of element type `dtype` takes: an array of fewer than 8 bits as
    the array of its bytes, which shares its memory; others as they are.

    Raises ArgumentTypeError (code `dtype-mismatch`) for an array of another type, if either has
    fewer bits. `label` names the argument.
    """
    if isinstance(value, DescribedTensor):  # its type is of 8 bits or more
        return value
    array = as_array(value)
    if array is None or not (is_byte_wise(dtype) or is_byte_wise(array.dtype.name)):
        return value
    if array.dtype.name == dtype:
        return array.view(program_type(dtype))
    stored = program_type(dtype) if is_byte_wise(dtype) else ""
    if array.dtype.name == stored:
        return value
    bytes_too = f" or bytes of {stored}" if stored else ""
    raise ArgumentTypeError(
        f"{label} must be {dtype}{bytes_too}, received {array.dtype}", code="dtype-mismatch"
    )


DEFAULT_STREAM = 1  # of DLPack: CUDA's default stream, for which streams of our own wait


def exported(value: Any, stream: int = DEFAULT_STREAM) -> object:
    """The DLPack capsule of an object. Work on a CUDA tensor that is queued in whatever stream is
    done before what `stream` does next."""
    dlpack_device = getattr(value, "__dlpack_device__", None)
    if dlpack_device is not None and int(dlpack_device()[0]) == CUDA:
        return value.__dlpack__(stream=stream)
    return value.__dlpack__()


def view_of(
    value: object, label: str, *, writable: bool = False, stream: int | None = None
) -> tuple[int, object]:
    """The address of a DLTensor for `value`, and an object that keeps it alive during the call.
    `stream`, for a parameter that lies on a device: where it is used.

    `label` names the argument in errors: `"main: input 'x'"`. Accepts anything with `__dlpack__`,
    NumPy arrays that NumPy does not export and, unless `writable`, NumPy's scalars. Raises
    ArgumentTypeError for other objects, ArgumentValueError for a read-only array if `writable` and
    for an export that fails (code `dlpack`).
    """
    if isinstance(value, DescribedTensor):
        return value.described(stream), value
    array = as_array(value, numbers=not writable)
    if array is not None:
        if writable and not array.flags.writeable:
            raise ArgumentValueError(f"{label} is read-only and cannot be filled", code="read-only")
        view, owner = describe_array(array, writable=writable)
        return ctypes.addressof(view), (view, owner)
    export = getattr(value, "__dlpack__", None)
    if export is None:
        raise ArgumentTypeError(
            f"{label} must be a tensor (NumPy, torch, or anything with DLPack), "
            f"received {type(value).__name__}",
            code="argument-kind",
            hint=tensor_hint(value),
        )
    try:
        capsule = export() if stream is None else exported(value, stream)
        return capsule_pointer(capsule, b"dltensor"), capsule
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentValueError(
            f"{label} ({type(value).__name__}) cannot be exported by DLPack: {error}", code="dlpack"
        ) from error


def tensor_hint(value: object) -> str:
    """A hint what to pass instead of a Python number or list, which have no element type."""
    if is_a(value, bool, int, float):
        return (
            f"np.float32({shown(value)}), or another of NumPy's numbers: they have an element type"
        )
    return 'np.array(..., "float32")' if is_a(value, list, tuple) else ""


def view_of_set(items: Sequence[object], label: str) -> tuple[int, object]:
    """As `view_of`, for a vector of the data addresses of several tensors, which are written to.

    Raises ArgumentValueError (code `strides`) for a tensor that is not contiguous.
    """
    addresses: list[int] = []
    owners: list[object] = []
    for i, item in enumerate(items):
        address, keeps = view_of(item, f"{label}, item {i},", writable=True)
        t = DLTensor.from_address(address)
        step = 1
        for d in reversed(range(t.ndim)):
            if t.strides and t.shape[d] != 1 and t.strides[d] != step:
                raise ArgumentValueError(f"{label}, item {i}, has gaps", code="strides")
            step *= t.shape[d]
        addresses.append((t.data or 0) + t.byte_offset)
        owners.append(keeps)
    view, array = describe_array(np.array(addresses, np.uint64))
    view.code = 3  # kDLOpaqueHandle of DLPack
    return ctypes.addressof(view), (view, array, owners)
