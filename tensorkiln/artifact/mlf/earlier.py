"""metadata.json of versions 5 to 7 of Model Library Format, which TVM wrote until 2024.

Version 5 describes one model, its target as an object of text by device type. Version 6 has the
target as a list of text. Version 7 has a table of models, `modules`. In each of them an archive of
style `operator` describes one operator at the top. Keys came without a new version too: inputs and
outputs of `main`, and `external_dependencies`. So unknown keys are passed over, and all but those
of the first version may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.base.schema import Dim, Reader

EARLIER = (5, 6, 7)
_STYLES = ("full-model", "operator")


@dataclass(frozen=True, slots=True)
class EarlierTensor(JsonRecord):
    """An input or output of `main`: its element type, and bytes."""

    dtype: str
    size_bytes: int = field(metadata=json_key("size"))


@dataclass(frozen=True, slots=True)
class EarlierFunction(JsonRecord):
    """What a function needs on one device, in bytes; inputs and outputs by name."""

    device: int
    workspace_size_bytes: int
    constants_size_bytes: int = 0
    io_size_bytes: int = 0
    inputs: Mapping[str, EarlierTensor] = field(default_factory=dict)
    outputs: Mapping[str, EarlierTensor] = field(default_factory=dict)
    name: str = field(default="main", metadata=json_key(hidden=True))


@dataclass(frozen=True, slots=True)
class OperatorBuffer(JsonRecord):
    """A parameter of an operator: what it is bound to, element type, shape, bytes."""

    dtype: str
    size_bytes: int
    binding: str = field(default="", metadata=json_key("input_binding"))
    shape: tuple[Dim, ...] = ()
    function: str = field(default="", metadata=json_key(hidden=True))


@dataclass(frozen=True, slots=True)
class EarlierModel:
    """A model, or an operator. `targets` are TVM's texts; `storages` maps the number of a storage
    of a graph executor to its bytes."""

    name: str
    style: str
    exported: str
    targets: tuple[str, ...]
    executors: tuple[str, ...]
    functions: tuple[EarlierFunction, ...] = ()
    storages: Mapping[int, int] | None = None
    buffers: tuple[OperatorBuffer, ...] = ()
    dependencies: tuple[ExternalDependency, ...] = ()


@dataclass(frozen=True, slots=True)
class EarlierMetadata:
    """All that an archive of an earlier version says."""

    version: int
    models: tuple[EarlierModel, ...]


def earlier_metadata(parsed: object, place: str) -> EarlierMetadata:
    """Read parsed JSON of versions 5 to 7. Raises UserError (code `bad-metadata`) naming the key
    whose value is missing or of the wrong type."""
    top = Reader(parsed, place, "bad-metadata")
    version = top.number("version")
    if version not in EARLIER:
        raise top.wrong(f"version {version}; expected {EARLIER[0]} to {EARLIER[-1]}", "version")
    if version == EARLIER[-1] and not top.is_null("modules"):
        models = tuple(_model(row, version) for _, row in top.table("modules"))
    else:
        models = (_model(top, version),)
    return EarlierMetadata(version, models)


def _model(row: Reader, version: int) -> EarlierModel:
    style = row.get("style", str)
    if style not in _STYLES:
        raise row.wrong(f"{style!r:.200} is none of {', '.join(_STYLES)}", "style")
    whole = style == "full-model"
    memory = row.child("memory")
    return EarlierModel(
        name=row.get("model_name", str),
        style=style,
        exported=row.get("export_datetime", str, ""),
        targets=_targets(row, version),
        executors=row.texts("executors", ()),
        functions=tuple(_functions(memory.child("functions"))) if whole else (),
        storages=_storages(memory) if whole else None,
        buffers=() if whole else tuple(_buffers(row)),
        dependencies=tuple(_dependency(d) for d in row.rows("external_dependencies")),
    )


def _targets(row: Reader, version: int) -> tuple[str, ...]:
    """Texts of targets: an object by device type in version 5, a list from version 6 on."""
    if version >= 6:
        return row.texts("target")
    texts = []
    for device, text in row.items("target"):
        if not isinstance(text, str):
            raise row.wrong(f"{device!r:.200}: expected text", "target")
        texts.append(text)
    return tuple(texts)


def _functions(row: Reader) -> Iterator[EarlierFunction]:
    yield from map(EarlierFunction.read, row.rows("main"))
    for function in row.rows("operator_functions"):
        name = function.get("function_name", str)
        for place in function.rows("workspace"):
            yield replace(EarlierFunction.read(place), name=name)


def _storages(memory: Reader) -> dict[int, int] | None:
    if memory.is_null("sids"):
        return None
    return {r.number("storage_id"): r.number("size_bytes") for r in memory.rows("sids")}


def _buffers(row: Reader) -> Iterator[OperatorBuffer]:
    memory = row.child("memory")
    for function, _ in row.items("memory"):
        for buffer in memory.rows(function):
            yield replace(OperatorBuffer.read(buffer), function=function)


def _dependency(row: Reader) -> ExternalDependency:
    """A dependency. `mlf_path`, TVM's word for a path in the archive, is a path."""
    kind = row.get("url_type", str)
    try:
        return ExternalDependency(
            row.get("short_name", str),
            row.get("url", str),
            "path" if kind == "mlf_path" else kind,
            row.get("version_spec", str, ""),
        )
    except UserError as error:
        raise row.wrong(error.message) from None
