"""`Executable`: the artifacts of one compile, ready to be run here or exported."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tensorkiln.artifact import Artifact, ArtifactSet, Content
from tensorkiln.artifact.metadata import KernelInfo
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.codegen.host_c import exported_symbols, required_features
from tensorkiln.codegen.host_function import HostFunction
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.link.shared import Fcompile, link_shared
from tensorkiln.target import Target, cpu_target

if TYPE_CHECKING:
    from tensorkiln.codegen.outer_c import OuterCode
    from tensorkiln.runtime.module import Module, TensorFunction


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


def _source_name(a: Artifact) -> str:
    """What a C source is called among all others when it is compiled."""
    return a.file_name if a.codegen_id == "host" else a.name.replace("/", "_")


def _weights_of(artifacts: ArtifactSet) -> Content | None:
    """The weights, None without any."""
    return next((a.content for a in artifacts if a.file_name == "weights.bin"), None)


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
    `libraries` are arguments of the linker that externals ask for, `linker` is the target's."""

    artifacts: ArtifactSet
    target: Target
    functions: tuple[HostFunction, ...]
    name: str
    module: IRModule
    kernels: tuple[KernelInfo, ...] = ()
    libraries: tuple[str, ...] = ()
    linker: Fcompile | str | None = None
    outer: OuterCode | None = None
    _loaded: Module | None = field(default=None, repr=False)
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    def jit(self, fcompile: Fcompile | str | None = None) -> Module:
        """Link into a temporary library and load it: the very road an exported one takes."""
        from tensorkiln.runtime import load_module

        if self._loaded is None or self._loaded.library.closed:
            self._folder = tempfile.TemporaryDirectory(prefix="kiln-jit-")
            path = Path(self._folder.name) / f"{self.name}.so"
            self._loaded = load_module(self.export_library(path, fcompile=fcompile))
        return self._loaded

    def __getitem__(self, name: str) -> TensorFunction:
        return self.jit()[name]

    def export_library(
        self,
        file_name: str | Path,
        fcompile: Fcompile | str | None = None,
        workspace_dir: str | Path | None = None,
        addons: Sequence[Path | bytes] = (),
        exports: Sequence[str] = (),
    ) -> Path:
        """Link everything into one shared library `file_name` and return its path.

        `fcompile` is a compiler command or a callable (output, files, options); `addons` are
        further object files; `workspace_dir` keeps every intermediate file; `exports` are further
        symbols to show, such as those of kernels. The library appears whole or not at all. Raises
        UserError for a suffix other than .so.
        """
        path = Path(file_name)
        if path.suffix != ".so":
            raise UserError(
                f"cannot export {path.name!r}: expected a name ending in .so",
                code="unknown-suffix",
                hint=f"did you mean {path.with_suffix('.so').name!r}?",
            )
        objects = [a.view for a in self.artifacts if a.file_name.endswith(".o")]
        sources = {_source_name(a): a.text() for a in self.artifacts if a.file_name.endswith(".c")}
        with _externs_named(self.module):
            return link_shared(
                [*objects, *addons],
                sources,
                _weights_of(self.artifacts),
                path,
                triple=cpu_target(self.target).mtriple,
                exports=[
                    *exported_symbols(self.functions, prefix=self.name, outer=self.outer),
                    *exports,
                ],
                libraries=self.libraries,
                fcompile=fcompile or self.linker,
                workspace_dir=workspace_dir,
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
        prefix, weights = self.name, _weights_of(self.artifacts)
        code = [a for a in self.artifacts if a.codegen_id not in ("host", "ir")]
        kernels = [k.symbol for k in self.kernels]
        symbols = {k: kernel_prefix(prefix) + k for k in kernels}
        symbols["kiln_parallel_for"] = f"{prefix}_parallel_for"
        features = required_features(cpu_target(self.target).required_features)
        size = sum(a.size for a in self.artifacts if a.file_name == "weights.bin")
        return write_stripped(
            folder,
            texts={
                f"{prefix}.c": stripped_c(graphs, prefix=prefix, weights_size=size),
                f"{prefix}.h": stripped_h(graphs, prefix=prefix, features=features),
            },
            objects={a.file_name: a.view for a in code if a.file_name.endswith(".o")},
            sources={_source_name(a): a.text() for a in code if a.file_name.endswith(".c")},
            symbols=symbols,
            weights=weights,
            weights_symbol=f"{prefix}_weights_data",
            triple=cpu_target(self.target).mtriple,
        )

    def header(self) -> str:
        """The generated C header."""
        return next(a.text() for a in self.artifacts if a.loader == "header")

    def placement(self) -> tuple[Placement, ...]:
        """Where each kernel runs and by which kernel class."""
        return tuple(
            Placement(k.symbol, "cpu", k.kernel_class, tuple(k.nodes)) for k in self.kernels
        )
