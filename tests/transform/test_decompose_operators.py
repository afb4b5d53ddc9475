"""decompose_operators: operators that no kernel fits, and those that one does."""

from __future__ import annotations

from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import tensor
from tensorkiln.target import Target
from tensorkiln.transform.relax.decompose_operators import DecomposeOperators
from tests.transform.graphs import check_text, check_unchanged, graph

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})


def test_attention_of_wide_values() -> None:
    check_text(
        DecomposeOperators(TARGET),
        """
        @R.function
        def main(
            q: R.Tensor((1, 2, 4, 8), "float32"),
            k: R.Tensor((1, 2, 4, 8), "float32"),
            v: R.Tensor((1, 2, 4, 512), "float32"),
        ):
            y = R.attention(q, k, v, scale=0.5)
            return y
        """,
        """
        @R.function
        def main(
            q: R.Tensor((1, 2, 4, 8), "float32"),
            k: R.Tensor((1, 2, 4, 8), "float32"),
            v: R.Tensor((1, 2, 4, 512), "float32"),
        ):
            y_transpose1 = R.transpose(k, axes=(0, 1, 3, 2))
            y_matmul2 = R.matmul(
                q, y_transpose1, transpose_a=False, transpose_b=False, wide=False
            )
            y_mul3 = R.mul(y_matmul2, R.const(0.5, "float32"))
            y_max4 = R.max(y_mul3, axes=(3,), keepdims=True)
            y_maximum5 = R.maximum(y_max4, R.const(-3.4028234663852886e38, "float32"))
            y_sub6 = R.sub(y_mul3, y_maximum5)
            y_exp7 = R.exp(y_sub6)
            y_sum8 = R.sum(y_exp7, axes=(3,), keepdims=True)
            y_maximum9 = R.maximum(y_sum8, R.const(0.5, "float32"))
            y_div10 = R.div(y_exp7, y_maximum9)
            y = R.matmul(y_div10, v, transpose_a=False, transpose_b=False, wide=False)
            return y
        """,
    )


def test_attention_that_a_kernel_fits_stays() -> None:
    shapes = dict.fromkeys("qkv", (1, 2, 4, 8))
    mod = graph(lambda g, q, k, v: g.attention(q, k, v, scale=0.5), **shapes)
    check_unchanged(DecomposeOperators(TARGET), mod)


GPU = {"kind": "opencl", "target_key": "gpu"}
DEVICE = {"devices": [GPU], "host": {"kind": "llvm", "mcpu": "haswell"}}
ROW = (1, 2, 4, 8)
# target, shapes of q, k and v, type -> the reason
REASONS: dict[str, tuple[Any, tuple[tuple[Any, ...], ...], str, str]] = {
    "type": (TARGET, (ROW,) * 3, "float64", "attention_fused: its operands are not all float32"),
    "symbolic": (
        TARGET,
        ((1, 2, 4, "d"),) * 3,
        "float32",
        "attention_fused: its head size is symbolic",
    ),
    "values": (
        TARGET,
        (ROW, ROW, (1, 2, 4, 16)),
        "float32",
        "attention_fused: its queries have head size 8, its values 16",
    ),
    "lanes": (
        TARGET,
        ((1, 2, 4, 12),) * 3,
        "float32",
        "attention_fused: its head size 12 is no multiple of 8 lanes",
    ),
    "no vectors": (
        Target({"kind": "c", "mtriple": "thumbv7em-none-eabi", "mcpu": "cortex-m4"}),
        (ROW,) * 3,
        "float32",
        "attention_fused: the target has no vectors",
    ),
    "type on a device": (
        DEVICE,
        (ROW,) * 3,
        "float16",
        "gpu_attention: its operands are not all float32",
    ),
    "symbolic on a device": (
        DEVICE,
        ((1, 2, 4, "d"),) * 3,
        "float32",
        "gpu_attention: its head size is symbolic",
    ),
    "tile": (
        {**DEVICE, "devices": [{**GPU, "max_shared_memory_per_block": 4096}]},
        ((1, 2, 64, 512),) * 3,
        "float32",
        "gpu_attention: no tile of head size 512 fits 256 threads with 4096 bytes to share",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_is_shown(name: str) -> None:
    target, shapes, dtype, reason = REASONS[name]
    d = Var("d")
    types = [tensor([d if n == "d" else n for n in shape], dtype) for shape in shapes]
    operands = dict(zip("qkv", types, strict=True))
    mod = graph(lambda g, q, k, v: g.attention(q, k, v, scale=0.5), **operands)
    exe = tk.compile(mod, target)
    assert len(exe.kernels) > 1
    assert f"no {reason}" in {r for p in exe.placement() for r in p.reasons}
