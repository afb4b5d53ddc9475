"""The metadata of a compiled library: JSON in a section of the library, readable without running
its code.

Every addition raises `format`. Format 2 added `license`, `sha256`, `libraries` and `build_time` of
`dependencies`, `pools` of functions, `devices`, and `device` of parameters. Format 3 added `kept`
of functions, format 4 `model`, `options` and `uses`, format 5 the element types of
`base/element_types.py`; a library without them is still of an earlier format. A reader takes every
format up to its own, and refuses later ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from tensorkiln.artifact.artifact import Artifact, InMemoryArtifact, Later
from tensorkiln.artifact.dependency import dependency_rows, read_dependency
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.element_types import NARROW_TYPES
from tensorkiln.base.errors import UserError
from tensorkiln.base.json_text import MAX_BYTES, parse_json
from tensorkiln.base.origin import NO_ORIGIN, USES, ModelSource, Origin, Use
from tensorkiln.base.schema import MOST, Dim, Reader

FORMAT = 5


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """A parameter or result of a function. A dimension of `shape` is a number, or the text of a
    symbolic size (`n`, `2 * n`); the shape of a number, or of a value that is not a tensor, is
    None.

    `role` is `in`, `out`, `inout` or `scalar`. The caller of a tensor function passes its results
    too, so those are inputs with another role than `in`. `device` is the number of the device in
    whose memory the tensor must be, 0 for the host.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    role: str = "in"
    device: int = 0

    @property
    def shape_text(self) -> str:
        """`[n, 784]`; empty without a shape."""
        return "" if self.shape is None else f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """The part of a function's workspace that the target's pool `name` is to have: its bytes (an
    expression if they depend on symbolic dimensions) and the alignment of its address."""

    name: str
    bytes: Dim
    align: int


@dataclass(frozen=True, slots=True)
class KeptInfo:
    """Output number `output` of a function is the result of a kernel, of a library that was made
    with `debug=True`. `names` are those of the value in graphs (`transform/relax/name_values.py`):
    its own, and those of reshapes of it. An outer function shows its values while it runs, and
    `output` is then the number by which it does (`ir/kept.py`); without `kernel`, the value is that
    of a step of the host."""

    output: int
    kernel: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FunctionInfo:
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
    inputs: tuple[ParamInfo, ...]
    outputs: tuple[ParamInfo, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)
    workspace_bytes: Dim = 0
    kernel_calls: int = 0
    requires: tuple[str, ...] = ()
    pools: tuple[PoolInfo, ...] = ()
    kept: tuple[KeptInfo, ...] = ()


EXT_DEV = "ext_dev"  # the kind of devices whose code loaders run


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device that code of the library is for: the key of its target among the library's, and its
    kind (`cpu`, `opencl`, `ext_dev` if a loader runs the code). `number` is its number in compiled
    code (crt/device.h), 0 for one whose memory is the host's or a loader's."""

    target_key: str
    kind: str
    number: int


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A generated kernel: its symbol, the model's nodes that it computes, its class (the kind of
    schedule), and its workspace in bytes.

    If the kernel is a function of a module that a loader makes, `loader` and `target_key` name that
    module's group, and `inputs` and `outputs` the tensors of a call; else these are empty.
    """

    symbol: str
    nodes: tuple[str, ...] = ()
    kernel_class: str = ""
    workspace_bytes: int = 0
    loader: str = ""
    target_key: str = ""
    inputs: tuple[ParamInfo, ...] = ()
    outputs: tuple[ParamInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """A constant of the model, at byte `offset` of the weights, packed as `layout` says
    (`ir/layout.py`), or row-major if `layout` is empty. Constants with equal bytes share them, at
    one offset."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str
    offset: int


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """An artifact that went into the library. `sha256` is empty for lazy contents such as weights,
    which are not read again only to be hashed, and for artifacts without a form as bytes."""

    codegen_id: str
    loader: str
    file_name: str
    target_key: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything a library says about itself. `target` holds the fields of `Target.to_json`, and
    `weights_bytes` the size of the weights, inside the library or beside it."""

    library: str
    prefix: str
    compiler_version: str
    target: Mapping[str, object]
    cpu_features: tuple[str, ...]
    weights_bytes: int
    functions: tuple[FunctionInfo, ...]
    kernels: tuple[KernelInfo, ...] = ()
    artifacts: tuple[ArtifactInfo, ...] = ()
    dependencies: tuple[ExternalDependency, ...] = ()
    constants: tuple[ConstantInfo, ...] = ()
    devices: tuple[DeviceInfo, ...] = ()  # empty: the host alone
    origin: Origin = NO_ORIGIN

    def to_json(self) -> dict[str, object]:
        """Return JSON values, in the order they are printed."""
        out: dict[str, object] = {
            "format": self._format,
            "library": self.library,
            "prefix": self.prefix,
            "compiler": {"name": "tensorkiln", "version": self.compiler_version},
            "target": dict(self.target),
            **_origin_json(self.origin),
            "kernels": [_kernel_json(kernel) for kernel in self.kernels],
            "artifacts": [_artifact_json(artifact) for artifact in self.artifacts],
            "dependencies": dependency_rows(self.dependencies),
            "constants": [_constant_json(constant) for constant in self.constants],
            "cpu_features": list(self.cpu_features),
            "weights_bytes": self.weights_bytes,
            "functions": [_function_json(function) for function in self.functions],
        }
        if self.devices:
            out["devices"] = [asdict(device) for device in self.devices]
        return out

    @property
    def _format(self) -> int:
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
        try:
            parsed = parse_json(bytes(data[: MAX_BYTES + 1]).rstrip(b"\0"), unique=True)
        except ValueError as error:
            raise _bad(f"not valid JSON: {error}", place) from None
        return cls.from_json(parsed, place)

    @classmethod
    def from_json(cls, parsed: object, place: str = "metadata") -> Metadata:
        """Build metadata from parsed JSON. Raises UserError (code `bad-metadata`).

        A library linked by hand may lack the keys from `compiler` to `constants`; those fields are
        then empty.
        """
        reader = _reader(parsed, place)
        version = reader.get("format", int)
        if not 1 <= version <= FORMAT:
            raise _bad(f"format {version}; this version reads 1 to {FORMAT}", place)
        return cls(
            library=reader.get("library", str),
            prefix=reader.get("prefix", str),
            compiler_version=reader.child("compiler").get("version", str, ""),
            target=reader.get("target", dict, {}),
            cpu_features=reader.texts("cpu_features"),
            weights_bytes=reader.number("weights_bytes"),
            functions=tuple(_function(row) for row in reader.rows("functions")),
            kernels=tuple(_kernel(row) for row in reader.rows("kernels")),
            artifacts=tuple(_artifact(row) for row in reader.rows("artifacts")),
            dependencies=tuple(map(read_dependency, reader.rows("dependencies"))),
            constants=tuple(_constant(row) for row in reader.rows("constants")),
            devices=_devices(reader),
            origin=_origin(reader),
        )


def constants_text(constants: Iterable[ConstantInfo]) -> str:
    """Return the table of constants as JSON, one constant per line; it is a file of its own beside
    the weights."""
    rows = ",\n".join(json.dumps(_constant_json(constant)) for constant in constants)
    return f"[\n{rows}\n]\n"


def constants_from(data: bytes | memoryview, place: str) -> tuple[ConstantInfo, ...]:
    """Inverse of `constants_text`. Raises UserError (code `bad-metadata`)."""
    try:
        parsed = parse_json(data, unique=True)
    except ValueError as error:
        raise _bad(f"not valid JSON: {error}", place) from None
    return tuple(_constant(row) for row in _reader({"constants": parsed}, place).rows("constants"))


def read_functions(metadata: object, place: str) -> dict[str, FunctionInfo]:
    """The functions that parsed metadata lists, by name. Raises UserError (code `bad-metadata`)."""
    return {f.name: f for f in map(_function, _reader(metadata, place).rows("functions"))}


def read_devices(metadata: object, place: str) -> tuple[DeviceInfo, ...]:
    """The devices that parsed metadata lists; none if it lists none. Raises UserError (code
    `bad-metadata`)."""
    return _devices(_reader(metadata, place))


def read_dependencies(metadata: object, place: str) -> tuple[ExternalDependency, ...]:
    """The dependencies that parsed metadata lists; none if it lists none. Raises UserError (codes
    `bad-metadata`, `bad-dependency`, `bad-license`)."""
    return tuple(map(read_dependency, _reader(metadata, place).rows("dependencies")))


def functions_from(data: bytes | memoryview, place: str) -> tuple[FunctionInfo, ...] | None:
    """Return the functions that a JSON file lists under `functions` in the form of metadata; a
    missing `kind` becomes `kernel`. None if the file has no key `functions`. Raises UserError (code
    `bad-metadata`)."""
    try:
        parsed = parse_json(data, unique=True)
    except ValueError as error:
        raise _bad(f"not valid JSON: {error}", place) from None
    if not isinstance(parsed, dict) or "functions" not in parsed:
        return None
    return tuple(_function(row, "kernel") for row in _reader(parsed, place).rows("functions"))


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


# -- to plain values ---------------------------------------------------------------------------


def states_role(kind: str, role: str) -> bool:
    """Whether the role of a parameter is written down, for a function of this kind: elsewhere than
    in tensor functions, being an input or an output says it."""
    return kind == "tensor" or role not in ("in", "out")


def _param_json(param: ParamInfo, kind: str) -> dict[str, object]:
    out: dict[str, object] = {"name": param.name, "dtype": param.dtype}
    if param.shape is not None:
        out["shape"] = list(param.shape)
    if states_role(kind, param.role):
        out["role"] = param.role
    if param.device:
        out["device"] = param.device
    return out


def _function_json(function: FunctionInfo) -> dict[str, object]:
    out: dict[str, object] = {
        "name": function.name,
        "kind": function.kind,
        "inputs": [_param_json(param, function.kind) for param in function.inputs],
        "outputs": [_param_json(param, function.kind) for param in function.outputs],
        "symbols": dict(function.symbols),
        "workspace_bytes": function.workspace_bytes,
        "kernel_calls": function.kernel_calls,
    }
    if function.requires:
        out["requires"] = list(function.requires)
    if function.pools:
        out["pools"] = [asdict(pool) for pool in function.pools]
    if function.kept:
        out["kept"] = [{**asdict(info), "names": list(info.names)} for info in function.kept]
    return out


def _kernel_json(kernel: KernelInfo) -> dict[str, object]:
    out: dict[str, object] = {
        "symbol": kernel.symbol,
        "nodes": list(kernel.nodes),
        "class": kernel.kernel_class,
        "workspace_bytes": kernel.workspace_bytes,
    }
    if kernel.loader:
        out |= {
            "loader": kernel.loader,
            "target_key": kernel.target_key,
            "inputs": [_param_json(param, "kernel") for param in kernel.inputs],
            "outputs": [_param_json(param, "kernel") for param in kernel.outputs],
        }
    return out


def _origin_json(origin: Origin) -> dict[str, object]:
    """The keys of format 4 that say something."""
    out: dict[str, object] = {}
    if model := origin.model:
        out["model"] = {"kind": model.kind, "sha256": model.sha256}
        if model.weights:
            rows = [{"name": name, "sha256": digest} for name, digest in model.weights]
            out["model"] = {"kind": model.kind, "sha256": model.sha256, "weights": rows}
    if origin.options:
        out["options"] = dict(origin.options)
    if origin.uses:
        out["uses"] = [asdict(use) for use in origin.uses]
    return out


def _constant_json(constant: ConstantInfo) -> dict[str, object]:
    return {**asdict(constant), "shape": list(constant.shape)}


def _artifact_json(artifact: ArtifactInfo) -> dict[str, object]:
    return {name: getattr(artifact, name) for name in ArtifactInfo.__dataclass_fields__}


# -- from plain values -------------------------------------------------------------------------


def _bad(message: str, place: str) -> UserError:
    return UserError(message, code="bad-metadata", where=place)


def _reader(value: object, place: str) -> Reader:
    return Reader(value, place, "bad-metadata")


def _params(row: Reader, key: str, role: str) -> tuple[ParamInfo, ...]:
    """The parameters in the list `key`, whose role is `role` where it is not stated."""
    return tuple(
        ParamInfo(
            p.get("name", str),
            p.get("dtype", str),
            p.dims("shape"),
            p.get("role", str, role),
            p.number("device", 0),
        )
        for p in row.rows(key)
    )


def _origin(row: Reader) -> Origin:
    model = None
    if not row.is_null("model"):
        m = row.child("model")
        weights = tuple((w.get("name", str), w.get("sha256", str)) for w in m.rows("weights"))
        model = ModelSource(m.get("kind", str), m.get("sha256", str), weights)
    uses = []
    for u in row.rows("uses"):
        use = Use(u.get("short_name", str), u.get("how", str), u.get("why", str))
        if use.how not in USES:
            raise u.wrong(f"{use.how!r:.80}, expected one of {', '.join(USES)}", "how")
        uses.append(use)
    return Origin(model, row.get("options", dict, {}), tuple(uses))


def _devices(row: Reader) -> tuple[DeviceInfo, ...]:
    devices = []
    for d in row.rows("devices"):
        info = DeviceInfo(d.get("target_key", str), d.get("kind", str), d.number("number"))
        if (info.kind in ("cpu", EXT_DEV)) != (info.number == 0):
            message = f"{info.number} of kind {info.kind!r:.80}: 0 is the host, or a loader's"
            raise d.wrong(message, "number")
        devices.append(info)
    return tuple(devices)


def _function(row: Reader, default: str | None = None) -> FunctionInfo:
    kind = row.get("kind", str, default)
    return FunctionInfo(
        name=row.get("name", str),
        kind=kind,
        inputs=_params(row, "inputs", "in"),
        outputs=_params(row, "outputs", "out"),
        symbols=_symbols(row),
        workspace_bytes=row.size("workspace_bytes"),
        kernel_calls=row.number("kernel_calls", 0),
        requires=row.texts("requires", ()),
        pools=tuple(
            PoolInfo(p.get("name", str), p.size("bytes"), p.number("align"))
            for p in row.rows("pools")
        ),
        kept=_kept(row, kind),
    )


def _kept(row: Reader, kind: str) -> tuple[KeptInfo, ...]:
    count, is_graph = len(row.rows("outputs")), kind == "graph"
    infos = []
    for k in row.rows("kept"):
        info = KeptInfo(k.number("output"), k.get("kernel", str), k.texts("names"))
        if is_graph and not info.output < count:
            raise k.wrong(f"{info.output} of {count} outputs", "output")
        if not info.names:
            raise k.wrong("expected a name", "names")
        infos.append(info)
    return tuple(infos)


def _symbols(row: Reader) -> dict[str, int]:
    symbols: dict[str, int] = {}
    for name, lower in row.items("symbols"):
        if not isinstance(lower, int) or isinstance(lower, bool) or not 0 <= lower <= MOST:
            raise row.wrong(f"{name!r:.200}: expected a size, got {lower!r:.200}", "symbols")
        symbols[name] = lower
    return symbols


def _kernel(row: Reader) -> KernelInfo:
    return KernelInfo(
        row.get("symbol", str),
        row.texts("nodes"),
        row.get("class", str, ""),
        row.number("workspace_bytes", 0),
        row.get("loader", str, ""),
        row.get("target_key", str, ""),
        _params(row, "inputs", "in"),
        _params(row, "outputs", "out"),
    )


def _constant(row: Reader) -> ConstantInfo:
    shape = row.get("shape", list)
    if not all(type(dim) is int and 0 <= dim <= MOST for dim in shape):
        raise row.wrong("expected a list of sizes", "shape")
    return ConstantInfo(
        name=row.get("name", str),
        dtype=row.get("dtype", str),
        shape=tuple(shape),
        layout=row.get("layout", str, ""),
        offset=row.number("offset"),
    )


def _artifact(row: Reader) -> ArtifactInfo:
    return ArtifactInfo(
        codegen_id=row.get("codegen_id", str),
        loader=row.get("loader", str),
        file_name=row.get("file_name", str),
        target_key=row.get("target_key", str),
        size=row.number("size"),
        sha256=row.get("sha256", str),
    )
