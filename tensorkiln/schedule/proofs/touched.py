"""Collect what straight-line code reads and writes, as accesses of a step."""

from __future__ import annotations

from tensorkiln.arith.affine_text import AffineText
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.expr import Binary, CallExtern, Expr, Ramp, int_value
from tensorkiln.ir.stmt import (
    Alloc,
    Assert,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    Region,
    Stmt,
    Store,
    Sync,
)
from tensorkiln.ir.visit import children, stmt_exprs, substmts
from tensorkiln.schedule.proofs.steps import BARRIER, Loop, ProgramStep, StepAccess
from tensorkiln.schedule.tree.normalise import update_term


class Memory:
    """Resolves buffers. `views`: view -> its source; `alias`: operand that may be overwritten in
    place -> the output; `made`: buffer that is allocated inside loops -> these loops."""

    def __init__(self, text: AffineText, alias: dict[Buffer, Buffer]):
        self.text, self.alias = text, alias
        self.views: dict[Buffer, Buffer] = {}
        self.made: dict[Buffer, tuple[Loop, ...]] = {}

    def source(self, b: Buffer) -> tuple[Buffer, bool]:
        """(the buffer whose memory `b` uses, whether indices of `b` are not valid in it)."""
        viewed = False
        while b in self.views:
            b, viewed = self.views[b], True
        target = self.alias.get(b)
        if target is not None:
            return target, viewed or len(target.shape) != len(b.shape) or target.shape != b.shape
        return b, viewed

    def region(self, r: Region, write: bool) -> StepAccess:
        """A region as one access, with an existential variable per dimension."""
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
        self,
        b: Buffer,
        write: bool,
        index: tuple[str | None, ...],
        conds: tuple[str, ...],
        exists: tuple[str, ...],
        update: str,
    ) -> StepAccess:
        """An access of `b`, resolved to the buffer whose memory it uses; of unknown indices if it
        is a view."""
        target, anywhere = self.source(b)
        if anywhere:
            index = (None,) * len(target.shape)
        owners = self.made.get(target, ())
        return StepAccess(target, write, index, conds, exists, update, owners, target)


class Touched:
    """Appends what straight-line code reads and writes to the accesses of a step. `local`: buffers
    that the code itself allocates, which are not listed."""

    def __init__(self, memory: Memory, into: ProgramStep):
        self.memory, self.into = memory, into
        self.conds: tuple[str, ...] = ()
        self.local: set[Buffer] = set()
        self.barrier = False

    def stmt(self, s: Stmt) -> None:
        """Add the accesses of a statement."""
        text = self.memory.text
        match s:
            case Store(buf, indices, value):
                for e in indices:
                    self.expr(e)
                update = update_term(s)
                if update is None:
                    self.expr(value)
                else:
                    self.expr(update[1])
                self.touch(buf, True, indices, "" if update is None else update[0])
                return
            case Alloc(buffer):
                self.local.add(buffer)
            case MatchBuffer(buffer, source):
                if source in self.local:
                    self.local.add(buffer)
                self.memory.views[buffer] = source
            case Let(var, value, body):
                self.expr(value)
                text.env[var] = text.maybe(value) if var.dtype.is_int else None
                self.stmt(body)
                return
            case If(cond, then_body, orelse):
                self.expr(cond)
                self.guarded(cond, True, then_body)
                if orelse is not None:
                    self.guarded(cond, False, orelse)
                return
            case Prefetch():
                return
            case Assert() | Sync():
                self.everything()
        for e in stmt_exprs(s):
            self.expr(e)
        for t in substmts(s):
            self.stmt(t)

    def guarded(self, cond: Expr, truth: bool, s: Stmt) -> None:
        """Add the accesses of a statement that runs if `cond` is `truth`."""
        conds = self.conds
        self.conds = (*conds, *self.memory.text.known_part(cond, truth)[0])
        self.stmt(s)
        self.conds = conds

    def expr(self, e: Expr) -> None:
        """Add the accesses of an expression."""
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
        """Add a write of BARRIER: no access may be moved past this step."""
        if not self.barrier:
            self.into.accesses.append(StepAccess(BARRIER, True, ()))
        self.barrier = True

    def touch(self, b: Buffer, write: bool, indices: tuple[Expr, ...], update: str) -> None:
        """Add an access at `indices`; a ramp is a range of elements."""
        texts: list[str | None] = []
        conds, exists = [], []
        for e in indices:
            if isinstance(e, Ramp):
                base, stride = self.memory.text.maybe(e.base), int_value(e.stride)
                if base is None or stride is None:
                    texts.append(None)
                    continue
                lane = self.memory.text.fresh()
                exists.append(lane)
                conds.append(f"0 <= {lane} < {e.lanes}")
                texts.append(f"({base} + {stride} * {lane})")
                continue
            index_text = self.memory.text.maybe(e) if e.dtype.lanes == 1 else None
            bounds = self.bounds(e) if index_text is None else None
            if bounds is not None:
                index_text = self.memory.text.fresh()
                exists.append(index_text)
                conds.append(f"{bounds[0]} <= {index_text} <= {bounds[1]}")
            texts.append(index_text)
        self.put(b, write, tuple(texts), (*conds,), update, tuple(exists))

    def bounds(self, e: Expr) -> tuple[str, str] | None:
        """The least and the greatest value of max(min(x, high), low), whatever x is, as texts."""
        match e:
            case Binary("max", Binary("min", _, high), low):
                first, last = self.memory.text.maybe(low), self.memory.text.maybe(high)
                return None if first is None or last is None else (first, f"max({last}, {first})")
        return None

    def put(
        self,
        b: Buffer,
        write: bool,
        index: tuple[str | None, ...],
        conds: tuple[str, ...],
        update: str,
        exists: tuple[str, ...] = (),
    ) -> None:
        """Append an access, unless it is listed already or the code allocates the buffer itself."""
        if b in self.local:
            return
        access = self.memory.access(b, write, index, (*self.conds, *conds), exists, update)
        if access not in self.into.accesses:
            self.into.accesses.append(access)
