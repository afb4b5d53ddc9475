"""Random graphs of ONNX: operators of all kinds, branches, loops, scans, sequences, sizes that data
decides, dimensions of 0.

A graph is drawn node by node. Of each value is known whether it is exact, small integers that float
arithmetic keeps whole, and how large it may become: operators whose results jump (comparisons,
rounding, the place of the greatest) take only exact ones, so that all engines must agree.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
Dim = int | str  # a number, a dimension of inputs ("N") or one that data decides ("?3")
SIZES: dict[str, tuple[int, ...]] = {"N": (3, 1, 0), "M": (2, 5, 1)}  # by run
RUNS = 3
MOST = 1e5  # magnitude of a value
ELEMENTS = 600
FLOATS = ("float32", "float32", "float32", "float64")
INTS = ("int64", "int64", "int32", "uint8", "int8")
CODES = {
    n: helper.np_dtype_to_tensor_dtype(np.dtype(n)) for n in {*FLOATS, *INTS, "bool", "float16"}
}
LIMITS = {"int64": 1e15, "int32": 2e9, "uint8": 255, "int8": 127, "bool": 1, "float16": 1024}


@dataclass(frozen=True)
class Value:
    """A tensor of the graph. `magnitude` bounds the magnitudes of its elements, `minimum` is the
    smallest of them."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]
    exact: bool
    magnitude: float
    minimum: float = -MOST

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")

    @property
    def static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)


class Unfit(Exception):
    """No operands of the pool fit what was drawn: another operator is."""


@dataclass
class Inputs:
    """What a whole graph has: its inputs, constants, and names taken; and in which runs it is
    `deadly`: the process of ONNX Runtime ends at scans and recurrent networks of nothing."""

    rng: random.Random
    deadly: set[int] = field(default_factory=set)
    inputs: list[Value] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    names: int = 0

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"


class Graph:
    """A graph, or one inside an operator, which sees the values of `outer` too."""

    def __init__(self, whole: Inputs, outer: Graph | None = None) -> None:
        self.whole, self.outer, self.rng = whole, outer, whole.rng
        self.nodes: list[onnx.NodeProto] = []
        self.values: list[Value] = []
        self.depth: int = 0 if outer is None else outer.depth + 1

    # ---- choosing -----------------------------------------------------------------------------

    def visible(self) -> list[Value]:
        return [*(self.outer.visible() if self.outer else []), *self.values]

    def pick(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value, the latest most often."""
        fitting = [v for v in self.visible() if fits(v)]
        if not fitting:
            raise Unfit
        return self.rng.choice(fitting[-5:] if self.rng.random() < 0.6 else fitting)

    def floats(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        return self.pick(lambda v: v.dtype in ("float32", "float64") and fits(v))

    def numbers(self, fits: Callable[[Value], bool] = lambda v: True) -> Value:
        """A value of numbers that all engines compute with."""
        return self.pick(lambda v: v.dtype in ("float32", "float64", "int64", "int32") and fits(v))

    def one_of(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def axis(self, v: Value, fits: Callable[[Dim], bool] = lambda d: True) -> int:
        fitting = [k for k, d in enumerate(v.shape) if fits(d)]
        if not fitting:
            raise Unfit
        return self.rng.choice(fitting)

    def signed(self, axis: int, rank: int) -> int:
        """An axis, from the front or the back."""
        return axis - rank if self.rng.random() < 0.4 else axis

    # ---- making -------------------------------------------------------------------------------

    def constant(self, value: Any, dtype: str) -> str:
        """An initialiser, or a node here."""
        name = self.whole.name("c")
        array = np.asarray(value, dtype)
        if self.rng.random() < 0.3:
            tensor = numpy_helper.from_array(array)
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.whole.constants[name] = array
        return name

    def drawn(
        self, shape: Sequence[int], dtype: str, limit: int = 4, low: int | None = None
    ) -> Value:
        """A constant tensor of small integers."""
        first = (0 if dtype.startswith(("u", "b")) else -limit) if low is None else low
        last = 1 if dtype == "bool" else limit
        source = np.random.default_rng(self.rng.randrange(1 << 30))
        array = source.integers(first, last, shape, endpoint=True)
        name = self.constant(array, dtype)
        return Value(name, dtype, tuple(shape), True, max(abs(first), last), first)

    def emit(
        self,
        op: str,
        inputs: Iterable[Value | str],
        dtype: str,
        shape: Iterable[Dim],
        *,
        exact: bool = True,
        magnitude: float = 1.0,
        minimum: float | None = None,
        outputs: int = 1,
        output_index: int = 0,
        **attrs: Any,
    ) -> Value:
        """Append a node; its value is output `output_index` of `outputs`."""
        shape = tuple(shape)
        magnitude = min(magnitude, LIMITS.get(dtype, magnitude)) if not exact else magnitude
        if magnitude > LIMITS.get(dtype, MOST) or magnitude > MOST or size(shape) > ELEMENTS:
            raise Unfit
        names = [x if isinstance(x, str) else x.name for x in inputs]
        outs = [self.whole.name("v") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, names, outs, **attrs))
        value = Value(
            outs[output_index],
            dtype,
            shape,
            exact,
            magnitude,
            -magnitude if minimum is None else minimum,
        )
        self.values.append(value)
        return value

    def extra(self, value: Value) -> Value:
        """Another output of the last node."""
        self.values.append(value)
        return value

    def unknown(self) -> str:
        return self.whole.name("?")

    def scalar(self, v: Value) -> Value:
        """The sum of a value's elements, an exact number that data decides."""
        if v.dtype == "bool":
            v = self.emit("Cast", [v], "int64", v.shape, magnitude=1, to=TensorProto.INT64)
        count = max(size(v.shape), 1)
        return self.emit(
            "ReduceSum", [v], v.dtype, (), exact=v.exact, magnitude=v.magnitude * count, keepdims=0
        )

    def truth(self) -> Value:
        """A bool that data decides."""
        total = self.scalar(self.numbers(lambda v: v.exact and v.magnitude < 1000))
        limit = self.constant(self.rng.randint(-3, 3), total.dtype)
        return self.emit(self.one_of("Less", "Greater"), [total, limit], "bool", ())

    def count(self, maximum: int) -> Value:
        """A small int64 from 0 to `maximum` that data decides."""
        total = self.scalar(self.numbers(lambda v: v.exact and v.magnitude < 1000))
        whole = self.emit(
            "Cast", [total], "int64", (), magnitude=total.magnitude, to=TensorProto.INT64
        )
        limit = self.constant(maximum + 1, "int64")
        return self.emit("Mod", [whole, limit], "int64", (), magnitude=maximum, minimum=0)

    def node(self) -> None:
        """Append an operator."""
        names = list(RECIPES)
        weights = [RECIPES[n].weight for n in names]
        for _ in range(60):
            recipe = RECIPES[self.rng.choices(names, weights)[0]]
            if recipe.nests and self.depth >= 2:
                continue
            lengths = len(self.nodes), len(self.values)
            try:
                recipe.make(self)
            except Unfit:
                del self.nodes[lengths[0] :], self.values[lengths[1] :]
                continue
            return


def size(shape: Sequence[Dim]) -> int:
    """About how many elements there are."""
    total = 1
    for d in shape:
        total *= d if isinstance(d, int) else max(SIZES.get(d, (6,)))
    return total


def empty_runs(v: Value) -> set[int]:
    """The runs in which a value may have no elements."""
    if any(d == 0 or str(d).startswith("?") for d in v.shape):
        return set(range(RUNS))
    return {k for k in range(RUNS) for d in v.shape if d in SIZES and SIZES[str(d)][k] == 0}


def broadcast(a: Sequence[Dim], b: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape of a result; Unfit for shapes that do not surely fit."""
    rank = max(len(a), len(b))
    a, b = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    for x, y in zip(a, b, strict=True):
        if x != y and 1 not in (x, y):
            raise Unfit
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


# ---- operators ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    make: Callable[[Graph], object]
    weight: float
    nests: bool


RECIPES: dict[str, Recipe] = {}


def recipe(weight: float = 1.0, nests: bool = False) -> Callable[..., Any]:
    def add(f: Callable[[Graph], object]) -> Callable[[Graph], object]:
        RECIPES[f.__name__] = Recipe(f, weight, nests)
        return f

    return add


SMOOTH = {
    "Tanh": 1.0,
    "Sigmoid": 1.0,
    "Erf": 1.0,
    "Sin": 1.0,
    "Cos": 1.0,
    "HardSigmoid": 1.0,
    "Softsign": 1.0,
    "Atan": 1.6,
}
GROWING = ("Elu", "LeakyRelu", "Softplus", "HardSwish", "Celu", "Selu", "Gelu", "Mish")


@recipe(2)
def smooth(g: Graph) -> Value:
    op = g.rng.choice(list(SMOOTH))
    x = g.pick(lambda v: v.dtype == "float32" and v.magnitude <= 1e3)
    return g.emit(op, [x], x.dtype, x.shape, exact=False, magnitude=SMOOTH[op])


@recipe(1)
def growing(g: Graph) -> Value:
    x = g.pick(lambda v: v.dtype == "float32" and v.magnitude <= 1e3)
    return g.emit(
        g.rng.choice(GROWING), [x], x.dtype, x.shape, exact=False, magnitude=2 * x.magnitude + 1
    )


@recipe(1)
def exponential(g: Graph) -> Value:
    x = g.floats(lambda v: v.magnitude <= 4)
    return g.emit("Exp", [x], x.dtype, x.shape, exact=False, magnitude=60, minimum=0)


@recipe(1)
def root(g: Graph) -> Value:
    x = g.floats(lambda v: v.exact or v.minimum >= 1)
    size_ = g.emit("Abs", [x], x.dtype, x.shape, exact=x.exact, magnitude=x.magnitude, minimum=0)
    one_constant = g.constant(1, x.dtype)
    shifted = g.emit(
        "Add",
        [size_, one_constant],
        x.dtype,
        x.shape,
        exact=x.exact,
        magnitude=x.magnitude + 1,
        minimum=1,
    )
    op = g.one_of("Sqrt", "Log", "Reciprocal")
    return g.emit(
        op, [shifted], x.dtype, x.shape, exact=False, magnitude=max(1, x.magnitude**0.5 + 1)
    )


@recipe(3)
def exact_unary(g: Graph) -> Value:
    op = g.one_of("Neg", "Abs", "Sign", "Floor", "Ceil", "Round", "Relu", "Identity", "Not", "Clip")
    if op == "Not":
        x = g.pick(lambda v: v.dtype == "bool")
        return g.emit("Not", [x], "bool", x.shape)
    if op in ("Floor", "Ceil", "Round"):
        x = g.floats(lambda v: v.exact)
        half = g.constant(g.one_of(0.5, 0.25, 2.0), x.dtype)
        part = g.emit("Mul", [x, half], x.dtype, x.shape, magnitude=2 * x.magnitude)
        return g.emit(op, [part], x.dtype, x.shape, magnitude=2 * x.magnitude)
    x = g.pick(lambda v: v.dtype in ("float32", "float64", "int64", "int32"))
    if op == "Sign" and not x.exact:
        raise Unfit
    if op == "Relu" and x.dtype != "float32":
        raise Unfit
    if op == "Clip":
        low, high = g.constant(-2, x.dtype), g.constant(3, x.dtype)
        ends = g.one_of([low, high], [low], ["", high])
        return g.emit(
            "Clip", [x, *ends], x.dtype, x.shape, exact=x.exact, magnitude=max(x.magnitude, 3)
        )
    return g.emit(op, [x], x.dtype, x.shape, exact=x.exact, magnitude=max(x.magnitude, 1))


@recipe(2)
def cast(g: Graph) -> Value:
    x = g.pick()
    to = g.one_of(
        "float32", "float32", "float64", "int64", "int32", "uint8", "int8", "bool", "float16"
    )
    if not x.exact and not to.startswith("float"):
        raise Unfit
    if (x.magnitude > LIMITS.get(to, MOST) and to != "bool") or (to == "uint8" and x.minimum < 0):
        raise Unfit
    if to == "float16" and not x.exact:
        raise Unfit
    magnitude = 1.0 if to == "bool" else x.magnitude
    return g.emit(
        "Cast",
        [x],
        to,
        x.shape,
        exact=x.exact,
        magnitude=magnitude,
        minimum=max(x.minimum, -magnitude),
        to=CODES[to],
    )


def other(g: Graph, x: Value, exact: bool = False) -> Value:
    """A second operand for `x`: a value, or a constant that fits."""
    if g.rng.random() < 0.55:
        for _ in range(6):
            y = g.pick(lambda v: v.dtype == x.dtype and (v.exact or not exact))
            try:
                broadcast(x.shape, y.shape)
            except Unfit:
                continue
            return y
    shape = [d if isinstance(d, int) and g.rng.random() < 0.7 else 1 for d in x.shape]
    dropped = g.rng.randint(0, len(shape))
    return g.drawn(shape[dropped:], x.dtype)


@recipe(6)
def arithmetic(g: Graph) -> Value:
    op = g.one_of("Add", "Sub", "Mul", "Max", "Min", "Add", "Mul", "Mean", "Sum")
    x = g.numbers()
    if op in ("Mean", "Sum") and not x.is_float:
        raise Unfit
    y = other(g, x)
    shape = broadcast(x.shape, y.shape)
    exact = x.exact and y.exact and op != "Mean"
    magnitude = x.magnitude * y.magnitude if op == "Mul" else x.magnitude + y.magnitude
    pair = g.one_of((x, y), (y, x))
    minimum = min(x.minimum, y.minimum) if op == "Min" else None
    return g.emit(
        op, pair, x.dtype, shape, exact=exact, magnitude=max(magnitude, 1), minimum=minimum
    )


@recipe(2)
def division(g: Graph) -> Value:
    x = g.numbers()
    if x.is_float:
        y = g.constant(g.one_of(2, 3, -4, 0.5), x.dtype)
        return g.emit("Div", [x, y], x.dtype, x.shape, exact=False, magnitude=2 * x.magnitude)
    y = g.constant(g.one_of(2, 3, 7), x.dtype)
    if g.rng.random() < 0.5:
        return g.emit("Mod", [x, y], x.dtype, x.shape, magnitude=6, minimum=0)
    x = g.emit("Abs", [x], x.dtype, x.shape, magnitude=x.magnitude, minimum=0)
    return g.emit("Div", [x, y], x.dtype, x.shape, magnitude=x.magnitude, minimum=0)


@recipe(1)
def power(g: Graph) -> Value:
    x = g.floats(lambda v: v.magnitude < 100)
    return g.emit(
        "Pow",
        [x, g.constant(2, x.dtype)],
        x.dtype,
        x.shape,
        exact=x.exact,
        magnitude=x.magnitude**2,
        minimum=0,
    )


@recipe(3)
def comparison(g: Graph) -> Value:
    op = g.one_of("Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual")
    x = g.numbers(lambda v: v.exact)
    y = other(g, x, exact=True)
    if not y.exact:
        raise Unfit
    return g.emit(op, [x, y], "bool", broadcast(x.shape, y.shape))


@recipe(1.5)
def logic(g: Graph) -> Value:
    x = g.pick(lambda v: v.dtype == "bool")
    y = other(g, x)
    return g.emit(g.one_of("And", "Or", "Xor"), [x, y], "bool", broadcast(x.shape, y.shape))


@recipe(2.5)
def where(g: Graph) -> Value:
    c = g.pick(lambda v: v.dtype == "bool")
    x = g.numbers()
    y = other(g, x)
    shape = broadcast(broadcast(c.shape, x.shape), y.shape)
    return g.emit(
        "Where",
        [c, x, y],
        x.dtype,
        shape,
        exact=x.exact and y.exact,
        magnitude=max(x.magnitude, y.magnitude),
    )


@recipe(3)
def reduction(g: Graph) -> Value:
    op = g.one_of(
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceSumSquare"
    )
    x = g.floats() if op != "ReduceSum" else g.numbers()
    if x.rank == 0:
        raise Unfit
    axes = sorted(g.rng.sample(range(x.rank), g.rng.randint(1, x.rank)))
    picked = [x.shape[a] for a in axes]
    if op in ("ReduceMean", "ReduceMax", "ReduceMin") and not all(
        d == "M" or (isinstance(d, int) and d > 0) for d in picked
    ):
        raise Unfit  # what nothing at all is, engines do not agree about
    keep = g.rng.randint(0, 1)
    shape = [1 if k in axes else d for k, d in enumerate(x.shape) if keep or k not in axes]
    count = max(size(picked), 1)
    magnitude = {"ReduceMean": x.magnitude, "ReduceMax": x.magnitude, "ReduceMin": x.magnitude}.get(
        op, x.magnitude * count
    )
    if op == "ReduceSumSquare":
        magnitude = x.magnitude**2 * count
    signed_axes = [g.signed(a, x.rank) for a in axes]
    if len(axes) == x.rank and g.rng.random() < 0.4:
        operands: list[Value | str] = [x]
    else:
        operands = [x, g.constant(signed_axes, "int64")]
    exact = x.exact and op != "ReduceMean"
    return g.emit(op, operands, x.dtype, shape, exact=exact, magnitude=magnitude, keepdims=keep)


@recipe(1)
def place_of(g: Graph) -> Value:
    x = g.pick(lambda v: v.exact and v.dtype == "float32" and v.rank > 0)
    axis = g.axis(x, lambda d: (isinstance(d, int) and d > 0) or d == "M")
    keep = g.rng.randint(0, 1)
    shape = [1 if k == axis else d for k, d in enumerate(x.shape) if keep or k != axis]
    op = g.one_of("ArgMax", "ArgMin")
    attrs = {"axis": g.signed(axis, x.rank), "keepdims": keep}
    return g.emit(op, [x], "int64", shape, magnitude=size([x.shape[axis]]), minimum=0, **attrs)


@recipe(1.5)
def cumulative(g: Graph) -> Value:
    x = g.floats(lambda v: v.rank > 0)
    axis = g.axis(x)
    magnitude = x.magnitude * max(size([x.shape[axis]]), 1)
    axis_constant = g.constant(g.signed(axis, x.rank), "int64")
    attrs = {"exclusive": g.rng.randint(0, 1), "reverse": g.rng.randint(0, 1)}
    return g.emit(
        "CumSum", [x, axis_constant], x.dtype, x.shape, exact=x.exact, magnitude=magnitude, **attrs
    )


@recipe(1.5)
def probabilities(g: Graph) -> Value:
    x = g.floats(lambda v: v.rank > 0 and v.magnitude < 200)
    axis = g.axis(x)
    op = g.one_of("Softmax", "LogSoftmax")
    magnitude = 1.0 if op == "Softmax" else 500.0
    return g.emit(
        op, [x], x.dtype, x.shape, exact=False, magnitude=magnitude, axis=g.signed(axis, x.rank)
    )


# ---- shapes ------------------------------------------------------------------------------------


def kept(
    g: Graph, op: str, x: Value, inputs: Sequence[Value | str], shape: Sequence[Dim], **a: Any
) -> Value:
    """An operator that only moves elements."""
    return g.emit(
        op,
        [x, *inputs],
        x.dtype,
        shape,
        exact=x.exact,
        magnitude=x.magnitude,
        minimum=x.minimum,
        **a,
    )


@recipe(2)
def transpose(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 1)
    order = list(range(x.rank))
    g.rng.shuffle(order)
    return kept(g, "Transpose", x, [], [x.shape[k] for k in order], perm=order)


@recipe(2)
def reshape(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    if x.static and size(x.shape) and g.rng.random() < 0.7:
        total, shape = size(x.shape), []
        while total > 1 and len(shape) < 3:
            shape.append(g.rng.choice([d for d in range(1, total + 1) if total % d == 0]))
            total //= shape[-1]
        shape.append(total)
        target: list[int] = list(shape)
        if g.rng.random() < 0.3:
            target[g.rng.randrange(len(target))] = -1
        return kept(g, "Reshape", x, [g.constant(target, "int64")], shape)
    if g.rng.random() < 0.5:
        return kept(g, "Reshape", x, [g.constant([-1], "int64")], [joined(g, x.shape)])
    # The shape of another value with as many elements: itself, flattened.
    axis = g.rng.randint(0, x.rank)
    a, b = joined(g, x.shape[:axis]), joined(g, x.shape[axis:])
    return kept(g, "Flatten", x, [], [a, b], axis=axis)


def joined(g: Graph, shape: Sequence[Dim]) -> Dim:
    """The product of extents."""
    numbers = [d for d in shape if isinstance(d, int)]
    names = [d for d in shape if not isinstance(d, int)]
    total = int(np.prod(numbers)) if numbers else 1
    if not names or total == 0:
        return total
    return names[0] if len(names) == 1 and total == 1 else g.unknown()


@recipe(1.5)
def rank_changes(g: Graph) -> Value:
    if g.rng.random() < 0.5:
        x = g.pick(lambda v: v.rank < 4)
        axis = g.rng.randint(0, x.rank)
        shape = [*x.shape[:axis], 1, *x.shape[axis:]]
        axes_constant = g.constant([g.signed(axis, x.rank + 1)], "int64")
        return kept(g, "Unsqueeze", x, [axes_constant], shape)
    x = g.pick(lambda v: 1 in v.shape)
    axis = g.axis(x, lambda d: d == 1)
    axes_constant = g.constant([g.signed(axis, x.rank)], "int64")
    return kept(g, "Squeeze", x, [axes_constant], [*x.shape[:axis], *x.shape[axis + 1 :]])


@recipe(2)
def concat(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x, lambda d: isinstance(d, int))
    parts = [x]
    for v in g.visible():
        is_compatible = v.dtype == x.dtype and v.rank == x.rank and isinstance(v.shape[axis], int)
        if (
            is_compatible
            and v.shape[:axis] + v.shape[axis + 1 :] == x.shape[:axis] + x.shape[axis + 1 :]
        ):
            parts.append(v)
    parts = g.rng.sample(parts, min(len(parts), g.rng.randint(1, 3)))
    extent = sum(int(p.shape[axis]) for p in parts)
    shape = [*x.shape[:axis], extent, *x.shape[axis + 1 :]]
    return g.emit(
        "Concat",
        parts,
        x.dtype,
        shape,
        exact=all(p.exact for p in parts),
        magnitude=max(p.magnitude for p in parts),
        minimum=min(p.minimum for p in parts),
        axis=g.signed(axis, x.rank),
    )


@recipe(1.5)
def split(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x, lambda d: isinstance(d, int) and d > 1)
    extent = x.shape[axis]
    assert isinstance(extent, int)
    first = g.rng.randint(0, extent)
    sizes = [first, extent - first]
    shapes = [[*x.shape[:axis], n, *x.shape[axis + 1 :]] for n in sizes]
    part_index = g.rng.randint(0, 1)
    inputs = [g.constant(sizes, "int64")]
    attrs = {"axis": g.signed(axis, x.rank)}
    return kept(
        g, "Split", x, inputs, shapes[part_index], outputs=2, output_index=part_index, **attrs
    )


@recipe(2)
def slices(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    extent = x.shape[axis]
    start, end = g.rng.randint(-4, 4), g.rng.choice([*range(-4, 7), 1 << 40])
    step = g.one_of(1, 1, 2, -1, -2)
    if step < 0 and g.rng.random() < 0.5:
        start, end = (1 << 40), -(1 << 40)
    sliced: Dim
    sliced = len(range(extent)[start:end:step]) if isinstance(extent, int) else g.unknown()
    inputs = [g.constant([v], "int64") for v in (start, end, g.signed(axis, x.rank), step)]
    return kept(g, "Slice", x, inputs, [*x.shape[:axis], sliced, *x.shape[axis + 1 :]])


@recipe(2)
def gather(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x, lambda d: d == "M" or (isinstance(d, int) and d > 0))
    limit = min(SIZES["M"]) if x.shape[axis] == "M" else int(x.shape[axis])
    shape = [g.rng.randint(0, 3) for _ in range(g.rng.randint(0, 2))]
    source = np.random.default_rng(g.rng.randrange(1 << 30))
    indices = g.constant(source.integers(-limit, limit, shape), g.one_of("int64", "int32"))
    result = [*x.shape[:axis], *shape, *x.shape[axis + 1 :]]
    return kept(g, "Gather", x, [indices], result, axis=g.signed(axis, x.rank))


@recipe(1)
def gather_elements(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.static and 0 not in v.shape)
    axis = g.axis(x)
    shape = [int(d) for d in x.shape]
    shape[axis] = g.rng.randint(1, 4)
    indices = g.drawn(shape, "int64", limit=int(x.shape[axis]) - 1, low=0)
    return kept(g, "GatherElements", x, [indices], shape, axis=g.signed(axis, x.rank))


@recipe(1)
def scatter(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.static and 0 not in v.shape and v.dtype == "float32")
    axis, reduction_name = g.axis(x), g.one_of("none", "add", "max")
    rows = g.rng.randint(1, int(x.shape[axis]))
    order = g.rng.sample(range(int(x.shape[axis])), rows)
    shape = [int(d) for d in x.shape]
    shape[axis] = rows
    index = np.broadcast_to(
        np.array(order).reshape([-1 if k == axis else 1 for k in range(x.rank)]), shape
    )
    updates = g.drawn(shape, x.dtype)
    inputs = [g.constant(index, "int64"), updates]
    attrs = {"axis": g.signed(axis, x.rank), "reduction": reduction_name}
    return g.emit(
        "ScatterElements",
        [x, *inputs],
        x.dtype,
        x.shape,
        exact=x.exact,
        magnitude=x.magnitude + 4,
        **attrs,
    )


@recipe(1)
def scatter_nd(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.dtype == "float32" and v.shape[0] not in (0, "N"))
    if not all(isinstance(d, int) for d in x.shape[1:]) or str(x.shape[0]).startswith("?"):
        raise Unfit
    row_count = min(SIZES["M"]) if x.shape[0] == "M" else int(x.shape[0])
    rows = g.rng.sample(range(row_count), g.rng.randint(1, row_count))
    updates = g.drawn([len(rows), *(int(d) for d in x.shape[1:])], x.dtype)
    index = g.constant([[r] for r in rows], "int64")
    return g.emit(
        "ScatterND",
        [x, index, updates],
        x.dtype,
        x.shape,
        exact=x.exact,
        magnitude=max(x.magnitude, 4),
    )


@recipe(1.5)
def pad(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.dtype in ("float32", "float64", "int64", "int32"))
    axis, mode = g.axis(x, lambda d: isinstance(d, int)), g.one_of("constant", "edge", "reflect")
    extent = int(x.shape[axis])
    limit = 2 if mode != "reflect" else max(extent - 1, 0)
    low = -extent if mode == "constant" and extent and g.rng.random() < 0.2 else 0
    before, after = g.rng.randint(max(low, -1), min(limit, 2)), g.rng.randint(0, min(limit, 2))
    if (extent == 0 and mode != "constant") or extent + before + after < 0:
        raise Unfit
    if mode != "constant" and any(d != x.shape[axis] and d in (0, "N") for d in x.shape):
        raise Unfit
    pads = [0] * (2 * x.rank)
    pads[axis], pads[x.rank + axis] = before, after
    inputs = [g.constant(pads, "int64")]
    if mode == "constant" and g.rng.random() < 0.5:
        inputs.append(g.constant(2, x.dtype))
    shape = [*x.shape[:axis], extent + before + after, *x.shape[axis + 1 :]]
    exact = x.exact
    return g.emit(
        "Pad", [x, *inputs], x.dtype, shape, exact=exact, magnitude=max(x.magnitude, 2), mode=mode
    )


@recipe(1)
def tile(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.dtype != "bool")
    repeats = [g.rng.choice([1, 1, 2, 0]) for _ in x.shape]
    shape = []
    for d, r in zip(x.shape, repeats, strict=True):
        shape.append(d * r if isinstance(d, int) else d if r == 1 else 0 if r == 0 else g.unknown())
    return kept(g, "Tile", x, [g.constant(repeats, "int64")], shape)


@recipe(1)
def expand(g: Graph) -> Value:
    x = g.pick(lambda v: 1 in v.shape or v.rank == 0)
    shape = [g.rng.randint(1, 3) if d == 1 else d for d in x.shape]
    target = [d if isinstance(d, int) else 1 for d in shape]
    lead = [g.rng.randint(1, 2)] * g.rng.randint(0, 1)
    return kept(g, "Expand", x, [g.constant([*lead, *target], "int64")], [*lead, *shape])


@recipe(0.7)
def triangle(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 1 and v.dtype in ("float32", "float64", "int64"))
    k = [g.constant(g.rng.randint(-2, 2), "int64")] if g.rng.random() < 0.6 else []
    return kept(g, "Trilu", x, k, x.shape, upper=g.rng.randint(0, 1))


@recipe(1)
def greatest(g: Graph) -> Value:
    """The values of TopK, which ties do not change."""
    x = g.floats(lambda v: v.rank > 0)
    axis = g.axis(x, lambda d: isinstance(d, int) and d > 0)
    k = g.rng.randint(0, int(x.shape[axis]))
    shape = [*x.shape[:axis], k, *x.shape[axis + 1 :]]
    attrs = {"axis": g.signed(axis, x.rank), "largest": g.rng.randint(0, 1)}
    return kept(g, "TopK", x, [g.constant([k], "int64")], shape, outputs=2, **attrs)


@recipe(0.7)
def one_hot(g: Graph) -> Value:
    x = g.pick(lambda v: v.dtype == "int64" and v.exact and v.rank < 3)
    depth = g.rng.randint(1, 4)
    axis = g.rng.randint(0, x.rank)
    shape = [*x.shape[:axis], depth, *x.shape[axis:]]
    inputs = [x, g.constant(depth, "int64"), g.constant([-1, 2], "float32")]
    return g.emit("OneHot", inputs, "float32", shape, magnitude=2, axis=g.signed(axis, x.rank + 1))


@recipe(1)
def shape_of(g: Graph) -> Value:
    x = g.pick()
    if g.rng.random() < 0.3:
        return g.emit("Size", [x], "int64", (), magnitude=ELEMENTS, minimum=0)
    return g.emit("Shape", [x], "int64", (x.rank,), magnitude=ELEMENTS, minimum=0)


@recipe(1)
def filled(g: Graph) -> Value:
    """A constant of another value's shape, reshaped to it, or expanded to it."""
    x = g.pick(lambda v: v.rank > 0)
    shape = g.emit("Shape", [x], "int64", (x.rank,), magnitude=ELEMENTS, minimum=0)
    fill = numpy_helper.from_array(np.array([2], np.float32))
    return g.emit("ConstantOfShape", [shape], "float32", x.shape, magnitude=2, value=fill)


@recipe(0.7)
def expand_like(g: Graph) -> Value:
    x, like = g.pick(lambda v: v.rank == 0 or set(v.shape) == {1}), g.pick(lambda v: v.rank > 0)
    if x.rank > like.rank:
        raise Unfit
    shape = g.emit("Shape", [like], "int64", (like.rank,), magnitude=ELEMENTS, minimum=0)
    return kept(g, "Expand", x, [shape], like.shape)


# ---- networks ----------------------------------------------------------------------------------


@recipe(3)
def product(g: Graph) -> Value:
    x = g.floats(lambda v: v.rank > 0 and isinstance(v.shape[-1], int))
    inner, columns = int(x.shape[-1]), g.rng.randint(0 if g.rng.random() < 0.1 else 1, 5)
    magnitude = x.magnitude * 4 * max(inner, 1)
    if x.rank == 2 and g.rng.random() < 0.4 and x.dtype == "float32":
        turned = g.rng.randint(0, 1)
        w = g.drawn([columns, inner] if turned else [inner, columns], x.dtype)
        c = g.drawn([columns], x.dtype)
        shape = [x.shape[0], columns]
        alpha = g.one_of(1.0, 2.0)
        return g.emit(
            "Gemm",
            [x, w, c],
            x.dtype,
            shape,
            exact=x.exact,
            magnitude=2 * magnitude + 4,
            transB=turned,
            alpha=alpha,
        )
    lead = [g.rng.randint(1, 2)] if x.rank == 2 and g.rng.random() < 0.2 else []
    w = g.drawn([*lead, inner, columns], x.dtype)
    shape = [*lead, *x.shape[:-1], columns]
    return g.emit("MatMul", [x, w], x.dtype, shape, exact=x.exact, magnitude=max(magnitude, 1))


@recipe(1.5)
def product_of_two(g: Graph) -> Value:
    x = g.floats(lambda v: v.rank > 1)
    y = g.pick(lambda v: v.dtype == x.dtype and v.rank > 1 and v.shape[-2] == x.shape[-1])
    shape = [*broadcast(x.shape[:-2], y.shape[:-2]), x.shape[-2], y.shape[-1]]
    magnitude = x.magnitude * y.magnitude * max(size([x.shape[-1]]), 1)
    return g.emit(
        "MatMul", [x, y], x.dtype, shape, exact=x.exact and y.exact, magnitude=max(magnitude, 1)
    )


@recipe(1)
def einsum(g: Graph) -> Value:
    x = g.floats(lambda v: v.rank == 2)
    y = g.pick(lambda v: v.dtype == x.dtype and v.rank == 2 and v.shape[0] == x.shape[0])
    equation = g.one_of("ij,ik->jk", "ij,ik->ijk", "ij,ik->i", "ij,ik->kij")
    i, j, k = x.shape[0], x.shape[1], y.shape[1]
    extents = {"i": i, "j": j, "k": k}
    shape = [extents[c] for c in equation.split(">")[1]]
    magnitude = x.magnitude * y.magnitude * max(size([i, j, k]), 1)
    exact = x.exact and y.exact
    return g.emit(
        "Einsum",
        [x, y],
        x.dtype,
        shape,
        exact=exact,
        magnitude=max(magnitude, 1),
        equation=equation,
    )


def picture(g: Graph) -> Value:
    """A value of rank 4 with numbers as channels, height and width; made if there is none."""
    pictures = [
        v
        for v in g.visible()
        if v.dtype == "float32"
        and v.rank == 4
        and all(isinstance(d, int) and d for d in v.shape[1:])
    ]
    if pictures and g.rng.random() < 0.8:
        return g.rng.choice(pictures)
    x = g.pick(lambda v: v.dtype == "float32" and v.static and size(v.shape) >= 4)
    total = size(x.shape)
    channels = g.rng.choice([c for c in (1, 2, 3, 4) if total % c == 0])
    height = g.rng.choice([h for h in range(1, 7) if total // channels % h == 0])
    shape = [1, channels, height, total // channels // height]
    return kept(g, "Reshape", x, [g.constant(shape, "int64")], shape)


def window(
    g: Graph, x: Value
) -> tuple[list[int], list[int], list[int], list[int], list[int]] | None:
    """(kernel, strides, dilations, pads, extents of the result)"""
    kernel = [g.rng.randint(1, 3) for _ in range(2)]
    strides = [g.rng.randint(1, 2) for _ in range(2)]
    dilations = [g.rng.choice([1, 1, 2]) for _ in range(2)]
    before = [g.rng.randint(0, k - 1) for k in kernel]
    after = [g.rng.randint(0, k - 1) for k in kernel]
    out = []
    for d, k, s, w, a, b in zip(
        x.shape[2:], kernel, strides, dilations, before, after, strict=True
    ):
        room = int(d) + a + b - w * (k - 1) - 1
        if room < 0:
            raise Unfit
        out.append(room // s + 1)
    return kernel, strides, dilations, [*before, *after], out


@recipe(2)
def convolution(g: Graph) -> Value:
    x = picture(g)
    kernel, strides, dilations, pads, out = window(g, x)
    channels = int(x.shape[1])
    groups = channels if g.rng.random() < 0.25 else 1
    filters = groups * g.rng.randint(1, 3)
    w = g.drawn([filters, channels // groups, *kernel], x.dtype, limit=2)
    bias = [g.drawn([filters], x.dtype)] if g.rng.random() < 0.5 else []
    magnitude = x.magnitude * 2 * channels // groups * kernel[0] * kernel[1] + 4
    shape = [x.shape[0], filters, *out]
    return g.emit(
        "Conv",
        [x, w, *bias],
        x.dtype,
        shape,
        exact=x.exact,
        magnitude=magnitude,
        strides=strides,
        dilations=dilations,
        pads=pads,
        group=groups,
        kernel_shape=kernel,
    )


@recipe(0.7)
def turned_convolution(g: Graph) -> Value:
    x = picture(g)
    kernel = [g.rng.randint(1, 3) for _ in range(2)]
    strides = [g.rng.randint(1, 2) for _ in range(2)]
    filters = g.rng.randint(1, 3)
    w = g.drawn([int(x.shape[1]), filters, *kernel], x.dtype, limit=2)
    out = [(int(d) - 1) * s + k for d, s, k in zip(x.shape[2:], strides, kernel, strict=True)]
    magnitude = x.magnitude * 2 * int(x.shape[1]) * kernel[0] * kernel[1]
    shape = [x.shape[0], filters, *out]
    return g.emit(
        "ConvTranspose",
        [x, w],
        x.dtype,
        shape,
        exact=x.exact,
        magnitude=max(magnitude, 1),
        strides=strides,
    )


@recipe(1.5)
def pooling(g: Graph) -> Value:
    x = picture(g)
    op = g.one_of("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):
        exact = x.exact and op == "GlobalMaxPool"
        return g.emit(op, [x], x.dtype, [*x.shape[:2], 1, 1], exact=exact, magnitude=x.magnitude)
    kernel, strides, _, pads, _ = window(g, x)
    out = []
    for d, k, s, a, b in zip(x.shape[2:], kernel, strides, pads[:2], pads[2:], strict=True):
        room = int(d) + a + b - k
        if room < 0:
            raise Unfit
        out.append(room // s + 1)
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if op == "AveragePool":
        attrs["count_include_pad"] = g.rng.randint(0, 1)
    exact = x.exact and op == "MaxPool"
    return g.emit(
        op, [x], x.dtype, [*x.shape[:2], *out], exact=exact, magnitude=x.magnitude, **attrs
    )


@recipe(1)
def normalisation(g: Graph) -> Value:
    op = g.one_of("BatchNormalization", "InstanceNormalization", "LayerNormalization")
    if op == "LayerNormalization":
        x = g.pick(lambda v: v.dtype == "float32" and v.rank > 0 and v.exact and v.magnitude < 1e3)
        if not isinstance(x.shape[-1], int) or x.shape[-1] == 0:
            raise Unfit
        scale = g.drawn([x.shape[-1]], x.dtype)
        return g.emit(op, [x, scale], x.dtype, x.shape, exact=False, magnitude=100, epsilon=0.1)
    x = picture(g)
    if x.magnitude > 1e3 or not x.exact:
        raise Unfit
    channels = int(x.shape[1])
    scale, bias = g.drawn([channels], x.dtype), g.drawn([channels], x.dtype)
    if op == "InstanceNormalization":
        return g.emit(
            op, [x, scale, bias], x.dtype, x.shape, exact=False, magnitude=200, epsilon=0.1
        )
    mean, var = g.drawn([channels], x.dtype), g.drawn([channels], x.dtype, low=1)
    return g.emit(
        op,
        [x, scale, bias, mean, var],
        x.dtype,
        x.shape,
        exact=False,
        magnitude=4 * x.magnitude + 30,
    )


@recipe(0.7)
def resize(g: Graph) -> Value:
    x = picture(g)
    factors = [g.one_of(1, 2, 3) for _ in range(2)]
    shape = [*x.shape[:2], *(int(d) * f for d, f in zip(x.shape[2:], factors, strict=True))]
    mode = g.one_of("nearest", "linear")
    scales = g.constant([1, 1, *factors], "float32")
    exact = x.exact and mode == "nearest"
    return g.emit(
        "Resize",
        [x, "", scales],
        x.dtype,
        shape,
        exact=exact,
        magnitude=x.magnitude,
        mode=mode,
        coordinate_transformation_mode=g.one_of("asymmetric", "half_pixel"),
        nearest_mode="floor",
    )


@recipe(0.7)
def space(g: Graph) -> Value:
    x = picture(g)
    n, c, h, w = x.shape
    assert isinstance(c, int) and isinstance(h, int) and isinstance(w, int)
    if g.rng.random() < 0.5 and c % 4 == 0:
        mode = g.one_of("DCR", "CRD")
        return kept(g, "DepthToSpace", x, [], [n, c // 4, h * 2, w * 2], blocksize=2, mode=mode)
    if h % 2 or w % 2:
        raise Unfit
    return kept(g, "SpaceToDepth", x, [], [n, c * 4, h // 2, w // 2], blocksize=2)


@recipe(0.6)
def recurrent(g: Graph) -> Value:
    x = g.pick(lambda v: v.dtype == "float32" and v.rank == 3 and v.magnitude < 50)
    steps, rows, inputs = x.shape
    if not isinstance(inputs, int) or inputs == 0 or steps == 0 or steps == "N":
        raise Unfit
    g.whole.deadly |= empty_runs(x)
    op, gates = g.one_of(("LSTM", 4), ("GRU", 3), ("RNN", 1))
    hidden, directions = g.rng.randint(1, 3), g.rng.randint(1, 2)
    w = g.drawn([directions, gates * hidden, inputs], "float32", limit=1)
    r = g.drawn([directions, gates * hidden, hidden], "float32", limit=1)
    direction = "bidirectional" if directions == 2 else g.one_of("forward", "reverse")
    output_index = g.rng.randint(0, 1)
    shape = [steps, directions, rows, hidden] if output_index == 0 else [directions, rows, hidden]
    return g.emit(
        op,
        [x, w, r],
        "float32",
        shape,
        exact=False,
        outputs=2,
        output_index=output_index,
        hidden_size=hidden,
        direction=direction,
    )


@recipe(0.8)
def quantised(g: Graph) -> Value:
    x = g.pick(lambda v: v.dtype == "float32" and v.exact and v.magnitude < 100)
    scale, zero = g.constant(1.0, "float32"), g.constant(g.one_of(0, 3), "int8")
    q = g.emit(
        "QuantizeLinear", [x, scale, zero], "int8", x.shape, magnitude=min(x.magnitude + 3, 127)
    )
    return g.emit(
        "DequantizeLinear", [q, scale, zero], "float32", x.shape, magnitude=x.magnitude + 6
    )


# ---- sizes that data decides -------------------------------------------------------------------


@recipe(1)
def places(g: Graph) -> Value:
    """The elements that are not 0."""
    x = g.pick(lambda v: v.exact and v.rank > 0 and v.dtype in ("float32", "int64", "bool"))
    n = g.unknown()
    where_ = g.emit("NonZero", [x], "int64", [x.rank, n], magnitude=ELEMENTS, minimum=0)
    if g.rng.random() < 0.5:
        return where_
    turned = g.emit("Transpose", [where_], "int64", [n, x.rank], magnitude=ELEMENTS, perm=[1, 0])
    return kept(g, "GatherND", x, [turned], [n])


@recipe(1)
def compressed(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x, lambda d: isinstance(d, int) or d in SIZES)
    flags = [
        v for v in g.visible() if v.dtype == "bool" and v.rank == 1 and v.shape[0] == x.shape[axis]
    ]
    if flags:
        c: Value | str = g.rng.choice(flags)
    elif isinstance(x.shape[axis], int):
        c = g.drawn([int(x.shape[axis])], "bool")
    else:
        raise Unfit
    shape = [*x.shape[:axis], g.unknown(), *x.shape[axis + 1 :]]
    return kept(g, "Compress", x, [c], shape, axis=g.signed(axis, x.rank))


@recipe(0.6)
def unique(g: Graph) -> Value:
    x = g.pick(lambda v: v.exact and v.rank > 0 and v.dtype in ("float32", "int64"))
    n = g.unknown()
    return kept(g, "Unique", x, [], [n], outputs=g.rng.randint(1, 4), sorted=1)


@recipe(1)
def counted(g: Graph) -> Value:
    """0, 1, 2, ... up to a number that data decides."""
    end = g.count(5)
    zero, one_constant = g.constant(0, "int64"), g.constant(1, "int64")
    return g.emit(
        "Range", [zero, end, one_constant], "int64", [g.unknown()], magnitude=5, minimum=0
    )


@recipe(0.8)
def computed_slice(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.axis(x)
    end = g.count(4)
    one_constant = g.constant([0], "int64")
    stop = g.emit("Unsqueeze", [end, one_constant], "int64", [1], magnitude=4, minimum=0)
    start, axis_constant = g.constant([0], "int64"), g.constant([g.signed(axis, x.rank)], "int64")
    shape = [*x.shape[:axis], g.unknown(), *x.shape[axis + 1 :]]
    return kept(g, "Slice", x, [start, stop, axis_constant], shape)


# ---- control flow ------------------------------------------------------------------------------


def inside(g: Graph, nodes: int) -> Graph:
    inner_graph = Graph(g.whole, g)
    for _ in range(nodes):
        inner_graph.node()
    return inner_graph


def proto(
    g: Graph, name: str, inputs: Sequence[Value], outputs: Sequence[Value]
) -> onnx.GraphProto:
    """A graph of an operator."""
    return helper.make_graph(
        g.nodes, name, [info(v) for v in inputs], [info(v, shaped=False) for v in outputs]
    )


def info(v: Value, shaped: bool = True) -> onnx.ValueInfoProto:
    shape = [None if str(d).startswith("?") else d for d in v.shape] if shaped else None
    return helper.make_tensor_value_info(v.name, CODES[v.dtype], shape)


def named(g: Graph, v: Value) -> Value:
    """A result of an inner graph, which must be made there."""
    is_local = any(v.name in n.output for n in g.nodes)
    return (
        v
        if is_local
        else g.emit(
            "Identity",
            [v],
            v.dtype,
            v.shape,
            exact=v.exact,
            magnitude=v.magnitude,
            minimum=v.minimum,
        )
    )


@recipe(1.5, nests=True)
def branches(g: Graph) -> Value:
    condition = g.truth()
    yes, no = inside(g, g.rng.randint(1, 4)), inside(g, g.rng.randint(1, 4))
    a = yes.pick(lambda v: v.dtype in CODES)
    b = no.pick(lambda v: v.dtype == a.dtype and v.rank == a.rank)
    a, b = named(yes, a), named(no, b)
    shape = [x if x == y else g.unknown() for x, y in zip(a.shape, b.shape, strict=True)]
    return g.emit(
        "If",
        [condition],
        a.dtype,
        shape,
        exact=a.exact and b.exact,
        magnitude=max(a.magnitude, b.magnitude),
        minimum=min(a.minimum, b.minimum),
        then_branch=proto(yes, "yes", [], [a]),
        else_branch=proto(no, "no", [], [b]),
    )


def step(g: Graph, state: Value) -> Value:
    """A state after one more step, of the same type and shape, which stays small."""
    for _ in range(20):
        x = g.pick(lambda v: v.dtype == state.dtype)
        try:
            fits = broadcast(state.shape, x.shape) == state.shape
        except Unfit:
            continue
        if not fits or (state.exact and not x.exact) or not state.is_float:
            continue
        total = g.emit(
            "Add",
            [state, x],
            state.dtype,
            state.shape,
            exact=state.exact,
            magnitude=state.magnitude + x.magnitude,
        )
        low, high = (g.constant(v, state.dtype) for v in (-state.magnitude, state.magnitude))
        return g.emit(
            "Clip",
            [total, low, high],
            state.dtype,
            state.shape,
            exact=state.exact,
            magnitude=state.magnitude,
        )
    return g.emit(
        "Identity", [state], state.dtype, state.shape, exact=state.exact, magnitude=state.magnitude
    )


def stacked_in(g: Graph, surely: bool) -> Value:
    """A value of each iteration, to be stacked; no other result of the body. What the other extents
    of a stack are that has no row, engines do not agree about, unless they are numbers."""
    v = g.pick(lambda v: v.static or (surely and set(v.shape) <= {*SIZES, *range(99)}))
    return g.emit(
        "Identity", [v], v.dtype, v.shape, exact=v.exact, magnitude=v.magnitude, minimum=v.minimum
    )


def renamed(g: Graph, v: Value) -> Value:
    """A parameter of an inner graph like the value; a dimension that data decides stays one."""
    return Value(g.whole.name("p"), v.dtype, v.shape, v.exact, v.magnitude, v.minimum)


@recipe(1.5, nests=True)
def loop(g: Graph) -> Value:
    """States, stacked results, a number of iterations that data may decide, an early exit."""
    start = g.pick(lambda v: v.dtype in ("float32", "int64"))
    start = Value(start.name, start.dtype, start.shape, start.exact, max(start.magnitude, 8.0))
    trips: Value | str
    trip_count, early = g.rng.randint(0, 4), g.rng.random() < 0.4
    fixed = g.rng.random() < 0.5
    trips = g.constant(trip_count, "int64") if fixed else g.count(4)
    body = Graph(g.whole, g)
    i = Value(g.whole.name("i"), "int64", (), True, 4, 0)
    going = Value(g.whole.name("going"), "bool", (), True, 1)
    state = renamed(g, start)
    body.values += [i, state]
    for _ in range(g.rng.randint(0, 3)):
        body.node()
    after = step(body, state)
    stacked = stacked_in(body, fixed and trip_count > 0)
    if early:
        limit = body.constant(g.rng.randint(0, 3), "int64")
        on = body.emit("Less", [i, limit], "bool", ())
    else:
        on = body.emit("Identity", [going], "bool", ())
    inner = helper.make_graph(
        body.nodes,
        "body",
        [info(i), info(going), info(state)],
        [info(v, shaped=False) for v in (on, after, stacked)],
    )
    output_index = g.rng.randint(0, 1)
    rows: Dim = trip_count if fixed and not early else g.unknown()
    keep = g.constant(True, "bool") if g.rng.random() < 0.5 else ""
    shapes = [state.shape, (rows, *stacked.shape)]
    like = (after, stacked)[output_index]
    loop_value = g.emit(
        "Loop",
        [trips, keep, start],
        like.dtype,
        shapes[output_index],
        exact=like.exact,
        magnitude=like.magnitude,
        minimum=like.minimum,
        outputs=2,
        output_index=output_index,
        body=inner,
    )
    return loop_value


@recipe(1, nests=True)
def scan(g: Graph) -> Value:
    start = g.pick(lambda v: v.dtype == "float32")
    start = Value(start.name, start.dtype, start.shape, start.exact, max(start.magnitude, 8.0))
    rows = g.pick(lambda v: v.rank > 0 and v.dtype in ("float32", "int64"))
    axis = g.axis(rows)
    g.whole.deadly |= empty_runs(rows)
    body = Graph(g.whole, g)
    state = renamed(g, start)
    row_shape = (*rows.shape[:axis], *rows.shape[axis + 1 :])
    row = Value(g.whole.name("p"), rows.dtype, row_shape, rows.exact, rows.magnitude, rows.minimum)
    body.values += [state, row]
    for _ in range(g.rng.randint(0, 3)):
        body.node()
    after = step(body, state)
    stacked = stacked_in(body, rows.shape[axis] == "M" or rows.shape[axis] in range(1, 99))
    inner = proto(body, "body", [state, row], [after, stacked])
    output_index = g.rng.randint(0, 1)
    like = (after, stacked)[output_index]
    return g.emit(
        "Scan",
        [start, rows],
        like.dtype,
        [state.shape, (rows.shape[axis], *stacked.shape)][output_index],
        exact=like.exact,
        magnitude=like.magnitude,
        minimum=like.minimum,
        outputs=2,
        output_index=output_index,
        body=inner,
        num_scan_inputs=1,
        scan_input_axes=[axis],
        scan_input_directions=[g.rng.randint(0, 1)],
    )


# ---- sequences and optionals -------------------------------------------------------------------


@recipe(1)
def sequence(g: Graph) -> Value:
    """A sequence that is made, changed and read."""
    x = g.pick(lambda v: v.rank > 0 and v.dtype != "float16")
    axis = g.axis(x, lambda d: isinstance(d, int))
    parts = [x] + [v for v in g.visible() if (v.dtype, v.shape) == (x.dtype, x.shape)]
    parts = g.rng.sample(parts, min(len(parts), g.rng.randint(1, 3)))
    sequence_name = g.whole.name("s")
    g.nodes.append(helper.make_node("SequenceConstruct", [p.name for p in parts], [sequence_name]))
    count = len(parts)
    if g.rng.random() < 0.5:
        longer_sequence, position = g.whole.name("s"), []
        if g.rng.random() < 0.5:
            position = [g.constant(g.rng.randint(-count, count), "int64")]
        g.nodes.append(
            helper.make_node(
                "SequenceInsert", [sequence_name, x.name, *position], [longer_sequence]
            )
        )
        sequence_name, count, parts = longer_sequence, count + 1, [*parts, x]
    if count > 1 and g.rng.random() < 0.4:
        shorter_sequence = g.whole.name("s")
        position = [g.constant(g.rng.randint(-count, count - 1), "int64")]
        g.nodes.append(
            helper.make_node("SequenceErase", [sequence_name, *position], [shorter_sequence])
        )
        sequence_name, count = shorter_sequence, count - 1
    exact, magnitude = all(p.exact for p in parts), max(p.magnitude for p in parts)
    minimum = min(p.minimum for p in parts)
    access = g.one_of("at", "concat", "length", "stack")
    if access == "length":
        return g.emit("SequenceLength", [sequence_name], "int64", (), magnitude=count, minimum=0)
    if access == "at":
        k = g.constant(g.rng.randint(-count, count - 1), "int64")
        return g.emit(
            "SequenceAt",
            [sequence_name, k],
            x.dtype,
            x.shape,
            exact=exact,
            magnitude=magnitude,
            minimum=minimum,
        )
    if access == "stack":
        shape: list[Dim] = [*x.shape[:axis], count, *x.shape[axis:]]
        new = 1
    else:
        shape = [*x.shape[:axis], count * int(x.shape[axis]), *x.shape[axis + 1 :]]
        new = 0
    return g.emit(
        "ConcatFromSequence",
        [sequence_name],
        x.dtype,
        shape,
        exact=exact,
        magnitude=magnitude,
        minimum=minimum,
        axis=axis,
        new_axis=new,
    )


@recipe(0.6)
def pieces(g: Graph) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.dtype != "float16")
    axis = g.axis(x, lambda d: isinstance(d, int) and d > 0)
    extent = int(x.shape[axis])
    piece_size = g.rng.randint(1, extent)
    sequence_name = g.whole.name("s")
    g.nodes.append(
        helper.make_node(
            "SplitToSequence", [x.name, g.constant(piece_size, "int64")], [sequence_name], axis=axis
        )
    )
    k = g.rng.randrange(-(-extent // piece_size))
    piece_extent = min(piece_size, extent - k * piece_size)
    shape = [*x.shape[:axis], piece_extent, *x.shape[axis + 1 :]]
    return g.emit(
        "SequenceAt",
        [sequence_name, g.constant(k, "int64")],
        x.dtype,
        shape,
        exact=x.exact,
        magnitude=x.magnitude,
        minimum=x.minimum,
    )


@recipe(0.4)
def optional(g: Graph) -> Value:
    x = g.pick(lambda v: v.dtype in ("float32", "int64"))
    optional_name = g.whole.name("o")
    g.nodes.append(helper.make_node("Optional", [x.name], [optional_name]))
    if g.rng.random() < 0.3:
        return g.emit("OptionalHasElement", [optional_name], "bool", ())
    return kept(
        g,
        "OptionalGetElement",
        Value(optional_name, x.dtype, x.shape, x.exact, x.magnitude, x.minimum),
        [],
        x.shape,
    )


# ---- whole graphs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """A model and the inputs of its runs; `deadly` as above."""

    model: onnx.ModelProto
    runs: tuple[dict[str, np.ndarray], ...]
    deadly: set[int]


def draw(seed: str) -> Drawn:
    """A graph; the same for the same seed."""
    rng = random.Random(seed)
    whole = Inputs(rng)
    g = Graph(whole)
    for _ in range(rng.randint(1, 3)):
        shape = tuple(rng.choice([1, 2, 3, 4, 5, "N", "M", "M"]) for _ in range(rng.randint(0, 4)))
        if rng.random() < 0.05 and shape:
            shape = (*shape[:-1], 0)
        dtype = rng.choice([*FLOATS, "float32", *INTS, "bool"])
        minimum = 0.0 if dtype in ("uint8", "bool") else -3.0
        whole.inputs.append(Value(whole.name("x"), dtype, shape, True, 3, minimum))
    if not any(v.dtype == "float32" for v in whole.inputs):
        whole.inputs.append(Value(whole.name("x"), "float32", ("M", 4), True, 3, -3))
    g.values += whole.inputs
    for _ in range(rng.randint(3, 14)):
        g.node()
    inner_values = [v for v in g.values if v not in whole.inputs]
    results = inner_values[-1:] + rng.sample(
        inner_values[:-1], min(len(inner_values) - 1, rng.randint(0, 2))
    )
    graph = helper.make_graph(
        g.nodes,
        "drawn",
        [info(v) for v in whole.inputs],
        [info(v, shaped=False) for v in results],
        [numpy_helper.from_array(v, k) for k, v in whole.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    return Drawn(model, tuple(feeds(whole, seed, k) for k in range(RUNS)), whole.deadly)


def feeds(whole: Inputs, seed: str, run: int) -> dict[str, np.ndarray]:
    source = np.random.default_rng(list(f"{seed} {run}".encode()))
    arrays = {}
    for v in whole.inputs:
        shape = [d if isinstance(d, int) else SIZES[d][run] for d in v.shape]
        limit = 1 if v.dtype == "bool" else int(v.magnitude)
        arrays[v.name] = source.integers(int(v.minimum), limit, shape, endpoint=True).astype(
            v.dtype
        )
    return arrays
