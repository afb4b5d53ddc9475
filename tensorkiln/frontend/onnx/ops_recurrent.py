"""RNN, GRU and LSTM: unrolled over a short sequence, else a loop of host code.

The products with the sequence are one matrix product for all steps; those with the state follow
step by step. Shapes: x [steps, batch, in], W [directions, gates*H, in], R [directions, gates*H, H],
B [directions, 2*gates*H]; results Y [steps, directions, batch, H] and last states [directions,
batch, H]. With layout=1 the batch is first in x, Y and states. The last states of a sequence whose
length is given as 0 are 0, as in ONNX Runtime, whatever the initial ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx import ops_math
from tensorkiln.frontend.onnx.dispatch import Float, Floats, Int, Str, Strs, Table
from tensorkiln.frontend.onnx.ops_index import up_to
from tensorkiln.frontend.onnx.scan import scanned
from tensorkiln.ir.expr import Expr, ExprLike
from tensorkiln.ops.rules import same_extent, show

Function = Callable[[Val], Val]
# From the gates' part of the input [batch, gates*H] and the states to the new states, of which the
# first is the output.
Cell = Callable[[Val, Sequence[Val]], Sequence[Val]]


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one direction: w [in, gates*H], r [H, gates*H], biases [gates*H] or None."""

    g: Context
    size: Expr
    w: Val
    r: Val
    input_bias: Val | None
    state_bias: Val | None
    functions: Sequence[Function]
    clip: float | None

    def part(self, x: Val, gate: int) -> Val:
        """The columns of one gate of [..., gates*H]."""
        rank = self.g.rank(x)
        begin: tuple[ExprLike, ...] = (*[0] * (rank - 1), self.size * gate)
        shape = (*self.g.shape(x)[:-1], self.size)
        return self.g.emit("slice", x, begin=begin, strides=(1,) * rank, shape=shape)

    def activate(self, number: int, x: Val) -> Val:
        """Activation function `number` of what is clipped, if the model says so."""
        if self.clip is not None:
            x = self.g.emit("clip", x, min=-self.clip, max=self.clip)
        return self.functions[number](x)


# activation -> (importer, defaults of alpha and beta by name); those of ONNX
_ACTIVATIONS: dict[str, tuple[Callable[..., Any], dict[str, float]]] = {
    "sigmoid": (ops_math.unary("sigmoid"), {}),
    "tanh": (ops_math.unary("tanh"), {}),
    "relu": (ops_math.unary("relu"), {}),
    "softplus": (ops_math.unary("softplus"), {}),
    "softsign": (ops_math.softsign, {}),
    "leakyrelu": (ops_math.leaky_relu, {"alpha": 0.01}),
    "elu": (ops_math.elu, {"alpha": 1.0}),
    "thresholdedrelu": (ops_math.thresholded_relu, {"alpha": 1.0}),
    "hardsigmoid": (ops_math.hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
}


def _functions(
    g: Context, names: Sequence[str], alpha: Sequence[float], beta: Sequence[float]
) -> list[Function]:
    """Activations; those that have an alpha or beta take the next that is given."""
    left = {"alpha": list(alpha), "beta": list(beta)}
    found: list[Function] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise unsupported(
                f"activation {name!r}", f"supported: {', '.join(sorted(_ACTIVATIONS))}"
            )
        make, defaults = _ACTIVATIONS[name.lower()]
        given = {k: left[k].pop(0) if left[k] else v for k, v in defaults.items()}
        found.append(lambda x, make=make, given=given: make(g, x, **given))  # type: ignore[misc]
    for name, rest in left.items():
        if rest:
            raise malformed(f"activation_{name} has {len(rest)} values more than activations take")
    return found


@dataclass(frozen=True, slots=True)
class Layer:
    """What a recurrent node is given; `run` imports it."""

    g: Context
    gates: int
    x: Val
    w: Val
    r: Val
    bias: Val | None
    lengths: Val | None
    states: Sequence[Val | None]
    activations: Sequence[str]
    alpha: Sequence[float]
    beta: Sequence[float]
    clip: float | None
    direction: str
    hidden_size: int | None
    layout: int

    def run(self, cell: Callable[[Weights, int], Cell]) -> list[Val]:
        """Y and the last states; `cell(weights, d)` makes the cell of direction d."""
        g = self.g
        names = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        if self.direction not in names:
            raise malformed(f"direction={self.direction!r}; expected one of {', '.join(names)}")
        backward = names[self.direction]
        if self.layout not in (0, 1):
            raise malformed(f"layout={self.layout}, expected 0 or 1")
        self._check(len(backward))
        x, lengths = g.transpose(self.x, (1, 0, 2)) if self.layout else self.x, self.lengths
        if lengths is not None:
            x, lengths = up_to(g, x, lengths, g.shape(x)[0], "steps")
        outs, lasts = [], []
        for d, back in enumerate(backward):
            weights = self._weights(d, len(backward))
            y, last = self._along(x, lengths, weights, cell(weights, d), d, back)
            outs.append(y)
            lasts.append(last)
        y = _joined(g, outs, 1)
        finals = [_joined(g, [last[k] for last in lasts], 0) for k in range(len(self.states))]
        if self.layout:
            y = g.transpose(y, (2, 0, 1, 3))
            finals = [g.transpose(v, (1, 0, 2)) for v in finals]
        return [y, *finals]

    def _check(self, directions: int) -> None:
        g = self.g
        if (g.rank(self.x), g.rank(self.w), g.rank(self.r)) != (3, 3, 3):
            raise malformed("x, W and R must have 3 dimensions")
        hidden = g.shape(self.r)[2]
        if self.hidden_size is not None and not same_extent(hidden, self.hidden_size):
            raise malformed(f"hidden_size={self.hidden_size}, but R has rows of {show(hidden)}")
        rows = g.dims.simplify(hidden * self.gates)
        for name, v in (("W", self.w), ("R", self.r)):
            if not same_extent(g.shape(v)[0], directions) or not same_extent(g.shape(v)[1], rows):
                raise malformed(f"{name} must begin with [{directions}, {show(rows)}]")

    def _weights(self, d: int, directions: int) -> Weights:
        g = self.g
        size = g.shape(self.r)[2]
        count = len(self.activations) // directions
        functions = _functions(g, self.activations, self.alpha, self.beta)
        biases: list[Val | None] = [None, None]
        if self.bias is not None:
            whole, rows = _part(g, self.bias, d), g.dims.simplify(size * self.gates)
            biases = [
                g.emit("slice", whole, begin=(k * rows,), strides=(1,), shape=(rows,))
                for k in (0, 1)
            ]
        return Weights(
            g,
            size,
            g.transpose(_part(g, self.w, d), (1, 0)),
            g.transpose(_part(g, self.r, d), (1, 0)),
            biases[0],
            biases[1],
            functions[d * count : (d + 1) * count],
            self.clip,
        )

    def _along(
        self, x: Val, lengths: Val | None, weights: Weights, cell: Cell, d: int, back: bool
    ) -> tuple[Val, Sequence[Val]]:
        """(Y [steps, 1, batch, H], last states [1, batch, H]) of one direction."""
        g, size = self.g, weights.size
        steps, batch = g.shape(x)[:2]
        parts = g.emit("matmul", x, weights.w)
        if weights.input_bias is not None:
            parts = g.emit("add", parts, weights.input_bias)
        states = [self._initial(v, d, batch, size) for v in self.states]
        zero = g.like(0, x)
        inputs = [parts]
        if lengths is not None:
            lengths = g.reshape(g.cast(lengths, "int64"), (batch, 1))
            inputs.append(g.emit("arange", start=0, step=1, count=steps, dtype="int64"))

        def step(number: int, args: Sequence[Val]) -> list[Val]:
            """The next states and the output: 0 behind the end of a sequence, where states stay."""
            now, (part, *at) = args[: len(states)], args[len(states) :]
            new = list(cell(part, now))
            out = new[0]
            if lengths is not None:
                live = g.emit("greater", lengths, at[0])
                new = [g.emit("where", live, a, b) for a, b in zip(new, now, strict=True)]
                out = g.emit("where", live, out, zero)
            return [*new, g.reshape(out, (1, batch, size))]

        way, many = int(back), len(inputs)
        *last, y = scanned(g, step, states, inputs, [0] * many, [way] * many, [0], [way])
        if lengths is not None:
            some = g.emit("greater", lengths, g.const(0, "int64"))
            last = [g.emit("where", some, s, zero) for s in last]
        return y, [g.reshape(s, (1, batch, size)) for s in last]

    def _initial(self, given: Val | None, d: int, batch: Expr, size: Expr) -> Val:
        g = self.g
        if given is None:
            return g.emit("full", shape=(batch, size), value=0.0, dtype=g.dtype(self.x))
        return _part(g, g.transpose(given, (1, 0, 2)) if self.layout else given, d)


def _joined(g: Context, parts: Sequence[Val], axis: int) -> Val:
    return parts[0] if len(parts) == 1 else g.emit("concat", *parts, axis=axis)


def _part(g: Context, x: Val, at: int) -> Val:
    """Element `at` of the first dimension."""
    rest = g.shape(x)[1:]
    begin = (at, *[0] * len(rest))
    part = g.emit("slice", x, begin=begin, strides=(1,) * g.rank(x), shape=(1, *rest))
    return g.reshape(part, rest)


def _sum(g: Context, a: Val, b: Val | None) -> Val:
    return a if b is None else g.emit("add", a, b)


def _blend(g: Context, share: Val, a: Val, b: Val) -> Val:
    """share * a + (1 - share) * b"""
    rest = g.emit("sub", g.like(1, share), share)
    return g.emit("add", g.emit("mul", share, a), g.emit("mul", rest, b))


def rnn(
    g: Context,
    x: Val,
    w: Val,
    r: Val,
    bias: Val | None = None,
    lengths: Val | None = None,
    state: Val | None = None,
    *,
    activations: Strs = (),
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    clip: Float | None = None,
    direction: Str = "forward",
    hidden_size: Int | None = None,
    layout: Int = 0,
) -> list[Val]:
    """h = f(x W + h R + b)"""
    names = _named(activations, ("Tanh",), direction)
    layer = Layer(
        g,
        1,
        x,
        w,
        r,
        bias,
        lengths,
        (state,),
        names,
        activation_alpha,
        activation_beta,
        clip,
        direction,
        hidden_size,
        layout,
    )

    def cell(weights: Weights, d: int) -> Cell:
        def step(part: Val, states: Sequence[Val]) -> Sequence[Val]:
            total = g.emit("add", part, g.emit("matmul", states[0], weights.r))
            return (weights.activate(0, _sum(g, total, weights.state_bias)),)

        return step

    return layer.run(cell)


def gru(
    g: Context,
    x: Val,
    w: Val,
    r: Val,
    bias: Val | None = None,
    lengths: Val | None = None,
    state: Val | None = None,
    *,
    activations: Strs = (),
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    clip: Float | None = None,
    direction: Str = "forward",
    hidden_size: Int | None = None,
    layout: Int = 0,
    linear_before_reset: Int = 0,
) -> list[Val]:
    """h = z h + (1 - z) n, where the reset gate multiplies the state before its product with R, or
    with `linear_before_reset` the product."""
    names = _named(activations, ("Sigmoid", "Tanh"), direction)
    layer = Layer(
        g,
        3,
        x,
        w,
        r,
        bias,
        lengths,
        (state,),
        names,
        activation_alpha,
        activation_beta,
        clip,
        direction,
        hidden_size,
        layout,
    )

    def cell(weights: Weights, d: int) -> Cell:
        last = weights.part(weights.r, 2)

        def step(part: Val, states: Sequence[Val]) -> Sequence[Val]:
            (h,) = states
            own = _sum(g, g.emit("matmul", h, weights.r), weights.state_bias)
            z, reset = (
                weights.activate(0, g.emit("add", weights.part(part, k), weights.part(own, k)))
                for k in (0, 1)
            )
            if linear_before_reset:
                new = g.emit("mul", reset, weights.part(own, 2))
            else:
                new = g.emit("matmul", g.emit("mul", reset, h), last)
                if weights.state_bias is not None:
                    new = g.emit("add", new, weights.part(weights.state_bias, 2))
            new = weights.activate(1, g.emit("add", weights.part(part, 2), new))
            return (_blend(g, z, h, new),)

        return step

    return layer.run(cell)


def lstm(
    g: Context,
    x: Val,
    w: Val,
    r: Val,
    bias: Val | None = None,
    lengths: Val | None = None,
    state: Val | None = None,
    memory: Val | None = None,
    peepholes: Val | None = None,
    *,
    activations: Strs = (),
    activation_alpha: Floats = (),
    activation_beta: Floats = (),
    clip: Float | None = None,
    direction: Str = "forward",
    hidden_size: Int | None = None,
    input_forget: Int = 0,
    layout: Int = 0,
) -> list[Val]:
    """c = f c + i n and h = o tanh(c); gates i, o, f, n. With `input_forget`, f = 1 - i. Peepholes
    [directions, 3*H] are weights of c in the gates i, o, f."""
    names = _named(activations, ("Sigmoid", "Tanh", "Tanh"), direction)
    layer = Layer(
        g,
        4,
        x,
        w,
        r,
        bias,
        lengths,
        (state, memory),
        names,
        activation_alpha,
        activation_beta,
        clip,
        direction,
        hidden_size,
        layout,
    )

    def cell(weights: Weights, d: int) -> Cell:
        peep = None if peepholes is None else _part(g, peepholes, d)

        def step(part: Val, states: Sequence[Val]) -> Sequence[Val]:
            h, c = states
            total = g.emit("add", part, g.emit("matmul", h, weights.r))
            total = _sum(g, total, weights.state_bias)

            def gate(number: int, seen: Val) -> Val:
                own = weights.part(total, number)
                if peep is not None:
                    own = g.emit("add", own, g.emit("mul", seen, weights.part(peep, number)))
                return weights.activate(0, own)

            i = gate(0, c)
            n = weights.activate(1, weights.part(total, 3))
            if input_forget:
                c = _blend(g, i, n, c)
            else:
                c = g.emit("add", g.emit("mul", gate(2, c), c), g.emit("mul", i, n))
            return g.emit("mul", gate(1, c), weights.functions[2](c)), c

        return step

    return layer.run(cell)


def _named(names: Sequence[str], default: Sequence[str], direction: str) -> Sequence[str]:
    """The activations of all directions, one after another."""
    directions = 2 if direction == "bidirectional" else 1
    found = names or (*default,) * directions
    if len(found) != len(default) * directions:
        raise malformed(f"{len(found)} activations, expected {len(default) * directions}")
    return found


TABLE: Table = {"RNN": {7: rnn}, "GRU": {7: gru}, "LSTM": {7: lstm}}
