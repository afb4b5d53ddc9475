"""Constants may be views of a model's file: read-only, at odd addresses, with gaps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.host.weights import ALIGN, BLOCK, WeightArena, WeightsContent
from tensorkiln.ir.layout import Layout
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.padded import Padded, parts_between
from tensorkiln.ir.relax import constant, tensor
from tensorkiln.ir.text.print_relax import digest
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
    for a, place in zip(arrays, places, strict=True):
        assert place % ALIGN == 0
        assert content[place : place + a.nbytes] == a.tobytes()


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
    for a, place in zip(arrays, places, strict=True):
        assert written[place : place + a.nbytes] == a.tobytes()
        written = written[:place] + bytes(a.nbytes) + written[place + a.nbytes :]
    assert not any(written)


def test_weights_of_unusual_shapes() -> None:
    arrays = [np.zeros((0, 3), F), np.array(7, F), np.broadcast_to(F(2), (5,))]
    arena = WeightArena()
    places = [arena.place(a) for a in arrays]
    content = bytes(WeightsContent(arena).view)
    for a, place in zip(arrays, places, strict=True):
        assert content[place : place + a.nbytes] == a.tobytes()


def identity(*arrays: Array) -> str:
    arena = WeightArena()
    for a in arrays:
        arena.place(a)
    return arena.identity


ALIKE = [np.zeros(100, F) for _ in range(3)]  # of which the identity reads a sample
for i, number in enumerate(ALIKE):
    number[1] = i


@pytest.mark.parametrize("view", [*VIEWS, np.copy])
@pytest.mark.parametrize(
    "order",
    [(0, 0), (0, 1, 0), (0, 1, 0, 1), (0, 0, 1, 1), (0, 3, 0, 3), (0, 3, 0, 1, 3, 4, 2, 0, 4, 2)],
    ids=str,
)
def test_identity_does_not_depend_on_sharing(view: View, order: tuple[int, ...]) -> None:
    """Equal arrays may be one object or several: the text of a module does not say which."""
    arrays = [*ALIKE, np.arange(7, dtype=F), np.arange(1, 8, dtype=F)]
    shared = identity(*(arrays[i] for i in order))
    assert identity(*(view(arrays[i]) for i in order)) == shared
    assert identity(*(arrays[i] for i in dict.fromkeys(order))) == shared


def test_identity_tells_arrays_apart() -> None:
    a, b, c = ALIKE
    array_sequences = [(a,), (a, b), (b, a), (a, c), (a, b, c), (a, c, b), (c, b, a), (b, c, a)]
    assert len({identity(*arrays) for arrays in array_sequences}) == len(array_sequences)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", ["A B C D", "A B/4 C+1 D+1 B%4", "B C D A/8 A%8", "D C B A"])
def test_packing(view: View, layout: str) -> None:
    a = np.arange(6 * 10 * 3 * 4, dtype=F).reshape(6, 10, 3, 4)
    to = Layout.parse(layout)
    packed = to.pack(view(a))
    np.testing.assert_array_equal(packed, to.pack(a))
    np.testing.assert_array_equal(to.unpack(packed, a.shape), a)


def by_definition(to: Layout, a: Array) -> Array:
    """Each element where the module's docstring says that it lies, and zeros."""
    sizes = []
    for x in to.axes:
        outermost = x.divisor == max(y.divisor for y in to.axes if y.dim == x.dim)
        extent = -(-(a.shape[x.dim] + 2 * x.halo) // x.divisor)
        sizes.append(extent if outermost else x.modulus)
    out = np.zeros(sizes, a.dtype)
    for i in np.ndindex(a.shape):
        coordinates = ((i[x.dim] + x.halo) // x.divisor for x in to.axes)
        out[
            tuple(
                w % x.modulus if x.modulus else w for w, x in zip(coordinates, to.axes, strict=True)
            )
        ] = a[i]
    return out


@pytest.mark.parametrize("shape", [(6, 10, 3, 4), (5, 9, 1, 2), (8, 16, 3, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize(
    "layout",
    [
        "A/4 B/8 C D B%8 A%4",
        "A/4 B/8 C D B/2%4 A%4 B%2",
        "B%4 A B/4 C D",
        "A B/4 C+1 D+2 B%4",
        "D+1 C+1 B/4 A/3 A%3 B%4",
    ],
)
def test_padding_is_made_piece_by_piece(shape: tuple[int, ...], layout: str) -> None:
    """Any run of bytes, any element, and the digest are those of the array packed at once."""
    rng = np.random.default_rng(2)
    a, to = rng.standard_normal(shape).astype(F), Layout.parse(layout)
    want, later = by_definition(to, a), to.packed(a)
    assert (later.shape, later.dtype, later.nbytes) == (want.shape, want.dtype, want.nbytes)
    np.testing.assert_array_equal(to.pack(a), want)
    assert digest(later) == digest(want)
    for start, stop in np.sort(rng.integers(0, want.size + 1, (50, 2))).tolist():
        parts = [p.reshape(-1) for p in parts_between(later, 4 * start, 4 * stop) if stop > start]
        np.testing.assert_array_equal(np.concatenate([F([]), *parts]), want.reshape(-1)[start:stop])
    if isinstance(later, Padded):
        places = tuple(rng.integers(0, n, 100) for n in want.shape)
        np.testing.assert_array_equal(later.take(places), want[places])


def test_only_padding_is_copied() -> None:
    a = np.zeros((300, 1000), F)
    later = Layout.parse("B/48 A B%48").packed(a)
    parts = [later[i] for i in range(len(later))]
    assert [np.shares_memory(p, a) for p in parts] == [True] * 20 + [False]
    assert {len(p) for p in parts} == {300}


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
    operand = rng.standard_normal((3, 8)).astype(F)
    np.testing.assert_allclose(
        run(operand).numpy(), operand @ w + bias + table, rtol=1e-5, atol=1e-5
    )
