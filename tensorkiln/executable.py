"""`Executable`: the artifacts of one compile, ready to be run here or exported."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.metadata import KernelInfo
from tensorkiln.artifact.sections import WEIGHTS_PAD
from tensorkiln.artifact.tar import write_tar
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError, nearest
from tensorkiln.codegen.host_function import HostFunction
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.link.artifacts import (
    LOADER_EXPORTS,
    WEIGHTS,
    LinkPlan,
    container_object,
    link_artifacts,
    rides,
    source_name,
)
from tensorkiln.link.shared import RUNTIME_EXPORTS, Fcompile
from tensorkiln.link.static import link_static
from tensorkiln.target import Target, cpu_target

if TYPE_CHECKING:
    from tensorkiln.codegen.outer_c import OuterCode
    from tensorkiln.runtime.device import Device
    from tensorkiln.runtime.module import Module, TensorFunction
    from tensorkiln.runtime.native import Image


@contextmanager
def _externs_named(mod: IRModule) -> Iterator[None]:
    """A C function that a tensor program calls and no library has is its author's mistake."""
    try:
        yield
    except InternalError as error:
        lacking = [
            f"{f.name} calls {e.name}"
            for f in mod.prim_funcs
            for s in walk_stmt(f.body)
            for root in stmt_exprs(s)
            for e in walk(root)
            if isinstance(e, CallExtern) and re.search(rf"\b{e.name}\b", error.message)
        ]
        if error.code != "undefined-symbol" or not lacking:
            raise
        raise UserError(
            f"no library has it: {', '.join(dict.fromkeys(lacking))}",
            code="undefined-symbol",
            hint="C functions come from libc, libm, or the `addons` of export_library",
        ) from error


def export_library(
    artifacts: ArtifactSet,
    file_name: str | Path,
    fcompile: Fcompile | str | None = None,
    workspace_dir: str | Path | None = None,
    addons: Sequence[str | Path | bytes] = (),
    exports: Sequence[str] = (),
    weights: str = "embedded",
) -> Path:
    """Make one file of the artifacts of a compile, such as `ArtifactSet.load` gives.

    As `Executable.export_library`.
    """
    path = Path(file_name)
    if weights not in ("embedded", "beside"):
        raise UserError(
            f"weights={weights!r}: they are 'embedded' in a library, or 'beside' it",
            code="bad-argument",
            hint=nearest(weights, ("embedded", "beside")),
        )
    beside = weights == "beside"
    if path.suffix in (".a", ".o", ".tar") and beside:
        raise UserError(
            f"weights lie beside shared libraries, not beside {path.name!r}", code="bad-argument"
        )
    if path.suffix == ".tar":
        return write_tar(artifacts, path)
    if path.suffix not in (".so", ".a", ".o"):
        raise _suffix_error(path)
    link = functools.partial(link_artifacts, beside=beside) if path.suffix == ".so" else link_static
    return link(
        artifacts,
        path,
        fcompile=fcompile,
        workspace_dir=workspace_dir,
        addons=addons,
        exports=exports,
    )


def load_artifacts(
    artifacts: ArtifactSet,
    devices: Device | Sequence[Device] | None = None,
    library: Module | None = None,
) -> Module:
    """Load the artifacts of a compile in this process, the way an exported library is loaded.

    Artifacts without native code, such as another program for a device, serve `library`. The road
    is `runtime/load.py`, step by step. UserErrors are those of `export_library` and `load_module`,
    and `no-library`.
    """
    from tensorkiln.runtime import load

    return load.load_artifacts(artifacts, devices, link=_link_here, library=library)


def _link_here(
    artifacts: ArtifactSet, folder: Path, fcompile: Fcompile | str | None = None
) -> Path | Image:
    plan = LinkPlan.of(artifacts)
    if any(a.loader == "llvmjit" for a in artifacts):
        return _linked_in_memory(artifacts, plan)
    path = folder / f"{plan.name}.so"
    return link_artifacts(artifacts, path, fcompile=fcompile, in_memory=True)


def _linked_in_memory(artifacts: ArtifactSet, plan: LinkPlan) -> Image:
    """Bitcode, objects and weights of target `llvmjit`, as a library that is no file."""
    import ctypes
    import json

    import numpy as np

    from tensorkiln.codegen.llvm.jit import link_in_memory
    from tensorkiln.runtime.library_file import LibraryFile
    from tensorkiln.runtime.native import Image

    own = [a for a in artifacts if isinstance(a, Artifact) and a.loader == "llvmjit"]
    carries = any(rides(group) for group in artifacts.groups())
    objects = [bytes(a.view) for a in own if a.file_name.endswith(".o")]
    objects.append(b"".join(container_object(artifacts, plan.triple)))  # if only its root
    weights = next((a.view for a in own if a.file_name == WEIGHTS), memoryview(b""))
    memory = np.zeros(len(weights) + WEIGHTS_PAD + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(weights)] = np.frombuffer(weights, np.uint8)
    code = link_in_memory(
        [(a.name, bytes(a.view)) for a in own if a.file_name.endswith(".bc")],
        objects,
        [*RUNTIME_EXPORTS, _UNLOAD, *plan.exports, *(LOADER_EXPORTS if carries else ())],
        {"kiln_weights": memory.ctypes.data + start} if len(weights) else {},
    )
    read_metadata = ctypes.CFUNCTYPE(ctypes.c_char_p)(code.addresses["kiln_metadata"])
    metadata = json.loads(read_metadata() or b"{}")
    file = LibraryFile(
        Path(f"<{plan.name} in memory>"),
        plan.triple.partition("-")[0],
        metadata,
        (0, 0) if carries else None,
    )

    def unload(kept: object = memory) -> None:
        """What dlclose() would do. The weights go with the code that reads them."""
        ctypes.CFUNCTYPE(None)(code.addresses[_UNLOAD])()
        code.unload()

    return Image(file, code.addresses, unload)


# Not in RUNTIME_EXPORTS: dlclose() finds it without a name.
_UNLOAD = "kiln_unload"
_SYSTEMS = {".dylib": "macOS", ".dll": "Windows", ".wasm": "WebAssembly"}


def _suffix_error(path: Path) -> Exception:
    if path.suffix in _SYSTEMS:
        return UnsupportedError(
            f"cannot export {path.name!r}: no libraries for {_SYSTEMS[path.suffix]} yet",
            hint="a name ending in .so, .a, .o or .tar, for Linux",
        )
    near = nearest(path.suffix, (".so", ".a", ".o", ".tar")) if path.suffix else ""
    return UserError(
        f"cannot export {path.name!r}: expected a name ending in .so, .a, .o or .tar",
        code="unknown-suffix",
        hint=near or f"did you mean {path.with_suffix('.so').name!r}?",
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a kernel runs, and which schedule made it."""

    kernel: str
    device: str
    kernel_class: str
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Executable:
    """What `compile` returns. `module` is the lowered IR that the kernels were generated from;
    `linker` is the target's."""

    artifacts: ArtifactSet
    target: Target
    functions: tuple[HostFunction, ...]
    name: str
    module: IRModule
    kernels: tuple[KernelInfo, ...] = ()
    linker: Fcompile | str | None = None
    outer: OuterCode | None = None
    _loaded: Module | None = field(default=None, repr=False)

    def jit(
        self,
        fcompile: Fcompile | str | None = None,
        devices: Device | Sequence[Device] | None = None,
    ) -> Module:
        """Link into a temporary library and load it: the very road an exported one takes.

        Once: later calls give the same Module, unless they name a compiler or devices.
        """
        from tensorkiln.runtime import load

        asked = fcompile is not None or devices is not None
        if asked or self._loaded is None or self._loaded.library.closed:
            self._loaded = load.load_artifacts(
                self.artifacts, devices, link=lambda a, folder: self._link(a, folder, fcompile)
            )
        return self._loaded

    def _link(
        self, artifacts: ArtifactSet, folder: Path, fcompile: Fcompile | str | None
    ) -> Path | Image:
        with _externs_named(self.module):
            return _link_here(artifacts, folder, fcompile or self.linker)

    def __getitem__(self, name: str) -> TensorFunction:
        return self.jit()[name]

    def export_library(
        self,
        file_name: str | Path,
        fcompile: Fcompile | str | None = None,
        workspace_dir: str | Path | None = None,
        addons: Sequence[str | Path | bytes] = (),
        exports: Sequence[str] = (),
        weights: str = "embedded",
    ) -> Path:
        """Make one file of everything and return its path. The suffix says what:

        `.so` a shared library; `.a` an archive and `.o` an object, for programs that link it in;
        `.tar` the artifacts, unlinked. `fcompile` is a compiler command or, for `.so`, a callable
        (output, files, options); `addons` are further object files; `workspace_dir` keeps every
        intermediate file; `exports` are further symbols to show, such as those of kernels. With
        `weights="beside"` a `.so` has them in a second file of its name, `net.safetensors`, which
        must stay beside it. Files appear whole or not at all. Raises UserError for other suffixes,
        UnsupportedError for those of other systems.
        """
        linker = fcompile or self.linker
        with _externs_named(self.module):
            return export_library(
                self.artifacts, file_name, linker, workspace_dir, addons, exports, weights
            )

    def export_stripped(self, folder: str | Path) -> Path:
        """Write objects, one C file and its header for programs that provide the storages of
        intermediate results themselves, and return the folder.

        Nothing in them allocates, checks tensors or starts threads (docs/howto/manage-storage.md).
        The folder appears whole or not at all. Raises UserError where there is no graph function,
        UnsupportedError where functions run as host steps, which allocate.
        """
        from tensorkiln.codegen.stripped_c import kernel_prefix, stripped_c, stripped_h
        from tensorkiln.link.stripped import write_stripped

        if self.module.outers:
            names = ", ".join(f.name for f in self.module.outers)
            raise UnsupportedError(
                f"{names}: host steps (branches, loops, values other than tensors) allocate",
                hint="export_library(), or only the functions without them",
            )
        graphs = [f for f in self.functions if f.kind == "graph"]
        if not graphs:
            raise UserError(
                "the module has no graph function, so there are no storages to manage",
                code="nothing-to-export",
                hint="export_library(); tensor programs allocate nothing",
            )
        prefix = self.name
        weights = next((a for a in self.artifacts.plain if a.file_name == WEIGHTS), None)
        code = [a for a in self.artifacts.plain if a.codegen_id not in ("host", "ir")]
        kernels = [k.symbol for k in self.kernels]
        symbols = {k: kernel_prefix(prefix) + k for k in kernels}
        symbols["kiln_parallel_for"] = f"{prefix}_parallel_for"
        features = cpu_target(self.target).required_features
        size = weights.size if weights else 0
        table = [a for a in self.artifacts.plain if a.name == "host/weights.json"]
        return write_stripped(
            folder,
            texts={
                f"{prefix}.c": stripped_c(graphs, prefix=prefix, weights_size=size),
                f"{prefix}.h": stripped_h(graphs, prefix=prefix, features=features),
                **{a.file_name: a.text() for a in table},
            },
            objects={a.file_name: a.view for a in code if a.file_name.endswith(".o")},
            sources={source_name(a): a.text() for a in code if a.file_name.endswith(".c")},
            symbols=symbols,
            weights=weights.content if weights else None,
            weights_symbol=f"{prefix}_weights_data",
            triple=cpu_target(self.target).mtriple,
        )

    def header(self) -> str:
        """The generated C header."""
        return self.artifacts[f"{self.name}.h"].text()

    def placement(self) -> tuple[Placement, ...]:
        """Where each kernel runs and by which kernel class."""
        return tuple(
            Placement(k.symbol, "cpu", k.kernel_class, tuple(k.nodes)) for k in self.kernels
        )
