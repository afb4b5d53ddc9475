"""The matrices of Winograd convolution, and the operator against the convolution it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln import ops
from tensorkiln.base.errors import UserError
from tensorkiln.ir.relax import TensorType, tensor
from tensorkiln.ops.winograd import POINTS, matrices, transformed_filter
from tests.ops.element import data


@pytest.mark.parametrize("m", POINTS)
def test_one_dimension_is_a_correlation(m: int) -> None:
    at, g, bt = matrices(m)
    random = np.random.default_rng(m)
    d, w = random.standard_normal(m + 2), random.standard_normal(3)
    want = [d[i : i + 3] @ w for i in range(m)]
    np.testing.assert_allclose(at @ ((g @ w) * (bt @ d)), want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("m", POINTS)
def test_points_are_zero_and_opposite_pairs(m: int) -> None:
    """What the schedule's sharing of even and odd parts relies on."""
    points = POINTS[m]
    assert points[0] == 0
    assert len(set(points)) == len(points) == m + 1
    assert points[2::2] == tuple(-p for p in points[1::2])


@pytest.mark.parametrize("tile", [(2, 2), (4, 4), (2, 4)])
@pytest.mark.parametrize("padding", [(1, 1, 1, 1), (0, 2, 2, 0)])
@pytest.mark.parametrize("size", [(8, 12), (7, 13), (3, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3), (4, 1)])
def test_numpy_meaning_is_conv2d(
    tile: tuple[int, int],
    padding: tuple[int, ...],
    size: tuple[int, int],
    dilation: tuple[int, int],
) -> None:
    padding = tuple(n * d for n, d in zip(padding, dilation * 2, strict=True))
    x, w, bias = data(2, 5, *size), data(7, 5, 3, 3), data(7)
    conv, winograd = ops.get("conv2d"), ops.get("winograd_conv2d")
    both = {"padding": padding, "dilation": dilation}
    want = conv.numpy([x, w, bias], conv.complete(both))
    u = transformed_filter(w, tile)
    have = winograd.numpy([x, u, bias], winograd.complete({"tile": tile, **both}))
    np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-4)


def _infer(x: TensorType, u: TensorType, **attrs: object) -> TensorType:
    op = ops.get("winograd_conv2d")
    return op.infer([x, u], op.complete(attrs))


def test_type() -> None:
    have = _infer(
        tensor((2, 5, 9, 12), "float32"),
        tensor((7, 5, 6, 4), "float32"),
        tile=(4, 2),
        padding=(1, 1, 1, 1),
    )
    assert have == tensor((2, 7, 9, 12), "float32")


@pytest.mark.parametrize(
    ("x", "u", "tile", "code", "says"),
    [
        ((1, 5, 0, 8), (7, 5, 6, 6), (4, 4), "shape-mismatch", "as large as the filter"),
        ((1, 4, 8, 8), (7, 5, 6, 6), (4, 4), "shape-mismatch", "5 channels"),
        ((1, 5, 8, 8), (7, 5, 3, 3), (4, 4), "shape-mismatch", "transformed for tiles of 4x4"),
        ((1, 5, 8, 8), (7, 5, 5, 5), (3, 3), "bad-attribute", "2 or 4"),
        ((5, 8, 8), (7, 5, 6, 6), (4, 4), "rank-mismatch", "'x'"),
    ],
)
def test_what_does_not_fit(
    x: tuple[int, ...], u: tuple[int, ...], tile: tuple[int, int], code: str, says: str
) -> None:
    with pytest.raises(UserError) as e:
        _infer(tensor(x, "float32"), tensor(u, "float32"), tile=tile, padding=(1, 1, 1, 1))
    assert e.value.code == code
    assert says in str(e.value)
