"""Give each shared buffer of a device function one place for the whole run of a block.

    for b in T.thread_binding(n, thread="blockIdx.x"):      for b in ...:
        for k in range(m):                             ->       tile = T.alloc_buffer(..., "shared")
            tile = T.alloc_buffer(..., "shared")                for k in range(m): ...

Allocations move to the beginning of what a block runs, in their order: languages of devices declare
shared memory there. The rounds of a loop then use the same memory, which `insert_barriers` and
`check_races` assume. Buffers do not share bytes with each other.

Needs: split_device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.base.errors import Issue, UnsupportedError
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import Alloc, PrimFunc, Stmt
from tensorkiln.ir.visit import map_stmt


@dataclass(frozen=True, slots=True)
class AllocateShared:
    """`limit`: the bytes of shared memory of one block, the option `max_shared_memory_per_block` of
    a target; None for no limit. `devices`: the same by device key, for functions whose attribute
    `target` names one."""

    limit: int | None = None
    devices: tuple[tuple[str, int], ...] = ()

    def __call__(self, mod: IRModule) -> IRModule:
        """Move the allocations of every device function. Raises UnsupportedError that names all
        which need more than `limit` bytes."""
        issues = [_issue(f, *need) for f in mod.prim_funcs if (need := self._excess(f))]
        if issues:
            raise UnsupportedError(issues)
        return mod.map_bodies(with_allocations_first)

    def _excess(self, f: PrimFunc) -> tuple[int, int] | None:
        """(bytes that a device function needs, bytes that there are), if it needs too many."""
        limit = dict(self.devices).get(str(f.attrs.get("target")), self.limit)
        if limit is None or not f.is_device:
            return None
        need = launch_of(f).shared_bytes
        return (need, limit) if need > limit else None


def _issue(f: PrimFunc, need: int, have: int) -> Issue:
    buffers = ", ".join(map(repr, launch_of(f).shared))
    message = f"a block of {f.name} shares {need} bytes ({buffers}), the device has {have}"
    hint = "smaller tiles, or max_shared_memory_per_block of the target if the device has more"
    return Issue("tensor-program", f.name, "", message, hint)


def with_allocations_first(f: PrimFunc) -> PrimFunc:
    """A device function with its shared buffers allocated first; `f` itself if they are already, or
    if it is not a device function."""
    if not f.is_device:
        return f
    launch = launch_of(f)
    first, inner = [], launch.body
    while isinstance(inner, Alloc):
        first.append(inner.buffer)
        inner = inner.body
    if len(first) == len(launch.shared):
        return f
    body = _without(launch.body)
    for b in reversed(launch.shared):
        body = Alloc(b, body)
    for loop in reversed(launch.loops):
        body = replace(loop, body=body)
    return replace(f, body=body)


def _without(s: Stmt) -> Stmt:
    """`s` without allocations of shared memory."""
    if isinstance(s, Alloc) and s.buffer.scope == "shared":
        return _without(s.body)
    return map_stmt(s, lambda e: e, _without)


__all__ = ["AllocateShared", "with_allocations_first"]
