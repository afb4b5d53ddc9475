"""What is compiled before and after a change: small networks for every kind of target, an example
of each kernel family, and the measured models in the precisions they are measured in.

A row is named `network/target`; compiling it gives files by name.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tensorkiln as tk
from bench.models import MODELS, QUANTISED
from tests.verification.families import cases
from tests.verification.test_planted import NETWORKS

# Every kind of target, and of CPUs the levels whose kernels differ.
TARGETS: Mapping[str, Mapping[str, object]] = {
    "v2": {"kind": "llvm", "mcpu": "x86-64-v2"},
    "v3": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "v4": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "zen4": {"kind": "llvm", "mcpu": "znver4"},
    "amx": {"kind": "llvm", "mcpu": "sapphirerapids"},
    "neoverse": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"},
    "c": {"kind": "c", "mcpu": "x86-64-v3"},
    "cortex-m4": {"kind": "c", "mtriple": "thumbv7em-none-eabi", "mcpu": "cortex-m4"},
    "sm_80": {"kind": "cuda", "arch": "sm_80"},
    "sm_90a": {"kind": "cuda", "arch": "sm_90a"},
    "opencl": {"kind": "opencl"},
    "webgpu": {"kind": "webgpu"},
}
CPUS = ("v2", "v3", "v4", "zen4", "amx", "neoverse", "c")
# The levels for which the measured models are compiled, and the precision.
MEASURED = (("v3", "float32"), ("v4", "float32"), ("amx", "bfloat16"), ("amx", "int8"))


@dataclass(frozen=True, slots=True)
class Row:
    """One model for one target; `options` are those of `compile`. Those of `measured` models take
    minutes together."""

    name: str
    module: Callable[[], tk.IRModule]
    target: Mapping[str, object]
    options: Mapping[str, object] = field(default_factory=dict)
    measured: bool = False

    def files(self) -> Iterator[tuple[str, bytes]]:
        """The artifacts by name, weights too; of C also the members of a firmware archive."""
        exe = tk.compile(self.module(), dict(self.target), **self.options)  # type: ignore[arg-type]
        for artifact in exe.artifacts.plain:
            if artifact.codegen_id != "llvm" or artifact.file_name.endswith(".o"):
                yield artifact.name, bytes(artifact.view)
        if self.target["kind"] == "c":
            yield from _members(exe)


def _members(exe: tk.Executable) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(exe.export_model_library_format(Path(folder) / "model.tar"))
        with tarfile.open(path) as archive:
            for member in archive:
                if stream := archive.extractfile(member):
                    yield f"archive/{member.name}", stream.read()


def rows() -> Iterator[Row]:
    """All rows, those of small networks first."""
    for network, build in NETWORKS.items():
        for target, config in TARGETS.items():
            yield Row(f"{network}/{target}", build, config)
    for (device, kind), case in cases().items():
        if device == "cpu":
            for target in CPUS:
                yield Row(f"{kind}/{target}", case.module, TARGETS[target])
        yield Row(f"{kind}/{device}", case.module, case.config(device))
    for target, precision in MEASURED:
        for model in QUANTISED if precision == "int8" else MODELS:
            options = {} if precision == "int8" else {"precision": precision}
            name = f"{model}/{target} {precision}"
            module = _measured(model, precision == "int8")
            yield Row(name, module, TARGETS[target], options, measured=True)


def _measured(model: str, quantised: bool) -> Callable[[], tk.IRModule]:
    def module() -> tk.IRModule:
        from bench.roofline import module_of

        return module_of(model, {}, quantised)[0]

    return module
