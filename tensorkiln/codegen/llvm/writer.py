"""The text of one kernel while it is written: functions, scopes, lines, names.

The files beside this one emit the nodes of a tensor program, each a function of the writer and the
node. Those functions stand in a table by class of node at the end of their file; `emit.py` joins
the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.expand.offsets import Offset
from tensorkiln.codegen.llvm.types import llvm_type, parameter_type, suffix
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import Binary, Expr, IntImm, Select, Unary, Var
from tensorkiln.ir.stmt import MatchBuffer, PrimFunc, Stmt
from tensorkiln.ir.visit import walk, walk_stmt
from tensorkiln.target import Target

# How each class of expression is emitted: the text of its value; and each class of statement.
Expressions = Mapping[type[Expr], Callable[["KernelWriter", Any], str]]
Statements = Mapping[type[Stmt], Callable[["KernelWriter", Any], None]]
COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}


@dataclass(slots=True)
class CodeScope:
    """A region of code. Its `lines` dominate those of the scopes opened inside it, so the values
    in `memo`, by expression, can be used there."""

    depth: int
    lines: list[str] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)


@dataclass(slots=True)
class LlvmFunctionText:
    """The state while one LLVM function is written."""

    params: dict[Buffer | Var, str]
    scopes: list[CodeScope] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    vars: dict[Var, str] = field(default_factory=dict)
    depths: dict[Var, int] = field(default_factory=dict)
    buffers: dict[Buffer, str] = field(default_factory=dict)
    registers: dict[Buffer, dict[tuple[tuple[int, ...], int], str]] = field(default_factory=dict)
    # Buffer in tiles -> the register of its first one; empty where tiles are not configured.
    tiles: dict[Buffer, int] = field(default_factory=dict)
    # View (MatchBuffer) -> the depth of the scope in which its pointer is computed.
    views: dict[Buffer, int] = field(default_factory=dict)
    # In the body of a parallel loop: where the message of a failed assertion goes.
    failure: str | None = None
    block: str = "entry"
    in_parallel: bool = False
    # Loads of this basic block that no store has made stale: (buffer, pointer, offset, type).
    loaded: dict[tuple[Buffer, str, int, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for p, v in self.params.items():
            if isinstance(p, Buffer):
                self.buffers[p] = v
            else:
                self.vars[p], self.depths[p] = v, 0

    def begin_block(self, label: str) -> None:
        """Note that another basic block begins, in which no load is known."""
        self.block = label
        self.loaded.clear()

    def written(self, buffer: Buffer | None) -> None:
        """Forget the loads of a buffer that is written to; None stands for any memory."""
        if buffer is None:
            self.loaded.clear()
        elif any(key[0] is buffer for key in self.loaded):
            self.loaded = {k: v for k, v in self.loaded.items() if k[0] is not buffer}


class KernelWriter:
    """Writes one PrimFunc and the bodies of its parallel loops as LLVM functions."""

    helper_attributes = "#0"  # of functions that the kernel calls, those of the kernel
    constants_apart = False  # whether addresses of narrow indices share what is not constant

    def __init__(
        self, func: PrimFunc, target: Target, expressions: Expressions, statements: Statements
    ):
        self.func, self.target = func, target
        self._expressions, self.statements = expressions, statements
        x86 = target.arch == "x86_64"
        self.rounds = not x86 or target.has("sse4.1")
        self.converts_half = not x86 or target.has("f16c")
        # Whether two buffers may be the same memory: the result in an operand's place, or a view.
        views = any(isinstance(s, MatchBuffer) for s in walk_stmt(func.body))
        self.aliases = bool(func.inplace) or views
        # Alignments of buffers, in bytes, where more is known here than buffers say.
        self.aligns: Mapping[Buffer, int] = {}
        self.functions: list[str] = []  # the text of each, inner ones before those that call them
        self.messages: list[str] = []  # constants: the messages of assertions
        self.declares: set[str] = set()
        self.bodies = 0  # number of parallel loops so far
        self.state = LlvmFunctionText({})
        self._names = 0
        # While a value is emitted: its instructions -> their results, and its subexpressions by
        # identity with their results. `_known` is None between values.
        self._known: dict[str, str] | None = None
        self._seen: dict[int, tuple[Expr, str]] = {}
        # By the identity of a buffer and of the indices of an access: its offset.
        self.offsets: dict[tuple[int, int], tuple[Offset, int | None, Buffer, object]] = {}
        self._calls = 0  # number of calls of C functions so far

    # ---- nodes -------------------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """Emit `e` here; equal subexpressions are emitted once, calls of C functions each time.

        Subexpressions are equal if their instructions are, so that the text does not depend on
        whether they are one shared object or, in a parsed program, several. `_seen` only saves
        time.
        """
        if self._known is None:
            return self._outermost(e)
        entry = self._seen.get(id(e))
        if entry is not None:
            return entry[1]
        emit, calls = self._expressions.get(type(e)), self._calls
        if emit is None:
            raise InternalError(f"{self.func.name}: cannot emit expression {type(e).__name__}")
        value = emit(self, e)
        if calls == self._calls:
            self._seen[id(e)] = e, value
        else:
            self._seen.clear()  # what a C function wrote is loaded again
        return value

    def _outermost(self, e: Expr) -> str:
        self._known, self._seen = {}, {}
        try:
            return self.value(e)
        finally:
            self._known = None

    def called(self) -> None:
        """Note a call of a C function, which may have written to any memory."""
        self._calls += 1
        self._known = {}
        self.state.written(None)

    def statement(self, s: Stmt) -> None:
        """Emit a statement."""
        emit = self.statements.get(type(s))
        if emit is None:
            raise InternalError(f"{self.func.name}: cannot emit {type(s).__name__}")
        emit(self, s)

    # ---- functions, scopes, lines ------------------------------------------------------------

    @contextmanager
    def function(
        self,
        name: str,
        params: dict[Buffer | Var, str],
        extra: str = "",
        failure: str | None = None,
    ) -> Iterator[None]:
        """Write `define void name(params extra)` with what the context emits as its body. Bodies of
        parallel loops, which are internal, get i64 %begin, %end in `extra`."""
        linkage = "internal " if extra else ""
        alias = "" if self.aliases else " noalias"
        args = [
            f"ptr{alias if v != failure else ''} {v}"
            if isinstance(p, Buffer)
            else f"{(llvm_type if extra else parameter_type)(p.dtype)} {v}"
            for p, v in params.items()
        ]
        head = f"define {linkage}void {name}({', '.join(args)}{extra}) #0"
        with self.definition(head, params, failure):
            yield

    @contextmanager
    def definition(
        self, head: str, params: dict[Buffer | Var, str], failure: str | None = None
    ) -> Iterator[None]:
        """Write the definition of a function with no result that begins with `head`."""
        saved, self.state = self.state, LlvmFunctionText(params, failure=failure)
        root = CodeScope(0)
        self.state.scopes.append(root)
        yield
        lines = ["entry:", *self.state.allocas, *root.lines, "  ret void"]
        self.functions.append("\n".join([f"{head} {{", *lines, "}"]))
        self.state = saved

    @contextmanager
    def scope(self) -> Iterator[CodeScope]:
        """A region of code inside the innermost one, which gets its lines at the end."""
        scopes = self.state.scopes
        scopes.append(CodeScope(len(scopes)))
        yield scopes[-1]
        lines = scopes.pop().lines
        scopes[-1].lines.extend(lines)

    def fresh(self) -> str:
        """A new name for a value."""
        self._names += 1
        return f"%t{self._names}"

    def emit(self, line: str, scope: CodeScope | None = None) -> None:
        """Add a line to `scope`, by default the innermost."""
        (scope or self.state.scopes[-1]).lines.append(line)

    def line(self, text: str, scope: CodeScope | None = None) -> str:
        """Emit an instruction and return its result; within a value, the earlier result if the
        innermost scope has the same instruction already."""
        memo = self._known if scope is None else None
        if memo is not None and text in memo:
            return memo[text]
        name = self.fresh()
        self.emit(f"  {name} = {text}", scope)
        if memo is not None:
            memo[text] = name
        return name

    def label(self) -> str:
        """A new name for a basic block."""
        self._names += 1
        return f"b{self._names}"

    def enter(self, label: str) -> None:
        """Begin a basic block."""
        self.emit(f"{label}:")
        self.state.begin_block(label)

    def scope_of(self, e: Expr) -> CodeScope:
        """The outermost open scope in which `e` can be computed."""
        st = self.state
        if isinstance(e, Var):  # nearly always
            return st.scopes[st.depths[e]]
        depth = 0
        for x in walk(e):
            if isinstance(x, Var):
                depth = max(depth, st.depths[x])
            elif not _is_index_arithmetic(x):
                return st.scopes[-1]  # such an expression is emitted where it is used
        return st.scopes[depth]

    def splat(self, v: str, dtype: DType, lanes: int) -> str:
        """A vector with the scalar `v` of type `dtype` in every lane."""
        t, tv = llvm_type(dtype), llvm_type(dtype.with_lanes(lanes))
        if not v.startswith("%"):
            return "<" + ", ".join([f"{t} {v}"] * lanes) + ">"
        key = ("splat", v, lanes)
        for scope in self.state.scopes:
            if key in scope.memo:
                return scope.memo[key]
        lane0 = self.line(f"insertelement {tv} poison, {t} {v}, i32 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        out = self.line(f"shufflevector {tv} {lane0}, {tv} poison, {mask}")
        self.state.scopes[-1].memo[key] = out
        return out

    def call(self, name: str, dtype: DType, args: list[str], scope: CodeScope | None = None) -> str:
        """Call an intrinsic whose operands and result are of type `dtype`; also declares it."""
        t = llvm_type(dtype)
        full = f"@llvm.{name}.{suffix(dtype)}"
        self.declares.add(f"declare {t} {full}({', '.join([t] * len(args))})")
        return self.line(f"call {t} {full}({', '.join(f'{t} {a}' for a in args)})", scope)


def _is_index_arithmetic(e: Expr) -> bool:
    """Whether `addresses.index` computes this node itself, in any scope."""
    match e:
        case Binary(op, a, _):
            return op not in COMPARE or a.dtype == INT64
        case Unary() | Select() | IntImm():
            return True
    return False
