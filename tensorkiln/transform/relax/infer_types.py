"""Infer the type of every binding from its operator, and check it against the declared type."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from tensorkiln import ops
from tensorkiln.arith import simplify
from tensorkiln.base.errors import UserError
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    IMPURE_OPS,
    AnyTensorType,
    Binding,
    Body,
    Bound,
    Call,
    Function,
    FuncType,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    ObjectType,
    RVar,
    TensorType,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.subtype import accepts, called_type, function_type, logical, symbols
from tensorkiln.ir.tensor_bytes import known_bytes
from tensorkiln.ir.type_text import show
from tensorkiln.ir.visit_graph import substitute, substitute_value
from tensorkiln.ops.attribute import ADDRESSES
from tensorkiln.ops.rules import same_extent, show_type
from tensorkiln.transform.rewriting.graph import same_type


def infer_types(mod: IRModule) -> IRModule:
    """Check every binding's type against the type rule of its operator, simplify its extents, and
    add the attributes for which a call relies on defaults.

    Before:  y: (N * 1, 4) = matmul(x, w)
    After:   y: (N, 4) = matmul(x, w, transpose_a=False, transpose_b=False, wide=False)
    Needs:   nothing.

    Raises UserError with code `type-mismatch`, or with that of the type rule, for a binding whose
    types do not agree; `where` names it. Code `too-large` is for a tensor over 2^47 bytes, which no
    process can address.
    """
    new = tuple(_Infer(mod, f).run() if _is_open(f) else f for f in mod.functions)
    is_unchanged = all(a is b for a, b in zip(new, mod.functions, strict=True))
    return mod if is_unchanged else mod.with_functions(new)


def _require_addresses(t: Type, location: str) -> None:
    """Raise UserError (code `too-large`) for a tensor larger than a process can address. The byte
    counts and indices of all others fit int64."""
    if not isinstance(t, TensorType):
        return
    size = known_bytes(t.dtype, t.shape)
    if size is not None and size > ADDRESSES:
        raise UserError(
            f"a tensor of shape {show_type(t)} takes {size} bytes, more than can be addressed",
            code="too-large",
            where=location,
        )


def _is_open(f: AnyFunction) -> TypeGuard[Function]:
    return isinstance(f, Function) and not f.is_primitive


class _Infer:
    """Infers the types of one function, its branches and closures.

    `_by` maps variables whose type was simplified to new ones; `_changed` says whether anything
    else changed; `_dims` holds the symbolic dimensions that are bound so far.
    """

    def __init__(self, mod: IRModule, f: Function):
        self._mod, self._f = mod, f
        self._by: dict[RVar, Value] = {}
        self._changed = False
        self._dims: set[Var] = {v for p in f.params for v in symbols(p.type)}

    def run(self) -> Function:
        for p in self._f.params:
            _require_addresses(p.type, f"{self._f.name}({p.name})")
        body = self._body(Body(self._f.bindings, self._f.result), self._f.name)
        if not self._by and not self._changed:
            return self._f
        return replace(self._f, bindings=body.bindings, result=body.result)

    def _body(self, body: Body, location: str) -> Body:
        out: list[Binding] = []
        for i, b in enumerate(body.bindings):
            out += self._binding(b, f"{location}/bindings[{i}] {b.var.name}")
        return Body(tuple(out), substitute_value(body.result, self._by))

    def _binding(self, b: Binding, location: str) -> list[Binding]:
        definition = self._inner(b.value, location)
        var_type = _simplified(b.var.type)
        derived = self._type_of(definition, location)
        if derived is None:
            derived = var_type
        elif isinstance(definition, If | Lambda | MatchCast):
            var_type = derived
        elif not self._agree(var_type, derived):
            declared = b.var.type
            message = f"declared {_show(declared)}, derived {_show(derived)}"
            hint = "declare the type of its value"
            raise UserError(message, code="type-mismatch", where=location, hint=hint)
        _require_addresses(var_type, location)
        var = b.var
        if var_type != var.type:
            self._by[b.var] = var = RVar(var.name, var_type)
        if isinstance(definition, Call) and definition.op and _is_wider(var_type, derived):
            # The call is bound with its own type, and the variable of a wider type to that.
            self._changed, call_var = True, RVar(var.name, derived)
            return [Binding(call_var, definition), Binding(var, call_var)]
        return [b if definition is b.value and var is b.var else Binding(var, definition)]

    def _inner(self, definition: Bound, location: str) -> Bound:
        """`definition` with variables replaced, types inferred in its branches or its function, and
        the attributes of a call completed."""
        if isinstance(definition, If):
            cond = substitute_value(definition.cond, self._by)
            return If(
                cond, self._body(definition.then, location), self._body(definition.orelse, location)
            )
        if isinstance(definition, Lambda):
            f = definition.function
            self._dims |= {v for p in f.params for v in symbols(p.type)}
            body = self._body(Body(f.bindings, f.result), f"{location}/{f.name}")
            return Lambda(replace(f, bindings=body.bindings, result=body.result))
        if isinstance(definition, MatchCast):
            self._dims |= set(symbols(definition.type))
            return MatchCast(
                substitute_value(definition.value, self._by), _simplified(definition.type)
            )
        if isinstance(definition, Call) and definition.op:
            full = ops.with_defaults(definition)
            self._changed |= full is not definition
            return substitute(full, self._by)
        return substitute(definition, self._by)

    def _agree(self, declared: Type, derived: Type) -> bool:
        """Whether a variable of type `declared` can hold a value of type `derived`. Layouts are
        ignored. In an outer function the declared type may be wider."""
        if same_type(logical(declared), logical(derived)):
            return True
        return self._f.is_outer and accepts(declared, derived, same_extent)

    def _type_of(self, definition: Bound, location: str) -> Type | None:
        """The type of `definition`, or None if only the declared type of its variable tells."""
        match definition:
            case Call(callee=GlobalRef(name=name), args=args):
                callee = self._mod.get(name)
                if not isinstance(callee, Function):
                    return None
                return _static_type(called_type(function_type(callee), [a.type for a in args]))
            case Call(callee=RVar(type=FuncType() as t), args=args):
                return _static_type(called_type(t, [a.type for a in args], self._dims))
            case Call():
                return None if definition.op in IMPURE_OPS else _operator_type(definition, location)
            case TupleItem(value=value, index=index):
                assert isinstance(value.type, TupleType), location
                return value.type.fields[index]
            case If(then=then_body, orelse=orelse):
                if same_type(then_body.result.type, orelse.result.type):
                    return then_body.result.type
                message = f"{_show(then_body.result.type)} and {_show(orelse.result.type)}"
                raise UserError(
                    f"branches of different types, {message}", code="type-mismatch", where=location
                )
            case GlobalRef():
                return None
        return definition.type


def _static_type(t: Type) -> Type | None:
    """`t`, or None if some extent is known at run time only: the declared type is used then."""
    if isinstance(t, AnyTensorType | FuncType | ObjectType):
        return None
    if isinstance(t, TupleType) and any(_static_type(f) is None for f in t.fields):
        return None
    return t


def _operator_type(call: Call, location: str) -> Type:
    try:
        return ops.infer(call)
    except UserError as error:
        raise UserError(error.message, code=error.code, where=location, hint=error.hint) from None


def _is_wider(var_type: Type, derived: Type) -> bool:
    return isinstance(derived, TensorType) and not isinstance(var_type, TensorType)


def _simplified(t: Type) -> Type:
    if isinstance(t, TensorType):
        return TensorType(tuple(map(simplify, t.shape)), t.dtype, t.layout, t.device)
    return TupleType(tuple(map(_simplified, t.fields))) if isinstance(t, TupleType) else t


def _show(t: Type) -> str:
    return show_type(t) if isinstance(t, TensorType) else show(t)
