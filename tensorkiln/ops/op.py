"""What an operator is: signature, type rule, tensor program and NumPy meaning, in one place."""

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

# How output elements relate to input elements; fusion is decided from this alone.
#   elementwise  out[i] from in[i] of every input (all of the output's shape)
#   broadcast    as elementwise, inputs may have extent-1 or missing leading dimensions
#   injective    out[i] from one computed element per input (transpose, slice, pad, gather, concat)
#   reduction    out[i] from a range of elements
#   contraction  conv2d, matmul: has schedules of its own
#   opaque       several passes over the data (softmax, layer norm): has schedules of its own
PATTERNS = ("elementwise", "broadcast", "injective", "reduction", "contraction", "opaque")


@dataclass(frozen=True, slots=True)
class TensorIn:
    """An operand inside a tensor program: its type, and the element at logical indices."""

    type: TensorType
    element: Callable[..., Expr]

    def __call__(self, *index: Expr) -> Expr:
        """The element at logical indices."""
        return self.element(*index)


# The value at one output index; may contain `Reduce` nodes.
Element = Callable[..., Expr]
Operands = Sequence[TensorType]
Infer = Callable[[Operands, Attrs], TensorType]
Program = Callable[[Sequence[TensorIn], Attrs, TensorType], Element]
NumpyRef = Callable[[Sequence[np.ndarray], Attrs], np.ndarray]


@cache
def _counts(inputs: tuple[str, ...]) -> tuple[int, bool]:
    """The least number of operands, and whether there may be any number more."""
    least = sum(not name.endswith(("?", "*")) for name in inputs)
    return least, any(name.endswith("*") for name in inputs)


@dataclass(frozen=True, slots=True)
class Signature:
    """Operands and attributes of an operator. `inputs` are operand names; `name?` is optional
    (trailing), `name*` variadic. `attrs` say what each attribute may be."""

    name: str
    inputs: tuple[str, ...]
    attrs: Mapping[str, Attribute]

    def operand_name(self, position: int) -> str:
        """`x`, or `xs[2]` for the third of a variadic operand."""
        name = self.inputs[min(position, len(self.inputs) - 1)]
        return f"{name[:-1]}[{position}]" if name.endswith("*") else name.rstrip("?")

    def check_count(self, count: int) -> None:
        """UserError `operand-count` unless that many operands can be given."""
        least, variadic = _counts(self.inputs)
        if count < least or (not variadic and count > len(self.inputs)):
            most = "or more" if variadic else f"to {len(self.inputs)}"
            number = f"{least}" if least == len(self.inputs) else f"{least} {most}"
            raise UserError(
                f"operator {self.name}: expected {number} operand(s) "
                f"({', '.join(self.inputs)}), received {count}",
                code="operand-count",
                hint=f"attributes are given by name: {', '.join(f'{k}=' for k in self.attrs)}"
                if self.attrs and count > least
                else "",
            )

    def complete(self, attrs: Mapping[str, object]) -> Attrs:
        """Attributes with defaults filled in. Raises UserError: `unknown-attribute`,
        `missing-attribute`, `bad-attribute`."""
        check_all(self.name, self.attrs, attrs)
        return completed(self.attrs, attrs)


@dataclass(frozen=True, slots=True)
class OpDef(Signature):
    """One operator.

    `infer` raises UserError when operands do not fit. `program` is None only for operators that
    an earlier pass must remove or that own a schedule without a one-pass element form.
    """

    pattern: str
    infer: Infer
    numpy: NumpyRef
    program: Program | None = None

    def __post_init__(self) -> None:
        if self.pattern not in PATTERNS:
            raise InternalError(f"operator {self.name}: unknown pattern {self.pattern!r}")
