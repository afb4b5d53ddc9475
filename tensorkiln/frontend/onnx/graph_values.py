"""What a name in an ONNX graph may stand for: a tensor, a tensor of a narrow type, a list of
tensors (ONNX's sequences), or nothing (an optional that is empty)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensorkiln.frontend.graph.issues import NodeProblem, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx import narrow
from tensorkiln.frontend.onnx.narrow import Narrow
from tensorkiln.frontend.onnx.texts import Texts


@dataclass(frozen=True, slots=True, eq=False)
class TensorList:
    """A sequence, whose length is known: graphs have none, so operators on it are done here."""

    items: tuple[Val | Narrow, ...]


class EmptyOptional:
    """An optional without a value; see `ABSENT`. One with a value is that value."""


ABSENT = EmptyOptional()
GraphValue = Val | Narrow | TensorList | EmptyOptional | Texts

# Operators whose importers take tensors of strings.
OF_TEXTS = frozenset(f"ai.onnx.ml.{op}" for op in ("LabelEncoder", "OneHotEncoder"))

# Operators whose importers take sequences and optionals, and tensors of any type in them.
OF_LISTS = frozenset(
    {
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "SplitToSequence",
    }
)


def apply(
    op: str,
    call: Callable[..., GraphValue | Sequence[GraphValue]],
    operands: Sequence[GraphValue | None],
) -> Sequence[GraphValue]:
    """The results of a node whose importer `call` is given the operands; NodeProblem if it has one
    that its operator does not take."""

    def run(args: Sequence[GraphValue | None]) -> Sequence[GraphValue]:
        out = call(*args)
        return list(out) if isinstance(out, list | tuple) else [out]  # type: ignore[list-item]

    plain = not any(isinstance(v, Narrow | TensorList | EmptyOptional | Texts) for v in operands)
    if plain or op in OF_LISTS or op == "Identity":
        return run(operands)
    for k, v in enumerate(operands):
        if isinstance(v, TensorList | EmptyOptional):
            kind = "a sequence" if isinstance(v, TensorList) else "an empty optional"
            hint = "SequenceAt takes a tensor from a sequence" if kind == "a sequence" else ""
            raise NodeProblem("malformed", f"operand {k} is {kind}, expected a tensor", hint)
    if any(isinstance(v, Texts) for v in operands):
        if op in OF_TEXTS:
            return run(operands)
        raise unsupported("an operand is of strings", "encoders of ai.onnx.ml take them", "dtype")
    if op in narrow.CONVERSIONS or op in narrow.SHAPES:
        return run(operands)
    if op in narrow.MOVEMENT:
        return narrow.moved(op, run, operands)  # type: ignore[arg-type]
    name = next(v.format.name for v in operands if isinstance(v, Narrow))
    raise unsupported(
        f"an operand has element type {name}, which is only stored",
        "Cast or DequantizeLinear gives a type to compute with",
        "dtype",
    )
