"""Strassen's operators against the product they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import TensorType, tensor

HALVES = st.integers(0, 9)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=3), HALVES, HALVES, st.booleans())
def test_numpy_meaning_is_linear(rows: list[int], k: int, n: int, bias: bool) -> None:
    random = np.random.default_rng([*rows, k, n])
    x, w = random.standard_normal((*rows, 2 * k)), random.standard_normal((2 * k, 2 * n))
    more = [random.standard_normal(2 * n)] if bias else []
    linear, parts, strassen = map(ops.get, ("linear", "strassen_parts", "strassen_linear"))
    made = parts.numpy([x], parts.complete({}))
    have = strassen.numpy([made, w, *more], strassen.complete({"rows": tuple(rows)}))
    want = linear.numpy([x, w, *more], linear.complete({}))
    assert have.shape == want.shape
    np.testing.assert_allclose(have, want, rtol=0, atol=1e-12)


def _type(*shape: object) -> TensorType:
    return tensor(shape, "float32")  # type: ignore[arg-type]


def test_types() -> None:
    parts = ops.get("strassen_parts")
    assert parts.infer([_type(3, 5, 8)], parts.complete({})) == _type(7, 8, 4)
    linear = ops.get("strassen_linear")
    have = linear.infer([_type(7, 8, 4), _type(8, 6), _type(6)], linear.complete({"rows": (3, 5)}))
    assert have == _type(3, 5, 6)


@pytest.mark.parametrize(
    ("shape", "says"), [((8,), "2 or more"), ((4, 7), "even"), ((Var("M"), 8), "known size")]
)
def test_what_cannot_be_halved_is_refused(shape: tuple[object, ...], says: str) -> None:
    parts = ops.get("strassen_parts")
    with pytest.raises(UserError, match=says) as e:
        parts.infer([_type(*shape)], parts.complete({}))
    assert e.value.code == "shape-mismatch"


@pytest.mark.parametrize(
    ("parts", "w", "bias", "rows", "code", "says"),
    [
        ((7, 8, 4), (8, 7), None, (15,), "shape-mismatch", "even numbers of rows and columns"),
        ((7, 8, 4), (6, 6), None, (15,), "shape-mismatch", r"'parts'.*\[7, 8, 3\]"),
        ((6, 8, 4), (8, 6), None, (15,), "shape-mismatch", r"'parts'.*\[7, 8, 4\]"),
        ((7, 8, 4), (8, 6), None, (17,), "shape-mismatch", r"\[7, 9, 4\]"),
        ((7, 8, 4), (8, 6), (5,), (15,), "shape-mismatch", "'bias'"),
        ((7, 8, 4), (8, 6), None, 15, "bad-attribute", "'rows'"),
        ((7, 8), (8, 6), None, (15,), "rank-mismatch", "'parts'"),
    ],
)
def test_operands_that_do_not_fit(
    parts: tuple[int, ...],
    w: tuple[int, ...],
    bias: tuple[int, ...] | None,
    rows: object,
    code: str,
    says: str,
) -> None:
    op = ops.get("strassen_linear")
    types = [_type(*s) for s in (parts, w, bias) if s is not None]
    with pytest.raises(UserError, match=says) as e:
        op.infer(types, op.complete({"rows": rows}))
    assert e.value.code == code
