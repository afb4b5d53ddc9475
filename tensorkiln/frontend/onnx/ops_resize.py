"""Resize and Upsample."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import elements, extents_of
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.resize import Factor, Sampling, resize
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Float, Floats, Int, Ints, Str, Table
from tensorkiln.ir.expr import Expr, IntImm, int_value
from tensorkiln.ir.relax import Constant, RVar


def upsample_7(g: Context, x: Val, *, scales: Floats, mode: Str = "nearest") -> Val:
    """Upsample with its scales as an attribute."""
    return _upsampled(g, x, list(scales), mode)


def upsample_9(g: Context, x: Val, scales: Val, *, mode: Str = "nearest") -> Val:
    """Upsample with its scales as an operand."""
    factors = _factors(g, scales)
    return _upsampled(g, x, factors, mode)


def _factors(g: Context, scales: Val | None) -> list[Factor]:
    """The scale of each dimension, as a tensor [1] of float32 where data decides it."""
    parts = [] if scales is None else elements(g, scales, "scales")
    return [
        float(v.array.item()) if isinstance(v, Constant) else _run_time_factor(g, v) for v in parts
    ]


def _run_time_factor(g: Context, x: Val) -> RVar:
    variable = g.value(x)
    assert isinstance(variable, RVar)
    return variable


def _upsampled(g: Context, x: Val, scales: Sequence[Factor], mode: str) -> Val:
    if mode not in ("nearest", "linear"):
        raise malformed(f"mode={mode!r}; expected 'nearest' or 'linear'")
    return resize(g, x, range(g.rank(x)), scales, None, Sampling(mode, "asymmetric", "floor"))


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
    """Resize by `scales` or to `sizes`, which may be symbolic but for `antialias`, for
    `tf_crop_and_resize`, and where the aspect ratio is kept."""
    dimensions = tuple(range(g.rank(x))) if axes is None else g.axes(axes, g.rank(x))
    factors = _factors(g, scales)
    new = () if sizes is None or factors else extents_of(g, sizes, "sizes")
    if not factors and not new:
        raise malformed("either scales or sizes must be given")
    crop = coordinate_transformation_mode == "tf_crop_and_resize"
    if crop and roi is None:
        raise malformed("tf_crop_and_resize needs roi")
    box = g.array(roi, "roi").ravel().tolist() if crop and roi is not None else None
    if box is not None and len(box) != 2 * len(dimensions):
        raise malformed(f"roi has {len(box)} entries for {len(dimensions)} dimensions")
    if antialias and mode == "nearest":
        raise malformed("antialias=1 with mode='nearest'")
    sampling = Sampling(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
        extrapolation_value,
        box,
    )
    if keep_aspect_ratio_policy != "stretch" and not factors:
        factors, new = _in_proportion(g, x, dimensions, new, keep_aspect_ratio_policy)
    return resize(g, x, dimensions, factors or None, new or None, sampling)


def _in_proportion(
    g: Context, x: Val, axes: Sequence[int], sizes: Sequence[Expr], policy: str
) -> tuple[list[Factor], tuple[Expr, ...]]:
    """The scale of all dimensions with which none is larger than `sizes`, or none smaller, and the
    extents that they get."""
    if policy not in ("not_larger", "not_smaller"):
        choices = "'stretch', 'not_larger' or 'not_smaller'"
        raise malformed(f"keep_aspect_ratio_policy={policy!r}; expected {choices}")
    old = [int_value(g.shape(x)[a]) for a in axes]
    new = [int_value(d) for d in sizes]
    ratios = [n / o for n, o in zip(new, old, strict=False) if n and o]
    if len(ratios) != len(axes):
        return _computed_proportion(g, x, axes, sizes, policy)
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [scale] * len(axes), tuple(IntImm(int(scale * (n or 0) + 0.5)) for n in old)


def _computed_proportion(
    g: Context, x: Val, axes: Sequence[int], sizes: Sequence[Expr], policy: str
) -> tuple[list[Factor], tuple[Expr, ...]]:
    """`_in_proportion` of dimensions that are known when the function runs."""
    if len(sizes) != len(axes):
        raise malformed(f"{len(sizes)} sizes for {len(axes)} dimensions")
    extents = g.cast(g.shape_value([g.shape(x)[a] for a in axes]), "float32")
    ratios = g.emit("div", g.cast(g.shape_value(sizes), "float32"), extents)
    scale = g.emit("min" if policy == "not_larger" else "max", ratios, axes=(0,), keepdims=True)
    new = g.emit("floor", g.emit("add", g.emit("mul", extents, scale), g.const(0.5, "float32")))
    return [_run_time_factor(g, scale)] * len(axes), extents_of(g, g.cast(new, "int64"), "sizes")


TABLE: Table = {
    "Upsample": {7: upsample_7, 9: upsample_9},
    "Resize": {10: resize_10, 11: resize_11},
}
