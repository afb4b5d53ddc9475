"""Looking into an exported library without loading any of its code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tensorkiln.artifact.elf import Elf, read_elf
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.base.errors import UserError

META_SECTION = ".kiln.meta"


@dataclass(frozen=True, slots=True)
class KernelSize:
    """A kernel and the bytes of its code."""

    symbol: str
    code_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryReport:
    """What an exported library is: its file, its sections, and what it says about itself."""

    path: str
    machine: str
    file_bytes: int
    sections: tuple[tuple[str, int], ...]
    needed: tuple[str, ...]
    exports: tuple[str, ...]
    kernels: tuple[KernelSize, ...]
    kernel_code_bytes: int
    runtime_code_bytes: int
    weights_bytes: int
    metadata: Metadata

    def to_json(self) -> dict[str, object]:
        """Plain values for `kiln inspect --json`."""
        return {
            "path": self.path,
            "machine": self.machine,
            "file_bytes": self.file_bytes,
            "sections": dict(self.sections),
            "needed": list(self.needed),
            "exports": list(self.exports),
            "kernel_code": {kernel.symbol: kernel.code_bytes for kernel in self.kernels},
            "kernel_code_bytes": self.kernel_code_bytes,
            "runtime_code_bytes": self.runtime_code_bytes,
            "weights_bytes": self.weights_bytes,
            "metadata": self.metadata.to_json(),
        }


def inspect_library(path: str | Path) -> LibraryReport:
    """Read an exported library. UserError when it is none of ours, truncated or malformed."""
    elf = read_elf(path)
    metadata = library_metadata(elf)
    kernels = _kernel_sizes(elf, metadata)
    code = sum(s.size for s in elf.sections if s.name.startswith(".text"))
    kernel_code = sum(kernel.code_bytes for kernel in kernels)
    exports = sorted(
        s.name
        for s in elf.symbols(dynamic=True)
        if s.is_defined and s.is_global and not s.is_hidden and s.name
    )
    return LibraryReport(
        path=str(path),
        machine=elf.machine,
        file_bytes=len(elf.data),
        sections=tuple((s.name, s.size) for s in elf.sections if s.allocated and s.size),
        needed=elf.needed(),
        exports=tuple(exports),
        kernels=kernels,
        kernel_code_bytes=kernel_code,
        runtime_code_bytes=code - kernel_code,
        weights_bytes=metadata.weights_bytes,
        metadata=metadata,
    )


def library_metadata(elf: Elf) -> Metadata:
    """The metadata section of a library, parsed."""
    section = elf.section(META_SECTION)
    if section is None:
        raise UserError(
            f"no {META_SECTION} section: not a library made by kiln",
            code="bad-library",
            where=elf.where,
        )
    return Metadata.from_bytes(elf.content(section), f"{elf.where}:{META_SECTION}")


def _kernel_sizes(elf: Elf, metadata: Metadata) -> tuple[KernelSize, ...]:
    """Code bytes of each kernel, its parallel bodies (`name.body0`, ...) included, in call order.

    A stripped library has them all as zero.
    """
    sizes: dict[str, int] = {}
    for s in elf.symbols():
        if s.is_function and s.is_defined:
            kernel = s.name.partition(".")[0]
            sizes[kernel] = sizes.get(kernel, 0) + s.size
    return tuple(KernelSize(k.symbol, sizes.get(k.symbol, 0)) for k in metadata.kernels)
