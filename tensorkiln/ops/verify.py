"""Verification that a module is well formed, including the calls of its operators."""

from __future__ import annotations

from collections.abc import Iterable

from tensorkiln import ops
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir import verify as structure
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, If, Lambda, Type
from tensorkiln.ir.subtype import accepts, logical
from tensorkiln.ir.type_text import show
from tensorkiln.ops.rules import same_extent


def verify(
    mod: IRModule, verified: dict[int, object] | None = None, *, places: bool = False
) -> None:
    """Raise InternalError, with the path of the first violation found, if `mod` is not well formed.

    `ir/verify.py` lists what is checked, and describes `places`. In addition, calls of operators
    must have the attributes that the operators declare, operands that their type rules accept, and
    results of the types that these give. `verified` maps the `id` of objects verified by an earlier
    run to the objects; they are skipped, and verified ones are added. Calls of undeclared operators
    are not checked: a pass may lower them.
    """
    verified = {} if verified is None else verified
    structure.verify(mod, verified, places=places)
    for f in mod.functions:
        if isinstance(f, Function):
            _bindings(f.name, f.bindings, verified)


def _bindings(path: str, bindings: Iterable[Binding], verified: dict[int, object]) -> None:
    for i, b in enumerate(bindings):
        value = b.value
        if isinstance(value, Call):
            if verified.get(id(b)) is not b:
                _check(f"{path}.bindings[{i}]({b.var.name})", b.var.type, value)
                verified[id(b)] = b
        elif isinstance(value, If):
            for name, body in (("then", value.then), ("orelse", value.orelse)):
                _bindings(f"{path}.bindings[{i}]({b.var.name}).{name}", body.bindings, verified)
        elif isinstance(value, Lambda):
            _bindings(f"{path}.{value.function.name}", value.function.bindings, verified)


def _check(path: str, have: Type, call: Call) -> None:
    if ops.declared(call.op) is None:
        return
    try:
        derived = ops.infer(call)
    except UserError as error:
        raise InternalError(error.message, code=error.code, where=path, hint=error.hint) from None
    if have != derived and not accepts(logical(have), logical(derived), same_extent):
        message = f"the variable is {show(have)}, operator {call.op} gives {show(derived)}"
        hint = f"make the variable {show(derived)}"
        raise InternalError(message, code="type-mismatch", where=path, hint=hint)


__all__ = ["verify"]
