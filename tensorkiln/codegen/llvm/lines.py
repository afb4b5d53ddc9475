"""The text of one LLVM function while it is written: scopes, lines, names."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorkiln.codegen.llvm.types import llvm_type, suffix
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.expr import (
    Binary,
    Expr,
    IntImm,
    Select,
    Unary,
    Var,
)  # fmt: skip
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import walk
from tensorkiln.target import Target

COMPARE = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge", "eq": "eq", "ne": "ne"}


@dataclass(slots=True)
class Scope:
    """A region of code. Its `lines` dominate those of the scopes opened inside it, so the values
    in `memo`, by expression, can be used there."""

    depth: int
    lines: list[str] = field(default_factory=list)
    memo: dict[object, str] = field(default_factory=dict)


@dataclass(slots=True)
class FunctionState:
    """What is known while one LLVM function is written."""

    params: dict[Buffer | Var, str]
    scopes: list[Scope] = field(default_factory=list)
    allocas: list[str] = field(default_factory=list)
    vars: dict[Var, str] = field(default_factory=dict)
    depths: dict[Var, int] = field(default_factory=dict)
    buffers: dict[Buffer, str] = field(default_factory=dict)
    registers: dict[Buffer, dict[tuple[tuple[int, ...], int], str]] = field(default_factory=dict)
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

    def enter(self, block: str) -> None:
        """Begin another basic block, in which no load is known."""
        self.block = block
        self.loaded.clear()

    def written(self, buffer: Buffer | None) -> None:
        """Forget the loads of a buffer that is written to; None stands for any memory."""
        if buffer is None:
            self.loaded.clear()
        elif any(key[0] is buffer for key in self.loaded):
            self.loaded = {k: v for k, v in self.loaded.items() if k[0] is not buffer}


class Lines:
    """What every part of the emitter shares: the function's state and ways to add a line."""

    def __init__(self, func: PrimFunc, target: Target):
        self.func, self.target = func, target
        x86 = target.arch == "x86_64"
        self.rounds = not x86 or target.has("sse4.1")
        self.converts_half = not x86 or target.has("f16c")
        self.done: list[str] = []
        self.declares: set[str] = set()
        self.counter = 0
        # Instructions of the value that is being emitted -> their results; None between values.
        self._known: dict[str, str] | None = None
        self._calls = 0  # number of calls of C functions so far
        self._state = FunctionState({})

    def _open_scope(self) -> Scope:
        scope = Scope(len(self._state.scopes))
        self._state.scopes.append(scope)
        return scope

    def _close_scope(self) -> Scope:
        return self._state.scopes.pop()

    def _fresh(self) -> str:
        self.counter += 1
        return f"%t{self.counter}"

    def _emit(self, line: str, scope: Scope | None = None) -> None:
        (scope or self._state.scopes[-1]).lines.append(line)

    def _line(self, text: str, scope: Scope | None = None) -> str:
        known = self._known if scope is None else None
        if known is not None and text in known:
            return known[text]
        name = self._fresh()
        self._emit(f"  {name} = {text}", scope)
        if known is not None:
            known[text] = name
        return name

    def _label(self) -> str:
        self.counter += 1
        return f"b{self.counter}"

    def _scope_of(self, e: Expr) -> Scope:
        """The outermost open scope in which `e` can be computed."""
        st = self._state
        depth = 0
        for x in walk(e):
            if isinstance(x, Var):
                depth = max(depth, st.depths[x])
            elif not _is_index_arithmetic(x):
                return st.scopes[-1]  # such an expression is emitted where it is used
        return st.scopes[depth]

    def _splat(self, v: str, dtype: DType, lanes: int) -> str:
        t, tv = llvm_type(dtype), llvm_type(dtype.with_lanes(lanes))
        if not v.startswith("%"):
            return "<" + ", ".join([f"{t} {v}"] * lanes) + ">"
        key = ("splat", v, lanes)
        for scope in self._state.scopes:
            if key in scope.memo:
                return scope.memo[key]
        one = self._line(f"insertelement {tv} poison, {t} {v}, i32 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        out = self._line(f"shufflevector {tv} {one}, {tv} poison, {mask}")
        self._state.scopes[-1].memo[key] = out
        return out

    def _call(self, name: str, dtype: DType, args: list[str], scope: Scope | None = None) -> str:
        t = llvm_type(dtype)
        full = f"@llvm.{name}.{suffix(dtype)}"
        self.declares.add(f"declare {t} {full}({', '.join([t] * len(args))})")
        return self._line(f"call {t} {full}({', '.join(f'{t} {a}' for a in args)})", scope)


def _is_index_arithmetic(e: Expr) -> bool:
    """Whether `Addresses.index` computes this node itself, in any scope."""
    match e:
        case Binary(op, a, _):
            return op not in COMPARE or a.dtype == INT64
        case Unary() | Select() | IntImm():
            return True
    return False
