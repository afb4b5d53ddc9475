"""Loads and stores, addresses as values, local buffers, views and prefetches.

A buffer in registers is one stack slot per element or vector, which LLVM turns into a register; its
indices are constant.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.expand.offsets import elements, register_key
from tensorkiln.codegen.llvm import tiles
from tensorkiln.codegen.llvm.addresses import address, alignment_of, base_address, lane_pointers
from tensorkiln.codegen.llvm.lookup import looked_up
from tensorkiln.codegen.llvm.types import llvm_type, memory_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter, Statements
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr
from tensorkiln.ir.stmt import Alloc, MatchBuffer, Prefetch, Store
from tensorkiln.ir.tiles import is_tile, works_on_tiles

# The most elements from lane to lane for which lanes are picked from vectors.
_MOST_STRIDE = 4


def _register(w: KernelWriter, buf: Buffer, indices: tuple[Expr, ...], dtype: DType) -> str:
    """The stack slot of an element or vector of a buffer in registers."""
    key, slots = register_key(w.func.name, buf, indices), w.state.registers[buf]
    slot = slots.get((key, dtype.lanes))
    if slot is None:
        slot = w.fresh()
        w.state.allocas.append(f"  {slot} = alloca {llvm_type(dtype)}")
        slots[key, dtype.lanes] = slot
    return slot


# ---- loads -------------------------------------------------------------------------------------


def _load(w: KernelWriter, e: Load) -> str:
    dtype, buf = e.dtype, e.buffer
    if buf in w.state.registers:
        slot = _register(w, buf, e.indices, dtype)
        return w.line(f"load {llvm_type(dtype)}, ptr {slot}")
    register = looked_up(w, e)
    if register is not None:
        return register
    base, offset, stride = base_address(w, buf, e.indices)
    if stride is None:
        return _load_from(w, e, base, stride)
    key = (buf, base, offset, f"{dtype} {stride}")
    register = w.state.loaded.get(key)
    if register is None:
        ptr = base
        if offset:
            ptr = w.line(f"getelementptr inbounds i8, ptr {base}, i64 {offset}")
        register = w.state.loaded[key] = _load_from(w, e, ptr, stride)
    return register


def _load_from(w: KernelWriter, e: Load, ptr: str, stride: int | None) -> str:
    dtype, buf = e.dtype, e.buffer
    t, element = memory_type(dtype), memory_type(dtype.element)
    if dtype.lanes == 1 or stride == 1:
        v = w.line(f"load {t}, ptr {ptr}, align {alignment_of(w, buf, e.indices)}")
    elif stride == 0:
        x = w.line(f"load {element}, ptr {ptr}")
        v = w.splat(x, DType("uint8") if dtype.is_bool else dtype.element, dtype.lanes)
    elif stride is not None and _by_vectors(w, dtype, stride):
        v = _strided(w, t, ptr, stride, dtype)
    else:
        v = "poison"
        for lane, p in enumerate(lane_pointers(w, buf, e.indices, dtype.lanes)):
            x = w.line(f"load {element}, ptr {p}")
            v = w.line(f"insertelement {t} {v}, {element} {x}, i32 {lane}")
    if dtype.is_bool:
        v = w.line(f"icmp ne {t} {v}, {'0' if dtype.lanes == 1 else 'zeroinitializer'}")
    return v


def _by_vectors(w: KernelWriter, dtype: DType, stride: int) -> bool:
    """Whether lanes that are `stride` elements apart are picked from whole vectors. That takes a
    load and a shuffle for each vector, where otherwise each lane takes a load and an insertion."""
    vectors = w.target.vector_lanes("float32") > 1
    return vectors and dtype.lanes >= 4 and 2 <= stride <= _MOST_STRIDE


def _strided(w: KernelWriter, t: str, ptr: str, stride: int, dtype: DType) -> str:
    """Lanes that are `stride` elements apart, from `ptr` on. Nothing is read behind the last of
    them."""
    lanes = dtype.lanes
    size = dtype.bytes
    last = (lanes - 1) * (stride - 1)  # where the last vector begins
    vector, have = "poison", -1  # the lanes up to `have` are in `vector`
    for k in range(stride):
        start = min(k * lanes, last)
        pointer = w.line(f"getelementptr i8, ptr {ptr}, i64 {start * size}")
        x = w.line(f"load {t}, ptr {pointer}, align {size}")
        last_lane = (start + lanes - 1) // stride
        places = [
            i if i <= have else lanes + i * stride - start if i <= last_lane else -1
            for i in range(lanes)
        ]
        mask = ", ".join(f"i32 {p}" if p >= 0 else "i32 poison" for p in places)
        vector = w.line(f"shufflevector {t} {vector}, {t} {x}, <{lanes} x i32> <{mask}>")
        have = last_lane
    return vector


def _address_of(w: KernelWriter, e: AddressOf) -> str:
    return address(w, e.buffer, e.indices)[0]


# ---- stores ------------------------------------------------------------------------------------


def _store(w: KernelWriter, s: Store) -> None:
    if works_on_tiles(s):
        tiles.store(w, s)
        return
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
        align = alignment_of(w, s.buffer, s.indices)
        w.emit(f"  store {t} {value}, ptr {ptr}, align {align}{hint}")
    for lane, p in enumerate(pointers):
        x = w.line(f"extractelement {t} {value}, i32 {lane}")
        w.emit(f"  store {memory_type(dtype.element)} {x}, ptr {p}")


def _prefetch(w: KernelWriter, s: Prefetch) -> None:
    ptr, _ = address(w, s.buffer, s.indices)
    w.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    hints = f"i32 {int(s.write)}, i32 {s.locality}, i32 1"
    w.emit(f"  call void @llvm.prefetch.p0(ptr {ptr}, {hints})")


# ---- buffers -----------------------------------------------------------------------------------


def _alloc(w: KernelWriter, s: Alloc) -> None:
    buf, st = s.buffer, w.state
    if is_tile(buf):
        tiles.allocate(w, s)
        return
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
