"""Primitives that change a buffer's memory: its scope, strides, index map and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorkiln.arith import Bounds, affine, prove_equal, simplify
from tensorkiln.base.errors import nearest
from tensorkiln.ir.buffer import SCOPES, Buffer
from tensorkiln.ir.expr import Expr, Ramp, Var, const, int_value
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt, seq
from tensorkiln.ir.visit import free_vars, map_stmt, replace_buffers, walk_stmt
from tensorkiln.schedule.group import product
from tensorkiln.schedule.primitives.results import Nest, Primitive
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.index_map import IndexMap, IndexMapLike, is_injective
from tensorkiln.schedule.tree.index_map import index_map as map_of
from tensorkiln.schedule.tree.lanes import check_lanes
from tensorkiln.schedule.tree.names import namer
from tensorkiln.schedule.tree.normalise import keep_normal, normal
from tensorkiln.schedule.tree.places import (
    copies_of,
    copy_block,
    find_buffer,
    find_local,
    made,
    nest_over,
)
from tensorkiln.schedule.tree.program import open_loop, show
from tensorkiln.schedule.tree.reindex import Indices, map_accesses, require_visible
from tensorkiln.schedule.tree.threads import require_shared_by_block


def set_scope(f: PrimFunc, buffer: str, scope: str) -> PrimFunc:
    """Move an allocated buffer to another scope: "local" memory, "register"s, "tile"s of a CPU, or
    memory that is "shared" by the threads of a device's block.

        T_ = T.alloc_buffer((4, 16), scope="local")
        ->  T_ = T.alloc_buffer((4, 16), scope="register")

    If copies of a nest have buffers of this name, all of them move. Every index of a register
    buffer but the last must be constant once loops are unrolled; the last runs over one vector.
    """
    f = normal(f)
    call = f"set_scope({buffer!r})"
    if scope not in SCOPES:
        hint = nearest(str(scope), SCOPES) or f"one of {', '.join(SCOPES)}"
        raise ScheduleError(f"scope {scope!r}", where=call, hint=hint)
    copies = copies_of(f, buffer, call, "cache_read makes a buffer of another scope")
    for buf in copies if scope in ("register", "shared", "tile") else ():
        require_visible(f.body, buf, call)
        if any(int_value(d) is None for d in buf.shape) or buf.strides_given is not None:
            raise ScheduleError(
                f"{buffer!r} has no constant size",
                where=call,
                hint="compute_at its producer in a loop of constant extent",
            )
    body = replace_buffers(f.body, {buf: replace(buf, scope=scope) for buf in copies})
    keep_normal(body)
    return require_shared_by_block(replace(f, body=body), call)


def storage_align(f: PrimFunc, buffer: str, axis: int, factor: int, offset: int = 0) -> PrimFunc:
    """Round the stride of an axis of an allocated buffer up to `factor * n + offset` elements.

        T_ = T.alloc_buffer((8, 64))   ->   T_ = T.alloc_buffer((8, 64), strides=(65, 1))

    That is `storage_align(f, "T_", 0, 64, 1)`: rows that are 65 elements apart do not all fall into
    the same cache sets.
    """
    f = normal(f)
    call = f"storage_align({buffer!r})"
    buf = find_local(f, buffer, call, "parameters keep the layout of the caller")
    rank = len(buf.shape)
    if not isinstance(axis, int) or not 0 <= axis < rank:
        raise ScheduleError(f"axis={axis!r}", where=call, hint=f"a number from 0 to {rank - 1}")
    if not isinstance(factor, int) or factor < 1 or not 0 <= offset < factor:
        raise ScheduleError(
            f"factor={factor!r}, offset={offset!r}",
            where=call,
            hint="factor >= 1 and 0 <= offset < factor",
        )
    if buf.scope == "register":
        raise ScheduleError(
            f"{buffer!r} is in registers, which have no strides",
            where=call,
            hint="align buffers in memory",
        )
    strides: list[Expr] = []
    step: Expr = const(1)
    for d in reversed(range(rank)):
        if d == axis:
            pad = (offset - step) % factor
            step = simplify(step + pad)
        strides.append(step)
        step = simplify(step * buf.shape[d])
    new = replace(buf, strides_given=tuple(reversed(strides)))
    return replace(f, body=replace_buffers(f.body, {buf: new}))


@Primitive
def transform_layout(
    f: PrimFunc,
    buffer: str,
    index_map: IndexMapLike,
    pad: float | None = None,
    params: bool = False,
) -> tuple[PrimFunc, tuple[Nest, ...]]:
    """Store the elements of a buffer in another order: element i at `index_map(i)`.

        T_ = T.alloc_buffer((8, 64))            T_ = T.alloc_buffer((4, 8, 16))
        T_[i, j] = 0                     ->     T_[j // 16, i, j % 16] = 0

    The map is a function, `lambda i, j: (j // 16, i, j % 16)`, or text,
    `"i, j -> j // 16, i, j % 16"`. It must map different elements to different indices. If the new
    shape has more elements, the additional ones are set to `pad`. A parameter is changed only with
    `params=True`, as this changes the function's type. If copies of a nest have buffers of this
    name, all of them change.
    """
    f = normal(f)
    call = f"transform_layout({buffer!r})"
    copies = [b for b in made(f.body) if b.name == buffer and b not in f.params]
    nests: tuple[Nest, ...] = ()
    for buf in copies if len(copies) > 1 else (find_buffer(f, buffer, call),):
        f, filling = _transformed(f, buf, index_map, pad, params, call)
        nests += filling
    return f, nests


def _transformed(
    f: PrimFunc, buf: Buffer, index_map: IndexMapLike, pad: float | None, params: bool, call: str
) -> tuple[PrimFunc, tuple[Nest, ...]]:
    """Apply `transform_layout` to one buffer."""
    buffer = buf.name
    require_visible(f.body, buf, call)
    m = map_of(index_map, len(buf.shape), call)
    if buf in f.params and not params:
        hint = "cache it first; params=True changes what callers pass"
        raise ScheduleError(f"{buffer!r} is a parameter of {f.name}", where=call, hint=hint)
    if buf.strides_given is not None:
        raise ScheduleError(
            f"{buffer!r} has strides of its own", where=call, hint="storage_align after it"
        )
    if not is_injective(m, buf.shape):
        raise ScheduleError(
            f"{m} puts different elements in one place",
            where=call,
            hint="as 'i -> i // 16, i % 16'",
        )
    new = replace(buf, shape=m.shape(buf.shape, call))
    size, old_size = product(new.shape), product(buf.shape)
    has_padding = not prove_equal(size, old_size)
    if has_padding and pad is None:
        raise ScheduleError(
            f"the new layout has {show(size)} elements, {buffer!r} has {show(old_size)}",
            where=call,
            hint="pad=0 sets the others to 0",
        )
    if has_padding and buf in f.params:
        raise ScheduleError(
            "a parameter cannot be padded here",
            where=call,
            hint="choose a map that keeps the number of elements",
        )

    def move(indices: Indices, bounds: Bounds) -> Indices:
        return _moved(m, indices, bounds, call)

    changed = replace(f, body=map_accesses(f, f.body, buf, new, move))
    for loop in [s for s in walk_stmt(changed.body) if isinstance(s, For)]:
        if loop.kind == "vectorized":
            place, s = open_loop(changed, loop.var.name, "transform_layout")
            check_lanes(place, s)
    if buf in f.params:
        return replace(changed, params=tuple(new if p is buf else p for p in f.params)), ()
    return filled(changed, new, pad) if has_padding else (changed, ())


def _moved(m: IndexMap, indices: Indices, bounds: Bounds, call: str) -> Indices:
    wide = [n for n, e in enumerate(indices) if e.dtype.lanes > 1]
    if not wide:
        return m.at(indices, bounds)
    e = indices[wide[0]]
    if len(wide) > 1 or not isinstance(e, Ramp):
        raise ScheduleError(
            "an access of several lanes",
            where=call,
            hint="change the layout before loops are vectorized",
        )
    lane = Var("lane")
    scalar = [x if n != wide[0] else x.base + lane * e.stride for n, x in enumerate(indices)]  # type: ignore[attr-defined]
    new_indices = m.at(scalar, bounds.with_loop(lane, 0, e.lanes))
    out: list[Expr] = []
    for x in new_indices:
        if lane not in free_vars(x):
            out.append(x)
            continue
        linear = affine(x, (lane,))
        if linear is None or sum(lane in free_vars(y) for y in new_indices) > 1:
            raise ScheduleError(
                "lanes of one access are torn apart",
                where=call,
                hint="change the layout before loops are vectorized",
            )
        step = linear[0][lane]
        stride = const(step) if isinstance(step, int) else step
        out.append(Ramp(linear[1], stride, e.lanes))
    return tuple(out)


# ---- padding ---------------------------------------------------------------------------------


def filled(f: PrimFunc, buf: Buffer, value: float | None) -> tuple[PrimFunc, tuple[Nest, ...]]:
    """Set every element of a buffer right after its allocation, in a block `<buffer>_pad`; nothing
    with value None."""
    if value is None:
        return f, ()
    name, number = namer(f), const(value, buf.dtype)
    block = copy_block(name(f"{buf.name}_pad"), buf, buf, number)
    nest = nest_over(block, [None] * len(buf.shape), Bounds(), name)

    def put(s: Stmt) -> Stmt:
        if isinstance(s, Alloc) and s.buffer is buf:
            return Alloc(buf, seq(nest, s.body))
        return map_stmt(s, lambda e: e, put)

    return replace(f, body=put(f.body)), (Nest.of(nest),)


@Primitive
def pad(
    f: PrimFunc, buffer: str, factors: Sequence[int], value: float | None = 0
) -> tuple[PrimFunc, tuple[Nest, ...]]:
    """Round the extents of an allocated buffer up to multiples, and set the new elements.

        T_ = T.alloc_buffer((10,))              T_ = T.alloc_buffer((16,))
        for i in range(10):                     for ax0 in range(16):
            T_[i] = A[i]                 ->         T_[ax0] = 0
                                                for i in range(10):
                                                    T_[i] = A[i]

    That is `pad(f, "T_", (16,))`. With value None, nothing is set. Loops over the buffer may then
    be padded too: `pad_loop`.
    """
    f = normal(f)
    call = f"pad({buffer!r})"
    buf = find_local(f, buffer, call, "cache_read it first and pad the copy")
    require_visible(f.body, buf, call)
    rank = len(buf.shape)
    factors = (factors,) if isinstance(factors, int) else tuple(factors)
    if len(factors) != rank or any(not isinstance(n, int) or n < 1 for n in factors):
        raise ScheduleError(
            f"factors={factors!r}", where=call, hint=f"one positive number per dimension: {rank}"
        )
    if buf.strides_given is not None:
        raise ScheduleError(
            f"{buffer!r} has strides of its own", where=call, hint="storage_align after it"
        )
    shape = tuple(simplify((d + (n - 1)) // n * n) for d, n in zip(buf.shape, factors, strict=True))
    if all(prove_equal(a, b) for a, b in zip(shape, buf.shape, strict=True)):
        return f, ()
    new = replace(buf, shape=shape)
    f = replace(f, body=replace_buffers(f.body, {buf: new}))
    return filled(f, new, value)
