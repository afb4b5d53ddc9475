"""Every family of schedules with every form of a symbolic extent: what divides evenly, what is
certainly short, sums, products, quotients and rests of symbols.

`make test` takes each family with a form in turn, `make fuzz` the whole product on every level
of x86-64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from tensorkiln.ir.expr import Expr, ExprLike, Var, maximum, minimum
from tensorkiln.ir.relax import RVar
from tensorkiln.kernels.case import Graph, rand
from tests.codegen.kernels import LEVELS
from tests.emulated.machine import load
from tests.rotation import rows_in_turn
from tests.schedule.battery import Battery, extent_of

N, M = Var("N"), Var("M")
FORMS: dict[str, Expr] = {
    "n": N,
    "2n": N * 2,
    "3n": N * 3,
    "4n": N * 4,
    "6n": N * 6,
    "8n": N * 8,
    "16n": N * 16,
    "128n": N * 128,
    "n_plus_m": N + M,
    "nm": N * M,
    "2nm": N * M * 2,
    "2n_plus_4m": N * 2 + M * 4,
    "3n_plus_6m": N * 3 + M * 6,
    "n_plus_1": N + 1,
    "2n_plus_1": N * 2 + 1,
    "half": N // 2,
    "rest3": N % 3,
    "none_or_3": N % 2 * 3,
    "up_to_3": minimum(N, 3),
    "2_or_3": minimum(N, 2) + 1,
    "at_least_2": maximum(N, 2),
    "even": (N + 1) // 2 * 2,
    "fours": N // 4 * 4,
    "none_or_16": N % 2 * 16,
}
SIZES = [{"N": n, "M": m} for n, m in ((1, 1), (2, 3), (3, 1), (5, 2), (9, 1))]
LONGEST = 400  # images of longer sides, 128n of larger n, take NumPy seconds

Build = Callable[[Graph, RVar], RVar]


def _attention(causal: bool) -> Build:
    return lambda g, x: g.attention(x, x, x, scale=0.125, causal=causal)


def _conv(outs: int, ins: int, k: int, **attrs: int) -> Build:
    pad = (k // 2,) * 4
    return lambda g, x: g.conv2d(x, rand(outs, ins, k, k), padding=pad, **attrs)


# family -> (the operand's shape for an extent, what is computed of it)
FAMILIES: dict[str, tuple[Callable[[ExprLike], Sequence[ExprLike]], Build]] = {
    "linear": (lambda e: (e, 33), lambda g, x: g.relu(g.linear(x, rand(33, 50), rand(50)))),
    "linear_of_rows": (lambda e: (e, 128, 33), lambda g, x: g.linear(x, rand(33, 64))),
    "linear_narrow": (lambda e: (2, e, 33), lambda g, x: g.linear(x, rand(33, 7))),
    "matmul_k": (lambda e: (5, e), lambda g, x: g.matmul(x, g.transpose(x, axes=(1, 0)))),
    "matmul_n": (lambda e: (4, e), lambda g, x: g.matmul(g.transpose(x, axes=(1, 0)), x)),
    "matmul_batch": (lambda e: (e, 6, 40), lambda g, x: g.matmul(x, x, transpose_b=True)),
    "matmul_rows": (lambda e: (2, e, 40), lambda g, x: g.matmul(x, x, transpose_b=True)),
    "conv2d_batch": (lambda e: (e, 16, 9, 9), _conv(24, 16, 3)),
    "conv2d_rows": (lambda e: (1, 16, e, 9), _conv(24, 16, 3)),
    "conv2d_columns": (lambda e: (1, 3, 9, e), _conv(8, 3, 3)),
    "depthwise_batch": (lambda e: (e, 16, 9, 9), _conv(16, 1, 3, groups=16)),
    "winograd_batch": (lambda e: (e, 64, 14, 14), _conv(64, 64, 3)),
    "pool_batch": (
        lambda e: (e, 16, 9, 9),
        lambda g, x: g.max_pool2d(_conv(16, 16, 1)(g, x), kernel=(3, 3)),
    ),
    "pool_image": (lambda e: (2, 3, e, e), lambda g, x: g.avg_pool2d(x, kernel=(1, 1))),
    "global_pool_batch": (
        lambda e: (e, 16, 9, 9),
        lambda g, x: g.mean(_conv(16, 16, 1)(g, x), axes=(2, 3)),
    ),
    "global_pool_image": (lambda e: (2, 16, e, e), lambda g, x: g.mean(x, axes=(2, 3))),
    "lrn_batch": (lambda e: (e, 16, 5, 5), lambda g, x: g.lrn(x, size=3)),
    "lrn_image": (lambda e: (2, 16, e, 5), lambda g, x: g.lrn(x, size=3)),
    "softmax_rows": (lambda e: (e, 40), lambda g, x: g.softmax(x)),
    "softmax_columns": (lambda e: (3, e), lambda g, x: g.softmax(x)),
    "softmax_first_axis": (lambda e: (e, 7), lambda g, x: g.softmax(x, axis=0)),
    "layer_norm": (lambda e: (e, 40), lambda g, x: g.layer_norm(x, rand(40), rand(40))),
    "sum_last": (lambda e: (3, e), lambda g, x: g.sum(x, axes=(1,))),
    "sum_first": (lambda e: (e, 20), lambda g, x: g.sum(x, axes=(0,))),
    "max_middle": (lambda e: (2, e, 20), lambda g, x: g.max(x, axes=(1,), keepdims=True)),
    "sum_all": (lambda e: (e, e), lambda g, x: g.sum(g.abs(x), axes=(0, 1))),
    "mean_middle": (lambda e: (e, 20, 3), lambda g, x: g.mean(x, axes=(1,))),
    "argmax": (lambda e: (3, e), lambda g, x: g.argmax(x, axis=1)),
    "flat": (lambda e: (e,), lambda g, x: g.relu(g.mul(x, 2.0))),
    "elementwise": (lambda e: (2, 3, e), lambda g, x: g.tanh(g.add(x, 1.0))),
    "broadcast": (lambda e: (e, 1), lambda g, x: g.add(x, g.transpose(x, axes=(1, 0)))),
    "transpose": (lambda e: (e, 5, e), lambda g, x: g.transpose(x, axes=(2, 1, 0))),
    "transpose_last": (lambda e: (3, e, 8), lambda g, x: g.transpose(x, axes=(0, 2, 1))),
    "concat_first": (lambda e: (e, 5), lambda g, x: g.concat(x, x, axis=0)),
    "concat_last": (lambda e: (4, e), lambda g, x: g.concat(x, g.relu(x), axis=1)),
    "pad": (lambda e: (e, 5), lambda g, x: g.pad(x, before=(1, 0), after=(0, 2))),
    "take": (lambda e: (e, 5), lambda g, x: g.take(x, g.argmax(x, axis=0), axis=0)),
    "attention_rows": (lambda e: (1, 2, e, 16), _attention(causal=False)),
    "attention_causal": (lambda e: (1, 2, e, 16), _attention(causal=True)),
    "attention_batch": (lambda e: (e, 2, 5, 32), _attention(causal=False)),
    "attention_heads": (lambda e: (2, e, 5, 32), _attention(causal=False)),
    "attention_depth": (lambda e: (1, 2, 5, e), _attention(causal=False)),
}


def battery(pairs: Iterable[tuple[str, str]]) -> Battery:
    """A case for each (family, form); N and M are extents of operands that nothing reads."""
    b = Battery()
    for family, form in pairs:
        shape, build = FAMILIES[family]
        sizes = [s for s in SIZES if 0 < extent_of(FORMS[form], s) <= LONGEST]
        b.add(
            f"{family}__{form}",
            lambda g, x, n, m, build=build: build(g, x),
            tuple(shape(FORMS[form])),
            (N,),
            (M,),
            sizes=sizes,
            tolerance=2e-5,
        )
    return b


def in_turn(level: str) -> list[tuple[str, str]]:
    """Each family with one form, each form with a family or two; others for each level."""
    forms, first = list(FORMS), list(LEVELS).index(level)
    return [(name, forms[(i * 7 + first) % len(forms)]) for i, name in enumerate(FAMILIES)]


def check_all(pairs: Sequence[tuple[str, str]], level: str) -> None:
    """Compile all in one library and compare each; names every one that is wrong."""
    b = battery(pairs)
    run, wrong = load(b.compile(LEVELS[level])), {}
    for name in b.cases:
        try:
            b.check(name, run)
        except Exception as error:
            wrong[name] = str(error).splitlines()[0]
    assert not wrong


@pytest.mark.parametrize("level", LEVELS)
def test_each_family_with_some_form(level: str) -> None:
    pairs = in_turn(level)
    assert {form for _, form in pairs} == set(FORMS)
    check_all(rows_in_turn(pairs, str, lambda pair: pair[0].partition("_")[0]), level)


@pytest.mark.fuzz
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", LEVELS)
def test_each_family_with_each_form(level: str, form: str) -> None:
    check_all([(family, form) for family in FAMILIES], level)
