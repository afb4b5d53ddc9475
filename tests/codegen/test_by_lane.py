"""Broadcasts of neighbours become lanes of one vector, where all are wanted and memory rests."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.codegen.expand.by_lane import by_lane
from tensorkiln.codegen.llvm.texts import kernel_text
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Ramp, Shuffle, Var, intrin
from tensorkiln.ir.stmt import Alloc, For, PrimFunc, Stmt, Store, seq
from tensorkiln.ir.visit import walk, walk_stmt
from tests.codegen.kernels import TARGETS

X, W, OUT = buffer("x", (8, 64)), buffer("w", (64, 4)), buffer("y", (4,))
K = Var("k")
LANES = Ramp(IntImm(0), IntImm(1), 4)


def _term(acc: Buffer, index: Expr, x: Buffer = X) -> Stmt:
    value = Broadcast(Load(x, (IntImm(3), index)), 4)
    place = (IntImm(0), LANES)
    return Store(acc, place, intrin("fma", value, Load(W, (index, LANES)), Load(acc, place)))


def _program(*offsets: int, between: Stmt | None = None, x: Buffer = X) -> PrimFunc:
    """acc += x[3, k * 4 + offset] * w[k * 4 + offset, :], one term after the other."""
    acc = buffer("acc", (1, 4), "float32", "register")
    terms = [_term(acc, K * 4 + n if n else K * 4, x) for n in offsets]
    half = len(terms) // 2
    body = For(K, IntImm(0), IntImm(16), "serial", seq(*terms[:half], between, *terms[half:]))
    end = Store(OUT, (LANES,), Load(acc, (IntImm(0), LANES)))
    return PrimFunc("f", (x, W, OUT), Alloc(acc, seq(body, end)))


def _lanes(f: PrimFunc) -> list[tuple[int, ...]]:
    stores = [s for s in walk_stmt(f.body) if isinstance(s, Store)]
    return [e.lanes for s in stores for e in walk(s.value) if isinstance(e, Shuffle)]


def test_four_neighbours_are_one_load() -> None:
    f = by_lane(_program(0, 1, 2, 3))
    assert _lanes(f) == [(0,) * 4, (1,) * 4, (2,) * 4, (3,) * 4]
    (vector,) = {
        e.a
        for s in walk_stmt(f.body)
        if isinstance(s, Store)
        for e in walk(s.value)
        if isinstance(e, Shuffle)
    }
    assert vector == Load(X, (IntImm(3), Ramp(K * 4, IntImm(1), 4)))


def test_the_order_of_terms_stays() -> None:
    assert _lanes(by_lane(_program(6, 4, 7, 5))) == [(2,) * 4, (0,) * 4, (3,) * 4, (1,) * 4]


def test_nothing_is_read_that_was_not() -> None:
    for offsets in ((0, 1, 2), (0, 1, 3, 4), (0, 2, 4, 6)):
        f = _program(*offsets)
        assert by_lane(f) is f
    assert len(_lanes(by_lane(_program(0, 1, 2, 3, 4)))) == 4


def test_memory_that_changes_between() -> None:
    f = _program(0, 1, 2, 3, between=Store(OUT, (LANES,), Load(W, (IntImm(0), LANES))))
    assert by_lane(f) is f


def test_rows_that_are_apart_in_memory() -> None:
    f = _program(0, 1, 2, 3, x=replace(X, strides_given=(IntImm(1), IntImm(8))))
    assert by_lane(f) is f


def test_a_processor_that_multiplies_by_a_lane() -> None:
    f = _program(0, 1, 2, 3)
    arm = kernel_text(f, TARGETS["neon"])
    assert all(f".s[{lane}]" in arm for lane in range(4)) and "ld1r" not in arm
    assert kernel_text(f, TARGETS["avx2"]).count("vbroadcastss") == 4
