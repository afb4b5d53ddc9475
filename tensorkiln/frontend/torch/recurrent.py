"""Recurrent layers, kept whole: torch exports one copy of their cell for each step of the example,
and so no length but that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from tensorkiln.frontend.graph.movement import concat, stack
from tensorkiln.frontend.graph.recurrent import (
    GRU,
    LSTM,
    RNN,
    CellOf,
    Network,
    RecurrentLayer,
    gru_cell,
    lstm_cell,
    rnn_cell,
)
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.torch.context import AtenContext
from tensorkiln.frontend.torch.dispatch import AtenTable
from tensorkiln.ir.expr import as_expr, int_value

# torch's function -> where it has the gates of our cells: torch has i, f, n, o and r, z, n
_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
_NETWORKS: dict[str, tuple[Network, CellOf]] = {
    "lstm": (LSTM, lstm_cell()),
    "gru": (GRU, gru_cell(linear_before_reset=True)),
    "rnn_tanh": (RNN, rnn_cell),
    "rnn_relu": (replace(RNN, activations=("relu",)), rnn_cell),
}


@cache
def _operators() -> dict[str, Any]:
    """An operator for each of torch's functions, which only `torch.export` ever calls:
    x [steps, samples, in], states [layers * directions, samples, H], weights as torch has them."""
    import torch

    operators = {}
    for name in _GATES:
        results = ", ".join(["Tensor"] * (_NETWORKS[name][0].states + 1))
        full = f"tensorkiln::{name}"
        torch.library.define(
            full, f"(Tensor x, Tensor[] states, Tensor[] weights, bool both) -> ({results})"
        )

        def shapes(x: Any, states: Sequence[Any], weights: Any, both: bool) -> tuple[Any, ...]:
            size = states[0].shape[2] * (2 if both else 1)
            return (x.new_empty(*x.shape[:2], size), *(s.new_empty(s.shape) for s in states))

        torch.library.register_fake(full, shapes)
        operators[name] = getattr(torch.ops.tensorkiln, name)
    return operators


@contextlib.contextmanager
def whole_recurrences() -> Iterator[None]:
    """Have recurrent modules call the operators of this file while the block runs. Packed
    sequences, projections and dropout in training stay as torch decomposes them."""
    import torch

    functions = torch._VF
    originals = {name: vars(functions)[name] for name in _GATES if name in vars(functions)}
    replacements = {
        name: _whole(name, operator, getattr(functions, name))
        for name, operator in _operators().items()
    }
    vars(functions).update(replacements)
    try:
        yield
    finally:
        for name in _GATES:
            delattr(functions, name)
        vars(functions).update(originals)


def _whole(name: str, operator: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """What stands for one of torch's functions: arguments are those of torch._VF."""

    def run(x: Any, states: Any, *settings: Any) -> Any:
        if len(settings) != 7 or not isinstance(settings[0], tuple | list):  # a packed sequence
            return plain(x, states, *settings)
        weights, has_biases, layers, dropout, train, bidirectional, batch_first = settings
        state_list = [*states] if name == "lstm" else [states]
        weight_count = layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
        if len(weights) != weight_count or (train and dropout):
            return plain(x, states, *settings)
        turned = x.transpose(0, 1) if batch_first else x
        y, *last = operator(turned, state_list, list(weights), bidirectional)
        return (y.transpose(0, 1) if batch_first else y, *last)

    return run


def recurrent(name: str) -> Callable[..., Sequence[Val]]:
    """The importer of an operator: layer after layer, the results of both directions joined."""
    order, (network, cell) = _GATES[name], _NETWORKS[name]

    def run(
        g: AtenContext, x: Val, states: Sequence[Val], weights: Sequence[Val], both: bool
    ) -> Sequence[Val]:
        backward = (False, True) if both else (False,)
        directions = len(backward)
        slots = int_value(g.shape(states[0])[0])
        assert slots is not None
        count = len(weights) // slots
        lasts: list[Sequence[Val]] = []
        for first in range(0, slots, directions):
            rows = [weights[k * count : (k + 1) * count] for k in range(first, first + directions)]
            parts = [[_ordered(g, w, order) for w in row] for row in rows]
            w, r = (stack(g, [row[k] for row in parts], 0) for k in (0, 1))
            biases = [g.emit("concat", *row[2:], axis=0) for row in parts if count == 4]
            bias = stack(g, biases, 0) if biases else None
            start = [g.sliced(s, 0, first, directions) for s in states]
            functions = network.functions(g, directions)
            layer = RecurrentLayer(g, network, x, w, r, bias, None, start, functions, backward)
            y, *last = layer.run(cell)
            width = g.dims.simplify(g.shape(states[0])[2] * directions)
            x = g.reshape(g.transpose(y, (0, 2, 1, 3)), (*g.shape(x)[:2], width))
            lasts.append(last)
        return [x, *(concat(g, *column, axis=0) for column in zip(*lasts, strict=True))]

    return run


def _ordered(g: AtenContext, w: Val, order: Sequence[int]) -> Val:
    """A weight or bias whose gates are in the order of our cells."""
    if len(order) == 1:
        return w
    rows = g.dims.divide(g.shape(w)[0], as_expr(len(order)))
    assert rows is not None
    parts = [g.sliced(w, 0, g.dims.simplify(rows * k), rows) for k in order]
    return g.emit("concat", *parts, axis=0)


TABLE: AtenTable = {f"tensorkiln::{name}": recurrent(name) for name in _GATES}
