"""The metadata of a compiled library: JSON in a section of the library, readable without running
its code.

Every addition raises `format`. Format 2 added `license`, `sha256`, `libraries` and `build_time` of
`dependencies`, `pools` of functions, `devices`, and `device` of parameters. Format 3 added `kept`
of functions, format 4 `model`, `options` and `uses`, format 5 the element types of
`base/element_types.py`, format 6 `levels`, `level` of kernels, and `system`; a library without them
is still of an earlier format. A reader takes every format up to its own, and refuses later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from tensorkiln.artifact.artifact import Artifact, InMemoryArtifact, Later
from tensorkiln.artifact.c_library import GLIBC_NEED, SystemNeed
from tensorkiln.artifact.manifest import ArtifactInfo
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.element_types import NARROW_TYPES
from tensorkiln.base.json_text import MAX_BYTES
from tensorkiln.base.origin import NO_ORIGIN, Origin
from tensorkiln.base.record import OMITTED, JsonKind, JsonRecord, json_key
from tensorkiln.base.schema import Dim, Reader, parsed_text

FORMAT = 6
_CODE = "bad-metadata"


@dataclass(frozen=True, slots=True)
class ParamInfo(JsonRecord):
    """A parameter or result of a function. A dimension of `shape` is a number, or the text of a
    symbolic size (`n`, `2 * n`); the shape of a number, or of a value that is not a tensor, is
    None.

    `role` is `in`, `out`, `inout` or `scalar`. The caller of a tensor function passes its results
    too, so those are inputs with another role than `in`. `device` is the number of the device in
    whose memory the tensor must be, 0 for the host.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None = field(metadata=json_key(omitted=True, absent=None))
    role: str = "in"
    device: int = field(default=0, metadata=OMITTED)

    @property
    def shape_text(self) -> str:
        """`[n, 784]`; empty without a shape."""
        return "" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class PoolInfo(JsonRecord):
    """The part of a function's workspace that the target's pool `name` is to have: its bytes (an
    expression if they depend on symbolic dimensions) and the alignment of its address."""

    name: str
    bytes: Dim
    align: int


@dataclass(frozen=True, slots=True)
class KeptInfo(JsonRecord):
    """Output number `output` of a function is the result of a kernel, of a library that was made
    with `debug=True`. `names` are those of the value in graphs (`transform/relax/name_values.py`):
    its own, and those of reshapes of it. An outer function shows its values while it runs, and
    `output` is then the number by which it does (`ir/kept.py`); without `kernel`, the value is that
    of a step of the host."""

    output: int
    kernel: str
    names: tuple[str, ...]

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        if not self.names:
            raise reader.wrong("expected a name", "names")


def _results(reader: Reader, key: str) -> tuple[ParamInfo, ...]:
    """Parameters whose role is `out` where it is not stated."""
    rows = [(ParamInfo.read(row), "role" in row) for row in reader.rows(key)]
    return tuple(p if is_stated else replace(p, role="out") for p, is_stated in rows)


_Results = Annotated[tuple[ParamInfo, ...], JsonKind(_results)]


@dataclass(frozen=True, slots=True)
class FunctionInfo(JsonRecord):
    """A callable function of a library. `kind` is `graph` (run by an Executor), `tensor` (called
    directly) or `outer` (called with values such as tuples and strings).

    `symbols` maps each symbolic dimension to its least size. `workspace_bytes` is the memory one
    executor holds for the function besides weights, inputs and outputs; an expression if it depends
    on symbolic dimensions. `pools` divides it, for targets with pools of memory. `requires` holds
    conditions between sizes, as text: `sequence <= 512`. `kept` says which outputs are results of
    kernels: the function's own outputs come first, and others are there only to be looked at.
    """

    name: str
    kind: str
    inputs: tuple[ParamInfo, ...] = field(metadata=json_key(absent=()))
    outputs: _Results = field(metadata=json_key(absent=()))
    symbols: Mapping[str, int] = field(default_factory=dict)
    workspace_bytes: Dim = 0
    kernel_calls: int = 0
    requires: tuple[str, ...] = field(default=(), metadata=OMITTED)
    pools: tuple[PoolInfo, ...] = field(default=(), metadata=OMITTED)
    kept: tuple[KeptInfo, ...] = field(default=(), metadata=OMITTED)

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        count = len(self.outputs)
        for info, row in zip(self.kept, reader.rows("kept"), strict=True):
            if self.kind == "graph" and not info.output < count:
                raise row.wrong(f"{info.output} of {count} outputs", "output")

    def to_json(self) -> dict[str, Any]:
        """See `JsonRecord`."""
        return JsonRecord.to_json(self) | _params_json(self, self.kind)


EXT_DEV = "ext_dev"  # the kind of devices whose code loaders run


@dataclass(frozen=True, slots=True)
class DeviceInfo(JsonRecord):
    """A device that code of the library is for: the key of its target among the library's, and its
    kind (`cpu`, `opencl`, `ext_dev` if a loader runs the code). `number` is its number in compiled
    code (crt/device.h), 0 for one whose memory is the host's or a loader's."""

    target_key: str
    kind: str
    number: int

    def validate(self, reader: Reader) -> None:
        """See `JsonRecord`."""
        if (self.kind in ("cpu", EXT_DEV)) != (self.number == 0):
            message = f"{self.number} of kind {self.kind!r:.80}: 0 is the host, or a loader's"
            raise reader.wrong(message, "number")


@dataclass(frozen=True, slots=True)
class KernelInfo(JsonRecord):
    """A generated kernel: its symbol, the model's nodes that it computes, its class (the kind of
    schedule), and its workspace in bytes.

    `level` is the processor that it is for, in a library that has kernels for several. If the
    kernel is a function of a module that a loader makes, `loader` and `target_key` name that
    module's group, and `inputs` and `outputs` the tensors of a call; else these are empty.
    """

    symbol: str
    nodes: tuple[str, ...] = ()
    kernel_class: str = field(default="", metadata=json_key("class"))
    workspace_bytes: int = 0
    loader: str = ""
    target_key: str = ""
    inputs: tuple[ParamInfo, ...] = ()
    outputs: _Results = ()
    level: str = field(default="", metadata=OMITTED)

    def to_json(self) -> dict[str, Any]:
        """See `JsonRecord`."""
        row = JsonRecord.to_json(self) | _params_json(self, "kernel")
        if not self.loader:
            for name in ("loader", "target_key", "inputs", "outputs"):
                del row[name]
        return row


@dataclass(frozen=True, slots=True)
class ConstantInfo(JsonRecord):
    """A constant of the model, at byte `offset` of the weights, packed as `layout` says
    (`ir/layout.py`), or row-major if `layout` is empty. Constants with equal bytes share them, at
    one offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str = field(metadata=json_key(absent=""))
    offset: int


@dataclass(frozen=True, slots=True)
class LevelFunction(JsonRecord):
    """What a function needs on the processors of one level; see FunctionInfo."""

    name: str
    workspace_bytes: Dim
    kernel_calls: int


@dataclass(frozen=True, slots=True)
class LevelInfo(JsonRecord):
    """A processor that a library has kernels for, by LLVM's name: the features that these need
    beyond the baseline, and what its functions need. A library runs the kernels of the last level
    whose features are all there."""

    mcpu: str
    cpu_features: tuple[str, ...]
    functions: tuple[LevelFunction, ...]


def _version(reader: Reader, key: str) -> str:
    compiler = reader.child(key)
    return compiler.get("version", str, "")


@dataclass(frozen=True, slots=True)
class Metadata(JsonRecord):
    """Everything a library says about itself. `target` holds the fields of `Target.to_json`,
    `cpu_features` are those that every processor must have, and `weights_bytes` is the size of the
    weights, inside the library or beside it."""

    library: str
    prefix: str
    compiler_version: Annotated[str, JsonKind(_version)] = field(
        metadata=json_key("compiler", absent="")
    )
    target: Mapping[str, object] = field(metadata=json_key(absent={}))
    cpu_features: tuple[str, ...]
    weights_bytes: int
    functions: tuple[FunctionInfo, ...]
    kernels: tuple[KernelInfo, ...] = ()
    artifacts: tuple[ArtifactInfo, ...] = ()
    dependencies: tuple[ExternalDependency, ...] = ()
    constants: tuple[ConstantInfo, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()  # empty: the host alone
    levels: tuple[LevelInfo, ...] = field(default=(), metadata=OMITTED)  # empty: one
    system: SystemNeed = field(default=GLIBC_NEED, metadata=OMITTED)
    origin: Origin = field(default=NO_ORIGIN, metadata=json_key(hidden=True))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, in the order they are printed."""
        row = JsonRecord.to_json(self)
        tail = {name: row.pop(name) for name in ("cpu_features", "weights_bytes", "functions")}
        devices = row.pop("devices")
        row["compiler"] = {"name": "tensorkiln", "version": self.compiler_version}
        names = ("library", "prefix", "compiler", "target", "system")
        head = {name: row.pop(name) for name in names if name in row}
        whole = {"format": self._format, **head, **self.origin.to_json(), **row, **tail}
        return whole | ({"devices": devices} if devices else {})

    @property
    def _format(self) -> int:
        if self.levels or self.system != GLIBC_NEED:
            return 6
        params = (p for f in self.functions for p in (*f.inputs, *f.outputs))
        if any(p.dtype in NARROW_TYPES for p in params):
            return 5
        if self.origin != NO_ORIGIN:
            return 4
        return 3 if any(f.kept for f in self.functions) else 2

    def to_bytes(self) -> bytes:
        """Return the JSON text, ASCII without spaces; equal for equal metadata."""
        return json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, place: str = "metadata") -> Metadata:
        """Inverse of `to_bytes`; zero bytes at the end are ignored as padding. Raises UserError
        (code `bad-metadata`) naming `place`."""
        text = bytes(data[: MAX_BYTES + 1]).rstrip(b"\0")
        return cls.from_json(parsed_text(text, place, _CODE), place)

    @classmethod
    def from_json(cls, parsed: object, place: str = "metadata") -> Metadata:
        """Build metadata from parsed JSON. Raises UserError (code `bad-metadata`).

        A library linked by hand may lack the keys from `compiler` to `constants`; those fields are
        then empty.
        """
        reader = Reader(parsed, place, _CODE)
        version = reader.get("format", int)
        if not 1 <= version <= FORMAT:
            raise reader.wrong(f"format {version}; this version reads 1 to {FORMAT}")
        return replace(cls.read(reader), origin=Origin.read(reader))


def constants_text(constants: Iterable[ConstantInfo]) -> str:
    """Return the table of constants as JSON, one constant per line; it is a file of its own beside
    the weights."""
    rows = ",\n".join(json.dumps(constant.to_json()) for constant in constants)
    return f"[\n{rows}\n]\n"


def constants_from(data: bytes | memoryview, place: str) -> tuple[ConstantInfo, ...]:
    """Inverse of `constants_text`. Raises UserError (code `bad-metadata`)."""
    rows = {"constants": parsed_text(data, place, _CODE)}
    return tuple(map(ConstantInfo.read, Reader(rows, place, _CODE).rows("constants")))


def read_functions(metadata: object, place: str) -> dict[str, FunctionInfo]:
    """The functions that parsed metadata lists, by name. Raises UserError (code `bad-metadata`)."""
    rows = Reader(metadata, place, _CODE).rows("functions")
    return {f.name: f for f in map(FunctionInfo.read, rows)}


def read_devices(metadata: object, place: str) -> tuple[DeviceInfo, ...]:
    """The devices that parsed metadata lists; none if it lists none. Raises UserError (code
    `bad-metadata`)."""
    return tuple(map(DeviceInfo.read, Reader(metadata, place, _CODE).rows("devices")))


def read_system(metadata: object, place: str) -> SystemNeed:
    """What parsed metadata says that a library needs of the system. Raises UserError (code
    `bad-metadata`)."""
    reader = Reader(metadata, place, _CODE)
    return SystemNeed.read(reader.child("system")) if "system" in reader else GLIBC_NEED


def read_dependencies(metadata: object, place: str) -> tuple[ExternalDependency, ...]:
    """The dependencies that parsed metadata lists; none if it lists none. Raises UserError (codes
    `bad-metadata`, `bad-dependency`, `bad-license`)."""
    rows = Reader(metadata, place, _CODE).rows("dependencies")
    return tuple(map(ExternalDependency.read, rows))


def functions_from(data: bytes | memoryview, place: str) -> tuple[FunctionInfo, ...] | None:
    """Return the functions that a JSON file lists under `functions` in the form of metadata; a
    missing `kind` becomes `kernel`. None if the file has no key `functions`. Raises UserError (code
    `bad-metadata`)."""
    parsed = parsed_text(data, place, _CODE)
    if not isinstance(parsed, dict) or "functions" not in parsed:
        return None
    reader = Reader(parsed, place, _CODE)
    for row in reader.get("functions", list):
        if isinstance(row, dict):
            row.setdefault("kind", "kernel")
    return tuple(map(FunctionInfo.read, reader.rows("functions")))


def artifact_infos(artifacts: Iterable[Artifact | InMemoryArtifact]) -> tuple[ArtifactInfo, ...]:
    """Return what metadata records of each artifact."""
    return tuple(
        ArtifactInfo(
            a.codegen_id,
            a.loader,
            a.file_name,
            a.target_key,
            a.size,
            a.sha256 if isinstance(a, Artifact) and not isinstance(a.content, Later) else "",
        )
        for a in artifacts
    )


def states_role(kind: str, role: str) -> bool:
    """Whether the role of a parameter is written down, for a function of this kind: elsewhere than
    in tensor functions, being an input or an output says it."""
    return kind == "tensor" or role not in ("in", "out")


def _params_json(function: FunctionInfo | KernelInfo, kind: str) -> dict[str, object]:
    def row(param: ParamInfo) -> dict[str, object]:
        out = param.to_json()
        if not states_role(kind, param.role):
            del out["role"]
        return out

    return {
        "inputs": list(map(row, function.inputs)),
        "outputs": list(map(row, function.outputs)),
    }
