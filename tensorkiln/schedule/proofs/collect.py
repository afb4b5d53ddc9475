"""List the steps of a statement, each with its execution time and its memory accesses.

A step is a straight-line block, or a read of memory by control flow (in a condition, a loop bound,
the value of a let). Its time is its path through the tree, positions and loops, as (0, 1, i, 2):
two steps are ordered by the first entry in which their times differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from tensorkiln.arith import simplify
from tensorkiln.arith.affine_text import AffineText
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Binary, CallExtern, Expr, Var, int_value
from tensorkiln.ir.stmt import Alloc, Block, For, If, Let, MatchBuffer, Prefetch, Seq, Stmt, While
from tensorkiln.ir.visit import free_vars, stmt_exprs, walk, walk_stmt
from tensorkiln.schedule.proofs.steps import UNORDERED, Loop, ProgramStep, StepAccess
from tensorkiln.schedule.proofs.touched import Memory, Touched
from tensorkiln.schedule.tree.normalise import straight_line

Time = tuple[int | Loop, ...]


class Collector:
    """Walks a statement and lists its steps. All statements that are compared share `text`."""

    def __init__(self, text: AffineText, alias: dict[Buffer, Buffer]):
        self.text, self.memory = text, Memory(text, alias)
        self.steps: list[ProgramStep] = []
        self.domain: list[str] = []
        self.opaque: list[object] = []
        self.block: Block | None = None
        self.parts = 0  # steps that `reads` made for this block so far
        self.whiles: dict[tuple[Expr, int], Var] = {}

    # ---- what is around ----------------------------------------------------------------------

    def enter(self, path: Iterable[Stmt]) -> None:
        """Enter the statements around the end of a path. Their loop variables become parameters,
        and their ranges and conditions facts about these."""
        for s, inner in pairwise(path):
            match s:
                case For(var, lo, extent):
                    p = self.text.param(var)
                    first, count = self.text.maybe(lo), self.text.maybe(extent)
                    if first is not None:
                        self.text.param_facts.append(f"{first} <= {p}")
                        if count is not None:
                            self.text.param_facts.append(f"{p} < {first} + {count}")
                case If(cond, then_body):
                    facts, _ = self.text.known_part(cond, then_body is inner)
                    self.text.param_facts += facts
                case Block(_, iters):
                    for i in iters:
                        self.text.env[i.var] = self.text.maybe(i.value) or self.text.param(i.var)
                case Let(var, value):
                    if var.dtype.is_int:
                        self.text.env[var] = self.text.maybe(value) or self.text.param(var)
                case MatchBuffer(buffer, source):
                    self.memory.views[buffer] = source

    # ---- statements --------------------------------------------------------------------------

    def walk(self, s: Stmt, time: Time = ()) -> None:
        """List the steps of a statement that runs at `time`."""
        match s:
            case Seq(stmts):
                for k, t in enumerate(stmts):
                    self.walk(t, (*time, k))
            case For():
                self.loop(s, time)
            case Block():
                self.in_block(s, time)
            case If(cond, then_body, orelse):
                self.reads("if", (cond,), (*time, 0))
                with self.when(cond, True):
                    self.walk(then_body, (*time, 1))
                if orelse is not None:
                    with self.when(cond, False):
                        self.walk(orelse, (*time, 2))
            case While(cond, body):
                self.loop_while(cond, body, time)
            case Let(var, value, body):
                self.reads(var.name, (value,), (*time, 0))
                self.text.env[var] = self.text.maybe(value) if var.dtype.is_int else None
                self.walk(body, (*time, 1))
            case Alloc(buffer, body):
                self.memory.made[buffer] = tuple(t for t in time if isinstance(t, Loop))
                self.walk(body, time)
            case MatchBuffer(buffer, source, indices, body):
                self.reads(buffer.name, indices, (*time, 0))
                self.memory.views[buffer] = source
                self.walk(body, (*time, 1))
            case Prefetch():
                pass
            case _:
                # an effect outside a block: a step without iteration variables
                name = type(s).__name__.lower()
                Touched(self.memory, self.step(name, name, time, None)).stmt(s)

    @contextmanager
    def when(self, cond: Expr, truth: bool) -> Iterator[None]:
        """Steps inside run only where `cond` is `truth`."""
        facts, exact = self.text.known_part(cond, truth)
        domain, opaque = self.domain, self.opaque
        self.domain = domain + facts
        if not exact:
            self.opaque = [*opaque, (self.place(), truth)]
        yield
        self.domain, self.opaque = domain, opaque

    def place(self) -> object:
        """The origin of the block around: part of the key of a condition that is not affine."""
        return None if self.block is None else _origin(self.block)

    def loop(self, s: For, time: Time) -> None:
        """List the steps of a loop's body, with the loop's dimensions in their time."""
        self.reads(s.var.name, (s.lo, s.extent), (*time, 0))
        domain, opaque = self.domain, self.opaque
        dims, bounds = self.dimensions(s)
        self.domain = domain + bounds
        self.walk(s.body, (*time, 1, *dims))
        self.domain, self.opaque = domain, opaque

    def dimensions(self, s: For) -> tuple[tuple[Loop, ...], list[str]]:
        """(the dimensions that a loop adds to time, conditions on them)."""
        ordered = s.kind not in UNORDERED
        divisor = _divisor(s)
        if divisor is not None:
            return self.two_dimensions(s, divisor, ordered)
        dim = self.text.env.get(s.var)
        if dim is None:
            dim = self.text.env[s.var] = self.text.fresh()
        self.text.set_range(dim, s.lo, s.extent)
        lo, extent = self.text.maybe(s.lo), self.text.maybe(s.extent)
        bounds = [] if lo is None else [f"{lo} <= {dim}"]
        if lo is not None and extent is not None:
            bounds.append(f"{dim} < {lo} + {extent}")
        else:
            self.opaque = [*self.opaque, (self.place(), s.lo, s.extent)]
        return (Loop(s.var.name, s.var, dim, ordered),), bounds

    def two_dimensions(
        self, s: For, divisor: Expr, ordered: bool
    ) -> tuple[tuple[Loop, ...], list[str]]:
        """`t` over n * m, used as t // m and t % m, is two loops over n and m."""
        key = (s.var, divisor)
        if key not in self.text.quotients:
            self.text.quotients[key] = self.text.fresh(), self.text.fresh()
            self.text.env[s.var] = None
        q, r = self.text.quotients[key]
        m, n = self.text.text(divisor), self.text.maybe(simplify(s.extent // divisor))
        bounds = [f"0 <= {r} < {m}", f"0 <= {q}"]
        if n is not None and int_value(simplify(s.extent % divisor)) == 0:
            bounds.append(f"{q} < {n}")
        else:
            self.opaque = [*self.opaque, (self.place(), s.lo, s.extent)]
        name = s.var.name
        return (Loop(name, s.var, q, ordered), Loop(name, s.var, r, ordered)), bounds

    def loop_while(self, cond: Expr, body: Stmt, time: Time) -> None:
        """A while loop: the number of the iteration is a dimension without an upper bound."""
        key = (cond, sum(isinstance(t, Loop) for t in time))
        var = self.whiles.setdefault(key, Var("while"))
        dim = self.text.env.get(var)
        if dim is None:
            dim = self.text.env[var] = self.text.fresh()
        loop = Loop("while", var, dim, True)
        opaque, domain = self.opaque, self.domain
        self.opaque = [*opaque, (self.place(), "while")]
        self.domain = [*domain, f"0 <= {dim}"]
        self.reads("while", (cond,), (*time, 0, loop, 0))
        self.walk(body, (*time, 0, loop, 1))
        self.opaque, self.domain = opaque, domain

    # ---- blocks ------------------------------------------------------------------------------

    def in_block(self, s: Block, time: Time) -> None:
        """List a block: as one step, or as the steps inside it."""
        self.reads(s.name, tuple(i.value for i in s.iters), (*time, 0))
        for i in s.iters:
            self.text.env[i.var] = self.text.maybe(i.value)
        if straight_line(s.body) and (s.init is None or straight_line(s.init)):
            self.leaf(s, (*time, 1))
            return
        outer, self.block = self.block, s
        parts, self.parts = self.parts, 0
        if s.init is not None:
            self.init(s, s.init, (*time, 1))
        self.walk(s.body, (*time, 2))
        self.block, self.parts = outer, parts

    def init(self, s: Block, init: Stmt, time: Time) -> None:
        """List the init of a block that is not straight-line, in the domain of its first term."""
        domain = self.domain
        self.domain = domain + self.first(s)
        if straight_line(init):
            name = f"init of {_origin(s)}"
            Touched(self.memory, self.step(name, name, time, s)).stmt(init)
        else:
            self.walk(init, time)
        self.domain = domain

    def first(self, s: Block) -> list[str]:
        """Conditions of the instances that run a block's init."""
        values = [self.text.env[i.var] for i in s.iters if i.kind == "reduce"]
        return [f"{v} = 0" for v in values if v is not None]

    def leaf(self, s: Block, time: Time) -> None:
        """A straight-line block is one step."""
        step = self.step(_origin(s), s.name, time, s)
        if s.attrs.get("instruction") is not None and _calls(s.body):
            # a C function that an instruction calls accesses the regions that the block declares
            for regions, write in ((s.reads, False), (s.writes, True)):
                for r in regions:
                    step.accesses.append(self.memory.region(r, write))
            return
        touch = Touched(self.memory, step)
        if s.init is not None:
            touch.conds = tuple(self.first(s))
            touch.stmt(s.init)
            touch.conds = ()
        touch.stmt(s.body)
        self.keep_opaque_order(s, step)

    def keep_opaque_order(self, s: Block, step: ProgramStep) -> None:
        """Keep updates that differ in an opaque iteration variable in order, by a write to a
        fictitious buffer that they share. Other writes of an element are in order anyway."""
        if any(i.kind == "opaque" for i in s.iters):
            values = tuple(self.text.env[i.var] for i in s.iters if i.kind != "opaque")
            order = f"order of {_origin(s)}"
            owners = {a.own: None for a in step.accesses if a.update}
            step.accesses += [StepAccess(order, True, values, own=owner) for owner in owners]

    def step(self, name: str, title: str, time: Time, block: Block | None) -> ProgramStep:
        """Append a new step, without accesses yet."""
        identity = None
        if block is not None:
            identity = tuple(self.text.env[i.var] for i in block.iters)
            # the iteration of a while loop is part of an instance's identity
            dims = [t.dim for t in time if isinstance(t, Loop) and t.name == "while"]
            identity = (*identity, *dims)
        new_step = ProgramStep(name, title, time, tuple(self.domain), tuple(self.opaque), identity)
        self.steps.append(new_step)
        return new_step

    def reads(self, label: str, exprs: Iterable[Expr], time: Time) -> None:
        """Append a step for the memory that control flow reads, if it reads any."""
        exprs = [e for e in exprs if any(isinstance(x, Load | CallExtern) for x in walk(e))]
        if not exprs:
            return
        owner = self.block
        self.parts += 1
        name = label if owner is None else f"{label} of {_origin(owner)}"
        touch = Touched(self.memory, self.step(f"{name} #{self.parts}", name, time, owner))
        for e in exprs:
            touch.expr(e)


def _calls(s: Stmt) -> bool:
    exprs = (e for t in walk_stmt(s) for e in stmt_exprs(t))
    return any(isinstance(x, CallExtern) for e in exprs for x in walk(e))


def _origin(s: Block) -> str:
    return str(s.attrs.get("origin", s.name))


def _divisor(s: For) -> Expr | None:
    """The symbolic m of a loop that is used as t // m or t % m."""
    if int_value(s.extent) is not None or int_value(s.lo) != 0:
        return None
    for t in walk_stmt(s.body):
        for e in stmt_exprs(t):
            for x in walk(e):
                match x:
                    case Binary("floordiv" | "floormod", Var() as v, m) if v is s.var:
                        if int_value(m) is None and s.var not in free_vars(m):
                            return m
    return None
