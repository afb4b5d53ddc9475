"""What a well-formed tensor program is: names, ranks, lanes and dtypes that agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tensorkiln.ir.buffer import SCOPES, Buffer
from tensorkiln.ir.dtype import BOOL, HANDLE
from tensorkiln.ir.expr import CallExtern, Expr, IntImm, Var, int_value
from tensorkiln.ir.stmt import (
    FOR_KINDS,
    ITER_KINDS,
    Alloc,
    Assert,
    Block,
    BlockIter,
    CallKernel,
    Evaluate,
    For,
    If,
    Let,
    MatchBuffer,
    Prefetch,
    PrimFunc,
    Region,
    Seq,
    Stmt,
    Store,
    While,
)
from tensorkiln.ir.verify_expr import ExprVerifier, Malformed, step
from tensorkiln.ir.visit import free_vars, has_load

# Loop kinds whose variable is a number once the code is laid out.
STATIC_KINDS = ("unrolled", "vectorized")


class TirVerifier(ExprVerifier):
    """Walks one program with what is in scope."""

    # ---- functions ---------------------------------------------------------------------------

    def function(self, f: PrimFunc) -> None:
        """Raise Malformed where the program is not well formed."""
        if len(set(f.params)) != len(f.params):
            raise Malformed("a parameter is listed twice")
        buffers = f.buffers
        if not 0 <= f.outputs <= len(buffers):
            raise Malformed(f"{f.outputs} outputs of {len(buffers)} buffers")
        for v in f.scalars:
            self._vars[v] = False
        for i, b in enumerate(buffers):
            with step(f".{b.name}"):
                if b.scope != "global":
                    raise Malformed(f"a parameter in scope {b.scope!r}")
                if b.dtype == HANDLE and i >= len(buffers) - f.outputs:
                    raise Malformed("a set of handles is read only")
                for v in (v for d in (*b.shape, *(b.strides_given or ())) for v in free_vars(d)):
                    self._vars.setdefault(v, False)
                self._shape(b)
            self._buffers[b] = i >= len(buffers) - f.outputs
        self._inplace(f)
        with step(".body"):
            self.stmt(f.body)

    def _inplace(self, f: PrimFunc) -> None:
        for i in f.inplace:
            if not 0 <= i < len(f.params) or not isinstance(f.params[i], Buffer):
                raise Malformed(f"inplace parameter {i} is not a buffer")
            if self._buffers[f.params[i]] or f.outputs != 1:  # type: ignore[index]
                raise Malformed(f"inplace parameter {i} is an output, or outputs are not one")

    def _shape(self, b: Buffer) -> None:
        if b.dtype.lanes != 1:
            raise Malformed(f"elements of {b.dtype}: a buffer's elements are scalars")
        for d in b.shape:
            extent = int_value(d)
            if not self.scalar(d).is_int or (extent is not None and extent < 0):
                raise Malformed(f"extent {d!r}")
            if b.scope == "register" and extent is None:
                raise Malformed("a register buffer needs constant extents")
        self._strides(b)

    def _strides(self, b: Buffer) -> None:
        given = b.strides_given
        if given is None:
            return
        if len(given) != len(b.shape):
            raise Malformed(f"{len(given)} strides for {len(b.shape)} dimensions")
        if not all(self.scalar(e).is_int for e in given):
            raise Malformed("strides are integers")

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> None:
        """Raise Malformed where a statement is not well formed in this scope."""
        check = _STMTS.get(type(s))
        if check is None:
            raise Malformed(f"{type(s).__name__} is not a statement")
        check(self, s)

    @contextmanager
    def _bound(self, var: Var, static: bool) -> Iterator[None]:
        """The same variable may be bound again beside this scope, but not inside it."""
        if var in self._vars:
            raise Malformed(f"{var.name} is bound again while in scope")
        self._vars[var] = static
        yield
        del self._vars[var]

    def _for(self, s: For) -> None:
        if s.kind not in FOR_KINDS:
            raise Malformed(f"loop kind {s.kind!r}; there are {', '.join(FOR_KINDS)}")
        for name, e in (("lo", s.lo), ("extent", s.extent)):
            with step(f".{name}"):
                found = self.root(e)
                if found != s.var.dtype or not found.is_int or found.lanes != 1:
                    raise Malformed(f"{found}, but the loop variable is {s.var.dtype}")
        if s.kind == "thread" and not isinstance(s.attrs.get("thread"), str):
            raise Malformed('a thread loop without attrs["thread"], the index it is bound to')
        static = s.kind in STATIC_KINDS
        if static and not isinstance(s.extent, IntImm):
            raise Malformed(f"a loop that is {s.kind} needs a constant extent")
        with self._bound(s.var, static), step(f".for({s.var.name})"):
            self.stmt(s.body)

    def _seq(self, s: Seq) -> None:
        for i, item in enumerate(s.stmts):
            with step(f"[{i}]"):
                self.stmt(item)

    def _store(self, s: Store) -> None:
        try:
            if not self._buffers.get(s.buffer, True):
                raise Malformed("store to a parameter that is not an output")
            lanes = self._access(s.buffer, s.indices)
            with step(".value"):
                found, place = self.root(s.value), s.buffer.dtype.with_lanes(lanes)
                if found != place:
                    raise Malformed(f"{found} stored where {place} belongs")
        except Malformed as error:
            error.path.append(f".store({s.buffer.name})")
            raise

    def _let(self, s: Let) -> None:
        with step(f".let({s.var.name})"):
            with step(".value"):
                found = self.root(s.value)
                if found != s.var.dtype:
                    raise Malformed(f"{found}, but the variable is {s.var.dtype}")
            fixed = not has_load(s.value)
            static = fixed and all(self._vars.get(v) for v in free_vars(s.value))
            with self._bound(s.var, static):
                self.stmt(s.body)

    def _if(self, s: If) -> None:
        self._condition(s.cond)
        with step(".then"):
            self.stmt(s.then)
        if s.orelse is not None:
            with step(".orelse"):
                self.stmt(s.orelse)

    def _condition(self, e: Expr) -> None:
        with step(".cond"):
            found = self.root(e)
            if found != BOOL:
                raise Malformed(f"{found} as a condition")

    def _alloc(self, s: Alloc) -> None:
        b = s.buffer
        with step(f".alloc({b.name})"):
            if b.scope not in SCOPES:
                raise Malformed(f"scope {b.scope!r}; there are {', '.join(SCOPES)}")
            self._shape(b)
            with self._known(b, True):
                self.stmt(s.body)

    @contextmanager
    def _known(self, b: Buffer, stored: bool) -> Iterator[None]:
        if b in self._buffers:
            raise Malformed("allocated again while in scope")
        self._buffers[b] = stored
        yield
        del self._buffers[b]

    def _match(self, s: MatchBuffer) -> None:
        b, source = s.buffer, s.source
        with step(f".match({b.name})"):
            if self._access(source, s.indices) != 1:
                raise Malformed("a view starts at one element")
            if (b.dtype, b.scope) != (source.dtype, source.scope):
                found, wanted = f"{b.dtype} in {b.scope}", f"{source.dtype} in {source.scope}"
                raise Malformed(f"a view as {found} of {wanted}")
            self._shape(b)
            with self._known(b, self._buffers[source]):
                self.stmt(s.body)

    # ---- blocks ------------------------------------------------------------------------------

    def _block(self, s: Block) -> None:
        with step(f".block({s.name})"):
            if not s.name:
                raise Malformed("a block needs a name")
            static = [self._iter(i) for i in s.iters]
            with ExitStack() as scopes:
                for i, known in zip(s.iters, static, strict=True):
                    scopes.enter_context(self._bound(i.var, known))
                for name, regions in (("reads", s.reads), ("writes", s.writes)):
                    for k, r in enumerate(regions):
                        with step(f".{name}[{k}]"):
                            self._region(r, name == "writes")
                for name, part in (("init", s.init), ("body", s.body)):
                    with step(f".{name}"):
                        if part is not None:
                            self.stmt(part)

    def _iter(self, i: BlockIter) -> bool:
        """Check one iteration variable; whether its value is a number once loops are unrolled."""
        with step(f".{i.var.name}"):
            if i.kind not in ITER_KINDS:
                raise Malformed(f"iteration kind {i.kind!r}; there are {', '.join(ITER_KINDS)}")
            for name, e in (("extent", i.extent), ("value", i.value)):
                with step(f".{name}"):
                    found = self.root(e)
                    if found != i.var.dtype or not found.is_int or found.lanes != 1:
                        raise Malformed(f"{found}, but the iteration variable is {i.var.dtype}")
        return not has_load(i.value) and all(self._vars.get(v) for v in free_vars(i.value))

    def _region(self, r: Region, written: bool) -> None:
        b = r.buffer
        if b not in self._buffers:
            raise Malformed(f"buffer {b.name} is not bound here")
        if written and not self._buffers[b]:
            raise Malformed(f"{b.name} is a parameter that is not an output")
        if len(r.ranges) != len(b.shape):
            raise Malformed(f"{len(r.ranges)} ranges for {b!r}")
        for lo, extent in r.ranges:
            found, size = self.scalar(lo), self.scalar(extent)
            if not found.is_int or found != size:
                raise Malformed(f"a range from {found} of {size} elements")

    # ---- control and effects -----------------------------------------------------------------

    def _while(self, s: While) -> None:
        self._condition(s.cond)
        with step(".while"):
            self.stmt(s.body)

    def _assert(self, s: Assert) -> None:
        with step(".assert"):
            self._condition(s.cond)

    def _evaluate(self, s: Evaluate) -> None:
        with step(".evaluate"):
            if not isinstance(s.value, CallExtern):
                raise Malformed(f"{type(s.value).__name__} has no effect: only a C call has")
            self.root(s.value, effect=True)

    def _call_kernel(self, s: CallKernel) -> None:
        """What the callee takes is the module's business (`verify`)."""
        with step(f".call({s.name})"):
            for i, a in enumerate(s.args):
                with step(f".args[{i}]"):
                    if self.address(a).lanes != 1:
                        raise Malformed(f"{a.dtype} as an argument of a function")

    def _prefetch(self, s: Prefetch) -> None:
        with step(f".prefetch({s.buffer.name})"):
            if not 0 <= s.locality <= 3:
                raise Malformed(f"locality {s.locality}")
            if self._access(s.buffer, s.indices) != 1 or s.buffer.scope == "register":
                raise Malformed("prefetch takes the address of one element in memory")


_STMTS: dict[type, Callable[..., None]] = {
    For: TirVerifier._for,
    Seq: TirVerifier._seq,
    Store: TirVerifier._store,
    Let: TirVerifier._let,
    If: TirVerifier._if,
    Alloc: TirVerifier._alloc,
    Prefetch: TirVerifier._prefetch,
    MatchBuffer: TirVerifier._match,
    Block: TirVerifier._block,
    While: TirVerifier._while,
    Assert: TirVerifier._assert,
    Evaluate: TirVerifier._evaluate,
    CallKernel: TirVerifier._call_kernel,
}
