"""Keep the ranges of sizes that `torch.export.Dim(min=..., max=...)` allows for inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.expr import Expr, IntImm, binary, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, RVar, TensorType


def with_ranges(mod: IRModule, program: Any) -> IRModule:
    """Return `mod` with the ranges of the inputs of `program`, an exported ONNX program, added to
    the attribute `assumes` of `main`, so that a call with other sizes is refused.

    Raises UserError (code `bad-freeze`) if a frozen size is outside its range.
    """
    main = mod["main"]
    assert isinstance(main, Function)
    exported = program.exported_program
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    values = [nodes[n].meta.get("val") for n in exported.graph_signature.user_inputs if n in nodes]
    shapes = [v.shape for v in values if hasattr(v, "shape")]
    assumptions: list[Expr] = list(main.attrs.get("assumes", ()))
    for param, shape in zip(main.params, shapes, strict=True):
        assumptions += [c for c in _conditions(param, shape, exported) if c not in assumptions]
    attrs = Attrs.of(**{**main.attrs, "assumes": tuple(assumptions)})
    bounded = replace(main, attrs=attrs) if assumptions else main
    return mod.with_functions(tuple(bounded if f is main else f for f in mod.values()))


def _conditions(param: RVar, shape: Any, exported: Any) -> Iterator[Expr]:
    assert isinstance(param.type, TensorType)
    for axis, (size, symbol) in enumerate(zip(param.type.shape, shape, strict=True)):
        size_range = exported.range_constraints.get(
            getattr(getattr(symbol, "node", None), "expr", None)
        )
        if size_range is not None:
            yield from conditions(size, size_range, 1, 0, f"dimension {axis} of {param.name}")


def conditions(
    size: Expr, symbol_range: Any, a: int, b: int, subject: str, minimum: int = 1
) -> Iterator[Expr]:
    """What the `symbol_range` (torch's `lower` and `upper`) of s says of `size`, which is
    a * s + b. A lower bound of s below `minimum` says nothing.

    Raises UserError (code `bad-freeze`) if `size` is a number outside of it.
    """
    for op, end in (("ge", _number(symbol_range.lower)), ("le", _number(symbol_range.upper))):
        if end is None or (op == "ge" and end < minimum):
            continue
        limit = a * end + b
        number = int_value(size)
        if number is None:
            yield binary(op, size, IntImm(limit))
        elif number < limit if op == "ge" else number > limit:
            raise UserError(
                f"{subject} is frozen to {number}, which its Dim does not allow: expected "
                f"{'at least' if op == 'ge' else 'at most'} {limit}",
                code="bad-freeze",
            )


def _number(limit: Any) -> int | None:
    """A bound as an integer; None for infinity."""
    try:
        return int(limit)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
