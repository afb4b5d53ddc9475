"""Operators: one place each for signature, type rule, tensor program and NumPy meaning."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.ir.attrs import AttrValue
from tensorkiln.ir.relax import Call, TensorType, Type, Value
from tensorkiln.ops.attribute import REQUIRED, Attribute, completed
from tensorkiln.ops.broadcast import BROADCAST
from tensorkiln.ops.dynamic import DYNAMIC
from tensorkiln.ops.elementwise import ELEMENTWISE
from tensorkiln.ops.matmul import MATMUL
from tensorkiln.ops.nn import NN
from tensorkiln.ops.normalise import NORMALISE
from tensorkiln.ops.op import PATTERNS, Element, OpDef, Signature, TensorIn
from tensorkiln.ops.quantise import QUANTISE
from tensorkiln.ops.reduction import REDUCTION
from tensorkiln.ops.shape import SHAPE
from tensorkiln.ops.strassen import STRASSEN
from tensorkiln.ops.winograd import WINOGRAD

OPS: dict[str, OpDef] = {
    **ELEMENTWISE,
    **BROADCAST,
    **SHAPE,
    **REDUCTION,
    **NN,
    **NORMALISE,
    **MATMUL,
    **WINOGRAD,
    **STRASSEN,
    **QUANTISE,
}


def get(name: str) -> OpDef:
    """The operator of that name; UserError `unknown-operator` with the nearest ones."""
    if name not in OPS:
        raise UserError(
            f"there is no operator {name!r}", code="unknown-operator", hint=nearest(name, OPS)
        )
    return OPS[name]


def declared(name: str) -> Signature | None:
    """The operator of that name, with a result of known size or not, if there is one."""
    return OPS.get(name) or DYNAMIC.get(name)


def signature(name: str) -> Signature:
    """Operands and attributes of any operator, with a result of known size or not."""
    op = declared(name)
    if op is None:
        raise UserError(
            f"there is no operator {name!r}",
            code="unknown-operator",
            hint=nearest(name, [*OPS, *DYNAMIC]),
        )
    return op


def with_defaults(call: Call) -> Call:
    """The call with the defaults of attributes it leaves out; the very call when it has them all,
    or is of no operator that is known."""
    op = declared(call.op)
    if op is None or all(k in call.attrs or row.required for k, row in op.attrs.items()):
        return call
    return replace(call, attrs=completed(op.attrs, call.attrs))


def call(name: str, *args: Value, span: str = "", **attrs: AttrValue) -> Call:
    """A call with its attributes completed; UserError on a wrong attribute or operand count."""
    op = signature(name)
    try:
        op.check_count(len(args))
        full = op.complete(attrs)
    except UserError as error:
        raise located(error, span) from None
    return Call(name, args, full, span)


def infer(call: Call) -> Type:
    """The result type of a call of an operator; UserError (with the call's span) when its
    operands do not fit. Operand layouts are ignored: types are logical."""
    dynamic = DYNAMIC.get(call.op)
    if dynamic is None:
        return infer_tensor(call)
    try:
        dynamic.check_count(len(call.args))
        full = dynamic.complete(call.attrs)
        return dynamic.infer([a.type for a in call.args], full)
    except UserError as error:
        raise located(error, call.span) from None


def infer_tensor(call: Call) -> TensorType:
    """The result type of a call of an operator whose result's size its operands' types decide."""
    op = get(call.op)
    try:
        op.check_count(len(call.args))
        full = op.complete(call.attrs)
        types = [operand_type(op, k, arg) for k, arg in enumerate(call.args)]
        return op.infer(types, full)
    except UserError as error:
        raise located(error, call.span) from None


def operand_type(op: OpDef, position: int, arg: Value) -> TensorType:
    """The tensor type of an argument; UserError when it is a tuple or a shape."""
    if isinstance(arg.type, TensorType):
        return arg.type
    raise UserError(
        f"operator {op.name}: operand {op.operand_name(position)!r}: expected a tensor, "
        f"received {type(arg.type).__name__}",
        code="operand-kind",
    )


def located(error: UserError, span: str) -> UserError:
    """The same error, at `span` when it had no place yet."""
    if error.where or not span:
        return error
    return UserError(error.message, code=error.code, where=span, hint=error.hint)


__all__ = [
    "DYNAMIC", "OPS", "PATTERNS", "REQUIRED", "Attribute", "Element", "OpDef", "TensorIn", "call",
    "declared",
    "get", "infer", "infer_tensor", "located", "operand_type", "signature",
    "with_defaults",
]  # fmt: skip
