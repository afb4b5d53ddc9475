"""Tensors of strings, as far as they are known to be entries of a list: the labels of classifiers.

Programs have no strings. A tensor of strings is one of numbers in graphs, and a list of texts that
the model has; encoders look their keys up in it at import. As a result it is the numbers, and the
function's attribute `texts` has the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tensorkiln.ir.relax import TensorType, constant

if TYPE_CHECKING:
    from tensorkiln.frontend.graph.context import Context
    from tensorkiln.frontend.graph.values import Val


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """The strings `table[number]`, by their numbers, an int64 tensor."""

    numbers: Val
    table: tuple[str, ...]

    @property
    def tensor(self) -> TensorType:
        """The type of the numbers."""
        tensor_type: TensorType = self.numbers.tensor
        return tensor_type


def looked_up(
    g: Context, x: Texts, keys: Sequence[str], values: np.ndarray, default: object
) -> Val:
    """The value beside the key that each string is, else the default. Of equal keys the first
    counts."""
    place = {key: k for k, key in reversed(list(enumerate(keys)))}
    rows = [values[place[text]] if text in place else default for text in x.table]
    return g.emit("take", constant(np.array(rows, values.dtype)), x.numbers, axis=0)


def is_one_of(g: Context, x: Texts, texts: Sequence[str]) -> Val:
    """Whether each string is each of these, in a further dimension, as float32."""
    rows = [[float(text == choice) for choice in texts] for text in x.table]
    return g.emit("take", constant(np.array(rows, np.float32)), x.numbers, axis=0)


__all__ = ["Texts", "is_one_of", "looked_up"]
