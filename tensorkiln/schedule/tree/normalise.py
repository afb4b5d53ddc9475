"""Normal form, which every primitive works on: named loops, and every effect in a named block.

    for i in range(8):                      for i in range(8):
        for k in range(4):                      for k in range(4):
            C[i] = C[i] + A[i, k]      ->           with T.block("C"):
                                                        vi = T.axis.spatial(8, i)
                                                        vk = T.axis.reduce(4, k)
                                                        C[vi] = C[vi] + A[vi, vk]

A block is either straight-line code, or contains blocks itself, if its body has loops. Control flow
that depends on memory is inside a block; conditions on loop variables stay around blocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from tensorkiln.arith import Bounds, bound, prove, simplify
from tensorkiln.arith.regions import regions_of
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import (
    Binary,
    CallExtern,
    Expr,
    Intrin,
    Select,
    Var,
    binary,
    const,
    int_value,
    neutral,
    select,
)
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    Block,
    BlockIter,
    Evaluate,
    For,
    If,
    Let,
    MatchBuffer,
    PrimFunc,
    Stmt,
    Store,
    While,
)
from tensorkiln.ir.visit import free_vars, map_stmt, substitute_stmt, walk, walk_stmt
from tensorkiln.schedule.tree.names import fresh, scalar_names
from tensorkiln.schedule.tree.surgery import substitute_loops

# Operation of an update -> name of the reduction.
UPDATES = {"add": "sum", "mul": "prod", "min": "min", "max": "max"}


def normal(f: PrimFunc) -> PrimFunc:
    """`f` in normal form; `f` itself if it is so already. Names of loops and blocks are made
    unique: a second `i` becomes `i_1`."""
    if _is_known(f.body):
        return f
    dims = dict.fromkeys(v for b in f.buffers for d in b.shape for v in free_vars(d))
    work = _Normaliser(scalar_names(f), Bounds.dims(dims))
    body = work.stmt(f.body, False)
    keep_normal(body)
    return f if body is f.body else replace(f, body=body)


# The last few bodies known to be in normal form, by id. The results of primitives are; normalising
# them again at every step would take most of the time of a schedule.
_KNOWN: OrderedDict[int, Stmt] = OrderedDict()
_KNOWN_LIMIT = 64


def keep_normal(body: Stmt) -> None:
    """Remember that a function with this body is in normal form."""
    _KNOWN[id(body)] = body
    while len(_KNOWN) > _KNOWN_LIMIT:
        _KNOWN.popitem(last=False)


def _is_known(body: Stmt) -> bool:
    return _KNOWN.get(id(body)) is body


def is_update(s: Store) -> bool:
    """Whether a store is `C[i] = C[i] op e`, for an `op` whose order does not matter."""
    return update_term(s) is not None


def update_term(s: Store) -> tuple[str, Expr] | None:
    """(op, e) of `C[i] = C[i] op e`, where neither `e` nor `i` reads C; else None.

    In `C[i] = select(c, C[i] op e, C[i])` the term is e, or the neutral element where c is false.
    """
    old = Load(s.buffer, s.indices)
    if isinstance(s.value, Select) and s.value.b == old:
        cond, inner = s.value.cond, update_term(replace(s, value=s.value.a))
        if inner is None or any(isinstance(x, Load) and x.buffer is s.buffer for x in walk(cond)):
            return None
        op, term = inner
        return op, select(cond, term, neutral(UPDATES[op], term.dtype))
    update: tuple[str, tuple[Expr, ...]] | None = None
    match s.value:
        case Binary(op, a, b) if op in UPDATES and a == old:
            update = op, (b,)
        case Binary(op, a, b) if op in UPDATES and b == old:
            update = op, (a,)
        case Intrin("fma", (a, b, c)) if c == old:
            update = "add", (a, b)
    if update is None:
        return None
    op, terms = update
    operand_loads = (x for e in (*terms, *s.indices) for x in walk(e) if isinstance(x, Load))
    if any(x.buffer is s.buffer for x in operand_loads):
        return None
    return op, terms[0] if len(terms) == 1 else terms[0] * terms[1]


def straight_line(s: Stmt) -> bool:
    """Whether a statement runs each of its parts at most once."""
    return not any(isinstance(t, For | While | Block) for t in walk_stmt(s))


def depends_on_memory(e: Expr) -> bool:
    """Whether an expression reads memory, calls a C function, multiplies two variables or divides
    by one: as a condition, it is not an affine condition on the loops around it.
    """
    for x in walk(e):
        if isinstance(x, Load | CallExtern):
            return True
        if isinstance(x, Binary) and x.op in ("mul", "floordiv", "floormod"):
            sides = (x.b,) if x.op != "mul" else (x.a, x.b)
            if all(int_value(side) is None for side in sides):
                return True
    return False


class _Normaliser:
    """The walk over one function: names in use, and the loops around, outermost first."""

    def __init__(self, names: set[str], bounds: Bounds):
        self.used = names
        self.bound_vars: set[Var] = set()
        self.loops: list[For] = []
        self.bounds = [bounds]
        self.made: dict[Buffer, set[Var]] = {}

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: Stmt, head: bool) -> Stmt:
        """Normalise a statement. `head`: it begins the body of a block, so control flow that
        depends on memory may stay."""
        match s:
            case Block():
                return self.block(s)
            case For():
                return self.loop(s)
            case Store() | Evaluate() | Assert():
                return self.wrap(s)
            case Let(var, value, body):
                return self.let(s, var, value, body, head)
            case While():
                return self.inside(s) if head else self.wrap(s)
            case If(cond) if depends_on_memory(cond) and not head:
                return self.wrap(s)
            case Alloc(buffer):
                self.made[buffer] = {x.var for x in self.loops}
                return self.inside(s, head)
            case If() | MatchBuffer():
                return self.inside(s, head)
        return self.inside(s)

    def inside(self, s: Stmt, head: bool = False) -> Stmt:
        return map_stmt(s, lambda e: e, lambda t: self.stmt(t, head))

    def let(self, s: Let, var: Var, value: Expr, body: Stmt, head: bool) -> Stmt:
        if head:
            return self.inside(s, True)
        pure = var.dtype.is_int and not depends_on_memory(value)
        if pure and not straight_line(body):
            return self.stmt(substitute_stmt(body, {var: value}), False)
        return self.wrap(s)

    def loop(self, s: For) -> Stmt:
        name = fresh(s.var.name, self.used)
        if name != s.var.name or s.var in self.bound_vars:
            var = Var(name, s.var.dtype)
            s = For(var, s.lo, s.extent, s.kind, substitute_loops(s.body, {s.var: var}), s.attrs)
        self.used.add(name)
        self.bound_vars.add(s.var)
        self.loops.append(s)
        self.bounds.append(self.bounds[-1].with_loop(s.var, s.lo, s.extent))
        body = self.stmt(s.body, False)
        self.bounds.pop()
        self.loops.pop()
        return s if body is s.body else For(s.var, s.lo, s.extent, s.kind, body, s.attrs)

    def block(self, s: Block) -> Block:
        name = fresh(s.name, self.used)
        self.used.add(name)
        body, init = s.body, s.init
        if not straight_line(body):
            body = self.in_block(s.iters, body)
        if init is not None and not straight_line(init):
            init = self.in_block(s.iters, init)
        if name == s.name and body is s.body and init is s.init:
            return s
        return replace(s, name=name, body=body, init=init)

    def in_block(self, iters: tuple[BlockIter, ...], body: Stmt) -> Stmt:
        """Normalise a block's body; its iteration variables take the place of loops around."""
        loops, self.loops = self.loops, []
        bounds = self.bounds[-1]
        for i in iters:
            bounds = bounds.with_loop(i.var, 0, i.extent)
            # for the body, an iteration variable is like the variable of a loop
            self.loops.append(For(i.var, const(0, i.var.dtype), i.extent, "serial", body))
        self.bounds.append(bounds)
        body = self.stmt(body, True)
        self.bounds.pop()
        self.loops = loops
        return body

    # ---- new blocks --------------------------------------------------------------------------

    def wrap(self, s: Stmt) -> Block:
        """A block of `s`, with an iteration variable for every loop around."""
        name = fresh(_title(s), self.used)
        self.used.add(name)
        kind = self.kinds(s)
        iters: list[BlockIter] = []
        values: dict[Var, Expr] = {}
        for loop in self.loops:
            var = Var(f"v{loop.var.name}", loop.var.dtype)
            extent, value, meaning = self.iteration(loop, var)
            iters.append(BlockIter(var, extent, kind(loop.var), value))
            values[loop.var] = meaning
        body = substitute_loops(s, values)
        reads, writes = regions_of(body)
        if not straight_line(body):
            body = self.in_block(tuple(iters), body)
        return Block(name, tuple(iters), reads, writes, body)

    def kinds(self, s: Stmt) -> Callable[[Var], str]:
        """A function that gives the kind of the iteration variable for a loop around `s`: spatial
        if every store's element depends on the loop, else reduce in an update, else opaque."""
        stores = [t for t in walk_stmt(s) if isinstance(t, Store)]
        # a buffer allocated inside a loop is a different one in each iteration
        index_vars = [
            {v for e in t.indices for v in free_vars(e)} | self.made.get(t.buffer, set())
            for t in stores
        ]
        update = isinstance(s, Store) and is_update(s)

        def kind(var: Var) -> str:
            if stores and all(var in vs for vs in index_vars):
                return "spatial"
            return "reduce" if update else "opaque"

        return kind

    def iteration(self, loop: For, var: Var) -> tuple[Expr, Expr, Expr]:
        """(extent and value of the iteration variable `var`, the expression that replaces the loop
        variable in the block)."""
        bounds = self.bounds[-1]
        lo = loop.lo
        if int_value(lo) == 0 or prove(binary("ge", lo, 0), bounds):
            extent = simplify(lo + loop.extent, bounds)
            around = {x.var for x in self.loops}
            if any(v in around for v in free_vars(extent)):
                upper = bound(extent, bounds)[1]
                extent = extent if upper is None else const(upper, var.dtype)
            return extent, loop.var, var
        return loop.extent, simplify(loop.var - lo, bounds), var + lo


def _title(s: Stmt) -> str:
    """The name of a new block: the buffer that it writes, the function that it calls, or the kind
    of the statement."""
    if straight_line(s):
        for t in walk_stmt(s):
            if isinstance(t, Store):
                return t.buffer.name
            if isinstance(t, Evaluate) and isinstance(t.value, CallExtern):
                return t.value.name
    return type(s).__name__.lower()
