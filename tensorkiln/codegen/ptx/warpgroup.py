"""Matrix products of warpgroups (wgmma) in LLVM IR for a GPU of NVIDIA, as inline assembly, because
LLVM has no intrinsic for them.

A product is one piece of assembly. It starts a wgmma for every 16 terms, all of which may run at
the same time, and waits for them at its end. If a register of the sums were touched in between,
ptxas would have to wait after each of them.

Tensor cores read shared memory by a path of their own (the async proxy). They see what threads
wrote only after a fence of the writing threads and a barrier.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.arith import simplify
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.llvm.addresses import address, alignment
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import KernelWriter
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.device_instructions import (
    DEVICE_INSTRUCTIONS,
    MATRIX_ALIGN,
    WARPGROUP,
    WARPGROUP_TERMS,
)
from tensorkiln.ir.expr import Broadcast, Expr, IntImm, Intrin, Var, const
from tensorkiln.ir.lanes import lane_of

_TERMS = 16  # of one wgmma
FENCE = 'void asm sideeffect "fence.proxy.async.shared::cta;", "~{memory}"()'
# A descriptor of a matrix (PTX ISA, "Matrix Descriptor"): its start, and the strides from 64 rows
# to the next (of transposed ones) and from 8 rows of 128 bytes to the next, in units of 16 bytes;
# in the last two bits, that the rows are permuted as by `swizzled`.
_UNIT = 16
_EIGHT_ROWS, _BLOCK = MATRIX_ALIGN, 128 * WARPGROUP_TERMS
_SWIZZLED = 1 << 62
# From one product of 16 terms to the next: along a row, or 16 rows of one term each.
_STEP, _STEP_TRANSPOSED = 2 * _TERMS, 128 * _TERMS


_WORDS = 4  # registers in which a thread holds 16 terms of a left factor
_Operands = list[tuple[str, str]]  # of one product of 16 terms: constraints, values with their type


def is_of_warpgroup(e: Intrin) -> bool:
    """Whether an instruction is a product of a warpgroup."""
    row = DEVICE_INSTRUCTIONS.get(e.name)
    return row is not None and row.participants == WARPGROUP


def write_product(w: KernelWriter, e: Intrin, name: str) -> str:
    """Write a product, and return its sums. `name` is the instruction in PTX."""
    lhs, rhs, sums = e.args
    transposed = e.name.partition("_transposed_")[2]
    flips = "a" in transposed, "b" in transposed
    t, count = llvm_type(sums.dtype), sums.dtype.lanes
    columns = 2 * count
    terms = rhs.dtype.lanes // columns
    in_memory = 0 in DEVICE_INSTRUCTIONS[e.name].memory
    factors = [
        _steps(w, lhs, flips[0], terms) if in_memory else _words(w, lhs),
        _steps(w, rhs, flips[1], terms),
    ]
    # The first of the products need not add to zeros.
    adds = not (isinstance(sums, Broadcast) and sums.a == const(0, sums.a.dtype))
    operands = [x for pair in zip(*factors, strict=True) for step in pair for x in step]
    text = _assembly(name, lhs.dtype.row.ptx, count, factors, flips, adds)
    bounds = ["=f" if adds else "=&f"] * count + [constraint for constraint, _ in operands]
    args = [value for _, value in operands]
    if adds:
        # Inline assembly takes and returns scalars: the vector of sums is taken apart, and put
        # together again.
        vector = w.value(sums)
        for k in range(count):
            bounds.append(str(k))
            args.append(f"float {w.line(f'extractelement {t} {vector}, i32 {k}')}")
    result = "{" + ", ".join(["float"] * count) + "}"
    constraints = ",".join([*bounds, "~{memory}"])
    struct = w.line(f'call {result} asm sideeffect "{text}", "{constraints}"({", ".join(args)})')
    output = "poison"
    for k in range(count):
        x = w.line(f"extractvalue {result} {struct}, {k}")
        output = w.line(f"insertelement {t} {output}, float {x}, i32 {k}")
    return output


def write_fence(w: KernelWriter) -> None:
    """Make what this thread wrote to shared memory visible to tensor cores."""
    w.emit(f"  call {FENCE}")


def _steps(w: KernelWriter, m: Expr, transposed: bool, terms: int) -> list[_Operands]:
    """The descriptor of a matrix in shared memory for each product of 16 terms."""
    start = _descriptor(w, m, transposed)
    block = m.dtype.lanes * m.dtype.bytes // (terms // WARPGROUP_TERMS)
    size = _STEP_TRANSPOSED if transposed else _STEP
    steps = []
    for k in range(terms // _TERMS):
        number, step = divmod(k, WARPGROUP_TERMS // _TERMS)
        offset = (number * block + step * size) // _UNIT
        steps.append([("l", f"i64 {w.line(f'add i64 {start}, {offset}')}")])
    return steps


def _words(w: KernelWriter, m: Expr) -> list[_Operands]:
    """The registers of a matrix that threads hold, for each product of 16 terms."""
    count = m.dtype.lanes * m.dtype.bytes // 4
    words = w.line(f"bitcast {llvm_type(m.dtype)} {w.value(m)} to <{count} x i32>")
    values = [
        ("r", f"i32 {w.line(f'extractelement <{count} x i32> {words}, i32 {k}')}")
        for k in range(count)
    ]
    return [values[k : k + _WORDS] for k in range(0, count, _WORDS)]


def _assembly(
    name: str,
    dtype: str,
    count: int,
    factors: Sequence[Sequence[_Operands]],
    flips: tuple[bool, bool],
    adds: bool,
) -> str:
    """The instructions, of which operands follow the `count` sums: those of both factors of the
    first product of 16 terms, and so on."""
    registers = ", ".join(f"${k}" for k in range(count))
    lines, operand = ["wgmma.fence.sync.aligned;"], count
    for k, pair in enumerate(zip(*factors, strict=True)):
        texts, immediates = [], [str(int(adds or k > 0)), "1", "1"]
        for step, flip in zip(pair, flips, strict=True):
            names = ", ".join(f"${operand + i}" for i in range(len(step)))
            operand += len(step)
            texts.append(names if len(step) == 1 else f"{{{names}}}")
            if len(step) == 1:
                immediates.append(str(int(flip)))
        parts = ", ".join([f"{{{registers}}}", *texts, *immediates])
        lines.append(f"{name}.f32.{dtype}.{dtype} {parts};")
    lines += ["wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]
    return "\\0A".join(lines)


def _first(w: KernelWriter, m: Load) -> tuple[Expr, ...]:
    """The indices of the first element of a matrix. Raises UnsupportedError unless its elements
    follow each other in memory without gaps, as the instruction reads them."""
    lane = Var("lane")
    bounds = {lane: (0, m.dtype.lanes - 1)}
    first, second = (
        [lane_of(i, lane_index) for i in m.indices] for lane_index in (IntImm(0), lane)
    )
    distance: Expr = IntImm(0)
    for x, y, stride in zip(first, second, m.buffer.strides, strict=True):
        if x is None or y is None:
            distance = IntImm(0)
            break
        distance = distance + (y - x) * stride
    if simplify(distance, bounds) != lane:
        raise UnsupportedError(
            f"a product of a warpgroup reads elements of {m.buffer.name} that do not follow one "
            "after the other",
            where=w.func.name,
            hint="whole rows of 64 elements, from a buffer without gaps",
        )
    return tuple(simplify(i) for i in first if i is not None)


def _descriptor(w: KernelWriter, m: object, transposed: bool) -> str:
    """The 64-bit descriptor by which wgmma finds the matrix of a load in shared memory."""
    assert isinstance(m, Load)
    indices = _first(w, m)
    if alignment(m.buffer, indices) % MATRIX_ALIGN:
        raise UnsupportedError(
            f"a product of a warpgroup reads {m.buffer.name} at a place that is not known to be a "
            f"multiple of {MATRIX_ALIGN} bytes",
            where=w.func.name,
            hint=f"buffer(..., align={MATRIX_ALIGN}), and whole matrices one behind the other",
        )
    pointer, _ = address(w, m.buffer, indices)
    shared = w.line(f"addrspacecast ptr {pointer} to ptr addrspace(3)")
    start = w.line(f"ptrtoint ptr addrspace(3) {shared} to i32")
    # A descriptor has bits 4 to 17 of an address.
    units = w.line(f"lshr i32 {w.line(f'and i32 {start}, {(1 << 18) - 1}')}, 4")
    layout_bits = (
        _SWIZZLED | _EIGHT_ROWS // _UNIT << 32 | (_BLOCK // _UNIT if transposed else 1) << 16
    )
    return w.line(f"or i64 {w.line(f'zext i32 {units} to i64')}, {layout_bits}")
