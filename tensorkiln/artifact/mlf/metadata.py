"""metadata.json of an archive in Model Library Format, version 8 (docs/formats/mlf.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.artifact.dependency import dependency_rows, read_dependency
from tensorkiln.artifact.mlf.record import (
    Count,
    Counts,
    Kind,
    Known,
    One,
    Record,
    Rows,
    Schema,
    Shape,
    Size,
    Table,
    Text,
    Texts,
    Values,
    json_schema,
    key,
)
from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.json_text import MAX_BYTES, parse_json
from tensorkiln.base.schema import Dim, Reader

VERSION = 8
METADATA = "metadata.json"
HOST = "host"  # the target key of the processor that calls the model
_TVM = "TVM, version 7"
_PATH = Text()
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
MODEL_NAME = Text(_NAME, "a name of C")


class _Dependency(Kind):
    """An `ExternalDependency`: all of its fields."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        return tuple(self._row(row) for row in reader.rows(key))

    @staticmethod
    def _row(row: Reader) -> ExternalDependency:
        row.only(FIELDS)
        for name in FIELDS:
            row.require(name)
        try:
            return read_dependency(row)
        except UserError as error:
            raise row.wrong(error.message) from None

    def plain(self, value: tuple[ExternalDependency, ...]) -> object:
        """See `Kind`."""
        return dependency_rows(value)

    def schema(self) -> Schema:
        """See `Kind`."""
        schema_of_field: dict[str, Schema] = {
            "libraries": {"type": "array", "items": {"type": "string"}},
            "build_time": {"type": "boolean"},
        }
        row = {
            "type": "object",
            "properties": {name: schema_of_field.get(name, {"type": "string"}) for name in FIELDS},
            "required": list(FIELDS),
            "additionalProperties": False,
        }
        return {"type": "array", "items": row}


@dataclass(frozen=True, slots=True)
class Generator(Record):
    """The compiler that wrote the archive."""

    name: str = key(Text(), "`tensorkiln`")
    version: str = key(Text(), "its version")


@dataclass(frozen=True, slots=True)
class Tensor(Record):
    """A tensor, or a number, that a caller passes."""

    name: str = key(Text(), "its name in the model", _TVM)
    member: str = key(Text(_NAME, "a name of C"), "the member of the struct in the header")
    dtype: str = key(Text(), "the type of an element", _TVM)
    shape: tuple[Dim, ...] | None = key(Shape(), "its dimensions; null for a number")
    role: str = key(Text("in|out|inout|scalar", "a role"), "who writes it")
    size_bytes: Dim = key(Size(), "bytes of its memory", "TVM, version 7, as `size`")


@dataclass(frozen=True, slots=True)
class Pool(Record):
    """Memory that the caller provides for the time of a call."""

    name: str = key(Text(_NAME, "a name of C"), "the member of the struct in the header")
    size_bytes: Dim = key(Size(), "its size", "TVM, version 7, as `workspace_size_bytes`")
    alignment: int = key(Count(), "what its address is divisible by")
    target_key: str = key(Text(), "whose memory it is", "TVM, version 7, as `device`")


@dataclass(frozen=True, slots=True)
class Function(Record):
    """A function that the header declares."""

    symbol: str = key(Text(_NAME, "a name of C"), "its C function")
    inputs: tuple[Tensor, ...] = key(Rows(Tensor), "what a caller passes", _TVM)
    outputs: tuple[Tensor, ...] = key(Rows(Tensor), "what a call writes", _TVM)
    symbols: Mapping[str, int] = key(Counts(), "least value of each symbolic dimension")
    requires: tuple[str, ...] = key(Texts(), "conditions on them, such as `n <= 512`")
    pools: tuple[Pool, ...] = key(Rows(Pool), "memory for the time of a call")
    workspace_size_bytes: Dim = key(Size(), "bytes of all pools", _TVM)
    constants_size_bytes: int = key(Count(), "bytes of constants that its kernels read", _TVM)
    io_size_bytes: Dim = key(Size(), "bytes of inputs and outputs", _TVM)
    stack_buffers_bytes: int | None = key(
        Known(), "bytes of local arrays on the stack, of the kernel that has most"
    )
    kernels: tuple[str, ...] = key(Texts(), "symbols of the kernels, in the order of their calls")


@dataclass(frozen=True, slots=True)
class Kernel(Record):
    """A kernel of a model."""

    symbol: str = key(Text(_NAME, "a name of C"), "its C function", "TVM, version 7")
    kernel_class: str = key(Text(), "the kind of schedule, or `external:<name>`")
    nodes: tuple[str, ...] = key(Texts(), "the model's nodes that it computes")
    path: str = key(Text(), "the file in the archive that defines it")
    stack_buffers_bytes: int | None = key(
        Known(), "its local arrays on the stack, and those of what it calls; null for an external's"
    )


@dataclass(frozen=True, slots=True)
class Constants(Record):
    """A model's constants, which are linked in and stay where the program lies."""

    size_bytes: int = key(Count(), "bytes", "TVM, version 7, as `constants_size_bytes`")
    path: str = key(Text(), "the file that is compiled or linked; empty without constants")
    parameters: str = key(Text(), "the same as safetensors; empty without constants")


@dataclass(frozen=True, slots=True)
class Place(Record):
    """Where an artifact lies that is not in `artifacts/<model>`, so that no byte is there twice."""

    path: str = key(Text(), "a file of the archive")
    offset: int = key(Count(), "the byte where it begins")
    size_bytes: int = key(Count(), "its size")


@dataclass(frozen=True, slots=True)
class Bundled(Record):
    """The source of a dependency, which the caller put into the archive."""

    path: str = key(Text(), "a file or folder of the archive")
    sha256: str = key(
        Text("[0-9a-f]{64}", "a SHA-256 in hexadecimal"), "of the file, or of the list"
    )


@dataclass(frozen=True, slots=True)
class Model(Record):
    """One model of an archive."""

    model_name: str = key(MODEL_NAME, "its name, which the caller chose", _TVM)
    style: str = key(Text("full-model", "a style"), "`full-model`", "TVM, version 4")
    executors: tuple[str, ...] = key(Texts(), "`aot`: functions call kernels directly", _TVM)
    target: Mapping[str, object] = key(
        Values(), "target key to the whole target", "TVM, version 6, as a list of text"
    )
    cpu_features: tuple[str, ...] = key(Texts(), "what the processor must have")
    prefix: str = key(Text(_NAME, "a name of C"), "what all its symbols begin with")
    header: str = key(Text(), "the header's path")
    sources: tuple[str, ...] = key(Texts(), "files to compile")
    objects: tuple[str, ...] = key(Texts(), "files to link")
    undefined_symbols: tuple[str, ...] = key(
        Texts(), "what `objects` need of the C library, and of `external_dependencies`"
    )
    functions: Mapping[str, Function] = key(
        Table(Function), "by name", "TVM, version 7, as `memory.functions`"
    )
    kernels: tuple[Kernel, ...] = key(
        Rows(Kernel), "all kernels", "TVM, version 7, as `operator_functions`"
    )
    constants: Constants = key(One(Constants), "constants")
    libraries: tuple[str, ...] = key(Texts(), "arguments of the linker, such as `-lblas`")
    external_dependencies: tuple[ExternalDependency, ...] = key(
        _Dependency(), "what a program needs besides", "TVM, 2022, without a version"
    )
    bundled: Mapping[str, Bundled] = key(Table(Bundled), "those whose source is here, by name")
    ir: str = key(Text(), "the text of the module that was compiled", "TVM, `src/`")
    placed: Mapping[str, Place] = key(Table(Place), "artifacts that lie elsewhere, by name")


@dataclass(frozen=True, slots=True)
class License(Record):
    """A license of files in the archive."""

    spdx: str = key(Text(), "an expression of SPDX")
    component: str = key(Text(), "whose files they are")
    copyright: str = key(Text(), "the notice; empty where the license's text has it")
    paths: tuple[str, ...] = key(Texts(), "the files; a folder stands for all in it")


@dataclass(frozen=True, slots=True)
class File(Record):
    """A file of the archive."""

    size_bytes: int = key(Count(), "its size")
    sha256: str = key(Text("[0-9a-f]{64}", "a SHA-256 in hexadecimal"), "of its bytes")


@dataclass(frozen=True, slots=True)
class LibraryMetadata(Record):
    """metadata.json: what an archive in Model Library Format holds."""

    version: int = key(Count(), "8", "TVM, version 1")
    generator: Generator = key(One(Generator), "who wrote it")
    modules: Mapping[str, Model] = key(Table(Model), "models by name", _TVM)
    licenses: tuple[License, ...] = key(Rows(License), "of all files that are compiled or linked")
    files: Mapping[str, File] = key(Table(File), "every other file of the archive, by path")

    def to_bytes(self) -> bytes:
        """The text of metadata.json; equal for equal metadata."""
        data = (json.dumps(self.to_json(), indent=1) + "\n").encode()
        if LibraryMetadata.from_bytes(data, METADATA) != self:
            raise InternalError("metadata.json does not say what was written")
        return data

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, place: str) -> LibraryMetadata:
        """Inverse of `to_bytes`. Raises UserError (code `bad-metadata`) naming `place` and the key
        for anything that the schema does not allow, and for another version than 8."""
        parsed = parsed_metadata(data, place)
        version = version_of(parsed, place)
        if version != VERSION:
            raise UserError(
                f"version {version}; expected {VERSION}", code="bad-metadata", where=place
            )
        return cls.read(Reader(parsed, place, "bad-metadata"))


def parsed_metadata(data: bytes | memoryview, place: str) -> object:
    """The JSON of a metadata.json. Raises UserError (code `bad-metadata`)."""
    try:
        return parse_json(bytes(data[: MAX_BYTES + 1]), unique=True)
    except ValueError as error:
        message = f"not valid JSON: {error}"
        raise UserError(message, code="bad-metadata", where=place) from None


def version_of(parsed: object, place: str) -> int:
    """The version that a parsed metadata.json states. Raises UserError (code `bad-metadata`)."""
    return Reader(parsed, place, "bad-metadata").number("version")


def metadata_schema() -> Schema:
    """The JSON schema of metadata.json."""
    return json_schema(LibraryMetadata, f"Model Library Format, version {VERSION}")
