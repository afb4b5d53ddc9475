"""`Executable`: the artifacts of one compile, which can be run in this process or exported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.bundle import bundled_sources, with_sources
from tensorkiln.artifact.components import Component, components, set_metadata
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.artifact.metadata import FunctionInfo, KernelInfo
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError, require
from tensorkiln.base.files import plain_path
from tensorkiln.base.text import listed
from tensorkiln.codegen.c_text.names import library_name
from tensorkiln.codegen.host.function import HostFunction, OuterCode
from tensorkiln.ir.expr import CallExtern, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.tensor_bytes import known_bytes
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.library.export import export_library
from tensorkiln.link.arguments import check_command, checked_addons
from tensorkiln.link.artifacts import WEIGHTS
from tensorkiln.link.shared import Fcompile
from tensorkiln.target import HOST, Target, cpu_target, devices_of, runnable_level

if TYPE_CHECKING:
    from tensorkiln.codegen.memory import MemoryReport
    from tensorkiln.codegen.memory.weights import ModelWeights
    from tensorkiln.mlf.export import CompiledModel
    from tensorkiln.passes import Pass
    from tensorkiln.runtime.device import Devices
    from tensorkiln.runtime.loaded import LoadedModel
    from tensorkiln.runtime.module import Executor, Module
    from tensorkiln.runtime.tensor_function import TensorFunction


def _lacks(error: InternalError | UserError, name: str) -> bool:
    """Whether a link failed because the C function `name` is undefined. When linking in memory,
    LLVM does not say which symbol is undefined; then any function that this process lacks
    counts."""
    if error.code == "undefined-symbol":
        return re.search(rf"\b{name}\b", error.message) is not None
    return error.code == "link-failed" and "in memory" in error.message and not _is_loaded(name)


def _is_loaded(name: str) -> bool:
    """Whether this process has a C function of that name."""
    import ctypes

    return hasattr(ctypes.CDLL(None), name)


@contextmanager
def _externs_named(mod: IRModule) -> Iterator[None]:
    """Turn the error of a failed link into a UserError that names the undefined C functions and
    the tensor programs that call them; other errors pass unchanged."""
    try:
        yield
    except (InternalError, UserError) as error:
        lacking = [
            (f"{f.name} calls {e.name}", e.dependencies)
            for f in mod.prim_funcs
            for s in walk_stmt(f.body)
            for root in stmt_exprs(s)
            for e in walk(root)
            if isinstance(e, CallExtern) and _lacks(error, e.name)
        ]
        if not lacking:
            raise
        needs = dict.fromkeys(str(d) for _, dependencies in lacking for d in dependencies)
        origin = f"it comes with dependency {listed(needs)}; " if needs else ""
        raise UserError(
            f"undefined C function: {', '.join(dict.fromkeys(text for text, _ in lacking))}",
            code="undefined-symbol",
            hint=f"{origin}C functions come from libc, libm, or the `addons` of export_library",
        ) from error


def export_model_library_format(
    models: Executable | Sequence[Executable] | Mapping[str, Executable],
    path: str | Path,
    bundle: Mapping[str, str | Path] = MappingProxyType({}),
) -> Path:
    """Write models to one archive in Model Library Format (docs/formats/mlf.md); return its path.

    A mapping gives the models their names. Otherwise each has the name that `compile` was given; a
    single model without one has the name of the file. `bundle` adds the sources of dependencies to
    the archive: a folder or a file for each `short_name`. Raises the errors of
    `Executable.export_model_library_format`, and UserError (code `no-name`, `name-clash`) if
    several models have no name or the same one.
    """
    from tensorkiln.mlf.export import write_library_format

    if isinstance(models, Executable):
        chosen = models.name if models.is_named else library_name(plain_path(path).stem)
        return write_library_format([models._compiled(chosen, bundle)], path)
    require(models, (Sequence, Mapping), "models")
    rows = [*models.items()] if isinstance(models, Mapping) else [("", e) for e in models]
    if not rows:
        raise UserError("expected at least one model", code="nothing-to-export")
    named = []
    for i, (name, executable) in enumerate(rows):
        require(name, str, "a model's name")
        require(executable, Executable, f"model {name or i!r}")
        if not isinstance(models, Mapping):
            if not executable.is_named:
                raise UserError(
                    f"model {i} has no name but its graph's, {executable.name!r}",
                    code="no-name",
                    hint='{"detector": executable, ...}, or compile(name=)',
                )
            name = executable.name
        named.append((name, executable))
    declared = [(f"model {name!r}", d) for name, e in named for d in e.external_dependencies]
    bundled_sources(merge_dependencies(declared), bundle)
    return write_library_format([e._compiled(name, _needed(e, bundle)) for name, e in named], path)


def _needed(executable: Executable, bundle: Mapping[str, str | Path]) -> dict[str, str | Path]:
    names = {d.short_name for d in executable.external_dependencies}
    return {name: path for name, path in bundle.items() if name in names}


@dataclass(frozen=True, slots=True)
class Placement:
    """One kernel: the device it runs on (in a composite a target key or `host`, else `cpu`), its
    class (that of its schedule, or `external:<name>`), and the model's nodes that it computes.

    `refused` are the reasons why externals do not compute these nodes: `"cmsis_nn: its input is
    float32"`. `reasons` explain why several kernels compute a node (`"no attention_fused: its head
    size is symbolic"`) and, in a composite, why nodes are on their device. `tuned` are the knobs
    that a record sets, `"rows=6 terms=2"`; empty if no record applies.
    """

    kernel: str
    device: str
    kernel_class: str
    nodes: tuple[str, ...]
    refused: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    tuned: str = ""


@dataclass(frozen=True, slots=True)
class DeviceCopy:
    """A copy of a tensor between devices in a run of `function`. Devices are called by their target
    keys, or `host`. `nbytes` is None for a symbolic size."""

    function: str
    source: str
    destination: str
    dtype: str
    shape: tuple[int | str, ...]
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """An operator of the model that an external has code for but refused, with the reason."""

    external: str
    node: str
    reason: str


def _copy_row(function: str, program: PrimFunc) -> DeviceCopy:
    assert program.copies is not None
    source, destination = program.copies
    x = program.buffers[0]
    sizes = [int_value(d) for d in x.shape]
    shape = tuple(print_expr(d) if n is None else n for d, n in zip(x.shape, sizes, strict=True))
    return DeviceCopy(
        function, source, destination, x.dtype.name, shape, known_bytes(x.dtype, x.shape)
    )


def tuned_kernels(mod: IRModule) -> dict[str, str]:
    """The knobs that records set, by the kernel's name."""
    return {
        kernel: knobs
        for f in mod.functions
        if isinstance(f, Function)
        for kernel, _, knobs in f.attrs.get("tuned", ())
    }


def refusals_of(mod: IRModule) -> tuple[Refusal, ...]:
    """The refusals that are recorded in the module's functions, in order."""
    return tuple(
        Refusal(*row)
        for f in mod.functions
        if isinstance(f, Function)
        for row in f.attrs.get("refused", ())
    )


def _unpickled(values: dict[str, Any]) -> Executable:
    return Executable(**values)


@dataclass(frozen=True, slots=True)
class Debug:
    """What a compile with `debug=True` keeps for `tk.verify`: the graph `passes`, and the module
    that they made, with fused groups and before their kernels were lowered."""

    fused: IRModule
    passes: tuple[Pass, ...]


@dataclass(frozen=True, slots=True)
class ExecutableLevel:
    """What an Executable has for one processor: the target, the lowered module that its kernels
    were generated from, these kernels, by their names there, and the features that they need."""

    target: Target
    module: IRModule
    kernels: tuple[KernelInfo, ...]
    cpu_features: tuple[str, ...]


@dataclass(slots=True)
class Executable:
    """The result of `compile`: artifacts that can be run here or exported.

    `module` is the lowered IR that the kernels were generated from. Kernels that were found in the
    cache have no bodies there; `module.with_programs()` has all. `linker`, from the target's kind,
    is used if the caller names no compiler. `outer` is the host code of functions with control
    flow, and `external_dependencies` is other software that is needed to link or to run. `is_named`
    is True if the caller of `compile` chose `name`; else it is the module's name. `model_weights`
    are the bytes of the model's constants, for the memory report; `debug` is set by
    `compile(debug=True)`. A processor must have `cpu_features` to run the code: LLVM's names,
    beyond the baseline of its architecture. With `levels`, it has kernels for several processors,
    the least one first, and `module` is that of the last one.
    """

    artifacts: ArtifactSet
    target: Target
    functions: tuple[HostFunction, ...]
    name: str
    module: IRModule
    kernels: tuple[KernelInfo, ...] = ()
    linker: Fcompile | str | None = None
    outer: OuterCode | None = None
    external_dependencies: tuple[ExternalDependency, ...] = ()
    is_named: bool = False
    model_weights: ModelWeights | None = field(default=None, repr=False)
    debug: Debug | None = None
    cpu_features: tuple[str, ...] = ()
    levels: tuple[ExecutableLevel, ...] = ()
    _loaded: Module | None = field(default=None, repr=False)
    _model: LoadedModel | None = field(default=None, repr=False)

    def jit(
        self,
        fcompile: Fcompile | str | None = None,
        addons: Sequence[str | Path | bytes] = (),
        devices: Devices = None,
        force_recompile: bool = False,
    ) -> Module:
        """Link a temporary library and load it, exactly as an exported one is linked and loaded.

        The Module is kept, and later calls return the same one, unless it was closed or they pass a
        compiler, `addons` (further object files, as for `export_library`), devices or
        `force_recompile`.
        """
        from tensorkiln.library.load import load_linked

        check_command(fcompile)
        addons = checked_addons(addons)
        has_options = fcompile is not None or devices is not None or bool(addons) or force_recompile
        if has_options or self._loaded is None or self._loaded.library.closed:
            with _externs_named(self.module):
                self._loaded = load_linked(self.artifacts, devices, fcompile or self.linker, addons)
            self._model = None
        return self._loaded

    def create_executor(
        self, devices: Devices = None, *, fallback: Devices = None, graphs: bool = False
    ) -> Executor:
        """A new Executor of the functions on `devices`, with its own workspace; see Executor."""
        return self.jit().create_executor(devices, fallback=fallback, graphs=graphs)

    def __getitem__(self, name: str) -> TensorFunction:
        """A tensor function by name; the first access links and loads the library (`jit`)."""
        return self.jit()[name]

    @property
    def entry(self) -> str:
        """The name of the function that `exe(...)` calls: `main`, else the only public function.
        Raises UserError (code `no-entry`) where there are several and none is `main`."""
        from tensorkiln.runtime.loaded import required_entry

        return required_entry({f.name: f for f in self._infos()}, "create_executor()")

    @property
    def __signature__(self) -> inspect.Signature:
        """The entry's inputs, for `inspect.signature`, help and editors."""
        from tensorkiln.runtime.loaded import signature_of

        return signature_of(next(f for f in self._infos() if f.name == self.entry))

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Call the entry: a graph function takes arrays, by position or name, and returns NumPy
        arrays, or torch tensors where torch tensors came in (tk.runtime.LoadedFunction); a tensor
        program writes into the arrays passed to it. The library is linked, and its executor made,
        by the first call, and both are kept."""
        return self._linked_model()(*arguments, **named)

    def _linked_model(self) -> LoadedModel:
        """The loaded library that calls of this object use; it is linked and loaded first if
        necessary."""
        if self._model is None or self._model.module.library.closed:
            from tensorkiln.runtime.loaded import LoadedModel

            library = self.jit()
            _ = self.entry  # raises where there is none
            self._model = LoadedModel(library, library.create_executor(), None)
        return self._model

    @property
    def num_threads(self) -> int:
        """The threads that a call may use, the calling one included; assigning 0 restores the
        library's own number (tk.runtime.LoadedModel.num_threads). Links and loads the library."""
        return self._linked_model().num_threads

    @num_threads.setter
    def num_threads(self, threads: int) -> None:
        self._linked_model().num_threads = threads

    def with_threads(self, threads: int) -> LoadedModel:
        """The same functions, whose calls use at most `threads` threads: `f.with_threads(1)(x)`;
        see tk.runtime.LoadedModel.with_threads. Links and loads the library."""
        return self._linked_model().with_threads(threads)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle everything but the loaded library, which is linked again on first use."""
        names = [f.name for f in fields(self) if f.name not in ("_loaded", "_model")]
        return (_unpickled, ({name: getattr(self, name) for name in names},))

    def export_library(
        self,
        file_name: str | Path,
        fcompile: Fcompile | str | None = None,
        workspace_dir: str | Path | None = None,
        addons: Sequence[str | Path | bytes] = (),
        exports: Sequence[str] = (),
        weights: str = "embedded",
        bundle: Mapping[str, str | Path] = MappingProxyType({}),
    ) -> Path:
        """Write everything to one file and return its path. The suffix decides the format:

        `.so` a shared library; `.a` an archive and `.o` an object, for programs that link it in;
        `.tar` the artifacts, unlinked. `fcompile` is a compiler command or, for `.so`, a callable
        (output, files, options); `addons` are further object files; `workspace_dir` keeps every
        intermediate file; `exports` are further symbols to export, such as those of kernels. With
        `weights="beside"` the weights of `net.so` go to a second file, `net.safetensors`, which
        must stay beside it. `bundle`, for `.tar` only, puts the sources of external dependencies
        into the archive: a folder or a file by `short_name`. Files are written atomically. Raises
        UserError for an unknown suffix, UnsupportedError for one of another system (`.dylib`,
        `.dll`, `.wasm`).
        """
        linker = fcompile or self.linker
        with _externs_named(self.module):
            return export_library(
                self.artifacts, file_name, linker, workspace_dir, addons, exports, weights, bundle
            )

    def export_model_library_format(
        self,
        path: str | Path,
        name: str | None = None,
        bundle: Mapping[str, str | Path] = MappingProxyType({}),
    ) -> Path:
        """Write the model in Model Library Format, for programs that are built from source, and
        return the path: a tar file if it ends in `.tar`, a folder if it has no suffix.

        All names of C in it begin with `kiln_<name>`: by default the name that `compile` was given,
        else that of the file. Nothing in it allocates (docs/formats/mlf.md). Equal models give
        equal bytes. `bundle` puts sources of dependencies into it, by `short_name`. Raises
        UserError, and UnsupportedError for control flow, assertions, and artifacts that are loaded
        when a program runs.
        """
        if name is None:
            return export_model_library_format(self, path, bundle)
        require(name, str, "name")
        return export_model_library_format({name: self}, path, bundle)

    def components(self) -> tuple[Component, ...]:
        """The software that an exported library would embed and need, with licenses. `kiln inspect`
        reads the same from a library, with whatever the caller's linker has added."""
        return components(set_metadata(self.artifacts))

    def _compiled(self, name: str, bundle: Mapping[str, str | Path]) -> CompiledModel:
        from tensorkiln.mlf.export import CompiledModel

        if self.levels:
            raise UnsupportedError(
                "an archive in Model Library Format has the code of one processor",
                where="target.mcpu",
                hint="compile for one of them, or export_library",
            )
        sources = bundled_sources(self.external_dependencies, bundle)
        return CompiledModel(
            name=name,
            artifacts=with_sources(self.artifacts, sources),
            target=self.target,
            functions=self.functions,
            kernels=self.kernels,
            module=self.module,
            dependencies=self.external_dependencies,
            cpu_features=self.cpu_features,
            bundled=sources,
        )

    @property
    def weights_bytes(self) -> int:
        """The bytes of all weights, as they are in the library."""
        files = (a for a in self.artifacts if isinstance(a, Artifact))  # others have no bytes
        return sum(a.size for a in files if a.file_name == WEIGHTS)

    def memory(self, sizes: Mapping[str, int] | None = None) -> MemoryReport:
        """The memory that the functions need: workspace and constants per pool of the target, the
        stack, the largest values at the time of the peak, and why weights take more than in the
        model. `sizes` are values of symbolic dimensions by the model's names. Sizes that depend on
        a dimension without a value are formulas, and the peak is taken at the dimension's upper
        bound, else at 1. Of an Executable for several processors, it is that of the kernels which
        run on this machine. Raises UserError (code `unknown-dimension`) for a name that no function
        has."""
        from tensorkiln.codegen.memory.measure import memory_report

        pools = cpu_target(self.target).memory
        mod = self.level_here.module
        return memory_report(mod, pools, sizes, self.weights_bytes, self.model_weights)

    def __repr__(self) -> str:
        """One line: what a call takes and returns, else its functions; target and kernels."""
        from tensorkiln.runtime.loaded import entry_of, signature_text

        infos = {f.name: f for f in self._infos()}
        entry = entry_of(infos)
        signature = listed(infos, 8) if entry is None else signature_text(infos[entry])
        target = self.target.tag or self.target.kind
        return (
            f"<Executable {self.name!r}: {signature}, for {target}, {len(self.kernels)} kernel(s), "
            f"{len(self.artifacts)} artifacts>"
        )

    def _infos(self) -> list[FunctionInfo]:
        """The metadata of each public function."""
        return [*(f.info for f in self.functions), *(self.outer.infos if self.outer else ())]

    def _repr_html_(self) -> str:
        """An HTML table for notebooks: functions, their inputs, outputs and memory, target, number
        of kernels, bytes."""
        from tensorkiln.runtime.loaded import html_table

        files = [a for a in self.artifacts if isinstance(a, Artifact)]
        code = sum(a.size for a in files if a.file_name.endswith((".o", ".bc")))
        about = [
            ("target", str(self.target)),
            ("kernels", str(len(self.kernels))),
            ("code", f"{code:,} bytes"),
            ("weights", f"{self.weights_bytes:,} bytes"),
        ]
        return html_table(self.name, self._infos(), about)

    def header(self) -> str:
        """The generated C header."""
        return self.artifacts[f"{self.name}.h"].text()

    def placement(self) -> tuple[Placement, ...]:
        """Each kernel's device, class and nodes; of an Executable for several processors, the
        kernels that run on this machine. A node that was fused into another's kernel is not among
        that kernel's nodes; `refusals()` has the reasons for those, too."""
        level = self.level_here
        mod = level.module
        reasons: dict[str, list[str]] = {}
        for r in self.refusals():
            reasons.setdefault(r.node, []).append(f"{r.external}: {r.reason}")
        functions = [f for f in mod.functions if isinstance(f, Function)]
        placed = [row for f in functions for row in f.attrs.get("placed", ())]
        causes: dict[str, list[str]] = {node: [reason] for node, _, reason in placed}
        for f in functions:
            for node, reason in f.attrs.get("decomposed", ()):
                causes.setdefault(node, []).append(reason)
        tuned = tuned_kernels(mod)
        host = HOST if devices_of(self.target) else "cpu"
        return tuple(
            Placement(
                k.symbol,
                k.target_key or host,
                k.kernel_class,
                tuple(k.nodes),
                tuple(reason for node in k.nodes for reason in reasons.get(node, ())),
                tuple(dict.fromkeys(reason for node in k.nodes for reason in causes.get(node, ()))),
                tuned.get(k.symbol, ""),
            )
            for k in level.kernels
        )

    @property
    def level_here(self) -> ExecutableLevel:
        """What runs on this machine: of several levels the last one whose features it has; where it
        can run none, the last one."""
        if not self.levels:
            return ExecutableLevel(self.target, self.module, self.kernels, self.cpu_features)
        number = runnable_level([x.cpu_features for x in self.levels], self.target.arch)
        return self.levels[-1 if number is None else number]

    def copies(self) -> tuple[DeviceCopy, ...]:
        """The copies between memories of devices that a run of each graph function makes, in
        order."""
        programs = {f.name: f for f in self.module.copies}
        return tuple(
            _copy_row(plan.graph.name, programs[call.name])
            for plan in self.module.planned
            if not plan.graph.is_private
            for call in plan.calls
            if call.name in programs
        )

    def refusals(self) -> tuple[Refusal, ...]:
        """The operators that externals refused, with reasons, in the order of the model."""
        return refusals_of(self.module)
