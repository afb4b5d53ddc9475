"""Complex numbers of torch's programs: each tensor of them is two of floats here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorkiln.frontend.graph.values import Val


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers: its real and imaginary parts, of one shape and element type."""

    real: Val
    imag: Val


def is_complex(value: Any) -> bool:
    """Whether an argument of a node is a complex number or tensor, or a list with one."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    return isinstance(value, Complex | complex)


def has_complex_result(fakes: Any) -> bool:
    """Whether torch finds a tensor of complex numbers for a result."""
    if isinstance(fakes, list | tuple):
        return any(map(has_complex_result, fakes))
    return bool(getattr(getattr(fakes, "dtype", None), "is_complex", False))


def tensors(value: Any) -> Iterator[Val]:
    """The tensors of floats that results are made of."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        if isinstance(entry, Complex):
            yield from (entry.real, entry.imag)
        elif isinstance(entry, Val):
            yield entry
