"""Stand-ins for the compiler and the runtime, so that the commands are tested by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tensorkiln
import tensorkiln.pipeline  # before `install` replaces what it imports
from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.metadata import FunctionInfo, KernelInfo, Metadata, ParamInfo
from tensorkiln.base.errors import Issue
from tensorkiln.frontend import onnx as onnx_frontend
from tensorkiln.inspectors import Subject, open_subject
from tensorkiln.inspectors.library import KernelSize, LibraryReport
from tensorkiln.target import Target

MAIN = FunctionInfo(
    "main",
    "graph",
    (
        ParamInfo("x", "float32", ("batch", 3)),
        ParamInfo("ids", "int64", ("batch",)),
    ),
    (ParamInfo("y/out.0", "float32", ("batch", 3), "out"), ParamInfo("count", "int64", (), "out")),
    {"batch": 1},
    "batch * 12",
    2,
)
METADATA = Metadata(
    library="net",
    prefix="net",
    compiler_version="9.9.9",
    target=Target("llvm").to_json(),
    cpu_features=("avx2",),
    weights_bytes=1_500_000,
    functions=(MAIN, FunctionInfo("scale", "tensor", (), ())),
    kernels=tuple(KernelInfo(f"k{i}", (f"node{i}",), "elementwise") for i in range(12)),
)
REPORT = LibraryReport(
    path="net.so",
    machine="x86_64",
    file_bytes=2_000_000,
    digest="right",
    sections=((".text", 5000),),
    system=METADATA.system,
    needed=("libc.so.6",),
    exports=("net_main",),
    kernels=tuple(KernelSize(f"k{i}", 100 + i) for i in range(12)),
    kernel_code_bytes=1266,
    runtime_code_bytes=3734,
    weights_bytes=1_500_000,
    metadata=METADATA,
)
ISSUES = (
    Issue("operator", "loop1", "Loop", "operator Loop is not implemented", "unroll it"),
    Issue("dtype", "", "Cast", "complex64 is not implemented"),
)


@dataclass
class FakeTensor:
    array: Any

    def numpy(self) -> Any:
        return self.array


@dataclass
class FakeExecutable:
    artifacts: ArtifactSet

    def export_library(self, path: str | Path, **_: Any) -> None:
        Path(path).write_bytes(b"library")


@dataclass
class FakeCompiler:
    """Records what the commands asked for; `fail` is raised by `compile`."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    issues: tuple[Issue, ...] = ()
    fail: BaseException | None = None

    def from_onnx(self, path: Any, freeze: Any = None, shapes: Any = None) -> str:
        self.calls.append(("from_onnx", (path, freeze)))
        return "module"

    def compile(self, module: str, target: Target, **options: Any) -> FakeExecutable:
        self.calls.append(("compile", (module, target)))
        options["progress"].phase("kernels", total=1)
        options["progress"].advance(1, "k0")
        if self.fail is not None:
            raise self.fail
        return FakeExecutable(ArtifactSet((Artifact("llvm", "native", "k0.o", b"code"),)))

    def check(self, model: Any, target: Target, *, shapes: object = None) -> tuple[Issue, ...]:
        self.calls.append(("check", (model, target)))
        return self.issues


def run_main(x: Any, ids: Any) -> tuple[FakeTensor, FakeTensor]:
    return FakeTensor(x * 2), FakeTensor(np.array(ids.sum()))


def install(monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """Put the stand-ins where the commands look them up."""
    compiler = FakeCompiler()
    executor: Callable[..., dict[str, Any]] = lambda library, device=None: {"main": run_main}  # noqa: E731
    names: dict[str, object] = {
        "Target": Target,
        "frontend": SimpleNamespace(from_onnx=compiler.from_onnx),
        "compile": compiler.compile,
        "check": compiler.check,
        "cpu": lambda: "cpu",
        "runtime": SimpleNamespace(
            load_module=lambda path, sha256=None: SimpleNamespace(num_threads=1), Executor=executor
        ),
    }
    for name, value in names.items():
        monkeypatch.setattr(tensorkiln, name, value, raising=False)
    monkeypatch.setattr("tensorkiln.cli.library.inspect_library", lambda path: REPORT)
    monkeypatch.setattr("tensorkiln.cli.inspect.inspect_library", lambda path: REPORT)
    monkeypatch.setattr(onnx_frontend, "absent_files", lambda model: ())
    opened = Subject("net.so", "library", ArtifactSet())
    monkeypatch.setattr(
        "tensorkiln.cli.inspect.open_subject", lambda p: opened if p.is_file() else open_subject(p)
    )
    return compiler
