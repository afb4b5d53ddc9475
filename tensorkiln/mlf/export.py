"""`write_library_format`: compiled models as an archive in Model Library Format.

Every model becomes C that calls its kernels, a header, and its kernels and constants as C or as
objects, under names of its own; beside them lie its artifacts, from which it can be linked again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.artifact import Content, content_size
from tensorkiln.artifact.bundle import BundledSource
from tensorkiln.artifact.metadata import ConstantInfo, KernelInfo, constants_from
from tensorkiln.artifact.mlf.load import ARTIFACTS
from tensorkiln.artifact.mlf.metadata import (
    HOST,
    METADATA,
    VERSION,
    Bundled,
    Constants,
    File,
    Function,
    Generator,
    Kernel,
    LibraryMetadata,
    Model,
    Place,
    Pool,
    Tensor,
)
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.tar import write_folder
from tensorkiln.artifact.weights_file import SUFFIX, read_weights, write_weights
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.files import atomic_open, folder_beside, plain_path
from tensorkiln.base.folders import atomic_dir, file_hash, files_below, write_list
from tensorkiln.base.version import VERSION as COMPILER_VERSION
from tensorkiln.codegen.c_text.names import Names, c_name
from tensorkiln.codegen.host.function import HostFunction
from tensorkiln.codegen.host.interface import (
    Interface,
    Member,
    ModelInterface,
    kernel_prefix,
    model_interface,
)
from tensorkiln.codegen.host.interface_c import HEADERS, WeightsForm, headers_of, interface_c
from tensorkiln.codegen.host.interface_h import interface_h
from tensorkiln.codegen.host.run_c import pointers_of
from tensorkiln.codegen.stack import stack_of
from tensorkiln.ir.module import IRModule
from tensorkiln.link.artifacts import WEIGHTS, LinkPlan, is_embedded, source_name
from tensorkiln.link.object_format import rename_symbols
from tensorkiln.link.weights_object import write_weights_object
from tensorkiln.mlf.layout import INCLUDE, IR, OBJECTS, PARAMETERS, RUNTIME, SOURCES, TEMPLATES
from tensorkiln.mlf.licenses import licenses_of
from tensorkiln.mlf.project import archive_templates
from tensorkiln.mlf.weights_c import write_weights_c
from tensorkiln.target import Target, cpu_target

_CRT = Path(__file__).parents[1] / "crt"
_IR_TEXT = "ir/module.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledModel:
    """A compiled model: the fields of `Executable` that an archive needs."""

    name: str
    artifacts: ArtifactSet
    target: Target
    functions: tuple[HostFunction, ...]
    kernels: tuple[KernelInfo, ...]
    module: IRModule
    dependencies: tuple[ExternalDependency, ...]
    cpu_features: tuple[str, ...]
    bundled: tuple[BundledSource, ...] = ()


def write_library_format(models: Sequence[CompiledModel], path: str | Path) -> Path:
    """Write the archive and return its path: a tar file if `path` ends in `.tar`, a folder if it
    has no suffix. Equal models give equal bytes.

    Raises UserError (`unknown-suffix`, `bad-name`, `name-clash` for two models of one name,
    `nothing-to-export`), UnsupportedError for a model whose functions allocate, load or fail, and
    the UserErrors of writing.
    """
    target = plain_path(path)
    if target.suffix not in (".tar", ""):
        raise UserError(
            f"cannot write {target.name!r}: expected a name ending in .tar, or a folder's",
            code="unknown-suffix",
            hint=f"did you mean {f'{target.stem}.tar'!r}?",
        )
    prepared = _prepared(models)
    if target.suffix == "":
        with atomic_dir(target) as folder:
            _write(prepared, folder)
            write_list(folder)
        return target
    with atomic_open(target) as stream, folder_beside(target) as room:
        (room / "archive").mkdir()
        _write(prepared, room / "archive")
        write_folder(room / "archive", stream)
    return target


# -- what is checked before anything is written ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """A model, its interface in C, and its artifacts sorted by kind. `symbols` maps the names of
    kernels, and of functions that they call, to their names in the archive."""

    model: CompiledModel
    interface: ModelInterface
    symbols: Mapping[str, str]
    objects: tuple[Artifact, ...]
    sources: tuple[Artifact, ...]
    weights: Content | None
    constants: tuple[ConstantInfo, ...]

    def file(self, folder: str, name: str) -> str:
        """The path of a file of this model."""
        return f"{folder}/{self.interface.prefix}_{name}"


def _prepared(models: Sequence[CompiledModel]) -> list[_Parts]:
    names = Names("C")
    index_of_name: dict[str, int] = {}
    for i, model in enumerate(models):
        if model.name != c_name(model.name):
            raise UserError(
                f"model {model.name!r}: its name begins names of C",
                code="bad-name",
                hint=f"such as {c_name(model.name)!r}",
            )
        first = index_of_name.setdefault(model.name, i)
        if first != i:
            raise UserError(
                f"models {first} and {i} are both named {model.name!r}",
                code="name-clash",
                hint='give them names: {"first": executable, "second": other}',
            )
    return [_parts(model, names) for model in models]


def _parts(model: CompiledModel, names: Names) -> _Parts:
    _require_plain(model)
    symbols = _kernel_symbols(model)
    functions = [
        replace(f, calls=tuple(replace(c, symbol=symbols[c.symbol]) for c in f.calls))
        for f in model.functions
    ]
    externals = [symbols[f.name] for f in model.module.externals if f.name in symbols]
    interface = model_interface(model.name, functions, names, externals)
    native = [a for a in model.artifacts.plain if a.loader == "native"]
    code = [a for a in native if a.codegen_id != "host"]
    weights = next((a for a in native if a.file_name == WEIGHTS), None)
    table = next((a for a in model.artifacts.plain if a.name == "host/weights.json"), None)
    called = {"kiln_parallel_for": f"{interface.prefix}_parallel_for"}
    if interface.reporting:
        called["kiln_assertion_failed"] = interface.failure_hook
    parts = _Parts(
        model,
        interface,
        {**symbols, **called},
        tuple(a for a in code if a.file_name.endswith(".o")),
        tuple(a for a in code if a.file_name.endswith(".c")),
        weights.content if weights is not None and weights.size else None,
        constants_from(table.view, table.name) if table is not None else (),
    )
    for old, new in symbols.items():
        names.add(new, f"kernel {old!r} of model {model.name!r}")
    return parts


def _kernel_symbols(model: CompiledModel) -> dict[str, str]:
    """The names of kernels, mapped to their names in the archive."""
    prefix = kernel_prefix(f"kiln_{model.name}")
    # Kernels of target c begin with the library's name already.
    model_prefix = kernel_prefix(LinkPlan.of(model.artifacts).name)
    return {k.symbol: prefix + k.symbol.removeprefix(model_prefix) for k in model.kernels}


def _require_plain(model: CompiledModel) -> None:
    """Raise UnsupportedError for a model that allocates memory or loads code when it runs."""
    if model.module.outers:
        outers = ", ".join(f.name for f in model.module.outers)
        raise UnsupportedError(
            f"{outers}: host steps (branches, loops, values other than tensors) allocate",
            where=model.name,
            hint="export_library(), or only the functions without them",
        )
    if not model.functions:
        raise UserError(f"model {model.name!r} has no public function", code="nothing-to-export")
    if cpu_target(model.target).flushes_denormals:
        raise UnsupportedError(
            "denormals 'flush' is done by the runtime of libraries, which archives do not have",
            where=model.name,
            hint="export_library(); or leave denormals out, and set the processor's state",
        )
    for group in model.artifacts.groups():
        if is_embedded(group):
            files = ", ".join(a.name for a in model.artifacts if a.loader == group.loader)
            raise UnsupportedError(
                f"artifacts of loader {group} are loaded when a program runs, which a model "
                f"without a runtime cannot: {files}",
                where=model.name,
                hint="export_library()",
            )
        if group.loader == "llvmjit":
            raise UnsupportedError(
                "code of target llvmjit exists for this process only",
                where=model.name,
                hint="compile for target llvm",
            )


# -- the files ------------------------------------------------------------------------------------


def _write(models: Sequence[_Parts], folder: Path) -> None:
    described = {parts.model.name: _write_model(parts, folder) for parts in models}
    sources = [(folder / path).read_text() for m in described.values() for path in m.sources[:1]]
    for name in dict.fromkeys(name for text in sources for name in headers_of(text)):
        _write_text(folder / RUNTIME / name, (_CRT / HEADERS[name]).read_text())
    for path, text in archive_templates(described).items():
        _write_text(folder / TEMPLATES / path, text)
    paths = files_below(folder)
    metadata = LibraryMetadata(
        version=VERSION,
        generator=Generator("tensorkiln", COMPILER_VERSION),
        modules=described,
        licenses=licenses_of(described, paths),
        files={p: File((folder / p).stat().st_size, file_hash(folder / p)) for p in paths},
    )
    (folder / METADATA).write_bytes(metadata.to_bytes())


def _write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")


def _write_model(parts: _Parts, folder: Path) -> Model:
    model, interface = parts.model, parts.interface
    sources = _write_sources(parts, folder)
    objects = _write_objects(parts, folder)
    constants = _write_constants(parts, folder)
    (sources if constants.path.endswith(".c") else objects).extend(filter(None, [constants.path]))
    header = f"{INCLUDE}/{interface.prefix}.h"
    features = model.cpu_features
    _write_text(folder / header, interface_h(interface, features))
    placed = _write_artifacts(parts, folder, constants)
    kernels = _kernels(parts, folder, [*sources, *objects])
    return Model(
        model_name=model.name,
        style="full-model",
        executors=("aot",),
        target={HOST: cpu_target(model.target).to_json()},
        cpu_features=features,
        prefix=interface.prefix,
        header=header,
        sources=tuple(sources),
        objects=tuple(objects),
        undefined_symbols=_undefined(parts, folder, objects),
        functions={i.function.info.name: _function(parts, i, kernels) for i in interface.functions},
        kernels=tuple(kernels.values()),
        constants=constants,
        libraries=LinkPlan.of(model.artifacts).libraries,
        external_dependencies=model.dependencies,
        bundled={
            b.short_name: Bundled(f"{ARTIFACTS}/{model.name}/{b.path}", b.sha256)
            for b in model.bundled
        },
        ir=f"{IR}/{model.name}.py" if _IR_TEXT in placed else "",
        placed=placed,
    )


def _write_sources(parts: _Parts, folder: Path) -> list[str]:
    """Write the C files except constants; return their paths, the interface's first."""
    form: WeightsForm = "" if parts.weights is None else "pointer" if parts.objects else "array"
    main = f"{SOURCES}/{parts.interface.prefix}.c"
    _write_text(folder / main, interface_c(parts.interface, form))
    paths = [main]
    for a in parts.sources:
        paths.append(parts.file(SOURCES, source_name(a)))
        _write_text(folder / paths[-1], _renamed(a, parts.symbols))
    return paths


def _renamed(a: Artifact, symbols: Mapping[str, str]) -> str:
    """A C file with other names of kernels. In C of the compiler's own these words have no other
    meaning, so they are replaced in the text; in an external's C, macros rename them."""
    if a.codegen_id == "c":
        words = re.compile(rf"\b({'|'.join(map(re.escape, symbols))})\b")
        return words.sub(lambda m: symbols[m[1]], a.text())
    renames = {old: new for old, new in symbols.items() if re.search(rf"\b{old}\b", a.text())}
    defines = "".join(f"#define {old} {new}\n" for old, new in renames.items())
    return f"{defines}\n{a.text()}"


def _write_objects(parts: _Parts, folder: Path) -> list[str]:
    paths = []
    for a in parts.objects:
        paths.append(parts.file(OBJECTS, a.file_name.replace("/", "_")))
        place = folder / paths[-1]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(rename_symbols(a.view, parts.symbols))
    return paths


def _write_constants(parts: _Parts, folder: Path) -> Constants:
    """Write the constants in a form that can be linked, an object if kernels are objects, else C;
    and as safetensors."""
    if parts.weights is None:
        return Constants(0, "", "")
    symbol = f"{parts.interface.prefix}_weights"
    if parts.objects:
        path = parts.file(OBJECTS, "weights.o")
        triple = cpu_target(parts.model.target).mtriple
        write_weights_object(folder / path, parts.weights, triple, symbol)
    else:
        path = parts.file(SOURCES, "weights.c")
        with (folder / path).open("w", encoding="ascii", newline="\n") as stream:
            write_weights_c(stream, symbol, parts.weights, parts.constants)
    parameters = f"{PARAMETERS}/{parts.model.name}{SUFFIX}"
    (folder / PARAMETERS).mkdir(exist_ok=True)
    write_weights(folder / parameters, parts.weights, parts.constants)
    return Constants(content_size(parts.weights), path, parameters)


def _write_artifacts(parts: _Parts, folder: Path, constants: Constants) -> dict[str, Place]:
    """Write all artifacts that are not elsewhere in the archive; return their paths."""
    model, placed = parts.model, dict[str, Place]()
    root = folder / ARTIFACTS / model.name
    root.parent.mkdir(exist_ok=True)
    model.artifacts.save(root)
    if (root / _IR_TEXT).exists():
        path = folder / IR / f"{model.name}.py"
        path.parent.mkdir(exist_ok=True)
        (root / _IR_TEXT).rename(path)
        if not any((root / _IR_TEXT).parent.iterdir()):
            (root / _IR_TEXT).parent.rmdir()
        placed[_IR_TEXT] = Place(f"{IR}/{path.name}", 0, path.stat().st_size)
    if parts.weights is not None:
        data = read_weights(folder / constants.parameters, constants.size_bytes)
        placed[f"host/{WEIGHTS}"] = Place(constants.parameters, data.offset, data.size)
        (root / "host" / WEIGHTS).unlink()
    return placed


# -- what metadata says ---------------------------------------------------------------------------


def _kernels(parts: _Parts, folder: Path, paths: Sequence[str]) -> dict[str, Kernel]:
    """The metadata of each kernel, by its name in the module."""
    mod = parts.model.module
    kernel_names = {f.name for f in mod.kernels}
    homes = dict(_definitions(parts, folder, paths))
    return {
        k.symbol: Kernel(
            symbol=parts.symbols[k.symbol],
            kernel_class=k.kernel_class,
            nodes=k.nodes,
            path=homes.get(k.symbol, ""),
            stack_buffers_bytes=stack_of(k.symbol, mod) if k.symbol in kernel_names else None,
        )
        for k in parts.model.kernels
    }


def _definitions(parts: _Parts, folder: Path, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each kernel with the file that defines it."""
    symbols = {new: old for old, new in parts.symbols.items()}
    for path in paths[1:]:  # the first calls them
        if path.endswith(".o"):
            binary = binary_of(memoryview((folder / path).read_bytes()), path)
            defined = {s.name for s in binary.symbols() if s.is_defined and s.is_global}
            yield from ((symbols[name], path) for name in sorted(defined & set(symbols)))
        else:
            text = (folder / path).read_text()
            for kernel in parts.model.kernels:
                names = f"{kernel.symbol}|{parts.symbols[kernel.symbol]}"
                if re.search(rf"^void ({names})\(", text, re.MULTILINE):
                    yield kernel.symbol, path


def _undefined(parts: _Parts, folder: Path, objects: Sequence[str]) -> tuple[str, ...]:
    """Symbols that the objects need and the model does not define. Raises UnsupportedError for
    services of the runtime in libraries."""
    interface = parts.interface
    needed, defined = dict[str, str](), {f"{interface.prefix}_parallel_for", interface.failure_hook}
    for path in objects:
        for s in binary_of(memoryview((folder / path).read_bytes()), path).symbols():
            if s.name and s.is_defined:
                defined.add(s.name)
            elif s.name:
                needed.setdefault(s.name, path)
    missing = {name: path for name, path in needed.items() if name not in defined}
    for name, path in missing.items():
        if name.startswith("kiln_"):
            raise UnsupportedError(
                f"{Path(path).name} calls {name}, which the runtime of libraries provides",
                where=parts.model.name,
                hint="export_library()",
            )
    return tuple(sorted(missing))


def _function(parts: _Parts, interface: Interface, kernels: dict[str, Kernel]) -> Function:
    function = interface.function
    by_symbol = {k.symbol: k for k in kernels.values()}
    called = [by_symbol[c.symbol] for c in function.calls]
    stacks = [k.stack_buffers_bytes for k in called]
    stack_sizes = [size for size in stacks if size is not None]
    sizes = [m.size_bytes for m in interface.members]
    return Function(
        symbol=interface.run,
        inputs=tuple(_tensor(m) for m in interface.inputs),
        outputs=tuple(_tensor(m) for m in interface.outputs),
        symbols=dict(function.info.symbols),
        requires=function.info.requires,
        pools=tuple(Pool(p.name, p.shown_size, p.alignment, HOST) for p in interface.pools),
        workspace_size_bytes=function.info.workspace_bytes,
        constants_size_bytes=_constants_read(parts, function),
        io_size_bytes=sum(s for s in sizes if isinstance(s, int))
        if all(isinstance(s, int) for s in sizes)
        else " + ".join(map(str, sizes)),
        stack_buffers_bytes=max(stack_sizes, default=0)
        if len(stack_sizes) == len(stacks)
        else None,
        kernels=tuple(k.symbol for k in called),
    )


def _tensor(m: Member) -> Tensor:
    return Tensor(m.info.name, m.name, m.info.dtype, m.info.shape, m.info.role, m.size_bytes)


def _constants_read(parts: _Parts, function: HostFunction) -> int:
    """Bytes of the constants that a function's kernels read, with the padding behind each."""
    if parts.weights is None:
        return 0
    starts = sorted({c.offset for c in parts.constants})
    ends = dict(zip(starts, [*starts[1:], content_size(parts.weights)], strict=True))
    read = {p.offset for p in pointers_of(function) if p.base == "weights"}
    return sum(
        ends.get(start, 0) - start for start in read if isinstance(start, int) and start in ends
    )
