"""Replace a loop or a block by an instruction."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.arith import prove, simplify
from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.device_instructions import THREAD
from tensorkiln.ir.expr import Expr, Ramp, Var, binary
from tensorkiln.ir.stmt import (
    THREAD_INDICES,
    Alloc,
    Block,
    BlockIter,
    For,
    Prefetch,
    PrimFunc,
    Stmt,
    Store,
)
from tensorkiln.ir.visit import free_vars, map_children, map_stmt, stmt_exprs, substitute, walk_stmt
from tensorkiln.schedule.primitives.instruction import Instruction
from tensorkiln.schedule.primitives.results import Primitive
from tensorkiln.schedule.tree.boxes import same_memory
from tensorkiln.schedule.tree.match import Bound, Mismatch, TemplateMatch, plain
from tensorkiln.schedule.tree.program import Place, open_at
from tensorkiln.schedule.tree.reindex import refreshed
from tensorkiln.schedule.tree.surgery import renewed, substitute_loops


def wrapped(place: Place, s: Stmt, name: str, attrs: Attrs) -> Block:
    """A block with body `s`, and an iteration variable for each variable bound around the place
    that `s` uses."""
    body_vars = {v for t in walk_stmt(s) for e in stmt_exprs(t) for v in free_vars(e)}
    iters: list[BlockIter] = []
    values: dict[Var, Expr] = {}
    for x in place.path[:-1]:
        if isinstance(x, For) and x.var in body_vars:
            mine, kind = Var(f"v{x.var.name}", x.var.dtype), _kind(place.stmt, x.var)
            if prove(binary("ge", x.lo, 0), place.bounds):
                extent = simplify(x.lo + x.extent, place.bounds)
                iters.append(BlockIter(mine, extent, kind, x.var))
                values[x.var] = mine
            else:
                iters.append(BlockIter(mine, x.extent, kind, simplify(x.var - x.lo)))
                values[x.var] = mine + x.lo
        elif isinstance(x, Block):
            for i in (i for i in x.iters if i.var in body_vars):
                mine = Var(i.var.name, i.var.dtype)
                iters.append(BlockIter(mine, i.extent, i.kind, i.var))
                values[i.var] = mine
    body = substitute_loops(s, values)
    return refreshed(Block(place.name(name), tuple(iters), (), (), body, None, attrs))


def _kind(s: Stmt, var: Var) -> str:
    """The kind of an iteration variable for a loop: opaque if it is in an opaque iteration of a
    block in `s`, reduce if it is in reduce iterations only, else spatial."""
    kinds = {
        i.kind
        for t in walk_stmt(s)
        if isinstance(t, Block)
        for i in t.iters
        if var in free_vars(i.value)
    }
    if "opaque" in kinds:
        return "opaque"
    return "reduce" if kinds == {"reduce"} else "spatial"


@Primitive
def tensorize(f: PrimFunc, name: str, instruction: str | Instruction) -> tuple[PrimFunc, str]:
    """Replace a loop or block by an instruction that computes the same.

        for l in range(16):                     with T.block("fma_16"):
            C[i, l] += A[i, k] * B[k, l]   ->       C[i, T.Ramp(0, 1, 16)] = T.fma(
                                                        T.Broadcast(A[i, k], 16), ...)

    `instruction` is the name of one in `schedule.intrin`, or an Instruction. Its template must
    match the loop or block, up to names and the positions of the operands in their buffers.
    """
    place = open_at(f, name, "tensorize")
    definition = _instruction(instruction, place)
    place.what = f"tensorize({name!r}, {definition.name!r})"
    for s in place.path[:-1]:
        if isinstance(s, For) and s.kind == "vectorized":
            raise place.fail(f"{s.var.name!r} around it is vectorized", "an instruction has lanes")
    try:
        statement, template = plain(place.stmt), plain(definition.template.body)
    except ValueError as e:
        raise place.fail(f"block {e.args[0]!r} has an init", "decompose_reduction first") from None
    match = TemplateMatch(place.bounds, outer=definition.template.scalars)
    try:
        match.stmt(template, statement, definition.template.name)
    except Mismatch as e:
        hint = "split and reorder the loops until they are those of the template"
        raise place.fail(str(e), hint) from None
    _require_apart(place, definition, match)
    _require_memory(place, definition, match)
    _require_participants(place, definition)
    body = _instantiate(place, definition, match)
    block = wrapped(place, body, definition.name, Attrs.of(instruction=definition.name))
    return place.close(block), block.name


def _instruction(choice: str | Instruction, place: Place) -> Instruction:
    from tensorkiln.schedule.intrin import EXAMPLES, INSTRUCTIONS, instruction

    if isinstance(choice, Instruction):
        return choice
    definition = instruction(choice) if isinstance(choice, str) else None
    if definition is None:
        names = (*INSTRUCTIONS, *EXAMPLES)
        hint = nearest(str(choice), names) or f"there are {', '.join(names)}"
        raise place.fail(f"no instruction {choice!r}", hint)
    return definition


def _require_apart(place: Place, instruction: Instruction, match: TemplateMatch) -> None:
    """Raise ScheduleError if a buffer that the instruction writes may share memory with another of
    its operands."""
    written = {t.buffer for t in walk_stmt(instruction.template.body) if isinstance(t, Store)}
    for p in written:
        for q, binding in match.buffers.items():
            if p is not q and same_memory(place.func, match.buffers[p].buffer, binding.buffer):
                raise place.fail(
                    f"{p.name!r} and {q.name!r} of {instruction.name!r} are one buffer, "
                    f"{binding.buffer.name!r}",
                    "an instruction needs its result apart from its operands",
                )


def _require_memory(place: Place, instruction: Instruction, match: TemplateMatch) -> None:
    """Raise ScheduleError if an operand is not in the memory that the instruction works on."""
    for k, scopes in instruction.memory.items():
        p = instruction.template.buffers[k]
        binding = match.buffers.get(p)
        if binding is not None and binding.buffer.scope not in scopes:
            listed = " or ".join(scopes)
            raise place.fail(
                f"{p.name!r} of {instruction.name!r} is in {listed} memory, "
                f"{binding.buffer.name!r} is {binding.buffer.scope}",
                f"cache_read or set_scope puts it into {scopes[0]} memory",
            )


def _require_participants(place: Place, instruction: Instruction) -> None:
    """Raise ScheduleError for an instruction of several threads at a place that not all reach."""
    if instruction.participants == THREAD:
        return
    for s in place.path[:-1]:
        if isinstance(s, For) and s.attrs.get("thread") in THREAD_INDICES:
            raise place.fail(
                f"{instruction.name!r} is of {instruction.threads} threads together, and loop "
                f"{s.var.name!r} around it is over {s.attrs['thread']}",
                "the instruction binds threadIdx.x itself: place it outside of that loop",
            )
        if isinstance(s, For) and s.kind == "parallel":
            raise place.fail(f"{s.var.name!r} around it is parallel", "bind it to blockIdx.x")
    if not any(isinstance(s, For) and s.kind == "thread" for s in place.path[:-1]):
        raise place.fail("no loop around it is over blockIdx", 'bind an outer loop to "blockIdx.x"')


def _instantiate(target: Place, instruction: Instruction, match: TemplateMatch) -> Stmt:
    """The implementation with its parameters replaced by what the template's are bound to."""
    buffers: dict[Buffer, Bound] = {}
    for p, q in zip(instruction.template.buffers, instruction.implementation.buffers, strict=True):
        if p in match.buffers:
            buffers[q] = match.buffers[p]
    scalars = {
        q: match.scalars[p]
        for p, q in zip(
            instruction.template.scalars, instruction.implementation.scalars, strict=True
        )
        if p in match.scalars
    }
    body = renewed(plain(instruction.implementation.body), target.name)
    inner = {t.buffer for t in walk_stmt(body) if isinstance(t, Alloc)}

    def place(buf: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        if buf in inner:
            return buf, indices
        if buf not in buffers:
            raise target.fail(
                f"the template of {instruction.name!r} does not use {buf.name!r}",
                "every parameter of the implementation must be in the template",
            )
        binding = buffers[buf]
        out = list(binding.base)
        for d, e in zip(binding.dims, indices, strict=True):
            out[d] = _plus(out[d], e)
        return binding.buffer, tuple(out)

    def expr(e: Expr) -> Expr:
        e = map_children(e, expr)
        match e:
            case Load(buf, indices):
                return Load(*place(buf, indices))
            case AddressOf(buf, indices):
                return AddressOf(*place(buf, indices))
        return substitute(e, scalars) if isinstance(e, Var) else e

    def stmt(s: Stmt) -> Stmt:
        t = map_stmt(s, expr, stmt)
        if isinstance(t, Store | Prefetch):
            buf, indices = place(t.buffer, t.indices)
            return replace(t, buffer=buf, indices=indices)
        return t

    return stmt(body)


def _plus(base: Expr, e: Expr) -> Expr:
    if isinstance(e, Ramp):
        return replace(e, base=simplify(binary("add", base, e.base)))
    return simplify(binary("add", base, e)) if e.dtype.lanes == 1 else binary("add", e, base)
