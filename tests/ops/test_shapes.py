"""Programs and references on drawn shapes: empty, unit and odd extents, every rank."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.ir.expr import IntImm
from tensorkiln.ops.shape import reshape_groups
from tests.ops.element import check, data

quick = settings(max_examples=30, derandomize=True)
extents = st.integers(0, 4)
shapes = st.lists(extents, max_size=4).map(tuple)


@st.composite
def broadcastable(draw: st.DrawFn, count: int) -> list[tuple[int, ...]]:
    """Shapes that broadcast together: units and missing leading dimensions of one shape."""
    full = draw(shapes)
    out = []
    for _ in range(count):
        cut = draw(st.integers(0, len(full)))
        out.append(tuple(draw(st.sampled_from((1, n))) for n in full[cut:]))
    return out


@quick
@given(broadcastable(2))
def test_binary_broadcasting(pair: list[tuple[int, ...]]) -> None:
    a, b = (data(*s, seed=k) for k, s in enumerate(pair))
    assert check("sub", a, b).shape == np.broadcast_shapes(*pair)


@quick
@given(broadcastable(3))
def test_where_broadcasting(triple: list[tuple[int, ...]]) -> None:
    cond, a, b = triple
    check("where", data(*cond, dtype="bool"), data(*a, seed=1), data(*b, seed=2))


@quick
@given(shapes, st.data())
def test_transpose(shape: tuple[int, ...], draw: st.DataObject) -> None:
    axes = draw.draw(st.permutations(range(len(shape))))
    check("transpose", data(*shape), axes=tuple(axes))


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes with as many elements: factors, grouped in two ways, with units put between."""
    factors = draw(st.lists(st.sampled_from((2, 3, 4)), max_size=4))

    def grouped() -> tuple[int, ...]:
        shape: list[int] = []
        for f in factors:
            if shape and draw(st.booleans()):
                shape[-1] *= f
            else:
                shape.append(f)
            if draw(st.integers(0, 4)) == 0:
                shape.append(1)
        return tuple(shape)

    return grouped(), grouped()


@quick
@given(reshapes())
def test_reshape(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check("reshape", data(*pair[0]), shape=pair[1])


@quick
@given(reshapes())
def test_reshape_groups_partition_both_sides(
    pair: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    old, new = pair
    groups = reshape_groups(tuple(map(IntImm, old)), tuple(map(IntImm, new)))
    assert [d for olds, _ in groups for d in olds] == list(range(len(old)))
    assert [d for _, news in groups for d in news] == list(range(len(new)))
    for olds, news in groups:
        assert np.prod([old[d] for d in olds]) == np.prod([new[d] for d in news])


@quick
@given(shapes, st.data())
def test_slice(shape: tuple[int, ...], draw: st.DataObject) -> None:
    begin, strides, counts, picks = [], [], [], []
    for n in shape:
        stride = draw.draw(st.sampled_from((-3, -1, 1, 2)))
        first = draw.draw(st.integers(0, max(n - 1, 0)))
        room = 0 if n == 0 else (first if stride < 0 else n - 1 - first) // abs(stride) + 1
        count = draw.draw(st.integers(0, room))
        begin.append(first)
        strides.append(stride)
        counts.append(count)
        picks.append([first + k * stride for k in range(count)])
    x = data(*shape)
    out = check("slice", x, begin=tuple(begin), strides=tuple(strides), shape=tuple(counts))
    np.testing.assert_array_equal(out, x[np.ix_(*picks)] if picks else x)


@quick
@given(shapes.filter(len), st.data())
def test_concat(shape: tuple[int, ...], draw: st.DataObject) -> None:
    axis = draw.draw(st.integers(-len(shape), len(shape) - 1))
    parts = []
    for k, n in enumerate(draw.draw(st.lists(extents, min_size=1, max_size=4))):
        part = list(shape)
        part[axis] = n
        parts.append(data(*part, seed=k))
    check("concat", *parts, axis=axis)


@quick
@given(shapes, st.sampled_from(("constant", "edge", "reflect")), st.data())
def test_pad(shape: tuple[int, ...], mode: str, draw: st.DataObject) -> None:
    most = [{"constant": 3, "edge": 3 * (n > 0), "reflect": max(n - 1, 0)}[mode] for n in shape]
    before, after = (tuple(draw.draw(st.integers(0, m)) for m in most) for _ in range(2))
    check("pad", data(*shape), before=before, after=after, mode=mode, value=-2.5)


@quick
@given(shapes.filter(len), st.lists(st.integers(0, 3), max_size=2), st.data())
def test_take(shape: tuple[int, ...], index_shape: list[int], draw: st.DataObject) -> None:
    axis = draw.draw(st.integers(-len(shape), len(shape) - 1))
    extent = shape[axis]
    indices = data(*index_shape, dtype="int64")
    if extent == 0 and indices.size:
        return
    indices = indices % (2 * extent) - extent if extent else indices
    x = data(*shape)
    np.testing.assert_array_equal(check("take", x, indices, axis=axis), x.take(indices, axis))


@quick
@given(shapes, st.sampled_from(("sum", "max", "min", "prod", "mean")), st.booleans(), st.data())
def test_reductions(shape: tuple[int, ...], op: str, keepdims: bool, draw: st.DataObject) -> None:
    axes = draw.draw(st.sets(st.sampled_from(range(len(shape))))) if shape else set()
    signed = tuple(a - len(shape) if draw.draw(st.booleans()) else a for a in sorted(axes))
    check(op, data(*shape), axes=signed, keepdims=keepdims)


@st.composite
def window(draw: st.DrawFn) -> tuple[int, int, int, int, int, int]:
    """Kernel, stride, dilation, padding before and after, and an extent that they fit into."""
    kernel, stride, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    before, after = (draw(st.integers(0, kernel - 1)) for _ in range(2))
    least = max(dilation * (kernel - 1) + 1 - before - after, 1)
    return kernel, stride, dilation, before, after, draw(st.integers(least, least + 4))


def pair(a: tuple[int, ...], b: tuple[int, ...]) -> dict[str, object]:
    return {"strides": (a[1], b[1]), "padding": (a[3], b[3], a[4], b[4])}


@quick
@given(window(), window(), st.integers(1, 2), st.integers(1, 2), st.integers(1, 2))
def test_conv2d(
    rows: tuple[int, ...], cols: tuple[int, ...], groups: int, inputs: int, outputs: int
) -> None:
    x = data(1, groups * inputs, rows[5], cols[5])
    w = data(groups * outputs, inputs, rows[0], cols[0])
    check("conv2d", x, w, groups=groups, dilation=(rows[2], cols[2]), **pair(rows, cols))


@quick
@given(window(), window(), st.booleans())
def test_max_pool2d(rows: tuple[int, ...], cols: tuple[int, ...], ceil_mode: bool) -> None:
    check(
        "max_pool2d",
        data(1, 2, rows[5], cols[5]),
        kernel=(rows[0], cols[0]),
        dilation=(rows[2], cols[2]),
        ceil_mode=ceil_mode,
        **pair(rows, cols),
    )


@quick
@given(window(), window(), st.booleans(), st.booleans())
def test_avg_pool2d(
    rows: tuple[int, ...], cols: tuple[int, ...], ceil_mode: bool, include: bool
) -> None:
    check(
        "avg_pool2d",
        data(1, 1, rows[5] + 4, cols[5] + 4),
        kernel=(rows[0], cols[0]),
        ceil_mode=ceil_mode,
        count_include_pad=include,
        **pair(rows, cols),
    )


@quick
@given(
    broadcastable(2),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_matmul(
    batch: list[tuple[int, ...]], m: int, k: int, n: int, flip_a: bool, flip_b: bool
) -> None:
    left, right = ((m, k), (k, n))
    a = data(*batch[0][-2:], *(left[::-1] if flip_a else left))
    b = data(*batch[1][-2:], *(right[::-1] if flip_b else right), seed=1)
    check("matmul", a, b, transpose_a=flip_a, transpose_b=flip_b)


@quick
@given(st.lists(st.integers(-60, 60), min_size=1, max_size=8), st.data())
def test_integer_division_is_exact(values: list[int], draw: st.DataObject) -> None:
    by = draw.draw(st.lists(st.integers(-9, 9), min_size=len(values), max_size=len(values)))
    a, b = np.array(values, np.int8), np.array(by, np.int8)
    want = [0 if y == 0 else int(x / y) for x, y in zip(values, by, strict=True)]
    assert check("div", a, b).tolist() == want
    remainders = [0 if y == 0 else x - y * int(x / y) for x, y in zip(values, by, strict=True)]
    assert check("mod", a, b, fmod=1).tolist() == remainders
