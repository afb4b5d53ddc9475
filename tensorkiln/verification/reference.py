"""The reference of `tk.verify`: a graph function in float64, binding by binding and along the
branches and iterations that are taken, beside what was computed of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln import ops
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
from tensorkiln.verification.bounds import TIMES, Epsilon, Floats, epsilon, rounding

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a value may be off by: the analysis of `bounds`, unless `rtol` or `atol` are given; then
    as numpy.allclose. `product` is the epsilon of products' operands (`compile(precision=)`);
    `times` multiplies the analysis, for a reference that rounds too."""

    rtol: float | None = None
    atol: float | None = None
    product: float = 0.0
    times: float = TIMES

    @property
    def is_given(self) -> bool:
        """Whether the caller gave numbers."""
        return self.rtol is not None or self.atol is not None

    def of(self, want: Array, error: Floats | None, dtype: str) -> Floats:
        """The tolerance of each element of a value in float64 that `error` says of it; the value
        was stored as `dtype`."""
        size = np.abs(want.astype(np.float64))
        if self.is_given:
            return np.asarray((self.atol or 0.0) + (self.rtol or 0.0) * size)
        value_error = epsilon(dtype) * size
        total = value_error if error is None else np.hypot(value_error, error)
        smallest = 0.0 if np.dtype(want.dtype).kind in "biu" else _tiny(dtype)
        return np.asarray(self.times * np.nan_to_num(total, posinf=np.inf) + smallest)

    def rule(self) -> str:
        """One sentence for reports."""
        if self.is_given:
            return f"atol={self.atol or 0:g} + rtol={self.rtol or 0:g} x |reference|"
        eps = f", eps {self.product:.3g} in products" if self.product else ""
        return f"{self.times:g} x what rounding may do, operator by operator{eps}"


def _tiny(dtype: str) -> float:
    """Numbers so near to 0 may be flushed."""
    if dtype == "bfloat16":
        return 2.0**-126
    kind = np.dtype(dtype)
    return float(np.finfo(kind).tiny) if kind.kind == "f" else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest errors of a value, and the place where its error is the largest part of what is
    tolerated: `times` that, of `have` where the reference has `want`. More than 1 is too much. If
    `times` is None, nothing is tolerated or not, and the place is that of the largest error."""

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
        """Whether one of both is not there: `have` and `want` are NaN, which agree otherwise."""
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
    """Compare two arrays of one shape, to a tolerance if one is given. NaN agrees with NaN, and
    what is too large for the type of `have` with its infinity."""
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
    # Relative errors say nothing of elements that sums of others nearly cancel.
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
Have = Mapping[str, Sequence[Array]]  # what was compiled of values, by name, in order of time


@dataclass(frozen=True, slots=True)
class Compared:
    """A value that was computed, and the reference.

    `since` are the bindings that were evaluated since the known values that it depends on. `path`
    is where in an outer function it was (`Evaluation.path`). `want` is the reference, in float64,
    and `may` what it may be off by, where these were asked for.
    """

    key: Key
    binding: Binding
    path: tuple[str, ...]
    since: tuple[Binding, ...]
    difference: Difference
    want: Array | None = None
    may: Floats | None = None


@dataclass(slots=True)
class Walk:
    """What `walk` found: every value of `have` that the function computes, compared in order, and
    its results, None if it did not reach the end. At its end, `values` are those that bindings may
    read there. `surplus` says, of names that `have` has another number of values of, how many
    more."""

    compared: list[Compared] = field(default_factory=list)
    results: list[Any] | None = None
    values: dict[RVar, Any] = field(default_factory=dict)
    surplus: dict[str, int] = field(default_factory=dict)

    def value(self, v: RVar) -> Array:
        """A tensor in the type that the model says."""
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
) -> Walk:
    """Evaluate `f` and what it calls, and compare the values that `have` has.

    With `local`, later bindings read what `have` has: errors do not add up, each is that of the
    operators `since`, and branches and iterations are those that were run. Without it they read the
    reference itself. It ends at the value `until`; with `local`, where `have` should have one more
    value of a name and has not: another way was taken. Without it, at ten times as many, since a
    loop may not end. Without `bounds`, nothing is said of what is tolerated,
    which takes most of the time. With `arrays`, references and tolerances are kept, which take
    memory. `inputs` are by parameter.
    """
    outcome = Walk()
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
    """The evaluation that `walk` makes. `times` is how often a value of each name was computed."""

    have: Have = field(default_factory=dict)
    tolerance: Tolerance = field(default_factory=Tolerance)
    local: bool = True
    bounds: bool = True
    arrays: bool = False
    until: Key | None = None
    outcome: Walk = field(default_factory=Walk)
    times: dict[str, int] = field(default_factory=dict)
    errors: dict[RVar, Floats | None] = field(default_factory=dict)
    since: dict[RVar, dict[int, Binding]] = field(default_factory=dict)  # in order of time
    steps: int = 0

    def bound(self, b: Binding, values: dict[RVar, Any], env: Env) -> Any:
        """The value of a binding for those that follow it."""
        want, may = self._value(b, values, env)
        # Counted now: within its own value, a recursive function has computed it again.
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
        """The bindings since known values, with `b` itself."""
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
        """The difference, and what was compiled in the shape of the model's value."""
        if array is None:
            return NOT_COMPUTED, None
        array = array.reshape(np.shape(want)) if array.size == np.size(want) else array
        if array.shape != np.shape(want):
            return OTHER_SHAPE, None
        allowed = self.tolerance.of(want, may, array.dtype.name) if self.bounds else None
        return difference(array, want, allowed), array

    def _value(self, b: Binding, values: dict[RVar, Any], env: Env) -> tuple[Any, Floats | None]:
        """The value of a binding, and what it may be off by."""
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
        eps = epsilon(t.dtype.name)
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
        """What a function of the host gave, which is not called again for the reference."""
        if not isinstance(b.value, Call) or b.value.op not in _OF_HOST:
            return None
        arrays = self.have.get(b.var.name, ())
        index = self.times.get(b.var.name, 0)
        return self.promote(arrays[index]) if index < len(arrays) else None

    def _error(self, v: Value, x: Array) -> Floats | None:
        """What an operand may be off by."""
        error = self.errors.get(v) if isinstance(v, RVar) else None
        return error if error is None or error.shape == x.shape else None

    def _alias_error(self, value: Bound, want: Array) -> Floats | None:
        source = value.value if isinstance(value, TupleItem) else value
        return self._error(source, want) if isinstance(source, RVar) else None


_EXACT = ("bitcast",)
_OF_HOST = ("call_packed", "call_dps_packed")


def _is_operator(call: Call) -> bool:
    """Whether a call is of an operator whose rounding `bounds` knows."""
    return bool(call.op) and call.op not in ops.DYNAMIC and call.op not in IMPURE_OPS


def _flat(value: Any) -> list[Any]:
    return [x for part in value for x in _flat(part)] if isinstance(value, tuple) else [value]
