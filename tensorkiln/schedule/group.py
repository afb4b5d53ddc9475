"""A fused group of operators seen as one computation: what schedules start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from tensorkiln import ops
from tensorkiln.arith import simplify
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, IntImm, Load, Var, const, int_value
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    RVar,
    TensorType,
    Value,
    size_symbols,
)
from tensorkiln.ops.op import Element, OpDef, TensorIn

Bounds = Mapping[Var, tuple[int | None, int | None]]

# Anchors that read an operand of their epilogue only at the element they write.
_INPLACE = ("conv2d", "winograd_conv2d", "linear", "strassen_linear")


def product(extents: tuple[Expr, ...]) -> Expr:
    """Their product, 1 for none."""
    numbers = [e.value for e in extents if isinstance(e, IntImm)]
    if len(numbers) == len(extents):
        return IntImm(math.prod(numbers))
    total: Expr = IntImm(1)
    for e in extents:
        total = total * e
    return simplify(total)


def view_shape(t: TensorType) -> tuple[Expr, ...]:
    """The shape a kernel sees of a tensor: physical; row-major ones as (rows, columns)."""
    if t.layout is not None:
        return t.physical_shape
    if t.ndim <= 2:
        return t.shape or (IntImm(1),)
    return (product(t.shape[:-1]), t.shape[-1])


def view_index(t: TensorType, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Where a logical element lies in `view_shape`."""
    if t.layout is not None:
        return t.memory.physical_index(index)
    if t.ndim <= 2:
        return index or (IntImm(0),)
    row: Expr = IntImm(0)
    for i, n in zip(index[:-1], t.shape[:-1], strict=True):
        row = row * n + i
    return (row, index[-1])


def _param_buffer(name: str, t: TensorType) -> Buffer:
    """Aligned to its element only: a caller's tensor is used where it lies, and unaligned vector
    instructions cost nothing on aligned addresses."""
    return Buffer(name, t.dtype, view_shape(t), align=t.dtype.bytes)


class Group:
    """The operators of one primitive function, with a buffer for every parameter and the result.

    `anchor` is the contraction, reduction or opaque operator that decides the schedule, or None.
    """

    def __init__(self, f: Function, name: str):
        if not isinstance(f.result, RVar) or not isinstance(f.result.type, TensorType):
            raise InternalError(f"group {f.name}: the result must be one tensor")
        self.function, self.name = f, name
        self.calls: dict[RVar, Call] = {}
        for b in f.bindings:
            if not isinstance(b.value, Call) or not b.value.op:
                raise InternalError(f"group {f.name}: {b.var} is not an operator call")
            self.calls[b.var] = b.value
        self.out_var = f.result
        self.out_type = f.result.type
        self.buffers: dict[RVar, Buffer] = {
            p: _param_buffer(f"p{i}", p.tensor) for i, p in enumerate(f.params)
        }
        self.out = _param_buffer("out", self.out_type)
        self.anchor_var, self.anchor = self._find_anchor()

    def _find_anchor(self) -> tuple[RVar | None, Call | None]:
        for var, call in self.calls.items():
            if self.op(call).pattern in ("contraction", "reduction", "opaque"):
                return var, call
        return None, None

    @staticmethod
    def op(call: Call) -> OpDef:
        """The definition of a call's operator."""
        return ops.get(call.op)

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbolic dimensions that its kernel is given, in this order."""
        return size_symbols(self.function)

    @cached_property
    def flat(self) -> dict[Buffer, Buffer]:
        """For each buffer one of the same memory with one dimension."""
        return {b: _flattened(b) for b in (*self.buffers.values(), self.out)}

    def flatten(self, params: Iterable[RVar]) -> None:
        """Put the flat buffers in place of those of the result and of `params`."""
        flat = self.flat
        self.buffers |= {p: flat.get(self.buffers[p], self.buffers[p]) for p in params}
        self.out = flat.get(self.out, self.out)

    @property
    def params(self) -> tuple[Buffer | Var, ...]:
        """Kernel parameters: inputs, the output, then symbolic dimensions."""
        return (*self.buffers.values(), self.out, *self.symbols)

    @property
    def flat_params(self) -> tuple[Buffer | Var, ...]:
        """The same with flat buffers."""
        return (*self.flat.values(), *self.symbols)

    def element(
        self, value: Value, overrides: Mapping[RVar, Element] | None = None
    ) -> Callable[..., Expr]:
        """The element of a value at logical indices, operators inlined down to loads.

        `overrides` give the elements of values that the schedule computes itself.
        """
        overrides = overrides or {}
        if isinstance(value, Constant):
            return _constant_element(value)
        assert isinstance(value, RVar)
        if value in overrides:
            return overrides[value]
        call = self.calls.get(value)
        if call is None:
            buf, t = self.buffers[value], value.tensor
            return lambda *index: Load(buf, tuple(map(simplify, view_index(t, index))))
        inputs = [self.tensor_in(a, overrides) for a in call.args]
        program = self.op(call).program
        if program is None:
            raise UserError(
                f"operator {call.op} needs operands in layouts of its own: run assign_layouts "
                "before fuse_ops",
                code="not-lowered",
                where=self.name,
                hint="pipeline.relax_passes is the list, in its order",
            )
        return program(inputs, call.attrs, value.tensor)

    def tensor_in(self, value: Value, overrides: Mapping[RVar, Element] | None = None) -> TensorIn:
        """An operand as tensor programs see it."""
        t = value.type
        assert isinstance(t, TensorType)
        return TensorIn(t, self.element(value, overrides))

    def store_index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where a logical output element is stored."""
        return tuple(map(simplify, view_index(self.out_type, index)))


def _constant_element(value: Constant) -> Callable[..., Expr]:
    if value.data.size != 1:
        raise InternalError("only one-element constants stay inside a group")
    item = value.array.reshape(()).item()
    literal = const(item, value.type.dtype)
    return lambda *_: literal


def inplace_params(group: Group, skip: int = 0) -> tuple[int, ...]:
    """Parameters (after the first `skip`) of the output's very type that are only read at the
    element being written, so that the result may take their place."""
    if any(
        group.op(c).pattern not in ("elementwise", "broadcast")
        for c in group.calls.values()
        if c is not group.anchor
    ):
        return ()  # fmt: skip
    if group.anchor is not None and group.anchor.op not in _INPLACE:
        return ()
    anchored = set(group.anchor.args) if group.anchor is not None else set()
    return tuple(
        i
        for i, p in enumerate(group.function.params)
        if i >= skip and p not in anchored and p.tensor == group.out_type
    )


def _flattened(b: Buffer) -> Buffer:
    size = product(b.shape)
    return Buffer(b.name, b.dtype, (size,), b.scope, b.align)


def static(e: Expr, what: str) -> int:
    """The integer an extent is; schedules that need it call this after checking support."""
    n = int_value(e)
    if n is None:
        raise InternalError(f"{what} is symbolic: {e}")
    return n
