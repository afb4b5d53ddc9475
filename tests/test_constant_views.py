"""Constants may be views of a model's file: read-only, at odd addresses, with gaps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.weights import ALIGN, BLOCK, WeightArena, WeightsContent
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import constant, tensor
from tensorkiln.ops.builder import GraphBuilder

F = np.float32
Array = np.ndarray
View = Callable[[Array], Array]


def at_odd_address(a: Array) -> Array:
    """A read-only view one byte into a file."""
    view = np.frombuffer(b"\0" + a.tobytes(), a.dtype, offset=1).reshape(a.shape)
    assert (view.flags.aligned and a.itemsize > 1, view.flags.writeable) == (False, False)
    return view


def with_gaps(a: Array) -> Array:
    """Every other element along the last axis of a larger array."""
    return np.repeat(a, 2, axis=-1)[..., ::2]


def backwards(a: Array) -> Array:
    return np.ascontiguousarray(a[..., ::-1])[..., ::-1]


def column_major(a: Array) -> Array:
    return np.asfortranarray(a)


def odd_with_gaps(a: Array) -> Array:
    return at_odd_address(np.repeat(a, 2, axis=-1))[..., ::2]


VIEWS: list[View] = [at_odd_address, with_gaps, backwards, column_major, odd_with_gaps]


@pytest.mark.parametrize("view", VIEWS)
def test_weights_are_written_in_row_major_order(view: View) -> None:
    arrays = [
        np.arange(5, dtype=F),
        np.arange(12, dtype=F).reshape(3, 4),
        np.arange(24, dtype=np.int64).reshape(2, 3, 4),
        np.array([True, False, True]),
    ]
    arena = WeightArena()
    places = [arena.place(view(a)) for a in arrays]
    content = bytes(WeightsContent(arena).view)
    assert len(content) == arena.size
    for a, at in zip(arrays, places, strict=True):
        assert at % ALIGN == 0
        assert content[at : at + a.nbytes] == a.tobytes()


@pytest.mark.parametrize("view", [*VIEWS, np.copy])
def test_weights_of_several_blocks(view: View) -> None:
    """Blocks end within rows, and in the padding between arrays."""
    shapes = [(3, 700, 301), (BLOCK // 8,), (5, 99_991), (2, 3, 5, 7), (BLOCK // 4 - 3,), (1, 1)]
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(s).astype(F) for s in shapes]
    arena = WeightArena()
    places = [arena.place(view(a)) for a in arrays]
    content = WeightsContent(arena)
    written = bytes(content.view)
    assert len(written) == arena.size and written == b"".join(content.chunks())
    for a, at in zip(arrays, places, strict=True):
        assert written[at : at + a.nbytes] == a.tobytes()
        written = written[:at] + bytes(a.nbytes) + written[at + a.nbytes :]
    assert not any(written)


def test_weights_of_unusual_shapes() -> None:
    arrays = [np.zeros((0, 3), F), np.array(7, F), np.broadcast_to(F(2), (5,))]
    arena = WeightArena()
    places = [arena.place(a) for a in arrays]
    content = bytes(WeightsContent(arena).view)
    for a, at in zip(arrays, places, strict=True):
        assert content[at : at + a.nbytes] == a.tobytes()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", ["A B C D", "A B/4 C+1 D+1 B%4", "B C D A/8 A%8", "D C B A"])
def test_packing(view: View, layout: str) -> None:
    a = np.arange(6 * 10 * 3 * 4, dtype=F).reshape(6, 10, 3, 4)
    to = Layout.parse(layout)
    packed = to.pack(view(a))
    np.testing.assert_array_equal(packed, to.pack(a))
    np.testing.assert_array_equal(to.unpack(packed, a.shape), a)


@pytest.mark.parametrize("view", VIEWS)
def test_a_compiled_graph_of_views(view: View) -> None:
    """Packed weights, a bias, and a table that is only read."""
    rng = np.random.default_rng(5)
    w, bias, table = (rng.standard_normal(s).astype(F) for s in [(8, 40), (40,), (3, 40)])
    b = GraphBuilder()
    x = b.param("x", tensor([3, 8], "float32"))
    y = b.emit("matmul", x, constant(view(w), "w"))
    y = b.emit("add", y, constant(view(bias), "bias"))
    y = b.emit("add", y, constant(view(table), "table"))
    run = tk.runtime.Executor(tk.compile(IRModule((b.finish(y),))))["main"]
    given = rng.standard_normal((3, 8)).astype(F)
    np.testing.assert_allclose(run(given).numpy(), given @ w + bias + table, rtol=1e-5, atol=1e-5)
