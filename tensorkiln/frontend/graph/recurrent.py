"""Recurrent layers: unrolled over a short sequence, else a loop of host code.

The products with the sequence are one matrix product for all steps; those with the state follow
step by step. Shapes: x [steps, batch, in], w [directions, gates*H, in], r [directions, gates*H, H],
bias [directions, 2*gates*H]; results y [steps, directions, batch, H] and last states [directions,
batch, H]. The last states of a sequence of length 0 are 0, whatever the initial ones are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.indexing import counts_within
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.movement import concat
from tensorkiln.frontend.graph.scan import scan
from tensorkiln.frontend.graph.values import Val
from tensorkiln.ir.expr import Expr, ExprLike
from tensorkiln.ops.rules import same_extent, show

Function = Callable[[Val], Val]
# From the gates' part of the input [batch, gates*H] and the states to the new states, of which the
# first is the output.
Cell = Callable[[Val, Sequence[Val]], Sequence[Val]]


@dataclass(frozen=True, slots=True)
class RecurrentWeights:
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
        """Activation function `number` of what is clipped, if the layer says so."""
        if self.clip is not None:
            x = self.g.emit("clip", x, min=-self.clip, max=self.clip)
        return self.functions[number](x)


# From the weights of a direction, and its number, to its cell.
CellOf = Callable[[RecurrentWeights, int], Cell]


@dataclass(frozen=True, slots=True)
class Network:
    """A kind of recurrent network: how many gates and states a cell has, and the operators of its
    usual activations."""

    gates: int
    states: int
    activations: tuple[str, ...]

    def functions(self, g: Context, directions: int) -> list[Function]:
        """The usual activations of all directions, one direction after another."""
        return [partial(g.emit, name) for name in self.activations * directions]


RNN = Network(1, 1, ("tanh",))
GRU = Network(3, 1, ("sigmoid", "tanh"))
LSTM = Network(4, 2, ("sigmoid", "tanh", "tanh"))


@dataclass(frozen=True, slots=True)
class RecurrentLayer:
    """The operands of a recurrent layer; `run` imports it.

    `backward` says for each direction whether it reads the sequence from its end. `functions` are
    the activations of all directions, one direction after another. Where `samples_first`, x and
    states, as well as the results, have the batch before all others.
    """

    g: Context
    network: Network
    x: Val
    w: Val
    r: Val
    bias: Val | None
    lengths: Val | None
    states: Sequence[Val | None]
    functions: Sequence[Function]
    backward: Sequence[bool]
    clip: float | None = None
    samples_first: bool = False

    def run(self, cell: CellOf) -> list[Val]:
        """y and the last states."""
        g = self.g
        self._check()
        x, lengths = g.transpose(self.x, (1, 0, 2)) if self.samples_first else self.x, self.lengths
        if lengths is not None:
            x, lengths = counts_within(g, x, lengths, g.shape(x)[0], "steps")
        outputs, states = [], []
        for direction in range(len(self.backward)):
            weights = self._weights(direction)
            output, *last = self._along(x, lengths, weights, cell(weights, direction), direction)
            outputs.append(output)
            states.append(last)
        y = concat(g, *outputs, axis=1)
        finals = [concat(g, *column, axis=0) for column in zip(*states, strict=True)]
        if self.samples_first:
            y = g.transpose(y, (2, 0, 1, 3))
            finals = [g.transpose(v, (1, 0, 2)) for v in finals]
        return [y, *finals]

    def _check(self) -> None:
        g, directions = self.g, len(self.backward)
        if (g.rank(self.x), g.rank(self.w), g.rank(self.r)) != (3, 3, 3):
            raise malformed("x, W and R must have 3 dimensions")
        rows = g.dims.simplify(g.shape(self.r)[2] * self.network.gates)
        for name, v in (("W", self.w), ("R", self.r)):
            if not same_extent(g.shape(v)[0], directions) or not same_extent(g.shape(v)[1], rows):
                raise malformed(f"{name} must begin with [{directions}, {show(rows)}]")

    def _weights(self, direction: int) -> RecurrentWeights:
        g = self.g
        size = g.shape(self.r)[2]
        count = len(self.functions) // len(self.backward)
        biases: list[Val | None] = [None, None]
        if self.bias is not None:
            whole = _direction(g, self.bias, direction)
            rows = g.dims.simplify(size * self.network.gates)
            biases = [
                g.emit("slice", whole, begin=(k * rows,), strides=(1,), shape=(rows,))
                for k in (0, 1)
            ]
        return RecurrentWeights(
            g,
            size,
            g.transpose(_direction(g, self.w, direction), (1, 0)),
            g.transpose(_direction(g, self.r, direction), (1, 0)),
            biases[0],
            biases[1],
            self.functions[direction * count : (direction + 1) * count],
            self.clip,
        )

    def _along(
        self, x: Val, lengths: Val | None, weights: RecurrentWeights, cell: Cell, direction: int
    ) -> list[Val]:
        """y [steps, 1, batch, H] and the last states [1, batch, H] of one direction."""
        g, size = self.g, weights.size
        steps, batch = g.shape(x)[:2]
        parts = g.emit("matmul", x, weights.w)
        if weights.input_bias is not None:
            parts = g.emit("add", parts, weights.input_bias)
        states = [self._initial(v, direction, batch, size) for v in self.states]
        zero = g.like(0, x)
        inputs = [parts]
        if lengths is not None:
            lengths = g.reshape(g.cast(lengths, "int64"), (batch, 1))
            inputs.append(g.emit("arange", start=0, step=1, count=steps, dtype="int64"))

        def step(number: int, args: Sequence[Val]) -> list[Val]:
            """The next states and the output: 0 behind the end of a sequence, where states stay."""
            now, (part, *numbers) = args[: len(states)], args[len(states) :]
            new = list(cell(part, now))
            output = new[0]
            if lengths is not None:
                live = g.emit("greater", lengths, numbers[0])
                new = [g.emit("where", live, a, b) for a, b in zip(new, now, strict=True)]
                output = g.emit("where", live, output, zero)
            return [*new, g.reshape(output, (1, batch, size))]

        count, scan_direction = len(inputs), int(self.backward[direction])
        *last, y = scan(
            g, step, states, inputs, [0] * count, [scan_direction] * count, [0], [scan_direction]
        )
        if lengths is not None:
            some = g.emit("greater", lengths, g.const(0, "int64"))
            last = [g.emit("where", some, s, zero) for s in last]
        return [y, *(g.reshape(s, (1, batch, size)) for s in last)]

    def _initial(self, state: Val | None, direction: int, batch: Expr, size: Expr) -> Val:
        g = self.g
        if state is None:
            return g.emit("full", shape=(batch, size), value=0.0, dtype=g.dtype(self.x))
        return _direction(
            g, g.transpose(state, (1, 0, 2)) if self.samples_first else state, direction
        )


def _direction(g: Context, x: Val, number: int) -> Val:
    """What one direction has of x [directions, ...]."""
    # `element` writes the extent as an expression, and a model of torch is known by its text.
    shape = g.shape(x)[1:]
    begin = (number, *[0] * len(shape))
    part = g.emit("slice", x, begin=begin, strides=(1,) * g.rank(x), shape=(1, *shape))
    return g.reshape(part, shape)


# -- cells ------------------------------------------------------------------------------------


def _sum(g: Context, a: Val, b: Val | None) -> Val:
    return a if b is None else g.emit("add", a, b)


def _blend(g: Context, share: Val, a: Val, b: Val) -> Val:
    """share * a + (1 - share) * b"""
    complement = g.emit("sub", g.like(1, share), share)
    return g.emit("add", g.emit("mul", share, a), g.emit("mul", complement, b))


def rnn_cell(weights: RecurrentWeights, direction: int) -> Cell:
    """h = f(x W + h R + b)"""
    g = weights.g

    def step(part: Val, states: Sequence[Val]) -> Sequence[Val]:
        total = g.emit("add", part, g.emit("matmul", states[0], weights.r))
        return (weights.activate(0, _sum(g, total, weights.state_bias)),)

    return step


def gru_cell(*, linear_before_reset: bool) -> CellOf:
    """h = z h + (1 - z) n, where the reset gate multiplies the state before its product with R, or
    with `linear_before_reset` the product; gates z, r, n."""

    def cell(weights: RecurrentWeights, direction: int) -> Cell:
        g = weights.g
        candidate_weights = weights.part(weights.r, 2)

        def step(part: Val, states: Sequence[Val]) -> Sequence[Val]:
            (h,) = states
            state_part = _sum(g, g.emit("matmul", h, weights.r), weights.state_bias)
            z, reset = (
                weights.activate(
                    0, g.emit("add", weights.part(part, k), weights.part(state_part, k))
                )
                for k in (0, 1)
            )
            if linear_before_reset:
                candidate = g.emit("mul", reset, weights.part(state_part, 2))
            else:
                candidate = g.emit("matmul", g.emit("mul", reset, h), candidate_weights)
                if weights.state_bias is not None:
                    candidate = g.emit("add", candidate, weights.part(weights.state_bias, 2))
            candidate = weights.activate(1, g.emit("add", weights.part(part, 2), candidate))
            return (_blend(g, z, h, candidate),)

        return step

    return cell


def lstm_cell(*, input_forget: bool = False, peepholes: Val | None = None) -> CellOf:
    """c = f c + i n and h = o tanh(c); gates i, o, f, n. With `input_forget`, f = 1 - i. Peepholes
    [directions, 3*H] are weights of c in the gates i, o, f."""

    def cell(weights: RecurrentWeights, direction: int) -> Cell:
        g = weights.g
        peephole = None if peepholes is None else _direction(g, peepholes, direction)

        def step(part: Val, states: Sequence[Val]) -> Sequence[Val]:
            h, c = states
            total = g.emit("add", part, g.emit("matmul", h, weights.r))
            total = _sum(g, total, weights.state_bias)

            def gate(number: int, memory: Val) -> Val:
                sums = weights.part(total, number)
                if peephole is not None:
                    sums = g.emit(
                        "add", sums, g.emit("mul", memory, weights.part(peephole, number))
                    )
                return weights.activate(0, sums)

            i = gate(0, c)
            n = weights.activate(1, weights.part(total, 3))
            if input_forget:
                c = _blend(g, i, n, c)
            else:
                c = g.emit("add", g.emit("mul", gate(2, c), c), g.emit("mul", i, n))
            return g.emit("mul", gate(1, c), weights.functions[2](c)), c

        return step

    return cell
