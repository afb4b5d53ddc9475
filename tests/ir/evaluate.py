"""A direct evaluator of tensor programs, independent of the compiler: the judge of schedules and
of code generation. What operators do to numbers is in tests/ir/numbers.py.

It is strict where hardware is lenient. Loops whose iterations have no order run in a random one,
and it is an error when one iteration touches what another writes; buffers begin with values that
spoil every result; an index outside its buffer is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tensorkiln.ir import expr as E
from tensorkiln.ir import stmt as S
from tensorkiln.ir.buffer import AddressOf, Buffer, Load
from tensorkiln.ir.device_instructions import (
    SUBGROUP,
    WARP,
    WARP_THREADS,
    WARPGROUP,
    WARPGROUP_TERMS,
    WARPGROUP_THREADS,
)
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.lanes import lane_of
from tensorkiln.ir.tiles import matrix_of
from tensorkiln.schedule.intrin.fragments import (
    left_fragment,
    matrix_fragment,
    right_fragment,
    shape_named,
    sums_fragment,
    warpgroup_left,
    warpgroup_sums,
)
from tests.ir import numbers
from tests.ir.numbers import Ambiguous, Value

UNORDERED = ("parallel", "vectorized", "thread")
LONGEST_WHILE = 10_000


def swizzled_places(size: int, transposed: bool) -> np.ndarray:
    """Of a factor of a warpgroup, the number of each element, by row or column and term: in rows of
    128 bytes, bits 7 to 9 of an address are added, modulo 2, to bits 4 to 6."""
    i, k = np.ogrid[:size, :WARPGROUP_TERMS]
    at = i // 64 * 8192 + k * 128 + i % 64 * 2 if transposed else i * 128 + k * 2
    found: np.ndarray = (at ^ (at >> 7 & 7) << 4) // 2
    return found


class Pointer:
    """What a C function gets for an AddressOf: a place in an array."""

    def __init__(self, array: np.ndarray, index: tuple[int, ...]):
        self.array, self.index = array, index

    @property
    def rest(self) -> np.ndarray:
        """The elements from there on, in the order of memory; of an array without gaps."""
        whole = self.array.reshape(-1)
        assert np.shares_memory(whole, self.array) or not whole.size
        at = int(np.ravel_multi_index(self.index, self.array.shape)) if self.index else 0
        return whole[at:]


class Failed(Exception):
    """An assertion of the program that does not hold."""


def run(
    f: S.PrimFunc,
    arrays: Mapping[str, Any],
    seed: int = 0,
    externs: Mapping[str, Callable[..., Any]] | None = None,
    mod: Mapping[str, Any] | None = None,
    exact: bool = False,
) -> None:
    """Run a function on arrays (and scalars) by parameter name; outputs are written in place.

    `mod` holds the functions that it calls. Where `exact`, a product that may become part of an FMA
    and then be another is Ambiguous. Failed says which assertion of the program does not hold;
    AssertionError what is wrong with it.
    """
    given = [arrays[p.name] for p in f.params]
    Machine(seed, externs or {}, mod or {}, exact).function(f, given)


class Machine:
    def __init__(
        self,
        seed: int,
        externs: Mapping[str, Callable[..., Any]],
        mod: Mapping[str, Any],
        exact: bool,
    ):
        self.rng = np.random.default_rng(seed)
        self.externs, self.mod, self.exact = externs, mod, exact
        self.vars: dict[E.Var, Value] = {}
        self.memory: dict[Buffer, np.ndarray] = {}
        # for each unordered loop around: addresses that the iteration read, and wrote
        self.watch: list[tuple[set[int], set[int]]] = []
        self.kept: list[np.ndarray] = []  # while addresses are compared, memory is not reused
        self.guarded = False  # what is evaluated next is no term of a sum
        self.around_lanes: S.For | None = None  # the innermost loop whose iterations have no order

    def function(self, f: S.PrimFunc, given: list[Any]) -> None:
        """Arguments in the order of the parameters; for a Pointer, memory from there on."""
        for p, value in zip(f.params, given, strict=True):
            if isinstance(p, E.Var):
                self.vars[p] = value
        for p, value in zip(f.params, given, strict=True):
            if isinstance(p, Buffer) and not isinstance(value, Pointer):
                for dim, size in zip(p.shape, value.shape, strict=True):
                    if isinstance(dim, E.Var):
                        self.vars.setdefault(dim, size)
        for p, value in zip(f.params, given, strict=True):
            if isinstance(p, Buffer):
                shape = tuple(self.eval(d) for d in p.shape)
                if isinstance(value, Pointer):
                    value = value.rest[: math.prod(shape)].reshape(shape)
                assert shape == value.shape
                self.memory[p] = value
        self.stmt(f.body)

    # ---- statements --------------------------------------------------------------------------

    def stmt(self, s: S.Stmt) -> None:
        STMTS[type(s)](self, s)

    def _for(self, s: S.For) -> None:
        lo, extent = self.eval(s.lo), self.eval(s.extent)
        steps = range(lo, lo + max(extent, 0))
        if s.kind in UNORDERED:
            self.unordered(s, self.rng.permutation(steps).tolist())
            return
        for i in steps:
            self.vars[s.var] = i
            self.stmt(s.body)

    def unordered(self, s: S.For, steps: list[int]) -> None:
        read: dict[int, int] = {}
        written: dict[int, int] = {}
        for i in steps:
            self.watch.append((set(), set()))
            self.vars[s.var] = i
            self.around_lanes = s
            self.stmt(s.body)
            reads, writes = self.watch.pop()
            for cell in writes:
                assert read.get(cell, i) == i and written.get(cell, i) == i, f"race in {s.var}"
            for cell in reads:
                assert written.get(cell, i) == i, f"race in {s.var}"
            read.update(dict.fromkeys(reads, i))
            written.update(dict.fromkeys(writes, i))

    def _while(self, s: S.While) -> None:
        for _ in range(LONGEST_WHILE):
            if not self.eval(s.cond):
                return
            self.stmt(s.body)
        raise AssertionError("a while loop does not end")

    def _seq(self, s: S.Seq) -> None:
        for t in s.stmts:
            self.stmt(t)

    def _store(self, s: S.Store) -> None:
        value = self.eval(s.value)
        array, index = self.place(s.buffer, s.indices, write=True)
        for lane, at in enumerate(index):
            array[at] = value[lane] if isinstance(value, tuple) else value

    def _let(self, s: S.Let) -> None:
        self.vars[s.var] = self.eval(s.value)
        self.stmt(s.body)

    def _if(self, s: S.If) -> None:
        if self.eval(s.cond):
            self.stmt(s.then)
        elif s.orelse is not None:
            self.stmt(s.orelse)

    def _alloc(self, s: S.Alloc) -> None:
        shape = tuple(self.eval(d) for d in s.buffer.shape)
        poison = math.nan if s.buffer.dtype.is_float else 99
        self.memory[s.buffer] = np.full(shape, poison).astype(s.buffer.dtype.name)
        if self.watch:
            self.kept.append(self.memory[s.buffer])
        self.stmt(s.body)

    def _match(self, s: S.MatchBuffer) -> None:
        array, (index,) = self.place(s.source, s.indices)
        strides = [int(self.eval(e)) * array.itemsize for e in s.buffer.strides]
        shape = [int(self.eval(d)) for d in s.buffer.shape]
        start = array[(*(slice(i, None) for i in index), ...)]
        self.memory[s.buffer] = np.lib.stride_tricks.as_strided(start, shape, strides)
        self.stmt(s.body)

    def _assert(self, s: S.Assert) -> None:
        if not self.eval(s.cond):
            raise Failed(s.message)

    def _evaluate(self, s: S.Evaluate) -> None:
        self.eval(s.value)

    def _call_kernel(self, s: S.CallKernel) -> None:
        self.function(self.mod[s.name], [self.eval(a) for a in s.args])

    def _block(self, s: S.Block) -> None:
        values = [self.eval(i.value) for i in s.iters]
        for i, value in zip(s.iters, values, strict=True):
            assert 0 <= value < self.eval(i.extent), f"{s.name}: {i.var} = {value}"
            self.vars[i.var] = value
        starts = [v == 0 for i, v in zip(s.iters, values, strict=True) if i.kind == "reduce"]
        if s.init is not None and all(starts):
            self.stmt(s.init)
        self.stmt(s.body)

    # ---- expressions -------------------------------------------------------------------------

    def eval(self, e: E.Expr) -> Value:
        guarded, self.guarded = self.guarded, False
        found = EXPRS[type(e)](self, e) if not guarded else self._whole(e)
        return found

    def whole(self, e: E.Expr) -> Value:
        """A value that is no term of a sum: no product here becomes part of an FMA."""
        self.guarded = True
        return self.eval(e)

    def _whole(self, e: E.Expr) -> Value:
        if isinstance(e, E.Binary) and e.op == "mul":
            return self._lanes(e, lambda a, b: numbers.binary("mul", a, b, e.a.dtype.element))
        return EXPRS[type(e)](self, e)

    def place(
        self, b: Buffer, indices: tuple[E.Expr, ...], write: bool = False
    ) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        """The memory of a buffer, and the place of each lane there."""
        array = self.memory[b]
        values = [self.eval(i) for i in indices]
        lanes = max((len(v) for v in values if isinstance(v, tuple)), default=1)
        rows = [v if isinstance(v, tuple) else (v,) * lanes for v in values]
        index = list(zip(*rows, strict=True)) if rows else [()]
        for at in index:
            for i, size in zip(at, array.shape, strict=True):
                assert 0 <= i < size, f"{b.name}{at} outside {array.shape}"
        if self.watch:
            start = array.__array_interface__["data"][0]
            cells = [start + sum(map(int.__mul__, at, array.strides)) for at in index]
            for seen in self.watch:
                seen[write].update(cells)
        return array, index

    def _load(self, e: Load) -> Value:
        array, index = self.place(e.buffer, e.indices)
        plain = _PLAIN[e.buffer.dtype.is_float, e.buffer.dtype.is_bool]
        found = tuple(plain(array[at]) for at in index)
        return found if e.dtype.lanes > 1 else found[0]

    def _select(self, e: E.Select) -> Value:
        cond, a, b = self.eval(e.cond), self.eval(e.a), self.eval(e.b)
        if not isinstance(cond, tuple):
            return a if cond else b
        return tuple(x if c else y for c, x, y in zip(cond, a, b, strict=True))

    def _cast(self, e: E.Cast) -> Value:
        src, dst = e.a.dtype.element, e.dtype.element
        return _each(lambda x: numbers.cast(x, src, dst), self.whole(e.a))

    def _lanes(self, e: E.Binary, f: Callable[[Value, Value], Value]) -> Value:
        bare = e.op in ("mul", "add", "sub")
        a, b = (self.eval(e.a), self.eval(e.b)) if bare else (self.whole(e.a), self.whole(e.b))
        return _each(f, a, b)

    def _binary(self, e: E.Binary) -> Value:
        dtype = e.a.dtype.element
        if self.exact and e.op == "mul" and dtype.is_float and dtype.bits > 16:
            return self._lanes(e, lambda a, b: _product(a, b, dtype))
        return self._lanes(e, lambda a, b: numbers.binary(e.op, a, b, dtype))

    def _unary(self, e: E.Unary) -> Value:
        dtype = e.a.dtype.element
        a = self.eval(e.a) if e.op == "neg" else self.whole(e.a)
        return _each(lambda x: numbers.unary(e.op, x, dtype), a)

    def _address(self, e: AddressOf) -> Pointer:
        array, index = self.place(e.buffer, e.indices)
        return Pointer(array, index[0])

    def _extern(self, e: E.CallExtern) -> Value:
        return self.externs[e.name](*map(self.eval, e.args))

    def _device_instruction(self, e: E.Intrin) -> Value:
        row = E.DEVICE_INSTRUCTIONS[e.name]
        if row.participants == SUBGROUP:
            values = self._subgroup(e)
            if e.name == "subgroup_sum":
                total = 0 if e.dtype.is_int else 0.0
                for v in values:
                    total = numbers.binary("add", total, v, e.dtype)
                return total
            return max(values) if e.name == "subgroup_max" else min(values)
        if row.participants == WARP:
            return self._load_matrix(e) if row.memory else self._mma(e)
        if row.participants == WARPGROUP:
            return self._warpgroup_mma(e)
        args = [self.whole(a) for a in e.args]
        if e.name == "thread_dot4":
            a, b = args[1:]
            return numbers.wrapped(args[0] + sum(map(int.__mul__, a, b)), e.dtype)
        return _each(_OF_LANES[e.name], *args)

    def _subgroup(self, e: E.Intrin) -> list[Value]:
        """The operand in all threads of the sub-group of this one."""
        size = E.int_value(e.args[1])
        assert size is not None
        return self._in_threads(e.args[0], size)[1]

    def _in_threads(self, e: E.Expr, size: int) -> tuple[int, list[Value]]:
        """The number of this thread among `size` neighbours, and the value in each of them."""
        loop = self.around_lanes
        assert loop is not None and loop.attrs["thread"] == "threadIdx.x"
        lo, mine = self.eval(loop.lo), self.vars[loop.var]
        first = (mine - lo) // size * size + lo
        found = []
        for k in range(first, first + size):
            self.vars[loop.var] = k
            found.append(self.whole(e))
        self.vars[loop.var] = mine
        return mine - first, found

    def _load_matrix(self, e: E.Intrin) -> Value:
        """The part of this thread of the matrices whose rows the threads give."""
        thread, rows = self._in_threads(e.args[0], WARP_THREADS)
        t, lanes = e.dtype.element, e.dtype.lanes
        count = lanes * t.bytes // 4
        f = matrix_fragment(t, count, e.name.endswith("transposed"))
        places = [f.place(thread, k) for k in range(lanes)]
        found = tuple(rows[row][column] for row, column in places)
        return found if lanes > 1 else found[0]

    def _mma(self, e: E.Intrin) -> Value:
        """Sums in float64, rounded once, or in whole numbers that wrap."""
        types = [a.dtype.element for a in e.args]
        shape = shape_named(e.name.removeprefix("warp_mma_"), types[0])
        fragments = left_fragment(types[0], shape), right_fragment(types[1], shape)
        sums = sums_fragment(shape)
        thread, matrices = 0, []
        for a, f in zip(e.args, fragments, strict=False):
            thread, values = self._in_threads(a, WARP_THREADS)
            matrix = np.zeros((f.rows, f.columns), np.float64 if types[2].is_float else np.int64)
            for t, lanes in enumerate(values):
                for k, x in enumerate(lanes):
                    matrix[f.place(t, k)] = x
            matrices.append(matrix)
        products = matrices[0] @ matrices[1]
        own = (products[sums.place(thread, k)].item() for k in range(sums.count))
        totals = (a + b for a, b in zip(own, self.whole(e.args[2]), strict=True))
        return tuple(numbers.cast(x, types[2], types[2]) for x in totals)

    def _warpgroup_mma(self, e: E.Intrin) -> Value:
        """The sums of this thread, in float64 and rounded once, of matrices where `swizzled` says
        that they are."""
        loop = self.around_lanes
        assert loop is not None and loop.attrs["thread"] == "threadIdx.x"
        thread = (self.vars[loop.var] - self.eval(loop.lo)) % WARPGROUP_THREADS
        flips, matrices = e.name.partition("_transposed_")[2], []
        columns = 2 * e.args[2].dtype.lanes
        terms = e.args[1].dtype.lanes // columns
        for which, a in zip("ab", e.args, strict=False):
            if "fragment" in e.name and which == "a":
                of_left = warpgroup_left(terms)
                matrix = np.zeros((of_left.rows, terms))
                for t, elements in enumerate(self._in_threads(a, WARPGROUP_THREADS)[1]):
                    for k, x in enumerate(elements):
                        matrix[of_left.place(t, k)] = x
                matrices.append(matrix)
                continue
            assert isinstance(a, Load)
            row, column = (lane_of(i, E.IntImm(0)) for i in a.indices)
            assert row is not None and column is not None and self.eval(column) == 0
            array, count = self.memory[a.buffer], a.dtype.lanes
            flat, at = array.reshape(-1), self.eval(row) * array.shape[1]
            assert 0 <= at <= len(flat) - count and np.shares_memory(flat, array)
            start = flat.__array_interface__["data"][0]
            for seen in self.watch:
                seen[False].update(range(start + at * 2, start + (at + count) * 2, 2))
            size = count // terms
            places = swizzled_places(size, which in flips)
            steps = range(0, count, size * WARPGROUP_TERMS)
            matrices.append(
                np.hstack([flat[at + first + places].astype(np.float64) for first in steps])
            )
        sums = self.whole(e.args[2])
        f = warpgroup_sums(2 * len(sums))
        left, right = matrices
        own = (f.place(thread, k) for k in range(f.count))
        totals = (x + (left[i] @ right[j]).item() for x, (i, j) in zip(sums, own, strict=True))
        return tuple(numbers.cast(x, e.dtype.element, e.dtype.element) for x in totals)

    def _tile_dot(self, e: E.Intrin) -> Value:
        """Sums of whole tiles, row by row, as Intel's manual orders them."""
        count = E.DOTS[E.TILE_DOTS[e.name]][1][1]
        assert all(isinstance(x, Load) for x in e.args)
        (rows, columns), _, (steps, _) = (matrix_of(x.buffer) for x in e.args)  # type: ignore[attr-defined]
        types = [x.dtype.element for x in e.args]
        wide = np.float32 if types[0].is_float else np.int64
        total, a, b = (np.array(self.whole(x), wide) for x in e.args)
        a, b = a.reshape(rows, steps, count), b.reshape(steps, columns, count)
        parts = np.zeros((rows, columns, count), wide)
        for k in range(steps):
            product = a[:, k, None].astype(np.float64) * b[k].astype(np.float64)
            parts = (parts + product).astype(wide)
        sums = total.reshape(rows, columns) + sum(parts[..., n] for n in range(count))
        found = (x.item() for x in sums.ravel())
        if types[0].is_float:
            return tuple(found)
        return tuple(numbers.wrapped(x, types[0]) for x in found)

    def _intrin(self, e: E.Intrin) -> Value:
        if e.name in E.DEVICE_INSTRUCTIONS:
            return self._device_instruction(e)
        if e.name in E.TILE_DOTS:
            return self._tile_dot(e)
        dtype = e.args[0].dtype.element
        args = [self.eval(a) if e.name == "fma" else self.whole(a) for a in e.args]
        if e.name in E.DOTS:
            n = E.DOTS[e.name][1][1]
            total, a, b = (x if isinstance(x, tuple) else (x,) for x in args)
            if dtype.is_float:
                sums = (
                    c + sum(a[n * k + j] * b[n * k + j] for j in range(n))
                    for k, c in enumerate(total)
                )
                return tuple(numbers.cast(x, dtype, dtype) for x in sums)
            return tuple(
                numbers.wrapped(c + sum(a[n * k + j] * b[n * k + j] for j in range(n)), dtype)
                for k, c in enumerate(total)
            )
        return _each(lambda *xs: numbers.intrinsic(e.name, list(xs), dtype), *args)

    def _ramp(self, e: E.Ramp) -> Value:
        base, stride, dtype = self.eval(e.base), self.eval(e.stride), e.base.dtype
        return tuple(numbers.wrapped(base + stride * k, dtype) for k in range(e.lanes))

    def _vector_reduce(self, e: E.VectorReduce) -> Value:
        """The upper half onto the lower one, until one lane is left."""
        op, dtype = E.REDUCE_BINARY.get(e.op, e.op), e.a.dtype.element
        values = self.eval(e.a)
        while len(values) > 1:
            half = len(values) // 2
            pairs = zip(values[:half], values[half:], strict=True)
            if self.exact and op == "mul" and dtype.is_float and dtype.bits > 16:
                values = tuple(_product(a, b, dtype) for a, b in pairs)
            else:
                values = tuple(numbers.binary(op, a, b, dtype) for a, b in pairs)
        return values[0]


# What an instruction of a device's thread makes of the operands in a lane.
_OF_LANES: dict[str, Callable[..., Any]] = {
    "thread_exp2": numbers.exp2_approximate,
    "thread_fma": lambda *xs: numbers.intrinsic("fma", list(xs), FLOAT32),
    "thread_load_half": lambda x: x,
    "thread_max": lambda x, y: x if math.isnan(y) or x > y else y,
    "thread_round_tf32": numbers.round_tf32,
}
_PLAIN: dict[tuple[bool, bool], Callable[[Any], Value]] = {
    (True, False): float,
    (False, False): int,
    (False, True): bool,
}


def _each(f: Callable[..., Value], *xs: Value) -> Value:
    """`f` of each lane."""
    return tuple(map(f, *xs)) if isinstance(xs[0], tuple) else f(*xs)


def _product(a: float, b: float, dtype: DType) -> float:
    if not numbers.exact_product(a, b, dtype):
        raise Ambiguous("an inexact product, which may become part of an FMA")
    return numbers.binary("mul", a, b, dtype)


def _number(e: E.FloatImm) -> float:
    return numbers.rounded(e.value, e.dtype)


EXPRS: dict[type, Callable[[Machine, Any], Value]] = {
    E.Var: lambda m, e: m.vars[e],
    E.IntImm: lambda m, e: bool(e.value) if e.dtype.is_bool else e.value,
    E.FloatImm: lambda m, e: _number(e),
    E.Binary: Machine._binary,
    E.Unary: Machine._unary,
    E.Select: Machine._select,
    E.Cast: Machine._cast,
    Load: Machine._load,
    E.Ramp: Machine._ramp,
    E.Broadcast: lambda m, e: (m.eval(e.a),) * e.lanes,
    AddressOf: Machine._address,
    E.CallExtern: Machine._extern,
    E.Intrin: Machine._intrin,
    E.Shuffle: lambda m, e: tuple((*m.eval(e.a), *m.eval(e.b))[k] for k in e.lanes),
    E.VectorReduce: Machine._vector_reduce,
}
STMTS: dict[type, Callable[[Machine, Any], None]] = {
    S.For: Machine._for,
    S.While: Machine._while,
    S.Seq: Machine._seq,
    S.Store: Machine._store,
    S.Let: Machine._let,
    S.If: Machine._if,
    S.Alloc: Machine._alloc,
    S.MatchBuffer: Machine._match,
    S.Assert: Machine._assert,
    S.Evaluate: Machine._evaluate,
    S.CallKernel: Machine._call_kernel,
    S.Prefetch: lambda m, s: None,
    S.Block: Machine._block,
}
