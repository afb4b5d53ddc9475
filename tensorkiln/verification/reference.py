"""The reference of `tk.verify`: a graph function evaluated in float64 and compared with compiled
values.

`walk` evaluates the model binding by binding, including branches, loops and calls. Whenever a
binding's value was also compiled, both are compared. In a `local` walk, evaluation then continues
with the compiled value in place of the reference's, so that each comparison shows the error of only
those operators that were evaluated since. Along with each value its estimated rounding error is
computed (`bounds`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln import ops
from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    IMPURE_OPS,
    Binding,
    Bound,
    Call,
    Function,
    RVar,
    TensorType,
    TupleItem,
    Value,
)
from tensorkiln.ir.visit_graph import bindings_in, variables
from tensorkiln.measure.inputs import numpy_type
from tensorkiln.ops.evaluate import Evaluation
from tensorkiln.ops.match_value import Env
from tensorkiln.verification.bounds import TIMES, Epsilon, Floats, rounding

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The permitted error of a value: by the analysis of `bounds` or, if `rtol` or `atol` is given,
    as in numpy.allclose. `product` is the epsilon of products' operands (`compile(precision=)`).
    `times` multiplies the analysis; it is larger for a reference that rounds, too."""

    rtol: float | None = None
    atol: float | None = None
    product: float = 0.0
    times: float = TIMES

    @property
    def is_given(self) -> bool:
        """Whether the caller gave `rtol` or `atol`."""
        return self.rtol is not None or self.atol is not None

    def of(self, want: Array, error: Floats | None, dtype: str) -> Floats:
        """The permitted error of each element of the reference `want`, whose estimated rounding
        error is `error` and which the compiled function stored as `dtype`."""
        size = np.abs(want.astype(np.float64))
        if self.is_given:
            return np.asarray((self.atol or 0.0) + (self.rtol or 0.0) * size)
        value_error = ELEMENT_TYPES[dtype].epsilon * size
        total = value_error if error is None else np.hypot(value_error, error)
        # Numbers below the smallest normal one may be flushed to 0.
        smallest = 0.0 if np.dtype(want.dtype).kind in "biu" else ELEMENT_TYPES[dtype].tiny
        return np.asarray(self.times * np.nan_to_num(total, posinf=np.inf) + smallest)

    def rule(self) -> str:
        """The rule in a few words, for reports."""
        if self.is_given:
            return f"atol={self.atol or 0:g} + rtol={self.rtol or 0:g} x |reference|"
        eps = f", eps {self.product:.3g} in products" if self.product else ""
        return f"{self.times:g} x what rounding may do, operator by operator{eps}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest absolute and relative errors of a value, and its worst element: `have` at index
    `at`, where the reference has `want`. `times` is that element's error divided by its tolerance;
    more than 1 diverges. If `times` is None, there was no tolerance, and the worst element is that
    of the largest absolute error."""

    absolute: float
    relative: float
    at: tuple[int, ...]
    have: float
    want: float
    times: float | None

    @property
    def is_too_much(self) -> bool:
        """Whether the value diverges."""
        return self.times is not None and self.times > 1

    @property
    def is_missing(self) -> bool:
        """Whether the value was computed on one side only. `have` and `want` are NaN then; NaN on
        both sides is no error otherwise."""
        return math.isnan(self.have) and math.isnan(self.want)

    def __str__(self) -> str:
        if self.is_missing:
            return "only one of both computes it"
        place = f" at {list(self.at)}" if self.at else ""
        part = "" if self.times is None else f" ({self.times:.3g} x the tolerance)"
        return (
            f"{self.absolute:.3g} absolute, {self.relative:.3g} relative{place}: "
            f"{self.have:.9g}, expected {self.want:.9g}{part}"
        )


NO_DIFFERENCE = Difference(0.0, 0.0, (), 0.0, 0.0, 0.0)
NOT_COMPUTED = Difference(np.inf, np.inf, (), np.nan, np.nan, np.inf)
OTHER_SHAPE = Difference(np.inf, np.inf, (), np.inf, 0.0, np.inf)


def difference(have: Array, want: Array, tolerance: Floats | None) -> Difference:
    """Compare two arrays of one shape, with a tolerance if one is given. NaN equals NaN, and
    infinity equals a number that is too large for the type of `have`."""
    if have.size == 0:
        return NO_DIFFERENCE
    a, b = have.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = want.astype(have.dtype).astype(np.float64)
        equal = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == rounded))
        error = np.where(equal, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
        relative = np.where(equal, 0.0, error / np.maximum(np.abs(b), np.finfo(np.float64).tiny))
        times = error if tolerance is None else np.where(equal, 0.0, error / tolerance)
        times = np.where(np.isnan(times), np.inf, times)
    index = np.unravel_index(int(np.argmax(times)), times.shape)
    # Relative errors are meaningless for elements near 0, where large terms cancelled.
    counted = np.abs(b) > 1e-3 * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
    return Difference(
        float(error.max()),
        float(np.max(relative, initial=0.0, where=counted)),
        tuple(map(int, index)),
        float(a[index]),
        float(b[index]),
        None if tolerance is None else float(times[index]),
    )


Key = tuple[str, int]  # the name of a value, and how often it was computed before
Have = Mapping[str, Sequence[Array]]  # compiled values by name, each name's in order of time


@dataclass(frozen=True, slots=True)
class Compared:
    """The comparison of one value.

    `since` are the bindings that were evaluated since the compiled values on which it depends.
    `path` is where in a function with control flow it was computed (`Evaluation.path`). With
    `arrays`, `want` is the reference in float64 and `may` its estimated rounding error.
    """

    key: Key
    binding: Binding
    path: tuple[str, ...]
    since: tuple[Binding, ...]
    difference: Difference
    want: Array | None = None
    may: Floats | None = None


@dataclass(slots=True)
class ReferenceWalk:
    """The result of `walk`: the comparisons in order, and the function's results, None if it ended
    early. `values` are those in scope where it ended. `surplus` maps names to how many more values
    of that name were compiled than the reference computed."""

    compared: list[Compared] = field(default_factory=list)
    results: list[Any] | None = None
    values: dict[RVar, Any] = field(default_factory=dict)
    surplus: dict[str, int] = field(default_factory=dict)

    def value(self, v: RVar) -> Array:
        """A tensor, converted to its type in the model."""
        kind = v.type.dtype.name if isinstance(v.type, TensorType) else ""
        array = np.asarray(self.values[v])
        return array.astype(numpy_type(kind)) if kind else array


def walk(
    mod: IRModule,
    f: Function,
    inputs: Mapping[str, Any],
    have: Have,
    tolerance: Tolerance,
    *,
    local: bool = True,
    bounds: bool = True,
    arrays: bool = False,
    until: Key | None = None,
) -> ReferenceWalk:
    """Evaluate `f` and what it calls in float64, and compare its values with the compiled ones,
    `have`.

    With `local`, bindings read compiled values where there are any: errors do not accumulate, each
    is that of the operators `since`, and branches and iterations are those that the compiled
    function took. The walk ends where `have` lacks a value, since another branch or number of
    iterations was taken there. Without `local`, bindings read the reference's own values, and the
    walk ends after ten times as many values of a name as were compiled, since a loop may not
    terminate. In any case it ends at the value `until`.

    Without `bounds`, errors are not compared with tolerances, whose computation takes most of the
    time. With `arrays`, each comparison keeps its arrays, which takes memory. `inputs` are by
    parameter.
    """
    outcome = ReferenceWalk()
    run = _Walking(
        mod,
        DType("float64"),
        have=have,
        tolerance=tolerance,
        local=local,
        bounds=bounds,
        arrays=arrays,
        until=until,
        outcome=outcome,
    )
    values, env = run.start(f, inputs)
    outcome.values = values
    try:
        results = run.body(f, values, env)
    except _EndError:
        return outcome
    outcome.results = list(_flat(results))
    surplus = {name: len(arrays) - run.times.get(name, 0) for name, arrays in have.items()}
    outcome.surplus = {name: n for name, n in surplus.items() if n}
    return outcome


class _EndError(Exception):
    """Ends a walk."""


@dataclass(slots=True)
class _Walking(Evaluation):
    """The evaluation that `walk` makes. `times` counts the values of each name so far; `errors` are
    the estimated rounding errors of values, and `since` the bindings that were evaluated since
    compiled values, numbered by time."""

    have: Have = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    local: bool = True
    bounds: bool = True
    arrays: bool = False
    until: Key | None = None
    outcome: ReferenceWalk = field(default_factory=ReferenceWalk)
    times: dict[str, int] = field(default_factory=dict)
    errors: dict[RVar, Floats | None] = field(default_factory=dict)
    since: dict[RVar, dict[int, Binding]] = field(default_factory=dict)  # in order of time
    steps: int = 0

    def bound(self, b: Binding, values: dict[RVar, Any], env: Env) -> Any:
        """The value of a binding that later bindings read: the compiled one in a local walk."""
        want, may = self._value(b, values, env)
        # Counted only now: evaluating a recursive call computes the same name again.
        name = b.var.name
        key = name, self.times.get(name, 0)
        self.times[name] = key[1] + 1
        region = self._region(b)
        arrays = self.have.get(name)
        if arrays is None:
            self.errors[b.var], self.since[b.var] = may, region if self.local else {}
            return want
        is_missing = key[1] >= len(arrays)
        if is_missing and not self.local:
            self.outcome.surplus[name] = len(arrays) - key[1] - 1
            if key[1] > 1000 + 10 * len(arrays):
                raise _EndError
            self.errors[b.var], self.since[b.var] = may, {}
            return want
        array = None if is_missing else arrays[key[1]]
        error, array = self._compared(array, want, may)
        pair = (want, may) if self.arrays else (None, None)
        self.outcome.compared.append(
            Compared(
                key, b, tuple(self.path), tuple(region[i] for i in sorted(region)), error, *pair
            )
        )
        if key == self.until or is_missing:
            self.outcome.values = values
            raise _EndError
        if array is not None and self.local:
            self.errors[b.var], self.since[b.var] = None, {}
            return self.promote(array.astype(np.asarray(want).dtype))
        self.errors[b.var], self.since[b.var] = may, region if self.local else {}
        return want

    def _region(self, b: Binding) -> dict[int, Binding]:
        """The bindings that were evaluated for `b` since compiled values, with `b` itself."""
        inner = {x.var for x in bindings_in((b,))}
        region: dict[int, Binding] = {}
        for v in variables(b.value):
            if v not in inner:
                region |= self.since.get(v, {})
        self.steps += 1
        return {**region, self.steps: b}

    def _compared(
        self, array: Array | None, want: Any, may: Floats | None
    ) -> tuple[Difference, Array | None]:
        """The difference, and the compiled value in the shape of the model's value."""
        if array is None:
            return NOT_COMPUTED, None
        array = array.reshape(np.shape(want)) if array.size == np.size(want) else array
        if array.shape != np.shape(want):
            return OTHER_SHAPE, None
        allowed = self.tolerance.of(want, may, array.dtype.name) if self.bounds else None
        return difference(array, want, allowed), array

    def _value(self, b: Binding, values: dict[RVar, Any], env: Env) -> tuple[Any, Floats | None]:
        """The reference's value of a binding, and its estimated rounding error."""
        value, t = b.value, b.var.type
        host_value = self._result_of_others(b)
        if host_value is not None:
            return host_value, None
        want = Evaluation.bound(self, b, values, env)
        if not self.bounds or not isinstance(want, np.ndarray):
            return want, None
        if isinstance(value, Call) and value.op in _EXACT:
            return want, None
        if not isinstance(value, Call) or not isinstance(t, TensorType) or not _is_operator(value):
            return want, self._alias_error(value, want)
        args = [self.value(a, values, env) for a in value.args]
        if not all(isinstance(a, np.ndarray) for a in args):
            return want, None
        operand_errors = [self._error(a, x) for a, x in zip(value.args, args, strict=True)]
        eps = t.dtype.row.epsilon
        op = ops.get(value.op)
        product_eps = self.tolerance.product if op.pattern in ("contraction", "opaque") else 0.0
        may = rounding(
            op,
            self.operator(value, env),
            args,
            operand_errors,
            want,
            Epsilon(eps, max(eps, product_eps)),
        )
        return want, may

    def _result_of_others(self, b: Binding) -> Array | None:
        """The compiled result of a host function, which is not called a second time for the
        reference."""
        if not isinstance(b.value, Call) or b.value.op not in _OF_HOST:
            return None
        arrays = self.have.get(b.var.name, ())
        index = self.times.get(b.var.name, 0)
        return self.promote(arrays[index]) if index < len(arrays) else None

    def _error(self, v: Value, x: Array) -> Floats | None:
        """The estimated error of an operand; None if it is exact."""
        error = self.errors.get(v) if isinstance(v, RVar) else None
        return error if error is None or error.shape == x.shape else None

    def _alias_error(self, value: Bound, want: Array) -> Floats | None:
        source = value.value if isinstance(value, TupleItem) else value
        return self._error(source, want) if isinstance(source, RVar) else None


_EXACT = ("bitcast",)
_OF_HOST = ("call_packed", "call_dps_packed")


def _is_operator(call: Call) -> bool:
    """Whether a call is of an operator whose rounding `bounds` can estimate."""
    return bool(call.op) and call.op not in ops.DYNAMIC and call.op not in IMPURE_OPS


def _flat(value: Any) -> list[Any]:
    return [x for part in value for x in _flat(part)] if isinstance(value, tuple) else [value]
