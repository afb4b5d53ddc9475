"""widen_statistics: where float32 begins and ends around sums of 16-bit floats."""

from __future__ import annotations

import numpy as np

import tensorkiln as tk
from tensorkiln.script import from_source
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.widen_statistics import WidenStatistics
from tests.transform.graphs import check_text, check_unchanged, graph

NORM = """
@tk.script.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n", 8), "float16")) -> R.Tensor(("n", 8), "float16"):
        s: R.Tensor(("n", 8), "float16") = R.mul(x, x)
        t: R.Tensor(("n", 1), "float16") = R.sum(s, axes=(1,), keepdims=True)
        r: R.Tensor(("n", 1), "float16") = R.sqrt(t)
        y: R.Tensor(("n", 8), "float16") = R.div(x, r)
        z: R.Tensor(("n", 8), "float16") = R.gelu(y)
        return z
"""


def test_from_the_square_to_the_division() -> None:
    check_text(
        WidenStatistics(),
        NORM,
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor(("n", 8), "float16")) -> R.Tensor(("n", 8), "float16"):
                x_wide: R.Tensor(("n", 8), "float32") = R.cast(x, dtype="float32")
                s_wide: R.Tensor(("n", 8), "float32") = R.mul(x_wide, x_wide)
                t_wide: R.Tensor(("n", 1), "float32") = R.sum(s_wide, axes=(1,), keepdims=True)
                r_wide: R.Tensor(("n", 1), "float32") = R.sqrt(t_wide)
                y_wide: R.Tensor(("n", 8), "float32") = R.div(x_wide, r_wide)
                y: R.Tensor(("n", 8), "float16") = R.cast(y_wide, dtype="float16")
                z: R.Tensor(("n", 8), "float16") = R.gelu(y, approximate="none")
                return z
        """,
    )


def test_a_residual_that_others_read_stays_narrow() -> None:
    """A sum of two tensors is stored once, in 16 bits; its square is of the statistic alone."""
    check_text(
        WidenStatistics(),
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((4, 8), "bfloat16"), y: R.Tensor((4, 8), "bfloat16")) -> R.Tuple(
                R.Tensor((4, 8), "bfloat16"), R.Tensor((4,), "bfloat16")
            ):
                h: R.Tensor((4, 8), "bfloat16") = R.add(x, y)
                s: R.Tensor((4, 8), "bfloat16") = R.mul(h, h)
                t: R.Tensor((4,), "bfloat16") = R.mean(s, axes=(1,), keepdims=False)
                return (h, t)
        """,
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((4, 8), "bfloat16"), y: R.Tensor((4, 8), "bfloat16")) -> R.Tuple(
                R.Tensor((4, 8), "bfloat16"), R.Tensor((4,), "bfloat16")
            ):
                h: R.Tensor((4, 8), "bfloat16") = R.add(x, y)
                h_wide: R.Tensor((4, 8), "float32") = R.cast(h, dtype="float32")
                s_wide: R.Tensor((4, 8), "float32") = R.mul(h_wide, h_wide)
                t_wide: R.Tensor((4,), "float32") = R.mean(s_wide, axes=(1,), keepdims=False)
                t: R.Tensor((4,), "bfloat16") = R.cast(t_wide, dtype="bfloat16")
                return (h, t)
        """,
    )


def test_a_conversion_between_a_statistic_and_its_last_operator() -> None:
    """As torch decomposes a deviation: float32 rounded to 16 bits before it divides."""
    check_text(
        WidenStatistics(),
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((4, 8), "float16")) -> R.Tensor((4, 8), "float16"):
                w: R.Tensor((4, 8), "float32") = R.cast(x, dtype="float32")
                m: R.Tensor((4, 1), "float32") = R.mean(w, axes=(1,), keepdims=True)
                h: R.Tensor((4, 1), "float16") = R.cast(m, dtype="float16")
                y: R.Tensor((4, 8), "float16") = R.sub(x, h)
                return y
        """,
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((4, 8), "float16")) -> R.Tensor((4, 8), "float16"):
                w: R.Tensor((4, 8), "float32") = R.cast(x, dtype="float32")
                m: R.Tensor((4, 1), "float32") = R.mean(w, axes=(1,), keepdims=True)
                x_wide: R.Tensor((4, 8), "float32") = R.cast(x, dtype="float32")
                y_wide: R.Tensor((4, 8), "float32") = R.sub(x_wide, m)
                y: R.Tensor((4, 8), "float16") = R.cast(y_wide, dtype="float16")
                return y
        """,
    )


def test_what_has_no_statistic_of_16_bits_is_unchanged() -> None:
    check_unchanged(WidenStatistics(), graph(lambda g, x: g.sqrt(g.sum(x, axes=(1,))), x=(4, 8)))
    plain = NORM.replace("R.sum(s, axes=(1,), keepdims=True)", "R.max(s, axes=(1,), keepdims=True)")
    check_unchanged(WidenStatistics(), infer_types(from_source(plain)))
    check_unchanged(WidenStatistics(of_constants=True), infer_types(from_source(NORM)))


def test_a_script_of_a_users_own() -> None:
    """Also with operands of products in 16 bits, and rows of any number."""
    x = (np.random.default_rng(0).uniform(-1, 1, (5, 8)) * 6e4).astype(np.float16)
    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide * wide).sum(1, keepdims=True))
    for precision in ("float16", None):
        run = tk.compile(from_source(NORM.replace("R.gelu(y)", "R.relu(y)")), precision=precision)
        np.testing.assert_allclose(run(x), np.maximum(want, 0), rtol=2e-3)
