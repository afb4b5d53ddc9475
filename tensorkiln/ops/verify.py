"""Verification that a module is well formed, including the attributes of its operator calls."""

from __future__ import annotations

from collections.abc import Iterable

from tensorkiln import ops
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir import verify as structure
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, If, Lambda
from tensorkiln.ops.attribute import check_all


def verify(mod: IRModule, known: dict[int, object] | None = None, *, places: bool = False) -> None:
    """Raise InternalError, with the path of the first violation found, if `mod` is not well formed.

    `ir/verify.py` lists what is checked, and describes `places`. In addition, calls of operators
    must have the attributes that the operators declare. `known` maps the `id` of objects verified
    by an earlier run to the objects; they are skipped, and verified ones are added. Calls of
    undeclared operators are not checked: a pass may lower them.
    """
    known = {} if known is None else known
    structure.verify(mod, known, places=places)
    for f in mod.functions:
        if isinstance(f, Function):
            _bindings(f.name, f.bindings, known)


def _bindings(where: str, bindings: Iterable[Binding], known: dict[int, object]) -> None:
    for i, b in enumerate(bindings):
        value = b.value
        if isinstance(value, Call):
            if known.get(id(value)) is not value:
                known[id(value)] = _checked(f"{where}.bindings[{i}]({b.var.name})", value)
        elif isinstance(value, If):
            for name, body in (("then", value.then), ("orelse", value.orelse)):
                _bindings(f"{where}.bindings[{i}]({b.var.name}).{name}", body.bindings, known)
        elif isinstance(value, Lambda):
            _bindings(f"{where}.{value.function.name}", value.function.bindings, known)


def _checked(where: str, call: Call) -> Call:
    op = ops.declared(call.op)
    if op is not None:
        try:
            check_all(op.name, op.attrs, call.attrs)
        except UserError as error:
            raise InternalError(
                error.message, code=error.code, where=where, hint=error.hint
            ) from None
    return call


__all__ = ["verify"]
