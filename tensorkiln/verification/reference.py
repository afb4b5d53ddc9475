"""The reference of `tk.verify`: a graph function in float64, operator by operator, beside what was
computed of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln import ops
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Bound, Call, Function, RVar, TensorType, TupleItem
from tensorkiln.ir.visit_graph import variables
from tensorkiln.measure.inputs import numpy_type
from tensorkiln.ops.evaluate import Steps
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
        own = epsilon(dtype) * size
        total = own if error is None else np.hypot(own, error)
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

    def __str__(self) -> str:
        place = f" at {list(self.at)}" if self.at else ""
        part = "" if self.times is None else f" ({self.times:.3g} x the tolerance)"
        return (
            f"{self.absolute:.3g} absolute, {self.relative:.3g} relative{place}: "
            f"{self.have:.9g}, expected {self.want:.9g}{part}"
        )


NO_DIFFERENCE = Difference(0.0, 0.0, (), 0.0, 0.0, 0.0)
OTHER_SHAPE = Difference(np.inf, np.inf, (), np.inf, 0.0, np.inf)


def difference(have: Array, want: Array, tolerance: Floats | None) -> Difference:
    """Compare two arrays of one shape, to a tolerance if one is given. NaN agrees with NaN, and
    what is too large for the type of `have` with its infinity."""
    if have.size == 0:
        return NO_DIFFERENCE
    a, b = have.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = want.astype(have.dtype).astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.isinf(a) & (a == rounded))
        error = np.where(same, 0.0, np.abs(a - b))
        error = np.where(np.isnan(error), np.inf, error)
        relative = np.where(same, 0.0, error / np.maximum(np.abs(b), np.finfo(np.float64).tiny))
        times = error if tolerance is None else np.where(same, 0.0, error / tolerance)
        times = np.where(np.isnan(times), np.inf, times)
    at = np.unravel_index(int(np.argmax(times)), times.shape)
    # Relative errors say nothing of elements that sums of others nearly cancel.
    counted = np.abs(b) > 1e-3 * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
    return Difference(
        float(error.max()),
        float(np.max(relative, initial=0.0, where=counted)),
        tuple(map(int, at)),
        float(a[at]),
        float(b[at]),
        None if tolerance is None else float(times[at]),
    )


@dataclass(frozen=True, slots=True)
class Compared:
    """Binding number `number` of a function: the reference `want`, in float64, what it `may` be off
    by, and the numbers of the bindings that were evaluated since the values of `have` that it
    depends on."""

    number: int
    binding: Binding
    want: Array
    may: Floats | None
    since: tuple[int, ...]
    difference: Difference | None


def walk(
    mod: IRModule,
    f: Function,
    inputs: Mapping[str, Any],
    have: Mapping[int, Array],
    tolerance: Tolerance,
    *,
    local: bool = True,
    bounds: bool = True,
) -> Iterator[Compared]:
    """Evaluate the bindings of `f`, and compare those of whose numbers `have` has an array; others
    have no `difference`.

    With `local`, later bindings read what `have` has: errors do not add up, and each is that of the
    operators `since`. Without it they read the reference itself. Without `bounds`, nothing is said
    of what is tolerated, which takes most of the time. `inputs` are by parameter.
    """
    steps = Steps(mod, f, inputs, "float64")
    errors: dict[RVar, Floats | None] = {}
    since: dict[RVar, frozenset[int]] = {}
    for number, b in enumerate(f.bindings):
        want, may = _value(steps, b, errors, tolerance, bounds)
        region = frozenset((number,)).union(*(since.get(v, ()) for v in variables(b.value)))
        found: Difference | None = None
        given = have.get(number)
        if given is not None:
            given = given.reshape(np.shape(want)) if given.size == np.size(want) else given
            if given.shape != np.shape(want):
                found, given = OTHER_SHAPE, None
            else:
                allowed = tolerance.of(want, may, given.dtype.name) if bounds else None
                found = difference(given, want, allowed)
        yield Compared(number, b, want, may, tuple(sorted(region)), found)
        if given is not None and local:
            kind = np.asarray(want).dtype
            steps.values[b.var] = steps.promote(given.astype(kind))
            errors[b.var], since[b.var] = None, frozenset()
        else:
            steps.values[b.var] = want
            errors[b.var], since[b.var] = may, region if local else frozenset()


def _value(
    steps: Steps,
    b: Binding,
    errors: Mapping[RVar, Floats | None],
    tolerance: Tolerance,
    bounds: bool,
) -> tuple[Any, Floats | None]:
    """The value of a binding, and what it may be off by."""
    value, t = b.value, b.var.type
    if isinstance(value, Call) and value.op == "bitcast":
        return _bitcast(steps, value, t), None
    want = steps.value(value, t)
    if not bounds or not isinstance(want, np.ndarray):
        return want, None
    if not isinstance(value, Call) or not value.op or not isinstance(t, TensorType):
        return want, _alias_error(value, errors, want)
    args = [steps.operand(a) for a in value.args]
    if not all(isinstance(a, np.ndarray) for a in args):
        return want, None
    own = [errors.get(a) if isinstance(a, RVar) else None for a in value.args]
    eps = epsilon(t.dtype.name)
    op = ops.get(value.op)
    most = tolerance.product if op.pattern in ("contraction", "opaque") else 0.0
    return want, rounding(op, steps.operator(value), args, own, want, Epsilon(eps, max(eps, most)))


def _alias_error(value: Bound, errors: Mapping[RVar, Floats | None], want: Array) -> Floats | None:
    source = value.value if isinstance(value, TupleItem) else value
    error = errors.get(source) if isinstance(source, RVar) else None
    return error if error is None or error.shape == want.shape else None


def _bitcast(steps: Steps, call: Call, t: object) -> Array:
    """The bits of a value are those of its own type, not of float64."""
    (x,) = call.args
    assert isinstance(x.type, TensorType) and isinstance(t, TensorType)
    array = np.asarray(steps.operand(x)).astype(numpy_type(x.type.dtype.name))
    op = ops.get(call.op)
    return np.asarray(steps.promote(op.numpy([array], op.complete(call.attrs))))
