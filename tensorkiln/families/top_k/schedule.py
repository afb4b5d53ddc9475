"""The first elements of each row, in order: the plain program, and its schedule.

The result's row is a heap while the row is read: the item that comes last is its root, which an
element replaces if it comes before it. Then the heap is sorted where it lies, or each item is put
behind as many as come before it. An item is one int64: the element's key above the complement of
its place where both fit, so that items are ordered as numbers; else its place, by which the keys
are looked up.

Elements are read in blocks. A block whose greatest key is not above the root's has nothing to give,
and of random elements nearly all are such. Where many elements are asked for, a key is found first
that all of the result are not below: of parts of the row, the k-th of their greatest keys.

Few elements of many short rows are found for several rows at once, each in a lane: the first ones
so far are in order, and an element goes past those that come before it, without a branch.

Roles of loops: "row"; "first" and "grow", which make the heap; "block"; "term", over the vectors of
a block, and "lane"; "seek", over its elements; "rest", over those after the last block; "sort";
"place", over the places that are the result. "rows", over several rows; "last", over rows after
these; "element" and "vector", over the elements of several rows and the first ones so far.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorkiln.arith import simplify
from tensorkiln.ir.buffer import Load, buffer
from tensorkiln.ir.dtype import INT64
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    Var,
    VectorReduce,
    as_expr,
    binary,
    cast,
    const,
    int_value,
    logical_and,
    maximum,
    minimum,
    reduce_identity,
    select,
)
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import If, Let, PrimFunc, Stmt, Store, While, seq
from tensorkiln.ops.places import key_type, order_key
from tensorkiln.schedule.build import PARALLEL_WORK, lane_ramp, loop, nest, within
from tensorkiln.schedule.group import Group, product
from tensorkiln.schedule.partial_sums import in_vectors
from tensorkiln.schedule.primitives import Schedule
from tensorkiln.schedule.register_tile import share
from tensorkiln.target import Target

_VECTORS = 4
_ZERO = (IntImm(0),)
_HALF = 32
# With n lanes of keys, _RANK_LANES or more, up to _RANKED * n * n packed items are put in order by
# counting, without branches.
_RANKED, _RANK_LANES = 2, 8
# For this many elements, a key that all of the result are at least as great as is found first. Then
# 390 of 8,400 random elements come before the root of a heap of 300; without it, 1,000 do. The
# memory for that is on the stack.
_SEVERAL, _MANY = 32, 4096
# Several rows at once, one in each of n lanes, take at most as long as heaps for the _FEW * n first
# of _SHORT * n * n elements: with 8 lanes 0.2 of their time for 8 of 64, 0.5 for 5 of 1,000.
_SHORT, _FEW = 16, 4


class _TopKRow:
    """The statements of one row; `lead` are its indices, all but the last."""

    def __init__(self, group: Group, lead: tuple[Expr, ...], lanes: int):
        call = group.anchor
        assert call is not None
        x = call.args[0].type
        assert isinstance(x, TensorType)
        self.group, self.lead, self.lanes = group, lead, lanes
        self.block = _VECTORS * lanes
        self.largest, self.k = bool(call.attrs.largest), int(call.attrs.k)
        self.n, self.type = x.shape[-1], key_type(x.dtype)
        self.x = group.element(call.args[0])
        n = int_value(self.n)
        self.packed = self.type.bits == _HALF and n is not None and n < 1 << _HALF - 1
        self.at = buffer("at", (1,), "int64", "register")
        self.going = buffer("going", (1,), "int64", "register")
        self.best = buffer("best", (lanes,), self.type, "register")
        self.floor = buffer("floor", (1,), "int64", "register")
        self.peaks = -(-2 * self.k // lanes)  # vectors of greatest keys; 0 if there is no floor
        several = self.packed and lanes > 1 and _SEVERAL <= self.k <= _MANY
        if not several or n is None or n < 2 * self.peaks * lanes:
            self.peaks = 0

    def stmt(self) -> Stmt:
        """Make the heap, offer it all other elements, sort it, and replace its items by places."""
        k, n = self.k, self.n
        stmts = [
            loop("j", k, lambda j: self.put(j, self.item(j)), "first"),
            loop("j", k // 2, lambda j: self.settle_from(k // 2 - 1 - j), "grow"),
        ]
        if self.peaks:
            stmts.append(self.find_floor())
        other_count = simplify(n - k)
        blocks = simplify(other_count // self.block)
        end = simplify(blocks * self.block + k)
        stmts += [
            loop("b", blocks, self.offer_block, "block"),
            loop("j", simplify(n - end), lambda j: self.offer(simplify(j + end)), "rest"),
        ]
        if self.packed and self.lanes >= _RANK_LANES and 1 < k <= _RANKED * self.lanes**2:
            stmts.append(self.rank())
        else:
            stmts.append(loop("j", max(k - 1, 0), self.take_last, "sort"))
            if self.packed:
                stmts.append(loop("j", k, lambda j: self.put(j, self.place(j)), "place"))
        floor = [self.floor] if self.peaks else []
        return within([self.at, self.going, self.best, *floor], *stmts)

    def find_floor(self) -> Stmt:
        """Find a key that no item of the result is below.

        The row is cut into more than k parts; `peaks` are the greatest keys of these. k of the
        peaks, which are keys of different elements, are not below the k-th greatest peak, so the
        k-th element of the row is not either.
        """
        lanes, count = self.lanes, self.peaks
        n = int_value(self.n)
        assert n is not None
        peaks = buffer("peaks", (count, lanes), self.type, "local")
        identity = reduce_identity("max", self.type)
        above = buffer("above", (lanes,), self.type, "register")
        all_lanes = (lane_ramp(lanes),) if lanes > 1 else _ZERO
        floor = Load(self.floor, _ZERO)

        def each(body: Callable[[Expr], Stmt]) -> Stmt:
            return loop("l", lanes, body, "lane")

        def raise_peak(q: Expr, r: Expr) -> Stmt:
            def one(lane: Expr) -> Stmt:
                key = self.key(simplify((q * count + r) * lanes + lane))
                return Store(peaks, (r, lane), maximum(Load(peaks, (r, lane)), key))

            return each(one)

        def try_bit(bit: Expr) -> Stmt:
            """Raise the key by one bit, if k peaks are not below."""
            key = Var("key")

            def seen(r: Expr) -> Stmt:
                def one(lane: Expr) -> Stmt:
                    high = binary("ge", Load(peaks, (r, lane)), cast(key, self.type))
                    increment = select(high, const(1, self.type), const(0, self.type))
                    return Store(above, (lane,), Load(above, (lane,)) + increment)

                return each(one)

            clear = each(lambda i: Store(above, (i,), const(0, self.type)))
            counts: Expr = Load(above, all_lanes)
            total = VectorReduce("add", counts) if lanes > 1 else counts
            enough = binary("ge", total, const(self.k, self.type))
            step = binary("shl", const(1), simplify(as_expr(_HALF - 1) - bit))
            body = seq(
                clear, loop("r", count, seen, "term"), If(enough, Store(self.floor, _ZERO, key))
            )
            return Let(key, floor + step, body)

        return within(
            [peaks, above],
            loop("r", count, lambda r: each(lambda i: Store(peaks, (r, i), identity)), "term"),
            loop(
                "q",
                n // (count * lanes),
                lambda q: loop("r", count, lambda r: raise_peak(q, r), "term"),
                "term",
            ),
            Store(self.floor, _ZERO, const(-(1 << _HALF - 1))),
            loop("bit", _HALF, try_bit, "seek"),
            Store(self.floor, _ZERO, binary("shl", floor, const(_HALF)) - 1),
        )

    def root(self) -> Expr:
        """The last item of the heap in order, which an item must come before to get in."""
        root = self.get(const(0))
        return maximum(root, Load(self.floor, _ZERO)) if self.peaks else root

    def rank(self) -> Stmt:
        """Sort packed items by counting: the place in an item goes to the position given by how
        many items come before it."""
        k, lanes = self.k, self.lanes // 2
        block = _VECTORS * lanes
        blocks = -(-k // block)
        items = buffer("items", (blocks * block,), INT64, "local")
        ranks = buffer("ranks", (blocks * block,), INT64, "local")
        count = buffer("count", (_VECTORS, lanes), INT64, "register")

        def each(name: str, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
            """`one(v, lane)` for the vectors of a block."""
            return loop(
                name,
                _VECTORS,
                lambda v: loop("l", lanes, lambda i: body(v, i), "lane", keep=True),
                "vector",
                keep=True,
            )

        def ranked(b: Expr) -> Stmt:
            def at(v: Expr, lane: Expr) -> Expr:
                return simplify(b * block + v * lanes + lane)

            def more(j: Expr, v: Expr, lane: Expr) -> Stmt:
                before = Load(items, (j,)) > Load(items, (at(v, lane),))
                new_count = Load(count, (v, lane)) + select(before, const(1), const(0))
                return Store(count, (v, lane), new_count)

            return seq(
                each("v", lambda v, i: Store(count, (v, i), const(0))),
                loop("j", k, lambda j: each("v", lambda v, i: more(j, v, i)), "seek", keep=True),
                each("v", lambda v, i: Store(ranks, (at(v, i),), Load(count, (v, i)))),
            )

        def give(j: Expr) -> Stmt:
            to = minimum(Load(ranks, (j,)), const(k - 1))
            return self.put(to, _place_in(Load(items, (j,))))

        copy = loop("j", k, lambda j: Store(items, (j,), self.get(j)), "place")
        spare = blocks * block - k
        fill = loop("j", spare, lambda j: Store(items, (simplify(j + k),), const(0)), "place")
        return within(
            [items, ranks, count],
            seq(copy, fill),
            loop("b", blocks, ranked, "rank"),
            loop("j", k, give, "place"),
        )

    # -- items

    def key(self, j: Expr) -> Expr:
        return order_key(self.x(*self.lead, j), self.largest)

    def item(self, j: Expr) -> Expr:
        if not self.packed:
            return j
        high = binary("shl", cast(self.key(j), INT64), const(_HALF))
        return binary("bitor", high, binary("bitxor", j, const((1 << _HALF) - 1)))

    def place(self, j: Expr) -> Expr:
        """The place in the item that lies at j."""
        return _place_in(self.get(j))

    def before(self, a: Expr, b: Expr) -> Expr:
        """Whether item `a` comes before item `b`."""
        if self.packed:
            return a > b
        first, second = self.key(self.inside(a)), self.key(self.inside(b))
        tie = logical_and(binary("eq", first, second), a < b)
        return binary("or", first > second, tie)

    def inside(self, a: Expr) -> Expr:
        """A place that was read from the heap, clamped so that no read is outside of the
        operand."""
        return minimum(maximum(a, const(0)), self.n - 1)

    def key_of(self, item: Expr) -> Expr:
        """The key of an item."""
        if self.packed:
            return cast(binary("shr", item, const(_HALF)), self.type)
        return self.key(self.inside(item))

    # -- the heap

    def get(self, j: Expr) -> Expr:
        return Load(self.group.out, self.group.store_index((*self.lead, simplify(j))))

    def put(self, j: Expr, item: Expr) -> Stmt:
        return Store(self.group.out, self.group.store_index((*self.lead, simplify(j))), item)

    def offer_block(self, b: Expr) -> Stmt:
        """Offer the elements of a block, if the greatest of them comes before the root."""
        start = simplify(b * self.block + self.k)
        lanes = self.lanes
        all_lanes = (lane_ramp(lanes),) if lanes > 1 else _ZERO

        def more(v: Expr, lane: Expr) -> Stmt:
            key = self.key(simplify(start + v * lanes + lane))
            return Store(self.best, (lane,), maximum(Load(self.best, (lane,)), key))

        identity = reduce_identity("max", self.type.with_lanes(lanes))
        vectors = self.block // lanes
        find = loop("v", vectors, lambda v: loop("l", lanes, lambda i: more(v, i), "lane"), "term")
        offers = loop("j", self.block, lambda j: self.offer(simplify(start + j)), "seek")
        lane_best: Expr = Load(self.best, all_lanes)
        best = VectorReduce("max", lane_best) if lanes > 1 else lane_best
        test = If(best > self.key_of(self.root()), offers)
        return seq(Store(self.best, all_lanes, identity), find, test)

    def offer(self, j: Expr) -> Stmt:
        """Replace the root by element j if that comes before it."""
        item, root = Var("item"), Var("root")
        settle = self.settle(const(0), item, as_expr(self.k))
        test = If(self.before(item, root), settle)
        return Let(item, self.item(j), Let(root, self.root(), test))

    def settle_from(self, j: Expr) -> Stmt:
        item = Var("item")
        return Let(item, self.get(j), self.settle(j, item, as_expr(self.k)))

    def take_last(self, j: Expr) -> Stmt:
        """Exchange the root and the end of the heap, which becomes shorter by one."""
        end = simplify(as_expr(self.k - 1) - j)
        item, root = Var("item"), Var("root")
        settle = self.settle(const(0), item, end)
        body = seq(self.put(end, root), settle)
        return Let(item, self.get(end), Let(root, self.get(const(0)), body))

    def settle(self, start: Expr, item: Expr, size: Expr) -> Stmt:
        """Sift an item down from a free position of a heap of `size` items: while a child comes
        after it, the child moves up."""
        position, going = Load(self.at, _ZERO), Load(self.going, _ZERO)
        left_child, right_child = Var("left"), Var("right")
        a, b, lower, child = Var("a"), Var("b"), Var("lower"), Var("child")
        up = seq(self.put(position, child), Store(self.at, _ZERO, lower))
        step = If(self.before(item, child), up, Store(self.going, _ZERO, const(0)))
        pick = self.before(a, b)
        body: Stmt = Let(
            child, select(pick, b, a), Let(lower, select(pick, right_child, left_child), step)
        )
        body = Let(a, self.get(left_child), Let(b, self.get(right_child), body))
        body = Let(right_child, minimum(left_child + 1, size - 1), body)
        body = Let(left_child, position * 2 + 1, body)
        condition = logical_and(going > 0, position * 2 + 1 < size)
        begin = seq(Store(self.at, _ZERO, start), Store(self.going, _ZERO, const(1)))
        return seq(begin, While(condition, body), self.put(position, item))


def _place_in(item: Expr) -> Expr:
    low = const((1 << _HALF) - 1)
    return binary("bitxor", binary("bitand", item, low), low)


def _rows(group: Group, lead: tuple[Expr, ...], first: Expr, lanes: int) -> Stmt:
    """The first elements of `lanes` rows, whose items are packed: those of indices `lead` and
    `first`, `first` + 1, ..."""
    call = group.anchor
    assert call is not None
    k = int(call.attrs.k)
    best = buffer("best", (k, lanes), INT64, "register")
    now, past = (buffer(name, (lanes,), INT64, "register") for name in ("now", "past"))

    def row(lane: Expr) -> _TopKRow:
        return _TopKRow(group, (*lead, simplify(first + lane)), 1)

    def each(name: str, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop(name, lanes, body, "lane", keep=True)

    def least(t: Expr) -> Stmt:
        identity = reduce_identity("max", INT64)
        return each("l", lambda lane: Store(best, (t, lane), identity))

    def put(t: Expr) -> Stmt:
        """The later of an item and number `t` goes on."""
        return seq(
            each("l", lambda i: Store(past, (i,), minimum(Load(best, (t, i)), Load(now, (i,))))),
            each("l", lambda i: Store(best, (t, i), maximum(Load(best, (t, i)), Load(now, (i,))))),
            each("l", lambda i: Store(now, (i,), Load(past, (i,)))),
        )

    def take(j: Expr) -> Stmt:
        read = each("l", lambda lane: Store(now, (lane,), row(lane).item(j)))
        return seq(read, loop("t", k, put, "vector", keep=True))

    def give(t: Expr) -> Stmt:
        return each("l", lambda lane: row(lane).put(t, _place_in(Load(best, (t, lane)))))

    n = row(IntImm(0)).n
    return within(
        [best, now, past],
        loop("t", k, least, "vector", keep=True),
        loop("j", n, take, "element", keep=True),
        loop("t", k, give, "vector", keep=True),
    )


def top_k_program(group: Group, lanes: int, together: int = 0) -> PrimFunc:
    """for each row: its first elements. Keys are found in vectors of `lanes`; or `together` rows at
    a time, one in each lane, of the last dimension but one."""
    lead = group.out_type.shape[:-1]
    names = [f"i{d}" for d in range(len(lead))]
    roles = ["row"] * len(lead)

    def rows(*i: Expr) -> Stmt:
        whole = simplify(lead[-1] // together)
        whole_rows = simplify(whole * together)
        return seq(
            loop("b", whole, lambda b: _rows(group, i, simplify(b * together), together), "rows"),
            loop(
                "r",
                simplify(lead[-1] - whole_rows),
                lambda r: _TopKRow(group, (*i, simplify(whole_rows + r)), lanes).stmt(),
                "last",
            ),
        )

    if together:
        body = nest(names[:-1], lead[:-1], rows, roles[:-1])
    else:
        body = nest(names, lead, lambda *i: _TopKRow(group, i, lanes).stmt(), roles)
    return PrimFunc(group.name, group.params, body)


def schedule(group: Group, target: Target, check: bool = False) -> Schedule:
    """`top_k`: the keys of a block in vectors, rows on threads when there is work."""
    x = _operand(group)
    lanes = target.vector_lanes(key_type(x.dtype).name)
    s = Schedule(top_k_program(group, lanes, _together(group, target)), check)
    in_vectors(s)
    rows, size = s.loops(role="row") or s.loops(role="rows"), int_value(product(x.shape))
    if size is None or size * 4 > PARALLEL_WORK:
        share(s, rows)
    return s


def _together(group: Group, target: Target) -> int:
    """How many rows are computed together, one in each lane; 0 if each row is computed by
    itself."""
    x, call = _operand(group), group.anchor
    assert call is not None
    lanes, n = target.vector_lanes("int64"), int_value(x.shape[-1])
    if len(x.shape) < 2 or lanes < 4 or not 1 <= int(call.attrs.k) <= _FEW * lanes:
        return 0
    many = int_value(x.shape[-2])
    short = n is not None and n <= _SHORT * lanes * lanes and key_type(x.dtype).bits == _HALF
    return lanes if short and (many is None or many >= lanes) else 0


def _operand(group: Group) -> TensorType:
    call = group.anchor
    assert call is not None
    x = call.args[0].type
    assert isinstance(x, TensorType)
    return x
