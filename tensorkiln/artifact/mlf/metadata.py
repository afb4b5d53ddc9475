"""metadata.json of an archive in Model Library Format, version 8 (docs/formats/mlf.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_type_hints

from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.json_text import MAX_BYTES
from tensorkiln.base.record import (
    OBJECTS,
    ClosedRecord,
    JsonKey,
    JsonKind,
    Schema,
    json_schema,
    kind_of,
    word,
)
from tensorkiln.base.schema import Dim, Reader, parsed_text

VERSION = 8
METADATA = "metadata.json"
HOST = "host"  # the target key of the processor that calls the model
_TVM = "TVM, version 7"
_BAD = "bad-metadata"
CName = Annotated[str, word(r"[A-Za-z_][A-Za-z0-9_]*", "a name of C")]
Hash = Annotated[str, word("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]


def _dependency(row: Reader) -> ExternalDependency:
    """An `ExternalDependency`, all of whose fields are there."""
    row.only(FIELDS)
    for name in FIELDS:
        row.require(name)
    try:
        return ExternalDependency.read(row)
    except UserError as error:
        raise row.wrong(error.message) from None


def _dependencies(reader: Reader, key: str) -> tuple[ExternalDependency, ...]:
    return tuple(_dependency(row) for row in reader.rows(key))


def _dependencies_schema() -> Schema:
    kind_of_field = get_type_hints(ExternalDependency)
    row = {
        "type": "object",
        "properties": {name: kind_of(kind_of_field[name]).schema for name in FIELDS},
        "required": list(FIELDS),
        "additionalProperties": False,
    }
    return {"type": "array", "items": row}


_DEPENDENCIES = JsonKind(_dependencies, _dependencies_schema())


def key(meaning: str, origin: str = "") -> Any:
    """A field of a record. `origin` says where the key is from, if it is older than version 8."""
    return field(metadata={"json": JsonKey(meaning=meaning, origin=origin)})


@dataclass(frozen=True, slots=True)
class Generator(ClosedRecord):
    """The compiler that wrote the archive."""

    name: str = key("`tensorkiln`")
    version: str = key("its version")


@dataclass(frozen=True, slots=True)
class Tensor(ClosedRecord):
    """A tensor, or a number, that a caller passes."""

    name: str = key("its name in the model", _TVM)
    member: CName = key("the member of the struct in the header")
    dtype: str = key("the type of an element", _TVM)
    shape: tuple[Dim, ...] | None = key("its dimensions; null for a number")
    role: Annotated[str, word("in|out|inout|scalar", "a role")] = key("who writes it")
    size_bytes: Dim = key("bytes of its memory", "TVM, version 7, as `size`")


@dataclass(frozen=True, slots=True)
class Pool(ClosedRecord):
    """Memory that the caller provides for the time of a call."""

    name: CName = key("the member of the struct in the header")
    size_bytes: Dim = key("its size", "TVM, version 7, as `workspace_size_bytes`")
    alignment: int = key("what its address is divisible by")
    target_key: str = key("whose memory it is", "TVM, version 7, as `device`")


@dataclass(frozen=True, slots=True)
class Function(ClosedRecord):
    """A function that the header declares."""

    symbol: CName = key("its C function")
    inputs: tuple[Tensor, ...] = key("what a caller passes", _TVM)
    outputs: tuple[Tensor, ...] = key("what a call writes", _TVM)
    symbols: Mapping[str, int] = key("least value of each symbolic dimension")
    requires: tuple[str, ...] = key("conditions on them, such as `n <= 512`")
    pools: tuple[Pool, ...] = key("memory for the time of a call")
    workspace_size_bytes: Dim = key("bytes of all pools", _TVM)
    constants_size_bytes: int = key("bytes of constants that its kernels read", _TVM)
    io_size_bytes: Dim = key("bytes of inputs and outputs", _TVM)
    stack_buffers_bytes: int | None = key(
        "bytes of local arrays on the stack, of the kernel that has most"
    )
    kernels: tuple[str, ...] = key("symbols of the kernels, in the order of their calls")


@dataclass(frozen=True, slots=True)
class Kernel(ClosedRecord):
    """A kernel of a model."""

    symbol: CName = key("its C function", "TVM, version 7")
    kernel_class: str = key("the kind of schedule, or `external:<name>`")
    nodes: tuple[str, ...] = key("the model's nodes that it computes")
    path: str = key("the file in the archive that defines it")
    stack_buffers_bytes: int | None = key(
        "its local arrays on the stack, and those of what it calls; null for an external's"
    )


@dataclass(frozen=True, slots=True)
class Constants(ClosedRecord):
    """A model's constants, which are linked in and stay where the program lies."""

    size_bytes: int = key("bytes", "TVM, version 7, as `constants_size_bytes`")
    path: str = key("the file that is compiled or linked; empty without constants")
    parameters: str = key("the same as safetensors; empty without constants")


@dataclass(frozen=True, slots=True)
class Place(ClosedRecord):
    """Where an artifact lies that is not in `artifacts/<model>`, so that no byte is there twice."""

    path: str = key("a file of the archive")
    offset: int = key("the byte where it begins")
    size_bytes: int = key("its size")


@dataclass(frozen=True, slots=True)
class Bundled(ClosedRecord):
    """The source of a dependency, which the caller put into the archive."""

    path: str = key("a file or folder of the archive")
    sha256: Hash = key("of the file, or of the list")


@dataclass(frozen=True, slots=True)
class Model(ClosedRecord):
    """One model of an archive."""

    model_name: CName = key("its name, which the caller chose", _TVM)
    style: Annotated[str, word("full-model", "a style")] = key("`full-model`", "TVM, version 4")
    executors: tuple[str, ...] = key("`aot`: functions call kernels directly", _TVM)
    target: Annotated[Mapping[str, object], OBJECTS] = key(
        "target key to the whole target", "TVM, version 6, as a list of text"
    )
    cpu_features: tuple[str, ...] = key("what the processor must have")
    prefix: CName = key("what all its symbols begin with")
    header: str = key("the header's path")
    sources: tuple[str, ...] = key("files to compile")
    objects: tuple[str, ...] = key("files to link")
    undefined_symbols: tuple[str, ...] = key(
        "what `objects` need of the C library, and of `external_dependencies`"
    )
    functions: Mapping[str, Function] = key("by name", "TVM, version 7, as `memory.functions`")
    kernels: tuple[Kernel, ...] = key("all kernels", "TVM, version 7, as `operator_functions`")
    constants: Constants = key("constants")
    libraries: tuple[str, ...] = key("arguments of the linker, such as `-lblas`")
    external_dependencies: Annotated[tuple[ExternalDependency, ...], _DEPENDENCIES] = key(
        "what a program needs besides", "TVM, 2022, without a version"
    )
    bundled: Mapping[str, Bundled] = key("those whose source is here, by name")
    ir: str = key("the text of the module that was compiled", "TVM, `src/`")
    placed: Mapping[str, Place] = key("artifacts that lie elsewhere, by name")


@dataclass(frozen=True, slots=True)
class License(ClosedRecord):
    """A license of files in the archive."""

    spdx: str = key("an expression of SPDX")
    component: str = key("whose files they are")
    copyright: str = key("the notice; empty where the license's text has it")
    paths: tuple[str, ...] = key("the files; a folder stands for all in it")


@dataclass(frozen=True, slots=True)
class File(ClosedRecord):
    """A file of the archive."""

    size_bytes: int = key("its size")
    sha256: Hash = key("of its bytes")


@dataclass(frozen=True, slots=True)
class LibraryMetadata(ClosedRecord):
    """metadata.json: what an archive in Model Library Format holds."""

    version: int = key("8", "TVM, version 1")
    generator: Generator = key("who wrote it")
    modules: Mapping[str, Model] = key("models by name", _TVM)
    licenses: tuple[License, ...] = key("of all files that are compiled or linked")
    files: Mapping[str, File] = key("every other file of the archive, by path")

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
            message = f"version {version}; expected {VERSION}"
            raise UserError(message, code=_BAD, where=place)
        return cls.read(Reader(parsed, place, _BAD))


def parsed_metadata(data: bytes | memoryview, place: str) -> object:
    """The JSON of a metadata.json. Raises UserError (code `bad-metadata`)."""
    return parsed_text(bytes(data[: MAX_BYTES + 1]), place, _BAD)


def version_of(parsed: object, place: str) -> int:
    """The version that a parsed metadata.json states. Raises UserError (code `bad-metadata`)."""
    return Reader(parsed, place, _BAD).number("version")


def metadata_schema() -> Schema:
    """The JSON schema of metadata.json."""
    return json_schema(LibraryMetadata, f"Model Library Format, version {VERSION}")
