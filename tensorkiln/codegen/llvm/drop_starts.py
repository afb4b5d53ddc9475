"""Sums in registers start from their first term, not from what changes nothing.

    C[i] = -inf; C[i] = max(C[i], x)      ->   C[i] = x
    C[i] = C[i]                           ->

Only where the result is the same bit for bit: a sum that starts from 0 keeps it, as 0 + -0 is 0.
Follows `unroll_function`, which makes straight lines of loops.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensorkiln.ir.expr import Binary, Broadcast, CallExtern, Expr, FloatImm, IntImm, Load
from tensorkiln.ir.stmt import PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import loads, map_stmt, walk


def drop_starts(f: PrimFunc) -> PrimFunc:
    """`f` without starts of sums that change nothing, and without stores of what is there."""
    body = _stmt(f.body)
    return f if body is f.body else replace(f, body=body)


def _stmt(s: Stmt) -> Stmt:
    if isinstance(s, Store):
        return s
    s = map_stmt(s, lambda e: e, _stmt)
    return _joined(s) if isinstance(s, Seq) else s


def _joined(s: Seq) -> Stmt:
    """A sequence with its starts and first terms joined."""
    kept: list[Stmt] = []
    for t in s.stmts:
        if isinstance(t, Store):
            if _is_old(t, t.value):
                continue
            last = kept[-1] if kept else None
            if isinstance(last, Store) and _starts(last, t):
                assert isinstance(t.value, Binary)
                kept[-1] = Store(t.buffer, t.indices, t.value.b, t.nontemporal)
                continue
        kept.append(t)
    return s if len(kept) == len(s.stmts) else seq(*kept)


def _is_old(s: Store, e: Expr) -> bool:
    """Whether `e` is what stands where `s` stores; C functions may answer anything."""
    if not isinstance(e, Load) or e.buffer is not s.buffer or e.indices != s.indices:
        return False
    return not any(isinstance(x, CallExtern) for x in walk(e))


def _starts(start: Store, s: Store) -> bool:
    """Whether `start` sets a register to what leaves the term that `s` adds unchanged."""
    if start.buffer is not s.buffer or s.buffer.scope != "register":
        return False  # nothing else may name the same memory
    if not isinstance(s.value, Binary) or not _is_old(s, s.value.a):
        return False
    if start.indices != s.indices or any(x.buffer is s.buffer for x in loads(s.value.b)):
        return False
    value = start.value.a if isinstance(start.value, Broadcast) else start.value
    if not isinstance(value, FloatImm | IntImm):
        return False
    return _is_neutral(s.value.op, value.value)


def _is_neutral(op: str, value: float) -> bool:
    """Whether `value op x` is x, bit for bit. The greatest of -inf and x is x, NaN or not."""
    match op:
        case "max":
            return value == -math.inf
        case "min":
            return value == math.inf
        case "mul":
            return value == 1
        case "add":
            return value == 0 and (isinstance(value, int) or math.copysign(1, value) < 0)
    return False
