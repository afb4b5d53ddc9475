"""match_attention and the recognition of causal masks."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import RVar, Tuple, constant, tensor
from tensorkiln.kernels.case import Graph, rand
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.fold_constants import fold_constants
from tensorkiln.transform.relax.match_attention import match_attention
from tests.transform.graphs import (
    arguments,
    assert_same_values,
    check_text,
    check_unchanged,
    graph,
    main,
    ops_of,
)

B, H, S, T, D = 2, 3, 4, 5, 8
LOW = float(np.finfo(np.float32).min)
ROOT = math.sqrt(1 / math.sqrt(D))


def attention_of(mod: IRModule) -> tuple[IRModule, Attrs, int]:
    """The module after the pass, attributes of the only attention, and its operand count."""
    out = match_attention(fold_constants(canonicalize(mod)))
    attentions = [b.value for b in main(out).bindings if b.value.op == "attention"]
    assert len(attentions) == 1, ops_of(out)
    assert not {"softmax", "matmul"} & set(ops_of(out))
    return out, attentions[0].attrs, len(attentions[0].args)  # type: ignore[union-attr]


def scaled(g: Graph, q: RVar, k: RVar, scale_place: str) -> RVar:
    """q k^T / sqrt(D), with the scale in one of the places exporters put it."""
    axes = (*range(len(k.tensor.shape) - 2), len(k.tensor.shape) - 1, len(k.tensor.shape) - 2)
    kt = g.transpose(k, axes=axes)
    if scale_place == "q":
        q = g.mul(q, ROOT**2)
    elif scale_place == "k":
        kt = g.transpose(g.div(k, 1 / ROOT**2), axes=axes)
    elif scale_place == "both":
        q, kt = g.mul(q, constant(np.full(1, ROOT, np.float32))), g.mul(kt, ROOT)
    scores = g.matmul(q, kt)
    if scale_place == "scores":
        scores = g.mul(scores, ROOT**2)
    return g.div(scores, ROOT**-2) if scale_place == "divided" else scores


SCALES = ["none", "q", "k", "both", "scores", "divided"]
MASKS = ["none", "added", "keep", "keep low", "drop", "drop low"]


def masked(g: Graph, scores: RVar, m: RVar, kind: str) -> RVar:
    """Scores under a mask [B, 1, 1, T] of int64."""
    if kind == "none":
        return scores
    keep = g.cast(m, dtype="bool")
    fill = LOW if kind.endswith("low") else -math.inf
    if kind == "added":
        return g.add(scores, g.mul(g.sub(1, g.cast(m, dtype="float32")), LOW))
    if kind.startswith("keep"):
        return g.where(keep, scores, fill)
    return g.where(g.logical_not(keep), fill, scores)


@pytest.mark.parametrize(("scale", "mask"), list(product(SCALES, MASKS)))
def test_forms(scale: str, mask: str) -> None:
    def build(g: Graph, q: RVar, k: RVar, v: RVar, m: RVar) -> RVar:
        scores = masked(g, scaled(g, q, k, scale), m, mask)
        return g.matmul(g.softmax(scores, axis=3 if scale == "q" else -1), v)

    mod = graph(
        build, q=(B, H, S, D), k=(B, H, T, D), v=(B, H, T, 6), m=tensor((B, 1, 1, T), "int64")
    )
    out, attrs, operands = attention_of(mod)
    assert attrs.causal is False
    assert attrs.scale == pytest.approx(1.0 if scale == "none" else ROOT**2, rel=1e-6)
    assert operands == (3 if mask == "none" else 4)
    for seed in range(3):
        mask_inputs = (
            {"m": np.ones((B, 1, 1, T), np.int64)} if mask.endswith(("keep", "drop")) else {}
        )
        assert_same(mod, out, seed, mask_inputs)


def assert_same(
    mod: IRModule, out: IRModule, seed: int, fixed: dict[str, np.ndarray] | None = None
) -> None:
    """As assert_same_values in float32, where -inf and the most negative number differ."""
    inputs = arguments(mod, seed) | (fixed or {})
    for a, b in zip(evaluate(mod, inputs), evaluate(out, inputs), strict=True):
        np.testing.assert_allclose(b, a, atol=2e-6)


def test_the_key_is_taken_before_its_transpose() -> None:
    def build(g: Graph, q: RVar, x: RVar, v: RVar) -> RVar:
        heads = g.reshape(x, shape=(B, T, H, D))
        kt = g.transpose(heads, axes=(0, 2, 3, 1))
        return g.matmul(g.softmax(g.matmul(q, kt), axis=-1), v)

    mod = graph(build, q=(B, H, S, D), x=(B, T, H * D), v=(B, H, T, D))
    out, _, _ = attention_of(mod)
    assert ops_of(out) == ["reshape", "transpose", "attention"]
    assert main(out).bindings[1].value.attrs.axes == (0, 2, 1, 3)  # type: ignore[union-attr]
    assert main(out).bindings[1].value.span == "node transpose"  # type: ignore[union-attr]
    assert_same_values(mod, out, rtol=1e-9)


def test_the_key_in_merged_batches() -> None:
    """torch's dynamo exporter transposes k as [B*H, T, D]."""

    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
        flat = g.transpose(g.reshape(k, shape=(B * H, T, D)), axes=(0, 2, 1))
        kt = g.mul(g.reshape(flat, shape=(B, H, D, T)), ROOT)
        return g.matmul(g.softmax(g.matmul(g.mul(q, ROOT), kt), axis=-1), v)

    mod = graph(build, q=(B, H, S, D), k=(B, H, T, D), v=(B, H, T, D))
    out, _, _ = attention_of(mod)
    assert ops_of(out) == ["attention"]
    assert_same_values(mod, out, rtol=1e-6)


def test_scales_multiply() -> None:
    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
        q = g.mul(g.div(g.mul(q, 3), 5), 0.25)
        kt = g.mul(g.transpose(g.mul(k, 7), axes=(0, 1, 3, 2)), 0.5)
        return g.matmul(g.softmax(g.div(g.matmul(q, kt), 11), axis=-1), v)

    mod = graph(build, q=(B, H, S, D), k=(B, H, T, D), v=(B, H, T, D))
    out, attrs, _ = attention_of(mod)
    assert attrs.scale == pytest.approx(3 / 5 * 0.25 * 7 * 0.5 / 11, rel=1e-6)
    assert ops_of(out) == ["attention"]
    assert_same_values(mod, out, rtol=1e-6)


@pytest.mark.parametrize("ndim", [2, 3])
def test_fewer_dimensions(ndim: int) -> None:
    lead = (H,) if ndim == 3 else ()

    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
        scores = g.add(scaled(g, q, k, "scores"), rand(S, T))
        return g.matmul(g.softmax(scores, axis=-1), v)

    mod = graph(build, q=(*lead, S, D), k=(*lead, T, D), v=(*lead, T, D))
    out, _, operands = attention_of(mod)
    assert operands == 4
    assert_same_values(mod, out, rtol=1e-6)


def test_guard_against_rows_that_see_nothing() -> None:
    def build(g: Graph, q: RVar, k: RVar, v: RVar, m: RVar) -> RVar:
        scores = masked(g, scaled(g, q, k, "q"), m, "keep")
        weights = g.softmax(scores, axis=-1)
        zeros = g.full(shape=(B, H, S, T), value=0.0)
        return g.matmul(g.where(g.isnan(weights), zeros, weights), v)

    mod = graph(
        build, q=(B, H, S, D), k=(B, H, T, D), v=(B, H, T, D), m=tensor((B, 1, 1, T), "int64")
    )
    out, _, _ = attention_of(mod)
    some = np.zeros((B, 1, 1, T), np.int64)
    some[0, ..., :2] = 1
    with np.errstate(all="ignore"):
        assert_same(mod, out, 0, {"m": some})


def weights_are_used(g: Graph, q: RVar, k: RVar, v: RVar) -> Tuple:
    """Attention weights as a second result."""
    p = g.softmax(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), axis=-1)
    return Tuple((g.matmul(p, v), p))


def softmax_of_rows(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
    """Softmax over the queries."""
    return g.matmul(g.softmax(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), axis=2), v)


def partial_fill(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
    """A fill that leaves something of the scores."""
    scores = g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2)))
    return g.matmul(g.softmax(g.where(g.less(scores, 0), -5, scores), axis=-1), v)


def computed_scale(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
    """One scale per head is not a number."""
    scores = g.mul(g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2))), rand(H, 1, 1, low=0.5))
    return g.matmul(g.softmax(scores, axis=-1), v)


@pytest.mark.parametrize("build", [weights_are_used, softmax_of_rows, partial_fill, computed_scale])
def test_what_is_no_attention(build) -> None:  # noqa: ANN001
    mod = graph(build, q=(B, H, S, D), k=(B, H, T, D), v=(B, H, T, D))
    check_unchanged(match_attention, mod)


def test_batches_that_broadcast_stay() -> None:
    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
        scores = g.matmul(q, g.transpose(k, axes=(0, 1, 3, 2)))
        return g.matmul(g.softmax(scores, axis=-1), v)

    mod = graph(build, q=(B, H, S, D), k=(1, H, S, D), v=(B, H, S, D))
    check_unchanged(match_attention, mod)


# --- causal --------------------------------------------------------------------------------------


def with_mask(rows: int, columns: int, mask: np.ndarray, keep: bool = False) -> IRModule:
    """Attention over `columns` keys with a constant mask."""

    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
        scores = scaled(g, q, k, "scores")
        m = constant(mask)
        scores = g.where(m, scores, -math.inf) if keep else g.add(scores, m)
        return g.matmul(g.softmax(scores, axis=-1), v)

    return graph(build, q=(1, H, rows, D), k=(1, H, columns, D), v=(1, H, columns, D))


def additive(sees: np.ndarray, low: float = -math.inf) -> np.ndarray:
    """0 where seen, `low` elsewhere."""
    return np.where(sees, 0, low).astype(np.float32)


TRI = np.tri(S, dtype=bool)
CAUSAL = {
    "-inf": with_mask(S, S, additive(TRI)),
    "most negative": with_mask(S, S, additive(TRI, LOW)),
    "leading units": with_mask(S, S, additive(TRI)[None, None]),
    "bool": with_mask(S, S, TRI, keep=True),
    "more keys than queries": with_mask(S, T, additive(np.tri(S, T, T - S, dtype=bool))),
}
NOT_CAUSAL = {
    "strictly lower": with_mask(S, S, additive(np.tri(S, k=-1, dtype=bool))),
    "upper": with_mask(S, S, additive(TRI.T)),
    "window": with_mask(S, S, additive(TRI & ~np.tri(S, k=-2, dtype=bool))),
    "only -10000": with_mask(S, S, additive(TRI, -10000)),
    "weights below": with_mask(S, S, additive(TRI) + np.tri(S, dtype=np.float32)),
    "aligned at the first key": with_mask(S, T, additive(np.tri(S, T, dtype=bool))),
    "bool upper": with_mask(S, S, TRI.T.copy(), keep=True),
}


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_constants(name: str) -> None:
    out, attrs, operands = attention_of(CAUSAL[name])
    assert attrs.causal is True and operands == 3
    assert_same(CAUSAL[name], out, 0)


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_constants_that_are_not_causal(name: str) -> None:
    out, attrs, operands = attention_of(NOT_CAUSAL[name])
    assert attrs.causal is False and operands == 4
    with np.errstate(all="ignore"):
        if name != "strictly lower":  # its first query sees nothing: NaN before, 0 after
            assert_same(NOT_CAUSAL[name], out, 0)


@pytest.mark.parametrize("keep", [False, True])
def test_masks_that_hide_nothing(keep: bool) -> None:
    mod = with_mask(S, S, np.full((S, S), keep, bool if keep else np.float32), keep)
    _, attrs, operands = attention_of(mod)
    assert attrs.causal is False and operands == 3


def symbolic(compare: str, swap: bool = False, shift: int = 0, low: float = -math.inf) -> IRModule:
    """As exporters write a causal mask of n queries and keys: trilu of ones, compared with 0."""
    n = Var("n")

    def build(g: Graph, q: RVar, k: RVar, v: RVar) -> RVar:
        count = g.arange(start=0, step=1, count=n)
        i, j = g.reshape(count, shape=(n, 1)), g.reshape(count, shape=(1, n))
        a, b = (i, j) if swap else (j, i)
        sees = g.emit(compare, g.sub(a, b), constant(np.asarray(shift)))
        ones_matrix = g.where(sees, g.full(shape=(n, n), value=1.0), 0)
        mask = g.where(g.equal(ones_matrix, 0), low, 0)
        return g.matmul(g.softmax(g.add(scaled(g, q, k, "both"), mask), axis=-1), v)

    shape = tensor((2, H, n, D), "float32")
    return graph(build, q=shape, k=shape, v=shape)


@pytest.mark.parametrize(
    ("mod", "causal"),
    [
        (symbolic("less_equal"), True),
        (symbolic("less_equal", low=LOW), True),
        (symbolic("greater_equal", swap=True), True),
        (symbolic("less", shift=1), True),
        (symbolic("greater", swap=True, shift=-1), True),
        (symbolic("less", low=LOW), False),
        (symbolic("less_equal", shift=1), False),
        (symbolic("less_equal", shift=-1024, low=LOW), False),
        (symbolic("greater_equal"), False),
        (symbolic("less_equal", low=-10000), False),
        (symbolic("equal"), False),
        (symbolic("not_equal", shift=3), False),
    ],
)
def test_causal_masks_of_symbolic_extent(mod: IRModule, causal: bool) -> None:
    out, attrs, operands = attention_of(mod)
    assert attrs.causal is causal and operands == (3 if causal else 4)
    for n in (1, 2, 7):
        assert_same_values(mod, out, rtol=1e-6, n=n)


def test_masks_of_attention_operators() -> None:
    """What an importer of an Attention operator makes is improved as well."""

    def build(g: Graph, q: RVar, k: RVar, v: RVar, m: RVar) -> RVar:
        keep = g.broadcast_to(g.cast(m, dtype="bool"), shape=(B, 1, S, T))
        return g.attention(q, k, v, g.where(keep, 0, -math.inf), scale=0.5)

    mod = graph(
        build, q=(B, H, S, D), k=(B, H, T, D), v=(B, H, T, D), m=tensor((B, 1, 1, T), "int64")
    )
    out, attrs, _ = attention_of(mod)
    assert ops_of(out) == ["cast", "attention"] and attrs.scale == 0.5
    assert_same(mod, out, 0)
    causal = graph(
        lambda g, q: g.attention(q, q, q, constant(additive(TRI)), scale=0.5), q=(B, H, S, D)
    )
    out, attrs, operands = attention_of(causal)
    assert attrs.causal is True and operands == 3
    assert_same(causal, out, 0)


def test_the_plainest_form() -> None:
    check_text(
        match_attention,
        """
        @R.function
        def main(
            q: R.Tensor((1, 2, 4, 8), "float32"),
            k: R.Tensor((1, 2, 4, 8), "float32"),
            v: R.Tensor((1, 2, 4, 8), "float32"),
        ):
            scores = R.matmul(q, R.transpose(k, axes=(0, 1, 3, 2)))
            scaled = R.mul(scores, R.const(0.125, "float32"))
            y = R.matmul(R.softmax(scaled, axis=-1), v)
            return y
        """,
        """
        @R.function
        def main(
            q: R.Tensor((1, 2, 4, 8), "float32"),
            k: R.Tensor((1, 2, 4, 8), "float32"),
            v: R.Tensor((1, 2, 4, 8), "float32"),
        ):
            y = R.attention(q, k, v, causal=False, scale=0.125, unseen="nan")
            return y
        """,
    )
