"""Loads and stores, addresses as values, local buffers, views and prefetches.

A buffer in registers is one variable per element or vector; its indices are constant.
"""

from __future__ import annotations

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.c_like.code import SUM, Code, infix, prefix
from tensorkiln.codegen.c_like.conversions import nonzero
from tensorkiln.codegen.c_like.types import from_mask, splat
from tensorkiln.codegen.c_like.writer import Expressions, Statements, TextWriter
from tensorkiln.codegen.expand.offsets import elements, register_key
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.dtype import BOOL, INT64, DType
from tensorkiln.ir.expr import Broadcast, Expr, binary, cast
from tensorkiln.ir.stmt import Alloc, MatchBuffer, Prefetch, Store


def stored(dtype: DType) -> DType:
    """The type of lanes in memory: bool takes a byte, and 16-bit floats are their bits."""
    return DType(dtype.row.stored.name, dtype.lanes)


# ---- addresses ---------------------------------------------------------------------------------


def offset(w: TextWriter, buf: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int | None]:
    """The offset of lane 0 in elements, and the distance between lanes; None if it varies."""
    flat, stride, dtype = w.words.offset(buf, indices)
    if stride is None:
        return "", None
    total: str = ""
    for scale, e in flat.terms:
        x = w.value(cast(e, dtype))  # in full where C would compute with fewer bits
        if not total:
            total = x if scale == 1 else _times(w, x, scale)
            continue
        sign = "-" if scale < 0 else "+"
        total = infix(sign, total, _times(w, x, abs(scale)), SUM)
    constant = flat.constant
    if not total:
        return w.dialect.integer(constant, dtype), stride
    if constant:
        size = w.dialect.integer(abs(constant), dtype)
        total = infix("-" if constant < 0 else "+", total, size, SUM)
    return total, stride


def _times(w: TextWriter, x: str, scale: int) -> str:
    if scale == 1:
        return x
    return infix("*", x, w.dialect.integer(scale, INT64), 7)


def pointer(w: TextWriter, buf: Buffer, offset_text: str) -> str:
    """The address of the element at an offset."""
    name = w.state.names[buf]
    return name if offset_text == "0" else infix("+", name, offset_text, SUM)


# ---- registers ---------------------------------------------------------------------------------


def register(w: TextWriter, buf: Buffer, indices: tuple[Expr, ...], dtype: DType) -> str:
    """The variable of an element or vector of a buffer in registers."""
    key, slots = register_key(w.func.name, buf, indices), w.state.registers[buf]
    variable = slots.get((key, dtype.lanes))
    if variable is None:
        last = key[-1] // dtype.lanes if key and dtype.lanes > 1 else (key[-1] if key else 0)
        parts = [*key[:-1], *([last] if key and (last or len(buf.shape) == 1) else [])]
        variable = w.name("_".join([w.printed(buf), *map(str, parts)]), w.state.homes[buf])
        slots[key, dtype.lanes] = variable
    return variable


# ---- loads -------------------------------------------------------------------------------------


def _load(w: TextWriter, e: Load) -> str:
    dtype, buf = e.dtype, e.buffer
    if buf in w.state.registers:
        return register(w, buf, e.indices, dtype)
    offset_text, stride = offset(w, buf, e.indices)
    if dtype.lanes == 1:
        text: str = Code(f"{w.state.names[buf]}[{offset_text}]")
        return infix("!=", text, "0", 4) if dtype.is_bool else text
    wide = stored(dtype)
    if stride == 1 and not _by_element(w, dtype):
        text = _load_vector(w, wide, pointer(w, buf, offset_text))
    elif stride == 0:
        text = splat(w, Code(f"{w.state.names[buf]}[{offset_text}]"), wide)
    else:
        places = _places(w, buf, e.indices, dtype.lanes, offset_text, stride)
        places += [places[-1]] * (w.count(dtype) - len(places))
        text = Code(w.dialect.vector_of.format(type=w.type(wide), items=", ".join(places)))
    return nonzero(w, text, wide) if dtype.is_bool else text


def _by_element(w: TextWriter, dtype: DType) -> bool:
    """Whether vectors of contiguous elements are read and written one element at a time: vectors
    with unused lanes, because a function for them would be needed for each kind of pointer."""
    return bool(w.dialect.spaces) and dtype.lanes != w.count(dtype)


def _load_vector(w: TextWriter, dtype: DType, p: str) -> str:
    """A vector at p. One with unused lanes reads only the elements that it uses."""
    name = _access(w, "load", w.dialect.load_vector, dtype)
    text = w.dialect.load.format(name=name, type=w.type(dtype), count=w.count(dtype), p=p)
    return Code(text)


def _access(w: TextWriter, verb: str, template: str, dtype: DType) -> str:
    """The name of the function that reads or writes a vector; empty if the language has an
    operation for it."""
    t, count = w.type(dtype), w.count(dtype)
    if not template:
        return ""
    name = f"{verb}_{t}"
    if dtype.lanes == count:
        w.memory_type(dtype)
        return w.helper(
            name,
            lambda: template.format(type=t, name=name, element=w.dialect.scalar(dtype.element)),
        )
    name = f"{verb}_{dtype.lanes}_of_{t}"
    element, lane = w.dialect.scalar(dtype.element), w.dialect.lane
    if verb == "load":
        items = ", ".join(f"p[{min(k, dtype.lanes - 1)}]" for k in range(count))
        vector = w.dialect.vector_of.format(type=t, items=items)
        text = (
            f"{w.function_of(name)} {t} {name}(const {element} *p)\n{{\n    return {vector};\n}}\n"
        )
    else:
        body = "".join(f"    p[{k}] = {lane.format(x='x', i=k)};\n" for k in range(dtype.lanes))
        text = f"{w.function_of(name)} void {name}({element} *p, {t} x)\n{{\n{body}}}\n"
    return w.helper(name, lambda: text)


def _places(
    w: TextWriter,
    buf: Buffer,
    indices: tuple[Expr, ...],
    lanes: int,
    offset_text: str,
    stride: int | None,
) -> list[str]:
    """One element per lane, for accesses without a unit stride. `offset_text` and `stride` are what
    `offset` returned, whose values must be printed once only."""
    name = w.state.names[buf]
    if stride is not None:
        start, (_, _, dtype) = w.name("start"), w.words.offset(buf, indices)
        w.line(f"const {w.type(dtype)} {start} = {offset_text};")
        return [
            f"{name}[{start} + {lane * stride}]" if lane else f"{name}[{start}]"
            for lane in range(lanes)
        ]
    wide = INT64.with_lanes(lanes)
    total: Expr | None = None
    for i, s in zip(indices, buf.strides, strict=True):
        vector = cast(i if i.dtype.lanes > 1 else Broadcast(i, lanes), wide)
        term = binary("mul", vector, Broadcast(s, lanes))
        total = term if total is None else binary("add", total, term)
    assert total is not None
    places = w.name("places")
    w.line(f"const {w.type(wide)} {places} = {w.value(total)};")
    return [f"{name}[{w.dialect.lane.format(x=places, i=lane)}]" for lane in range(lanes)]


def _address_of(w: TextWriter, e: AddressOf) -> str:
    offset_text, _ = offset(w, e.buffer, e.indices)
    text = pointer(w, e.buffer, offset_text)
    return prefix("(void *)", text) if e.buffer in w.read_only else text


# ---- stores ------------------------------------------------------------------------------------


def _store(w: TextWriter, s: Store) -> None:
    dtype, buf = s.value.dtype, s.buffer
    if buf in w.state.registers:
        value = w.value(s.value)
        if dtype.is_bool and dtype.lanes > 1:
            value = _mask8(w, value, s.value)
        w.line(f"{register(w, buf, s.indices, dtype)} = {value};")
        return
    value = w.value(s.value)
    name = w.state.names[buf]
    if dtype.lanes == 1:
        offset_text, _ = offset(w, buf, s.indices)
        byte = f"({w.dialect.element(BOOL)})"
        text = prefix(byte, value) if dtype.is_bool else value
        w.line(f"{name}[{offset_text}] = {text};")
        return
    wide = stored(dtype)
    if dtype.is_bool:
        value = from_mask(w, value, w.mask_bits(s.value), wide)
    offset_text, stride = offset(w, buf, s.indices)
    if stride == 1 and not _by_element(w, dtype):
        name, p = _access(w, "store", w.dialect.store_vector, wide), pointer(w, buf, offset_text)
        w.line(w.dialect.store.format(name=name, p=p, x=value, count=w.count(wide)))
        return
    variable = w.fresh()
    w.line(f"const {w.type(wide)} {variable} = {value};")
    for lane, place in enumerate(_places(w, buf, s.indices, dtype.lanes, offset_text, stride)):
        w.line(f"{place} = {w.dialect.lane.format(x=variable, i=lane)};")


def _mask8(w: TextWriter, value: str, e: Expr) -> str:
    """Masks in registers have 8 bits per lane."""
    from tensorkiln.codegen.c_like.types import as_mask

    return as_mask(w, value, w.mask_bits(e), 8, e.dtype.lanes)


def _prefetch(w: TextWriter, s: Prefetch) -> None:
    offset_text, _ = offset(w, s.buffer, s.indices)
    if w.dialect.prefetch:
        place = pointer(w, s.buffer, offset_text)
        w.line(w.dialect.prefetch.format(p=place, write=int(s.write), locality=s.locality))


# ---- buffers -----------------------------------------------------------------------------------


def _alloc(w: TextWriter, s: Alloc) -> None:
    buf, st = s.buffer, w.state
    if buf.scope == "register":
        st.registers[buf], st.homes[buf] = {}, len(st.blocks) - 1
        before = len(st.lines)
        w.statement(s.body)
        _declare(w, buf, before)
        return
    size = elements(buf)
    if size is None:
        raise InternalError(f"{w.func.name}: local buffer {buf.name} has a symbolic size")
    name = st.names[buf] = w.name_of(buf)
    element = w.dialect.element(buf.dtype)
    w.line(w.dialect.array.format(type=element, name=name, size=max(size, 1), align=buf.align))
    line_index = len(w.state.lines)
    w.statement(s.body)
    if not w.is_read(name, line_index):
        w.state.lines.insert(line_index, w.indented(w.dialect.discard.format(x=name)))


def _declare(w: TextWriter, buf: Buffer, before: int) -> None:
    """Declare the variables of a buffer in registers, before the lines that use them."""
    names: dict[str, list[str]] = {}
    for (_, lanes), name in w.state.registers[buf].items():
        dtype = buf.dtype.with_lanes(lanes)
        t = w.mask_type(8, lanes) if dtype.is_bool and lanes > 1 else w.type(dtype)
        names.setdefault(t, []).append(name)
    unread = [
        w.indented(w.dialect.discard.format(x=v))
        for variables in names.values()
        for v in variables
        if not w.is_read(v, before)
    ]
    w.state.lines += unread
    w.state.lines[before:before] = [
        w.indented(line)
        for t, variables in names.items()
        for line in w.dialect.variables(t, variables)
    ]


def _match_buffer(w: TextWriter, s: MatchBuffer) -> None:
    offset_text, _ = offset(w, s.source, s.indices)
    if s.source in w.read_only:
        w.read_only.add(s.buffer)
    place = pointer(w, s.source, offset_text)
    name = w.state.names[s.buffer] = w.name_of(s.buffer)
    at_line = len(w.state.lines)
    w.line("")
    w.statement(s.body)
    declared = f"{w.pointer_to(s.buffer)}const {name} = {place};"
    if not w.is_used(name, at_line + 1):  # nothing that was printed reads or writes it
        declared = w.dialect.discard.format(x=f"({place})")
    w.state.lines[at_line] = w.indented(declared)


EXPRESSIONS: Expressions = {Load: _load, AddressOf: _address_of}
STATEMENTS: Statements = {
    Store: _store,
    Prefetch: _prefetch,
    Alloc: _alloc,
    MatchBuffer: _match_buffer,
}
