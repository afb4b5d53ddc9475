"""The definition of an operator: signature, type rule, tensor program and NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.relax import TensorType
from tensorkiln.ops.attribute import Attribute, check_all, completed
from tensorkiln.ops.need import Needs

# How output elements relate to input elements. Fusion decides by this alone.
#   elementwise  out[i] from in[i] of every input; all inputs have the output's shape
#   broadcast    as elementwise, but inputs may have extents 1 or lack leading dimensions
#   injective    out[i] from one computed element per input (transpose, slice, pad, gather, concat)
#   reduction    out[i] from a range of elements
#   contraction  sums of products (conv2d, matmul): has schedules of its own
#   opaque       several passes over the data (softmax, layer norm): has schedules of its own
PATTERNS = ("elementwise", "broadcast", "injective", "reduction", "contraction", "opaque")


@dataclass(frozen=True, slots=True)
class TensorIn:
    """An operand of a tensor program: its type, and a function from logical indices to the
    expression of the element there."""

    type: TensorType
    element: Callable[..., Expr]

    def __call__(self, *index: Expr) -> Expr:
        """Return the element at the given logical indices, one per dimension."""
        return self.element(*index)


# From an output index to the value there, which may contain `Reduce` nodes.
Element = Callable[..., Expr]
Operands = Sequence[TensorType]
Infer = Callable[[Operands, Attrs], TensorType]
Program = Callable[[Sequence[TensorIn], Attrs, TensorType], Element]
NumpyRef = Callable[[Sequence[np.ndarray], Attrs], np.ndarray]


@cache
def _counts(inputs: tuple[str, ...]) -> tuple[int, bool]:
    """Return the least number of operands, and whether the last operand is variadic."""
    minimum = sum(not name.endswith(("?", "*")) for name in inputs)
    return minimum, any(name.endswith("*") for name in inputs)


@dataclass(frozen=True, slots=True)
class Signature:
    """Operands and attributes of an operator. `inputs` are the names of operands: the last ones may
    be optional, spelled `name?`, or one may be variadic, `name*`. `attrs` has a row per
    attribute."""

    name: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Attribute]

    def operand_name(self, position: int) -> str:
        """Return the name of an operand for messages: `x`, or `xs[2]` within a variadic operand."""
        name = self.inputs[min(position, len(self.inputs) - 1)]
        return f"{name[:-1]}[{position}]" if name.endswith("*") else name.rstrip("?")

    def check_count(self, count: int) -> None:
        """Raise UserError `operand-count` unless the operator takes `count` operands."""
        minimum, variadic = _counts(self.inputs)
        if count < minimum or (not variadic and count > len(self.inputs)):
            limit = "or more" if variadic else f"to {len(self.inputs)}"
            number = f"{minimum}" if minimum == len(self.inputs) else f"{minimum} {limit}"
            raise UserError(
                f"operator {self.name}: expected {number} operand(s) "
                f"({', '.join(self.inputs)}), received {count}",
                code="operand-count",
                hint=f"attributes are given by name: {', '.join(f'{k}=' for k in self.attrs)}"
                if self.attrs and count > minimum
                else "",
            )

    def complete(self, attrs: Mapping[str, object]) -> Attrs:
        """Check attributes and return them with defaults filled in. Raise UserError
        `unknown-attribute`, `missing-attribute` or `bad-attribute`."""
        check_all(self.name, self.attrs, attrs)
        return completed(self.attrs, attrs)


@dataclass(frozen=True, slots=True)
class OpDef(Signature):
    """One operator.

    `pattern` is one of `PATTERNS`. `infer` returns the result type, or raises UserError if the
    operands do not fit. `numpy` is the reference implementation. `program` returns the expression
    of an output element; it is None for operators that only a schedule of their own can compute.
    `needs` is what it requires of extents beyond the type rule, which says what of them must agree.
    """

    pattern: str
    infer: Infer
    numpy: NumpyRef
    program: Program | None = None
    needs: Needs | None = None

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise InternalError(f"operator {self.name}: unknown pattern {self.pattern!r}")
