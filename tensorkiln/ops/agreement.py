"""The shapes that operands of an operator must have, each given those of the others.

Type rules require them; an importer makes operands of other symbolic extents fit
(`ops/meeting.py`), so that a call decides whether they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from tensorkiln.ir.attrs import AttrValue
from tensorkiln.ir.expr import Expr, as_expr, int_value
from tensorkiln.ops.rules import Shape

# The extent that two extents are which must be equal; the first if it is not known that they are.
Meet = Callable[[Expr, Expr], Expr]
Attributes = Mapping[str, AttrValue]
Agreement = Callable[[Sequence[Shape], Attributes, Meet], list[Shape]]


def _matmul(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    lhs, rhs = map(list, shapes)
    k = -2 if a.get("transpose_a") and len(lhs) > 1 else -1
    rows = -1 if len(rhs) == 1 or a.get("transpose_b") else -2
    lhs[k] = rhs[rows] = meet(lhs[k], rhs[rows])
    return [tuple(lhs), tuple(rhs)]


def _linear(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    x, w, *bias = shapes
    depth = meet(x[-1], w[0])
    columns = reduce(meet, (b[0] for b in bias), w[1])
    return [(*x[:-1], depth), (depth, columns), *((columns,) for _ in bias)]


def _conv2d(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    x, w, *bias = shapes
    groups = a.get("groups", 1)
    assert isinstance(groups, int)
    outputs = reduce(meet, (b[0] for b in bias), w[0])
    # Of groups, the channels of all follow from those of one, unless the number of all is known.
    channels = meet(x[1], w[1]) if groups == 1 else meet(w[1] * groups, x[1])
    channel_count = int_value(channels)
    inner = channels if groups == 1 else w[1]
    if channel_count is not None and groups > 1 and channel_count % groups == 0:
        inner = meet(w[1], as_expr(channel_count // groups))
    return [(x[0], channels, *x[2:]), (outputs, inner, *w[2:]), *((outputs,) for _ in bias)]


def _conv2d_transpose(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    x, w, *bias = shapes
    channels = meet(x[1], w[0])
    return [(x[0], channels, *x[2:]), (channels, *w[1:]), *bias]


def _layer_norm(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    x, *params = shapes
    count = len(params[0])
    tail = [reduce(meet, column) for column in zip(x[len(x) - count :], *params, strict=True)]
    return [(*x[: len(x) - count], *tail), *(tuple(tail) for _ in params)]


def _batch_norm(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    x, *params = shapes
    channels = reduce(meet, (v[0] for v in params), x[1])
    return [(x[0], channels, *x[2:]), *((channels,) for _ in params)]


def _concat(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    axis, rank = a["axis"], len(shapes[0])
    assert isinstance(axis, int)
    extents = [reduce(meet, column) for column in zip(*shapes, strict=True)]
    return [tuple(s[d] if d == axis % rank else extents[d] for d in range(rank)) for s in shapes]


def _attention(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    q, k, v, *mask = shapes
    batch, heads = (reduce(meet, (t[d] for t in (q, k, v))) for d in (0, 1))
    keys, depth = meet(k[2], v[2]), meet(q[3], k[3])
    new = [(batch, heads, q[2], depth), (batch, heads, keys, depth), (batch, heads, keys, v[3])]
    return [*new, *mask]


def _scatter(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    x, places, updates = shapes
    many, width = meet(places[0], updates[0]), meet(x[1], updates[1])
    return [(x[0], width), (many,), (many, width)]


def _scaled(shapes: Sequence[Shape], a: Attributes, meet: Meet) -> list[Shape]:
    """Quantization: extents of scale and zero, other than 1, are those of the data."""
    x = list(shapes[0])
    for param in shapes[1:]:
        for back in range(1, min(len(x), len(param)) + 1):
            if param[-back] != as_expr(1):
                x[-back] = meet(x[-back], param[-back])
    return [
        tuple(x),
        *(
            tuple(e if e == as_expr(1) else x[k - len(s)] for k, e in enumerate(s))
            for s in shapes[1:]
        ),
    ]


AGREEMENTS: dict[str, Agreement] = {
    "attention": _attention,
    "batch_norm": _batch_norm,
    "concat": _concat,
    "conv2d": _conv2d,
    "conv2d_transpose": _conv2d_transpose,
    "dequantize": _scaled,
    "layer_norm": _layer_norm,
    "linear": _linear,
    "matmul": _matmul,
    "quantize": _scaled,
    "scatter": _scatter,
}
