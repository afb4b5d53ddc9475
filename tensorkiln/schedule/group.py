"""A fused group of operators as one computation: the input of every schedule.

A `Group` has a buffer for each parameter and one for the result, the anchor (the operator that
decides the schedule), and `element(value)`, which inlines operators down to loads. A schedule calls
that once for its whole prologue or epilogue, so it need not know which operators were fused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from tensorkiln import ops
from tensorkiln.arith import simplify
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, IntImm, Var, const, int_value
from tensorkiln.ir.relax import Call, Constant, Function, RVar, TensorType, Value, size_symbols
from tensorkiln.ir.visit_graph import variables
from tensorkiln.kernels import families
from tensorkiln.kernels.knobs import ATTRIBUTE, Choices
from tensorkiln.kernels.layouts import has_few_channels, is_channels_last
from tensorkiln.ops.op import Element, OpDef, TensorIn
from tensorkiln.target import Target
from tensorkiln.target.kinds import KINDS

Bounds = Mapping[Var, tuple[int | None, int | None]]


def product(extents: tuple[Expr, ...]) -> Expr:
    """The product of the extents; 1 for an empty tuple."""
    numbers = [e.value for e in extents if isinstance(e, IntImm)]
    if len(numbers) == len(extents):
        return IntImm(math.prod(numbers))
    total: Expr = IntImm(1)
    for e in extents:
        total = total * e
    return simplify(total)


def view_shape(t: TensorType) -> tuple[Expr, ...]:
    """The shape of a tensor's buffer in a kernel: the physical shape if it has a layout; else its
    own, or (rows, columns) with more than two dimensions. A scalar has shape (1,). An image with
    channels last is (pixels, channels); with few of them (rows, pixels and channels)."""
    if is_channels_last(t) and has_few_channels(t):
        n, c, h, w = t.shape
        return (product((n, h)), product((w, c)))
    if is_channels_last(t):
        return (product((t.shape[0], *t.shape[2:])), t.shape[1])
    if t.layout is not None:
        return t.physical_shape
    if t.ndim <= 2:
        return t.shape or (IntImm(1),)
    return (product(t.shape[:-1]), t.shape[-1])


def view_index(t: TensorType, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The index in `view_shape` of a logical element: (i, j, k) of a row-major [A, B, C] is
    (i * B + j, k)."""
    if t.layout is not None and not is_channels_last(t):
        return t.memory.physical_index(index)
    if t.ndim <= 2:
        return index or (IntImm(0),)
    if is_channels_last(t) and has_few_channels(t):
        n, c, h, w = index
        return (n * t.shape[2] + h, w * t.shape[1] + c)
    last = 1 if is_channels_last(t) else t.ndim - 1
    row: Expr = IntImm(0)
    for d, (i, n) in enumerate(zip(index, t.shape, strict=True)):
        row = row if d == last else row * n + i
    return (row, index[last])


def _param_buffer(name: str, t: TensorType, views: bool) -> Buffer:
    """A parameter's buffer, aligned to its element only: callers' tensors are used in place, and
    unaligned vector instructions cost nothing on aligned addresses."""
    shape = view_shape(t) if views or t.ndim <= 2 else t.physical_shape
    return Buffer(name, t.dtype, shape, align=t.dtype.bytes)


def _reads_windows(x: Value, call: Call) -> bool:
    """Whether a convolution reads windows of more than a pixel, or not each pixel, of an image with
    channels last. Then rows and columns of pixels stay dimensions, beyond which there are zeros."""
    if call.op != "conv2d" or call.args[0] != x:
        return False
    w = call.args[1].type
    assert isinstance(w, TensorType)
    steps = *w.shape[2:], *call.attrs.strides
    return any(int_value(n) != 1 for n in steps) or any(call.attrs.padding)


class Group:
    """The operators of one primitive function, with a buffer for every parameter and the result.

    `anchor` is the contraction, reduction or opaque operator that decides the schedule, or None.
    Row-major buffers have one dimension or two (`view_shape`); without `views`, those of their
    tensors: proofs understand x[b, i, j], but not x[b * n + i, j] for a symbolic n.
    """

    def __init__(self, f: Function, name: str, target: Target, views: bool = True):
        if not isinstance(f.result, RVar) or not isinstance(f.result.type, TensorType):
            raise InternalError(f"group {f.name}: the result must be one tensor")
        self.function, self.name, self.target, self.views = f, name, target, views
        self.calls: dict[RVar, Call] = {}
        for b in f.bindings:
            if not isinstance(b.value, Call) or not b.value.op:
                raise InternalError(f"group {f.name}: {b.var} is not an operator call")
            self.calls[b.var] = b.value
        self.out_var = f.result
        self.out_type = f.result.type
        self.buffers: dict[RVar, Buffer] = {
            p: _param_buffer(f"p{i}", p.tensor, self._is_viewed(p)) for i, p in enumerate(f.params)
        }
        self.out = _param_buffer("out", self.out_type, views or self.out_type.layout is not None)
        self.anchor_var, self.anchor = self._find_anchor()
        # The values of the knobs of the family that schedules it (`schedule/choose.py`).
        self.choices: Choices = {}

    def _find_anchor(self) -> tuple[RVar | None, Call | None]:
        for var, call in self.calls.items():
            if self.op(call).pattern in ("contraction", "reduction", "opaque"):
                return var, call
        return None, None

    @property
    def main(self) -> Call:
        """The call whose operator decides which kernel families are asked: the anchor or, without
        one, the last call."""
        return self.anchor or self.calls[self.out_var]

    def given(self, family: str) -> Choices:
        """The values of a family's knobs that the group asks for, by its attribute `knobs`."""
        rows = self.function.attrs.get(ATTRIBUTE, ())
        return {name: value for owner, name, value in rows if owner == family}

    def knob(self, name: str, untuned: int | None = None) -> int:
        """The value of a knob that the kernel family of the schedule declares; `untuned` if it
        declares none of this name for this group."""
        if name not in self.choices:
            if untuned is not None:
                return untuned
            raise InternalError(f"group {self.name}: its kernel family declares no knob {name!r}")
        return self.choices[name]

    @staticmethod
    def op(call: Call) -> OpDef:
        """The definition of a call's operator."""
        return ops.get(call.op)

    @property
    def symbols(self) -> tuple[Var, ...]:
        """The symbolic dimensions, in the order in which the kernel takes them."""
        return size_symbols(self.function)

    @cached_property
    def flat(self) -> dict[Buffer, Buffer]:
        """For each buffer, a one-dimensional buffer over the same memory."""
        return {b: _flattened(b) for b in (*self.buffers.values(), self.out)}

    def flatten(self, params: Iterable[RVar]) -> None:
        """Replace the buffers of the result and of `params` by their one-dimensional versions."""
        flat = self.flat
        self.buffers |= {p: flat.get(self.buffers[p], self.buffers[p]) for p in params}
        self.out = flat.get(self.out, self.out)

    @property
    def params(self) -> tuple[Buffer | Var, ...]:
        """Kernel parameters: inputs, the output, then symbolic dimensions."""
        return (*self.buffers.values(), self.out, *self.symbols)

    @property
    def flat_params(self) -> tuple[Buffer | Var, ...]:
        """`params` with every buffer one-dimensional."""
        return (*self.flat.values(), *self.symbols)

    def element(
        self, value: Value, overrides: Mapping[RVar, Element] | None = None
    ) -> Callable[..., Expr]:
        """A function from logical indices to that element of a value, as an expression with all
        operators inlined down to loads of parameters.

        `overrides`: such functions for values that the schedule computes itself. Raises UserError
        (code `not-lowered`) for an operator without a tensor program.
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
            viewed = self._is_viewed(value)
            return lambda *index: Load(buf, self._place(t, index, viewed))
        inputs = [self.tensor_in(a, overrides) for a in call.args]
        program = self.op(call).program
        if program is None:
            raise UserError(
                f"operator {call.op} needs operands in layouts of its own: run assign_layouts "
                "before fuse_ops",
                code="not-lowered",
                where=self.name,
                hint="pipeline.relax_passes lists the passes in order",
            )
        return program(inputs, call.attrs, value.tensor)

    def tensor_in(self, value: Value, overrides: Mapping[RVar, Element] | None = None) -> TensorIn:
        """An operand in the form that an operator's tensor program takes."""
        t = value.type
        assert isinstance(t, TensorType)
        return TensorIn(t, self.element(value, overrides))

    def store_index(self, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index in the output buffer of a logical output element."""
        return self._place(self.out_type, index, self.views or self.out_type.layout is not None)

    def _is_viewed(self, p: RVar) -> bool:
        """Whether the buffer of a parameter has the shape `view_shape`."""
        if not is_channels_last(p.tensor):
            return self.views or p.tensor.layout is not None
        of_windows = any(_reads_windows(p, call) for call in self.calls.values())
        return has_few_channels(p.tensor) or not of_windows

    @staticmethod
    def _place(t: TensorType, index: tuple[Expr, ...], viewed: bool) -> tuple[Expr, ...]:
        if viewed or t.ndim <= 2:
            place = view_index(t, index)
        else:
            place = index if t.layout is None else t.memory.physical_index(index)
        return tuple(map(simplify, place))

    @cached_property
    def unviewed(self) -> Group:
        """The group with buffers that have all dimensions of their tensors."""
        return Group(self.function, self.name, self.target, views=False) if self.views else self


def _constant_element(value: Constant) -> Callable[..., Expr]:
    if value.data.size != 1:
        raise InternalError("only one-element constants stay inside a group")
    item = value.array.reshape(()).item()
    literal = const(item, value.type.dtype)
    return lambda *_: literal


def inplace_params(group: Group) -> tuple[int, ...]:
    """Numbers of the parameters that the result may overwrite: they have the output's type and
    layout, and are read only at the element that is written next (`Family.inplace`)."""
    if not KINDS[group.target.kind].overwrites:
        return ()
    if any(
        group.op(c).pattern not in ("elementwise", "broadcast")
        for c in group.calls.values()
        if c is not group.anchor
    ):
        return ()
    anchored: set[RVar] = set()
    if group.anchor is not None:
        if not any(row.inplace for row in families(group.target).of(group.anchor.op)):
            return ()
        anchored = _behind(group, group.anchor)
    return tuple(
        i
        for i, p in enumerate(group.function.params)
        if p not in anchored and p.tensor == group.out_type
    )


def _behind(group: Group, call: Call) -> set[RVar]:
    """The variables that a call depends on, directly and through its operands."""
    dependences: set[RVar] = set()
    todo = variables(call)
    while todo:
        v = todo.pop()
        if v not in dependences:
            dependences.add(v)
            todo += variables(group.calls[v]) if v in group.calls else []
    return dependences


def _flattened(b: Buffer) -> Buffer:
    size = product(b.shape)
    return Buffer(b.name, b.dtype, (size,), b.scope, b.align)


def static(e: Expr, subject: str) -> int:
    """The value of a constant extent. InternalError, naming `subject`, if it is symbolic: schedules
    check that in their `supports_...` function."""
    n = int_value(e)
    if n is None:
        raise InternalError(f"{subject} is symbolic: {e}")
    return n
