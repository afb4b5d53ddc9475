"""Products of 16 bits: the graphs that float32 kernels are tested with, at every precision, on
processors with instructions for pairs of products and without.

The reference is the graph after `apply_precision`, whose casts say exactly what is rounded; its
sums are float32. So kernels differ from it as float32 kernels do from float64, but where a value
between two products is rounded: there a last bit may go the other way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.kernels.case import c, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import relax_passes
from tensorkiln.target import Target
from tensorkiln.transform.relax.apply_precision import ApplyPrecision
from tests.emulated.machine import load
from tests.schedule.battery import Battery, Case, typed
from tests.schedule.test_contractions import _convolutions, _depthwise, _products

ARM = "aarch64-linux-gnu"
TARGETS: dict[str, Target] = {
    "native": Target("native"),
    "avx2": Target({"kind": "llvm", "mcpu": "haswell"}),
    "sse2": Target({"kind": "llvm", "mcpu": "x86-64-v2"}),
    "c": Target({"kind": "c"}),
    "c of this processor": Target({**Target("native").to_json(), "kind": "c"}),
    "neon": Target({"kind": "llvm", "mtriple": ARM, "mcpu": "cortex-a55"}),
    "neon with bf16": Target(
        {"kind": "llvm", "mtriple": ARM, "mcpu": "cortex-a55", "mattr": ["+bf16"]}
    ),
}
PRECISIONS = ("bfloat16", "float16")
# Several products in a row, or rounded exponentials between two.
_DEEP = re.compile("chain|residual|concat|attention")


class Rounded(Battery):
    """Graphs of float32 whose reference is what a target makes of them."""

    def __init__(self, target: Target):
        super().__init__()
        self.target = target

    def settle(self) -> None:
        """Take what the target computes in 16 bits for the meaning of each graph."""
        for name, case in self.cases.items():
            mod = ApplyPrecision(self.target)(IRModule((case.function,), "m"))
            (meaning,) = mod.functions
            assert isinstance(meaning, Function)
            deep = _DEEP.search(name) is not None
            loose = (2e-2 if self.target.precision == "bfloat16" else 3e-3) if deep else 0.0
            self.cases[name] = RoundedCase(
                name,
                case.function,
                case.sizes,
                case.make,
                max(case.tolerance, loose),
                meaning=meaning,
            )


class RoundedCase(Case):
    """A case with a meaning other than its function."""

    def __init__(self, *args: object, meaning: Function):
        super().__init__(*args)  # type: ignore[arg-type]
        self.meaning = meaning

    def reference(
        self, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return evaluate(self.meaning, inputs, sizes)


def _more(b: Battery) -> None:
    """What only lower precisions have: casts at the ends of kernels of every class."""
    w = rand(32, 32)
    b.add(
        "norm_then_linear", lambda g, x: g.linear(g.layer_norm(x, rand(32), rand(32)), w), (9, 32)
    )
    b.add("softmax_then_linear", lambda g, x: g.linear(g.softmax(x), w), (9, 32))
    b.add("gelu_then_linear", lambda g, x: g.linear(g.gelu(x), w), (9, 32))
    b.add(
        "attention_then_linear",
        lambda g, q, k, v: g.linear(
            g.reshape(
                g.transpose(g.attention(q, k, v, scale=0.25), axes=(0, 2, 1, 3)), shape=(1, 9, 32)
            ),
            w,
        ),
        *[(1, 2, 9, 16)] * 3,
    )
    for op in ("max_pool2d", "avg_pool2d"):
        b.add(
            f"{op}_then_conv",
            lambda g, x, o=op: g.conv2d(
                g.emit(o, g.relu(g.conv2d(x, rand(20, 16, 1, 1))), kernel=(3, 3), strides=(2, 2)),
                rand(7, 20, 1, 1),
            ),
            (1, 16, 13, 11),
        )
    b.add(
        "concat_then_chain",
        lambda g, x, y: g.conv2d(g.concat(g.relu(x), g.exp(y), axis=1), rand(9, 32, 3, 3)),
        (1, 16, 6, 6),
        (1, 16, 6, 6),
    )
    b.add(
        "upsampled_residual",
        lambda g, x: g.conv2d(
            g.broadcast_to(g.relu(g.conv2d(x, rand(16, 16, 1, 1))), shape=(1, 16, 6, 6)),
            rand(9, 16, 3, 3),
        ),
        (1, 16, 1, 1),
    )
    # Models that are stored in 16 bits: no precision is asked for.
    for dtype in ("bfloat16", "float16"):
        b.add(
            f"stored_{dtype}",
            lambda g, x, v, d=dtype: g.relu(g.linear(x, c(rand(24, 33).array, d), v)),
            typed(dtype, 5, 24),
            typed(dtype, 33),
            tolerance=1e-2,
        )
        b.add(
            f"stored_conv_{dtype}",
            lambda g, x, d=dtype: g.conv2d(x, c(rand(20, 16, 3, 3).array, d), padding=(1, 1, 1, 1)),
            typed(dtype, 2, 16, 7, 5),
            tolerance=1e-2,
        )
        b.add(
            f"stored_matmul_{dtype}",
            lambda g, x, y: g.matmul(x, y),
            typed(dtype, 2, 19, 64),
            typed(dtype, 2, 64, 80),
            tolerance=1e-2,
        )


def _made(target: Target) -> Rounded:
    b = Rounded(target)
    for part in (_convolutions, _depthwise, _products, _more):
        part(b)
    b.in_turn().settle()
    return b


def _levels() -> Sequence[object]:
    marks = {"neon": [pytest.mark.emulated], "neon with bf16": [pytest.mark.emulated]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in TARGETS]


@pytest.mark.in_turn("level")
@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("level", _levels())
def test_values(level: str, precision: str) -> None:
    target = TARGETS[level].replace(precision=precision)
    b = _made(target)
    executable = b.compile(target)
    kernels = {p.kernel_class for p in executable.placement()}
    assert {"linear_packed", "conv2d_direct"} <= kernels
    run = load(executable)
    wrong = []
    for name in b.cases:
        try:
            b.check(name, run)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n".join(wrong)


def test_instructions_of_pairs() -> None:
    """They stand in the text where the processor has them, and nowhere else."""
    for options, word in (
        ({"mcpu": "cooperlake"}, "vdpbf16ps"),
        ({"mcpu": "skylake-avx512"}, ""),
        ({"mtriple": ARM, "mcpu": "cortex-a55", "mattr": ["+bf16"]}, "bfdot"),
    ):
        target = Target({"kind": "llvm", **options, "precision": "bfloat16"})  # type: ignore[dict-item]
        b = Battery()
        b.add("f", lambda g, x: g.relu(g.linear(x, rand(64, 96), rand(96))), (20, 64))
        text = "".join(a.text() for a in b.compile(target).artifacts if a.file_name.endswith(".s"))
        assert ("vdpbf16ps" in text or "bfdot" in text) == bool(word)
        assert word in text


def test_weights_take_half_the_bytes() -> None:
    w = rand(256, 512)
    b = Battery()
    b.add("f", lambda g, x: g.linear(x, w), (1, 256))
    sizes = {
        p: b.compile(Target("native").replace(precision=p)).artifacts["weights.bin"].size
        for p in ("float32", "bfloat16", "float16")
    }
    assert sizes["float32"] >= 2 * sizes["bfloat16"] - 4096 >= 2 * sizes["float16"] - 8192


def test_a_precision_said_twice() -> None:
    target = Target("native").replace(precision="bfloat16")
    mod = IRModule((next(iter(_made(target).cases.values())).function,), "m")
    assert tk.compile(mod, target, precision="bfloat16").target.precision == "bfloat16"
    with pytest.raises(UserError) as caught:
        tk.compile(mod, target, precision="float16")
    assert caught.value.code == "contradiction"
    with pytest.raises(UserError) as caught:
        tk.compile(mod, precision="bf16")
    assert "bfloat16" in caught.value.hint


def test_a_pipeline_that_does_not_apply_it() -> None:
    """Its own list of passes would ignore the precision; the shortest list has the pass."""
    target = Target("native").replace(precision="bfloat16")
    b = Battery()
    b.add("f", lambda g, x: g.linear(x, rand(16, 16)), (4, 16))
    mod = IRModule((b.cases["f"].function,), "m")
    passes = [p for p in relax_passes(target) if not isinstance(p, ApplyPrecision)]
    with pytest.raises(UserError) as caught:
        tk.compile(mod, target, relax_pipeline=passes)
    assert caught.value.code == "precision"
    made = tk.compile(mod, target, relax_pipeline="minimal")
    x = np.random.default_rng(0).standard_normal((4, 16)).astype("float32")
    whole = tk.compile(mod, target)(x)
    np.testing.assert_allclose(made(x), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["native", "avx2", "cuda"])
def test_wide_attention_of_a_user_compiles(kind: str, dtype: str) -> None:
    """Where no kernel takes it, other operators compute it, in float32."""
    cuda = Target({"kind": "cuda", "arch": "sm_80", "host": "native"})
    b = Battery()
    for depth in (16, 7):
        shape = typed(dtype, 1, 2, 9, depth)
        build = lambda g, x: g.attention(x, x, x, scale=0.5, wide=True)  # noqa: E731
        b.add(f"f{depth}", build, shape, tolerance=2e-2)
    executable = b.compile(cuda if kind == "cuda" else TARGETS[kind])
    if kind != "cuda":
        run = load(executable)
        for name in b.cases:
            b.check(name, run)
