"""Convert Python objects to values of a library and back, for outer functions and callbacks."""

from __future__ import annotations

import ctypes
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorkiln.base.element_types import CODE_NAMES
from tensorkiln.base.errors import UserError
from tensorkiln.runtime.actual_types import is_a, text_bytes
from tensorkiln.runtime.device import CPU
from tensorkiln.runtime.failures import (
    CALLBACK_FAILED,
    ArgumentTypeError,
    ArgumentValueError,
    CallDepthError,
)
from tensorkiln.runtime.native import (
    NativeLibrary,
    Value,
    calling_back,
    lingering,
    unload_lingering,
)
from tensorkiln.runtime.numbers import BOOL, FLOAT, INT, TENSOR, UINT, put_number
from tensorkiln.runtime.raised import need_room, passing, tell_raised
from tensorkiln.runtime.tensor import (
    Array,
    DLTensor,
    Tensor,
    as_array,
    capsule_pointer,
    dtype_code,
    dtype_named,
    dtype_of_code,
)

# Further kinds of enum kiln_kind in kiln.h
NONE, C_STRING, SMALL_STRING, SMALL_BYTES = 0, 8, 11, 12
STRING, BYTES, FUNCTION, SHAPE, TENSOR_OBJECT, TUPLE, LIST = 65, 66, 68, 69, 70, 71, 75
_MOST_DIMENSIONS = 64  # NPY_MAXDIMS
_HEADER = 24  # bytes before the DLTensor in a tensor object

_set_capsule_name = ctypes.pythonapi.PyCapsule_SetName
_set_capsule_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
_set_capsule_name.restype = ctypes.c_int
_TAKEN = b"used_dltensor"  # global: the capsule keeps its address

_Pointer = ctypes.POINTER(Value)
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _Pointer, ctypes.c_int32, _Pointer)
_DESTROY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

# Context number of a function value -> its library and the Python function.
_functions: dict[int, tuple[weakref.ref[NativeLibrary], Callable[..., Any]]] = {}
_numbers = itertools.count(1)


class FunctionValue:
    """A function value that a library returned or passed to a callback; holds a reference to it."""

    def __init__(self, library: NativeLibrary, value: Value):
        library.dll.kiln_retain(ctypes.byref(value))
        self.library = library
        self.value = Value(value.kind, value.small, value.payload)
        weakref.finalize(self, _release, library, self.value)

    def __call__(self, *arguments: object) -> Any:
        """Call it with tensors, numbers, strings, tuples, functions."""
        return call_with_values(self.library, arguments, self._call)

    def _call(self, arguments: object, count: int, result: object) -> int:
        call = self.library.dll.kiln_call_value
        return int(call(ctypes.byref(self.value), arguments, count, result))

    def __repr__(self) -> str:
        """The file name of its library."""
        return f"<function of {self.library.path.name}>"


def _release(library: NativeLibrary, value: Value) -> None:
    library.dll.kiln_release(ctypes.byref(value))
    if lingering:
        unload_lingering()


def call_with_values(
    library: NativeLibrary,
    arguments: Sequence[object],
    call: Callable[[object, int, object], int],
    label: str = "a function",
) -> Any:
    """Convert the arguments, run `call(values, count, result)`, which returns a code of enum
    kiln_code, and return the result as a Python object. `label` names the function in errors."""
    with library.using:
        return _call_with_values(library, arguments, call, label)


def _call_with_values(
    library: NativeLibrary,
    arguments: Sequence[object],
    call: Callable[[object, int, object], int],
    label: str,
) -> Any:
    values = (Value * max(1, len(arguments)))()
    result = Value()
    try:
        for i, argument in enumerate(arguments):
            _argument_to_value(library, argument, values[i], f"{label}: argument {i}")
        library.check(call(values, len(arguments), ctypes.byref(result)))
        return from_value(library, result)
    except ctypes.ArgumentError as error:  # how ctypes reports a RecursionError
        if "RecursionError" not in str(error):
            raise
        raise RecursionError(str(error)) from None
    finally:
        for value in values:
            library.dll.kiln_release(ctypes.byref(value))
        library.dll.kiln_release(ctypes.byref(result))


# -- Python -> library ----------------------------------------------------------------------------


def _argument_to_value(library: NativeLibrary, source: object, value: Value, label: str) -> None:
    """As `to_value`; CallDepthError for a list that is nested too deeply, or contains itself."""
    try:
        to_value(library, source, value, label)
    except (RecursionError, ctypes.ArgumentError) as error:
        if not is_a(source, tuple, list) or "RecursionError" not in f"{error!r}":
            raise
        message = f"{label} is nested too deeply, or the stack is used up"
        raise CallDepthError(message, code="call-depth") from error


def to_value(library: NativeLibrary, source: Any, value: Value, label: str) -> None:
    """Write a Python object into `value`, which then owns a reference to any object in it.

    `label` names the argument in errors. Raises ArgumentTypeError for an object of another kind.
    """
    dll = library.dll
    if source is None:
        value.kind = NONE
    elif is_a(source, bool):
        value.kind, value.payload.integer = BOOL, int(source)
    elif is_a(source, int):
        put_number(value, source, label, "uint64" if source > 0 else "int64")
    elif is_a(source, float) and not is_a(source, np.generic):
        value.kind, value.payload.real = FLOAT, float.__float__(source)
    elif is_a(source, str):
        data = text_bytes(source, label)
        library.check(dll.kiln_make_string(data, len(data), ctypes.byref(value)))
    elif is_a(source, tuple, list):
        _tuple_to_value(library, tuple(source), value, label)
    elif is_a(source, Tensor, np.ndarray, np.generic) or hasattr(source, "__dlpack__"):
        _tensor_to_value(library, source, value, label)
    elif is_a(source, FunctionValue):
        dll.kiln_retain(ctypes.byref(source.value))
        ctypes.pointer(value)[0] = source.value
    elif callable(source):
        make_function(library, source, value)
    else:
        raise ArgumentTypeError(
            f"{label}: {type(source).__name__} cannot be passed to a library",
            code="argument-kind",
            hint="tensors, numbers, strings, tuples of them, and functions can",
        )


def _tuple_to_value(
    library: NativeLibrary, source: Sequence[object], value: Value, label: str
) -> None:
    items = (Value * max(1, len(source)))()
    try:
        for i, item in enumerate(source):
            to_value(library, item, items[i], f"{label}[{i}]")
        library.check(library.dll.kiln_make_tuple(items, len(source), ctypes.byref(value)))
    finally:
        for item in items:
            library.dll.kiln_release(ctypes.byref(item))


def _tensor_to_value(library: NativeLibrary, source: Any, value: Value, label: str) -> None:
    """Share the memory by DLPack; copy what NumPy does not export (read-only, bfloat16)."""
    array = as_array(source)  # NumPy's scalars become arrays without dimensions
    try:
        capsule = (source if array is None else array).__dlpack__()
        managed = capsule_pointer(capsule, b"dltensor")
    except (AttributeError, BufferError, TypeError, ValueError, RuntimeError) as error:
        if array is None:
            raise ArgumentTypeError(
                f"{label} ({type(source).__name__}) cannot be exported by DLPack: {error}",
                code="dlpack",
            ) from error
        _copy_to_value(library, array, value)
        return
    library.check(library.dll.kiln_take_dlpack(managed, ctypes.byref(value)))
    _set_capsule_name(capsule, _TAKEN)


def _copy_to_value(library: NativeLibrary, array: Array, value: Value) -> None:
    code, bits = dtype_code(array.dtype)
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    packed = code | bits << 8 | 1 << 16  # kiln_dtype: code, bits, lanes
    make = library.dll.kiln_make_tensor
    library.check(make(shape, array.ndim, packed, ctypes.byref(value)))
    if array.size:
        np.copyto(_array_of(library, value), array)


# -- library -> Python ----------------------------------------------------------------------------


def from_value(library: NativeLibrary, value: Value) -> Any:
    """A Python object for a value; the caller keeps its reference to the value.

    A tensor shares the value's memory and holds a reference of its own; a bare kiln_tensor, which
    is valid during the call only, is copied.
    """
    kind, payload = value.kind, value.payload
    if kind == NONE:
        return None
    if kind in (INT, UINT):
        return int(payload.integer) % (1 << 64) if kind == UINT else int(payload.integer)
    if kind == BOOL:
        return bool(payload.integer)
    if kind == FLOAT:
        return float(payload.real)
    if kind == TENSOR_OBJECT:
        return Tensor(_array_of(library, value))
    if kind == TENSOR:
        return Tensor(array_at(payload.pointer).copy())
    if kind in (SMALL_STRING, STRING, C_STRING, SMALL_BYTES, BYTES):
        size = ctypes.c_int64()
        address = library.dll.kiln_string_of(ctypes.byref(value), ctypes.byref(size))
        data = ctypes.string_at(address, size.value)
        return data if kind in (SMALL_BYTES, BYTES) else data.decode(errors="surrogateescape")
    if kind in (TUPLE, LIST):
        count = ctypes.c_int()
        items = library.dll.kiln_items_of(ctypes.byref(value), ctypes.byref(count))
        elements = ctypes.cast(items, ctypes.POINTER(Value))
        return tuple(from_value(library, elements[i]) for i in range(count.value))
    if kind == SHAPE:
        count = ctypes.c_int()
        sizes = library.dll.kiln_shape_of(ctypes.byref(value), ctypes.byref(count))
        numbers = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
        return tuple(int(numbers[i]) for i in range(count.value))
    if kind == FUNCTION:
        return FunctionValue(library, value)
    raise UserError(f"a value of kind {kind} has no Python form", code="value-kind")


def lent_value(value: Value) -> Any:
    """A kernel's argument: a number, or a writable Tensor whose memory is valid during the call."""
    if value.kind == TENSOR:
        return Tensor(array_at(value.payload.pointer))
    return int(value.payload.integer)


def _array_of(library: NativeLibrary, value: Value) -> Array:
    """An array that shares a tensor object's memory and holds a reference to it."""
    tensor = DLTensor.from_address(value.payload.pointer + _HEADER)
    return _view(tensor, (library, Value(value.kind, value.small, value.payload)))


def array_at(address: int) -> Array:
    """An array over the memory of the DLTensor at `address`; the caller keeps that memory alive.
    Raises ArgumentTypeError or ArgumentValueError for an invalid DLTensor."""
    return _view(DLTensor.from_address(address), None)


def _view(tensor: DLTensor, owner: tuple[NativeLibrary, Value] | None) -> Array:
    """An array over a tensor's memory that holds a reference to `owner`, if there is one.

    Tensors of hosts and loaders may be invalid: raises ArgumentTypeError or ArgumentValueError,
    with the messages of crt/tensor.c.
    """
    shape, dtype = _shape(tensor), _dtype(tensor)
    try:
        return _array(tensor, shape, dtype, owner)
    except (OverflowError, ValueError) as error:  # of the sizes; the memory is not accessed
        raise ArgumentValueError(
            f"a tensor of shape {list(shape)} cannot be a NumPy array: {error}",
            code="shape-mismatch",
        ) from error


def _shape(tensor: DLTensor) -> tuple[int, ...]:
    if tensor.device_type != CPU:
        message = "a tensor must be in CPU memory (device type 1), received device type "
        raise ArgumentValueError(f"{message}{tensor.device_type}", code="device-mismatch")
    if not 0 <= tensor.ndim <= _MOST_DIMENSIONS:
        raise ArgumentValueError(
            f"a tensor with {tensor.ndim} dimensions, the limit is {_MOST_DIMENSIONS}",
            code="rank-mismatch",
        )
    if tensor.ndim and not tensor.shape:
        message = "a tensor has no shape: its address is null"
        raise ArgumentValueError(message, code="null-pointer")
    shape = tuple(tensor.shape[d] for d in range(tensor.ndim))
    for d, size in enumerate(shape):
        if size < 0:
            message = f"a tensor of negative size {size} in dimension {d}"
            raise ArgumentValueError(message, code="shape-mismatch")
    if not tensor.data and math.prod(shape):
        message = "a tensor has no data: its address is null"
        raise ArgumentValueError(message, code="null-pointer")
    return shape


def _array(
    tensor: DLTensor,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    owner: tuple[NativeLibrary, Value] | None,
) -> Array:
    if math.prod(shape) == 0:
        return np.empty(shape, dtype)
    strides = _byte_strides(tensor, shape, dtype.itemsize)
    spans = [stride * (size - 1) for stride, size in zip(strides, shape, strict=True)]
    below = -sum(span for span in spans if span < 0)
    above = sum(span for span in spans if span > 0)
    start = tensor.data + tensor.byte_offset - below
    memory: Any = (ctypes.c_uint8 * (below + above + dtype.itemsize)).from_address(start)
    if owner is not None:  # last: below, only MemoryError can leak it
        owner[0].dll.kiln_retain(ctypes.byref(owner[1]))
        weakref.finalize(memory, _release, *owner)
    return np.ndarray(shape, dtype, memory, below, strides)


def _byte_strides(tensor: DLTensor, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if tensor.strides:
        return tuple(tensor.strides[d] * size for d in range(tensor.ndim))
    return tuple(size * math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _dtype(tensor: DLTensor) -> np.dtype[Any]:
    if tensor.code not in CODE_NAMES:
        return dtype_of_code(tensor.code, tensor.bits, tensor.lanes)
    name = f"{CODE_NAMES[tensor.code]}{tensor.bits}"
    dtype = np.dtype(np.bool_) if tensor.code == 6 else dtype_named(name)
    if dtype.itemsize * 8 != tensor.bits or tensor.lanes != 1:  # elements below a byte, or vectors
        message = f"a tensor of {tensor.lanes} x {name} in each element"
        raise ArgumentTypeError(message, code="dtype-mismatch")
    return dtype


# -- Python functions -------------------------------------------------------------------------


def _call_function(context: int, arguments: Any, count: int, result: Any) -> int:
    """The C callback of every function value that Python made. C cannot propagate an exception: it
    is kept, and `raised_in_callback` raises it again."""
    try:
        need_room()
    except RecursionError as error:
        passing.error, passing.sentence = error, b""
        return CALLBACK_FAILED
    reference, function = _functions[context]
    library = reference()
    if library is None:  # dropped; another library still holds this function
        return CALLBACK_FAILED
    entry = library.handle, threading.get_ident()
    calling_back.append(entry)
    try:
        values = [from_value(library, arguments[i]) for i in range(count)]
        to_value(library, function(*values), result[0], "the result of a callback")
        return 0
    except BaseException as error:
        tell_raised(library.dll, error)
        return CALLBACK_FAILED
    finally:
        calling_back.remove(entry)


def _forget_function(context: int) -> None:
    _functions.pop(context, None)


_invoke = _CALLBACK(_call_function)
_destroy = _DESTROY(_forget_function)


def make_function(library: NativeLibrary, function: Callable[..., Any], value: Value) -> None:
    """Write a function value that calls `function` into `value`; it owns a reference to it."""
    number = next(_numbers)
    _functions[number] = (weakref.ref(library), function)
    code = library.dll.kiln_make_function(_invoke, number, _destroy, ctypes.byref(value))
    if code:
        _forget_function(number)
    library.check(code)
