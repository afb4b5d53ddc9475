"""Primitives that separate the initialisation of a sum from its terms, and join the two again."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import prove, prove_equal, simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import Expr, Var, binary, const, int_value
from tensorkiln.ir.stmt import Block, For, If, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, map_stmt, substitute, substitute_stmt
from tensorkiln.schedule.primitives.results import Nest, Primitive
from tensorkiln.schedule.roles import role_of, with_role
from tensorkiln.schedule.tree.normalise import update_term
from tensorkiln.schedule.tree.places import (
    around_of,
    conjuncts,
    path_of,
    remove,
    require_flat,
    require_in_scope,
    require_whole_domain,
    touches,
)
from tensorkiln.schedule.tree.program import Place, open_block, open_loop
from tensorkiln.schedule.tree.reindex import refreshed
from tensorkiln.schedule.tree.surgery import expressions, put


@Primitive
def decompose_reduction(f: PrimFunc, block: str, loop: str) -> tuple[PrimFunc, Nest]:
    """Make the initialisation of a sum a block of its own, before a loop.

        for i in range(4):                      for i in range(4):
            for k in range(8):                      C[i] = 0
                with T.block("C"):      ->          for k in range(8):
                    with T.init(): C[vi] = 0            C[vi] = C[vi] + A[vi, vk]
                    C[vi] = C[vi] + A[vi, vk]

    The new block is `<block>_init`. The first term of the sum must be in `block`, no loop of the
    sum may be outside `loop`, and nothing else in the loop may use what the block writes.
    """
    place, b = open_block(f, block, "decompose_reduction")
    f, call = place.func, f"decompose_reduction({block!r}, {loop!r})"
    place.what = call
    if b.init is None:
        raise place.fail(f"block {block!r} has no init", "its start is a block of its own already")
    target, s = open_loop(f, loop, "decompose_reduction")
    if s not in place.path:
        around = ", ".join(x.var.name for x in place.path if isinstance(x, For))
        raise place.fail(f"loop {loop!r} is not around the block", f"loops around it: {around}")
    depth = place.path.index(s)
    reduce = {v for i in b.iters if i.kind == "reduce" for v in free_vars(i.value)}
    spatial = {v for i in b.iters if i.kind != "reduce" for v in free_vars(i.value)}
    for x in place.path[:depth]:
        if isinstance(x, For) and x.var in reduce:
            raise place.fail(
                f"loop {x.var.name!r} of the sum is outside {loop!r}",
                f"name {x.var.name!r} or a loop further out",
            )
    for x in place.path[depth:]:
        if isinstance(x, For) and x.var in reduce & spatial:
            raise place.fail(
                f"loop {x.var.name!r} runs over elements and terms at once",
                "fuse only loops of one kind",
            )
    _require_start(place, b, reduce)
    _require_alone(place, s, b)
    require_flat(place.path[depth:], call)
    require_in_scope(b.init, place.path, target.path, call)
    init = _init_nest(place, b, depth, reduce)
    sum_nest = put(place.path[depth:], refreshed(replace(b, init=None)))
    return target.close(seq(init, sum_nest)), Nest.of(init)


def _require_start(place: Place, b: Block, reduce: set[Var]) -> None:
    """Raise ScheduleError unless the first term of the sum is in this block, and not in another
    part of a loop that was cut."""
    first: dict[Var, Expr] = {
        x.var: x.lo for x in place.path if isinstance(x, For) and x.var in reduce
    }
    for i in b.iters:
        if i.kind == "reduce" and not prove_equal(substitute(i.value, first), const(0)):
            raise place.fail(
                f"the sum does not begin in block {b.name!r}: {i.var.name!r} is not 0",
                "decompose the block with its first term, or do it before the loop of "
                "the sum is cut",
            )


def _require_alone(place: Place, s: For, b: Block) -> None:
    accesses = [t.access for t in touches(place.func)]
    written = {a.buffer for a in accesses if a.write and b in a.around.blocks}
    for a in accesses:
        if (
            a.buffer in written
            and b not in a.around.blocks
            and any(x.var is s.var for x in a.around.loops)
        ):
            raise place.fail(
                f"block {a.block!r} in the loop uses {a.buffer.name!r} as well",
                "name a loop further in, around the sum alone",
            )


def _init_nest(place: Place, b: Block, depth: int, reduce: set[Var]) -> Stmt:
    """The init block, inside the loops from step `depth` of the path on that do not belong to the
    sum."""
    values: dict[Var, Expr] = {}
    iters = tuple(i for i in b.iters if i.kind != "reduce")
    fresh_iters = []
    for i in iters:
        var = Var(i.var.name, i.var.dtype)
        values[i.var] = var
        fresh_iters.append(replace(i, var=var))
    assert b.init is not None
    start = Block(
        place.name(f"{b.name}_init"), tuple(fresh_iters), (), (), substitute_stmt(b.init, values)
    )
    body: Stmt = refreshed(start)
    renamed: dict[Var, Expr] = {}
    for x in reversed(place.path[depth:-1]):
        if isinstance(x, If):
            element_conds = [c for c in conjuncts(x.cond) if not reduce & set(free_vars(c))]
            for c in conjuncts(x.cond):
                mixed = reduce & set(free_vars(c)) and set(free_vars(c)) - reduce
                inner = {y.var for y in place.path[depth:] if isinstance(y, For)} - reduce
                if mixed and inner & set(free_vars(c)):
                    raise place.fail(
                        "a condition mixes elements and terms of the sum", "split the loops exactly"
                    )
            for c in reversed(element_conds):
                body = If(c, body)
        elif isinstance(x, For) and x.var not in reduce and x.var in expressions(body):
            var = Var(place.name(x.var.name), x.var.dtype)
            renamed[x.var] = var
            kind = x.kind if x.kind != "thread" else "serial"
            attrs = x.attrs if x.kind != "thread" else with_role(role_of(x))
            body = For(x.var, x.lo, x.extent, kind, body, attrs)
    return rename_loops(body, renamed)


def rename_loops(s: Stmt, names: dict[Var, Expr]) -> Stmt:
    """`s` with loop variables replaced, where they are bound and where they are used."""
    new = map_stmt(s, lambda e: substitute(e, names), lambda t: rename_loops(t, names))
    if isinstance(new, For) and new.var in names:
        var = names[new.var]
        assert isinstance(var, Var)
        return replace(new, var=var)
    return new


def compose_reduction(f: PrimFunc, init: str, block: str) -> PrimFunc:
    """Make the block that initialises a sum the init of the block that adds its terms.

        for i in range(4):                      for i in range(4):
            C[i] = 0                                for k in range(8):
            for k in range(8):          ->              with T.block("C"):
                C[i] = C[i] + A[i, k]                       with T.init(): C[vi] = 0
                                                            C[vi] = C[vi] + A[vi, vk]

    The inverse of decompose_reduction. Both blocks must run over the same elements, which nothing
    may use in between.
    """
    init_place, start = open_block(f, init, "compose_reduction")
    f, call = init_place.func, f"compose_reduction({init!r}, {block!r})"
    init_place.what = call
    place, b = open_block(f, block, "compose_reduction")
    require_flat(init_place.path, call)
    require_flat(place.path, call)
    store, first = b.body, start.body
    if b.init is not None or not isinstance(store, Store) or update_term(store) is None:
        raise init_place.fail(
            f"block {block!r} is not a sum without a start", "as C[vi] = C[vi] + A[vi, vk]"
        )
    if not isinstance(first, Store) or first.buffer is not store.buffer or start.init is not None:
        raise init_place.fail(f"block {init!r} does not set {store.buffer.name!r}", "as C[vi] = 0")
    values = _same_elements(init_place, start, first, b, store)
    _require_between(init_place, place, store.buffer)
    new_init = substitute_stmt(first, values)
    body = remove(init_place.path)
    path = path_of(body, b)
    return replace(f, body=put(path, refreshed(replace(b, init=new_init))))


def _same_elements(
    place: Place, start: Block, first: Store, b: Block, store: Store
) -> dict[Var, Expr]:
    """The iteration variables of the initialising block in terms of the sum's. ScheduleError unless
    both write the element that plain variables of equal extents name."""
    mine = {i.var: i for i in start.iters}
    sum_iters = {i.var: i for i in b.iters if i.kind == "spatial"}
    values: dict[Var, Expr] = {}
    hint = "both must write the element that their variables name, as C[vi, vj]"
    for x, y in zip(first.indices, store.indices, strict=True):
        if not isinstance(x, Var) or not isinstance(y, Var) or x not in mine or y not in sum_iters:
            if x == y and not free_vars(x):
                continue
            raise place.fail("the two blocks write at different indices", hint)
        if mine[x].extent != sum_iters[y].extent:
            raise place.fail(f"the two blocks run over different elements along {y.name!r}", hint)
        if x in values:
            raise place.fail("the two blocks write at different indices", hint)
        values[x] = y
    unused = [v for v in free_vars(first.value) if v in mine and v not in values]
    if unused:
        raise place.fail(
            f"the initial value depends on {unused[0].name!r}, which is not an index", hint
        )
    if any(v not in values.values() for v in sum_iters):
        raise place.fail("an element is summed in several places", hint)
    return values


def _require_between(init_place: Place, place: Place, buf: Buffer) -> None:
    """Raise ScheduleError unless the start runs before the sum, once for each sum, with no use of
    the buffer in between, and depends on nothing that changes."""
    start, b = init_place.stmt, place.stmt
    assert isinstance(start, Block) and isinstance(b, Block)
    require_whole_domain(init_place.func, init_place.path, init_place.what)
    uses = touches(init_place.func)
    order = {t.access.block: t.order for t in uses}
    if order[start.name] > order[b.name]:
        raise init_place.fail(f"{start.name!r} comes after {b.name!r}", "name the start first")
    shared = [x for x, y in zip(init_place.path, place.path, strict=False) if x is y]
    reduce = {v for i in b.iters if i.kind == "reduce" for v in free_vars(i.value)}
    spatial = {v for i in b.iters if i.kind != "reduce" for v in free_vars(i.value)}
    start_vars = {v for i in start.iters for v in free_vars(i.value)}
    for x in shared:
        if isinstance(x, For) and (
            x.var in reduce or x.var not in spatial or x.var not in start_vars
        ):
            raise init_place.fail(
                f"loop {x.var.name!r} starts the same sum more than once",
                "move the start out of it",
            )
    _require_first_term(init_place, place, b, reduce)
    require_whole_domain(init_place.func, place.path, init_place.what)
    for t in uses:
        a = t.access
        if (
            a.buffer is buf
            and a.block not in (start.name, b.name)
            and (
                order[start.name] < t.order < order[b.name]
                or (
                    len(shared) > 1
                    and any(a.around.loops and a.around.loops[0] is s for s in shared)
                )
            )
        ):
            raise init_place.fail(
                f"block {a.block!r} uses {buf.name!r} in between", "move it first"
            )
    read = {t.access.buffer for t in uses if start in t.access.around.blocks and not t.access.write}
    for t in uses:
        if t.access.write and t.access.buffer in read:
            raise init_place.fail(
                f"the start reads {t.access.buffer.name!r}, which changes",
                "start from constants and parameters",
            )


def _require_first_term(init_place: Place, place: Place, b: Block, reduce: set[Var]) -> None:
    """Raise ScheduleError unless every sum provably has a term at which all its reduce variables
    are 0, where the init will run."""
    around = around_of(init_place.func, place.path)
    loops = [x for x in around.loops if x.var in reduce]
    firsts = {x.var: x.lo for x in loops}
    for x in loops:
        if not prove(binary("ge", x.extent, 1), around.bounds):
            raise init_place.fail(
                f"the sum over {x.var.name!r} may have no term, and then no start",
                "leave the start a block of its own",
            )
    for i in b.iters:
        first = simplify(substitute(around.expr(i.value), firsts))
        if i.kind == "reduce" and int_value(first) != 0:
            raise init_place.fail(
                f"the first term of {b.name!r} is not at 0", "let its loops begin at 0"
            )
    for c in (c for cond in around.conds for c in conjuncts(cond)):
        if reduce & set(free_vars(c)) and not prove(substitute(c, firsts), around.bounds):
            raise init_place.fail(
                "a condition may hold the first term back", "split the sum exactly"
            )
