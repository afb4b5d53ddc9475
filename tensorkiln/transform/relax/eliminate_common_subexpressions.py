"""Compute equal calls only once."""

from __future__ import annotations

from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.padded import Padded
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    RVar,
    ShapeValue,
    Tuple,
    TupleItem,
    Value,
)
from tensorkiln.ir.visit_graph import substitute, substitute_value

# Constants of up to this many bytes are compared by content, larger ones by address and strides.
SMALL = 4096


def eliminate_common_subexpressions(mod: IRModule) -> IRModule:
    """Of calls with equal operator, operands, attributes and type, keep only the first.

    Before:  y = exp(x); z = exp(x); return add(y, z)
    After:   y = exp(x); return add(y, y)
    Needs:   nothing (operators have no side effects).
    """
    return mod.map_graphs(_function)


def _function(f: Function) -> Function:
    first: dict[object, RVar] = {}
    by: dict[RVar, Value] = {}
    out: list[Binding] = []
    for b in f.bindings:
        definition = substitute(b.value, by)
        key = (
            (_bound_key(definition), b.var.type)
            if isinstance(definition, (Call, TupleItem))
            else None
        )
        first_var = first.setdefault(key, b.var) if key is not None else b.var
        if first_var is not b.var:
            by[b.var] = first_var
        else:
            out.append(b if definition is b.value else Binding(b.var, definition))
    if not by:
        return f
    return Function(f.name, f.params, tuple(out), substitute_value(f.result, by), f.attrs)


def _bound_key(definition: Bound) -> object:
    if isinstance(definition, TupleItem):
        return ("item", _value_key(definition.value), definition.index)
    assert isinstance(definition, Call)
    attrs = tuple((k, _attr_key(v)) for k, v in definition.attrs.items())
    return (definition.callee, tuple(map(_value_key, definition.args)), attrs)


def _value_key(v: Value) -> object:
    match v:
        case Constant(data=data, type=type_):
            if data.nbytes <= SMALL:
                return ("constant", type_, v.array.tobytes())
            array = data.array if isinstance(data, Padded) else data
            place = array.__array_interface__["data"][0]
            return ("constant", type_, place, array.shape, array.strides)
        case Tuple(fields=fields):
            return tuple(map(_value_key, fields))
        case ShapeValue(values=values):
            return ("shape", values)
    return v


def _attr_key(v: object) -> object:
    """A key that is equal only for attributes of the same type and value, while Python has
    1 == True == 1.0 and 0.0 == -0.0. A constant Expr has the key of its number."""
    if isinstance(v, tuple):
        return tuple(map(_attr_key, v))
    if isinstance(v, Expr):
        number = int_value(v)
        return v if number is None else ("int", repr(number))
    return (type(v).__name__, repr(v))
