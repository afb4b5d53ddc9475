"""DeviceTensor: a tensor in the memory of a device. DLPack carries it in and out without a copy."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.runtime.actual_types import is_a
from tensorkiln.runtime.device import CPU, CUDA, OPENCL, Device, cuda, opencl
from tensorkiln.runtime.device_drivers import driver_of
from tensorkiln.runtime.device_memory import DeviceMemory
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError
from tensorkiln.runtime.tensor import (
    ALIGN,
    Array,
    DescribedTensor,
    DLTensor,
    Tensor,
    as_array,
    capsule_pointer,
    dtype_code,
    dtype_of_code,
    exported,
)


class DeviceTensor(DescribedTensor):
    """A row-major tensor in the memory of a device.

    `numpy()` copies it to the host, `copyto` to another tensor or device; functions of libraries
    take and return it where their parameters are on its device.
    """

    __slots__ = (
        "__weakref__",
        "_memory",
        "_offset",
        "_stream",
        "_view",
        "device",
        "dtype",
        "shape",
    )

    def __init__(
        self,
        memory: DeviceMemory,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        device: Device,
        offset: int = 0,
    ):
        self._memory = memory
        self._offset = offset  # in bytes, of the first element
        self._stream = 0  # in which its elements may still be computed; 0: they are there
        self._view: DLTensor | None = None  # made when a function takes the tensor
        self.shape = shape
        self.dtype = dtype
        self.device = device

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def queued_in(self, stream: int) -> None:
        """Note that what computes the elements is queued in a stream of CUDA; 0: it is done."""
        self._stream = stream

    def wait(self) -> None:
        """Wait until the elements are there, if an executor has computed them in a stream. Raises
        DeviceError (codes `device-failed`, `device-lost`) if that failed."""
        if self._stream:
            self._memory.context.wait(self._stream)
            self._stream = 0

    def numpy(self) -> Array:
        """A copy in host memory."""
        self.wait()
        copy = np.empty(self.shape, self.dtype)
        self._memory.context.read(self._memory, self._offset, copy.ctypes.data, copy.nbytes)
        return copy

    def copyto(self, target: Any) -> Any:
        """Copy the elements to `target`, and return it: a tensor of the same shape and type, on any
        device, or a Device, for which a new tensor is made.

        Raises ArgumentTypeError and ArgumentValueError for any other target.
        """
        if is_a(target, Device):
            return self._new_on(target)
        if isinstance(target, DeviceTensor):
            _check_same(self, target)
            self.wait()
            target.wait()
            if target._memory.context is self._memory.context:
                self._memory.context.copy(
                    target._memory, target._offset, self._memory, self._offset, self.nbytes
                )
            else:
                target.copyfrom(self.numpy())
            return target
        array = as_array(target, numbers=False)
        if array is None:
            raise ArgumentTypeError(
                f"copyto: expected a tensor or a device, received {type(target).__name__}",
                code="argument-kind",
            )
        _check_same(self, array)
        if not array.flags.writeable:
            raise ArgumentValueError("copyto: the target is read-only", code="read-only")
        if array.flags.c_contiguous:
            self.wait()
            self._memory.context.read(self._memory, self._offset, array.ctypes.data, array.nbytes)
        else:
            np.copyto(array, self.numpy())
        return target

    def _new_on(self, device: Device) -> Any:
        if device.dlpack_type == CPU:
            return Tensor(self.numpy(), device)
        return self.copyto(empty(self.shape, self.dtype, device))

    def copyfrom(self, source: Any) -> DeviceTensor:
        """Copy the elements of `source`, a tensor of the same shape and type, and return this
        tensor. Raises ArgumentTypeError and ArgumentValueError as `copyto`."""
        if isinstance(source, DeviceTensor):
            source.copyto(self)
            return self
        array = as_array(source, numbers=False)
        if array is None:
            raise ArgumentTypeError(
                f"copyfrom: expected a tensor, received {type(source).__name__}",
                code="argument-kind",
            )
        _check_same(array, self)
        array = np.ascontiguousarray(array)
        self.wait()
        self._memory.context.write(self._memory, self._offset, array.ctypes.data, array.nbytes)
        return self

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's device type and index."""
        return (self.device.dlpack_type, self.device.index)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: object = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A DLPack capsule that shares this tensor's memory: `data` is its address, or the
        `cl_mem`. All work on it is done, or comes before what `stream` gets from now on; with -1
        the caller sees to that. Raises BufferError, as DLPack asks, for another device, a stream
        that cannot be, and if `copy` is True."""
        if stream is not None and self.device.dlpack_type != CUDA:
            raise BufferError("OpenCL tensors have no streams in DLPack")
        if stream is not None and (not isinstance(stream, int) or stream == 0 or stream < -1):
            raise BufferError(f"{stream!r} is no stream of CUDA: expected 1, 2, an address, or -1")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.device}; copyto() copies it elsewhere")
        if copy:
            raise BufferError("the tensor shares its memory; copyto() copies it")
        self._queue_before(stream)
        return _capsule(self)

    def _queue_before(self, stream: int | None) -> None:
        """Let all work on the tensor be done, or, given a stream other than -1, come before what
        that gets from now on."""
        if stream is None:
            self.wait()
        elif self._stream and stream not in (-1, self._stream):
            self._memory.context.order(self._stream, stream)

    def described(self, stream: int | None) -> int:
        """As DescribedTensor's; tensors of OpenCL have no streams."""
        self._queue_before(stream if self.device.dlpack_type == CUDA else None)
        if self._view is None:
            view = DLTensor(ndim=self.ndim, lanes=1)
            view.shape = (ctypes.c_int64 * self.ndim)(*self.shape)
            self._view = _on_device(self, view)
        return ctypes.addressof(self._view)

    def __array__(self, *args: Any, **options: Any) -> Array:
        """Raises TypeError: a copy to the host is never implicit."""
        raise TypeError(f"a tensor on {self.device} is no array; .numpy() copies it to the host")

    def __len__(self) -> int:
        """Size of the first dimension."""
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        """Shape, type and device."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        return f"DeviceTensor({shape} {self.dtype} on {self.device})"


def _check_same(source: Any, target: Any) -> None:
    if tuple(source.shape) != tuple(target.shape):
        raise ArgumentValueError(
            f"a copy needs equal shapes, received {list(source.shape)} for {list(target.shape)}",
            code="shape-mismatch",
        )
    if source.dtype != target.dtype:
        raise ArgumentTypeError(
            f"a copy needs equal element types, received {source.dtype} for {target.dtype}",
            code="dtype-mismatch",
        )


def empty(shape: Sequence[int], dtype: np.dtype[Any], device: Device) -> DeviceTensor:
    """An uninitialised tensor on a device other than the host. Raises ArgumentTypeError (code
    `dtype-mismatch`) for elements that DLPack does not have, DeviceError (codes `no-driver`,
    `no-device`, `device-memory`), and UnsupportedError for the host."""
    dtype_code(dtype)
    sizes = tuple(int(size) for size in shape)
    driver = driver_of(device)
    nbytes = math.prod(sizes) * dtype.itemsize
    memory = driver.new_memory(driver.context_of(device.index), nbytes)
    return DeviceTensor(memory, sizes, dtype, device)


def copied(array: Array, device: Device) -> DeviceTensor:
    """A tensor on a device with a copy of `array`; errors as of `empty`."""
    return empty(array.shape, array.dtype, device).copyfrom(array)


# ---- DLPack --------------------------------------------------------------------------------------


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_set_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)
_NAME, _TAKEN = b"dltensor", b"used_dltensor"  # global: a capsule keeps the address of its name
_NOWHERE = (ctypes.c_char * ALIGN)()


class _Stand:
    """What NumPy takes for an array of the tensor's shape. The array keeps it alive, and so the
    tensor's memory."""

    def __init__(self, tensor: DeviceTensor):
        self.memory = tensor._memory
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "strides": (0,) * tensor.ndim,
            "typestr": f"<u{tensor.dtype.itemsize}",
            "data": (ctypes.addressof(_NOWHERE), False),
        }


def _capsule(tensor: DeviceTensor) -> object:
    """NumPy's capsule of an array without memory, turned into one of the tensor: its destructor and
    deleter are in C, so they may run at any time, also while an exception is raised."""
    capsule = np.asarray(_Stand(tensor)).__dlpack__()
    _on_device(tensor, DLTensor.from_address(capsule_pointer(capsule, _NAME)))
    return capsule


def _on_device(tensor: DeviceTensor, view: DLTensor) -> DLTensor:
    """A DLTensor that has the shape of a tensor, completed."""
    view.data = tensor._memory.handle
    view.byte_offset = tensor._offset
    if tensor._memory.context.driver.data_is_address:  # some readers ignore the offset
        view.data, view.byte_offset = tensor._memory.handle + tensor._offset, 0
    view.device_type, view.device_id = tensor.__dlpack_device__()
    view.code, view.bits = dtype_code(tensor.dtype)
    view.strides = None
    return view


def imported(source: Any) -> DeviceTensor:
    """A tensor that shares the memory of `source`, an OpenCL or CUDA tensor with `__dlpack__`.

    What is queued for a CUDA tensor is done before what uses the result here.
    Raises ArgumentValueError (code `dlpack`) if it cannot be exported, (code `strides`) if it is
    not contiguous, and ArgumentTypeError (code `dtype`) for elements that NumPy does not have.
    """
    try:
        capsule = exported(source)
        address = capsule_pointer(capsule, _NAME)
    except (BufferError, RuntimeError, ValueError, TypeError) as error:
        raise ArgumentValueError(
            f"{type(source).__name__} cannot be exported by DLPack: {error}", code="dlpack"
        ) from error
    managed = _Managed.from_address(address)
    t = managed.tensor
    shape = tuple(t.shape[d] for d in range(t.ndim))
    strides = tuple(t.strides[d] for d in range(t.ndim)) if t.strides else None
    dtype = dtype_of_code(t.code, t.bits, t.lanes)
    if t.device_type not in (CUDA, OPENCL):
        raise ArgumentValueError(f"device type {t.device_type} of DLPack is unknown", code="dlpack")
    if strides is not None and not _is_row_major(shape, strides):
        raise ArgumentValueError("a tensor on a device must be row-major", code="strides")
    device = (cuda if t.device_type == CUDA else opencl)(t.device_id)
    deleter = managed.deleter

    def free() -> None:
        if deleter:
            _Deleter(deleter)(address)

    memory = driver_of(device).memory_of(t.data or 0, device.index, free)
    offset = t.byte_offset
    _set_capsule_name(capsule, _TAKEN)  # from now on the deleter is called by `free`
    return DeviceTensor(memory, shape, dtype, device, offset)


def _is_row_major(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True
