"""`Executable`: the artifacts of one compile, ready to be run here or exported."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.metadata import FunctionInfo, KernelInfo
from tensorkiln.artifact.sections import WEIGHTS_PAD, WEIGHTS_SYMBOL
from tensorkiln.artifact.tar import write_tar
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.codegen.host.function import HostFunction, OuterCode
from tensorkiln.ir.expr import CallExtern
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.link.arguments import check_command, check_link_arguments, checked_addons
from tensorkiln.link.artifacts import (
    LOADER_EXPORTS,
    WEIGHTS,
    LinkPlan,
    addon_objects,
    container_object,
    is_embedded,
    link_artifacts,
    source_name,
)
from tensorkiln.link.libraries import found_libraries
from tensorkiln.link.shared import RUNTIME_EXPORTS, Fcompile
from tensorkiln.link.static import link_static
from tensorkiln.target import Target, cpu_target

if TYPE_CHECKING:
    from tensorkiln.runtime.device import Device
    from tensorkiln.runtime.module import Executor, Module
    from tensorkiln.runtime.native import Image
    from tensorkiln.runtime.tensor_function import TensorFunction


def _lacks(error: InternalError, name: str) -> bool:
    """Whether a link failed because the C function `name` is undefined.

    Linking in memory, LLVM does not name the symbol: any function this process lacks may be it.
    """
    if error.code == "undefined-symbol":
        return re.search(rf"\b{name}\b", error.message) is not None
    return error.code == "link-failed" and "in memory" in error.message and not _is_loaded(name)


def _is_loaded(name: str) -> bool:
    """Whether this process has a C function of that name."""
    import ctypes

    return hasattr(ctypes.CDLL(None), name)


@contextmanager
def _externs_named(mod: IRModule) -> Iterator[None]:
    """Turn the InternalError of a failed link into a UserError that names the undefined C functions
    and the tensor programs that call them; other InternalErrors pass unchanged."""
    try:
        yield
    except InternalError as error:
        lacking = [
            f"{f.name} calls {e.name}"
            for f in mod.prim_funcs
            for s in walk_stmt(f.body)
            for root in stmt_exprs(s)
            for e in walk(root)
            if isinstance(e, CallExtern) and _lacks(error, e.name)
        ]
        if not lacking:
            raise
        raise UserError(
            f"undefined C function: {', '.join(dict.fromkeys(lacking))}",
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
    """Write the artifacts of a compile, such as `ArtifactSet.load` returns, as one file.

    Arguments, result and errors are those of `Executable.export_library`.
    """
    path = check_link_arguments(file_name, fcompile, workspace_dir, addons, exports)
    if weights not in ("embedded", "beside"):
        raise UserError(
            f"weights={weights!r}: they are 'embedded' in a library, or 'beside' it",
            code="bad-argument",
            hint=nearest(str(weights), ("embedded", "beside")),
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
    addons, exports = tuple(addons), tuple(exports)
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

    Artifacts without native code, such as a new program for a device, are attached to `library`,
    a loaded Module, and replace its modules of the same loader and target key; `library` is then
    returned. Raises the UserErrors of `export_library` and `load_module`, and `no-library` when
    there is neither native code nor `library`, or both. The steps are in `runtime/load.py`.
    """
    from tensorkiln.runtime import load

    return load.load_artifacts(artifacts, devices, link=_link_here, library=library)


def _link_here(
    artifacts: ArtifactSet,
    folder: Path,
    fcompile: Fcompile | str | None = None,
    addons: Sequence[str | Path | bytes] = (),
) -> Path | Image:
    plan = LinkPlan.of(artifacts)
    if any(a.loader == "llvmjit" for a in artifacts):
        return _linked_in_memory(artifacts, plan, addons)
    path = folder / f"{plan.name}.so"
    return link_artifacts(artifacts, path, fcompile=fcompile, addons=addons, in_memory=True)


def _linked_in_memory(
    artifacts: ArtifactSet, plan: LinkPlan, addons: Sequence[str | Path | bytes]
) -> Image:
    """Link bitcode, objects and weights of target `llvmjit` into this process, without a file."""
    import ctypes
    import json

    import numpy as np

    from tensorkiln.codegen.llvm.jit import link_in_memory
    from tensorkiln.link.audit import require_weights
    from tensorkiln.runtime.library_file import LibraryFile
    from tensorkiln.runtime.native import Image

    own = [a for a in artifacts if isinstance(a, Artifact) and a.loader == "llvmjit"]
    libraries = found_libraries(plan.libraries)
    if libraries:
        raise UnsupportedError(
            f"llvmjit links no libraries: {', '.join(libraries)}", hint="target llvm"
        )
    carries = any(is_embedded(group) for group in artifacts.groups())
    objects = [bytes(a.view) for a in own if a.file_name.endswith(".o")]
    objects += [bytes(data) for _, data in addon_objects(addons, plan.triple)]
    objects.append(b"".join(container_object(artifacts, plan.triple)))  # at least its root
    weights = next((a.view for a in own if a.file_name == WEIGHTS), memoryview(b""))
    memory = np.zeros(len(weights) + WEIGHTS_PAD + 64, np.uint8)
    start = -memory.ctypes.data % 64
    memory[start : start + len(weights)] = np.frombuffer(weights, np.uint8)
    code = link_in_memory(
        [(a.name, bytes(a.view)) for a in own if a.file_name.endswith(".bc")],
        objects,
        [*RUNTIME_EXPORTS, _UNLOAD, *plan.exports, *(LOADER_EXPORTS if carries else ())],
        {WEIGHTS_SYMBOL: memory.ctypes.data + start} if len(weights) else {},
    )
    read_metadata = ctypes.CFUNCTYPE(ctypes.c_char_p)(code.addresses["kiln_metadata"])
    text = read_metadata() or b"{}"
    require_weights(text, len(weights))
    metadata = json.loads(text)
    file = LibraryFile(
        Path(f"<{plan.name} in memory>"),
        plan.triple.partition("-")[0],
        metadata,
        (0, 0) if carries else None,
    )

    def unload(kept: object = memory) -> None:
        """Do what dlclose() would. The default argument keeps the weights alive until then."""
        ctypes.CFUNCTYPE(None)(code.addresses[_UNLOAD])()
        code.unload()

    return Image(file, code.addresses, unload)


_MOST_ROWS = 50  # functions listed in a notebook
# Not in RUNTIME_EXPORTS: dlclose() runs it as a destructor, which needs no exported symbol.
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
        hint=near or f"did you mean {f'{path.stem}.so'!r}?" if path.name else "'net.so'",
    )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a kernel runs, its class (of its schedule, or `external:<name>`), and the model's nodes
    that it computes."""

    kernel: str
    device: str
    kernel_class: str
    nodes: tuple[str, ...]


@dataclass(slots=True)
class Executable:
    """What `compile` returns: artifacts that can be run here or exported.

    `module` is the lowered IR that the kernels were generated from, without the bodies of those
    that the cache knew: `module.with_programs()` has all. `linker`, from the target's kind, links
    them where the caller names no compiler; `outer` is the code of outer functions.
    """

    artifacts: ArtifactSet
    target: Target
    functions: tuple[HostFunction, ...]
    name: str
    module: IRModule
    kernels: tuple[KernelInfo, ...] = ()
    linker: Fcompile | str | None = None
    outer: OuterCode | None = None
    _loaded: Module | None = field(default=None, repr=False)
    _executor: Executor | None = field(default=None, repr=False)

    def jit(
        self,
        fcompile: Fcompile | str | None = None,
        addons: Sequence[str | Path | bytes] = (),
        devices: Device | Sequence[Device] | None = None,
        force_recompile: bool = False,
    ) -> Module:
        """Link a temporary library and load it, exactly as an exported one is linked and loaded.

        The Module is kept: later calls return the same one unless it was closed, or they pass a
        compiler, `addons` (further object files, as for `export_library`), devices or
        `force_recompile`.
        """
        from tensorkiln.runtime import load

        check_command(fcompile)
        addons = checked_addons(addons)
        asked = fcompile is not None or devices is not None or bool(addons) or force_recompile
        if asked or self._loaded is None or self._loaded.library.closed:
            self._loaded = load.load_artifacts(
                self.artifacts,
                devices,
                link=lambda a, folder: self._link(a, folder, fcompile, addons),
            )
            self._executor = None
        return self._loaded

    def _link(
        self,
        artifacts: ArtifactSet,
        folder: Path,
        fcompile: Fcompile | str | None,
        addons: Sequence[str | Path | bytes],
    ) -> Path | Image:
        with _externs_named(self.module):
            return _link_here(artifacts, folder, fcompile or self.linker, addons)

    def create_executor(self, devices: Device | Sequence[Device] | None = None) -> Executor:
        """A new Executor of the functions on `devices` (None: the CPU), with its own workspace."""
        return self.jit().create_executor(devices)

    def __getitem__(self, name: str) -> TensorFunction:
        """A tensor function by name; the first access links and loads the library (`jit`)."""
        return self.jit()[name]

    @property
    def entry(self) -> str:
        """The name of the function that `exe(...)` calls: `main`, else the only public function.
        Raises UserError (code `no-entry`) where there are several and none is `main`."""
        names = [f.name for f in self._infos()]
        if "main" in names or len(names) == 1:
            return "main" if "main" in names else names[0]
        raise UserError(
            f"expected a function 'main' or only one function, received {', '.join(names)}",
            code="no-entry",
            hint=f"call one of them: create_executor()[{names[0]!r}](...)",
        )

    def __call__(self, *arguments: Any) -> Any:
        """Call the entry on the CPU: a graph function returns its results, a tensor program writes
        into the arrays passed to it. The executor is created once and kept."""
        library = self.jit()
        if self._executor is None:
            self._executor = library.create_executor()
        return self._executor[self.entry](*arguments)

    def export_library(
        self,
        file_name: str | Path,
        fcompile: Fcompile | str | None = None,
        workspace_dir: str | Path | None = None,
        addons: Sequence[str | Path | bytes] = (),
        exports: Sequence[str] = (),
        weights: str = "embedded",
    ) -> Path:
        """Write everything to one file and return its path. The suffix decides the format:

        `.so` a shared library; `.a` an archive and `.o` an object, for programs that link it in;
        `.tar` the artifacts, unlinked. `fcompile` is a compiler command or, for `.so`, a callable
        (output, files, options); `addons` are further object files; `workspace_dir` keeps every
        intermediate file; `exports` are further symbols to export, such as those of kernels. With
        `weights="beside"` the weights of `net.so` go to a second file, `net.safetensors`, which
        must stay beside it. Files are written atomically. Raises UserError for an unknown suffix,
        UnsupportedError for one of another system (`.dylib`, `.dll`, `.wasm`).
        """
        linker = fcompile or self.linker
        with _externs_named(self.module):
            return export_library(
                self.artifacts, file_name, linker, workspace_dir, addons, exports, weights
            )

    def export_stripped(self, folder: str | Path) -> Path:
        """Write objects, one C file and its header for programs that allocate the storages of
        intermediate results themselves, and return the folder.

        Nothing in them allocates, checks tensors or starts threads (docs/howto/manage-storage.md).
        The folder is written atomically. Raises UserError for a module without graph functions,
        UnsupportedError for one with control flow, whose host steps allocate.
        """
        from tensorkiln.codegen.host.stripped_c import kernel_prefix, stripped_c, stripped_h
        from tensorkiln.link.stripped import write_stripped

        if self.module.outers:
            names = ", ".join(f.name for f in self.module.outers)
            raise UnsupportedError(
                f"{names}: host steps (branches, loops, values other than tensors) allocate",
                hint="export_library(), or only the functions without them",
            )
        graphs = [f for f in self.functions if f.info.kind == "graph"]
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

    def __repr__(self) -> str:
        """One line: its functions, target and kernels."""
        functions = listed((f.name for f in self._infos()), 8)
        target = self.target.tag or self.target.kind
        return (
            f"<Executable {self.name!r}: {functions} for {target}, {len(self.kernels)} kernel(s), "
            f"{len(self.artifacts)} artifacts>"
        )

    def _infos(self) -> list[FunctionInfo]:
        """What metadata says of each public function."""
        return [*(f.info for f in self.functions), *(self.outer.infos if self.outer else ())]

    def _repr_html_(self) -> str:
        """An HTML table for notebooks: functions, target, number of kernels, bytes."""
        files = [a for a in self.artifacts if isinstance(a, Artifact)]
        weights = sum(a.size for a in files if a.file_name == WEIGHTS)
        code = sum(a.size for a in files if a.file_name.endswith((".o", ".bc")))
        infos = self._infos()[:_MOST_ROWS]
        functions = [(f.name, f"{f.kind}, {f.kernel_calls} kernel call(s)") for f in infos]
        about = [
            ("target", str(self.target)),
            ("kernels", str(len(self.kernels))),
            ("code", f"{code:,} bytes"),
            ("weights", f"{weights:,} bytes"),
        ]
        rows = [
            f"<tr><th>{escape(name)}</th><td>{escape(what)}</td></tr>"
            for name, what in [*functions, *about]
        ]
        return f"<table><caption>{escape(self.name)}</caption>{''.join(rows)}</table>"

    def header(self) -> str:
        """The generated C header."""
        return self.artifacts[f"{self.name}.h"].text()

    def placement(self) -> tuple[Placement, ...]:
        """Where each kernel runs and by which kernel class."""
        return tuple(
            Placement(k.symbol, "cpu", k.kernel_class, tuple(k.nodes)) for k in self.kernels
        )
