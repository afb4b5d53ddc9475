"""Convert TensorProto to NumPy arrays: views of the model's file or of external files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import ml_dtypes
import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import open_inside, open_plain
from tensorkiln.base.mapped import MappedFile
from tensorkiln.base.origin import sha256_of
from tensorkiln.frontend.graph.issues import NodeProblem
from tensorkiln.frontend.onnx.narrow import FORMATS, Format, Narrow, unpacked
from tensorkiln.frontend.onnx.proto import TensorProto
from tensorkiln.ir.relax import Constant, constant

# The names of TensorProto.DataType from 1 on. Those that we know too mean the same in NumPy or
# ml_dtypes.
_NAMES = (
    "float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 "
    "complex64 complex128 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 "
    "int4 float4e2m1 float8e8m0 uint2 int2 float6e2m3 float6e3m2"
)
_NUMBERED = dict(enumerate(_NAMES.split(), 1))
DTYPES: dict[int, str] = {n: name for n, name in _NUMBERED.items() if name in PROGRAM_TYPES}
OTHER_DTYPES: dict[int, str] = {n: name for n, name in _NUMBERED.items() if n not in DTYPES}
NARROW_DTYPES: dict[int, Format] = {
    n: FORMATS[name] for n, name in _NUMBERED.items() if name in FORMATS
}


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype for one of our dtype names; bfloat16 is from ml_dtypes."""
    return np.dtype(name if PROGRAM_TYPES[name].in_numpy else getattr(ml_dtypes, name))


def dtype_name(code: int, subject: str) -> str:
    """Our dtype name for an ONNX element type number; NodeProblem if it is not supported.

    `subject` begins the message: "input 'x'".
    """
    if code in DTYPES:
        return DTYPES[code]
    if code in OTHER_DTYPES:
        raise NodeProblem(
            "dtype",
            f"{subject} has element type {OTHER_DTYPES[code]}",
            _hint(OTHER_DTYPES[code]),
        )
    raise NodeProblem("malformed", f"{subject} has element type {code}, which ONNX does not define")


def _hint(name: str) -> str:
    if name in FORMATS:
        return "tensors of it are cast, quantised, dequantised and moved only; cast it first"
    return "supported: " + ", ".join(sorted(DTYPES.values()))


def element_type(code: int, subject: str) -> str | Format:
    """As `dtype_name`, or the format of a type that is only stored (narrow.py)."""
    return NARROW_DTYPES.get(code) or dtype_name(code, subject)


class ExternalFiles:
    """The external files that hold a model's tensors; each is mapped once, at its first use.

    With `stand_ins`, a file that is not there is no error: its name goes to `absent`, and other
    values take the place of its tensors.

    `folder` is the model's own (None for a model in memory); `roots` are further folders in which
    the caller permits external data. A location that leads out of these folders, `../weights` or
    a symbolic link, raises UserError.
    """

    def __init__(self, folder: Path | None, roots: Sequence[Path]) -> None:
        self.folder = folder
        self.roots = tuple(Path(r) for r in roots)
        self._maps: dict[str, memoryview] = {}
        self.stand_ins = False
        self.absent: list[str] = []

    def lacks(self, location: str) -> bool:
        """Whether `stand_ins` take the place of what is in this file, which is not there."""
        if not self.stand_ins or location in self._maps:
            return False
        if location not in self.absent:
            try:
                self._map(location)
            except UserError as error:
                if error.code != "missing-file":
                    raise
                self.absent.append(location)
        return location in self.absent

    def view(self, location: str, offset: int, length: int | None, tensor: str) -> memoryview:
        """A view of `length` bytes (None: up to the end) from byte `offset` of file `location`.

        Raises UserError if the file is missing (code `missing-file`), lies outside the permitted
        folders, or is too short for the tensor named `tensor` (code `short-file`).
        """
        data = self._map(location)
        if length is None:
            length = len(data) - offset
        if offset < 0 or length < 0 or offset + length > len(data):
            raise UserError(
                f"tensor {tensor!r} needs bytes {offset} to {offset + length} of external file "
                f"{location!r}, which holds {len(data)}",
                code="short-file",
                hint="the file is cut short or belongs to another model; export or copy it again",
            )
        return data[offset : offset + length]

    def hashes(self) -> tuple[tuple[str, str], ...]:
        """The SHA-256 of each file that was mapped until now, by its name in the model, sorted."""
        return tuple((name, sha256_of(data)) for name, data in sorted(self._maps.items()))

    def hash_of(self, location: str) -> str:
        """The SHA-256 of a file, read now if it was not mapped yet. UserError as `view`."""
        return sha256_of(self._map(location))

    def _map(self, location: str) -> memoryview:
        if location not in self._maps:
            self._maps[location] = _map_file(*self._open(location))
        return self._maps[location]

    def _open(self, location: str) -> tuple[BinaryIO, Path]:
        folders = [f for f in (self.folder, *self.roots) if f is not None]
        if not folders:
            raise UserError(
                f"the model keeps tensors in external file {location!r}, but has no folder",
                code="missing-file",
                hint="pass the model's path, or external_roots=[folder]",
            )
        missing: UserError | None = None
        for folder in folders:
            try:
                return open_inside(folder, location, self.roots), folder / location
            except UserError as error:
                if error.code != "missing-file":
                    error.hint = error.hint or "external_roots=[folder] grants another folder"
                    raise UserError(
                        f"external data of the model: {error.message}",
                        code=error.code,
                        hint=error.hint,
                    ) from error
                missing = missing or error
        assert missing is not None
        raise UserError(
            f"external data of the model: {missing.message}",
            code="missing-file",
            hint="external files must lie beside the model, or in a folder of external_roots",
        ) from missing


def _map_file(stream: BinaryIO, path: Path) -> memoryview:
    """A read-only memory map of the whole file, whose pages are loaded at first access."""
    with stream:
        size = stream.seek(0, 2)
        if size == 0:
            return memoryview(b"")
        return memoryview(MappedFile(stream, path))


def map_path(path: Path) -> memoryview:
    """A read-only memory map of a regular file; OSError for pipes, devices and sockets."""
    return _map_file(open_plain(path), path)


def to_constant(t: TensorProto, files: ExternalFiles, name: str = "") -> Constant | Narrow:
    """The tensor as a constant called `name`; raises as `to_array`."""
    format = NARROW_DTYPES.get(t.data_type)
    if format is None:
        return constant(to_array(t, files), name)
    return Narrow(constant(_stored(t, format, files), name), format)


def _stored(t: TensorProto, format: Format, files: ExternalFiles) -> np.ndarray:
    """The elements of a tensor of a narrow type, a byte each."""
    subject, dims = _checked_dims(t)
    row, count = format.row, math.prod(dims)
    size = row.size(count)
    if t.location == 1:
        external = _external(t, files, size)
        data: np.ndarray = (
            np.zeros(size, np.uint8) if external is None else np.frombuffer(external, np.uint8)
        )
    elif t.raw_data is not None and (len(t.raw_data) or not t.int32_data.size):
        data = np.frombuffer(t.raw_data, np.uint8)
    elif row.bits == 6:
        # The only type whose elements are packed in raw bytes and not in this field.
        data, size, row = t.int32_data.astype(np.uint8), count, row.stored
    else:
        data = t.int32_data.astype(np.uint8)
    if data.size != size:
        raise NodeProblem(
            "malformed",
            f"{subject} of shape {list(dims)} and type {format.name} needs {size} bytes, "
            f"got {data.size}",
        )
    return unpacked(data, row, count).reshape(dims)


def _checked_dims(t: TensorProto) -> tuple[str, tuple[int, ...]]:
    """What messages call the tensor, and its shape; NodeProblem if an extent is negative."""
    subject = f"tensor {t.name!r}" if t.name else "a tensor"
    dims = tuple(int(d) for d in t.dims)
    if any(d < 0 for d in dims):
        raise NodeProblem("malformed", f"{subject} has a negative dimension: {list(dims)}")
    return subject, dims


def to_array(t: TensorProto, files: ExternalFiles) -> np.ndarray:
    """The tensor as a read-only array: a view of the file if its elements are stored as raw bytes.

    Raises NodeProblem for an unsupported dtype or a number of elements that does not fit the
    shape, UserError if an external file cannot be read.
    """
    subject, dims = _checked_dims(t)
    name = dtype_name(t.data_type, subject)
    count, dtype = math.prod(dims), numpy_dtype(name).newbyteorder("<")
    if t.location == 1:
        data: memoryview | None = _external(t, files, count * dtype.itemsize)
        if data is None:
            return _stand_in(t, name, dims)
    else:
        data = t.raw_data
    if data is not None and (len(data) or not _typed(t, name).size):
        if len(data) != count * dtype.itemsize:
            raise NodeProblem(
                "malformed",
                f"{subject} of shape {list(dims)} and type {name} needs {count * dtype.itemsize} "
                f"bytes, got {len(data)}",
            )
        array = np.frombuffer(data, dtype, count)
    else:
        array = _from_fields(t, name, count, subject)
    array = array.astype(numpy_dtype(name), copy=False).reshape(dims)
    array.flags.writeable = False
    return array


_FEW = 64  # integers: as many may be a shape, axes or bounds


def _stand_in(t: TensorProto, name: str, dims: tuple[int, ...]) -> np.ndarray:
    """Values for a tensor whose file is not there: ones, or zeros, which take no memory, where they
    are many. NodeProblem for a few integers, which may decide shapes."""
    count = math.prod(dims)
    if name in ("int32", "int64", "bool") and count <= _FEW:
        raise NodeProblem(
            "weights",
            f"tensor {t.name!r} is in an external file that is not there, and may decide shapes",
            "put the file beside the model",
        )
    make = np.ones if count < 1 << 16 else np.zeros
    return make(dims, numpy_dtype(name))


def _external(t: TensorProto, files: ExternalFiles, size: int) -> memoryview | None:
    """The bytes of an external tensor; None if its file is not there and need not be."""
    entries = {e.key: e.value for e in t.external_data}
    if "location" not in entries:
        raise NodeProblem("malformed", f"tensor {t.name!r} is external but names no location")
    numbers: dict[str, int | None] = {"offset": 0, "length": None}
    for key in numbers:
        if key in entries:
            try:
                numbers[key] = int(entries[key])
            except ValueError:
                raise NodeProblem(
                    "malformed", f"tensor {t.name!r}: {key} {entries[key]!r} is not an integer"
                ) from None
    if files.lacks(entries["location"]):
        return None
    length = size if numbers["length"] is None else numbers["length"]
    return files.view(entries["location"], numbers["offset"] or 0, length, t.name)


def _typed(t: TensorProto, name: str) -> np.ndarray:
    """The field that holds the elements of a tensor of type `name` if `raw_data` does not."""
    match name:
        case "float32":
            return t.float_data
        case "float64":
            return t.double_data
        case "int64":
            return t.int64_data
        case "uint32" | "uint64":
            return t.uint64_data
        case _:
            return t.int32_data


def _from_fields(t: TensorProto, name: str, count: int, subject: str) -> np.ndarray:
    values = _typed(t, name)
    if values.size != count:
        raise NodeProblem(
            "malformed", f"{subject} of shape {t.dims.tolist()} has {values.size} elements"
        )
    if PROGRAM_TYPES[name].is_half:
        return values.astype(np.uint16).view(numpy_dtype(name))
    if name == "uint64":
        return values.view(np.uint64)
    return values.astype(name, copy=False)
