"""The extents that operands of ONNX's operators share, where the standard lets none broadcast.

The importers of these operators compute by others that broadcast, so that an extent of 1 would
pass for any other. Here the standard's equalities are stated once for each operator: where extents
are not known to be equal, they become conditions of the call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from tensorkiln.frontend.graph.agreement import common_extent
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.proto import AttributeProto
from tensorkiln.ir.expr import Expr, as_expr, int_value

# The extents of an operand, by words: a name, which stands for one extent wherever the form has it,
# a multiple of one (`4*h`), one less (`k-1`), a number, or `?` for any. `*` is an operand of any
# shape.
Form = Sequence[str]
Attributes = Mapping[str, int | str]
# From the ranks of operands (None: left out) and attributes to a form; None if no form fits.
Rule = Callable[[Sequence[int | None], Attributes], Form | None]

_WORD = re.compile(r"(?:(\d+)\*)?([a-z]\w*)(?:-(\d+))?")


def _fixed(*form: str) -> Rule:
    return lambda ranks, a: form


def _same_shape(ranks: Sequence[int | None], a: Attributes) -> Form:
    return [" ".join(f"d{k}" for k in range(rank or 0)) for rank in ranks]


def _tensor_scatter(ranks: Sequence[int | None], a: Attributes) -> Form | None:
    rank = ranks[0] or 0
    axis = int(a.get("axis", -2)) % max(rank, 1)
    extents = [f"d{k}" for k in range(rank)]
    update = [*extents[:axis], "steps", *extents[axis + 1 :]] if rank else []
    return [" ".join(extents), " ".join(update), "d0"]


def _rotary(ranks: Sequence[int | None], a: Attributes) -> Form:
    depth = "d" if a.get("rotary_embedding_dim") else "2*c"
    x = "b s w" if ranks[0] == 3 else f"b h s {depth}"
    if len(ranks) > 3 and ranks[3] is not None:
        return [x, "p c", "p c", "b s"]
    return [x, "b s c", "b s c"]


def _attention(ranks: Sequence[int | None], a: Attributes) -> Form:
    flat = ranks[0] == 3
    forms = ["b s w", "b t k", "b t v"] if flat else ["b h s d", "b g t d", "b g t e"]
    past = ["b ? p ?", "b ? p ?"] if flat else ["b g p d", "b g p e"]
    return [*forms, "*", *past, "b"]


def _linear_attention(ranks: Sequence[int | None], a: Attributes) -> Form:
    heads = a.get("kv_num_heads", "?")
    state = f"b {heads} i j"
    return ["b t ?", f"b t {heads}*i", f"b t {heads}*j", state, "b t ?", "b t ?"]


def _with_size(words: str, size: int) -> str:
    """The words of an operand with the number for `h`."""
    return re.sub(r"(?:(\d+)\*)?h", lambda m: str(int(m[1] or 1) * size), words)


def _recurrent(gates: int, peepholes: bool = False) -> Rule:
    def rule(ranks: Sequence[int | None], a: Attributes) -> Form:
        ways = 2 if a.get("direction") == "bidirectional" else 1
        x, state = ("b t i", f"b {ways} h") if a.get("layout") else ("t b i", f"{ways} b h")
        weights = [f"{ways} {gates}*h i", f"{ways} {gates}*h h", f"{ways} {2 * gates}*h"]
        form = [x, *weights, "b", state, *([state, f"{ways} 3*h"] if peepholes else [])]
        size = a.get("hidden_size")
        return form if size is None else [_with_size(words, int(size)) for words in form]

    return rule


def _channels(ranks: Sequence[int | None], a: Attributes) -> Form:
    return [" ".join(["n", "c", *"?" * ((ranks[0] or 2) - 2)]), "c", "c"]


def _deform_conv(ranks: Sequence[int | None], a: Attributes) -> Form:
    return [f"n {a.get('group', 1)}*k ? ?", "m k ? ?", "*", "m"]


def _square(ranks: Sequence[int | None], a: Attributes) -> Form:
    return [" ".join([*"?" * ((ranks[0] or 2) - 2), "m", "m"])]


FORMS: dict[str, Rule] = {
    "AffineGrid": _fixed("n q-2 q-1", "q = n"),
    "Attention": _attention,
    "CausalConvWithState": _fixed("b c t", "c 1 k", "c", "b c k-1"),
    "DeformConv": _deform_conv,
    "Det": _square,
    "GRU": _recurrent(3),
    "InstanceNormalization": _channels,
    "LSTM": _recurrent(4, peepholes=True),
    "LinearAttention": _linear_attention,
    "NonMaxSuppression": _fixed("b s 4", "b c s"),
    "RNN": _recurrent(1),
    "RotaryEmbedding": _rotary,
    "SwiGLU": _same_shape,
    "TensorScatter": _tensor_scatter,
    "ai.onnx.preview.FlexAttention": _fixed("b h s d", "b g t d", "b g t e"),
}


def formed(
    g: Context, op: str, operands: Sequence[object], attributes: Sequence[AttributeProto]
) -> list[Any]:
    """The operands of a node with extents that the standard says are equal made equal, where they
    may be. NodeProblem if they are different numbers."""
    rule = FORMS.get(op)
    tensors = [x if isinstance(x, Val) else None for x in operands]
    if rule is None or not tensors or tensors[0] is None:
        return list(operands)
    form = rule([None if x is None else g.rank(x) for x in tensors], dict(_plain(attributes)))
    if form is None:
        return list(operands)
    rows = [
        (k, x, words.partition(" = "))
        for k, (x, words) in enumerate(zip(tensors, form, strict=False))
        if x is not None
    ]
    spelled = [(k, x, shape.split()) for k, x, (shape, _, _) in rows if shape != "*"]
    spelled = [(k, x, words) for k, x, words in spelled if g.rank(x) == len(words)]
    extents = _extents(
        [(g.shape(x), words) for _, x, words in spelled]
        + [(_elements(g, x), names.split()) for _, x, (_, _, names) in rows if names]
    )
    out = list(operands)
    for k, x, words in spelled:
        shape = [_extent(w, d, extents) for w, d in zip(words, g.shape(x), strict=True)]
        simple = [g.dims.simplify(d) for d in shape]
        out[k] = g.fitted(x, simple, f"operand {k}")
    return out


def _elements(g: Context, x: Val) -> Sequence[Expr]:
    array = g.expressions(x)
    return () if array is None or array.ndim != 1 else tuple(array)


def _plain(attributes: Sequence[AttributeProto]) -> Iterator[tuple[str, int | str]]:
    for a in attributes:
        if a.i is not None:
            yield a.name, a.i
        elif a.s is not None:
            yield a.name, bytes(a.s).decode(errors="replace")


def _extents(rows: Sequence[tuple[Sequence[Expr], Sequence[str]]]) -> dict[str, Expr]:
    """The extent of each name: the first that an operand has where a form has the name alone, or
    the number, if one of them is or follows from a multiple."""
    alone: dict[str, list[Expr]] = {}
    for shape, words in rows:
        for extent, word in zip(shape, words, strict=False):
            matched, number = _WORD.fullmatch(word), int_value(extent)
            if word.isidentifier():
                alone.setdefault(word, []).append(extent)
            elif matched is not None and number is not None:
                size, remainder = divmod(number + int(matched[3] or 0), int(matched[1] or 1))
                alone.setdefault(matched[2], []).extend([] if remainder else [as_expr(size)])
    return {name: reduce(common_extent, sizes) for name, sizes in alone.items() if sizes}


def _extent(word: str, operand_extent: Expr, extents: Mapping[str, Expr]) -> Expr:
    """The extent that a word stands for; an operand's own if nothing says what it is."""
    if word.isdigit():
        return as_expr(int(word))
    matched = _WORD.fullmatch(word)
    if matched is None or matched[2] not in extents:
        return operand_extent
    return extents[matched[2]] * int(matched[1] or 1) - int(matched[3] or 0)


__all__ = ["FORMS", "formed"]
