"""RNN, GRU and LSTM. With layout=1 the batch is first in x, Y and states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tensorkiln.frontend.graph import elementwise, recurrent
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.recurrent import CellOf, Function, Network, RecurrentLayer
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx import ops_math
from tensorkiln.frontend.onnx.dispatch import Float, Floats, Int, Str, Strs, Table
from tensorkiln.ops.rules import same_extent, show

# activation -> (importer, defaults of alpha and beta by name); those of ONNX
_ACTIVATIONS: dict[str, tuple[Callable[..., Any], dict[str, float]]] = {
    "sigmoid": (ops_math.unary("sigmoid"), {}),
    "tanh": (ops_math.unary("tanh"), {}),
    "relu": (ops_math.unary("relu"), {}),
    "softplus": (ops_math.unary("softplus"), {}),
    "softsign": (elementwise.softsign, {}),
    "leakyrelu": (ops_math.leaky_relu, {"alpha": 0.01}),
    "elu": (ops_math.elu, {"alpha": 1.0}),
    "thresholdedrelu": (elementwise.thresholded_relu, {"alpha": 1.0}),
    "hardsigmoid": (ops_math.hard_sigmoid, {"alpha": 0.2, "beta": 0.5}),
}
# direction -> whether each of a layer's directions is from the end of the sequence
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@dataclass(frozen=True, slots=True)
class _Attributes:
    """What the nodes of all three networks say."""

    activations: Strs
    activation_alpha: Floats
    activation_beta: Floats
    clip: float | None
    direction: str
    hidden_size: int | None
    layout: int

    def functions(self, g: Context, network: Network) -> list[Function]:
        """The activations of all directions, one direction after another; those that have an alpha
        or beta take the next of the node's."""
        directions = 2 if self.direction == "bidirectional" else 1
        names = self.activations or network.activations * directions
        if len(names) != len(network.activations) * directions:
            expected = len(network.activations) * directions
            raise malformed(f"{len(names)} activations, expected {expected}")
        queues = {"alpha": list(self.activation_alpha), "beta": list(self.activation_beta)}
        functions: list[Function] = []
        for name in names:
            if name.lower() not in _ACTIVATIONS:
                supported = ", ".join(sorted(_ACTIVATIONS))
                raise unsupported(f"activation {name!r}", f"supported: {supported}")
            importer, defaults = _ACTIVATIONS[name.lower()]
            numbers = {k: queues[k].pop(0) if queues[k] else v for k, v in defaults.items()}
            functions.append(partial(importer, g, **numbers))
        for name, surplus in queues.items():
            if surplus:
                raise malformed(
                    f"activation_{name} has {len(surplus)} values more than activations take"
                )
        return functions


def _layer(
    g: Context,
    network: Network,
    cell: CellOf,
    operands: tuple[Val, Val, Val, Val | None, Val | None],
    states: Sequence[Val | None],
    attributes: _Attributes,
) -> list[Val]:
    """Y and the last states of a node with operands x, W, R, B and lengths."""
    functions = attributes.functions(g, network)
    if attributes.direction not in _DIRECTIONS:
        expected = ", ".join(_DIRECTIONS)
        raise malformed(f"direction={attributes.direction!r}; expected one of {expected}")
    if attributes.layout not in (0, 1):
        raise malformed(f"layout={attributes.layout}, expected 0 or 1")
    r, size = operands[2], attributes.hidden_size
    if size is not None and g.rank(r) == 3 and not same_extent(g.shape(r)[2], size):
        raise malformed(f"hidden_size={size}, but R has rows of {show(g.shape(r)[2])}")
    layer = RecurrentLayer(
        g,
        network,
        *operands,
        states,
        functions,
        _DIRECTIONS[attributes.direction],
        attributes.clip,
        samples_first=bool(attributes.layout),
    )
    return layer.run(cell)


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
    """A network whose state is its output."""
    attributes = _Attributes(
        activations, activation_alpha, activation_beta, clip, direction, hidden_size, layout
    )
    operands = (x, w, r, bias, lengths)
    return _layer(g, recurrent.RNN, recurrent.rnn_cell, operands, (state,), attributes)


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
    """A network of gated recurrent units."""
    attributes = _Attributes(
        activations, activation_alpha, activation_beta, clip, direction, hidden_size, layout
    )
    cell = recurrent.gru_cell(linear_before_reset=bool(linear_before_reset))
    return _layer(g, recurrent.GRU, cell, (x, w, r, bias, lengths), (state,), attributes)


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
    """A network of long short-term memory."""
    attributes = _Attributes(
        activations, activation_alpha, activation_beta, clip, direction, hidden_size, layout
    )
    cell = recurrent.lstm_cell(input_forget=bool(input_forget), peepholes=peepholes)
    return _layer(g, recurrent.LSTM, cell, (x, w, r, bias, lengths), (state, memory), attributes)


TABLE: Table = {"RNN": {7: rnn}, "GRU": {7: gru}, "LSTM": {7: lstm}}
