"""Keep signals between convolutions in the form in which these compute them."""

from __future__ import annotations

from tensorkiln import ops
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import TensorType, Value
from tensorkiln.ops.rules import same_extent
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def keep_images(mod: IRModule) -> IRModule:
    """Compute what follows a convolution of signals [N, C, L] on its images [N, C, 1, L].

    Before:  y = reshape(conv2d(x, w), (N, C, L)); z = reshape(relu(y), (N, C, 1, L))
    After:   y = conv2d(x, w); z = relu(y)
    Needs:   canonicalize, and patterns that match the signals' own operators.

    Importers reshape signals before and after each convolution. Between two, elementwise operators
    then become part of a kernel and keep its layout.
    """
    return rewrite(mod, RULES)


_POINTWISE = sorted(n for n, op in ops.OPS.items() if op.pattern in ("elementwise", "broadcast"))
_IMAGES = frozenset((*_POINTWISE, "conv2d", "max_pool2d", "avg_pool2d"))


def _image(m: Match, v: Value) -> Value | None:
    """The image whose only row a signal is, if a convolution or what follows one computes it."""
    view = m.definition(v)
    if view is None or view.op != "reshape":
        return None
    x, y = view.args[0].type, v.type
    made = m.definition(view.args[0])
    if made is None or made.op not in _IMAGES:
        return None
    if not isinstance(x, TensorType) or not isinstance(y, TensorType):
        return None
    if (x.ndim, y.ndim) != (4, 3) or int_value(x.shape[2]) != 1:
        return None
    kept = (*x.shape[:2], x.shape[3])
    return view.args[0] if all(map(same_extent, kept, y.shape)) else None


def _of_images(m: Match) -> Value | None:
    """f(reshape(x), y) -> reshape(f(x, reshape(y)))"""
    call, out = m.call, m.type
    if out.ndim != 3:
        return None
    images = [_image(m, a) for a in call.args]
    if not any(
        x is not None and all(map(same_extent, a.type.shape, out.shape))  # type: ignore[union-attr]
        for a, x in zip(call.args, images, strict=True)
    ):
        return None
    args = [x if x is not None else _with_row(m, a) for a, x in zip(call.args, images, strict=True)]
    y = m.emit(call.op, *args, **call.attrs)
    return m.emit("reshape", y, shape=out.shape)


def _with_row(m: Match, v: Value) -> Value:
    """An operand with a dimension of one row before its last one, if it has others."""
    t = v.type
    assert isinstance(t, TensorType)
    if t.ndim < 2:
        return v
    return m.emit("reshape", v, shape=(*t.shape[:-1], 1, t.shape[-1]))


RULES: tuple[Rule, ...] = (
    Rule("reshape(x)", "x"),
    Rule("reshape(reshape(x), shape=s)", "reshape(x, shape=s)"),
    *(Rule(f"{name}(*xs)", _of_images) for name in _POINTWISE if name != "identity"),
)
