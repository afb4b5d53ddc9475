"""Which products Strassen's algorithm gets."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.families.strassen.row import parts_layout
from tensorkiln.ir.expr import Var
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant
from tensorkiln.kernels.case import c, rand
from tensorkiln.target import Target
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tests.transform.graphs import assert_same_values, graph, main, ops_of

AVX512 = Target({"kind": "llvm", "mcpu": "x86-64-v4", "strassen": True})
SELECTED = ["strassen_parts", "strassen_linear"]


def _linear(m: int, k: int, n: int) -> IRModule:
    return graph(lambda g, x: g.linear(x, rand(k, n), rand(n)), x=(m, k))


@pytest.mark.parametrize(
    ("m", "k", "n"), [(128, 768, 3072), (128, 3072, 768), (197, 768, 768), (196, 384, 1536)]
)
def test_layers_of_transformers(m: int, k: int, n: int) -> None:
    assert ops_of(SelectAlgorithms(AVX512)(_linear(m, k, n))) == SELECTED


def _infinite() -> Constant:
    w = rand(512, 512).array.copy()
    w[3, 5] = np.inf
    return c(w)


@pytest.mark.parametrize(
    "mod",
    [
        _linear(48, 768, 768),  # weights are combined for too few rows
        _linear(784, 768, 768),  # a panel's products leave the cache
        _linear(128, 384, 384),  # few weights
        _linear(128, 192, 1536),
        _linear(128, 1536, 192),
        _linear(128, 768, 768 + 16),  # no whole panels
        _linear(128, 2 * 509, 768),  # no whole vectors
        graph(lambda g, x: g.linear(x, _infinite()), x=(128, 512)),
        graph(lambda g, x, w: g.linear(x, w), x=(128, 512), w=(512, 512)),
        graph(lambda g, x: g.linear(x, rand(512, 512)), x=(Var("M"), 512)),
        graph(lambda g, x: g.linear(x, rand(512, 512)), x=(512,)),
    ],
)
def test_direct_sums_stay_the_same_object(mod: IRModule) -> None:
    assert SelectAlgorithms(AVX512)(mod) is mod


def test_values_are_kept() -> None:
    mod = graph(lambda g, x: g.linear(x, rand(512, 512), rand(512)), x=(1, 117, 512))
    after = SelectAlgorithms(AVX512)(mod)
    assert main(after).bindings[1].value.attrs.rows == (1, 117)  # type: ignore[union-attr]
    assert {b.value.span for b in main(after).bindings} == {"node linear"}
    assert_same_values(mod, after, rtol=1e-4, atol=1e-4)


def test_products_of_one_operand_share_its_parts() -> None:
    v, w = rand(512, 512), rand(512, 512, seed=1)
    mod = graph(lambda g, x: g.add(g.linear(x, v), g.linear(x, w)), x=(128, 512))
    after = SelectAlgorithms(AVX512)(mod)
    assert ops_of(after) == ["strassen_parts", "strassen_linear", "strassen_linear", "add"]


@pytest.mark.parametrize(
    ("mcpu", "option", "selected"),
    [
        ("znver4", None, False),
        ("znver4", False, False),
        ("znver4", True, True),
        ("cascadelake", None, False),
        ("cascadelake", True, True),
    ],
)
def test_the_target_decides(mcpu: str, option: bool | None, selected: bool) -> None:
    given = {} if option is None else {"strassen": option}
    target = Target({"kind": "llvm", "mcpu": mcpu, **given})
    mod = _linear(128, 512, 512)
    assert (SelectAlgorithms(target)(mod) is not mod) == selected


@pytest.mark.parametrize(
    ("half", "k", "layout"),
    [
        (64, 384, "C/192 A B/13 B%13 C%192"),
        (99, 1536, "C/192 A B/11 B%11 C%192"),  # nine tiles of 11, not eight of 13
        (98, 192, "C/192 A B/14 B%14 C%192"),
        (3, 512, "C/128 A B/3 B%3 C%128"),
        (3, 33, None),
    ],
)
def test_how_parts_lie(half: int, k: int, layout: str | None) -> None:
    have = parts_layout(half, k, AVX512)
    assert have == (None if layout is None else Layout.parse(layout))
