"""Turn broadcasts of adjacent elements of memory into lanes of one vector.

    y0 = fma(Broadcast(x[k * 4]), w0, y0)              y0 = fma(lane 0 of x[k * 4 :], w0, y0)
    ...                                          ->    ...
    y3 = fma(Broadcast(x[k * 4 + 3]), w3, y3)          y3 = fma(lane 3 of x[k * 4 :], w3, y3)

For processors that can multiply by one lane of a register, such as AArch64: a quarter of the loads
for float32. Only within consecutive stores to registers, between which no memory changes, and only
if all lanes are used, so that nothing is read that was not read before. Runs after
`unroll_function`.
"""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Binary, Broadcast, Expr, IntImm, Ramp, Shuffle, int_value
from tensorkiln.ir.stmt import PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import has_load, map_children, map_stmt, walk

_VECTOR_BYTES = 16
# Buffer, outer indices, and the last index without its constant term (None if there is only that).
_Place = tuple[Buffer, tuple[Expr, ...], Expr | None]


def by_lane(f: PrimFunc) -> PrimFunc:
    """`f` with such broadcasts turned into lanes; the same object if there are none."""
    body = _stmt(f.body)
    return f if body is f.body else replace(f, body=body)


def _stmt(s: Stmt) -> Stmt:
    if isinstance(s, Store):
        return s
    s = map_stmt(s, lambda e: e, _stmt)
    if not isinstance(s, Seq):
        return s
    stmts: list[Stmt] = []
    run: list[Store] = []
    for t in s.stmts:
        if isinstance(t, Store) and t.buffer.scope == "register":
            run.append(t)
        else:
            stmts += [*_run(run), t]
            run = []
    stmts += _run(run)
    return s if all(a is b for a, b in zip(stmts, s.stmts, strict=True)) else seq(*stmts)


def _run(stores: list[Store]) -> list[Store]:
    """Rewrite consecutive stores to registers."""
    offsets_of_place: dict[_Place, set[int]] = {}
    for load in filter(None, (_broadcast(e) for s in stores for e in walk(s.value))):
        place, offset = _split(load)
        offsets_of_place.setdefault(place, set()).add(offset)
    vectors: dict[tuple[_Place, int], int] = {}  # an offset -> that of the vector's first lane
    for place, offsets in offsets_of_place.items():
        lanes = _lanes(place[0])
        for first in sorted(offsets):
            group = [(place, first + lane) for lane in range(lanes)]
            if all(element[1] in offsets and element not in vectors for element in group):
                vectors |= dict.fromkeys(group, first)
    if not vectors:
        return stores

    def rewritten(e: Expr) -> Expr:
        load = _broadcast(e)
        if load is None:
            return map_children(e, rewritten)
        place, offset = _split(load)
        first = vectors.get((place, offset))
        if first is None:
            return e
        lanes = _lanes(load.buffer)
        ramp = Ramp(_index(place[2], first), IntImm(1), lanes)
        vector = Load(load.buffer, (*load.indices[:-1], ramp))
        return Shuffle(vector, vector, (offset - first,) * lanes)

    return [replace(s, value=rewritten(s.value)) for s in stores]


def _broadcast(e: Expr) -> Load | None:
    """The load that `e` broadcasts to a whole vector register, if it reads a float32 or float64
    from memory with unit stride; else None."""
    if not isinstance(e, Broadcast) or not isinstance(e.a, Load):
        return None
    x = e.a.buffer
    floats = x.dtype.is_float and x.dtype.bits >= 32
    if x.scope == "register" or not floats or e.lanes != _lanes(x):
        return None
    if any(map(has_load, e.a.indices)):  # a register may be loaded that changes between the stores
        return None
    return e.a if int_value(x.strides[-1]) == 1 else None


def _lanes(b: Buffer) -> int:
    return _VECTOR_BYTES // b.dtype.bytes


def _split(load: Load) -> tuple[_Place, int]:
    """An access without the constant term of its last index, and that term: 3 for `x[i, k + 3]`."""
    *outer, last = load.indices
    base: Expr | None = last
    offset = 0
    if isinstance(last, IntImm):
        base, offset = None, last.value
    elif isinstance(last, Binary) and last.op == "add" and isinstance(last.b, IntImm):
        base, offset = last.a, last.b.value
    return (load.buffer, tuple(outer), base), offset


def _index(base: Expr | None, offset: int) -> Expr:
    if base is None:
        return IntImm(offset)
    return base + offset if offset else base
