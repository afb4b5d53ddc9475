"""Resize and Upsample: picks (nearest) and blends of two picks (linear), one axis at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.onnx.context import Context
from tensorkiln.frontend.onnx.dispatch import Float, Floats, Int, Ints, Str, Table
from tensorkiln.frontend.onnx.issues import malformed, unsupported
from tensorkiln.frontend.onnx.known import Val
from tensorkiln.ir.expr import IntImm, int_value


def upsample_7(g: Context, x: Val, *, scales: Floats, mode: Str = "nearest") -> Val:
    """Scales as an attribute."""
    return _resize(g, x, range(g.rank(x)), list(scales), None, mode, "asymmetric", "floor")


def upsample_9(g: Context, x: Val, scales: Val, *, mode: Str = "nearest") -> Val:
    """Scales as an operand."""
    factors = g.array(scales, "scales").ravel().tolist()
    return _resize(g, x, range(g.rank(x)), factors, None, mode, "asymmetric", "floor")


def resize_10(g: Context, x: Val, scales: Val, *, mode: Str = "nearest") -> Val:
    """Means the same as Upsample of opset 9."""
    return upsample_9(g, x, scales, mode=mode)


def resize_11(
    g: Context, x: Val, roi: Val | None = None, scales: Val | None = None,
    sizes: Val | None = None, *, antialias: Int = 0, axes: Ints | None = None,
    coordinate_transformation_mode: Str = "half_pixel", cubic_coeff_a: Float = -0.75,
    exclude_outside: Int = 0, extrapolation_value: Float = 0.0,
    keep_aspect_ratio_policy: Str = "stretch", mode: Str = "nearest",
    nearest_mode: Str = "round_prefer_floor",
) -> Val:  # fmt: skip
    """By scales or to sizes, with the coordinate modes of the standard but crop."""
    if antialias:
        raise unsupported("antialias=1")
    if keep_aspect_ratio_policy != "stretch":
        raise unsupported(f"keep_aspect_ratio_policy={keep_aspect_ratio_policy!r}")
    where = range(g.rank(x)) if axes is None else g.axes(axes, g.rank(x))
    factors = [] if scales is None else g.array(scales, "scales").ravel().tolist()
    new = () if sizes is None or factors else g.ints(sizes, "sizes")
    if not factors and not new:
        raise malformed("either scales or sizes must be given")
    return _resize(
        g, x, where, factors or None, new or None, mode, coordinate_transformation_mode,
        nearest_mode,
    )  # fmt: skip


def _resize(
    g: Context, x: Val, axes: Sequence[int], scales: Sequence[float] | None,
    sizes: Sequence[int] | None, mode: str, coordinates: str, rounding: str,
) -> Val:  # fmt: skip
    if mode not in ("nearest", "linear"):
        raise unsupported(f"mode={mode!r}", "'nearest' and 'linear' are supported")
    given = scales if scales is not None else sizes
    if given is None or len(given) != len(axes) or any(v <= 0 for v in given):
        raise malformed(f"{list(given or ())} for {len(axes)} dimensions")
    for k, axis in enumerate(axes):
        old = int_value(g.shape(x)[axis])
        scale = scales[k] if scales is not None else None
        if scale == 1 or (sizes is not None and sizes[k] == old):
            continue
        if old is None:
            x = _repeat(g, x, axis, scale, mode)
            continue
        new = sizes[k] if sizes is not None else math.floor(old * (scale or 1))
        at = _positions(old, new, scale if scale is not None else new / old, coordinates)
        x = _pick(g, x, axis, at, rounding) if mode == "nearest" else _blend(g, x, axis, at)
    return x


def _repeat(g: Context, x: Val, axis: int, scale: float | None, mode: str) -> Val:
    """A symbolic dimension: every element `scale` times, which all coordinate modes agree on."""
    if scale is None or scale != int(scale) or mode != "nearest":
        raise unsupported(
            f"dimension {axis} is symbolic", "nearest by a whole factor works, or freeze it"
        )
    dims, k = g.shape(x), int(scale)
    wide = g.reshape(x, (*dims[: axis + 1], 1, *dims[axis + 1 :]))
    shape = (*dims[: axis + 1], IntImm(k), *dims[axis + 1 :])
    many = g.emit("broadcast_to", wide, shape=shape)
    return g.reshape(many, (*dims[:axis], dims[axis] * k, *dims[axis + 1 :]))


def _positions(old: int, new: int, factor: float, mode: str) -> np.ndarray:
    """The (fractional) source position of every output element."""
    # In float32, as other runtimes do: ties of `floor` and `round` fall the same way.
    i, scale = np.arange(new, dtype=np.float32), np.float32(factor)
    match mode:
        case "asymmetric":
            return i / scale
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if new > 1 else np.zeros(new)
        case "align_corners":
            # The standard takes the unrounded length when a scale is given.
            last = scale * old - 1
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
    """x[floor] * (1 - t) + x[floor + 1] * t"""
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
