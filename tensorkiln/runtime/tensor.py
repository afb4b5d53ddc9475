"""Tensor: a NumPy array with an aligned buffer, and DLPack views of whatever callers bring."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike, NDArray

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.runtime.device import CPU, Device, cpu
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError
from tensorkiln.runtime.given import is_a, shown

ALIGN = 64
LARGE = 65536  # bytes; below this an unaligned result costs less than aligning it

Array = NDArray[Any]


def dtype_named(name: DTypeLike) -> np.dtype[Any]:
    """NumPy's dtype; `bfloat16` and the 8-bit floats come from package ml_dtypes."""
    try:
        return np.dtype(name)
    except (TypeError, ValueError, SyntaxError):
        pass
    try:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(name)))
        return found
    except (ImportError, AttributeError, TypeError, ValueError):
        raise ArgumentTypeError(f"unknown element type {name!r:.80}", code="dtype") from None


def aligned_empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An uninitialised row-major array whose data starts at a multiple of 64."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    raw = np.empty(count + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return np.ndarray(tuple(shape), dtype, raw, start)


def output_maker(nbytes: int) -> Callable[[tuple[int, ...], np.dtype[Any]], Array]:
    """What makes room for a result of that size; aligned where that is worth its price."""
    return np.empty if nbytes < LARGE else aligned_empty


_HOST = cpu()  # one for all: making it takes longer than the rest of making a tensor


class Tensor(NDArrayOperatorsMixin):
    """A tensor in host memory. Exchanges data with NumPy, torch and others without copies.

    It behaves as the array that shares its memory, `numpy()`: operators, indices, NumPy's functions
    and an array's methods take it and give arrays.
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
        """The element type; equal to its name, e.g. `"float32"`."""
        return self._array.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._array.ndim

    def numpy(self) -> Array:
        """The data as a NumPy array that shares this tensor's memory."""
        return self._array

    def __dlpack__(self, **options: Any) -> object:
        """A DLPack capsule that shares this tensor's memory."""
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device numbers."""
        return (self.device.dlpack_type, self.device.index)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> Array:
        """For `np.asarray`; shares memory unless the type differs."""
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **options: Any
    ) -> Any:
        """NumPy's operators; with `out` the result is what was given there."""
        if out:
            options["out"] = _arrays(out)
        made = getattr(ufunc, method)(*_arrays(inputs), **_arrays(options))
        if len(out) == 1:
            return out[0]
        return tuple(m if o is None else o for o, m in zip(out, made, strict=True)) if out else made

    def __array_function__(
        self, function: Any, types: Any, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """NumPy's other functions."""
        return function(*_arrays(args), **_arrays(options))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What else an array has: `sum`, `T`, `tolist`, ..."""
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return getattr(self.numpy(), name)

    def __pow__(self, other: Any) -> Any:
        """Not np.power: arrays know better for some numbers."""
        return self.numpy() ** _arrays(other)

    def __getitem__(self, key: Any) -> Any:
        """As the array: views of the memory, or elements."""
        return self.numpy()[_arrays(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into the memory."""
        self.numpy()[_arrays(key)] = _arrays(value)

    def __len__(self) -> int:
        """Size of the first dimension."""
        return len(self.numpy())

    def __iter__(self) -> Iterator[Any]:
        """Over the first dimension."""
        return iter(self.numpy())

    def __contains__(self, value: object) -> bool:
        """Whether an element is equal."""
        return _arrays(value) in self.numpy()

    def __bool__(self) -> bool:
        """Of one element; ValueError for more, as with arrays. So do the next four."""
        return bool(self.numpy())

    def __int__(self) -> int:
        """The one element."""
        return int(self.numpy())

    def __float__(self) -> float:
        """The one element."""
        return float(self.numpy())

    def __complex__(self) -> complex:
        """The one element."""
        return complex(self.numpy())

    def __index__(self) -> int:
        """The one element, an integer."""
        return operator.index(self.numpy())

    def __format__(self, spec: str) -> str:
        """The one element in a format; without one the text of all."""
        return format(self.numpy(), spec) if spec else str(self)

    def __repr__(self) -> str:
        """Shape, type, device and values."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"Tensor({shape} {self.dtype} on {self.device})\n{self.numpy()!r}"


def _arrays(value: Any) -> Any:
    """Tensors as arrays, also in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return value.numpy()
    if type(value) in (tuple, list):
        return type(value)(map(_arrays, value))
    return {k: _arrays(v) for k, v in value.items()} if type(value) is dict else value


class DLTensor(ctypes.Structure):
    """DLPack's tensor; `kiln_tensor` in kiln.h."""

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


_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}

# Raises what PyCapsule_GetPointer raises: pythonapi checks for a pending exception.
capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
capsule_pointer.restype = ctypes.c_void_p


def describe_array(array: Array, *, writable: bool = False) -> tuple[DLTensor, Array]:
    """A DLTensor for an array that NumPy does not export itself (read-only, bfloat16), and the
    array that must stay alive meanwhile: the given one, or a copy where strides need one."""
    dtype = array.dtype
    if (dtype.kind not in _CODES and dtype.name != "bfloat16") or not dtype.isnative:
        raise ArgumentTypeError(f"arrays of {dtype} cannot be passed", code="dtype-mismatch")
    steps = zip(array.shape, array.strides, strict=True)
    if any(stride % dtype.itemsize for size, stride in steps if size > 1):
        if writable:
            raise ArgumentTypeError(
                "an array whose strides are no multiple of its elements cannot be filled",
                code="strides",
            )
        array = np.ascontiguousarray(array)
    sizes = ctypes.c_int64 * array.ndim
    code = 4 if dtype.name == "bfloat16" else _CODES[dtype.kind]
    strides = sizes(*(stride // dtype.itemsize for stride in array.strides))
    view = DLTensor(
        array.ctypes.data,
        CPU,
        0,
        array.ndim,
        code,
        dtype.itemsize * 8,
        1,
        sizes(*array.shape),
        strides,
        0,
    )
    return view, array


def as_array(value: Any, *, numbers: bool = True) -> Array | None:
    """A tensor of ours or NumPy's as an array of NumPy's own class, that of the caller may have
    other ideas of its shape; NumPy's scalars too, with `numbers`. None for everything else."""
    if is_a(value, Tensor):
        value = value.numpy()
    if is_a(value, np.ndarray) or (numbers and is_a(value, np.generic)):
        return np.asarray(value)
    return None


def view_of(value: object, what: str, *, writable: bool = False) -> tuple[int, object]:
    """The address of a DLTensor for `value`, and what keeps it alive during the call.

    `what` names the argument in errors: `"main: input 'x'"`. Takes everything with DLPack, NumPy
    arrays that have none, and NumPy's scalars where nothing is written.
    """
    array = as_array(value, numbers=not writable)
    if array is not None:
        if writable and not array.flags.writeable:
            raise ArgumentValueError(f"{what} is read-only and cannot be filled", code="read-only")
        view, kept = describe_array(array, writable=writable)
        return ctypes.addressof(view), (view, kept)
    export = getattr(value, "__dlpack__", None)
    if export is None:
        raise ArgumentTypeError(
            f"{what} must be a tensor (NumPy, torch, or anything with DLPack), "
            f"received {type(value).__name__}",
            code="argument-kind",
            hint=tensor_hint(value),
        )
    try:
        capsule = export()
        return capsule_pointer(capsule, b"dltensor"), capsule
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentValueError(
            f"{what} ({type(value).__name__}) does not give its data out: {error}", code="dlpack"
        ) from error


def tensor_hint(value: object) -> str:
    """What to pass instead of a number or a list, which have no element type."""
    if is_a(value, bool, int, float):
        return (
            f"np.float32({shown(value)}), or another of NumPy's numbers: they have an element type"
        )
    return 'np.array(..., "float32")' if is_a(value, list, tuple) else ""


def make_tensor(
    source: object, device: Device | None = None, dtype: DTypeLike | None = None
) -> Tensor:
    """A new aligned tensor with a copy of `source` (array, nested list, number, DLPack)."""
    if device is not None and device.kind != "cpu":
        raise UnsupportedError(f"no tensors on {device} yet", hint="tk.cpu()")
    if isinstance(source, Tensor):
        source = source.numpy()
    elif hasattr(source, "__dlpack__") and not isinstance(source, np.ndarray):
        source = np.from_dlpack(source)
    array = np.asarray(source, dtype=None if dtype is None else dtype_named(dtype))
    out = aligned_empty(array.shape, array.dtype)
    np.copyto(out, array)
    return Tensor(out, device)


def view_of_set(items: Sequence[object], what: str) -> tuple[int, object]:
    """As `view_of`, of the addresses of several tensors, which are written to."""
    addresses: list[int] = []
    kept: list[object] = []
    for i, item in enumerate(items):
        at, keeps = view_of(item, f"{what}, item {i},", writable=True)
        t = DLTensor.from_address(at)
        step = 1
        for d in reversed(range(t.ndim)):
            if t.strides and t.shape[d] != 1 and t.strides[d] != step:
                raise ArgumentValueError(f"{what}, item {i}, has gaps", code="strides")
            step *= t.shape[d]
        addresses.append((t.data or 0) + t.byte_offset)
        kept.append(keeps)
    view, array = describe_array(np.array(addresses, np.uint64))
    view.code = 3  # an opaque handle
    return ctypes.addressof(view), (view, array, kept)
