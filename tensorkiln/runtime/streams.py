"""The stream of CUDA in which a caller wants work, where the executor has none: tvm-ffi's, or that
of the library whose tensors come in, such as torch."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from tensorkiln.runtime.device import CUDA, Device
from tensorkiln.runtime.tensor import DEFAULT_STREAM, capsule_pointer

_MAJOR = 1  # of DLPack, whose table of functions is known here


class _Header(ctypes.Structure):
    """DLPackExchangeAPIHeader."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
    ]


# Raises the exception that the function has set.
_WorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)


class _ExchangeTable(ctypes.Structure):
    """DLPackExchangeAPI; the functions before the last make and export tensors."""

    _fields_ = [
        ("header", _Header),
        ("others", ctypes.c_void_p * 4),
        ("current_work_stream", ctypes.c_void_p),
    ]


def current_stream(device: Device, tensors: Sequence[Any]) -> int:
    """Where work on a CUDA device is wanted in this thread; 0: nobody says.

    tvm-ffi's stream if one is set, else the current one of the library that has made the first of
    the tensors on that device, by DLPack's table of functions on its type.
    """
    tvm_ffi: Any = sys.modules.get("tvm_ffi")
    if hasattr(tvm_ffi, "get_raw_stream"):  # not in early versions
        stream = int(tvm_ffi.get_raw_stream(tvm_ffi.device(str(device))))
        if stream:
            return stream
    for tensor in tensors:
        capsule = getattr(type(tensor), "__dlpack_c_exchange_api__", None)
        if capsule is None:
            continue
        kind, index = tensor.__dlpack_device__()
        if int(kind) == CUDA and index == device.index:
            return _work_stream(capsule, device)
    return 0


def _work_stream(capsule: object, device: Device) -> int:
    address = capsule_pointer(capsule, b"dlpack_exchange_api")
    while address:
        table = _ExchangeTable.from_address(address)
        if table.header.major == _MAJOR and not table.current_work_stream:
            return 0  # a library without streams of its own
        if table.header.major == _MAJOR:
            stream = ctypes.c_void_p()
            ask = _WorkStream(table.current_work_stream)
            ask(CUDA, device.index, ctypes.addressof(stream))
            return stream.value or DEFAULT_STREAM
        address = table.header.older
    return 0


__all__ = ["current_stream"]
