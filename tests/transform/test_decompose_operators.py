"""decompose_operators: operators that no kernel fits, and those that one does."""

from __future__ import annotations

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
