"""One call of `verify`: its arguments, and the comparison of outputs if nothing else is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.base.errors import UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Function,
    ObjectType,
    ShapeType,
    Tuple,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import compile
from tensorkiln.target import devices_of
from tensorkiln.target.kinds import KINDS
from tensorkiln.verification.compiled import (
    Compiled,
    with_debug,
)
from tensorkiln.verification.reference import (
    OTHER_SHAPE,
    Tolerance,
    difference,
)
from tensorkiln.verification.result import OutputReport, Verification

Array = npt.NDArray[Any]


@dataclass(slots=True)
class Run:
    """One call of `verify`: the model's function, and `arrays` for its inputs, in order."""

    source: Compiled
    mod: IRModule
    f: Function
    arrays: list[Array]
    tolerance: Tolerance
    reference: str
    model: Any
    options: Mapping[str, Any]  # how the model was imported: `freeze` and `shapes`
    saves: bool

    def output_names(self, count: int) -> list[str]:
        """The names of outputs. A function with control flow may return a tuple as one output; its
        fields are then numbered."""
        names = [o.name for o in self.source.info.outputs]
        return names if len(names) >= count else [f"{names[0]}{i}" for i in range(count)]

    def params(self, f: Function) -> dict[str, Array]:
        """The inputs by the names of `f`'s parameters."""
        return {p.name: a for p, a in zip(f.params, self.arrays, strict=True)}

    def compiled_again(self, notes: list[str]) -> Compiled | None:
        """The function compiled again with `debug`, from the same module for the same target; None,
        with a note, for a library or if the kernels differ."""
        executable = self.source.executable
        if executable is None:
            notes.append(
                "inner values are not known: compile(debug=True), or kiln compile --debug, makes a "
                "library that returns them"
            )
            return None
        name = executable.name if executable.is_named else None
        level = executable.level_here
        debug_executable = compile(self.mod, level.target, name=name, debug=True)
        kinds = {(k.symbol, k.kernel_class) for k in debug_executable.kernels}
        if any((k.symbol, k.kernel_class) not in kinds for k in level.kernels):
            notes.append(
                "inner values are not known: it was compiled with other passes or externals than "
                "the target's; pass debug=True to that compile"
            )
            return None
        notes.append("inner values are those of the same module compiled again, with debug=True")
        return with_debug(self.source, debug_executable)

    def whole(self, values: Sequence[Array], notes: Sequence[str]) -> Verification:
        """The result for a function with control flow of which only the outputs are known."""
        want = evaluate(self.mod, self.params(self.f), dtype="float64", function=self.f.name)
        reports = self.output_reports(values, leaves(want, self.f))
        relative, absolute = ELEMENT_TYPES[self.source.target.precision].tolerance
        rule = self.tolerance
        text = f"{absolute:g} x the largest + {relative:g} x |reference|"
        return Verification(
            not any(r.difference.is_too_much for r in reports),
            self.f.name,
            target_text(self.source),
            self.reference,
            rule.rule() if rule.is_given else text,
            0,
            tuple(reports),
            notes=(
                f"{self.f.name} has control flow: without debug only its outputs are compared",
                *notes,
            ),
        )

    def output_reports(self, values: Sequence[Array], want: Sequence[Array]) -> list[OutputReport]:
        """The reports on outputs of a function with control flow, compared with the reference of
        the whole model. Since all its rounding errors add up, the tolerance is a fixed one for each
        precision."""
        relative, absolute = ELEMENT_TYPES[self.source.target.precision].tolerance
        if len(values) != len(want):
            raise UserError(
                f"the library returns {len(values)} output(s), the model {len(want)}",
                code="other-model",
                hint="model is what the library was compiled from",
            )
        reports = []
        for name, a, b in zip(self.output_names(len(want)), values, want, strict=True):
            size = np.abs(b.astype(np.float64))
            top = float(size[np.isfinite(size)].max(initial=0.0))
            may = absolute * top + relative * size
            if self.tolerance.is_given:
                may = self.tolerance.of(b, None, a.dtype.name)
            output_difference = difference(a, b, may) if a.shape == b.shape else OTHER_SHAPE
            reports.append(OutputReport(name, a.dtype.name, a.shape, output_difference))
        return reports


def fields(v: Value) -> tuple[Value, ...]:
    """The fields of a function's result: those of a tuple, or the result itself."""
    return v.fields if isinstance(v, Tuple) else (v,)


def leaves(values: Sequence[Any], f: Function) -> list[Array]:
    """The tensors and numbers in the results of `f`, flattened as `arrays_of` does for a
    library."""
    types = list(_flat_types(f.result.type))
    if len(types) != len(values):
        types = [ObjectType()] * len(values)
    out: list[Array] = []
    for v, t in zip(values, types, strict=True):
        if isinstance(t, ShapeType):
            out += [np.asarray(int(n)) for n in v]
        elif isinstance(v, np.ndarray | bool | int | float):
            out.append(np.asarray(v))
    return out


def _flat_types(t: Type) -> Iterator[Type]:
    if isinstance(t, TupleType):
        for x in t.fields:
            yield from _flat_types(x)
    else:
        yield t


def target_text(source: Compiled) -> str:
    """The target in a few words, for reports."""
    target = source.target
    if target.tag:
        return target.tag
    if devices := devices_of(target):
        return " and ".join(devices)
    return f"{target.kind} {target.mcpu}" if KINDS[target.kind].is_cpu else target.kind
