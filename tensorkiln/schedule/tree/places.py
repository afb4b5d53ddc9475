"""Find blocks and buffers in a statement tree, remove them and insert them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tensorkiln.arith import Bounds, prove, prove_equal, simplify
from tensorkiln.base.errors import nearest
from tensorkiln.ir.buffer import SCOPES, Buffer, Load
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Binary, Expr, Var, binary, const, int_value, logical_and
from tensorkiln.ir.stmt import Alloc, Block, BlockIter, For, If, PrimFunc, Seq, Stmt, Store
from tensorkiln.ir.visit import map_stmt, walk_stmt
from tensorkiln.schedule.roles import role_of, with_role
from tensorkiln.schedule.tree.boxes import Access, Around, accesses, box_of, same_memory
from tensorkiln.schedule.tree.errors import ScheduleError
from tensorkiln.schedule.tree.names import fresh
from tensorkiln.schedule.tree.program import Place, dims_of
from tensorkiln.schedule.tree.reindex import refreshed
from tensorkiln.schedule.tree.surgery import path_to, put

Path = tuple[Stmt, ...]


# ---- buffers ---------------------------------------------------------------------------------


def made(s: Stmt) -> list[Buffer]:
    """Buffers allocated in a statement, in order."""
    return [t.buffer for t in walk_stmt(s) if isinstance(t, Alloc)]


def find_buffer(f: PrimFunc, name: str, call: str) -> Buffer:
    """The buffer of this name: a parameter or an allocated one. ScheduleError if there are none or
    several."""
    matches = [b for b in (*f.buffers, *made(f.body)) if b.name == name]
    if len(matches) == 1:
        return matches[0]
    buffer_names = list(dict.fromkeys(b.name for b in (*f.buffers, *made(f.body))))
    if matches:
        raise ScheduleError(
            f"{len(matches)} buffers are called {name!r}",
            where=call,
            hint="give them different names in the program",
        )
    listed = ", ".join(buffer_names)
    hint = nearest(str(name), buffer_names) or f"buffers: {listed}"
    raise ScheduleError(f"no buffer {name!r}; {f.name} has {listed}", where=call, hint=hint)


def copies_of(f: PrimFunc, name: str, call: str, hint: str) -> list[Buffer]:
    """Every allocated buffer of this name. ScheduleError, with `hint`, for a parameter."""
    copies = [b for b in made(f.body) if b.name == name]
    return copies or [find_local(f, name, call, hint)]


def find_local(f: PrimFunc, name: str, call: str, hint: str) -> Buffer:
    """The allocated buffer of this name. ScheduleError, with `hint`, for a parameter."""
    buf = find_buffer(f, name, call)
    if buf in f.params:
        raise ScheduleError(f"{name!r} is a parameter of {f.name}", where=call, hint=hint)
    return buf


def buffer_name(f: PrimFunc, base: str) -> str:
    """A name that no buffer of the function has."""
    return fresh(base, {b.name for b in (*f.buffers, *made(f.body))})


def new_buffer(
    place: Place, name: str, like: Buffer, shape: tuple[Expr, ...], scope: str
) -> Buffer:
    """A new buffer in a scope, of the element type of `like`. ScheduleError for an unknown scope,
    or a register or shared buffer without constant size."""
    if scope not in SCOPES:
        hint = nearest(str(scope), SCOPES) or f"one of {', '.join(SCOPES)}"
        raise place.fail(f"unknown scope {scope!r}", hint)
    if scope in ("register", "shared", "tile") and any(int_value(e) is None for e in shape):
        text = f"a {scope} buffer needs a constant size, this part of {like.name!r} has none"
        raise place.fail(text, "split by constants, and name a loop inside")
    return Buffer(buffer_name(place.func, name), like.dtype, shape, scope)


def without_alloc(s: Stmt, buf: Buffer) -> Stmt:
    """`s` without the allocation of a buffer; its body stays."""
    if isinstance(s, Alloc) and s.buffer is buf:
        return s.body
    return map_stmt(s, lambda e: e, lambda t: without_alloc(t, buf))


def around_of(f: PrimFunc, path: Path) -> Around:
    """The context of the last statement of a path."""
    around = Around(known=Bounds.dims(dims_of(f)))
    for s, inner in pairwise(path):
        around = around.enter(s, inner)
    return around


def path_of(root: Stmt, target: Stmt) -> Path:
    """The statements from `root` to `target`, both included; `target` is compared by identity."""
    path = path_to(root, target)
    assert path is not None
    return path


def below(path: Path, loop: str | None, after: Buffer | None = None) -> int:
    """Index in `path` of the first loop, branch or block inside both `loop` and the allocation of
    `after`; with None for both, of the first in the path."""
    start = 0
    for n, s in enumerate(path):
        inside = isinstance(s, For) and s.var.name == loop
        if inside or (isinstance(s, Alloc) and s.buffer is after):
            start = n + 1
    return next(n for n in range(start, len(path)) if isinstance(path[n], For | If | Block))


def remove(path: Path) -> Stmt:
    """The root of a path without the statement at its end, and without the loops, branches and
    allocations that this would leave empty."""
    end = len(path) - 1
    while end > 0:
        outer = path[end - 1]
        alone = isinstance(outer, For | Alloc) or (isinstance(outer, If) and outer.orelse is None)
        if not alone:
            break
        end -= 1
    if end == 0:
        return Seq(())
    return put(path[: end + 1], Seq(()))


# ---- what blocks do --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Touch:
    """An access with its number in program text order."""

    order: int
    access: Access


def touches(f: PrimFunc) -> list[Touch]:
    """Every access of a function, numbered in program text order."""
    around = Around(known=Bounds.dims(dims_of(f)))
    return [Touch(n, a) for n, a in enumerate(accesses(f.body, around))]


def read_buffers(b: Block) -> list[Buffer]:
    """Buffers a block reads, in order."""
    block_accesses = accesses(b)
    return list(dict.fromkeys(a.buffer for a in block_accesses if not a.write))


def written_buffers(b: Block) -> list[Buffer]:
    """Buffers a block writes, in order."""
    return list(dict.fromkeys(a.buffer for a in accesses(b) if a.write))


def require_inputs_kept(
    f: PrimFunc, path: Path, inputs: list[Buffer], target: tuple[str, ...], call: str, hint: str
) -> None:
    """Raise ScheduleError if an input of the block at the end of `path` may change between its
    place and a new one, later in the program.

    `target`: names of the loops around the new place. A block that writes an input must come before
    this one, and the loops around both must be around the new place too.
    """
    block = path[-1]
    assert isinstance(block, Block)
    mine = [s.var.name for s in path if isinstance(s, For)]
    all_touches = touches(f)
    first = min(t.order for t in all_touches if block in t.access.around.blocks)
    for t in all_touches:
        a = t.access
        if not a.write or block in a.around.blocks:
            continue
        if not any(same_memory(f, a.buffer, b) for b in inputs):
            continue
        shared = [x.var.name for x in a.around.loops if x.var.name in mine]
        if t.order < first and all(n in target for n in shared):
            continue
        raise ScheduleError(
            f"block {block.name!r} reads {a.buffer.name!r}, which block {a.block!r} writes "
            f"before the place where it would be read",
            where=call,
            hint=hint,
        )


def require_flat(path: Path, call: str) -> None:
    """Raise ScheduleError for a place inside another block, whose body has no names for the loops
    outside it."""
    outer = [s.name for s in path[:-1] if isinstance(s, Block)]
    if outer:
        raise ScheduleError(
            f"it is inside block {outer[-1]!r}",
            where=call,
            hint="move blocks before they are made one: tensorize comes last",
        )


def require_in_scope(s: Stmt, old: Path, new: Path, call: str) -> None:
    """Raise ScheduleError if moving `s` from the end of path `old` to that of `new` takes it out of
    the allocation of a buffer that it uses."""
    buffers = dict.fromkeys(a.buffer for a in accesses(s))
    scope_buffers = {x.buffer for x in new if isinstance(x, Alloc)}
    for x in old:
        if isinstance(x, Alloc) and x.buffer in buffers and x.buffer not in scope_buffers:
            raise ScheduleError(
                f"{x.buffer.name!r}, which it uses, is allocated only where it is now",
                where=call,
                hint="choose a loop inside the allocation",
            )


def require_only_domain(f: PrimFunc, path: Path, call: str) -> None:
    """Raise ScheduleError for a block under a condition, except one that only keeps an iteration
    variable below its extent, as the guard of a split does."""
    block = path[-1]
    assert isinstance(block, Block)
    around = around_of(f, path)
    for cond in around.conds:
        for part in conjuncts(cond):
            if not guards_domain(part, around, block):
                raise ScheduleError(
                    f"block {block.name!r} runs only where a condition holds",
                    where=call,
                    hint="split its loops exactly, or move it before they are split",
                )


def require_whole_domain(f: PrimFunc, path: Path, call: str) -> None:
    """Raise ScheduleError unless the loops of a block provably reach all values of its iteration
    variables, or if it runs under a condition that `require_only_domain` refuses."""
    require_only_domain(f, path, call)
    block = path[-1]
    assert isinstance(block, Block)
    around = around_of(f, path)
    extents = tuple(i.extent for i in block.iters)
    domain = Buffer(block.name, BOOL, extents)
    values = tuple(around.expr(i.value) for i in block.iters)
    box = box_of(Access(domain, values, True, around), 0, len(around.conds))
    if not box.exact or any(
        int_value(lo) != 0 or not prove_equal(extent, size)
        for (lo, extent), size in zip(box.ranges, extents, strict=True)
    ):
        raise ScheduleError(
            f"the loops of block {block.name!r} may not reach all of its iterations",
            where=call,
            hint="apply it before loops are cut in parts or begin later than 0",
        )


def guards_domain(cond: Expr, around: Around, block: Block) -> bool:
    """Whether a condition around a block only keeps an iteration variable below its extent."""
    values = [(around.expr(i.value), i.extent) for i in block.iters]
    return _within(cond, values, around.bounds)


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """The operands of nested `and`s; `cond` itself if it is not an `and`."""
    if isinstance(cond, Binary) and cond.op == "and":
        yield from conjuncts(cond.a)
        yield from conjuncts(cond.b)
    else:
        yield cond


def _within(cond: Expr, values: list[tuple[Expr, Expr]], bounds: Bounds) -> bool:
    """Whether `cond` follows from value < extent for one of the pairs `values`."""
    if not isinstance(cond, Binary) or cond.op not in ("lt", "le"):
        return False
    last = cond.b - 1 if cond.op == "lt" else cond.b
    for value, extent in values:
        # a <= last is value <= extent - 1 with the same number added to both sides
        if prove_equal(simplify(cond.a - value), simplify(last - (extent - 1))) or (
            prove_equal(cond.a, value) and prove(binary("ge", last, extent - 1), bounds)
        ):
            return True
    return False


# ---- nests -----------------------------------------------------------------------------------


def nest_over(
    block: Block,
    ranges: Sequence[tuple[Expr, Expr] | None],
    bounds: Bounds,
    name: Callable[[str], str],
    limits: list[Expr] | None = None,
    around: Iterable[Stmt] = (),
) -> Stmt:
    """A block inside a loop per iteration variable, over the (first, extent) in `ranges`, or over
    the variable's whole extent for None. `name` makes a free name from a given one.

    A range that may exceed the variable's extent (or its number in `limits`) is guarded by a
    condition. A loop has the role of that of `around` which ran over its iteration variable.
    """
    roles: dict[Expr, str] = {s.var: role_of(s) for s in around if isinstance(s, For)}
    loops: list[For] = []
    iters: list[BlockIter] = []
    guards: list[Expr] = []
    # spatial loops outside, sums inside; otherwise the order of the variables
    order = sorted(range(len(ranges)), key=lambda n: block.iters[n].kind == "reduce")
    values: dict[int, Expr] = {}
    for n in order:
        i, loop_range = block.iters[n], ranges[n]
        lo, extent = loop_range if loop_range is not None else (const(0, i.var.dtype), i.extent)
        limit = i.extent if limits is None else limits[n]
        if int_value(extent) == 1:
            value = lo
        else:
            base = i.var.name.removeprefix("v") or i.var.name
            var = Var(name(base), i.var.dtype)
            zero = const(0, var.dtype)
            attrs = with_role(roles.get(i.value, ""))
            loops.append(For(var, zero, extent, "serial", Seq(()), attrs))
            bounds = bounds.with_loop(var, zero, extent)
            value = simplify(lo + var, bounds)
        values[n] = value
        if loop_range is not None:
            for cond in (binary("ge", value, 0), binary("lt", value, limit)):
                if not prove(cond, bounds):
                    guards.append(cond)
    for n, i in enumerate(block.iters):
        iters.append(replace(i, value=values[n]))
    body: Stmt = replace(block, iters=tuple(iters))
    if guards:
        body = If(logical_and(*guards), body)
    for s in reversed(loops):
        body = replace(s, body=body)
    return body


def copy_block(name: str, into: Buffer, source: Buffer, value: Expr | None = None) -> Block:
    """A block `into[v] = source[v]` over the elements of `source`, or `into[v] = value`. The values
    of its iteration variables are placeholders, for `nest_over` to replace."""
    variables = tuple(Var(f"vax{d}") for d in range(len(source.shape)))
    iters = tuple(
        BlockIter(v, extent, "spatial", v)
        for v, extent in zip(variables, source.shape, strict=True)
    )
    e = Load(source, variables) if value is None else value
    return refreshed(Block(name, iters, (), (), Store(into, variables, e)))
