"""If, Loop and Scan whose course data decides: branches, and loops of host code.

The bodies become branches of an `If` and closures of a `while_loop`, which read values of the
function around them. Where an extent of a result differs between two branches, or changes from one
iteration to the next, it is known when the function runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.data_extents import with_shape
from tensorkiln.frontend.graph.issues import RanksDiffer, malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.relax import (
    AnyTensorType,
    Binding,
    Body,
    Call,
    Constant,
    Function,
    If,
    Lambda,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Value,
)
from tensorkiln.ir.visit import free_vars

Side = Callable[[], Sequence[Val]]  # imports a branch, and gives its results
Step = Callable[[Sequence[Val]], Sequence[Val]]  # imports a body, from its operands to its results


@dataclass(frozen=True, slots=True)
class _Form:
    """What is known of a value that has several origins; None is an extent that is not."""

    dtype: DType
    shape: tuple[Expr | None, ...]

    @property
    def type(self) -> TensorType | AnyTensorType:
        """The type of such a value."""
        extents = tuple(d for d in self.shape if d is not None)
        if len(extents) < len(self.shape):
            return AnyTensorType(len(self.shape), self.dtype)
        return TensorType(extents, self.dtype)

    def read(self, g: Context, x: RVar) -> RVar:
        """`x`, a value of this form, as a tensor with extents."""
        return with_shape(g, x, self.shape, self.dtype) if None in self.shape else x

    def joined(self, g: Context, form: _Form, subject: str) -> _Form:
        """The form of a value that has this form or the other."""
        if form.dtype != self.dtype:
            raise malformed(f"{subject} is {self.dtype} or {form.dtype}")
        if len(self.shape) != len(form.shape):
            count = f"{len(self.shape)} or {len(form.shape)}"
            raise RanksDiffer("attribute", f"{subject} has {count} dimensions, as the data decides")
        pairs = zip(self.shape, form.shape, strict=True)
        return _Form(self.dtype, tuple(_common(g, a, b) for a, b in pairs))


def _common(g: Context, a: Expr | None, b: Expr | None) -> Expr | None:
    return a if a is not None and b is not None and g.dims.same(a, b) else None


def _form(g: Context, t: TensorType, outside: set[Var]) -> _Form:
    """The form of a tensor outside of the body that made it: a computed dimension that is not in
    `outside` is bound in the body alone."""
    inner = g.dims.computed - outside
    return _Form(t.dtype, tuple(d if inner.isdisjoint(free_vars(d)) else None for d in t.shape))


@contextmanager
def _inside(g: Context) -> Iterator[list[Binding]]:
    """Emit into a body: sizes that are bound there are not known outside."""
    outer_sizes = dict(g.bound_sizes)
    try:
        with g.builder.inner() as bindings:
            yield bindings
    finally:
        g.bound_sizes = outer_sizes


def _tensor_of(v: Value) -> TensorType:
    assert isinstance(v.type, TensorType)
    return v.type


def _wide(g: Context, values: Sequence[Value], forms: Sequence[_Form]) -> list[Value]:
    """The values, as variables of the types of `forms`."""
    return [
        v if isinstance(f.type, TensorType) else g.builder.bind(v, f.type, "any")
        for v, f in zip(values, forms, strict=True)
    ]


def _truth(g: Context, x: Val) -> Val:
    """A condition as a scalar."""
    if not g.type(x).dtype.is_bool:
        raise malformed(f"a condition of {g.dtype(x)}")
    if any(int_value(d) not in (1, None) for d in g.shape(x)):
        raise malformed(f"a condition of shape {[int_value(d) for d in g.shape(x)]}")
    return g.reshape(g.checked(x, [1] * g.rank(x)), ())


# ---- If ------------------------------------------------------------------------------------------


def branches(g: Context, cond: Val, sides: Sequence[Side]) -> list[Val]:
    """The results of the first side where `cond` is true, else those of the second."""
    truth = g.value(_truth(g, cond))
    outside = set(g.dims.computed)
    bodies: list[list[Binding]] = []
    results: list[list[Value]] = []
    for side in sides:
        with _inside(g) as bindings:
            results.append([g.value(v) for v in side()])
        bodies.append(bindings)
    yes, no = ([_form(g, _tensor_of(v), outside) for v in values] for values in results)
    if len(yes) != len(no):
        raise malformed(f"the branches have {len(yes)} and {len(no)} outputs")
    forms = [a.joined(g, b, f"output {k}") for k, (a, b) in enumerate(zip(yes, no, strict=True))]
    branch_bodies = []
    for bindings, values in zip(bodies, results, strict=True):
        with g.builder.inner() as widening:
            wide = _wide(g, values, forms)
        whole = wide[0] if len(wide) == 1 else Tuple(tuple(wide))
        branch_bodies.append(Body((*bindings, *widening), whole))
    is_single = len(forms) == 1
    kind = forms[0].type if is_single else TupleType(tuple(f.type for f in forms))
    result = g.builder.bind(If(truth, branch_bodies[0], branch_bodies[1]), kind, "branch")
    return [forms[0].read(g, result)] if is_single else list(_items(g, result, forms))


def _items(g: Context, whole: RVar, forms: Sequence[_Form], first: int = 0) -> Iterator[RVar]:
    """The fields of a tuple from number `first` on, as tensors with extents."""
    for k, form in enumerate(forms, first):
        yield form.read(g, g.builder.bind(TupleItem(whole, k), form.type, "item"))


# ---- Loop ----------------------------------------------------------------------------------------


def loop(
    g: Context,
    step: Step,
    trips: Val | None,
    cond: Val | None,
    states: Sequence[Val],
    scans: int,
    stacks: Sequence[Val] = (),
) -> list[Val]:
    """The last states, then for each of the last `scans` results of the body, which are rows, those
    of all iterations one after another; behind those of `stacks`, if they are given.

    `step` imports the body: from the number of the iteration, the condition and the states to the
    next condition, the next states and what is stacked. Without `cond`, there is a first iteration;
    without `trips`, there is no limit. (By the standard's text a body's condition counts only where
    `cond` is given; ONNX Runtime heeds it always, and so do we.)
    """
    host_loop = _Loop(g, step, len(states), scans)
    count = None if trips is None else g.reshape(g.cast(trips, "int64"), ())
    first = g.const(True, "bool") if cond is None else _truth(g, cond)
    start = [g.value(v) for v in (g.const(0, "int64"), first, *states)]
    host_loop.settle([_tensor_of(v) for v in start])
    return host_loop.emit(start, count, stacks)


class _Loop:
    """The body of a loop, imported until the forms of its states do not change any more."""

    def __init__(self, g: Context, step: Step, states: int, scans: int):
        self.g, self.step, self.states, self.scans = g, step, states, scans
        self.outside = set(g.dims.computed)
        self.forms: list[_Form] = []  # of the number of the iteration, the condition, the states
        self.rows: list[_Form] = []  # of the rows that one iteration adds to each stack
        self.stays = False  # whether the next condition is always true
        self.params: list[RVar] = []
        self.body: tuple[list[Binding], list[Value]] = [], []

    def settle(self, start: Sequence[TensorType]) -> None:
        """Find the forms of the states, from their types before the first iteration."""
        self.forms = [_form(self.g, t, self.outside) for t in start]
        while True:
            after = self._imported()
            pairs = enumerate(zip(self.forms, after, strict=True))
            joined = [a.joined(self.g, b, f"state {k - 2}") for k, (a, b) in pairs]
            if [f.shape for f in joined] == [f.shape for f in self.forms]:
                return
            self.forms = joined

    def _imported(self) -> list[_Form]:
        """Import the body for states of `forms`, and return the forms of the next ones."""
        g = self.g
        self.params = [RVar(f"state_{k}", f.type) for k, f in enumerate(self.forms)]
        with _inside(g) as bindings:
            operands = [f.read(g, p) for f, p in zip(self.forms, self.params, strict=True)]
            results = list(self.step(operands))
            if len(results) != 1 + self.states + self.scans:
                expected = f"a condition, {self.states} states and {self.scans} others"
                raise malformed(f"the body has {len(results)} outputs, expected {expected}")
            again = _truth(g, results[0])
            self.stays = isinstance(again, Constant) and bool(again.array)
            number = g.emit("add", operands[0], g.const(1, "int64"))
            values = [g.value(v) for v in (number, again, *results[1:])]
        self.body = bindings, values
        forms = [_form(g, _tensor_of(v), self.outside) for v in values]
        self.rows = forms[2 + self.states :]
        return forms[: 2 + self.states]

    def emit(
        self, start: list[Value], count: Val | None, initial_stacks: Sequence[Val]
    ) -> list[Val]:
        """Emit the loop, which adds to the stacks `initial_stacks`, and return its results."""
        g, bindings = self.g, self.body[0]
        if count is None and self.stays:
            raise malformed("it has no end: no number of trips, and its condition stays true")
        stacks = [_Form(r.dtype, (None, *r.shape[1:])) for r in self.rows]
        if any(None in r.shape for r in self.rows):
            raise unsupported("what an iteration adds to a stacked output has no fixed shape")
        forms = [*self.forms, *stacks]
        stacked = [RVar(f"stack_{k}", f.type) for k, f in enumerate(stacks)]
        params = (*self.params, *stacked)
        next_states, rows = self.body[1][: 2 + self.states], self.body[1][2 + self.states :]
        with g.builder.inner() as widening:
            next_stacks = [
                g.builder.emit("append", s, r, span=g.span)
                for s, r in zip(stacked, rows, strict=True)
            ]
            next_values = [*_wide(g, next_states, self.forms), *next_stacks]
        body = Function("body", params, (*bindings, *widening), Tuple(tuple(next_values)))
        first = initial_stacks or [
            g.emit("full", shape=(0, *r.shape[1:]), value=0, dtype=str(r.dtype)) for r in self.rows
        ]
        closures = []
        for name, f in (("again", self._condition(count, forms)), ("body", body)):
            closure = Lambda(f)
            closures.append(g.builder.bind(closure, closure.type, name))
        operands = _wide(g, [*start, *map(g.value, first)], forms)
        kind = TupleType(tuple(f.type for f in forms))
        result = g.builder.bind(
            Call("while_loop", (*closures, *operands), span=g.span), kind, "loop"
        )
        iterations = None if initial_stacks else self._iterations(count, start[1])
        last = [self._all_rows(r, iterations) for r in self.rows]
        out: list[Val] = list(_items(g, result, self.forms[2:], 2))
        for k, (stack, form) in enumerate(zip(stacks, last, strict=True), len(self.forms)):
            item = g.builder.bind(TupleItem(result, k), stack.type, "stack")
            out.append(with_shape(g, item, form.shape, form.dtype))
        return out

    def _all_rows(self, rows: _Form, iterations: Expr | None) -> _Form:
        """The form of a stack of the rows of so many iterations."""
        extent, *inner_extents = rows.shape
        if iterations is None or extent is None:
            return _Form(rows.dtype, (None, *inner_extents))
        return _Form(rows.dtype, (self.g.dims.simplify(iterations * extent), *inner_extents))

    def _condition(self, count: Val | None, forms: Sequence[_Form]) -> Function:
        """Whether there is another iteration: of a state, the condition and the number."""
        g = self.g
        params = tuple(RVar(f"state_{k}", f.type) for k, f in enumerate(forms))
        with g.builder.inner() as bindings:
            again: Val = params[1]
            if count is not None:
                again = g.emit("logical_and", again, g.emit("less", params[0], count))
        return Function("again", params, tuple(bindings), g.value(again))

    def _iterations(self, count: Val | None, first: Value) -> Expr | None:
        """The number of iterations, where no condition ends the loop earlier."""
        starts = isinstance(first, Constant) and bool(first.array)
        if count is None or not (self.stays and starts):
            return None
        array = self.g.expressions(count)
        return None if array is None else self.g.dims.max(0, array.reshape(()).item())


__all__ = ["branches", "loop"]
