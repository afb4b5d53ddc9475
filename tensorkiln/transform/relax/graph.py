"""Traversals of graph functions that passes share: types, uses, substitution, liveness."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tensorkiln.ir.relax import (
    Binding,
    Body,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    Type,
    Value,
)
from tensorkiln.ops.rules import same_extent


def tensor_type(v: Value) -> TensorType:
    """The type of a value that is known to be a tensor."""
    assert isinstance(v.type, TensorType), v
    return v.type


def same_type(a: Type, b: Type) -> bool:
    """Whether two types are equal. Layouts must be identical; symbolic extents are equal if it can
    be proved, as for `n + n` and `n * 2`."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    if a.dtype != b.dtype or a.layout != b.layout or a.ndim != b.ndim:
        return False
    return all(map(same_extent, a.shape, b.shape))


def variables(v: Bound) -> list[RVar]:
    """The variables that a value or a binding's right side reads, with repetition.

    Reads inside the branches of an If and the function of a Lambda are included, those of variables
    that are bound there too.
    """
    if isinstance(v, Call):  # the common case first, without recursion
        found = [v.callee] if isinstance(v.callee, RVar) else []
        for a in v.args:
            if isinstance(a, RVar):
                found.append(a)
            elif isinstance(a, Tuple):
                found += variables(a)
        return found
    match v:
        case RVar():
            return [v]
        case Tuple(fields=fields):
            return [x for f in fields for x in variables(f)]
        case TupleItem(value=inner) | MatchCast(value=inner):
            return variables(inner)
        case If(cond=cond, then=then, orelse=orelse):
            return variables(cond) + _mentioned(then) + _mentioned(orelse)
        case Lambda(function=f):
            return _mentioned(f)
    return []


def _mentioned(body: Body | Function) -> list[RVar]:
    return [x for b in body.bindings for x in variables(b.value)] + variables(body.result)


def use_counts(f: Function) -> Counter[RVar]:
    """How often each variable is read, by bindings and by the function's result."""
    uses: Counter[RVar] = Counter()
    for b in f.bindings:
        uses.update(variables(b.value))
    uses.update(variables(f.result))
    return uses


def users(f: Function) -> dict[RVar, list[Call]]:
    """The calls that read each variable. A read by anything else (a tuple, the function's result)
    is listed as a call of `f` itself, without operands."""
    out: dict[RVar, list[Call]] = {}
    other = Call(GlobalRef(f.name), ())
    for b in f.bindings:
        reader = b.value if isinstance(b.value, Call) else other
        for v in variables(b.value):
            out.setdefault(v, []).append(reader)
    for v in variables(f.result):
        out.setdefault(v, []).append(other)
    return out


def substitute_value(v: Value, by: dict[RVar, Value]) -> Value:
    """`v` with variables replaced; `v` itself when it mentions none of them."""
    if isinstance(v, RVar):
        return by.get(v, v)
    if isinstance(v, Tuple):
        fields = tuple(substitute_value(x, by) for x in v.fields)
        return v if all(a is b for a, b in zip(fields, v.fields, strict=True)) else Tuple(fields)
    return v


def substitute(bound: Bound, by: dict[RVar, Value]) -> Bound:
    """The right side of a binding, with variables replaced; `bound` itself if nothing changed.

    An If or Lambda is rebuilt in any case, unless `by` is empty.
    """
    if not by:
        return bound
    match bound:
        case Call(callee, args, attrs, span):
            new = tuple(substitute_value(a, by) for a in args)
            held = by.get(callee, callee) if isinstance(callee, RVar) else callee
            if held is callee and all(a is b for a, b in zip(new, args, strict=True)):
                return bound
            assert isinstance(held, str | GlobalRef | RVar), held
            return Call(held, new, attrs, span)
        case TupleItem(value, index):
            new_value = substitute_value(value, by)
            return bound if new_value is value else TupleItem(new_value, index)
        case MatchCast(value, kind):
            new_value = substitute_value(value, by)
            return bound if new_value is value else MatchCast(new_value, kind)
        case If(cond, then, orelse):
            return If(
                substitute_value(cond, by), _substitute_body(then, by), _substitute_body(orelse, by)
            )
        case Lambda(function):
            body = _substitute_body(Body(function.bindings, function.result), by)
            return Lambda(replace(function, bindings=body.bindings, result=body.result))
    return substitute_value(bound, by)


def _substitute_body(body: Body, by: dict[RVar, Value]) -> Body:
    bindings = tuple(Binding(b.var, substitute(b.value, by)) for b in body.bindings)
    return Body(bindings, substitute_value(body.result, by))


def forward_aliases(f: Function) -> Function:
    """`f` without bindings `y = x` and `y = constant`; `f` itself if it has none."""
    by: dict[RVar, Value] = {}
    kept: list[Binding] = []
    for b in f.bindings:
        bound = substitute(b.value, by)
        if isinstance(bound, (RVar, Constant)) and bound.type == b.var.type:
            by[b.var] = bound
        else:
            kept.append(b if bound is b.value else Binding(b.var, bound))
    if not by:
        return f
    return Function(f.name, f.params, tuple(kept), substitute_value(f.result, by), f.attrs)


def live(f: Function) -> Function:
    """`f` without bindings whose variable is unused; `f` itself if it has none."""
    needed = set(variables(f.result))
    kept: list[Binding] = []
    for b in reversed(f.bindings):
        if b.var in needed:
            kept.append(b)
            needed.update(variables(b.value))
    if len(kept) == len(f.bindings):
        return f
    return Function(f.name, f.params, tuple(reversed(kept)), f.result, f.attrs)
