"""Recognise attention that exporters write as its formula."""

from __future__ import annotations

import math

import numpy as np

from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import as_expr
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Value, constant
from tensorkiln.transform.relax.canonical_movement import composed, is_identity
from tensorkiln.transform.relax.causal_mask import hides, is_causal
from tensorkiln.transform.rewriting.graph import same_type, tensor_type
from tensorkiln.transform.rewriting.pattern import uniform
from tensorkiln.transform.rewriting.rewrite import Match, Rule, rewrite


def match_attention(mod: IRModule) -> IRModule:
    """Replace softmax(q k^T * scale + mask) v by attention.

    The scale may be on q, on k, on both or on the scores; the mask may be added, selected with
    `where`, or absent; a causal mask becomes `causal=True`. A row that sees no key gives NaN, as
    in the formula (`unseen="nan"`), unless the formula replaces NaN weights by 0
    (`unseen="zero"`).

    Before:  s = softmax(add(mul(matmul(q, transpose(k)), 0.125), mask)); y = matmul(s, v)
    After:   y = attention(q, k, v, mask, scale=0.125, causal=False, unseen="nan")
    Needs:   canonicalize (matmul without flags), fold_constants (mask constants).
    """
    return rewrite(mod, RULES)


# --- scale ---------------------------------------------------------------------------------------


def _without_scale(m: Match, v: Value) -> tuple[Value, float]:
    """(x, c) with v = x * c, where c is the product of the scalar factors of v; looks through
    transposes."""
    call = m.definition(v)
    if call is None:
        return v, 1.0
    if call.op in ("mul", "div"):
        pairs = [call.args, call.args[::-1]] if call.op == "mul" else [call.args]
        for x, c in pairs:
            number = uniform(c)
            if number and math.isfinite(number) and same_type(x.type, v.type):
                inner, factor = _without_scale(m, x)
                return inner, factor * (number if call.op == "mul" else 1 / number)
    if call.op == "transpose":
        inner, scale = _without_scale(m, call.args[0])
        if inner is not call.args[0]:
            return m.emit("transpose", inner, axes=call.attrs.axes, span=call.span), scale
    return v, 1.0


# --- mask ----------------------------------------------------------------------------------------


def _selected(m: Match, cond: Value, keep: bool) -> Value | None:
    """The mask operand for where(cond, scores, F) if `keep`, else for where(cond, F, scores).

    It is bool for F = -inf, and for another very negative F a float mask of 0 and F. None if F
    does not hide scores.
    """
    fill, row = uniform(m["F"]), m.type.dtype.row
    if fill is None or not row.in_numpy or not hides(fill, np.dtype(row.name)):
        return None
    if math.isinf(fill):
        return cond if keep else m.emit("logical_not", cond)
    if row.is_half:
        return None  # its lowest number is small: added to a score, it gives another number or -inf
    # A row that is filled with F gives the mean of all values, and so does one to which F is added.
    zero, low = constant(np.zeros((), row.name)), constant(np.asarray(fill, row.name))
    return m.emit("where", cond, *((zero, low) if keep else (low, zero)))


# --- the whole formula ---------------------------------------------------------------------------


def _single_use(m: Match) -> bool:
    """Whether the scores and the weights after softmax have no reader outside of the match."""
    guarded = "w" in m.captures
    weights = m["w"] if guarded else m["p"]
    uses = 2 if guarded else 1
    return m.use_count(weights) <= uses and m.once("p", "s")


def _attention(m: Match) -> Value | None:
    ndim = m.tensor("q").ndim
    if m.attr("a") not in (-1, ndim - 1) or not 2 <= ndim <= 4 or not _single_use(m):
        return None
    scale = 1.0
    for name in ("C", "D"):
        if name in m.captures:
            number = uniform(m[name])
            if not number or not math.isfinite(number):
                return None
            scale *= number if name == "C" else 1 / number
    q, on_q = _without_scale(m, m["q"])
    kt, on_k = _without_scale(m, m["kt"])
    masked, mask = _mask(m)
    if masked and mask is None:
        return None
    try:
        return _emit(m, q, kt, mask, scale * on_q * on_k)
    except UserError:
        # Attention does not take these operands, such as batch dimensions that broadcast.
        return None


def _mask(m: Match) -> tuple[bool, Value | None]:
    if "mask" in m.captures:
        return True, m["mask"]
    if "keep" in m.captures:
        return True, _selected(m, m["keep"], keep=True)
    if "drop" in m.captures:
        return True, _selected(m, m["drop"], keep=False)
    return False, None


def _emit(m: Match, q: Value, kt: Value, mask: Value | None, scale: float) -> Value:
    ndim = m.tensor("q").ndim
    maker = m.definition(kt)
    axes = (*range(ndim - 2), ndim - 1, ndim - 2)
    k = m.emit("transpose", kt, axes=axes, span=maker.span if maker else "")
    shape = m.tensor("s").shape
    causal = mask is not None and is_causal(mask, shape[-2:], m.lookup)
    heads = [_four(m, v) for v in (q, k, m["v"])]
    masks = [] if mask is None or causal else [mask]
    unseen = "zero" if "w" in m.captures else "nan"
    y = m.emit("attention", *heads, *masks, scale=scale, causal=causal, unseen=unseen)
    return y if ndim == 4 else m.emit("reshape", y, shape=m.type.shape)


def _four(m: Match, v: Value) -> Value:
    """`v` with leading dimensions of extent 1 added up to four dimensions."""
    shape = tensor_type(v).shape
    lead = (as_expr(1),) * (4 - len(shape))
    return m.emit("reshape", v, shape=(*lead, *shape)) if lead else v


# --- simplify the masks of attention -------------------------------------------------------------


def _causal(m: Match) -> Value | None:
    scores = (m.tensor("q").shape[2], m.tensor("k").shape[2])
    if not is_causal(m["mask"], scores, m.lookup):
        return None
    return m.emit("attention", m["q"], m["k"], m["v"], **{**m.call.attrs, "causal": True})


def _hidden(m: Match, keep: Value) -> Value | None:
    fill = uniform(m["F"])
    if fill is None or not math.isinf(fill) or fill > 0:
        return None
    return m.emit("attention", m["q"], m["k"], m["v"], keep, **m.call.attrs)


_SCORES = "(s := matmul(q, kt))"
_SCALED = f"({_SCORES} | mul({_SCORES}, C) | div({_SCORES}, D))"
_MASKED = (
    f"({_SCALED} | add({_SCALED}, mask) | where(keep, {_SCALED}, F) | where(drop, F, {_SCALED}))"
)
_WEIGHTS = f"softmax({_MASKED}, axis=a)"
RULES: tuple[Rule, ...] = (
    Rule(f"matmul(p := {_WEIGHTS}, v)", _attention),
    Rule(f"matmul(p := where(isnan(w := {_WEIGHTS}), 0, w), v)", _attention),
    Rule("attention(q, k, v, mask, scale=c)", _causal),
    Rule(
        "attention(q, k, v, broadcast_to(mask), scale=c, causal=d, unseen=u)",
        "attention(q, k, v, mask, scale=c, causal=d, unseen=u)",
    ),
    Rule("attention(q, k, v, where(keep, 0, F))", lambda m: _hidden(m, m["keep"])),
    Rule(
        "attention(q, k, v, where(drop, F, 0))",
        lambda m: _hidden(m, m.emit("logical_not", m["drop"])),
    ),
    Rule("transpose(transpose(x, axes=p), axes=q)", composed),
    Rule("transpose(x, axes=p)", "x", is_identity),
)
