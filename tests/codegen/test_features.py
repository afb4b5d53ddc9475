"""Features of processors: kernels are compiled with those that they use, libraries require them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.llvm.features import features_of, words_of
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.relax import tensor
from tensorkiln.kernel_cache import kernel_cache
from tensorkiln.kernels.case import c
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.target import Target
from tensorkiln.target.isa import ISAS

SAPPHIRE = Target({"mcpu": "sapphirerapids"})
AMX = {"amx-tile", "amx-bf16", "amx-int8"}
BYTES = {"avx512vnni", "avxvnni", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "gfni"}
NEVER = {"avx512ifma", "avx512vpopcntdq"}
COMMON = set(SAPPHIRE.required_features) - AMX - BYTES - NEVER - {"avx512fp16", "avx512bf16"}


def product(dtype: str) -> tk.IRModule:
    """relu(x w) of 33 rows, 64 terms and 96 columns."""
    g = GraphBuilder()
    x = g.param("x", tensor((33, 64), dtype))
    draw = np.random.default_rng(0)
    w = c(draw.standard_normal((64, 96)) * 8, dtype)
    y = g.emit("matmul", x, w)
    return tk.IRModule((g.finish(g.emit("relu", y)),))


@pytest.mark.parametrize(
    ("dtype", "precision", "extra"),
    [
        ("float32", None, set()),
        ("float64", None, set()),
        ("int32", None, set()),
        ("float32", "bfloat16", {"avx512bf16", *BYTES, *AMX}),
        ("float16", None, {"avx512fp16", *BYTES}),
        ("int8", None, BYTES),
    ],
)
def test_a_library_requires_what_its_kernels_use(
    dtype: str, precision: str | None, extra: set[str]
) -> None:
    exe = tk.compile(product(dtype), SAPPHIRE, precision=precision)
    assert set(exe.cpu_features) == COMMON | extra


def test_the_library_says_so_and_a_cached_kernel_remembers(tmp_path: Path) -> None:
    assert kernel_cache() is not None
    for _ in range(2):
        exe = tk.compile(product("float32"), SAPPHIRE)
        library = exe.export_library(tmp_path / "net.so")
        assert set(inspect_library(library).metadata.cpu_features) == COMMON
    kernels = exe.module.kernels
    assert all(features_of(f, SAPPHIRE) >= COMMON for f in kernels)


def test_kind_c_requires_what_the_target_has() -> None:
    target = SAPPHIRE.replace(kind="c")
    exe = tk.compile(product("float32"), target)
    assert exe.cpu_features == target.required_features


def test_words_of_a_program() -> None:
    (f,) = (
        f
        for f in tk.compile(product("int8"), SAPPHIRE).module.with_programs().prim_funcs
        if f.op_class != "movement"
    )
    assert {"int8", "short"} <= words_of(f)


def test_without_a_use_what_implies_it_is_gone_too() -> None:
    isa = ISAS["x86_64"]
    features = isa.cpu_features("diamondrapids")
    float_features = isa.used(features, ["float32"])
    assert not float_features & {"avx10.1", "avx10.2", "amx-tile", "amx-fp16", "avx512fp16"}
    assert {"avx512f", "avx512bw", "avx512vl", "fma", "egpr"} <= float_features
    assert isa.used(features, ["float32", "float16", "bfloat16", "short", "tile"]) >= {"amx-tile"}
    assert all(name in isa.implied for name in isa.uses)
    assert ISAS["aarch64"].used(frozenset({"sve", "fullfp16"}), []) == {"sve", "fullfp16"}
