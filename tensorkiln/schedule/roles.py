"""The role of a loop: a word for what it is for, by which schedules find it, whatever its name.

Programs give roles to the loops that their schedules work on (build.py). A role is the attribute
`role` of a loop; `Schedule.loops(role="term")` and `Schedule.role(loop)` ask for it, and finished
kernels have none. Primitives pass roles on by these rules:

- A loop that is moved, marked, shortened or lengthened keeps its role: reorder, vectorize, unroll,
  parallel, bind, annotate, prefetch, pad_loop.
- A copy of a loop has the role of its original: both loops of a partition, all parts of fission and
  split_even, the tail of a split, the loops that rfactor and decompose_reduction make. So have the
  loops that compute_at makes, where a loop ran over the same variable of the block.
- Of the loops of a split, the outermost keeps the role, the others have `<role>.inner`, unless its
  argument `roles` says otherwise.
- A fused loop has the role of the outermost of its loops that has one.
- The loops of cache_read, transform_layout, pad and instructions have none.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.stmt import For, Stmt
from tensorkiln.ir.visit import map_stmt


def role_of(s: Stmt) -> str:
    """The role of a loop; empty if it has none, and for other statements."""
    return s.attrs.get("role", "") if isinstance(s, For) else ""


def with_role(role: str, attrs: Attrs = NO_ATTRS) -> Attrs:
    """The attributes of a loop with this role in place of its own; with none if `role` is empty."""
    if role == attrs.get("role", ""):
        return attrs
    other_attrs = {k: v for k, v in attrs.items() if k != "role"}
    return Attrs.of(**other_attrs, role=role) if role else Attrs.of(**other_attrs)


def without_roles(s: Stmt) -> Stmt:
    """The statement with no role on any loop."""
    new = map_stmt(s, lambda e: e, without_roles)
    return replace(new, attrs=with_role("", new.attrs)) if isinstance(new, For) else new
