"""Loads from a table of 256 bytes at indices that are bytes: by permutations of vectors."""

from __future__ import annotations

from tensorkiln.codegen.llvm.addresses import address
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.dtype import UINT8
from tensorkiln.ir.expr import Cast, IntImm, int_value

_SIZE, _LANES = 256, 64  # of the table, of a vector


def looked_up(w: KernelWriter, e: Load) -> str | None:
    """The lanes of a load from a table of 256 bytes; None for other loads, or where the target
    picks lanes from two vectors only in more steps than loads take."""
    buf, lanes = e.buffer, e.dtype.lanes
    if not (1 < lanes <= _LANES and e.dtype.row.is_byte):
        return None
    if len(buf.shape) != 1 or int_value(buf.shape[0]) != _SIZE:
        return None
    if w.target.arch != "x86_64" or not w.target.has("avx512vbmi"):
        return None
    (index,) = e.indices
    if not isinstance(index, Cast) or index.a.dtype.element != UINT8:
        return None
    base, _ = address(w, buf, (IntImm(0),))
    t = f"<{_LANES} x i8>"
    tables = []
    for k in range(_SIZE // _LANES):
        pointer = w.line(f"getelementptr inbounds i8, ptr {base}, i64 {k * _LANES}")
        tables.append(w.line(f"load {t}, ptr {pointer}, align 1"))
    places = _of_lanes(w, w.value(index.a), lanes, _LANES)
    name = "@llvm.x86.avx512.vpermi2var.qi.512"
    w.declares.add(f"declare {t} {name}({t}, {t}, {t})")
    # Each picks by the low seven bits of a place; the top one says which of both was meant.
    low, high = (
        w.line(f"call {t} {name}({t} {a}, {t} {places}, {t} {b})")
        for a, b in (tables[:2], tables[2:])
    )
    top = w.line(f"icmp slt {t} {places}, zeroinitializer")
    entries = w.line(f"select <{_LANES} x i1> {top}, {t} {high}, {t} {low}")
    return _of_lanes(w, entries, _LANES, lanes)


def _of_lanes(w: KernelWriter, v: str, have: int, lanes: int) -> str:
    """The first lanes of a vector of bytes; lanes that it lacks are undefined."""
    if have == lanes:
        return v
    mask = ", ".join(f"i32 {i}" if i < have else "i32 poison" for i in range(lanes))
    return w.line(
        f"shufflevector <{have} x i8> {v}, <{have} x i8> poison, <{lanes} x i32> <{mask}>"
    )
