"""A unit is chosen by its rate: pairs of 16 bits where they are no slower than float32."""

from __future__ import annotations

import pytest

from tensorkiln.ir.relax import Call, Function, RVar, TensorType, Value
from tensorkiln.kernels.case import Build, Graph, rand
from tensorkiln.target import Target
from tensorkiln.target.rates import ROWS, has_fast_pairs, rates_of
from tensorkiln.transform.relax.apply_precision import ApplyPrecision
from tests.transform.graphs import graph

SLOW = Target({"mcpu": "sapphirerapids", "precision": "bfloat16"})
FAST = Target({"mcpu": "znver4", "precision": "bfloat16"})


def test_rows_are_found_by_features_and_by_names() -> None:
    hidden = Target({"mcpu": "x86-64-v4", "mattr": ["+avx512bf16", "+amx-bf16"]})
    without_tiles = Target({"mcpu": "graniterapids", "mattr": ["-amx-tile"]})
    for target in (SLOW, hidden, without_tiles):
        assert rates_of(target).name == "Golden Cove" and not has_fast_pairs(target)
    for name in ("znver4", "znver5"):
        assert rates_of(Target({"mcpu": name})).pairs == 2
    arm = {"mtriple": "aarch64-linux-gnu", "mattr": ["+bf16"]}
    for fast_target in (Target({"mcpu": "cooperlake"}), Target(arm)):
        assert rates_of(fast_target) not in ROWS and has_fast_pairs(fast_target)


Shapes = tuple[tuple[int, ...], ...]
NARROW, MIXED, SINGLE = (
    ("bfloat16", "bfloat16"),
    ("float32", "bfloat16"),
    ("float32", "float32"),
)


def _grouped(g: Graph, x: RVar) -> Value:
    return g.conv2d(x, rand(64, 16, 3, 3), groups=4)


def _attention(g: Graph, q: RVar, k: RVar, v: RVar) -> Value:
    return g.attention(q, k, v, scale=0.1)


# A product, the shapes of its operands, and their types where pairs are slow.
CASES: dict[str, tuple[Build, Shapes, tuple[str, str]]] = {
    "tiles": (lambda g, x: g.linear(x, rand(64, 64)), ((32, 64),), NARROW),
    "few terms": (lambda g, x: g.linear(x, rand(24, 64)), ((32, 24),), MIXED),
    "few rows": (lambda g, x: g.linear(x, rand(64, 64)), ((1, 64),), NARROW),
    "attention": (_attention, ((1, 2, 32, 64),) * 3, NARROW),
    "a query": (_attention, ((1, 2, 1, 64), *((1, 2, 32, 64),) * 2), SINGLE),
    "image": (lambda g, x: g.conv2d(x, rand(32, 64, 1, 1)), ((1, 64, 14, 14),), NARROW),
    "groups": (_grouped, ((1, 64, 14, 14),), SINGLE),
    "wide filter": (lambda g, x: g.conv2d(x, rand(32, 3, 9, 9)), ((1, 3, 30, 30),), SINGLE),
}


def narrowed(target: Target, build: Build, shapes: Shapes) -> tuple[str, ...]:
    """The types of the factors of a product at a target's precision."""
    mod = ApplyPrecision(target)(graph(build, **{f"x{k}": s for k, s in enumerate(shapes)}))
    (f,) = mod.functions
    assert isinstance(f, Function)
    names = ("linear", "conv2d", "attention")
    (call,) = (b.value for b in f.bindings if isinstance(b.value, Call) and b.value.op in names)
    return tuple(a.type.dtype.name for a in call.args[:2] if isinstance(a.type, TensorType))


@pytest.mark.parametrize("name", CASES)
def test_factors_are_narrow_where_that_is_not_slower(name: str) -> None:
    build, shapes, slow = CASES[name]
    assert narrowed(SLOW, build, shapes) == slow
    assert narrowed(FAST, build, shapes) == NARROW
