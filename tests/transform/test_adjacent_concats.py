"""Which concatenations need no kernel."""

from __future__ import annotations

import pytest

from tensorkiln.ir.relax import Call, RVar, Tuple, Value
from tensorkiln.kernels.case import Build, Graph, rand
from tensorkiln.target import Target
from tensorkiln.transform.relax.adjacent_concats import adjacent_concats, offsets_within
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tests.transform.graphs import graph, main

TARGET = Target({"kind": "llvm", "mcpu": "haswell"})


def conv(g: Graph, x: Value, filters: int = 16, k: int = 1) -> RVar:
    """A convolution that keeps the size of the image."""
    channels = x.type.shape[1].value  # type: ignore[union-attr]
    return g.conv2d(x, rand(filters, channels, k, k), padding=(k // 2,) * 4)


def found(build: Build, **params: object) -> list[list[int]]:
    """Of each such concatenation, where its operands begin."""
    f = main(AssignLayouts(TARGET)(graph(build, **params)))
    after, names = adjacent_concats(f, ())
    calls = {b.var: b.value for b in after.bindings if isinstance(b.value, Call)}
    return [offsets_within(v.tensor, calls[v]) for v in calls if v in names]


def _both(g: Graph, x: Value) -> tuple[RVar, RVar]:
    return conv(g, x), g.relu(conv(g, x))


def _again(g: Graph, x: Value) -> Value:
    a, b = _both(g, x)
    return conv(g, g.concat(g.concat(a, b, axis=1), g.concat(a, conv(g, x), axis=1), axis=1))


def _nested(g: Graph, x: Value) -> Value:
    a, b = _both(g, x)
    c = conv(g, g.concat(a, b, axis=1))
    return conv(g, g.concat(a, b, c, axis=1))


PLANE = 16 * 25 * 4
CASES: dict[str, tuple[Build, list[list[int]]]] = {
    "two": (lambda g, x: conv(g, g.concat(*_both(g, x), axis=1)), [[0, PLANE]]),
    "read by more": (
        lambda g, x: g.add(conv(g, g.concat(a := conv(g, x), conv(g, x), axis=1)), a),
        [[0, PLANE]],
    ),
    "begins as another": (_nested, [[0, PLANE], [0, 2 * PLANE]]),
    "an operand in two": (_again, [[0, PLANE], [0, 2 * PLANE]]),
    "an operand twice": (lambda g, x: conv(g, g.concat(a := conv(g, x), a, axis=1)), []),
    "rows": (lambda g, x: conv(g, g.concat(*_both(g, x), axis=2)), []),
    "half a block": (lambda g, x: conv(g, g.concat(conv(g, x, 12), conv(g, x, 12), axis=1)), []),
    "borders differ": (
        lambda g, x: g.add(conv(g, g.concat(a := conv(g, x), conv(g, x), axis=1)), conv(g, a, k=3)),
        [],
    ),
    "a result": (lambda g, x: g.concat(g.exp(x), g.neg(x), axis=1), []),
    "an operand of which the result is a copy": (
        lambda g, x: Tuple((a := conv(g, x), conv(g, g.concat(a, conv(g, x), axis=1)))),
        [[0, PLANE]],
    ),
    "a parameter": (lambda g, x: g.softmax(g.concat(x, g.exp(x), axis=1), axis=-1), []),
}


@pytest.mark.parametrize("name", CASES)
def test_where_operands_begin(name: str) -> None:
    build, offsets = CASES[name]
    assert found(build, x=(1, 16, 5, 5)) == offsets


def test_images_lie_apart() -> None:
    assert found(CASES["two"][0], x=(2, 16, 5, 5)) == []


def test_rows_in_row_major_memory() -> None:
    def build(g: Graph, x: Value) -> Value:
        return g.softmax(g.concat(g.exp(x), g.neg(x), axis=0), axis=-1)

    assert found(build, x=(4, 16)) == [[0, 256]]
    assert found(build, x=(4, 15)) == []  # no whole cache lines
