"""What runs in a statement, when, and which memory it touches: the input of the order check.

A step is a straight-line block, or the part of a composite one that reads memory itself (a
condition, a value). Its time is a path of positions and loops, so two steps compare at the first
entry where their paths differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.expr import AddressOf, Binary, CallExtern, Expr, Load, Ramp, Var, int_value
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    Block,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    Region,
    Seq,
    Stmt,
    Store,
    While,
)
from tensorkiln.ir.visit import children, free_vars, stmt_exprs, substmts, walk, walk_stmt
from tensorkiln.schedule.primitives.affine_text import AffineText
from tensorkiln.schedule.primitives.normalise import straight_line, update_term

UNORDERED = ("parallel", "vectorized", "thread")


@dataclass(frozen=True, slots=True)
class Loop:
    """One dimension of time: `dim` in set notation; a loop over a symbolic product has two."""

    name: str
    var: Var
    dim: str
    ordered: bool


@dataclass(frozen=True, slots=True)
class Access:
    """One place that a step reads or writes; an index of None is the whole dimension."""

    buffer: Buffer | str
    write: bool
    index: tuple[str | None, ...]
    conds: tuple[str, ...] = ()
    exists: tuple[str, ...] = ()
    update: str = ""  # the operation of an update, whose order does not matter
    own: tuple[Loop, ...] = ()  # each iteration of these has its own copy of the buffer
    home: Buffer | str = ""  # the buffer as it is called here; copies of code have copies of it


@dataclass(slots=True)
class Step:
    """A step: its name, loops and time, the conditions that hold, and what it touches."""

    name: str
    title: str
    time: tuple[int | Loop, ...]
    domain: tuple[str, ...]
    opaque: tuple[object, ...]  # conditions that the domain does not say
    identity: tuple[str | None, ...] | None  # values of iteration variables
    accesses: list[Access] = field(default_factory=list)

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The loops around, outermost first."""
        return tuple(t for t in self.time if isinstance(t, Loop))


BARRIER = "everything"


class Collector:
    """Walks a statement and lists its steps. `text` is shared by all statements compared."""

    def __init__(self, text: AffineText, alias: dict[Buffer, Buffer]):
        self.text, self.alias = text, alias
        self.steps: list[Step] = []
        self.domain: list[str] = []
        self.opaque: list[object] = []
        self.views: dict[Buffer, Buffer] = {}
        self.made: dict[Buffer, tuple[Loop, ...]] = {}
        self.block: Block | None = None
        self.parts = 0  # steps of the block's own, so far
        self.whiles: dict[tuple[Expr, int], Var] = {}
        self.dims: dict[Var, tuple[Loop, ...]] = {}

    # ---- what is around ----------------------------------------------------------------------

    def enter(self, path: Iterable[Stmt]) -> None:
        """Take in the statements around the end of a path: there, their variables are fixed."""
        for s, inner in pairwise(path):
            match s:
                case For(var, lo, extent):
                    p = self.text.param(var)
                    first, count = self.text.maybe(lo), self.text.maybe(extent)
                    if first is not None:
                        self.text.param_facts.append(f"{first} <= {p}")
                        if count is not None:
                            self.text.param_facts.append(f"{p} < {first} + {count}")
                case If(cond, then):
                    known, _ = self.text.known_part(cond, then is inner)
                    self.text.param_facts += known
                case Block(_, iters):
                    for i in iters:
                        self.text.env[i.var] = self.text.maybe(i.value) or self.text.param(i.var)
                case Let(var, value):
                    if var.dtype.is_int:
                        self.text.env[var] = self.text.maybe(value) or self.text.param(var)
                case MatchBuffer(buffer, source):
                    self.views[buffer] = source

    # ---- statements --------------------------------------------------------------------------

    def walk(self, s: Stmt, time: tuple[int | Loop, ...] = ()) -> None:
        """List the steps of a statement that runs at `time`."""
        match s:
            case Seq(stmts):
                for k, t in enumerate(stmts):
                    self.walk(t, (*time, k))
            case For():
                self.loop(s, time)
            case Block():
                self.in_block(s, time)
            case If(cond, then, orelse):
                self.reads("if", (cond,), (*time, 0))
                with self.when(cond, True):
                    self.walk(then, (*time, 1))
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
                self.made[buffer] = tuple(t for t in time if isinstance(t, Loop))
                self.walk(body, time)
            case MatchBuffer(buffer, source, indices, body):
                self.reads(buffer.name, indices, (*time, 0))
                self.views[buffer] = source
                self.walk(body, (*time, 1))
            case Prefetch():
                pass
            case _:
                # an effect outside a block: a step without iteration variables
                self.add(type(s).__name__.lower(), s, time, None)

    @contextmanager
    def when(self, cond: Expr, truth: bool) -> Iterator[None]:
        """Steps inside run only where `cond` is `truth`."""
        known, exact = self.text.known_part(cond, truth)
        domain, opaque = self.domain, self.opaque
        self.domain = domain + known
        if not exact:
            self.opaque = [*opaque, (self.place(), truth)]
        yield
        self.domain, self.opaque = domain, opaque

    def place(self) -> object:
        """What a condition that the domain cannot say is known by."""
        return None if self.block is None else _origin(self.block)

    def loop(self, s: For, time: tuple[int | Loop, ...]) -> None:
        """The steps of a loop's body, for each iteration."""
        self.reads(s.var.name, (s.lo, s.extent), (*time, 0))
        domain, opaque = self.domain, self.opaque
        dims, bounds = self.dimensions(s)
        self.domain = domain + bounds
        self.walk(s.body, (*time, 1, *dims))
        self.domain, self.opaque = domain, opaque

    def dimensions(self, s: For) -> tuple[tuple[Loop, ...], list[str]]:
        """The dimensions of time of a loop, and their bounds."""
        ordered = s.kind not in UNORDERED
        divisor = _divisor(s)
        if divisor is not None:
            return self.two_dimensions(s, divisor, ordered)
        dim = self.text.env.get(s.var)
        if dim is None:
            dim = self.text.env[s.var] = self.text.fresh()
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
        m, n = self.text.text(divisor), self.text.maybe(_quotient(s.extent, divisor))
        bounds = [f"0 <= {r} < {m}", f"0 <= {q}"] + ([] if n is None else [f"{q} < {n}"])
        name = s.var.name
        return (Loop(name, s.var, q, ordered), Loop(name, s.var, r, ordered)), bounds

    def loop_while(self, cond: Expr, body: Stmt, time: tuple[int | Loop, ...]) -> None:
        """A loop of unknown length; its iterations are counted."""
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

    def in_block(self, s: Block, time: tuple[int | Loop, ...]) -> None:
        """A block is a step, or has steps inside."""
        self.reads(s.name, tuple(i.value for i in s.iters), (*time, 0))
        for i in s.iters:
            self.text.env[i.var] = self.text.maybe(i.value)
        if straight_line(s.body) and (s.init is None or straight_line(s.init)):
            self.leaf(s, (*time, 1))
            return
        outer, self.block = self.block, s
        parts, self.parts = self.parts, 0
        if s.init is not None:
            domain = self.domain
            self.domain = domain + self.first(s)
            self.walk(s.init, (*time, 1))
            self.domain = domain
        self.walk(s.body, (*time, 2))
        self.block, self.parts = outer, parts

    def first(self, s: Block) -> list[str]:
        """Conditions of the instances that run a block's init."""
        values = [self.text.env[i.var] for i in s.iters if i.kind == "reduce"]
        return [f"{v} = 0" for v in values if v is not None]

    def leaf(self, s: Block, time: tuple[int | Loop, ...]) -> None:
        """A straight-line block is one step."""
        step = self.step(_origin(s), s.name, time, s)
        if s.attrs.get("instruction") is not None and _calls(s.body):
            # what an instruction calls does what the block's regions say
            for regions, write in ((s.reads, False), (s.writes, True)):
                for r in regions:
                    step.accesses.append(self.region(r, write))
            return
        touch = _Touched(self, step)
        if s.init is not None:
            touch.conds = tuple(self.first(s))
            touch.stmt(s.init)
            touch.conds = ()
        touch.stmt(s.body)
        self.keep_opaque_order(s, step)

    def keep_opaque_order(self, s: Block, step: Step) -> None:
        """Instances that differ in an opaque iteration stay in order."""
        if any(i.kind == "opaque" for i in s.iters):
            values = tuple(self.text.env[i.var] for i in s.iters if i.kind != "opaque")
            step.accesses.append(Access(f"order of {_origin(s)}", True, values))

    def step(
        self, name: str, title: str, time: tuple[int | Loop, ...], block: Block | None
    ) -> Step:
        """List a new step, which touches nothing yet."""
        identity = None
        if block is not None:
            identity = tuple(self.text.env[i.var] for i in block.iters)
            # an iteration of a while loop is part of who an instance is
            dims = [t.dim for t in time if isinstance(t, Loop) and t.name == "while"]
            identity = (*identity, *dims)
        made = Step(name, title, time, tuple(self.domain), tuple(self.opaque), identity)
        self.steps.append(made)
        return made

    def add(self, name: str, s: Stmt, time: tuple[int | Loop, ...], block: Block | None) -> None:
        """List an effect outside any block."""
        _Touched(self, self.step(name, name, time, block)).stmt(s)

    def reads(self, what: str, exprs: Iterable[Expr], time: tuple[int | Loop, ...]) -> None:
        """A step of its own for memory that control flow reads."""
        exprs = [e for e in exprs if any(isinstance(x, Load | CallExtern) for x in walk(e))]
        if not exprs:
            return
        owner = self.block
        self.parts += 1
        name = what if owner is None else f"{what} of {_origin(owner)}"
        touch = _Touched(self, self.step(f"{name} #{self.parts}", name, time, owner))
        for e in exprs:
            touch.expr(e)

    # ---- memory ------------------------------------------------------------------------------

    def source(self, b: Buffer) -> tuple[Buffer, bool]:
        """(the buffer a view is of, whether its own indices mean nothing there)."""
        viewed = False
        while b in self.views:
            b, viewed = self.views[b], True
        target = self.alias.get(b)
        if target is not None:
            return target, viewed or len(target.shape) != len(b.shape) or target.shape != b.shape
        return b, viewed

    def region(self, r: Region, write: bool) -> Access:
        """A box as one access."""
        index: list[str | None] = []
        conds, exists = [], []
        for lo, extent in r.ranges:
            first, count = self.text.maybe(lo), self.text.maybe(extent)
            if first is None or count is None:
                index.append(None)
                continue
            e = self.text.fresh()
            exists.append(e)
            conds.append(f"0 <= {e} < {count}")
            index.append(f"({first} + {e})")
        return self.access(r.buffer, write, tuple(index), tuple(conds), tuple(exists), "")

    def access(
        self, b: Buffer, write: bool, index: tuple[str | None, ...], conds: tuple[str, ...],
        exists: tuple[str, ...], update: str,
    ) -> Access:  # fmt: skip
        """An access, to what a view is of."""
        target, anywhere = self.source(b)
        if anywhere:
            index = (None,) * len(target.shape)
        own = self.made.get(target, ())
        return Access(target, write, index, conds, exists, update, own, target)


class _Touched:
    """Collects what straight-line code reads and writes into a step."""

    def __init__(self, outer: Collector, into: Step):
        self.outer, self.into = outer, into
        self.conds: tuple[str, ...] = ()
        self.local: set[Buffer] = set()
        self.barrier = False

    def stmt(self, s: Stmt) -> None:
        text = self.outer.text
        match s:
            case Store(buf, indices, value):
                for e in indices:
                    self.expr(e)
                found = update_term(s)
                if found is None:
                    self.expr(value)
                else:
                    self.expr(found[1])
                self.touch(buf, True, indices, "" if found is None else found[0])
                return
            case Alloc(buffer):
                self.local.add(buffer)
            case MatchBuffer(buffer, source):
                if source in self.local:
                    self.local.add(buffer)
                self.outer.views[buffer] = source
            case Let(var, value, body):
                self.expr(value)
                text.env[var] = text.maybe(value) if var.dtype.is_int else None
                self.stmt(body)
                return
            case If(cond, then, orelse):
                self.expr(cond)
                self.guarded(cond, True, then)
                if orelse is not None:
                    self.guarded(cond, False, orelse)
                return
            case Prefetch():
                return
            case Assert():
                self.everything()
        for e in stmt_exprs(s):
            self.expr(e)
        for t in substmts(s):
            self.stmt(t)

    def guarded(self, cond: Expr, truth: bool, s: Stmt) -> None:
        conds = self.conds
        self.conds = (*conds, *self.outer.text.known_part(cond, truth)[0])
        self.stmt(s)
        self.conds = conds

    def expr(self, e: Expr) -> None:
        for c in children(e):
            self.expr(c)
        match e:
            case Load(buf, indices):
                self.touch(buf, False, indices, "")
            case AddressOf(buf, indices):
                for write in (False, True):
                    self.put(buf, write, (None,) * len(buf.shape), (), "")
            case CallExtern():
                self.everything()

    def everything(self) -> None:
        """Nothing may move past this step."""
        if not self.barrier:
            self.into.accesses.append(Access(BARRIER, True, ()))
        self.barrier = True

    def touch(self, b: Buffer, write: bool, indices: tuple[Expr, ...], update: str) -> None:
        texts: list[str | None] = []
        conds, exists = [], []
        for e in indices:
            if isinstance(e, Ramp):
                base, stride = self.outer.text.maybe(e.base), int_value(e.stride)
                if base is None or stride is None:
                    texts.append(None)
                    continue
                lane = self.outer.text.fresh()
                exists.append(lane)
                conds.append(f"0 <= {lane} < {e.lanes}")
                texts.append(f"({base} + {stride} * {lane})")
            else:
                texts.append(self.outer.text.maybe(e) if e.dtype.lanes == 1 else None)
        self.put(b, write, tuple(texts), (*conds,), update, tuple(exists))

    def put(
        self, b: Buffer, write: bool, index: tuple[str | None, ...], conds: tuple[str, ...],
        update: str, exists: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        if b in self.local:
            return
        made = self.outer.access(b, write, index, (*self.conds, *conds), exists, update)
        if made not in self.into.accesses:
            self.into.accesses.append(made)


def _calls(s: Stmt) -> bool:
    exprs = (e for t in walk_stmt(s) for e in stmt_exprs(t))
    return any(isinstance(x, CallExtern) for e in exprs for x in walk(e))


def _origin(s: Block) -> str:
    return str(s.attrs.get("origin", s.name))


def _divisor(s: For) -> Expr | None:
    """The symbolic m of a loop that is used as t // m or t % m."""
    if int_value(s.extent) is not None:
        return None
    for t in walk_stmt(s.body):
        for e in stmt_exprs(t):
            for x in walk(e):
                match x:
                    case Binary("floordiv" | "floormod", Var() as v, m) if v is s.var:
                        if int_value(m) is None and s.var not in free_vars(m):
                            return m
    return None


def _quotient(extent: Expr, divisor: Expr) -> Expr:
    return simplify(extent // divisor)
