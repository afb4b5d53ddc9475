"""`Knob`: a choice of a schedule that is measured where the untuned one may not be the best.

A kernel family declares its knobs (`Family.knobs`) with the values that are legal for a call, such
as heights of register tiles, terms per round, or how far ahead weights are fetched. Each value
gives a correct kernel; sums may be added in another order, but rows stay independent and results do
not depend on threads. A schedule asks `group.knob("rows")` and never estimates a value itself.

What a schedule does without a record is the knob's untuned value. Other values are in the attribute
`knobs` of a fused group, rows of (family, knob, value), which `schedule/apply_records.py` writes,
or people do. They are part of the group's text, and so of its kernel's cache key, of dumps and of
reproducers. Layouts are not knobs: graph passes fix them.

The knob `fetch` is for weights that come from memory. Sums either prefetch a fixed distance ahead
in the order of reading, or prefetch the next panel of weights, spread evenly over the work on the
present one, so that memory is never idle and sums never wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.record import JsonKind
from tensorkiln.base.schema import Reader
from tensorkiln.target import Target

ATTRIBUTE = "knobs"
Choices = Mapping[str, int]


def _read(reader: Reader, key: str) -> tuple[tuple[str, int], ...]:
    values = reader.child(key)
    for name, _ in reader.items(key):
        if not name.isidentifier():
            raise reader.wrong(f"{name!r:.200} is not the name of a knob", key)
    return tuple((name, values.get(name, int)) for name, _ in sorted(reader.items(key)))


# (name, value) of knobs, by name; in JSON an object.
NamedValues = Annotated[tuple[tuple[str, int], ...], JsonKind(_read)]


@dataclass(frozen=True, slots=True)
class Knob:
    """A choice of a schedule: its legal values, ascending, and the one taken without a record.
    `doc` says in a few words what it is. Raises UserError (code `bad-knob`) for an invalid
    definition."""

    name: str
    values: tuple[int, ...]
    untuned: int
    doc: str

    def __post_init__(self) -> None:
        problem = ""
        if not isinstance(self.name, str) or not self.name.isidentifier():
            problem = "its name is no identifier"
        elif not isinstance(self.values, tuple) or not all(type(v) is int for v in self.values):
            problem = f"values are {self.values!r}, expected a tuple of integers"
        elif sorted(set(self.values)) != list(self.values):
            problem = f"values are {self.values}, expected different ones in ascending order"
        elif self.untuned not in self.values:
            problem = f"untuned is {self.untuned!r}, which is not among its values {self.values}"
        if problem:
            raise UserError(f"knob {self.name!r}: {problem}", code="bad-knob")


def knob(name: str, values: Iterable[int], untuned: int, doc: str) -> Knob:
    """A knob of these values and the untuned one."""
    return Knob(name, tuple(sorted({*values, untuned})), untuned, doc)


def heights(extent: int | None, maximum: int, untuned: int) -> tuple[int, ...]:
    """The heights of tiles, at most `maximum` or `untuned`, that cut `extent` in different ways. A
    known extent is cut evenly; an unknown one into tiles of the height, and the rest."""
    all_heights = range(1, max(maximum, untuned) + 1)
    if extent is None:
        return tuple(all_heights)
    height_of_count = {-(-extent // height): height for height in reversed(all_heights)}
    return tuple(sorted({**height_of_count, -(-extent // untuned): untuned}.values()))


# Terms of a sum in a round of the innermost loop, the untuned number and others: with more, LLVM's
# scheduler hoists loads until it spills.
TERMS, _TERMS = 4, (1, 2, 4, 8)
# Independent vectors of a reduction: an addition has to wait for the previous one of its chain.
CHAINS = 4
# Bytes of weights that are fetched ahead of sums, and the cache lines that a round may fetch; or
# instead the next panel of them, spread over the sums by the present one.
NEXT_PANEL = 1
_FETCHED, _LINE, _LINES = (0, NEXT_PANEL, 4 << 10, 16 << 10, 32 << 10), 64, 64

# Products that are summed in one register before they join the total (`schedule/accumulate.py`): a
# 3x3 filter over 16 channels; and other numbers, with which errors grow at most twice as fast.
SUM_TERMS, _SUM_TERMS = 144, (72, 144, 288, 576)
# Bytes on the stack that totals of a schedule's choice take at most, whatever the caches; a kernel
# may have twice as many (`codegen/stack.py`).
MOST_ON_STACK = 512 << 10


def piece_knobs(terms: int) -> tuple[Knob, ...]:
    """The knob for how many products of a floating-point sum of `terms` products are summed in one
    register; no knob if it can be all of them."""
    if terms <= _SUM_TERMS[0]:
        return ()
    sizes = [n for n in _SUM_TERMS if n < terms * 2]
    return (knob("piece", sizes, SUM_TERMS, "products that a register sums"),)


def steps_knob(terms: int, untuned: int = TERMS) -> Knob:
    """The knob for how many terms of a sum of `terms` terms one round of the innermost loop has."""
    return knob("terms", [n for n in _TERMS if n <= terms], untuned, "terms of a sum in a round")


def chains_knob() -> Knob:
    """The knob for how many independent vectors the terms of a reduction are added in."""
    return knob("chains", _TERMS, CHAINS, "independent vectors that a reduction adds in")


def streamed(size: int, panels: int, tiles: int, target: Target) -> int:
    """NEXT_PANEL for weights of `size` bytes in several panels, if the first-level cache does not
    hold them and several register tiles read each panel; else 0.

    Weights that would fit into the second-level cache are no longer there when a network comes back
    to a layer: fetching them ahead took ResNet-50 from 0.89 of its time to 0.83. Where a single
    tile reads a panel, memory is always busy: a decoder of one row took 1.3 times as long with it.
    """
    fast = target.vector_lanes("float32") > 1 and target.optimize != "size"
    return NEXT_PANEL if fast and min(panels, tiles) > 1 and size > target.l1d_bytes else 0


def fetch_knob(term: int, untuned: int) -> Knob:
    """The knob for how far ahead weights are fetched, where a term of the sums reads `term` bytes
    of them."""
    fits = term * _TERMS[-1] <= _LINE * _LINES
    doc = "bytes weights are fetched ahead; 0: none, 1: the next panel, spread over this one"
    return knob("fetch", _FETCHED if fits else (), untuned, doc)


def choices_of(knobs: Sequence[Knob], choices: Choices) -> dict[str, int]:
    """A value for each knob: the given one, else the untuned one. UserError (code `bad-knob`) for a
    given knob that is not declared, and for a value that is not legal."""
    knob_of_name = {k.name: k for k in knobs}
    for name, value in choices.items():
        if name not in knob_of_name:
            message = f"no knob {name!r}; there are {', '.join(knob_of_name) or 'none'}"
            raise UserError(message, code="bad-knob", hint=nearest(name, knob_of_name))
        if value not in knob_of_name[name].values:
            legal = ", ".join(map(str, knob_of_name[name].values))
            raise UserError(f"{name}={value!r} is not among {legal}", code="bad-knob")
    return {k.name: choices.get(k.name, k.untuned) for k in knobs}


def text_of(choices: Choices) -> str:
    """The choices as text: `"rows=6 terms=2"`."""
    return " ".join(f"{name}={value}" for name, value in sorted(choices.items()))
