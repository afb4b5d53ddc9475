"""Let reductions in registers start from their first term instead of a neutral element.

    C[i] = -inf; C[i] = max(C[i], x)      ->   C[i] = x
    C[i] = C[i]                           ->

Only if the result is the same bit for bit: a sum that starts from 0 keeps it, as 0 + -0 is 0.
Runs after `unroll_function`, which turns loops into straight-line code.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tensorkiln.ir.buffer import Load
from tensorkiln.ir.expr import Binary, Broadcast, CallExtern, Expr, FloatImm, IntImm
from tensorkiln.ir.stmt import PrimFunc, Seq, Stmt, Store, seq
from tensorkiln.ir.visit import loads, map_stmt, walk


def drop_starts(f: PrimFunc) -> PrimFunc:
    """`f` without stores of a neutral element before the first term of a reduction, and without
    stores of the value that is there already; the same object if there are none."""
    body = _stmt(f.body)
    return f if body is f.body else replace(f, body=body)


def _stmt(s: Stmt) -> Stmt:
    if isinstance(s, Store):
        return s
    s = map_stmt(s, lambda e: e, _stmt)
    return _joined(s) if isinstance(s, Seq) else s


def _joined(s: Seq) -> Stmt:
    """A sequence in which each store of a neutral element is merged with the store of the first
    term that follows it."""
    stmts: list[Stmt] = []
    for t in s.stmts:
        if isinstance(t, Store):
            if _is_old(t, t.value):
                continue
            last = stmts[-1] if stmts else None
            if isinstance(last, Store) and _starts(last, t):
                assert isinstance(t.value, Binary)
                stmts[-1] = Store(t.buffer, t.indices, t.value.b, t.nontemporal)
                continue
        stmts.append(t)
    return s if len(stmts) == len(s.stmts) else seq(*stmts)


def _is_old(s: Store, e: Expr) -> bool:
    """Whether `e` loads the element that `s` stores to. Not with calls of C functions in its
    indices, which may return something else each time."""
    if not isinstance(e, Load) or e.buffer is not s.buffer or e.indices != s.indices:
        return False
    return not any(isinstance(x, CallExtern) for x in walk(e))


def _starts(start: Store, s: Store) -> bool:
    """Whether `start` stores the neutral element of the operation by which `s` adds a term to the
    same register."""
    if start.buffer is not s.buffer or s.buffer.scope != "register":
        return False  # another buffer may be the same memory, unless it is a register
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
