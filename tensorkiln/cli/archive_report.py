"""The report of `kiln inspect` on an archive in Model Library Format: functions, memory as a
picture, dependencies, licenses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorkiln.artifact.mlf.earlier import EarlierFunction, EarlierModel
from tensorkiln.artifact.mlf.load import ModelLibrary
from tensorkiln.artifact.mlf.metadata import Function, License, Model, Tensor
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.schema import Dim
from tensorkiln.cli.library_report import dependency_text, target_text
from tensorkiln.cli.tables import columns, dims_text
from tensorkiln.inspectors.table import bar

_WIDTH = 40  # columns of the longest bar
# What takes memory: the kind of memory, and what it is. Their bytes; text is an expression.
_Row = tuple[str, str, Dim | None]


def archive_text(library: ModelLibrary) -> str:
    """The report as text."""
    head = [
        ("archive", library.path),
        ("format", f"Model Library Format, version {library.version}"),
    ]
    if library.earlier is not None:
        models = [_earlier_text(m) for m in library.earlier.models]
        return "\n".join([columns(head), *models])
    metadata = library.metadata
    assert metadata is not None
    made_by = f"{metadata.generator.name} {metadata.generator.version}"
    parts = [columns([*head, ("compiler", made_by)])]
    parts += [_model_text(m) for m in metadata.modules.values()]
    return "\n".join([*parts, *_licenses(metadata.licenses)])


def _model_text(model: Model) -> str:
    targets = [(f"target {k}", target_text(t)) for k, t in model.target.items()]  # type: ignore[arg-type]
    facts = [
        *targets,
        ("needs CPU", " ".join(model.cpu_features) or "the architecture's baseline"),
        ("header", model.header),
        ("compile", f"{len(model.sources)} C file(s)"),
        ("link", f"{len(model.objects)} object(s)"),
        ("symbols", f"{model.prefix}_..."),
        ("from libc", " ".join(model.undefined_symbols) or "nothing that objects name"),
    ]
    if model.libraries:
        facts.append(("libraries", " ".join(model.libraries)))
    parts = [f"model {model.model_name}", columns(facts)]
    parts += [_function_text(name, f) for name, f in model.functions.items()]
    parts += [_map(_of_model(model))]
    return "\n".join([*parts, *_dependencies(model.external_dependencies)])


def _function_text(name: str, f: Function) -> str:
    rows = [
        (kind, t.name, t.dtype, dims_text(t.shape), f"{_bytes(t.size_bytes)} in .{t.member}")
        for kind, tensors in (("in", f.inputs), ("out", f.outputs))
        for t in tensors
    ]
    needs = "".join(f"\n  requires {condition}" for condition in f.requires)
    return f"function {name}: {f.symbol}, {len(f.kernels)} kernel call(s)\n{columns(rows)}{needs}"


def _of_model(model: Model) -> Iterator[_Row]:
    yield "flash", "constants", model.constants.size_bytes
    several = len(model.functions) > 1
    for name, f in model.functions.items():
        prefix = f"{name}: " if several else ""
        for pool in f.pools:
            yield "RAM", f"{prefix}{pool.name}", pool.size_bytes
        yield "RAM", f"{prefix}inputs", _sum(f.inputs)
        yield "RAM", f"{prefix}outputs", _sum(f.outputs)
        yield "stack", f"{prefix}local arrays of kernels", f.stack_buffers_bytes


def _sum(tensors: Sequence[Tensor]) -> Dim:
    sizes = [t.size_bytes for t in tensors]
    numbers = [s for s in sizes if isinstance(s, int)]
    return sum(numbers) if len(numbers) == len(sizes) else " + ".join(map(str, sizes))


def _map(rows: Iterator[_Row]) -> str:
    """Each row's bytes, and a bar as long as its part of the largest."""
    entries = list(rows)
    largest = max((size for _, _, size in entries if isinstance(size, int)), default=0)
    cells = [
        (kind, part, _bytes(size), bar(size, largest, _WIDTH) if isinstance(size, int) else "")
        for kind, part, size in entries
    ]
    return f"memory\n{columns(cells)}"


def _bytes(size: Dim | None) -> str:
    if size is None:
        return "not known"
    return f"{size:,} bytes" if isinstance(size, int) else f"{size} bytes"


def _dependencies(dependencies: Sequence[ExternalDependency]) -> Iterator[str]:
    if dependencies:
        yield "\n".join(["needs besides", *(f"  {dependency_text(d)}" for d in dependencies)])


def _licenses(licenses: Sequence[License]) -> Iterator[str]:
    if licenses:
        yield "licenses\n" + columns(
            [(row.spdx, row.component, " ".join(row.paths)) for row in licenses]
        )


# -- versions 5 to 7 ------------------------------------------------------------------------------


def _earlier_text(model: EarlierModel) -> str:
    facts = [
        ("style", model.style),
        *(("target", text) for text in model.targets),
        ("executors", " ".join(model.executors) or "none"),
    ]
    if model.exported:
        facts.append(("exported", model.exported))
    parts = [f"model {model.name}", columns(facts)]
    rows = [row for f in model.functions for row in _of_earlier(f)]
    rows += [("RAM", f"storage {i}", size) for i, size in (model.storages or {}).items()]
    rows += [
        (
            "RAM",
            f"{b.function}: {b.binding or 'buffer'}, {b.dtype} {dims_text(b.shape)}",
            b.size_bytes,
        )
        for b in model.buffers
    ]
    if rows:
        parts.append(_map(iter(rows)))
    return "\n".join([*parts, *_dependencies(model.dependencies)])


def _of_earlier(f: EarlierFunction) -> Iterator[_Row]:
    prefix = f"{f.name} on device {f.device}"
    if f.constants_size_bytes:
        yield "flash", f"{prefix}: constants", f.constants_size_bytes
    yield "RAM", f"{prefix}: workspace", f.workspace_size_bytes
    if f.io_size_bytes:
        yield "RAM", f"{prefix}: inputs and outputs", f.io_size_bytes
