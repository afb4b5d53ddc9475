"""Resize and Upsample, one axis at a time: a gather (nearest), or a blend of two (linear)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Float, Floats, Int, Ints, Str, Table
from tensorkiln.frontend.onnx.issues import malformed, unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.ir.expr import Expr, IntImm, int_value

# Pairs (coordinate mode, rounding) for which an integer scale k repeats every element k times.
_REPEATS = {
    ("asymmetric", "floor"),
    *product(("half_pixel", "half_pixel_symmetric"), ("round_prefer_floor", "round_prefer_ceil")),
}


def upsample_7(g: Context, x: Val, *, scales: Floats, mode: Str = "nearest") -> Val:
    """Upsample with its scales as an attribute."""
    return _resize(g, x, range(g.rank(x)), list(scales), None, mode, "asymmetric", "floor")


def upsample_9(g: Context, x: Val, scales: Val, *, mode: Str = "nearest") -> Val:
    """Upsample with its scales as an operand."""
    factors = g.array(scales, "scales").ravel().tolist()
    return _resize(g, x, range(g.rank(x)), factors, None, mode, "asymmetric", "floor")


def resize_10(g: Context, x: Val, scales: Val, *, mode: Str = "nearest") -> Val:
    """Resize of opset 10, which means the same as Upsample of opset 9."""
    return upsample_9(g, x, scales, mode=mode)


def resize_11(
    g: Context,
    x: Val,
    roi: Val | None = None,
    scales: Val | None = None,
    sizes: Val | None = None,
    *,
    antialias: Int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: Str = "half_pixel",
    cubic_coeff_a: Float = -0.75,
    exclude_outside: Int = 0,
    extrapolation_value: Float = 0.0,
    keep_aspect_ratio_policy: Str = "stretch",
    mode: Str = "nearest",
    nearest_mode: Str = "round_prefer_floor",
) -> Val:
    """Resize by `scales` or to `sizes`, which may be symbolic.

    Modes nearest and linear; the coordinate modes of opset 19 except `tf_crop_and_resize`.
    """
    if antialias:
        raise unsupported("antialias=1")
    if keep_aspect_ratio_policy != "stretch":
        raise unsupported(f"keep_aspect_ratio_policy={keep_aspect_ratio_policy!r}")
    where = range(g.rank(x)) if axes is None else g.axes(axes, g.rank(x))
    factors = [] if scales is None else g.array(scales, "scales").ravel().tolist()
    new = () if sizes is None or factors else g.extents(sizes, "sizes")
    if not factors and not new:
        raise malformed("either scales or sizes must be given")
    return _resize(
        g,
        x,
        where,
        factors or None,
        new or None,
        mode,
        coordinate_transformation_mode,
        nearest_mode,
    )


def _resize(
    g: Context,
    x: Val,
    axes: Sequence[int],
    scales: Sequence[float] | None,
    sizes: Sequence[Expr] | None,
    mode: str,
    coordinates: str,
    rounding: str,
) -> Val:
    if mode not in ("nearest", "linear"):
        raise unsupported(f"mode={mode!r}", "'nearest' and 'linear' are supported")
    given: Sequence[float | Expr] = scales if scales is not None else sizes or ()
    numbers = [int_value(v) if isinstance(v, Expr) else v for v in given]
    if not given or len(given) != len(axes) or any(v is not None and v <= 0 for v in numbers):
        raise malformed(f"{numbers} for {len(axes)} dimensions")
    for k, axis in enumerate(axes):
        extent, scale = g.shape(x)[axis], scales[k] if scales is not None else None
        if scale == 1 or (sizes is not None and g.dims.same(sizes[k], extent)):
            continue
        new = sizes[k] if sizes is not None else _scaled(g, extent, scale or 1.0)
        exact = mode == "nearest" and (coordinates, rounding) in _REPEATS
        if exact and scale is not None and scale == int(scale) and int_value(extent) is None:
            x = _repeat(g, x, axis, int(scale))
            continue
        n, old = int_value(new), int_value(extent)
        if n is None or old is None:
            where = _computed_positions(g, extent, new, scale, coordinates)
            pick = _pick_computed if mode == "nearest" else _blend_computed
            x = pick(g, x, axis, where, rounding)
            continue
        at = _positions(old, n, scale, coordinates)
        x = _pick(g, x, axis, at, rounding) if mode == "nearest" else _blend(g, x, axis, at)
    return x


def _scaled(g: Context, extent: Expr, scale: float) -> Expr:
    """floor(extent * scale); for a symbolic extent the scale must be a fraction with a denominator
    of at most 64, up to float32 rounding."""
    old = int_value(extent)
    if old is not None:
        return IntImm(math.floor(old * scale))
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
    many = g.emit("broadcast_to", wide, shape=shape)
    return g.reshape(many, (*dims[:axis], dims[axis] * k, *dims[axis + 1 :]))


def _computed_positions(g: Context, old: Expr, new: Expr, scale: float | None, mode: str) -> Val:
    """Like `_positions`, as float32 operators, for an extent that is known only at run time."""

    def f(op: str, a: Val | float, b: Val | float) -> Val:
        return g.emit(op, *(g.const(v, "float32") if isinstance(v, float) else v for v in (a, b)))

    i = g.emit("arange", start=0, step=1, count=new, dtype="float32")
    had, made = _number(g, old), _number(g, new)
    factor = f("div", made, had) if scale is None else g.const(scale, "float32")
    half = f("sub", f("div", f("add", i, 0.5), factor), 0.5)
    match mode:
        case "asymmetric":
            return f("div", i, factor)
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return f("mul", half, _several(g, made))
        case "align_corners":
            length = made if scale is None else f("mul", factor, had)
            last = f("maximum", f("sub", length, 1.0), 1.0)
            return f("mul", f("div", f("mul", i, f("sub", had, 1.0)), last), _several(g, made))
        case "half_pixel_symmetric":
            cut = f("sub", 1.0, f("div", made, f("mul", factor, had)))
            return f("add", f("mul", f("div", had, 2.0), cut), half)
    raise unsupported(f"coordinate_transformation_mode={mode!r}")


def _number(g: Context, extent: Expr) -> Val:
    """An extent as a tensor [1] of float32."""
    return g.emit("arange", start=extent, step=1, count=1, dtype="float32")


def _several(g: Context, count: Val) -> Val:
    """1.0 if `count` is greater than 1, else 0.0: a factor that moves a single position to 0."""
    return g.cast(g.emit("greater", count, g.const(1, "float32")), "float32")


def _pick_computed(g: Context, x: Val, axis: int, at: Val, rounding: str) -> Val:
    half = g.const(0.5, "float32")
    match rounding:
        case "floor" | "ceil":
            index = g.emit(rounding, at)
        case "round_prefer_floor":
            index = g.emit("ceil", g.emit("sub", at, half))
        case "round_prefer_ceil":
            index = g.emit("floor", g.emit("add", at, half))
        case _:
            raise malformed(f"nearest_mode={rounding!r}")
    return g.emit("take", x, _inside(g, index, g.shape(x)[axis]), axis=axis)


def _inside(g: Context, index: Val, extent: Expr) -> Val:
    """Indices as int64 clamped to [0, extent - 1]; `take` would count negative ones from the
    end."""
    return g.cast(_clipped(g, index, extent), "int64")


def _clipped(g: Context, at: Val, extent: Expr) -> Val:
    last = g.emit("sub", _number(g, extent), g.const(1, "float32"))
    return g.emit("minimum", g.emit("maximum", at, g.const(0, "float32")), last)


def _blend_computed(g: Context, x: Val, axis: int, at: Val, rounding: str) -> Val:
    """Like `_blend`, for positions computed at run time; `rounding` is not used."""
    extent, rank, dtype = g.shape(x)[axis], g.rank(x), g.dtype(x)
    at = _clipped(g, at, extent)
    low = g.emit("floor", at)
    count = g.shape(at)[0]
    t = g.reshape(g.emit("sub", at, low), [count if i == axis else 1 for i in range(rank)])
    rest = g.emit("sub", g.const(1, "float32"), t)
    high = g.emit("add", low, g.const(1, "float32"))
    a, b = (g.emit("take", x, _inside(g, v, extent), axis=axis) for v in (low, high))
    left = g.emit("mul", a, g.cast(rest, dtype))
    return g.emit("add", left, g.emit("mul", b, g.cast(t, dtype)))


def _positions(old: int, new: int, factor: float | None, mode: str) -> np.ndarray:
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
    raise unsupported(f"coordinate_transformation_mode={mode!r}")


def _pick(g: Context, x: Val, axis: int, at: np.ndarray, rounding: str) -> Val:
    match rounding:
        case "floor":
            index = np.floor(at)
        case "ceil":
            index = np.ceil(at)
        case "round_prefer_floor":
            index = np.ceil(at - 0.5)
        case "round_prefer_ceil":
            index = np.floor(at + 0.5)
        case _:
            raise malformed(f"nearest_mode={rounding!r}")
    old = int_value(g.shape(x)[axis]) or 1
    return g.emit("take", x, g.const(np.clip(index, 0, old - 1), "int64"), axis=axis)


def _blend(g: Context, x: Val, axis: int, at: np.ndarray) -> Val:
    """x[low] * (1 - t) + x[low + 1] * t, with low = floor(at) and t = at - low."""
    old, rank, dtype = int_value(g.shape(x)[axis]) or 1, g.rank(x), g.dtype(x)
    at = np.clip(at, 0, old - 1)
    low = np.floor(at)
    t = (at - low).reshape([-1 if i == axis else 1 for i in range(rank)])
    a = g.emit("take", x, g.const(low, "int64"), axis=axis)
    b = g.emit("take", x, g.const(np.minimum(low + 1, old - 1), "int64"), axis=axis)
    left = g.emit("mul", a, g.const(1 - t, dtype))
    return g.emit("add", left, g.emit("mul", b, g.const(t, dtype)))


TABLE: Table = {
    "Upsample": {7: upsample_7, 9: upsample_9},
    "Resize": {10: resize_10, 11: resize_11},
}
