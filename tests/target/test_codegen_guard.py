"""Compiling for what nothing generates code for is refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.module import IRModule
from tensorkiln.target import Target, register_target_kind, require_codegen, unregister_target_kind


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("metal", "no code generator for kind 'metal'"),
        ("rocm", "kinds that have one: llvm, llvmjit"),
        (
            {"devices": ["llvm", "metal"]},
            r"target\.devices\[1\]\.kind: no code generator for kind 'metal'",
        ),
        ({"devices": ["llvm", {"devices": ["rocm", "metal"]}]}, r"devices\[1\]\.kind: .* 'rocm'"),
        ({"devices": ["llvm", "llvmjit"]}, r"devices\[1\]: the host is llvm, the device llvmjit"),
        (
            {"devices": ["llvm", {"mtriple": "aarch64-linux-gnu"}]},
            "the device of aarch64-unknown-linux-gnu: the host calls a CPU's kernels as functions",
        ),
        ({"kind": "llvm", "target_key": "a"}, r"target\.target_key: target_key is a field of"),
        ({"operators": ["conv2d"]}, r"target\.operators: operators is a field of"),
        ({"libs": ["openblas"]}, r"target\.libs: no code generator of kind 'llvm' calls"),
        ({"kind": "llvmjit", "libs": ["mkl"]}, "of kind 'llvmjit' calls libraries, such as 'mkl'"),
        ({"mtriple": "wasm32-unknown-unknown"}, "no code is generated for wasm32 yet"),
        (
            {"mtriple": "riscv64-linux-gnu", "mcpu": "sifive-s51"},
            r"target\.mattr: libraries for riscv64 pass .* the target lacks f, d",
        ),
    ],
)
def test_refused(spec: Any, says: str) -> None:
    with pytest.raises(UnsupportedError, match=says):
        tk.compile(IRModule(), spec)


def test_registered_code_generators_count() -> None:
    register_target_kind("accel", "ext_dev", relax_codegen=lambda target: ())
    try:
        require_codegen(Target("accel"))
        require_codegen(Target({"kind": "accel", "libs": ["own"]}))
        with pytest.raises(UnsupportedError, match=r"target\.host\.libs"):
            require_codegen(Target({"kind": "accel", "host": {"kind": "llvm", "libs": ["own"]}}))
        with pytest.raises(
            UnsupportedError,
            match="kinds that have one: llvm, llvmjit, c, cuda, opencl, webgpu, accel",
        ):
            require_codegen(Target("vulkan"))
    finally:
        unregister_target_kind("accel")
