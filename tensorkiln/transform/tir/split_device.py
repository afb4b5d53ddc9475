"""Divide programs for devices into device functions and the launches of them.

    def f(X, Y, n):                                      def f(X, Y, n):
        for b in T.thread_binding(n,                         T.call(cls.f_device, X, Y, n,
            thread="blockIdx.x"):                                grid=(n, 1, 1), block=(4, 1, 1))
            for t in T.thread_binding(4,         ->      def f_device(X, Y, n):
                thread="threadIdx.x"):                       T.func_attr({"device_function": True})
                Y[b, t] = X[b, t]                            for b in ...: for t in ...: ...

Each launch nest, a nest of loops over blockIdx, becomes a function of its own: `f_device`, or
`f_0`, `f_1`, ... if there are several. Its parameters are those of `f` that it uses, those that are
only read first. `f` itself keeps the launches, in order, and allocations of buffers that lie
between them.

A device function has the form that `ir/launch.py` describes. Loops over threadIdx with none over
blockIdx around them are one block. What stands in a block outside of the loops over threadIdx, such
as a single store, runs in one thread. A loop over threadIdx that is not directly inside of another
moves outwards, and what it was not around runs where its index is 0.

Needs: pass_sizes, lower_blocks.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import replace

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import IntImm, Var, binary, cast, int_value, logical_and
from tensorkiln.ir.launch import block_loops, launch_of, thread_loops, thread_of
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.outputs import inferred_outputs
from tensorkiln.ir.stmt import (
    BLOCK_INDICES,
    THREAD_INDICES,
    Alloc,
    CallKernel,
    For,
    If,
    Let,
    MatchBuffer,
    Param,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Sync,
    While,
    seq,
)
from tensorkiln.ir.visit import (
    bound_vars,
    free_vars,
    has_load,
    map_stmt,
    replace_buffers,
    stmt_exprs,
    substitute_stmt,
    walk,
    walk_stmt,
)
from tensorkiln.transform.device.privatize import private_part


def split_device(mod: IRModule) -> IRModule:
    """Replace every program that has loops over a device's grid by launches of device functions.

    Raises UnsupportedError for a program that does more than launch, such as a loop around one, or
    that allocates local memory for a whole block.
    """
    functions: list[AnyFunction] = []
    names = {f.name for f in mod.functions}
    for f in mod.functions:
        split = isinstance(f, PrimFunc) and not f.is_device and has_threads(f.body)
        new = _Split(f, names).functions() if split and isinstance(f, PrimFunc) else [f]
        names |= {g.name for g in new}
        functions += new
    is_unchanged = len(functions) == len(mod.functions)
    return mod if is_unchanged else mod.with_functions(tuple(functions))


def has_threads(s: Stmt) -> bool:
    """Whether a statement has loops over the blocks or threads of a device."""
    return any(thread_of(t) for t in walk_stmt(s))


class _Split:
    """Divides one program; `names` are those of functions that the module has."""

    def __init__(self, f: PrimFunc, names: Container[str]):
        self.f, self.names = f, names
        self.device_functions: list[PrimFunc] = []
        self.between: list[Buffer] = []  # buffers that launches hand on, allocated so far
        self.several = sum(1 for _ in _nests(f.body)) > 1

    def functions(self) -> list[AnyFunction]:
        """The program, which launches, and the device functions that it launches."""
        body = self._host(self.f.body)
        return [replace(self.f, body=body), *self.device_functions]

    def _fail(self, message: str, hint: str) -> UnsupportedError:
        return UnsupportedError(message, where=self.f.name, hint=hint)

    def _host(self, s: Stmt) -> Stmt:
        """A statement outside of launch nests, with launches in place of these."""
        if thread_of(s) and isinstance(s, For):
            return self._launch(s)
        match s:
            case Seq(stmts):
                return seq(*map(self._host, stmts))
            case Let(var, value, body) if not has_load(value):
                return self._host(substitute_stmt(body, {var: value}))
            case Alloc(buffer, body) if buffer.scope == "global":
                self.between.append(buffer)
                return Alloc(buffer, self._host(body))
        name = s.var.name if isinstance(s, For) else ""
        subject = f"loop {name} around launches" if has_threads(s) and name else _what(s)
        raise self._fail(
            f"{subject} outside of the loops over blockIdx",
            "a program for a device consists of nests of such loops: bind this part too",
        )

    def _launch(self, s: For) -> Stmt:
        """The launch of a new device function for a nest."""
        loops, body = block_loops(s)
        body = self._block(body)
        if not loops:
            lo, extent = IntImm(0), IntImm(1)
            attrs = Attrs.of(thread=BLOCK_INDICES[0])
            body = For(Var("block"), lo, extent, "thread", body, attrs)
        for loop in reversed(loops):
            body = replace(loop, body=body)
        device = self._function(body)
        launch = launch_of(device)
        block_vars = {x.var for x in launch.loops}
        for loop in launch.loops:
            if has_load(loop.extent) or not block_vars.isdisjoint(free_vars(loop.extent)):
                raise self._fail(
                    f"the number of blocks along {thread_of(loop)} is known only inside of them",
                    "a grid has an extent that follows from the sizes of the program's parameters",
                )
        self.device_functions.append(device)
        args = tuple(
            AddressOf(p, tuple(IntImm(0) for _ in p.shape)) if isinstance(p, Buffer) else p
            for p in device.params
        )
        return CallKernel(device.name, args, "", launch.grid, launch.block)

    def _function(self, body: Stmt) -> PrimFunc:
        """The device function of a nest."""
        name = (
            f"{self.f.name}_{len(self.device_functions)}"
            if self.several
            else f"{self.f.name}_device"
        )
        buffers, variables = _used(body)
        candidates = [*self.f.buffers, *self.between]
        accessed = [b for b in candidates if b in buffers]
        variables |= {v for b in accessed for d in (*b.shape, *b.strides) for v in free_vars(d)}
        written = [b for b in accessed if _writes(body, b)]
        read = [b for b in accessed if b not in written]
        scalars = [v for v in self.f.scalars if v in variables]
        params: tuple[Param, ...] = (*read, *written, *scalars)
        missing = sorted(v.name for v in variables if v not in self.f.scalars)
        if missing:
            message = f"size {missing[0]} is not a parameter"
            raise self._fail(message, "pass_sizes makes sizes parameters: run it before")
        device_attrs = {k: v for k, v in self.f.attrs.items() if "." in k or k == "target"}
        return PrimFunc(
            unused(name, self.names),
            params,
            body,
            len(written),
            self._inplace(params, written),
            self.f.op_class,
            attrs=Attrs.of(device_function=True, **device_attrs),
        )

    def _inplace(self, params: tuple[Param, ...], written: list[Buffer]) -> tuple[int, ...]:
        """Positions of inputs that may have the memory of the output."""
        mine = [self.f.params[i] for i in self.f.inplace]
        positions = tuple(i for i, p in enumerate(params) if p in mine)
        if positions and len(written) > 1:
            raise self._fail(
                f"{params[positions[0]].name} may have the memory of the output, and a launch that "
                f"reads it writes {', '.join(b.name for b in written)}",
                "leave out inplace=, or write only the output in that launch",
            )
        return positions if self.f.buffers[-1] in written else ()

    # ---- what a block runs -------------------------------------------------------------------

    def _block(self, s: Stmt) -> Stmt:
        """The body of a nest, with all that threads do in loops over threadIdx."""
        outer: list[Buffer] = []
        while isinstance(s, Alloc) and s.buffer.scope == "shared":
            outer.append(s.buffer)
            s = s.body
        s = self._together(s) if _parts(s) else _one_thread(s)
        for b in reversed(outer):
            s = Alloc(b, s)
        return s

    def _together(self, s: Stmt) -> Stmt:
        """A statement that all threads of a block execute together."""
        index = thread_of(s)
        if index in THREAD_INDICES and isinstance(s, For):
            return _of_threads(_perfect(s))
        if index:
            raise self._fail(
                f"a loop over {index} inside of statements that each block runs",
                "loops over blockIdx stand one directly inside the other",
            )
        if isinstance(s, Alloc) and s.buffer.scope != "shared" and _parts(s.body):
            private = private_part(s) if s.buffer.scope != "global" else None
            if private is not None:
                return Alloc(private.buffer, self._together(private.body))
            raise self._fail(
                f"{s.buffer.scope} buffer {s.buffer.name} is allocated for a whole block",
                "allocate it inside of the loops over threadIdx, let each thread use elements of "
                "its own index alone, or make it shared",
            )
        if not _parts(s):
            return _one_thread(s)
        if isinstance(s, Alloc | For | If | Let | MatchBuffer | Seq | While):
            return map_stmt(s, lambda e: e, self._together)
        return s


def _nests(s: Stmt) -> Iterator[Stmt]:
    """The outermost loops over a device's grid."""
    if thread_of(s):
        yield s
        return
    for t in s.stmts if isinstance(s, Seq) else (s.body,) if isinstance(s, Alloc | Let) else ():
        yield from _nests(t)


def _parts(s: Stmt) -> bool:
    """Whether a statement has parts for a whole block, so that it cannot run in one thread."""
    return any(
        thread_of(t) or isinstance(t, Sync) or (isinstance(t, Alloc) and t.buffer.scope == "shared")
        for t in walk_stmt(s)
    )


def _one_thread(s: Stmt) -> Stmt:
    if isinstance(s, Seq) and not s.stmts:
        return s
    attrs = Attrs.of(thread=THREAD_INDICES[0])
    return _of_threads(For(Var("thread"), IntImm(0), IntImm(1), "thread", s, attrs))


def _of_threads(s: Stmt) -> Stmt:
    """Statements of single threads. A buffer that they allocate is their own, so it is local."""
    local_buffers: dict[Buffer, Buffer] = {}
    for t in walk_stmt(s):
        if isinstance(t, Alloc) and t.buffer.scope == "global":
            local_buffers[t.buffer] = replace(t.buffer, scope="local")
        if isinstance(t, MatchBuffer) and t.source in local_buffers:
            local_buffers[t.buffer] = replace(t.buffer, scope="local")
    return replace_buffers(s, local_buffers) if local_buffers else s


def _perfect(s: For) -> Stmt:
    """A nest over threadIdx with its loops directly inside each other."""
    _, inner = thread_loops(s)
    if not any(thread_of(t) for t in walk_stmt(inner)):
        return s
    extents: dict[str, int] = {}
    for t in walk_stmt(s):
        if isinstance(t, For) and (index := thread_of(t)):
            extents[index] = max(extents.get(index, 0), int_value(t.extent) or 0)
    thread_vars = {index: Var(f"thread_{index[-1]}") for index in sorted(extents)}
    body = _of_thread(s, thread_vars, frozenset())
    for index, var in thread_vars.items():
        attrs = Attrs.of(thread=index)
        body = For(var, IntImm(0), IntImm(extents[index]), "thread", body, attrs)
    return body


def _of_thread(s: Stmt, thread_vars: Mapping[str, Var], outer_indices: frozenset[str]) -> Stmt:
    """What the thread with indices `thread_vars` does in a nest; `outer_indices` are those of
    loops around."""
    if not any(thread_of(t) for t in walk_stmt(s)):
        free = [v for index, v in thread_vars.items() if index not in outer_indices]
        return If(logical_and(*(binary("eq", v, IntImm(0)) for v in free)), s) if free else s
    index = thread_of(s)
    if not index or not isinstance(s, For):
        return map_stmt(s, lambda e: e, lambda t: _of_thread(t, thread_vars, outer_indices))
    mine = cast(thread_vars[index], s.var.dtype)
    body = substitute_stmt(s.body, {s.var: binary("add", s.lo, mine)})
    body = _of_thread(body, thread_vars, outer_indices | {index})
    return If(binary("lt", mine, s.extent), body)


def _what(s: Stmt) -> str:
    match s:
        case For():
            return f"loop {s.var.name}"
        case Store() | Alloc():
            return f"{type(s).__name__.lower()} of {s.buffer.name}"
    return type(s).__name__


def _used(s: Stmt) -> tuple[set[Buffer], set[Var]]:
    """(the buffers, the variables) that a statement uses and does not bind itself."""
    buffers: set[Buffer] = set()
    variables: set[Var] = set()
    local_buffers: set[Buffer] = set()
    local_vars: set[Var] = set()
    for t in walk_stmt(s):
        local_vars |= set(bound_vars(t))
        if isinstance(t, Alloc | MatchBuffer):
            local_buffers.add(t.buffer)
            for d in (*t.buffer.shape, *t.buffer.strides):
                variables |= set(free_vars(d))
        for owner in ("buffer", "source"):
            b = getattr(t, owner, None)
            if isinstance(b, Buffer):
                buffers.add(b)
        for e in stmt_exprs(t):
            variables |= set(free_vars(e))
            buffers |= {x.buffer for x in walk(e) if hasattr(x, "buffer")}
    return buffers - local_buffers, variables - local_vars


def _writes(s: Stmt, b: Buffer) -> bool:
    return inferred_outputs((b,), s) == 1


__all__ = ["split_device"]
