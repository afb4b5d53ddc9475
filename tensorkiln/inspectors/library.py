"""The report on a compiled library, read from its file: none of its code is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorkiln.artifact import digest, sections
from tensorkiln.artifact.binary import BinaryFile
from tensorkiln.artifact.c_library import SystemNeed
from tensorkiln.artifact.components import linked_need
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.base.errors import UserError
from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.inspectors.objects import ObjectFunction, functions_of


@dataclass(frozen=True, slots=True)
class KernelSize:
    """A kernel and the bytes of its code; 0 in a stripped library."""

    symbol: str
    code_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryReport(JsonRecord):
    """An exported library: its file and sections (name, bytes), what it needs of the system, the
    libraries it needs, the symbols it exports, bytes of code and weights, and its metadata.
    `digest` says what the file's own one is: "right", "none", or "wrong: " and why."""

    path: str
    machine: str
    file_bytes: int
    digest: str
    sections: tuple[tuple[str, int], ...]
    system: SystemNeed
    needed: tuple[str, ...]
    exports: tuple[str, ...]
    kernels: tuple[KernelSize, ...] = field(metadata=json_key("kernel_code"))
    kernel_code_bytes: int
    runtime_code_bytes: int
    weights_bytes: int
    metadata: Metadata

    def to_json(self) -> dict[str, Any]:
        """Plain values for `kiln inspect --json`."""
        return JsonRecord.to_json(self) | {
            "sections": dict(self.sections),
            "kernel_code": {kernel.symbol: kernel.code_bytes for kernel in self.kernels},
        }


def inspect_library(path: str | Path) -> LibraryReport:
    """Read an exported library. UserError if it was not made by kiln, is truncated or malformed."""
    binary = read_binary(path)
    metadata = library_metadata(binary)
    code_of = kernels_of(binary, metadata)
    kernels = tuple(
        KernelSize(k.symbol, sum(f.size for f in code_of.get(k.symbol, ())))
        for k in metadata.kernels
    )
    code = sum(s.size for s in binary.sections if s.name.startswith(".text"))
    kernel_code = sum(kernel.code_bytes for kernel in kernels)
    exports = sorted(
        s.name
        for s in binary.symbols(dynamic=True)
        if s.is_defined and s.is_global and not s.is_hidden and s.name
    )
    return LibraryReport(
        path=str(path),
        machine=binary.machine,
        file_bytes=len(binary.data),
        digest=_digest_text(binary),
        sections=tuple((s.name, s.size) for s in binary.sections if s.allocated and s.size),
        system=linked_need(metadata.system, [binary]),
        needed=binary.needed(),
        exports=tuple(exports),
        kernels=kernels,
        kernel_code_bytes=kernel_code,
        runtime_code_bytes=code - kernel_code,
        weights_bytes=metadata.weights_bytes,
        metadata=metadata,
    )


def _digest_text(binary: BinaryFile) -> str:
    fault = digest.damage(binary.data, len(binary.data))
    return "none" if fault is None else f"wrong: {fault}" if fault else "right"


def library_metadata(binary: BinaryFile) -> Metadata:
    """The metadata of a library. UserError if it has no metadata section (code `bad-library`), or
    one that cannot be parsed (`bad-metadata`)."""
    section = binary.section(sections.METADATA)
    if section is None:
        raise UserError(
            f"no {sections.METADATA} section: not a library made by kiln",
            code="bad-library",
            where=binary.place,
        )
    return Metadata.from_bytes(binary.content(section), f"{binary.place}:{sections.METADATA}")


def kernels_of(binary: BinaryFile, metadata: Metadata) -> dict[str, list[ObjectFunction]]:
    """The functions of each kernel in order of address, including its parallel bodies
    (`name.body0`). Empty for a stripped library, which has no symbols for them."""
    symbols = {kernel.symbol for kernel in metadata.kernels}
    functions: dict[str, list[ObjectFunction]] = {}
    for f in functions_of(binary):
        kernel = f.name.partition(".")[0]
        if kernel in symbols:
            functions.setdefault(kernel, []).append(f)
    return functions
