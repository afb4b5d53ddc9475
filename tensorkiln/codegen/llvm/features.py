"""Which features of its target a kernel is compiled with, and so requires of a processor.

A processor such as Sapphire Rapids has instructions that only some programs have a use for: tiles,
arithmetic of float16, dot products of bytes. A kernel without such types is compiled without them,
so that LLVM cannot emit one, and its library runs on processors that lack them.
"""

from __future__ import annotations

from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.known_kernel import KnownKernel
from tensorkiln.ir.module import AnyKernel
from tensorkiln.ir.stmt import Alloc, PrimFunc
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.target import Target

# A word for all types whose elements take fewer than 32 bits.
SHORT = "short"


def features_of(f: AnyKernel, target: Target) -> frozenset[str]:
    """The features that a kernel is compiled with for a target."""
    return f.features if isinstance(f, KnownKernel) else target.features_for(words_of(f))


def words_of(f: PrimFunc) -> frozenset[str]:
    """The scalar types of a program's values and buffers, SHORT where there is a short one, and the
    scopes of its buffers: what `Isa.uses` may name. A comparison's bool is in no memory, and counts
    only where a buffer has it."""
    buffers = [p for p in f.params if isinstance(p, Buffer)]
    types = set[DType]()
    for s in walk_stmt(f.body):
        if isinstance(s, Alloc):
            buffers.append(s.buffer)
        types.update(x.dtype for e in stmt_exprs(s) for x in walk(e))
    stored_types = {b.dtype for b in buffers}
    values = {t for t in types if not t.is_bool} | stored_types
    short = {SHORT} if any(t.bits < 32 for t in values) else set()
    return frozenset({t.name for t in values} | {b.scope for b in buffers} | short)


__all__ = ["SHORT", "features_of", "words_of"]
