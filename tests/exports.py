"""Objects that export a tensor by DLPack and nothing else, and exports that are wrong."""

from __future__ import annotations

import ctypes
from typing import Any

from tensorkiln.runtime.tensor import DLTensor, capsule_pointer

ONES = (ctypes.c_int64 * 64)(*[1] * 64)


class Exports:
    """An object that has DLPack's method and nothing else."""

    def __init__(self, array: Any):
        self.array = array

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__(**options)


# What a call must refuse, by the field of the export that is wrong.
WRONG = (
    "device",
    "code",
    "bits",
    "lanes",
    "no lanes",
    "null",
    "shape",
    "negative",
    "rank",
    "no rank",
    "name",
    "number",
    "raises",
)
# Unusual, and legal.
LEGAL = ("strides", "deep")


class Lies(Exports):
    """An object whose export is wrong or unusual: `lie` is of `WRONG` or `LEGAL`."""

    def __init__(self, array: Any, lie: str):
        super().__init__(array)
        self.lie = lie

    def __repr__(self) -> str:
        return f"Lies about {self.lie}"

    def __dlpack__(self, **_: Any) -> object:
        if self.lie == "number":
            return 7
        if self.lie == "raises":
            raise BufferError("not today")
        if self.lie == "name":
            return self.array.__dlpack__(max_version=(1, 0))  # a capsule of another name
        capsule = self.array.__dlpack__()
        t = DLTensor.from_address(capsule_pointer(capsule, b"dltensor"))
        match self.lie:
            case "device":
                t.device_type = 2
            case "code":
                t.code = 5
            case "bits":
                t.bits = 4
            case "lanes":
                t.lanes = 4
            case "no lanes":
                t.lanes = 0
            case "null":
                t.data, t.byte_offset = None, 0
            case "shape":
                t.ndim, t.shape = max(1, t.ndim), None
            case "negative" if t.ndim:
                t.shape[0] = -3
            case "negative":
                t.device_type = 99
            case "rank":
                t.ndim = 1 << 30
            case "no rank":
                t.ndim = -1
            case "strides":
                t.strides = None  # row-major
            case "deep" if self.array.size == 1:
                t.ndim, t.shape, t.strides = 64, ONES, None
        return capsule
