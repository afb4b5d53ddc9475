"""Kernels on weights that are to be small: narrow panels, blocks of few channels, tables that are
read as a product has them."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import Tuple, constant
from tensorkiln.kernels.case import rand
from tests.codegen.kernels import EVERY_LEVEL, FORMS
from tests.emulated.machine import Library, load
from tests.schedule.battery import Battery, typed

N, H, W = Var("N"), Var("H"), Var("W")
SOME = [{"N": n} for n in (1, 3, 19)]
IMAGES = [{"H": h, "W": w} for h, w in ((5, 9), (12, 7), (1, 1))]


def _conv(outputs: int, inputs: int, size: int = 3, **attrs: object):  # noqa: ANN202
    w, b = rand(outputs, inputs, size, size), rand(outputs)
    padding = (size // 2,) * 4
    return lambda g, x: g.relu(g.conv2d(x, w, b, padding=padding, **attrs))


def _words(rows: int, columns: int):  # noqa: ANN202
    table = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    words, weights = constant(table, "words"), constant(table.T, "weights")

    def build(g, x, i):  # noqa: ANN001, ANN202
        return Tuple((g.relu(g.take(words, i, axis=0, outside="clamp")), g.linear(x, weights)))

    return build


def _place(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Some numbers; indices beyond both ends of a table, too."""
    rng = np.random.default_rng(seed)
    if dtype.kind == "i":
        return rng.integers(-120, 120, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def build() -> Battery:
    b = Battery()
    for c in (9, 12, 17, 20, 100):
        b.add(f"conv_{c}", _conv(33, c), (2, c, 7, 9), tolerance=2e-5)
        b.add(f"point_{c}", _conv(20, c, 1), (1, c, 6, 6), tolerance=2e-5)
    b.add("strided", _conv(40, 20, strides=(2, 2)), (1, 20, 11, 8), tolerance=2e-5)
    b.add("long", _conv(16, 260), (1, 260, 5, 5), tolerance=2e-5)
    b.add("open", _conv(24, 20), (1, 20, H, W), sizes=IMAGES, tolerance=2e-5)
    b.add("batch", _conv(24, 12), (N, 12, 6, 6), sizes=SOME, tolerance=2e-5)
    b.add(
        "chain",
        lambda g, x: _conv(30, 18)(g, _conv(18, 20)(g, x)),
        (1, 20, 9, 9),
        tolerance=2e-5,
    )
    for groups in (2, 4, 16):
        grouped = _conv(48, 48 // groups, groups=groups)
        b.add(f"groups_{groups}", grouped, (1, 48, 6, 7), tolerance=2e-5)
    for n in (1, 7, 16, 17, 100, 257):
        layer = rand(24, n), rand(n)
        for rows in (1, 5, 64):
            b.add(f"linear_{n}_{rows}", lambda g, x, p=layer: g.linear(x, *p), (rows, 24))
        b.add(f"linear_{n}_N", lambda g, x, p=layer: g.linear(x, *p), (N, 24), sizes=SOME)
    narrow = constant(rand(24, 40).array.astype(np.float16), "w")
    b.add("halves", lambda g, x: g.linear(x, narrow), typed("float16", 3, 24))
    for rows, columns in ((100, 16), (33, 7), (101, 40)):
        name = f"words_{rows}_{columns}"
        b.add(name, _words(rows, columns), (2, columns), typed("int64", 5), make=_place)
        b.add(
            f"{name}_N",
            _words(rows, columns),
            (N, columns),
            typed("int32", 2, N),
            sizes=SOME,
            make=_place,
        )
    return b


BATTERY = build().in_turn()


@pytest.fixture(scope="module", params=[*EVERY_LEVEL, "c", "c of avx2"])
def library(request: pytest.FixtureRequest) -> Library:
    return load(BATTERY.compile(FORMS[request.param].replace(optimize="size")))


@pytest.mark.parametrize("name", BATTERY.cases)
def test_values(library: Library, name: str) -> None:
    BATTERY.check(name, library)
