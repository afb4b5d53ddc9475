"""Tensors resized, one axis at a time: a gather (nearest), or a blend of two elements (linear), of
four (cubic), or of all that a smaller picture covers (antialias)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import extent_of
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.relax import RVar

Factor = float | RVar  # a scale; one that data decides is a tensor [1] of float32

# Elements along a resized dimension: positions are float32, which has no more whole numbers.
LONGEST = 1 << 24

# Pairs (coordinate mode, rounding) for which an integer scale k repeats every element k times.
_REPEATS = {
    ("asymmetric", "floor"),
    *product(("half_pixel", "half_pixel_symmetric"), ("round_prefer_floor", "round_prefer_ceil")),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How elements are read between elements. `roi`, for the coordinates `tf_crop_and_resize`, has
    the starts of all dimensions, then the ends, as parts of them."""

    mode: str
    coordinates: str
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    outside: float = 0.0
    roi: Sequence[float] | None = None

    def cropped(self, k: int) -> tuple[float, float] | None:
        """Start and end along dimension number `k` of those that are resized."""
        if self.roi is None:
            return None
        return self.roi[k], self.roi[k + len(self.roi) // 2]

    def repeats(self, scale: float) -> bool:
        """Whether a scale repeats every element as many times as it says."""
        exact = self.mode == "nearest" and (self.coordinates, self.rounding) in _REPEATS
        return exact and scale == int(scale)


def resize(
    g: Context,
    x: Val,
    axes: Sequence[int],
    scales: Sequence[Factor] | None,
    sizes: Sequence[Expr] | None,
    sampling: Sampling,
) -> Val:
    """`x` resized along one dimension after another; with scales and sizes, to the sizes."""
    if sampling.mode not in ("nearest", "linear", "cubic"):
        raise malformed(f"mode={sampling.mode!r}; expected 'nearest', 'linear' or 'cubic'")
    for factors in (scales, sizes):
        _check(factors, len(axes))
    dtype = g.dtype(x)
    whole = sampling.mode != "nearest" and not g.type(x).dtype.is_float
    x = g.cast(x, "float32") if whole else x
    for k in _order(g, x, axes, scales, sizes, sampling):
        axis, scale = axes[k], None if scales is None else scales[k]
        x = _along(
            g, x, axis, None if sizes is None else sizes[k], scale, sampling, sampling.cropped(k)
        )
    # The blend of integers is rounded, as casting saturates.
    return g.cast(g.emit("round", x), dtype) if whole else x


def _check(factors: Sequence[Factor | Expr] | None, count: int) -> None:
    """NodeProblem unless there is a positive number for each of `count` dimensions."""
    numbers = [int_value(v) if isinstance(v, Expr) else v for v in factors or ()]
    wrong = any(isinstance(v, int | float) and v <= 0 for v in numbers)
    if factors is not None and (len(factors) != count or wrong):
        raise malformed(f"{numbers} for {count} dimensions")


def _order(
    g: Context,
    x: Val,
    axes: Sequence[int],
    scales: Sequence[Factor] | None,
    sizes: Sequence[Expr] | None,
    sampling: Sampling,
) -> Sequence[int]:
    """In which order dimensions are resized: as they come, but for a tensor's last one that grows,
    which is the first. Its elements are read one by one, those of others in vectors, so there
    should be few of them."""
    order, last_axis = list(range(len(axes))), g.rank(x) - 1
    if sampling.mode == "nearest" or last_axis not in axes:
        return order
    last = list(axes).index(last_axis)
    old = int_value(g.shape(x)[last_axis])
    new = None if sizes is None else int_value(sizes[last])
    scale = None if scales is None else scales[last]
    if old is None or (sizes is not None and new is None) or isinstance(scale, RVar):
        return order
    grows = new > old if new is not None else (scale or 1.0) > 1
    return [last, *(k for k in order if k != last)] if grows else order


def _along(
    g: Context,
    x: Val,
    axis: int,
    size: Expr | None,
    scale: Factor | None,
    sampling: Sampling,
    crop: tuple[float, float] | None,
) -> Val:
    """`x` resized along one dimension to the extent `size`, or by `scale`."""
    extent = g.shape(x)[axis]
    is_identity = scale == 1 if size is None else g.dims.same(size, extent)
    if is_identity and crop in (None, (0.0, 1.0)):
        return x
    new = size if size is not None else _scaled(g, extent, scale or 1.0)
    n, old = int_value(new), int_value(extent)
    if (n or 0) > LONGEST:
        raise unsupported(f"{n} elements along dimension {axis}: at most {LONGEST}")
    if isinstance(scale, float | int) and old is None and sampling.repeats(scale):
        return _repeat(g, x, axis, int(scale))
    if n is None or old is None or isinstance(scale, RVar):
        return _along_symbolic(g, x, axis, new, scale, sampling, crop)
    return _along_static(g, x, axis, (old, n), scale, sampling, crop)


def _along_symbolic(
    g: Context,
    x: Val,
    axis: int,
    new: Expr,
    scale: Factor | None,
    sampling: Sampling,
    crop: tuple[float, float] | None,
) -> Val:
    """`_along` where extents are symbolic, or data decides the scale."""
    if sampling.antialias or crop is not None:
        setting = "antialias=1" if sampling.antialias else f"{sampling.coordinates!r}"
        if isinstance(scale, RVar) or g.dims.is_computed(new):
            raise unsupported(f"{setting} of sizes that are computed from data")
        raise unsupported(f"{setting} over a symbolic dimension", "freeze={name: size}")
    positions = _computed_positions(g, g.shape(x)[axis], new, scale, sampling.coordinates)
    if sampling.mode == "nearest":
        return _pick_computed(g, x, axis, positions, sampling.rounding)
    return _blend_computed(g, x, axis, positions, sampling)


def _along_static(
    g: Context,
    x: Val,
    axis: int,
    extents: tuple[int, int],
    scale: float | None,
    sampling: Sampling,
    crop: tuple[float, float] | None,
) -> Val:
    """`_along` from one number of elements to another."""
    old, new = extents
    positions = _positions(old, new, scale, sampling.coordinates, crop)
    if sampling.mode == "nearest":
        y = _pick(g, x, axis, positions, sampling.rounding)
    else:
        y = _blend(g, x, axis, positions, sampling, scale or new / old)
    if crop is None:
        return y
    shape = [-1 if i == axis else 1 for i in range(g.rank(x))]
    inside = ((positions >= 0) & (positions <= old - 1)).reshape(shape)
    return (
        y
        if inside.all()
        else g.emit("where", g.const(inside, "bool"), y, g.like(sampling.outside, y))
    )


def _scaled(g: Context, extent: Expr, scale: Factor) -> Expr:
    """floor(extent * scale); for a symbolic extent the scale must be a fraction with a denominator
    of at most 64, up to float32 rounding, or decided by data."""
    old = int_value(extent)
    if isinstance(scale, RVar):
        size = g.emit("floor", g.emit("mul", _number(g, extent), scale))
        return extent_of(g, g.cast(size, "int64"), "scales")
    if old is not None:
        return IntImm(min(math.floor(old * scale), LONGEST + 1))
    ratio = Fraction(scale).limit_denominator(64)
    if np.float32(ratio) != np.float32(scale):
        raise unsupported(
            f"scale={scale} of a symbolic dimension", "fractions such as 1/2 work, or freeze it"
        )
    return g.dims.simplify(extent * ratio.numerator // ratio.denominator)


def _repeat(g: Context, x: Val, axis: int, k: int) -> Val:
    """Repeat every element `k` times along a dimension: [a, b] gives [a, a, b, b] for k = 2."""
    dims = g.shape(x)
    wide = g.reshape(x, (*dims[: axis + 1], 1, *dims[axis + 1 :]))
    shape = (*dims[: axis + 1], IntImm(k), *dims[axis + 1 :])
    repeated = g.emit("broadcast_to", wide, shape=shape)
    return g.reshape(repeated, (*dims[:axis], dims[axis] * k, *dims[axis + 1 :]))


def _computed_positions(
    g: Context, extent_before: Expr, extent_after: Expr, scale: Factor | None, mode: str
) -> Val:
    """Like `_positions`, as float32 operators, for an extent that is known only at run time."""

    def f(op: str, a: Val | float, b: Val | float) -> Val:
        return g.emit(op, *(g.const(v, "float32") if isinstance(v, float) else v for v in (a, b)))

    i = g.emit("arange", start=0, step=1, count=extent_after, dtype="float32")
    old_extent, new_extent = _number(g, extent_before), _number(g, extent_after)
    factor: Val = f("div", new_extent, old_extent)
    if scale is not None:
        factor = scale if isinstance(scale, RVar) else g.const(scale, "float32")
    half = f("sub", f("div", f("add", i, 0.5), factor), 0.5)
    match mode:
        case "asymmetric":
            return f("div", i, factor)
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return f("mul", half, _several(g, new_extent))
        case "align_corners":
            length = new_extent if scale is None else f("mul", factor, old_extent)
            last = f("maximum", f("sub", length, 1.0), 1.0)
            return f(
                "mul",
                f("div", f("mul", i, f("sub", old_extent, 1.0)), last),
                _several(g, new_extent),
            )
        case "half_pixel_symmetric":
            margin = f("sub", 1.0, f("div", new_extent, f("mul", factor, old_extent)))
            return f("add", f("mul", f("div", old_extent, 2.0), margin), half)
    raise malformed(f"coordinate_transformation_mode={mode!r}")


def _number(g: Context, extent: Expr) -> Val:
    """An extent as a tensor [1] of float32."""
    return g.emit("arange", start=extent, step=1, count=1, dtype="float32")


def _several(g: Context, count: Val) -> Val:
    """1.0 if `count` is greater than 1, else 0.0: a factor that moves a single position to 0."""
    return g.cast(g.emit("greater", count, g.const(1, "float32")), "float32")


def _pick_computed(g: Context, x: Val, axis: int, positions: Val, rounding: str) -> Val:
    half = g.const(0.5, "float32")
    match rounding:
        case "floor" | "ceil":
            index = g.emit(rounding, positions)
        case "round_prefer_floor":
            index = g.emit("ceil", g.emit("sub", positions, half))
        case "round_prefer_ceil":
            index = g.emit("floor", g.emit("add", positions, half))
        case _:
            raise malformed(f"nearest_mode={rounding!r}")
    return g.emit("take", x, _inside(g, index, g.shape(x)[axis]), axis=axis, outside="clamp")


def _inside(g: Context, index: Val, extent: Expr) -> Val:
    """Indices as int64 clamped to [0, extent - 1]; `take` would count negative ones from the
    end."""
    return g.cast(_clipped(g, index, extent), "int64")


def _clipped(g: Context, positions: Val, extent: Expr) -> Val:
    last = g.emit("sub", _number(g, extent), g.const(1, "float32"))
    return g.emit("minimum", g.emit("maximum", positions, g.const(0, "float32")), last)


def _blend_computed(g: Context, x: Val, axis: int, positions: Val, sampling: Sampling) -> Val:
    """Like `_blend`, for positions computed at run time."""
    extent, rank = g.shape(x)[axis], g.rank(x)
    if sampling.mode == "linear" and not sampling.exclude_outside:
        positions = _clipped(g, positions, extent)
    low = g.emit("floor", positions)
    count = g.shape(positions)[0]
    t = g.emit("sub", positions, low)
    taps = range(-1, 3) if sampling.mode == "cubic" else range(2)
    parts = [g.emit("add", low, g.const(k, "float32")) for k in taps]
    weights = [_weight(g, t, k, sampling) for k in taps]
    if sampling.exclude_outside:
        inside = [g.emit("equal", _clipped(g, v, extent), v) for v in parts]
        weights = [
            g.emit("mul", w, g.cast(m, "float32")) for w, m in zip(weights, inside, strict=True)
        ]
        total = functools.reduce(lambda a, b: g.emit("add", a, b), weights)
        weights = [g.emit("div", w, total) for w in weights]
    column = [count if i == axis else 1 for i in range(rank)]
    terms = [
        g.emit(
            "mul",
            g.emit("take", x, _inside(g, v, extent), axis=axis, outside="clamp"),
            g.cast(g.reshape(w, column), g.dtype(x)),
        )
        for v, w in zip(parts, weights, strict=True)
    ]
    return functools.reduce(lambda a, b: g.emit("add", a, b), terms)


def _weight(g: Context, t: Val, tap: int, sampling: Sampling) -> Val:
    """The weight of the element `tap` places after the one before a position, `t` after that."""
    far = g.emit("abs", g.emit("sub", g.const(tap, "float32"), t))
    if sampling.mode == "linear":
        return g.emit("sub", g.const(1, "float32"), far)
    a, total = sampling.cubic, g.const(0, "float32")
    near = tap in (0, 1)
    factors = (a + 2, -(a + 3), 0, 1) if near else (a, -5 * a, 8 * a, -4 * a)
    result: Val = total
    for factor in factors:
        result = g.emit("add", g.emit("mul", result, far), g.const(factor, "float32"))
    return result


def _positions(
    old: int, new: int, factor: float | None, mode: str, crop: tuple[float, float] | None
) -> np.ndarray:
    """The source position, a fraction, of every output element; `factor` is None if the node gives
    sizes."""
    # In float32, as other runtimes compute it, so that ties round in the same direction.
    i, scale = np.arange(new, dtype=np.float32), np.float32(factor or new / old)
    match mode:
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if new > 1 else np.zeros(new)
        case "align_corners":
            # The standard takes the unrounded length when a scale is given.
            last = np.float32(new - 1) if factor is None else scale * old - 1
            return i * np.float32(old - 1) / last if new > 1 else np.zeros(new)
        case "half_pixel_symmetric":
            offset = np.float32(old / 2) * (1 - new / (scale * old))
            return offset + (i + 0.5) / scale - 0.5
        case "tf_crop_and_resize" if crop is not None:
            start, size = crop[0] * (old - 1), (crop[1] - crop[0]) * (old - 1)
            steps = new - 1 if factor is None else factor * old - 1
            if steps <= 0:
                return np.full(new, start + size / 2)
            return start + np.arange(new) * size / steps
    raise malformed(f"coordinate_transformation_mode={mode!r}")


def _pick(g: Context, x: Val, axis: int, positions: np.ndarray, rounding: str) -> Val:
    match rounding:
        case "floor":
            index = np.floor(positions)
        case "ceil":
            index = np.ceil(positions)
        case "round_prefer_floor":
            index = np.ceil(positions - 0.5)
        case "round_prefer_ceil":
            index = np.floor(positions + 0.5)
        case _:
            raise malformed(f"nearest_mode={rounding!r}")
    extent = int_value(g.shape(x)[axis]) or 1
    return g.emit("take", x, g.const(np.clip(index, 0, extent - 1), "int64"), axis=axis)


def _blend(
    g: Context, x: Val, axis: int, positions: np.ndarray, sampling: Sampling, scale: float
) -> Val:
    """The weighted sum of the elements around each position; beyond its ends `x` goes on with its
    last elements, which with `exclude_outside` have no weight."""
    extent, rank, dtype = int_value(g.shape(x)[axis]) or 1, g.rank(x), g.dtype(x)
    index, weight = _taps(positions, sampling, scale)
    if sampling.exclude_outside:
        weight = np.where((index >= 0) & (index < extent), weight, 0)
        total = weight.sum(1, keepdims=True)
        weight = weight / np.where(total == 0, 1, total)
    index = np.clip(index, 0, extent - 1)
    if index.shape[1] > 4:
        return _as_product(g, x, axis, index, weight)
    shape = [-1 if i == axis else 1 for i in range(rank)]
    parts = [
        g.emit(
            "mul",
            g.emit("take", x, g.const(index[:, k], "int64"), axis=axis),
            g.const(weight[:, k].reshape(shape), dtype),
        )
        for k in range(index.shape[1])
    ]
    return functools.reduce(lambda a, b: g.emit("add", a, b), parts)


def _as_product(g: Context, x: Val, axis: int, index: np.ndarray, weight: np.ndarray) -> Val:
    """The sum of many weighted elements as a product with a matrix of the weights."""
    matrix = np.zeros((int_value(g.shape(x)[axis]) or 1, len(index)))
    for k in range(index.shape[1]):
        np.add.at(matrix, (index[:, k], np.arange(len(index))), weight[:, k])
    order = [i for i in range(g.rank(x)) if i != axis] + [axis]
    lead = [g.shape(x)[i] for i in order[:-1]]
    rows = g.reshape(g.transpose(x, order), (g.dims.product(lead), g.shape(x)[axis]))
    y = g.reshape(g.emit("linear", rows, g.const(matrix, g.dtype(x))), (*lead, len(index)))
    return g.transpose(y, [order.index(i) for i in range(g.rank(x))])


def _taps(positions: np.ndarray, sampling: Sampling, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Places and weights [positions, taps] of the elements that are read for each position.

    With `antialias` a smaller picture reads all elements that a new one covers.
    """
    low = np.floor(positions)
    t = (positions - low)[:, None]
    reach = 2 if sampling.mode == "cubic" else 1
    shrink = min(scale, 1.0) if sampling.antialias else 1.0
    first = math.floor(-reach / shrink) + 1
    taps = np.arange(first, 2 - first)
    far = np.abs(taps - t) * shrink
    if sampling.mode == "linear":
        weight = np.clip(1 - far, 0, 1)
    else:
        a = sampling.cubic
        inner = ((a + 2) * far - (a + 3)) * far * far + 1
        outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        weight = np.where(far <= 1, inner, np.where(far < 2, outer, 0))
    if sampling.antialias:
        weight = weight / weight.sum(1, keepdims=True)
    return (low[:, None] + taps).astype(np.int64), weight
