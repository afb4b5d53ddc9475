"""Images of one row, which convolutions along one dimension compute, stay images; part of
`canonicalize`.

    relu(reshape(conv2d(x, w) [N, C, 1, W], [N, C, W]))  ->  reshape(relu(conv2d(x, w)), [N, C, W])

The reshape moves on until it meets that of the next convolution, or a reader that needs it. What is
between two convolutions is then fused with the first, and in the layout of images.
"""

from __future__ import annotations

from tensorkiln import ops
from tensorkiln.ir.expr import as_expr, int_value
from tensorkiln.ir.relax import Call, Constant, TensorType, Value, constant
from tensorkiln.ops.rules import same_extent
from tensorkiln.transform.rewriting.rewrite import Match, Rule

_WINDOWS = ("conv2d", "conv2d_transpose", "max_pool2d", "avg_pool2d")
_POINTWISE = sorted(n for n, op in ops.OPS.items() if op.pattern in ("elementwise", "broadcast"))
# Operators between one of _WINDOWS and a reshape, at most.
_DEPTH = 32


def _image(m: Match, v: Value) -> Value | None:
    """The image of one row that `v` [N, C, W] is a reshape of; None if it is not such a reshape."""
    call = m.definition(v)
    if call is None or call.op != "reshape":
        return None
    z = call.args[0]
    new, old = v.type, z.type
    assert isinstance(new, TensorType) and isinstance(old, TensorType)
    if old.ndim != 4 or new.ndim != 3 or int_value(old.shape[2]) != 1:
        return None
    row_shape = (*old.shape[:2], old.shape[3])
    same_shape = all(same_extent(a, b) for a, b in zip(row_shape, new.shape, strict=True))
    return z if same_shape and _of_windows(m, z) else None


def _of_windows(m: Match, z: Value) -> bool:
    """Whether `z` is computed by an operator on images, perhaps followed by elementwise
    operators."""
    for _ in range(_DEPTH):
        call = m.definition(z)
        if call is None or call.op in _WINDOWS:
            return call is not None
        if call.op not in _POINTWISE and call.op not in ("batch_norm", "concat"):
            return False
        images = [a for a in call.args if isinstance(a.type, TensorType) and a.type.ndim == 4]
        images = [a for a in images if not isinstance(a, Constant)]
        if not images:
            return False
        z = images[0]
    return False


def _as_image(m: Match, v: Value) -> Value | None:
    """`v`, an operand of an elementwise operator, with a dimension of 1 before the last."""
    t = v.type
    assert isinstance(t, TensorType)
    if t.ndim < 2:
        return v
    shape = (*t.shape[:-1], as_expr(1), t.shape[-1])
    if isinstance(v, Constant):
        return constant(v.array.reshape([int_value(d) or 0 for d in shape]), v.name)
    return m.emit("reshape", v, shape=shape)


def _pointwise(m: Match) -> Value | None:
    """f(reshape(z), v) -> reshape(f(z, reshape(v)))"""
    call: Call = m.call
    if m.type.ndim != 3:
        return None
    images = [_image(m, a) for a in call.args]
    if not any(z is not None for z in images):
        return None
    args = [_as_image(m, a) if z is None else z for a, z in zip(call.args, images, strict=True)]
    return _back(m, m.emit(call.op, *args, **call.attrs))  # type: ignore[arg-type]


def _normed(m: Match) -> Value | None:
    """batch_norm(reshape(z)) -> reshape(batch_norm(z))"""
    z = _image(m, m["x"])
    return None if z is None else _back(m, m.emit("batch_norm", z, *m.rest("r"), **m.call.attrs))


def _joined(m: Match) -> Value | None:
    """concat(reshape(y), reshape(z)) -> reshape(concat(y, z)), of channels"""
    images = [_image(m, a) for a in m.call.args]
    if m.type.ndim != 3 or m.attr("a") % 3 != 1 or any(z is None for z in images):
        return None
    return _back(m, m.emit("concat", *images, axis=1))  # type: ignore[arg-type]


def _reduced(m: Match) -> Value | None:
    """max(reshape(z), axes=(2,)) -> max(z, axes=(2, 3))"""
    z = _image(m, m["x"])
    if z is None or tuple(a % 3 for a in m.attr("a")) != (2,):
        return None
    reduction = m.emit(m.call.op, z, **{**m.call.attrs, "axes": (2, 3)})
    return _back(m, reduction) if m.attr("k") else reduction


def _back(m: Match, y: Value) -> Value:
    return m.emit("reshape", y, shape=m.type.shape)


ROWS: tuple[Rule, ...] = (
    *(Rule(f"{name}(*xs)", _pointwise) for name in _POINTWISE),
    Rule("batch_norm(x, *r)", _normed),
    Rule("concat(*xs, axis=a)", _joined),
    *(Rule(f"{name}(x, axes=a, keepdims=k)", _reduced) for name in ("max", "min", "sum", "mean")),
)
