"""Loads and stores, addresses as values, local buffers, views and prefetches.

A buffer in registers is one stack slot per element or vector, which LLVM turns into a register; its
indices are constant.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.expand.offsets import elements, register_key
from tensorkiln.codegen.llvm.addresses import address, alignment, base_address, lane_pointers
from tensorkiln.codegen.llvm.types import llvm_type, memory_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter, Statements
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.stmt import Alloc, MatchBuffer, Prefetch, Store


def _register(w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...], dtype: DType) -> str:
    """The stack slot of an element or vector of a buffer in registers."""
    key, slots = register_key(w.func.name, buf, indices), w.state.registers[buf]
    found = slots.get((key, dtype.lanes))
    if found is None:
        found = w.fresh()
        w.state.allocas.append(f"  {found} = alloca {llvm_type(dtype)}")
        slots[key, dtype.lanes] = found
    return found


# ---- loads -------------------------------------------------------------------------------------


def _load(w: KernelWriter, e: Load) -> str:
    dtype, buf = e.dtype, e.buffer
    if buf in w.state.registers:
        slot = _register(w, buf, e.indices, dtype)
        return w.line(f"load {llvm_type(dtype)}, ptr {slot}")
    base, offset, stride = base_address(w, buf, e.indices)
    if stride is None:
        return _load_from(w, e, base, stride)
    key = (buf, base, offset, f"{dtype} {stride}")
    found = w.state.loaded.get(key)
    if found is None:
        ptr = base
        if offset:
            ptr = w.line(f"getelementptr inbounds i8, ptr {base}, i64 {offset}")
        found = w.state.loaded[key] = _load_from(w, e, ptr, stride)
    return found


def _load_from(w: KernelWriter, e: Load, ptr: str, stride: int | None) -> str:
    dtype, buf = e.dtype, e.buffer
    t, element = memory_type(dtype), memory_type(dtype.element)
    if dtype.lanes == 1 or stride == 1:
        v = w.line(f"load {t}, ptr {ptr}, align {alignment(buf, e.indices, w.aligns.get(buf, 0))}")
    elif stride == 0:
        x = w.line(f"load {element}, ptr {ptr}")
        v = w.splat(x, DType("uint8") if dtype.is_bool else dtype.element, dtype.lanes)
    else:
        v = "poison"
        for lane, p in enumerate(lane_pointers(w, buf, e.indices, dtype.lanes)):
            x = w.line(f"load {element}, ptr {p}")
            v = w.line(f"insertelement {t} {v}, {element} {x}, i32 {lane}")
    if dtype.is_bool:
        v = w.line(f"icmp ne {t} {v}, {'0' if dtype.lanes == 1 else 'zeroinitializer'}")
    return v


def _address_of(w: KernelWriter, e: AddressOf) -> str:
    return address(w, e.buffer, e.indices)[0]


# ---- stores ------------------------------------------------------------------------------------


def _store(w: KernelWriter, s: Store) -> None:
    value, dtype = w.value(s.value), s.value.dtype
    if s.buffer in w.state.registers:
        slot = _register(w, s.buffer, s.indices, dtype)
        w.emit(f"  store {llvm_type(dtype)} {value}, ptr {slot}")
        return
    ptr, stride = address(w, s.buffer, s.indices)
    whole = dtype.lanes == 1 or stride == 1
    pointers = [] if whole else [*lane_pointers(w, s.buffer, s.indices, dtype.lanes)]
    # Only now: the indices may have loaded from this buffer.
    w.state.written(None if w.aliases else s.buffer)
    t = memory_type(dtype)
    if dtype.is_bool:
        value = w.line(f"zext {llvm_type(dtype)} {value} to {t}")
    if whole:
        hint = ", !nontemporal !0" if s.nontemporal else ""
        align = alignment(s.buffer, s.indices, w.aligns.get(s.buffer, 0))
        w.emit(f"  store {t} {value}, ptr {ptr}, align {align}{hint}")
    for lane, p in enumerate(pointers):
        x = w.line(f"extractelement {t} {value}, i32 {lane}")
        w.emit(f"  store {memory_type(dtype.element)} {x}, ptr {p}")


def _prefetch(w: KernelWriter, s: Prefetch) -> None:
    ptr, _ = address(w, s.buffer, s.indices)
    w.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    how = f"i32 {int(s.write)}, i32 {s.locality}, i32 1"
    w.emit(f"  call void @llvm.prefetch.p0(ptr {ptr}, {how})")


# ---- buffers -----------------------------------------------------------------------------------


def _alloc(w: KernelWriter, s: Alloc) -> None:
    buf, st = s.buffer, w.state
    if buf.scope == "register":
        st.registers[buf] = {}
    else:
        size = elements(buf)
        if size is None:
            raise InternalError(f"{w.func.name}: local buffer {buf.name} has a symbolic size")
        name = st.buffers[buf] = w.fresh()
        array = f"[{size} x {memory_type(buf.dtype)}]"
        st.allocas.append(f"  {name} = alloca {array}, align {buf.align}")
    w.statement(s.body)


def _match_buffer(w: KernelWriter, s: MatchBuffer) -> None:
    w.state.buffers[s.buffer] = address(w, s.source, s.indices)[0]
    w.state.views[s.buffer] = len(w.state.scopes) - 1
    w.statement(s.body)


EXPRESSIONS: Expressions = {Load: _load, AddressOf: _address_of}
STATEMENTS: Statements = {
    Store: _store,
    Prefetch: _prefetch,
    Alloc: _alloc,
    MatchBuffer: _match_buffer,
}
