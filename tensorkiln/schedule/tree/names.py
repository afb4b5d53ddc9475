"""Names of loops and blocks: which are taken, and the next free one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator

from tensorkiln.base.text import unused
from tensorkiln.ir.stmt import Block, For, PrimFunc, Stmt
from tensorkiln.ir.visit import free_vars, walk_stmt


def name_of(s: Stmt) -> str | None:
    """The name of a loop or a block; None for other statements."""
    if isinstance(s, For):
        return s.var.name
    return s.name if isinstance(s, Block) else None


def names(s: Stmt) -> Iterator[str]:
    """Names of the loops and blocks of a statement, outermost first, in order."""
    return (n for t in walk_stmt(s) if (n := name_of(t)) is not None)


def scalar_names(f: PrimFunc) -> set[str]:
    """Names of a function's scalars and symbolic dimensions, which no loop may have."""
    shapes = (v.name for b in f.buffers for d in (*b.shape, *b.strides) for v in free_vars(d))
    return {*(v.name for v in f.scalars), *shapes}


def taken(f: PrimFunc) -> set[str]:
    """Every name that a new loop or block may not have."""
    return scalar_names(f) | set(names(f.body))


def fresh(base: str, taken_names: Container[str]) -> str:
    """`base`, or the first of `base_1`, `base_2`, ... that is not used."""
    return unused(base, taken_names, first=1)


def namer(f: PrimFunc) -> Callable[[str], str]:
    """`fresh`, for a series of names that are all new to `f`."""
    taken_names = taken(f)

    def name(base: str) -> str:
        new_name = fresh(base, taken_names)
        taken_names.add(new_name)
        return new_name

    return name
