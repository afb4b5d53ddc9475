"""Loads, stores and buffers of WGSL, which has no pointers into storage.

A parameter is a variable of the module, `array<f32>`; a view is its name and where it begins.
In registers and in memory of a block an element has a variable of 32 bits to itself. In storage,
elements of 8 and 16 bits are packed into words: where they are written, the words are atomic, so
that threads may write neighbours.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.c_like import memory
from tensorkiln.codegen.c_like.code import SUM, Code, call, infix
from tensorkiln.codegen.c_like.memory import stored
from tensorkiln.codegen.c_like.types import cast, define, type_name
from tensorkiln.codegen.c_like.writer import Expressions, FileText, Statements, TextWriter
from tensorkiln.codegen.expand.offsets import elements
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.dtype import UINT32, DType
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.stmt import Alloc, MatchBuffer, Prefetch, PrimFunc, Store, Sync
from tensorkiln.ir.visit import loads, stmt_exprs, walk_stmt


class WgslWriter(TextWriter):
    """A writer that knows the source of each view, and which parameters a function writes."""

    def __init__(
        self,
        func: PrimFunc,
        original: PrimFunc,
        file: FileText,
        expressions: Expressions,
        statements: Statements,
    ):
        super().__init__(func, original, file, expressions, statements)
        self.views: dict[Buffer, tuple[Buffer, str]] = {}
        self.storage = set(func.buffers)
        self.written = self.storage - self.read_only
        parts = list(walk_stmt(func.body))
        loaded = {x.buffer for s in parts for e in stmt_exprs(s) for x in loads(e)}
        views = {s.source for s in parts if isinstance(s, MatchBuffer)}
        # Threads of a block may hand on what is in storage.
        self.shares_storage = bool(self.written & (loaded | views))

    def root(self, b: Buffer) -> tuple[Buffer, str]:
        """(the buffer that `b` is or is a view of, the offset at which it begins, or "" if that is
        0)"""
        return self.views.get(b, (b, ""))


def binding_type(dtype: DType, written: bool) -> str:
    """The type of the elements of a parameter."""
    if dtype.bits >= 32:
        return dtype.row.wgsl
    return "atomic<u32>" if written else "u32"


def _is_packed(w: WgslWriter, b: Buffer) -> bool:
    return b in w.storage and b.dtype.bits < 32


def _place(w: TextWriter, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, str]:
    """The parameter or array of an element, and its offset."""
    assert isinstance(w, WgslWriter)
    offset_text, _ = memory.offset(w, buf, indices)
    root, start = w.root(buf)
    if start:
        offset_text = start if offset_text == "0" else infix("+", start, offset_text, SUM)
    if _is_packed(w, root) and not (offset_text.isidentifier() or offset_text.isdigit()):
        name = w.name("at")
        w.declare("i32", name, offset_text)
        offset_text = name
    return root, offset_text


def _load(w: TextWriter, e: Load) -> str:
    if e.buffer in w.state.registers:
        return memory.register(w, e.buffer, e.indices, e.dtype)
    buf, offset_text = _place(w, e.buffer, e.indices)
    assert isinstance(w, WgslWriter)
    name = w.state.names[buf]
    if not _is_packed(w, buf):
        return Code(f"{name}[{offset_text}]")
    word = f"{name}[{_word(offset_text, e.dtype)}]"
    if buf in w.written:
        word = call("atomicLoad", f"&{word}")
    number = call(_unpacked(w, stored(e.dtype)), word, offset_text)
    return infix("!=", number, "0u", 4) if e.dtype.is_bool else number


def _word(offset_text: str, dtype: DType) -> str:
    return f"{offset_text} >> {(32 // dtype.bits).bit_length() - 1}"


def _bit(offset_text: str, dtype: DType) -> str:
    """The bit of a word at which an element begins."""
    return f"u32({offset_text} & {32 // dtype.bits - 1}) * {dtype.bits}u"


def _unpacked(w: TextWriter, dtype: DType) -> str:
    """The function that takes an element out of its word."""
    name, t = f"{type_name(dtype)}_of_word", w.type(dtype)
    value = f"extractBits({cast(w, 'word', DType(f'{dtype.row.kind}32'))}, "
    value += f"{_bit('at', dtype)}, {dtype.bits}u)"
    parameters = [("u32", "word"), ("i32", "at")]
    return w.helper(name, lambda: define(w, t, name, parameters, [], value))


def _store(w: TextWriter, s: Store) -> None:
    if s.buffer in w.state.registers:
        memory.STATEMENTS[Store](w, s)
        return
    value = w.value(s.value)
    buf, offset_text = _place(w, s.buffer, s.indices)
    assert isinstance(w, WgslWriter)
    name, dtype = w.state.names[buf], s.value.dtype
    if not _is_packed(w, buf):
        w.line(f"{name}[{offset_text}] = {value};")
        return
    # The element may be part of the value: it is cleared afterwards.
    variable, shift, mask = w.fresh(), w.name("shift"), (1 << dtype.bits) - 1
    w.declare("u32", shift, _bit(offset_text, dtype))
    bits = infix("&", cast(w, value, UINT32), f"{mask}u", SUM) if dtype.row.kind == "int" else None
    w.declare("u32", variable, bits or cast(w, value, UINT32))
    word = f"&{name}[{_word(offset_text, dtype)}]"
    w.line(f"atomicAnd({word}, ~({mask}u << {shift}));")
    w.line(f"atomicOr({word}, {variable} << {shift});")


def _alloc(w: TextWriter, s: Alloc) -> None:
    buf, shared = s.buffer, s.buffer.scope == "shared"
    if buf.scope == "register":
        memory.STATEMENTS[Alloc](w, s)
        return
    size = elements(buf)
    if size is None:
        raise InternalError(f"{w.func.name}: buffer {buf.name} has a symbolic size")
    name = w.state.names[buf] = w.name_of(buf, 0 if shared else -1)
    t = w.dialect.array.format(type=w.dialect.element(buf.dtype), size=max(size, 1))
    if shared:
        w.shared.append(f"var<workgroup> {name}: {t};")
    else:
        w.line(f"var {name}: {t};")
    w.statement(s.body)


def _match_buffer(w: TextWriter, s: MatchBuffer) -> None:
    assert isinstance(w, WgslWriter)
    offset_text, _ = memory.offset(w, s.source, s.indices)
    root, start = w.root(s.source)
    name = w.name("start")
    w.declare("i32", name, infix("+", start, offset_text, SUM) if start else offset_text)
    w.views[s.buffer] = root, name
    w.statement(s.body)


def _prefetch(w: TextWriter, s: Prefetch) -> None:
    """WGSL has no prefetch."""


def _sync(w: TextWriter, s: Sync) -> None:
    """A barrier for memory of the block and, if threads share storage, one for storage."""
    assert isinstance(w, WgslWriter)
    w.line(w.dialect.barrier)
    if w.shares_storage:
        w.line("storageBarrier();")


EXPRESSIONS: Expressions = {Load: _load}
STATEMENTS: Statements = {
    Store: _store,
    Alloc: _alloc,
    MatchBuffer: _match_buffer,
    Prefetch: _prefetch,
    Sync: _sync,
}
