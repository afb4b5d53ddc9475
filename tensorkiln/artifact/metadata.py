"""The metadata of a compiled library: JSON that rides in it and needs no code to be read.

Version 1. A reader refuses other versions; every added key bumps the version.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from tensorkiln.artifact.artifact import Artifact
from tensorkiln.base.errors import UserError

VERSION = 1
_MAX_BYTES = 1 << 28

Dim = int | str
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output; a dim is a number or the name or expression of a symbolic one."""

    name: str
    dtype: str
    dims: tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A callable function. `kind` is `graph` (needs an Executor) or `tensor` (called directly).

    `symbols` maps an interface (`ffi`, `c`) to the exported symbol.
    """

    name: str
    kind: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    symbols: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A generated kernel: its symbol, the model's nodes it computes, its class, own workspace."""

    symbol: str
    nodes: tuple[str, ...] = ()
    kernel_class: str = ""
    workspace_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """An artifact that went into the library."""

    codegen_id: str
    loader: str
    file_name: str
    target_key: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Metadata:
    """Everything a library says about itself.

    `target` is the Target's canonical JSON as plain values. `workspace_bytes` is what one executor
    holds beside weights, inputs and outputs; -1 when it depends on symbolic dimensions.
    """

    library: str
    compiler_version: str
    target: Mapping[str, object]
    cpu_features: tuple[str, ...]
    functions: tuple[FunctionInfo, ...]
    kernels: tuple[KernelInfo, ...] = ()
    workspace_bytes: int = 0
    weights_bytes: int = 0
    artifacts: tuple[ArtifactInfo, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Plain values in the order they are printed."""
        return {
            "version": VERSION,
            "library": self.library,
            "compiler": {"name": "tensorkiln", "version": self.compiler_version},
            "target": dict(self.target),
            "cpu_features": list(self.cpu_features),
            "functions": [_function_json(function) for function in self.functions],
            "kernels": [_kernel_json(kernel) for kernel in self.kernels],
            "workspace_bytes": self.workspace_bytes,
            "weights_bytes": self.weights_bytes,
            "artifacts": [_artifact_json(artifact) for artifact in self.artifacts],
        }

    def to_bytes(self) -> bytes:
        """The text that goes into the library; the same for equal metadata."""
        return json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, where: str = "metadata") -> Metadata:
        """Inverse of `to_bytes`; zero bytes at the end are padding. UserError when malformed."""
        if len(data) > _MAX_BYTES:
            raise _bad(f"{len(data)} bytes of it", where)
        try:
            parsed = json.loads(bytes(data).rstrip(b"\0").decode())
        except (ValueError, RecursionError) as error:
            raise _bad(f"not valid JSON: {error}", where) from None
        return cls.from_json(parsed, where)

    @classmethod
    def from_json(cls, parsed: object, where: str = "metadata") -> Metadata:
        """Check plain values and make them typed ones. Raises UserError (code `bad-metadata`)."""
        reader = _Reader(parsed, where)
        version = reader.get("version", int)
        if version != VERSION:
            raise _bad(f"version {version}; this version reads {VERSION}", where)
        return cls(
            library=reader.get("library", str),
            compiler_version=reader.child("compiler").get("version", str),
            target=reader.get("target", dict),
            cpu_features=reader.texts("cpu_features"),
            functions=tuple(_function(row) for row in reader.rows("functions")),
            kernels=tuple(_kernel(row) for row in reader.rows("kernels")),
            workspace_bytes=reader.get("workspace_bytes", int),
            weights_bytes=reader.get("weights_bytes", int),
            artifacts=tuple(_artifact(row) for row in reader.rows("artifacts")),
        )


def artifact_infos(artifacts: Iterable[Artifact]) -> tuple[ArtifactInfo, ...]:
    """What metadata records of each artifact."""
    return tuple(
        ArtifactInfo(a.codegen_id, a.loader, a.file_name, a.target_key, a.size, a.sha256)
        for a in artifacts
    )


# -- to plain values ---------------------------------------------------------------------------


def _tensor_json(tensor: TensorInfo) -> dict[str, object]:
    return {"name": tensor.name, "dtype": tensor.dtype, "dims": list(tensor.dims)}


def _function_json(function: FunctionInfo) -> dict[str, object]:
    return {
        "name": function.name,
        "kind": function.kind,
        "inputs": [_tensor_json(tensor) for tensor in function.inputs],
        "outputs": [_tensor_json(tensor) for tensor in function.outputs],
        "symbols": dict(sorted(function.symbols.items())),
    }


def _kernel_json(kernel: KernelInfo) -> dict[str, object]:
    return {
        "symbol": kernel.symbol,
        "nodes": list(kernel.nodes),
        "class": kernel.kernel_class,
        "workspace_bytes": kernel.workspace_bytes,
    }


def _artifact_json(artifact: ArtifactInfo) -> dict[str, object]:
    return {name: getattr(artifact, name) for name in ArtifactInfo.__dataclass_fields__}


# -- from plain values -------------------------------------------------------------------------


def _bad(message: str, where: str) -> UserError:
    return UserError(message, code="bad-metadata", where=where)


class _Reader:
    """Typed reading of one JSON object; errors say where in the text."""

    def __init__(self, value: object, where: str):
        if not isinstance(value, dict):
            raise _bad(f"expected an object, got {type(value).__name__}", where)
        self._value, self._where = cast("dict[str, object]", value), where

    def get(self, key: str, kind: type[_T]) -> _T:
        value = self._value.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise _bad(
                f"expected {kind.__name__}, got {type(value).__name__}", f"{self._where}.{key}"
            )
        return value

    def child(self, key: str) -> _Reader:
        return _Reader(self._value.get(key), f"{self._where}.{key}")

    def rows(self, key: str) -> list[_Reader]:
        found = self.get(key, list)
        return [_Reader(row, f"{self._where}.{key}[{i}]") for i, row in enumerate(found)]

    def texts(self, key: str) -> tuple[str, ...]:
        found = self.get(key, list)
        if not all(isinstance(text, str) for text in found):
            raise _bad("expected a list of text", f"{self._where}.{key}")
        return tuple(found)

    def dims(self, key: str) -> tuple[Dim, ...]:
        found = self.get(key, list)
        if not all(isinstance(dim, int | str) and not isinstance(dim, bool) for dim in found):
            raise _bad("expected a list of numbers and names", f"{self._where}.{key}")
        return tuple(found)


def _tensor(row: _Reader) -> TensorInfo:
    return TensorInfo(row.get("name", str), row.get("dtype", str), row.dims("dims"))


def _function(row: _Reader) -> FunctionInfo:
    symbols = row.get("symbols", dict)
    return FunctionInfo(
        name=row.get("name", str),
        kind=row.get("kind", str),
        inputs=tuple(_tensor(tensor) for tensor in row.rows("inputs")),
        outputs=tuple(_tensor(tensor) for tensor in row.rows("outputs")),
        symbols={str(key): str(value) for key, value in symbols.items()},
    )


def _kernel(row: _Reader) -> KernelInfo:
    return KernelInfo(
        row.get("symbol", str),
        row.texts("nodes"),
        row.get("class", str),
        row.get("workspace_bytes", int),
    )


def _artifact(row: _Reader) -> ArtifactInfo:
    return ArtifactInfo(
        codegen_id=row.get("codegen_id", str),
        loader=row.get("loader", str),
        file_name=row.get("file_name", str),
        target_key=row.get("target_key", str),
        size=row.get("size", int),
        sha256=row.get("sha256", str),
    )
