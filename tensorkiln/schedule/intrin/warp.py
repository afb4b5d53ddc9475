"""Instructions of a warp's 32 threads on matrices, whose fragments are buffers of a row per thread
(`schedule/intrin/fragments.py`)."""

from __future__ import annotations

import re

from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer, Load, buffer
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS, WARP, WARP_THREADS
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, Ramp, Var, cast, const, intrin
from tensorkiln.ir.stmt import THREAD_INDICES, For, Stmt, Store
from tensorkiln.schedule.intrin.fragments import (
    Fragment,
    left_fragment,
    matrix_fragment,
    right_fragment,
    shape_named,
    sums_fragment,
)
from tensorkiln.schedule.primitives.instruction import Instruction


def loops(body: Stmt, *heads: tuple[Var, int]) -> Stmt:
    """`body` in loops over (variable, extent), outermost first."""
    for var, count in reversed(heads):
        body = For(var, IntImm(0), const(count), "serial", body)
    return body


def of_threads(t: Var, count: int, body: Stmt) -> Stmt:
    """A loop over the threads of an instruction."""
    attrs = Attrs.of(thread=THREAD_INDICES[0])
    return For(t, IntImm(0), const(count), "thread", body, attrs)


def all_of(lanes: int) -> Ramp:
    """All elements of a row."""
    return Ramp(IntImm(0), IntImm(1), lanes)


def _fragment(name: str, f: Fragment, dtype: DType) -> Buffer:
    return buffer(name, (WARP_THREADS, f.count), dtype)


def where(f: Fragment, row: Expr, column: Expr) -> tuple[Expr, Expr]:
    """(the thread that has an element, its number there): the inverse of `Fragment.place`."""
    coordinates = []
    for digits in (f.thread, f.element):
        number: Expr = IntImm(0)
        for d in digits:
            coordinate = row if d.rows else column
            step = d.rows or d.columns
            extent = f.rows if d.rows else f.columns
            value = coordinate // step if step > 1 else coordinate
            if step * d.count < extent:
                value = value % d.count
            number = number * d.count + value
        coordinates.append(number)
    thread, element = coordinates
    return thread, element


def warp_mma(shape: str, left_name: str, right_name: str) -> Instruction:
    """c[i, j] += a[i, k] * b[k, j], of fragments, in float32 or int32."""
    row = DEVICE_INSTRUCTIONS[f"warp_mma_{shape}"]
    a_type, b_type = DType(left_name), DType(right_name)
    (total,) = {s[0].element for s in row.signatures}
    of = shape_named(shape, a_type)
    fragments = left_fragment(a_type, of), right_fragment(b_type, of), sums_fragment(of)
    a, b, c = map(_fragment, "abc", fragments, (a_type, b_type, total))
    i, j, k = Var("i"), Var("j"), Var("k")
    places = [where(f, x, y) for f, x, y in zip(fragments, (i, k, i), (k, j, j), strict=True)]
    x, y = (cast(Load(m, index), total) for m, index in zip((a, b), places, strict=False))
    step = Store(c, places[2], Load(c, places[2]) + x * y)
    t = Var("t")
    vectors = [Load(m, (t, all_of(f.count))) for m, f in zip((a, b, c), fragments, strict=True)]
    code = Store(c, (t, all_of(fragments[2].count)), intrin(row.name, *vectors))
    nest = loops(step, (i, fragments[0].rows), (j, 8), (k, fragments[0].columns))
    name = f"{row.name}_{left_name}" + (f"_{right_name}" if left_name != right_name else "")
    return Instruction.of(
        name, (a, b, c), nest, of_threads(t, WARP_THREADS, code), {}, WARP, WARP_THREADS
    )


def warp_load_matrix(count: int, dtype: str, transposed: bool = False) -> Instruction:
    """The fragments in c of `count` matrices in a, below each other, each of 8 rows of 16 bytes."""
    row = DEVICE_INSTRUCTIONS[f"warp_load_matrix_{count}{'_transposed' if transposed else ''}"]
    f = matrix_fragment(DType(dtype), count, transposed)
    a, c = buffer("a", (f.rows, f.columns), dtype), _fragment("c", f, DType(dtype))
    i, j, t = Var("i"), Var("j"), Var("t")
    step = Store(c, where(f, i, j), Load(a, (i, j)))
    matrix_row: Expr = t if f.rows == WARP_THREADS else t % f.rows
    value = intrin(row.name, Load(a, (matrix_row, all_of(f.columns))))
    code = Store(c, (t, all_of(f.count)), value)
    nest = loops(step, (i, f.rows), (j, f.columns))
    name = f"{row.name}_{dtype}"
    return Instruction.of(
        name, (a, c), nest, of_threads(t, WARP_THREADS, code), row.memory, WARP, WARP_THREADS
    )


def warp_named(name: str) -> Instruction | None:
    """The instruction called `name`: `warp_mma_m16n8k16_float16`, `warp_mma_m16n8k32_uint8_int8`,
    `warp_load_matrix_4_transposed_bfloat16`; None for another form, or a type without a row."""
    if match := re.fullmatch(r"warp_mma_(m\d+n8k\d+)_([a-z]+\d+)(?:_([a-z]+\d+))?", name):
        shape, left_name, right_name = match[1], match[2], match[3] or match[2]
        row = DEVICE_INSTRUCTIONS.get(f"warp_mma_{shape}")
        types = {tuple(x.name for x in s[1:3]) for s in row.signatures} if row else set()
        valid = (left_name, right_name) in types and match[3] != left_name
        return warp_mma(shape, left_name, right_name) if valid else None
    if match := re.fullmatch(r"warp_load_matrix_(\d)(_transposed)?_([a-z]+\d+)", name):
        row = DEVICE_INSTRUCTIONS.get(f"warp_load_matrix_{match[1]}{match[2] or ''}")
        if row and match[3] in {s[0].name for s in row.signatures}:
            return warp_load_matrix(int(match[1]), match[3], bool(match[2]))
    return None


__all__ = [
    "all_of",
    "loops",
    "of_threads",
    "warp_load_matrix",
    "warp_mma",
    "warp_named",
    "where",
]
