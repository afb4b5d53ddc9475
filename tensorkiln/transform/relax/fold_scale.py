"""Fold per-channel multiplications and additions into the weights of layers.

With vectors s and t of one number per output channel, and likewise for linear:

    conv(x, W, b) * s + t = conv(x, W*s, b*s + t)

The new weights are computed in float64 and rounded once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Constant, Value, constant
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def fold_scale(mod: IRModule) -> IRModule:
    """Fold batch norms, scales and biases into convolutions and linear layers; replace the
    remaining batch norms by a multiplication and an addition.

    Before:  y = conv2d(x, W); z = batch_norm(y, G, B, M, V); u = mul(z, S)
    After:   u = conv2d(x, W1, B1)
    Needs:   match_linear, canonicalize (constants are added, not subtracted).
    """
    return rewrite(rewrite(mod, FOLD), SPLIT)


_LAYERS = ("conv2d", "conv2d_transpose", "linear")
_LAYER = f"y := ({' | '.join(f'{op}(*xs)' for op in _LAYERS)})"

# --- vectors of one number per channel -----------------------------------------------------------


def _channel_axis(call: Call, ndim: int) -> int:
    return 1 if call.op in ("conv2d", "conv2d_transpose", "batch_norm") else ndim - 1


def _per_channel(c: np.ndarray, axis: int, ndim: int, channels: int) -> np.ndarray | None:
    """A floating constant that broadcasts with a tensor of `ndim` dimensions, as a float64 vector
    of `channels` elements along `axis`; None if it varies along another dimension."""
    if c.ndim > ndim or c.dtype.kind != "f":
        return None
    shape = (1,) * (ndim - c.ndim) + c.shape
    if any(d != 1 for i, d in enumerate(shape) if i != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(c.reshape(shape[axis]).astype(np.float64), (channels,))


def _norm_vectors(match: Match) -> tuple[np.ndarray, np.ndarray]:
    """(s, t), in float64, such that the matched batch norm is x*s + t."""
    g, b, m, v = (match.array(n).astype(np.float64) for n in "GBMV")
    with np.errstate(all="ignore"):
        s = g / np.sqrt(v + match.attr("e"))
        return s, b - m * s


# --- fold into the layer before ------------------------------------------------------------------


def _rounded(array: np.ndarray, like: Constant) -> Constant | None:
    """An array of float64 as a constant of the type and name of `like`; None if one of its numbers
    is too large for the type."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(array.astype(like.array.dtype))
    if np.isfinite(array).all() and not np.isfinite(rounded).all():
        return None
    return constant(rounded, like.name)


def _of_outputs(layer: Call, w: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """A number for each output channel, as what broadcasts with the layer's weights."""
    if layer.op == "conv2d":
        return scale[:, None, None, None]
    if layer.op == "conv2d_transpose":  # [inputs, outputs of a group, height, width]
        groups = layer.attrs.groups
        return scale.reshape(groups, -1).repeat(w.shape[0] // groups, 0)[:, :, None, None]
    return scale


def _affine(
    m: Match, scale: np.ndarray | None, shift: np.ndarray | None, name: str = ""
) -> Value | None:
    """The layer that computes y * scale + shift (float64 vectors, or None), from the layer `y`.

    A bias that the layer did not have is called `name`. None if its weights are not constant, not
    floating, already packed, or would be too large for their type.
    """
    layer = m.producer("y")
    x, *params = layer.args
    constants = [c for c in params if isinstance(c, Constant) and c.type.layout is None]
    if len(constants) < len(params) or constants[0].array.dtype.kind != "f":
        return None
    w, *bias = constants
    b = bias[0].array.astype(np.float64) if bias else np.zeros(())
    folded: list[Constant | None] = [w]
    if scale is not None:
        folded = [_rounded(w.array * _of_outputs(layer, w.array, scale), w)]
        b = b * scale
    if shift is not None:
        b = b + shift
    if bias or shift is not None:
        folded.append(_rounded(b, replace(w, name=bias[0].name if bias else name)))
    args = [v for v in folded if v is not None]
    if len(args) < len(folded):
        return None
    return m.emit(layer.op, x, *args, span=layer.span, **layer.attrs)


def _vector(m: Match, name: str = "C") -> np.ndarray | None:
    """The constant as a vector over the channels of `y`; None if `y` has other uses, or if the
    constant is not per channel."""
    t = m.tensor("y")
    axis = _channel_axis(m.producer("y"), t.ndim)
    channels = int_value(t.shape[axis])
    if channels is None or not m.once("y"):
        return None
    return _per_channel(m.array(name), axis, t.ndim, channels)


def _times(m: Match) -> Value | None:
    s = _vector(m)
    return None if s is None else _affine(m, s, None)


def _over(m: Match) -> Value | None:
    s = _vector(m)
    return None if s is None or not s.all() else _affine(m, 1 / s, None)


def _plus(m: Match) -> Value | None:
    t = _vector(m)
    return None if t is None else _affine(m, None, t, m.constant("C").name)


def _normed(m: Match) -> Value | None:
    # Channels are dimension 1 in a batch norm, but the last dimension in a linear layer.
    if not m.once("y") or _channel_axis(m.producer("y"), m.type.ndim) != 1:
        return None
    s, t = _norm_vectors(m)
    return _affine(m, s, t, m.constant("B").name)


# --- fold into the batch norm before -------------------------------------------------------------


def _norm_times(m: Match) -> Value | None:
    s, norm = _vector(m), m.producer("y")
    if s is None:
        return None
    gamma, beta = (_rounded(m.array(n) * s, m.constant(n)) for n in "GB")
    if gamma is None or beta is None:
        return None
    args = (m["x"], gamma, beta, m["M"], m["V"])
    return m.emit("batch_norm", *args, span=norm.span, **norm.attrs)


def _norm_plus(m: Match) -> Value | None:
    t, norm, beta = _vector(m), m.producer("y"), m.constant("B")
    if t is None:
        return None
    moved = _rounded(beta.array + t, beta)
    if moved is None:
        return None
    args = (m["x"], m["G"], moved, m["M"], m["V"])
    return m.emit("batch_norm", *args, span=norm.span, **norm.attrs)


# --- move before a transpose, or fold into the layer after ---------------------------------------


def _before_transpose(m: Match) -> Value | None:
    """f(transpose(y), C) -> transpose(f(y, C')) if `y` is a layer into which C' can be folded."""
    layer, axes, t = m.definition(m["y"]), m.attr("p"), m.tensor("y")
    if layer is None or layer.op not in _LAYERS or not m.once("y", "z"):
        return None
    axis = _channel_axis(layer, t.ndim)
    channels = int_value(t.shape[axis])
    if channels is None:
        return None
    c = _per_channel(m.array("C"), axes.index(axis), t.ndim, channels)
    if c is None:
        return None
    shape = (channels, *(1 for _ in range(t.ndim - 1 - axis)))
    vector = constant(c.astype(m.array("C").dtype).reshape(shape))
    y = m.emit(m.call.op, m["y"], vector)
    return m.emit("transpose", y, axes=axes)


def _into_linear(m: Match) -> Value | None:
    """linear(x*s, W) = linear(x, diag(s) W)"""
    w = m.constant("W")
    if not m.once("y") or w.array.dtype.kind != "f":
        return None
    s = _per_channel(m.array("C"), m.tensor("y").ndim - 1, m.tensor("y").ndim, w.array.shape[0])
    if s is None:
        return None
    scaled = _rounded(w.array * s[:, None], w)
    return None if scaled is None else m.emit("linear", m["x"], scaled, *m.rest("bias"))


def _into_conv(m: Match) -> Value | None:
    """conv(x*s, W) = conv(x, W*s): zero padding times s is zero padding."""
    w, groups = m.constant("W"), m.attr("g")
    if not m.once("y") or w.array.dtype.kind != "f":
        return None
    outputs, inputs = w.array.shape[:2]
    s = _per_channel(m.array("C"), 1, 4, inputs * groups)
    if s is None or not np.isfinite(s).all():
        return None
    # In a grouped convolution, output o reads only the inputs of its group.
    mine = s.reshape(groups, 1, inputs).repeat(outputs // groups, 1)
    scaled = _rounded(w.array * mine.reshape(outputs, inputs, 1, 1), w)
    if scaled is None:
        return None
    return m.emit("conv2d", m["x"], scaled, *m.rest("bias"), **m.call.attrs)


# --- remaining batch norms -----------------------------------------------------------------------


def _split_norm(m: Match) -> Value:
    """batch_norm(x) -> x*s + t, or of 16 bits (x - mean)*s + bias in float32: there s may be too
    large for the type, and t so large that nothing is left of the bias."""
    s, t = _norm_vectors(m)
    shape = (-1, *(1 for _ in range(m.type.ndim - 2)))
    if m.type.dtype.is_half:
        mean, scale, bias = (
            constant(v.astype(np.float32).reshape(shape), m.constant(n).name)
            for n, v in (("M", m.array("M")), ("G", s), ("B", m.array("B")))
        )
        difference = m.emit("sub", m.emit("cast", m["x"], dtype="float32"), mean)
        y = m.emit("add", m.emit("mul", difference, scale), bias)
        return m.emit("cast", y, dtype=m.type.dtype.name)
    scale, shift = (
        constant(v.astype(m.array("G").dtype).reshape(shape), m.constant(n).name)
        for n, v in (("G", s), ("B", t))
    )
    return m.emit("add", m.emit("mul", m["x"], scale), shift)


FOLD: tuple[Rule, ...] = (
    Rule(f"batch_norm({_LAYER}, G, B, M, V, eps=e)", _normed),
    Rule(f"mul({_LAYER}, C)", _times),
    Rule(f"div({_LAYER}, C)", _over),
    Rule(f"add({_LAYER}, C)", _plus),
    Rule("mul(y := batch_norm(x, G, B, M, V), C)", _norm_times),
    Rule("add(y := batch_norm(x, G, B, M, V), C)", _norm_plus),
    Rule("mul(z := transpose(y, axes=p), C)", _before_transpose),
    Rule("add(z := transpose(y, axes=p), C)", _before_transpose),
    Rule("linear(y := mul(x, C), W, *bias)", _into_linear),
    Rule("conv2d(y := mul(x, C), W, *bias, groups=g)", _into_conv),
)
SPLIT: tuple[Rule, ...] = (Rule("batch_norm(x, G, B, M, V, eps=e)", _split_norm),)
