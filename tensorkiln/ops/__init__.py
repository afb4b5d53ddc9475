"""Operators. Each has its signature, type rule, tensor program and NumPy reference in one place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from tensorkiln.base.errors import Issue, UnsupportedError, UserError, nearest
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.extents import LARGEST
from tensorkiln.ir.relax import Call, Constant, TensorType, Type, Value
from tensorkiln.ops.attribute import REQUIRED, Attribute, completed
from tensorkiln.ops.broadcast import BROADCAST
from tensorkiln.ops.coupling import COUPLING
from tensorkiln.ops.dynamic import DYNAMIC
from tensorkiln.ops.elementwise import ELEMENTWISE
from tensorkiln.ops.forest import FOREST
from tensorkiln.ops.matmul import MATMUL
from tensorkiln.ops.meeting import MEETING
from tensorkiln.ops.need import Need, require_known
from tensorkiln.ops.nn import NN
from tensorkiln.ops.normalise import NORMALISE
from tensorkiln.ops.op import PATTERNS, Element, Infer, OpDef, Signature, TensorIn
from tensorkiln.ops.places import PLACES
from tensorkiln.ops.quantise import QUANTISE
from tensorkiln.ops.reduction import REDUCTION
from tensorkiln.ops.requirement import REQUIREMENT
from tensorkiln.ops.rules import require_int64
from tensorkiln.ops.shape import SHAPE
from tensorkiln.ops.strassen import STRASSEN
from tensorkiln.ops.transposed import TRANSPOSED
from tensorkiln.ops.wide import wide_sums
from tensorkiln.ops.winograd import WINOGRAD

_TABLES = (
    ELEMENTWISE,
    BROADCAST,
    SHAPE,
    REDUCTION,
    NN,
    TRANSPOSED,
    NORMALISE,
    MATMUL,
    WINOGRAD,
    STRASSEN,
    FOREST,
    PLACES,
    COUPLING,
    QUANTISE,
    REQUIREMENT,
    MEETING,
)

OPS: dict[str, OpDef] = {name: wide_sums(op) for table in _TABLES for name, op in table.items()}


def get(name: str) -> OpDef:
    """Return the operator in `OPS` called `name`; raise UserError `unknown-operator`, whose hint
    lists similar names, if there is none. Operators of `DYNAMIC` are not found: see `signature`."""
    if name not in OPS:
        raise UserError(
            f"there is no operator {name!r}", code="unknown-operator", hint=nearest(name, OPS)
        )
    return OPS[name]


def declared(name: str) -> Signature | None:
    """Return the operator of `OPS` or `DYNAMIC` called `name`; None if neither has it."""
    return OPS.get(name) or DYNAMIC.get(name)


def signature(name: str) -> Signature:
    """As `declared`, but raise UserError `unknown-operator` for an unknown name."""
    op = declared(name)
    if op is None:
        raise UserError(
            f"there is no operator {name!r}",
            code="unknown-operator",
            hint=nearest(name, [*OPS, *DYNAMIC]),
        )
    return op


def with_defaults(call: Call) -> Call:
    """Return `call` with the defaults of all attributes it leaves out. The same object comes back
    when no attribute is missing or the operator is unknown. Nothing is checked."""
    op = declared(call.op)
    if op is None or all(k in call.attrs or not row.has_default for k, row in op.attrs.items()):
        return call
    return replace(call, attrs=completed(op.attrs, call.attrs))


def call(name: str, *args: Value, span: str = "", **attrs: AttrValue) -> Call:
    """Return a call with defaults for the attributes not given; `span` is its place in the source
    model. Raise UserError for an unknown operator, a wrong attribute or a wrong operand count."""
    op = signature(name)
    try:
        op.check_count(len(args))
        full = op.complete(attrs)
    except UserError as error:
        raise located(error, span) from None
    return Call(name, args, full, span)


def infer(call: Call) -> Type:
    """Return the result type of an operator call. Raise UserError, located at the call's span, if
    the operator is unknown or the operands do not fit. Operand layouts are ignored: the shapes in
    types are logical."""
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
    """As `infer`, for the operators of `OPS`, whose result shape follows from operand types."""
    op = get(call.op)
    try:
        op.check_count(len(call.args))
        full = op.complete(call.attrs)
        types = tuple([operand_type(op, k, arg) for k, arg in enumerate(call.args)])
        kinds = tuple([type(v) for _, v in full.items_])
        integers = tuple(map(_integers, call.args)) if op.needs is not None else ()
        result = _result_type(op.infer, types, full, kinds)
        if op.needs is not None and any(x is not None for x in integers):
            _require_met(op, types, full, integers)
        elif op.needs is not None:
            _require_met_of_types(op.name, types, full, kinds)
        _require_small(result, call)
        return result
    except UserError as error:
        raise located(error, call.span) from None


def _require_small(result: TensorType, call: Call) -> None:
    """Raise UnsupportedError if an extent of a result is too large an expression."""
    for axis, extent in enumerate(result.shape):
        if LARGEST.is_exceeded(extent):
            message = f"the size of its dimension {axis} takes more than {LARGEST}"
            hint = "give the symbolic sizes that it is made of fixed values, or fewer of them"
            raise UnsupportedError([Issue("size", call.span, call.op, message, hint)])


def needs(call: Call) -> Iterator[Need]:
    """The requirements that the operator of a call has on extents. Operands and attributes must be
    valid."""
    op = OPS.get(call.op)
    if op is not None and op.needs is not None:
        types = [operand_type(op, k, arg) for k, arg in enumerate(call.args)]
        yield from op.needs.rule(types, op.complete(call.attrs), list(map(_integers, call.args)))


def _integers(arg: Value) -> np.ndarray | None:
    """The elements of an operand that is a constant of integers."""
    is_constant = isinstance(arg, Constant) and arg.type.dtype.is_int and arg.type.layout is None
    return arg.array if isinstance(arg, Constant) and is_constant else None


def _require_met(
    op: OpDef,
    types: tuple[TensorType, ...],
    attrs: Attrs,
    integers: tuple[np.ndarray | None, ...],
) -> None:
    """Raise UserError if an operator's needs are not met whatever the symbolic extents are."""
    if op.needs is not None:
        names = [op.operand_name(k) for k in range(len(types))]
        require_known(op.name, names, types, op.needs.rule(types, attrs, integers))


@lru_cache(1 << 12)
def _require_met_of_types(
    name: str, types: tuple[TensorType, ...], attrs: Attrs, kinds: tuple[type, ...]
) -> None:
    """As `_require_met`, for operands that are not constants of integers."""
    _require_met(OPS[name], types, attrs, (None,) * len(types))


@lru_cache(1 << 12)
def _result_type(
    rule: Infer, operands: tuple[TensorType, ...], attrs: Attrs, kinds: tuple[type, ...]
) -> TensorType:
    """The type that a type rule gives, cached: many calls in a network are alike, and passes and
    the verifier ask again. `kinds` tells attributes apart that are equal, such as 1 and True."""
    result = rule(operands, attrs)
    require_int64(result.shape)
    return result


def operand_type(op: OpDef, position: int, arg: Value) -> TensorType:
    """Return the tensor type of operand number `position`; raise UserError `operand-kind` if `arg`
    is not a tensor but, for example, a tuple or a shape."""
    if isinstance(arg.type, TensorType):
        return arg.type
    raise UserError(
        f"operator {op.name}: operand {op.operand_name(position)!r}: expected a tensor, "
        f"received {type(arg.type).__name__}",
        code="operand-kind",
    )


def located(error: UserError, span: str) -> UserError:
    """Return `error` with `span` as its location, unless it already has a location."""
    if error.where or not span:
        return error
    return UserError(error.message, code=error.code, where=span, hint=error.hint)


__all__ = [
    "DYNAMIC",
    "OPS",
    "PATTERNS",
    "REQUIRED",
    "Attribute",
    "Element",
    "OpDef",
    "TensorIn",
    "call",
    "declared",
    "get",
    "infer",
    "infer_tensor",
    "located",
    "needs",
    "operand_type",
    "signature",
    "with_defaults",
]
