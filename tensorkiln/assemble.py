"""Assemble an Executable from the kernels' code: add the entry file, header, weights, metadata and
link plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tensorkiln.artifact import Artifact, ArtifactSet, TextContent
from tensorkiln.artifact.dependency import DEPENDENCIES, dependencies_text
from tensorkiln.artifact.manifest import ArtifactInfo
from tensorkiln.artifact.metadata import (
    EXT_DEV,
    DeviceInfo,
    FunctionInfo,
    KernelInfo,
    LevelFunction,
    LevelInfo,
    Metadata,
    artifact_infos,
    constants_text,
)
from tensorkiln.base.debug import SOURCES, say
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.origin import NO_ORIGIN, Origin
from tensorkiln.base.schema import Dim
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.c_text.names import c_name, library_name
from tensorkiln.codegen.host.call_plan import (
    graph_host_function,
    sizes_read,
    tensor_host_function,
)
from tensorkiln.codegen.host.devices import HostDevices
from tensorkiln.codegen.host.entry_c import Level, entry_c, exported_symbols, levels_c
from tensorkiln.codegen.host.function import HostFunction, OuterCode
from tensorkiln.codegen.host.header import header_h
from tensorkiln.codegen.host.import_c import import_info, imports_c
from tensorkiln.codegen.host.plan_text import plan_text
from tensorkiln.codegen.host.system_lib_c import check_prefix, system_lib_c
from tensorkiln.codegen.host.weights import WeightArena, WeightsContent
from tensorkiln.codegen.memory.weights import ModelWeights
from tensorkiln.executable import Debug, Executable, ExecutableLevel
from tensorkiln.external import Emitted, External
from tensorkiln.ir.module import AnyKernel, IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.link.artifacts import LINK_PLAN, LOADER_EXPORTS, LinkPlan, is_embedded
from tensorkiln.link.jit_objects import for_jit
from tensorkiln.link.object_format import driver_format, rename_symbols, system_need
from tensorkiln.link.shared import DEVICE_EXPORTS, LEVEL_EXPORTS, RUNTIME_EXPORTS, Fcompile
from tensorkiln.target import (
    Target,
    becomes_c,
    device_key,
    devices_of,
    runs_kernels,
)
from tensorkiln.target.kinds import KINDS


@dataclass(frozen=True, slots=True)
class LibraryParts:
    """What a library is made of.

    `cpu` is the target of host code: `target` itself or its host. `code` are the kernels, and
    `devices` what host code needs to know of functions on devices; a processor must have
    `cpu_features`. `texts` are artifacts for people
    to read, such as the text of `module`, which nothing depends on. `dependencies` is what else the
    library needs (`external/dependencies.py`), and `origin` describes the model it is made from.
    With `system_lib_prefix`, C functions have this prefix instead of the library's name: with
    `"net_"`, `main` is `net_main`. `linker`, `is_named`, `model_weights` and `debug` are those of
    the Executable.
    """

    module: IRModule
    target: Target
    cpu: Target
    code: Emitted
    devices: HostDevices
    cpu_features: tuple[str, ...] = ()
    externals: Sequence[External] = ()
    texts: Sequence[Artifact] = ()
    linker: Fcompile | str | None = None
    system_lib_prefix: str | None = None
    dependencies: Sequence[ExternalDependency] = ()
    origin: Origin = NO_ORIGIN
    is_named: bool = False
    model_weights: ModelWeights | None = None
    debug: Debug | None = None


def assemble(parts: LibraryParts) -> Executable:
    """The Executable made of the kernels' code, an entry file, a header and the weights.

    Raises UserError for a module without public functions and for public names that cannot be
    symbols of the library.
    """
    mod, code, arena = parts.module, parts.code, WeightArena()
    functions, outer = _host_functions(mod, arena, code.fallible, parts.devices)
    artifacts = list(code.artifacts)
    if arena.size:
        artifacts.append(Artifact("host", "native", "weights.bin", WeightsContent(arena)))
    plans = (*functions, *(outer.helpers if outer else ()))
    kernels = _kernel_infos(parts)
    outers = outer.infos if outer else ()
    metadata = _metadata(
        parts, arena, (*(f.info for f in functions), *outers), kernels, artifact_infos(artifacts)
    )
    entry = entry_c(
        functions,
        metadata,
        outer=outer,
        imports=_has_loader(code),
        devices=parts.devices,
        device_text=parts.devices.text(mod, plans),
        flushes=parts.cpu.flushes_denormals,
    )
    artifacts += [
        *_host_files(parts, functions, outer, arena, metadata, entry),
        *_plan_text(parts, plans, arena),
        *parts.texts,
    ]
    if parts.cpu.kind == "llvmjit":
        artifacts = for_jit(artifacts, parts.cpu.mtriple)
    return Executable(
        ArtifactSet(tuple(artifacts), code.artifacts.imports),
        parts.target,
        functions,
        metadata.library,
        mod,
        kernels,
        parts.linker,
        outer,
        tuple(parts.dependencies),
        parts.is_named,
        parts.model_weights,
        parts.debug,
        parts.cpu_features,
    )


def assemble_levels(target: Target, levels: Sequence[LibraryParts]) -> Executable:
    """The Executable of a target with several levels, made of the parts of each, the least one
    first. Each has its kernels, under names of its own, and tables of its functions; they share an
    entry file, a header, and weights with equal bytes.

    Raises UserError as `assemble`, UnsupportedError for what only libraries of one level can have.
    """
    arena, parts = WeightArena(), replace(levels[0], target=target)
    rows = [
        _level_code(p, name, arena, len(levels))
        for p, name in zip(levels, target.levels, strict=True)
    ]
    artifacts = [a for row in rows for a in row.artifacts]
    if arena.size:
        artifacts.append(Artifact("host", "native", "weights.bin", WeightsContent(arena)))
    functions, outer = _common_functions(rows), rows[0].outer
    metadata = _metadata(
        parts,
        arena,
        (*(f.info for f in functions), *(outer.infos if outer else ())),
        tuple(k for row in rows for k in row.kernels),
        artifact_infos(artifacts),
        tuple(row.info for row in rows),
    )
    flushes = parts.cpu.flushes_denormals
    artifacts += [row.tables(metadata, flushes) for row in rows]
    names = [row.level for row in rows]
    entry = levels_c(functions, metadata, names, outer=outer, flushes=flushes)
    artifacts += _host_files(parts, functions, outer, arena, metadata, entry)
    artifacts += [a for row in rows for a in row.texts(arena)]
    return Executable(
        ArtifactSet(tuple(artifacts)),
        target,
        functions,
        metadata.library,
        rows[-1].parts.module,
        metadata.kernels,
        parts.linker,
        outer,
        tuple(parts.dependencies),
        parts.is_named,
        parts.model_weights,
        None,
        parts.cpu_features,
        tuple(row.executable_level for row in rows),
    )


def _common_functions(rows: Sequence[_LevelCode]) -> tuple[HostFunction, ...]:
    """The functions as all levels have them; the workspace is the largest."""
    return tuple(
        replace(f, info=replace(f.info, workspace_bytes=_most([r.functions[i].info for r in rows])))
        for i, f in enumerate(rows[0].functions)
    )


@dataclass(frozen=True, slots=True)
class _LevelCode:
    """What one level adds to a library: `functions` call kernels by their names in the library,
    `plain_functions` by those in the module."""

    level: Level
    parts: LibraryParts
    functions: tuple[HostFunction, ...]
    plain_functions: tuple[HostFunction, ...]
    outer: OuterCode | None
    kernels: tuple[KernelInfo, ...]
    artifacts: tuple[Artifact, ...]
    info: LevelInfo

    def tables(self, metadata: Metadata, flushes: bool) -> Artifact:
        """The C of its tables."""
        text = entry_c(
            self.functions,
            metadata,
            outer=self.outer,
            flushes=flushes,
            level=self.level,
            features=self.info.cpu_features,
        )
        return Artifact("host", "native", "tables.c", text.encode(), self.level.name)

    def texts(self, arena: WeightArena) -> Iterator[Artifact]:
        """Yield what is for people to read."""
        for a in (*_plan_text(self.parts, self.plain_functions, arena), *self.parts.texts):
            yield replace(a, target_key=self.level.name)

    @property
    def executable_level(self) -> ExecutableLevel:
        """What the Executable keeps of it."""
        kernels = _kernel_infos(self.parts)
        return ExecutableLevel(
            self.parts.target, self.parts.module, kernels, self.info.cpu_features
        )


def _level_code(parts: LibraryParts, target: Target, arena: WeightArena, count: int) -> _LevelCode:
    _require_own_code(parts)
    level, mod = Level(target.mcpu, count), parts.module
    functions, outer = _host_functions(mod, arena, parts.code.fallible, parts.devices)
    helpers = outer.helpers if outer else ()
    names = {k.name: f"{level.c_name}_{k.name}" for k in mod.kernels}
    clashes = sorted(set(names.values()) & {f.name for f in mod.functions})
    if clashes:
        raise UserError(
            f"{clashes[0]!r} is the name of a kernel for {level.name!r}",
            code="name-clash",
            where=clashes[0],
            hint="another name",
        )
    objects = []
    for a in parts.code.artifacts.plain:
        content = rename_symbols(a.view, names)
        objects.append(replace(a, content=content, target_key=level.name))
    needs = (
        LevelFunction(f.info.name, f.info.workspace_bytes, f.info.kernel_calls) for f in functions
    )
    return _LevelCode(
        level,
        parts,
        tuple(_renamed(f, names) for f in functions),
        (*functions, *helpers),
        replace(outer, helpers=tuple(_renamed(f, names) for f in helpers)) if outer else None,
        tuple(replace(k, symbol=names[k.symbol], level=level.name) for k in _kernel_infos(parts)),
        tuple(objects),
        LevelInfo(level.name, parts.cpu_features, tuple(needs)),
    )


def _renamed(function: HostFunction, names: Mapping[str, str]) -> HostFunction:
    """The function with kernels called by other names."""
    calls = tuple(replace(c, symbol=names[c.symbol]) for c in function.calls)
    return replace(function, calls=calls)


def _most(infos: Sequence[FunctionInfo]) -> Dim:
    """The most that one function needs on any level."""
    sizes = list(dict.fromkeys(f.workspace_bytes for f in infos))
    if all(isinstance(size, int) for size in sizes):
        return max(size for size in sizes if isinstance(size, int))
    return sizes[0] if len(sizes) == 1 else f"max({', '.join(map(str, sizes))})"


def _require_own_code(parts: LibraryParts) -> None:
    """Raise UnsupportedError for what only libraries for one processor can have."""
    names = sorted({f.external for f in parts.module.externals})
    subject = f"code of external {names[0]!r}" if names else "debug=True" if parts.debug else ""
    if subject:
        raise UnsupportedError(
            f"a library for several processors cannot have {subject}",
            where="target.mcpu",
            hint="compile for one of them",
        )


def _metadata(
    parts: LibraryParts,
    arena: WeightArena,
    functions: tuple[FunctionInfo, ...],
    kernels: tuple[KernelInfo, ...],
    artifacts: tuple[ArtifactInfo, ...],
    levels: tuple[LevelInfo, ...] = (),
) -> Metadata:
    name = library_name(parts.module.name)
    prefix = parts.system_lib_prefix
    return Metadata(
        name,
        name if prefix is None else check_prefix(prefix).rstrip("_"),
        VERSION,
        parts.target.to_json(),
        parts.cpu_features,
        arena.size,
        functions,
        kernels,
        artifacts,
        tuple(parts.dependencies),
        tuple(arena.constants),
        _device_infos(parts.target, parts.devices, parts.code.artifacts),
        levels,
        system_need(parts.cpu.mtriple),
        parts.origin,
    )


def _host_files(
    parts: LibraryParts,
    functions: Sequence[HostFunction],
    outer: OuterCode | None,
    arena: WeightArena,
    metadata: Metadata,
    entry: str,
) -> Iterator[Artifact]:
    """Yield the tables of weights and dependencies, the entry file, what the linker needs, and the
    header."""
    say(SOURCES, f"entry.c\n{entry}")
    header = header_h(
        functions,
        library_name=metadata.library,
        prefix=metadata.prefix,
        outers=[f.name for f in (outer.infos if outer else ())],
        libraries=(*_libraries(parts), *driver_format(parts.cpu.mtriple).libraries),
        identity=hashlib.sha256(f"{entry}{arena.identity}".encode()).hexdigest()[:16],
        flushes=parts.cpu.flushes_denormals,
    )
    yield from _tables(parts, arena)
    yield Artifact("host", "native", "entry.c", entry.encode())
    yield from _link_files(parts, _link_plan(parts, functions, outer, metadata))
    yield Artifact("host", "header", f"{metadata.library}.h", header.encode())


def _has_loader(code: Emitted) -> bool:
    """Whether artifacts are embedded for a loader."""
    return any(is_embedded(group) for group in code.artifacts.groups())


def _libraries(parts: LibraryParts) -> tuple[str, ...]:
    """The libraries that externals need which compile a function of the module."""
    names = {f.external for f in parts.module.externals}
    externals = (e for e in parts.externals if e.name in names)
    return tuple(dict.fromkeys(x for e in externals for x in e.libraries))


def _tables(parts: LibraryParts, arena: WeightArena) -> Iterator[Artifact]:
    """Yield the lists of weights and of dependencies, if there are any."""
    if arena.size:
        table = constants_text(arena.constants).encode()
        yield Artifact("host", "text", "weights.json", table)
    if parts.dependencies:
        table = dependencies_text(parts.dependencies).encode()
        yield Artifact("host", "text", DEPENDENCIES, table)


def _link_plan(
    parts: LibraryParts,
    functions: Sequence[HostFunction],
    outer: OuterCode | None,
    metadata: Metadata,
) -> LinkPlan:
    cpu = parts.cpu
    exports = exported_symbols(functions, prefix=metadata.prefix, outer=outer)
    if cpu.kind == "llvmjit" and parts.devices.kinds:
        exports = tuple(sorted((*exports, *DEVICE_EXPORTS)))  # linkers add them to other libraries
    return LinkPlan(
        metadata.library,
        cpu.mtriple,
        exports,
        _libraries(parts),
        metadata.prefix,
        parts.system_lib_prefix or "",
        cpu.optimize == "size",
    )


def _host_functions(
    mod: IRModule, arena: WeightArena, fallible: Collection[str], devices: HostDevices
) -> tuple[tuple[HostFunction, ...], OuterCode | None]:
    """The public functions of the library, and the host code of functions with control flow, if
    any.

    Raises UserError: `nothing-to-compile` without a public function, `bad-name`, `name-clash`.
    """
    _require_own_names(mod)
    public = (f for f in mod.graphs if not f.is_private)
    graphs = [graph_host_function(f, mod, arena, devices) for f in public]
    programs = [f for f in mod.prim_funcs if f.public]
    tensors = [
        tensor_host_function(f, f.public_name, mod, sizes_read(f), devices) for f in programs
    ]
    outer = _outer_code(mod, arena)
    if outer is not None:
        outer = replace(outer, helpers=tuple(_fallible(f, fallible) for f in outer.helpers))
    elif not graphs and not tensors:
        raise UserError(
            "the module has no public function",
            code="nothing-to-compile",
            where="compile",
            hint="a function without private=True is public",
        )
    return tuple(_fallible(f, fallible) for f in (*graphs, *tensors)), outer


def _is_launched(f: AnyKernel) -> bool:
    """Whether a kernel is a device function, which another kernel launches."""
    return isinstance(f, PrimFunc) and f.is_device


def _device_infos(
    target: Target, devices: HostDevices, artifacts: ArtifactSet
) -> tuple[DeviceInfo, ...]:
    """The devices of a composite that run code of the library, for its metadata: those for which
    the compiler made kernels, and those whose loader gets artifacts."""
    loaded = {group.target_key for group in artifacts.groups() if is_embedded(group)}
    infos = []
    for key, device in devices_of(target).items():
        kind = KINDS[device.kind].device
        if key in devices.kinds:
            infos.append(DeviceInfo(key, kind, devices.number(key)))
        elif key in loaded or (kind == "cpu" and runs_kernels(device)):
            infos.append(DeviceInfo(key, "cpu" if kind == "cpu" else EXT_DEV, 0))
    return tuple(infos)


def _require_own_names(mod: IRModule) -> None:
    """Raise UserError for a public name that is not a C identifier, too long, or used twice."""
    owners: dict[str, str] = {}
    graphs = [f for f in (*mod.graphs, *mod.outers) if not f.is_private]
    named = [(f.name, f.name) for f in graphs]
    named += [(f.public_name, f.name) for f in mod.prim_funcs if f.public]
    for name, function in named:
        if name != c_name(name) or len(name) > _LONGEST_NAME:
            short = name if len(name) <= 40 else f"{name[:40]}..."
            raise UserError(
                f"function {short!r}: its name in the library is that of a C function, which is "
                f"letters, digits and '_', {_LONGEST_NAME} at most",
                code="bad-name",
                where="compile",
                hint=f"such as {c_name(name)[:_LONGEST_NAME]!r}" if len(short) == len(name) else "",
            )
        if owners.setdefault(name, function) != function:
            raise UserError(
                f"{owners[name]} and {function} are both {name!r} in the library",
                code="name-clash",
                where=f"{function}.attrs.global_symbol",
                hint="another global_symbol",
            )


_LONGEST_NAME = 200


def _link_files(parts: LibraryParts, plan: LinkPlan) -> Iterator[Artifact]:
    """Yield the artifacts for the linker beside the entry file.

    `imports.c` defines kernels as calls into a loader's module, `system_lib.c` registers a library
    that is linked statically into a program, and `link.json` is the link plan.
    """
    code = parts.code
    if code.imported:
        text = imports_c(parts.module, code.imported)
        yield Artifact("host", "native", "imports.c", text.encode())
    if plan.system_lib_prefix:
        loader = LOADER_EXPORTS if _has_loader(code) else ()
        level = LEVEL_EXPORTS if parts.target.levels else ()
        symbols = tuple(dict.fromkeys((*RUNTIME_EXPORTS, *level, *loader, *plan.exports)))
        text = system_lib_c(plan.system_lib_prefix, symbols)
        yield Artifact("host", "native", "system_lib.c", text.encode())
    yield Artifact("host", "native", LINK_PLAN, plan.to_bytes())


def _plan_text(
    parts: LibraryParts, functions: Sequence[HostFunction], arena: WeightArena
) -> Iterator[Artifact]:
    """Yield `plan.txt`, for people: the kernel calls of graph functions, and their memory."""
    if not any(f.info.kind == "graph" for f in functions):
        return
    mod, files = parts.module, (*parts.texts, *parts.code.artifacts)
    kernels = {a.file_name.rpartition(".")[0]: a.codegen_id for a in files}
    kernels |= {f.name: "c" for f in mod.prim_funcs if becomes_c(parts.target, f.attrs)}
    make = partial(plan_text, functions, mod, arena.constants, kernels, parts.devices)
    yield Artifact("host", "text", "plan.txt", TextContent(make))


def _fallible(function: HostFunction, kernels: Collection[str]) -> HostFunction:
    """The function with `may_fail` set on its calls of `kernels`. Host code checks each such call
    for errors."""
    calls = tuple(replace(c, may_fail=True) if c.symbol in kernels else c for c in function.calls)
    return replace(function, calls=calls) if calls != function.calls else function


def _outer_code(mod: IRModule, arena: WeightArena) -> OuterCode | None:
    if not mod.outers:
        return None
    from tensorkiln.codegen.outer.code import outer_code

    return outer_code(mod, arena)


def _kernel_infos(parts: LibraryParts) -> tuple[KernelInfo, ...]:
    """For each kernel: the model's nodes that it computes, the class of its schedule, its device in
    a composite and, for an imported kernel, the loader whose module provides it."""
    mod = parts.module
    nodes = mod.nodes()
    classes = {k.name: k.op_class for k in mod.kernels if not _is_launched(k)}
    classes |= {f.name: f"external:{f.external}" for f in mod.externals}
    devices = {k.name: device_key(parts.target, k.attrs) for k in mod.kernels}
    device_of_name = {e.name: e.device for e in parts.externals}
    devices |= {f.name: device_of_name.get(f.external, "") for f in mod.externals}
    provided = {name: import_info(mod, name, group) for name, group in parts.code.imported}
    return tuple(
        replace(
            provided.get(name, KernelInfo(name, target_key=devices.get(name, ""))),
            nodes=tuple(nodes.get(name, ())),
            kernel_class=kernel_class,
        )
        for name, kernel_class in classes.items()
    )
