"""Verifier of tensor programs: scopes, ranks, lane counts and dtypes of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tensorkiln.ir.buffer import SCOPES, Buffer, Load
from tensorkiln.ir.dtype import BOOL, HANDLE, INT64
from tensorkiln.ir.expr import CallExtern, Expr, IntImm, Intrin, Var, int_value
from tensorkiln.ir.hints import among, condition, extent, fresh, index, instead, plural, unbound
from tensorkiln.ir.known_attrs import BLOCK_ATTRS, CHECKED_INDICES, LOOP_ATTRS
from tensorkiln.ir.malformed import Malformed, listed, one_element, require_attrs, step, stored
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
    Sync,
    While,
)
from tensorkiln.ir.tiles import (
    TILE_ROW_BYTES,
    TILE_ROWS,
    TILES,
    fault_of,
    fault_of_region,
    is_tile,
    works_on_tiles,
)
from tensorkiln.ir.verify_device import DeviceNest, check_launch
from tensorkiln.ir.verify_expr import ExprVerifier
from tensorkiln.ir.visit import free_vars, has_load

# Loop kinds whose variable is a constant in each copy of the generated code.
STATIC_KINDS = ("unrolled", "vectorized")


class TirVerifier(ExprVerifier):
    """Verifies one program, tracking the variables and buffers in scope, and which loops over a
    device's grid are around."""

    def __init__(self, places: bool = False) -> None:
        super().__init__(places)
        self._device = DeviceNest()

    # ---- functions ---------------------------------------------------------------------------

    def function(self, f: PrimFunc) -> None:
        """Raise Malformed if `f` is not well formed."""
        if len(set(f.params)) != len(f.params):
            twice = next(p for i, p in enumerate(f.params) if p in f.params[:i])
            hint = f"list {twice.name} once, or make a parameter of its own"
            raise Malformed("a parameter is listed twice", hint)
        buffers = f.buffers
        if not 0 <= f.outputs <= len(buffers):
            hint = f"outputs are the last of the buffers: 0 to {len(buffers)}"
            raise Malformed(f"{f.outputs} outputs of {len(buffers)} buffers", hint)
        for v in f.scalars:
            self._vars[v] = False
        for i, b in enumerate(buffers):
            with step(f".{b.name}"):
                if b.scope != "global":
                    hint = f"parameters are in scope 'global'; Alloc makes a buffer in {b.scope!r}"
                    raise Malformed(f"a parameter cannot be in scope {b.scope!r}", hint)
                if b.dtype == HANDLE and i >= len(buffers) - f.outputs:
                    hint = f"the last {f.outputs} are written: list {b.name} before them"
                    raise Malformed("a set of handles is read only", hint)
                for v in (v for d in (*b.shape, *(b.strides_given or ())) for v in free_vars(d)):
                    self._vars.setdefault(v, False)
                self._shape(b)
            self._buffers[b] = i >= len(buffers) - f.outputs
        self._inplace(f)
        _check_indices(f)
        with step(".body"):
            self.stmt(f.body)

    def _inplace(self, f: PrimFunc) -> None:
        fits = [i for i, p in enumerate(f.params) if self._buffers.get(p) is False]  # type: ignore[arg-type]
        hint = f"parameters that are read: {listed(map(str, fits)) or 'none'}"
        for i in f.inplace:
            if not 0 <= i < len(f.params) or not isinstance(f.params[i], Buffer):
                raise Malformed(f"inplace parameter {i} is not a buffer", hint)
            if self._buffers[f.params[i]]:  # type: ignore[index]
                raise Malformed(f"inplace parameter {i} is an output", hint)
            if f.outputs != 1:
                message = f"inplace parameter {i} of a program of {f.outputs} outputs"
                raise Malformed(message, "give it one output, which takes the parameter's place")

    def _shape(self, b: Buffer) -> None:
        if b.dtype.lanes != 1:
            hint = f"elements of {b.dtype.element}, and a last dimension of {b.dtype.lanes}"
            raise Malformed(f"elements of {b.dtype}: a buffer's elements are scalars", hint)
        for d in b.shape:
            size, dtype = int_value(d), self.scalar(d)
            if not dtype.is_int or (size is not None and size < 0):
                raise Malformed(f"extent {d!r}", extent(dtype))
            if b.scope in ("register", "tile") and size is None:
                hint = "a number for each extent, or scope 'global'"
                raise Malformed(f"a {b.scope} buffer needs constant extents", hint)
        self._strides(b)

    def _strides(self, b: Buffer) -> None:
        strides = b.strides_given
        if strides is None:
            return
        if len(strides) != len(b.shape):
            hint = f"{plural(len(b.shape), 'stride')}, or None for row-major memory"
            raise Malformed(f"{len(strides)} strides for {len(b.shape)} dimensions", hint)
        for e in strides:
            dtype = self.scalar(e)
            if not dtype.is_int:
                raise Malformed("strides are integers", index(dtype))

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: Stmt) -> None:
        """Raise Malformed if `s` is not well formed in the current scope."""
        check = _STMTS.get(type(s))
        if check is None:
            name = type(s).__name__
            node_names = (t.__name__ for t in _STMTS)
            raise Malformed(f"{name} is not a statement", among(name, node_names))
        check(self, s)

    @contextmanager
    def _bound(self, var: Var, static: bool) -> Iterator[None]:
        """Bind `var` for a scope. It may be bound again after the scope, but not inside it.

        A `static` variable is a constant after unrolling, so register buffers may be indexed by it.
        """
        if var in self._vars:
            raise Malformed(f"{var.name} is bound again while in scope", fresh("Var", var.name))
        self._vars[var] = static
        yield
        del self._vars[var]

    def _for(self, s: For) -> None:
        if s.kind not in FOR_KINDS:
            raise Malformed(f"loop kind {s.kind!r}", among(s.kind, FOR_KINDS))
        for name, e in (("lo", s.lo), ("extent", s.extent)):
            with step(f".{name}"):
                dtype = self.root(e)
                if dtype != s.var.dtype or not dtype.is_int or dtype.lanes != 1:
                    hint = index(dtype, s.var.dtype)
                    raise Malformed(f"{dtype}, but the loop variable is {s.var.dtype}", hint)
        with step(f".for({s.var.name})"):
            require_attrs(LOOP_ATTRS, s.var.name, s.attrs)
        if (s.kind == "thread") != ("thread" in s.attrs):
            message = 'a thread loop, and no other, has attrs["thread"], the index it is bound to'
            raise Malformed(message, 'such as attrs={"thread": "blockIdx.x"}')
        static = s.kind in STATIC_KINDS
        if static and not isinstance(s.extent, IntImm):
            hint = f"split it: an inner loop of a number, which is {s.kind}; or make it serial"
            raise Malformed(f"a loop that is {s.kind} needs a constant extent", hint)
        # Each thread has registers of its own, which split_device makes of the elements with its
        # index.
        with (
            self._bound(s.var, static or s.kind == "thread"),
            self._reach.loop(s.var, s.lo, s.extent),
            step(f".for({s.var.name})"),
            self._device.loop(s),
        ):
            self.stmt(s.body)

    def _seq(self, s: Seq) -> None:
        for i, item in enumerate(s.stmts):
            with step(f"[{i}]"):
                self.stmt(item)

    def _store(self, s: Store) -> None:
        try:
            if not self._buffers.get(s.buffer, True):
                message = "store to a parameter that is not an output"
                raise Malformed(message, stored(self._buffers))
            if works_on_tiles(s):
                self._tiles(s)
                return
            lanes = self._access(s.buffer, s.indices)
            with step(".value"):
                dtype, place = self.root(s.value), s.buffer.dtype.with_lanes(lanes)
                if dtype != place:
                    message = f"{dtype} stored where {place} belongs"
                    raise Malformed(message, instead(dtype, place))
        except Malformed as error:
            error.path.append(f".store({s.buffer.name})")
            raise

    def _tiles(self, s: Store) -> None:
        """Verify a store that moves or multiplies whole tiles."""
        fault = fault_of(s)
        if fault:
            raise Malformed(fault, "schedule.intrin has the instructions that work on tiles")
        value = s.value
        loads = value.args if isinstance(value, Intrin) else (value,)
        self._indices(s.buffer, s.indices, None, several=True)
        for x in loads:
            if isinstance(x, Load):
                self._indices(x.buffer, x.indices, None, several=True)
        if value.dtype.element != s.buffer.dtype:
            source, target = value.dtype.element, s.buffer.dtype
            raise Malformed(f"{source} stored where {target} belongs", instead(source, target))

    def _let(self, s: Let) -> None:
        with step(f".let({s.var.name})"):
            with step(".value"):
                dtype = self.root(s.value)
                if dtype != s.var.dtype:
                    hint = instead(dtype, s.var.dtype)
                    raise Malformed(f"{dtype}, but the variable is {s.var.dtype}", hint)
            fixed = not has_load(s.value)
            static = fixed and all(self._vars.get(v) for v in free_vars(s.value))
            self._reach.bind(s.var, s.value)
            with self._bound(s.var, static):
                self.stmt(s.body)

    def _if(self, s: If) -> None:
        self._condition(s.cond)
        with self._reach.conditional(), step(".then"):
            self.stmt(s.then)
        if s.orelse is not None:
            with self._reach.conditional(), step(".orelse"):
                self.stmt(s.orelse)

    def _condition(self, e: Expr) -> None:
        with step(".cond"):
            dtype = self.root(e)
            if dtype != BOOL:
                raise Malformed(f"{dtype} as a condition", condition(dtype))

    def _alloc(self, s: Alloc) -> None:
        b = s.buffer
        with step(f".alloc({b.name})"):
            if b.scope not in SCOPES:
                raise Malformed(f"unknown scope {b.scope!r}", among(b.scope, SCOPES))
            self._shape(b)
            self._device.alloc(b)
            if is_tile(b) and not any(map(is_tile, self._buffers)):
                fault = fault_of_region(s)
                if fault:
                    raise Malformed(fault, f"{TILES} tiles of {TILE_ROWS} x {TILE_ROW_BYTES} bytes")
            with self._buffer_in_scope(b, True):
                self.stmt(s.body)

    @contextmanager
    def _buffer_in_scope(self, b: Buffer, stored: bool) -> Iterator[None]:
        if b in self._buffers:
            raise Malformed("allocated again while in scope", fresh("Buffer", b.name))
        self._buffers[b] = stored
        yield
        del self._buffers[b]

    def _match(self, s: MatchBuffer) -> None:
        b, source = s.buffer, s.source
        with step(f".match({b.name})"):
            with self._reach.conditional(any(int_value(i) != 0 for i in s.indices)):
                lanes = self._access(source, s.indices)
            if lanes != 1:
                raise Malformed("a view starts at one element", one_element(source))
            if (b.dtype, b.scope) != (source.dtype, source.scope):
                view_memory, source_memory = (
                    f"{b.dtype} in {b.scope}",
                    f"{source.dtype} in {source.scope}",
                )
                hint = f"make {b.name} {source_memory}, as {source.name} is"
                raise Malformed(f"a view as {view_memory} of {source_memory}", hint)
            self._shape(b)
            self._reach.check_view(b, source, s.indices)
            with self._buffer_in_scope(b, self._buffers[source]):
                self.stmt(s.body)

    # ---- blocks ------------------------------------------------------------------------------

    def _block(self, s: Block) -> None:
        with step(f".block({s.name})"):
            if not s.name:
                near = s.writes[0].buffer.name if s.writes else "block"
                raise Malformed("a block needs a name", f"such as {near!r}")
            require_attrs(BLOCK_ATTRS, s.name, s.attrs)
            static = [self._iter(i) for i in s.iters]
            for i in s.iters:
                self._reach.bind(i.var, i.value)
            with ExitStack() as scopes:
                for i, is_static in zip(s.iters, static, strict=True):
                    scopes.enter_context(self._bound(i.var, is_static))
                for name, regions in (("reads", s.reads), ("writes", s.writes)):
                    for k, r in enumerate(regions):
                        with step(f".{name}[{k}]"):
                            self._region(r, name == "writes")
                for name, part in (("init", s.init), ("body", s.body)):
                    with step(f".{name}"):
                        if part is not None:
                            self.stmt(part)

    def _iter(self, i: BlockIter) -> bool:
        """Check one iteration variable; return whether its value is constant after unrolling."""
        with step(f".{i.var.name}"):
            if i.kind not in ITER_KINDS:
                raise Malformed(f"iteration kind {i.kind!r}", among(i.kind, ITER_KINDS))
            for name, e in (("extent", i.extent), ("value", i.value)):
                with step(f".{name}"):
                    dtype = self.root(e)
                    if dtype != i.var.dtype or not dtype.is_int or dtype.lanes != 1:
                        message = f"{dtype}, but the iteration variable is {i.var.dtype}"
                        raise Malformed(message, index(dtype, i.var.dtype))
        return not has_load(i.value) and all(self._vars.get(v) for v in free_vars(i.value))

    def _region(self, r: Region, written: bool) -> None:
        b = r.buffer
        if b not in self._buffers:
            hint = unbound(b.name, (buffer.name for buffer in self._buffers))
            raise Malformed(f"buffer {b.name} is not bound here", hint)
        if written and not self._buffers[b]:
            message = f"{b.name} is a parameter that is not an output"
            raise Malformed(message, stored(self._buffers))
        if len(r.ranges) != len(b.shape):
            hint = f"{b.name} has {plural(len(b.shape), 'dimension')}: one range for each"
            raise Malformed(f"{len(r.ranges)} ranges for {b!r}", hint)
        for lo, count in r.ranges:
            dtype, size = self.scalar(lo), self.scalar(count)
            if not dtype.is_int or dtype != size:
                hint = index(dtype) if not dtype.is_int else instead(size, dtype)
                raise Malformed(f"a range from {dtype} of {size} elements", hint)
        self._reach.check_region(r)

    # ---- control and effects -----------------------------------------------------------------

    def _while(self, s: While) -> None:
        self._condition(s.cond)
        with self._reach.conditional(), step(".while"):
            self.stmt(s.body)

    def _assert(self, s: Assert) -> None:
        with step(".assert"):
            self._condition(s.cond)
        self._reach.stop()

    def _evaluate(self, s: Evaluate) -> None:
        with step(".evaluate"):
            if not isinstance(s.value, CallExtern):
                name = type(s.value).__name__
                hint = "CallExtern has effects; Let binds a value, Store keeps it"
                raise Malformed(f"{name} has no effect: only a C call has", hint)
            self.root(s.value, effect=True)

    def _call_kernel(self, s: CallKernel) -> None:
        """Check that arguments are scalars or addresses; `check_kernel_calls` compares them with
        the parameters of the callee, which need the module."""
        with step(f".call({s.name})"):
            for i, a in enumerate(s.args):
                with step(f".args[{i}]"):
                    dtype = self.address(a)
                    if dtype.lanes != 1:
                        message = f"{dtype} as an argument of a function"
                        raise Malformed(message, instead(dtype, dtype.element))
            check_launch(s)
            for i, e in enumerate(s.grid):
                with step(f".grid[{i}]"):
                    dtype = self.scalar(e)
                    if not dtype.is_int:
                        raise Malformed(f"{dtype} as a number of blocks", index(dtype))

    def _sync(self, s: Sync) -> None:
        with step(".sync"):
            self._device.sync(s)

    def _prefetch(self, s: Prefetch) -> None:
        with step(f".prefetch({s.buffer.name})"):
            if not 0 <= s.locality <= 3:
                hint = "0 (used once) to 3 (kept in all caches)"
                raise Malformed(f"locality {s.locality}", hint)
            with self._reach.conditional():  # a prefetch may be out of bounds: it cannot fault
                lanes = self._access(s.buffer, s.indices)
            if lanes != 1 or s.buffer.scope in ("register", "tile"):
                message = "prefetch takes the address of one element in memory"
                raise Malformed(message, one_element(s.buffer))


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
    Sync: TirVerifier._sync,
}


def _check_indices(f: PrimFunc) -> None:
    """Raise Malformed for a program whose result is to be checked as indices and that does not have
    the form of `CHECKED_INDICES`."""
    rank = f.attrs.get(CHECKED_INDICES)
    if rank is None:
        return
    if f.public:
        # Whoever calls it would say how far the host reads.
        message = f"a public program with the attribute {CHECKED_INDICES!r}"
        raise Malformed(message, "private=True: graph functions call it")
    numbers = f.params[max(len(f.params) - 3 - rank, 0) :]
    plain = len(numbers) == 3 + rank and all(p.dtype == INT64 for p in numbers)
    if not plain or not all(isinstance(p, Var) for p in numbers):
        hint = "extent, 1 if negative ones count from its end, count, and their extents"
        raise Malformed(f"its last {3 + rank} parameters are not numbers of int64", hint)
    if f.outputs != 1 or not f.buffers or not f.buffers[-1].dtype.is_int:
        raise Malformed("its result is not one tensor of integers", "indices are what is checked")
