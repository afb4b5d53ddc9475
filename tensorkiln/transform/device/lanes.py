"""Accesses of a warp that memory serves slowly: bank conflicts and scattered sectors.

The threads of a warp are 32 consecutive ones of a block, x fastest. Their addresses are computed
for the first warp of the first block in the first round of each loop, with large values for
symbolic sizes.

Shared memory has 32 banks of 4 bytes, each of which delivers one word at a time: an access of 32
words takes as many turns as the busiest bank has different words. Global memory is read and written
in sectors of 32 bytes: an access takes all sectors in which it touches a byte.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tensorkiln.ir.expr import Binary, Broadcast, Cast, Expr, IntImm, Ramp, Select, Unary, Var
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.stmt import THREAD_INDICES, Let
from tensorkiln.transform.device.accesses import DeviceAccess, FunctionAccesses, line_of

WARP, BANKS, WORD, SECTOR = 32, 32, 4, 32
_LARGE = 4099  # for symbolic sizes: not a multiple of a power of two, as in the worst case

Env = dict[Var, int | None]  # None: not known


@dataclass(frozen=True, slots=True)
class SlowAccess:
    """An access that takes longer than it need. `kind` "bank conflict": `count` is how many turns
    the banks of shared memory need; "uncoalesced": how many sectors of global memory are touched.
    `best` is the least possible number for as many bytes."""

    kind: str
    kernel: str
    buffer: str
    statement: str
    write: bool
    count: int
    best: int

    def __str__(self) -> str:
        unit = "turns of the banks" if self.kind == "bank conflict" else "sectors of 32 bytes"
        verb = "writes" if self.write else "reads"
        return (
            f"{self.kind}: `{self.statement}` {verb} {self.buffer} in {self.count} {unit} per "
            f"warp, {self.best} would do"
        )


class _Unknown(Exception):
    """The value is not known before the program runs."""


def slow_accesses(of: FunctionAccesses) -> Iterator[SlowAccess]:
    """The accesses to shared and global memory that take longer than they need, each once."""
    access_keys: set[tuple[int, object, bool, tuple[Expr, ...]]] = set()
    for accesses in of.accesses.values():
        for m in accesses:
            key = (id(m.stmt), m.buffer, m.write, m.indices)
            if key in access_keys or m.home.scope not in ("shared", "global") or not m.segment.nest:
                continue
            access_keys.add(key)
            slow_access = _slow(of, m)
            if slow_access is not None:
                yield slow_access


def _slow(of: FunctionAccesses, m: DeviceAccess) -> SlowAccess | None:
    try:
        touched = [b for t in _warp(of.launch.block) for b in _bytes(m, t)]
    except _Unknown:
        return None
    if m.home.scope == "shared":
        words = {b // WORD for b in touched}
        turns = Counter(w % BANKS for w in words)
        kind, count, best = "bank conflict", max(turns.values(), default=0), -(-len(words) // BANKS)
    else:
        kind, best = "uncoalesced", -(-len(set(touched)) // SECTOR)
        count = len({b // SECTOR for b in touched})
    if count <= best:
        return None
    return SlowAccess(kind, of.f.name, m.buffer.name, line_of(m.stmt), m.write, count, best)


def _warp(block: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    """The indices of the threads of the first warp."""
    x, y, z = block
    for k in range(min(WARP, x * y * z)):
        yield k % x, k // x % y, k // (x * y)


def _bytes(m: DeviceAccess, thread: tuple[int, int, int]) -> list[int]:
    """The bytes, counted from the start of the buffer, that a thread accesses."""
    env: Env = {}
    thread_values = dict(zip(THREAD_INDICES, thread, strict=True))
    for s in m.around:
        if isinstance(s, Let):
            if s.value.dtype.is_int and s.value.dtype.lanes == 1:
                _bind(env, s.var, s.value)
            continue
        lo = _int(s.lo, env)
        index = thread_values.pop(thread_of(s), 0)
        if index >= _int(s.extent, env) and thread_of(s) in THREAD_INDICES:
            return []
        env[s.var] = lo + index
    if any(thread_values.values()) or not all(_holds(cond, truth, env) for cond, truth in m.guards):
        return []
    starts = [0]
    for e, stride in zip(m.indices, m.buffer.strides, strict=True):
        step = _int(stride, env)
        starts = [start + k * step for start in starts for k in _lanes(e, env)]
    size = m.buffer.dtype.bytes
    return [start * size + k for start in starts for k in range(size)]


def _bind(env: Env, var: Var, value: Expr) -> None:
    try:
        env[var] = _int(value, env)
    except _Unknown:
        env[var] = None


def _lanes(e: Expr, env: Env) -> list[int]:
    match e:
        case Ramp(base, stride, lanes):
            return [_int(base, env) + k * _int(stride, env) for k in range(lanes)]
        case Broadcast(a):
            return [_int(a, env)]
    return [_int(e, env)]


def _holds(cond: Expr, truth: bool, env: Env) -> bool:
    """Whether a condition has a truth value; if that is unknown, it is assumed."""
    try:
        return bool(_int(cond, env)) == truth
    except _Unknown:
        return True


def _int(e: Expr, env: Env) -> int:
    """The value of an integer expression or condition. Raises _Unknown."""
    match e:
        case IntImm(value):
            return value
        case Var():
            number = env.get(e, _LARGE)
            if number is None:
                raise _Unknown
            return number
        case Cast(a, dtype) if dtype.is_int and a.dtype.is_int:
            return _int(a, env)
        case Unary("neg", a):
            return -_int(a, env)
        case Unary("not", a):
            return not _int(a, env)
        case Select(cond, a, b) if cond.dtype.lanes == 1:
            return _int(a, env) if _int(cond, env) else _int(b, env)
        case Binary(op, a, b) if op in _OPERATORS and not a.dtype.is_float:
            return _OPERATORS[op](_int(a, env), _int(b, env))
    raise _Unknown


_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": lambda a, b: a // b if b else 0,
    "floormod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "bitxor": operator.xor,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    **{op: getattr(operator, op) for op in ("lt", "le", "gt", "ge", "eq", "ne")},
}
