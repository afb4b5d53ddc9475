"""The primitive `rfactor`: cut a sum into partial sums, one per iteration of a loop."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import prove, simplify
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Binary, Expr, Intrin, Select, Var, binary, const, int_value, neutral
from tensorkiln.ir.stmt import Alloc, Block, BlockIter, For, If, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import free_vars, substitute, substitute_stmt, walk_stmt
from tensorkiln.schedule.primitives.results import Nest, Primitive, Rfactor
from tensorkiln.schedule.primitives.sums import decompose_reduction, rename_loops
from tensorkiln.schedule.roles import role_of, with_role
from tensorkiln.schedule.tree.normalise import UPDATES, update_term
from tensorkiln.schedule.tree.places import around_of, conjuncts, new_buffer
from tensorkiln.schedule.tree.program import Place, bounds_of, open_block, open_loop
from tensorkiln.schedule.tree.reindex import refreshed
from tensorkiln.schedule.tree.surgery import put


@Primitive
def rfactor(
    f: PrimFunc, block: str, loop: str, axis: int = 0, scope: str = "local"
) -> tuple[PrimFunc, Rfactor]:
    """Compute a partial sum for each iteration of a loop, then sum the partial sums.

        for i in range(4):                      C_rf = T.alloc_buffer((2, 4))
            for k0 in range(2):                 for i in range(4):
                for k1 in range(8):                 for k0 in range(2):
                    C[i] += A[i, k0*8 + k1] ->          for k1 in range(8):
                                                            C_rf[k0, i] += A[i, k0*8 + k1]
                                                for i_1 in range(4):
                                                    for k0_1 in range(2):
                                                        C[i_1] += C_rf[k0_1, i_1]

    The partial sums are computed by block `<block>_rf`, which starts from the neutral element; the
    block itself adds them up. `axis` is the dimension of the new buffer that the loop becomes,
    `scope` the buffer's scope. If another loop of the sum may have no iterations, the partial sums
    are initialised before it.
    """
    place, b = open_block(f, block, "rfactor")
    f, call = place.func, f"rfactor({block!r}, {loop!r})"
    place.what = call
    _, s = open_loop(f, loop, "rfactor")
    if s not in place.path:
        around = ", ".join(x.var.name for x in place.path if isinstance(x, For))
        raise place.fail(f"loop {loop!r} is not around the block", f"loops around it: {around}")
    store = b.body
    update = update_term(store) if isinstance(store, Store) else None
    if update is None or not isinstance(store, Store):
        raise place.fail(f"block {block!r} is not a sum", "as C[vi] = C[vi] + A[vi, vk]")
    op, _ = update
    if store.value.dtype.lanes > 1:
        raise place.fail(f"block {block!r} has lanes", "rfactor before tensorize")
    if not store.buffer.dtype.is_float and not store.buffer.dtype.is_int:
        raise place.fail(f"a sum of {store.buffer.dtype}")
    reduce = [i for i in b.iters if i.kind == "reduce"]
    if not any(s.var in free_vars(i.value) for i in reduce):
        names = sorted({v.name for i in reduce for v in free_vars(i.value)})
        raise place.fail(
            f"loop {loop!r} does not run over terms of the sum",
            f"loops that do: {', '.join(names) or 'none'}",
        )
    terms = {v for i in reduce for v in free_vars(i.value)}
    # The block that adds up runs its init at its first term, which must be that of the whole sum.
    firsts = {v: const(0, v.dtype) for v in terms}
    starts = (binary("eq", substitute(i.value, firsts), 0) for i in reduce)
    if b.init is not None and not all(prove(e, bounds_of(f, ())) for e in starts):
        raise place.fail(
            f"block {block!r} continues a sum that another block begins",
            "rfactor before the loop is cut in two",
        )
    for i in b.iters:
        # The nest that adds up would visit each element once per term of such a loop.
        mixed_vars = [v for v in free_vars(i.value) if i.kind != "reduce" and v in terms]
        if mixed_vars:
            raise place.fail(
                f"loop {mixed_vars[0].name!r} runs over elements and terms at once",
                "fuse only loops of one kind",
            )
        if i.kind == "opaque":
            raise place.fail(f"block {block!r} has opaque iterations", "only plain sums can be cut")
    if int_value(s.lo) != 0:
        raise place.fail(f"loop {loop!r} does not begin at 0", "let it begin at 0")
    rank = len(store.indices)
    if not isinstance(axis, int) or not 0 <= axis <= rank:
        raise place.fail(f"axis={axis!r}", f"a number from 0 to {rank}")
    top = _private(place, store.buffer)
    _require_whole(place, top, terms)
    shape = _inserted(store.buffer.shape, axis, s.extent)
    partial = new_buffer(place, f"{store.buffer.name}_rf", store.buffer, shape, scope)
    _require_first_terms(place, b, s)
    first = _partial_block(place, b, store, s, partial, axis, op)
    nest = put(place.path[top:], first)
    second = _combine(place, b, store, s, partial, axis, op, top)
    after = replace(f, body=put(place.path[: top + 1], Alloc(partial, seq(nest, second))))
    empty = _maybe_empty(place, b, s)
    start = None
    if empty is not None:
        after, start = decompose_reduction.run(after, first.name, empty)
    return after, Rfactor(first.name, Nest.of(second).loops, start)


def _require_whole(place: Place, top: int, terms: set[Var]) -> None:
    """Raise ScheduleError unless all loops of the sum are inside step `top` of the path, where the
    partial sums will be allocated, or if that is in a vectorized loop."""
    lanes = [x.var.name for x in place.path[:top] if isinstance(x, For) and x.kind == "vectorized"]
    if lanes:
        raise place.fail(
            f"the partial sums would be in loop {lanes[0]!r}, which is vectorized",
            "vectorize it afterwards",
        )
    inside = {x.var for x in place.path[top:] if isinstance(x, For)}
    outside = sorted(v.name for v in terms - inside)
    if outside:  # the partial sums, and the block's sum, would be reset in each iteration
        raise place.fail(
            f"the sum also runs over {outside[0]!r}, around what is the block's alone",
            "rfactor before tensorize",
        )


def _maybe_empty(place: Place, b: Block, s: For) -> str | None:
    """The outermost loop of the sum other than `s`, if one of these may have no iterations."""
    reduce = {v for i in b.iters if i.kind == "reduce" for v in free_vars(i.value)} - {s.var}
    bounds = bounds_of(place.func, ())
    loops = []
    for x in (x for x in place.path if isinstance(x, For)):
        if x.var in reduce:
            loops.append((x.var.name, prove(binary("ge", x.extent, 1), bounds)))
        bounds = bounds.with_loop(x.var, x.lo, x.extent)
    return None if all(runs for _, runs in loops) else loops[0][0]


def _private(place: Place, buf: Buffer) -> int:
    """The index in the path of the outermost statement that contains no other block. ScheduleError
    if a loop of the sum is outside it."""
    b = place.stmt
    top = len(place.path) - 1
    for n in reversed(range(len(place.path))):
        s = place.path[n]
        other_blocks = [t for t in walk_stmt(s) if isinstance(t, Block) and t is not b]
        if other_blocks or isinstance(s, Alloc) or (isinstance(s, If) and s.orelse is not None):
            break
        if isinstance(s, For | If | Block):
            top = n
    reduce = {v for i in b.iters if i.kind == "reduce" for v in free_vars(i.value)}  # type: ignore[attr-defined]
    for s in place.path[:top]:
        if isinstance(s, For) and s.var in reduce:
            raise place.fail(
                f"loop {s.var.name!r} of the sum has other blocks inside",
                "decompose_reduction or compose_reduction, then try again",
            )
    return top


def _inserted(items: tuple[Expr, ...], axis: int, e: Expr) -> tuple[Expr, ...]:
    return (*items[:axis], e, *items[axis:])


def _require_first_terms(place: Place, b: Block, s: For) -> None:
    """Raise ScheduleError unless every partial sum has a first term, at which it is initialised."""
    around = around_of(place.func, place.path)
    reduce = {v for i in b.iters if i.kind == "reduce" for v in free_vars(i.value)} - {s.var}
    firsts = {v: const(0, v.dtype) for v in reduce}
    bounds = bounds_of(place.func, ())
    for x in around.loops:
        bounds = bounds.with_loop(x.var, x.lo, x.extent)
        if x.var in reduce and int_value(x.lo) != 0:
            raise place.fail(f"loop {x.var.name!r} does not begin at 0", "let it begin at 0")
    for c in (c for cond in around.conds for c in conjuncts(cond)):
        if reduce & set(free_vars(c)) and not prove(substitute(c, firsts), bounds):
            raise place.fail(
                "a partial sum may have no term: a condition holds its terms back",
                "split the sum exactly",
            )


def _partial_block(
    place: Place, b: Block, store: Store, s: For, partial: Buffer, axis: int, op: str
) -> Block:
    """The block of the partial sums: the loop is a spatial axis of it."""
    mine = Var(f"v{s.var.name}", s.var.dtype)
    iters = [i for i in b.iters if i.kind != "reduce"]
    iters.append(BlockIter(mine, s.extent, "spatial", s.var))
    names: dict[Var, Expr] = {s.var: mine}
    values: dict[Var, Expr] = {}
    loops = {x.var: x for x in place.path if isinstance(x, For)}
    for i in (i for i in b.iters if i.kind == "reduce"):
        if s.var not in free_vars(i.value):
            iters.append(i)
            continue
        for v in free_vars(i.value):
            if v in loops and v not in names:
                var = Var(f"v{v.name}", v.dtype)
                extent = simplify(loops[v].lo + loops[v].extent)
                names[v] = var
                iters.append(BlockIter(var, extent, "reduce", v))
        values[i.var] = simplify(substitute(i.value, names))
    indices = _inserted(store.indices, axis, mine)
    old = Load(partial, indices)
    value = substitute(_replaced_self(store, old), values)
    identity = neutral(UPDATES[op], partial.dtype)
    name = place.name(f"{b.name}_rf")
    body = Store(partial, indices, value)
    block = Block(name, tuple(iters), (), (), body, Store(partial, indices, identity), b.attrs)
    return refreshed(block)


def _replaced_self(store: Store, new: Expr) -> Expr:
    """The value of an update with `new` in place of the load of its old total."""
    old = Load(store.buffer, store.indices)
    match store.value:
        case Select(cond, a, b) if b == old:
            return Select(cond, _replaced_self(replace(store, value=a), new), new)
        case Binary(op, a, b) if a == old:
            return Binary(op, new, b)
        case Binary(op, a, b):
            return Binary(op, a, new)
        case Intrin(name, (a, b, _)):
            return Intrin(name, (a, b, new))
    raise AssertionError(store)


def _combine(
    place: Place, b: Block, store: Store, s: For, partial: Buffer, axis: int, op: str, top: int
) -> Stmt:
    """The nest that adds up the partial sums, over the elements of the block."""
    names: dict[Var, Expr] = {}
    iters = []
    for i in (i for i in b.iters if i.kind != "reduce"):
        var = Var(i.var.name, i.var.dtype)
        names[i.var] = var
        iters.append(replace(i, var=var))
    mine = Var(f"v{s.var.name}", s.var.dtype)
    iters.append(BlockIter(mine, s.extent, "reduce", s.var))
    indices = tuple(substitute(e, names) for e in store.indices)
    value = binary(op, Load(store.buffer, indices), Load(partial, _inserted(indices, axis, mine)))
    init = None if b.init is None else substitute_stmt(b.init, names)
    block = Block(b.name, tuple(iters), (), (), Store(store.buffer, indices, value), init, b.attrs)
    body: Stmt = refreshed(block)
    variables = {v for i in iters for v in free_vars(i.value)}
    renamed: dict[Var, Expr] = {}
    reduce = {v for i in b.iters if i.kind == "reduce" for v in free_vars(i.value)}
    # the loop of the partial sums goes innermost, with the conditions that name it
    chain = [x for x in place.path[top:-1] if isinstance(x, For)]
    conds = [c for x in place.path[top:-1] if isinstance(x, If) for c in conjuncts(x.cond)]
    element_conds = [c for c in conds if not (reduce - {s.var}) & set(free_vars(c))]
    for c in reversed(element_conds):
        body = If(c, body)
        variables.update(free_vars(c))  # also loops of which a condition lets one iteration run
    for x in reversed([*(x for x in chain if x is not s), s]):
        if x.var in variables:
            renamed[x.var] = Var(place.name(x.var.name), x.var.dtype)
            body = For(x.var, x.lo, x.extent, "serial", body, with_role(role_of(x)))
    return rename_loops(body, renamed)
