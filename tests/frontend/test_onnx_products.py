"""Einsum with any equation against NumPy, determinants against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import model, node_model, ours, value

R = np.random.default_rng(13)


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


# equation, shapes
EQUATIONS = [
    ("...ij,...jk->...ik", [(2, 3, 4, 5), (3, 5, 6)]),
    ("...ij,...jk", [(2, 1, 4, 5), (3, 5, 6)]),
    ("b...,b...->...b", [(2, 3, 4), (2, 1, 4)]),
    ("i...->...", [(2, 3, 4)]),
    ("...", [(2, 3)]),
    ("...ii->...i", [(2, 3, 3)]),
    ("...ii->...", [(2, 4, 4)]),
    ("ii", [(4, 4)]),
    ("iij,j->ij", [(3, 3, 4), (4,)]),
    ("iii->i", [(3, 3, 3)]),
    ("iji,jkk->ik", [(3, 4, 3), (4, 5, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ij,jk,kl,lm->mi", [(2, 3), (3, 4), (4, 5), (5, 2)]),
    ("i,j,k->kji", [(2,), (3,), (4,)]),
    ("i,i,i->", [(5,), (5,), (5,)]),
    ("i,->i", [(5,), ()]),
    (",", [(), ()]),
    ("ij,ij->ij", [(1, 4), (3, 1)]),
    ("ab,ab->", [(3, 4), (3, 1)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("ij -> ji", [(3, 4)]),
    ("ba", [(3, 4)]),
    ("Aa,aB", [(3, 4), (4, 2)]),
    ("...a,...b->...ab", [(4,), (2, 3, 5)]),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS, ids=[e for e, _ in EQUATIONS])
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [f(*shape) for shape in shapes]
    model_proto, feeds = node_model("Einsum", operands, opset=12, equation=equation)
    (output,) = ours(from_onnx(model_proto), feeds)
    want = np.einsum(equation, *(x.astype(np.float64) for x in operands))
    assert output.shape == want.shape
    np.testing.assert_allclose(output, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("equation", "shapes", "says"),
    [
        ("ij,jk", [(2, 3)], "is of 2 operands, not 1"),
        ("ij->ik", [(2, 3)], "unknown or repeated"),
        ("ij->ii", [(2, 3)], "unknown or repeated"),
        ("ijk->i", [(2, 3)], "does not fit operand 0"),
        ("i...j->", [(2,)], "does not fit operand 0"),
        ("i.j->i", [(2, 3, 4)], "unknown or repeated"),
        ("ii->i", [(2, 3)], "diagonal"),
    ],
)
def test_equations_that_do_not_fit(equation: str, shapes: list[tuple[int, ...]], says: str) -> None:
    model_proto, _ = node_model(
        "Einsum", [f(*shape) for shape in shapes], opset=12, equation=equation
    )
    with pytest.raises(UnsupportedError, match=says):
        from_onnx(model_proto)


# equation, shapes; sizes with which it is computed, and those with which a call is refused
SYMBOLIC = [
    ("ii->i", ["nn"], [{"n": 0}, {"n": 1}, {"n": 5}], []),
    ("ii->i", ["nm"], [{"n": 0, "m": 0}, {"n": 4, "m": 4}], [{"n": 3, "m": 4}, {"n": 3, "m": 1}]),
    ("bii->bi", ["bnn"], [{"b": 2, "n": 3}, {"b": 1, "n": 0}], []),
    ("bii->bi", ["bnm"], [{"b": 2, "n": 3, "m": 3}], [{"b": 2, "n": 2, "m": 3}]),
    ("ii", ["n3"], [{"n": 3}], [{"n": 1}, {"n": 4}]),
    ("iii->i", ["nmn"], [{"n": 2, "m": 2}], [{"n": 2, "m": 3}]),
    ("iij,j->ij", ["nm2", "k"], [{"n": 3, "m": 3, "k": 2}], [{"n": 3, "m": 3, "k": 3}]),
    # as many elements, of other extents
    ("ij,ij->ij", ["n3", "mk"], [{"n": 2, "m": 2, "k": 3}], [{"n": 2, "m": 3, "k": 2}]),
]


@pytest.mark.parametrize(
    ("equation", "dims", "legal", "refused"), SYMBOLIC, ids=[f"{e} {d}" for e, d, *_ in SYMBOLIC]
)
def test_extents_of_one_letter_must_agree(
    equation: str, dims: list[str], legal: list[dict[str, int]], refused: list[dict[str, int]]
) -> None:
    shapes = [[int(d) if d.isdigit() else d for d in letters] for letters in dims]
    names = [f"x{k}" for k in range(len(dims))]
    node = helper.make_node("Einsum", names, ["y"], name="node", equation=equation)
    inputs = [value(n, np.float32, shape) for n, shape in zip(names, shapes, strict=True)]
    run = tk.compile(model([node], inputs, ["y"]))
    for sizes in [*legal, *refused]:
        operands = [f(*(sizes.get(d, d) for d in shape)) for shape in shapes]
        if sizes in refused:
            with pytest.raises(UserError, match=r"expected .* == .*node"):
                run(*operands)
            continue
        want = np.einsum(equation, *(x.astype(np.float64) for x in operands))
        np.testing.assert_allclose(np.asarray(run(*operands)), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_determinants(n: int, lead: tuple[int, ...]) -> None:
    x = f(*lead, n, n)
    if lead and n > 1:
        x[0, ..., 0, :] = 0  # a determinant of 0, and pivots that are elsewhere
        x[-1, ..., 0, 0] = 0
    model_proto, feeds = node_model("Det", [x], opset=11)
    (output,) = ours(from_onnx(model_proto), feeds)
    want = np.linalg.det(x.astype(np.float64))
    assert output.shape == want.shape
    np.testing.assert_allclose(output, want, rtol=1e-4, atol=1e-5)


def test_a_determinant_compiles() -> None:
    x = f(3, 4, 4)
    exe = tk.compile(from_onnx(node_model("Det", [x], opset=11)[0]))
    np.testing.assert_allclose(np.asarray(exe(x)), np.linalg.det(x), rtol=1e-4, atol=1e-5)


def test_a_matrix_that_is_not_square() -> None:
    model_proto, _ = node_model("Det", [f(3, 4)], opset=11)
    with pytest.raises(UnsupportedError, match=r"must have shape \[3, 3\]"):
        from_onnx(model_proto)
