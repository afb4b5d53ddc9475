"""Results of primitives when they are called as methods of a Schedule: the names of the loops and
blocks that they made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Generic, ParamSpec, TypeVar

from tensorkiln.ir.stmt import Block, For, PrimFunc, Stmt
from tensorkiln.ir.visit import substmts

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Primitive(Generic[_P, _R]):
    """A primitive that makes loops or blocks. As a function it returns the program alone, like all
    primitives; `run` returns (the program, what was made)."""

    __name__: str

    def __init__(self, run: Callable[_P, tuple[PrimFunc, _R]]):
        self.run = run
        update_wrapper(self, run)

    def __call__(self, *args: _P.args, **options: _P.kwargs) -> PrimFunc:
        """The program after the primitive."""
        return self.run(*args, **options)[0]


@dataclass(frozen=True, slots=True)
class Split:
    """The new loops, outermost first, and the loop over what `tail="peel"` cut off, or None.
    `outer` and `inner` are the first and the last of `loops`."""

    loops: tuple[str, ...]
    tail: str | None = None

    @property
    def outer(self) -> str:
        """The outermost loop."""
        return self.loops[0]

    @property
    def inner(self) -> str:
        """The innermost loop."""
        return self.loops[-1]


@dataclass(frozen=True, slots=True)
class SplitEven:
    """A Split for each of the one or two sizes of pieces, in order."""

    parts: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """The two loops, in order."""

    first: str
    rest: str


@dataclass(frozen=True, slots=True)
class Fission:
    """A loop for each statement, in order; the first has the name of the old loop."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """The two loops over rectangles, and the two loops inside a rectangle."""

    outer: tuple[str, str]
    inner: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Nest:
    """The new loops, outermost first, and the block inside them. `pad` and `transform_layout` give
    one for each buffer that they initialise."""

    loops: tuple[str, ...]
    block: str

    @staticmethod
    def of(s: Stmt) -> Nest:
        """The names of loops and conditions around one block."""
        loops = []
        while not isinstance(s, Block):
            if isinstance(s, For):
                loops.append(s.var.name)
            (s,) = substmts(s)
        return Nest(tuple(loops), s.name)


@dataclass(frozen=True, slots=True)
class Cooperative:
    """The loops over threads, x first; the loop in each thread over its iterations; the loop over
    the lanes of a vector, or None."""

    threads: tuple[str, ...]
    rounds: str
    lanes: str | None


@dataclass(frozen=True, slots=True)
class Rfactor:
    """The block of the partial sums, the new loops that add these up, and the nest that initialises
    them, where that had to be a block of its own, or None."""

    partial: str
    loops: tuple[str, ...]
    start: Nest | None
