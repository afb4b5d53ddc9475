"""Matrix products of warpgroups (wgmma) in LLVM IR for a GPU of NVIDIA, as inline assembly, because
LLVM has no intrinsic for them.

A product is one piece of assembly. It starts a wgmma for every 16 terms, all of which may run at
the same time, and waits for them at its end. If a register of the sums were touched in between,
ptxas would have to wait after each of them.

Tensor cores read shared memory by a path of their own (the async proxy). They see what threads
wrote only after a fence of the writing threads and a barrier.
"""

from __future__ import annotations

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
from tensorkiln.ir.expr import Expr, IntImm, Intrin, Var
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


def is_of_warpgroup(e: Intrin) -> bool:
    """Whether an instruction is a product of a warpgroup."""
    row = DEVICE_INSTRUCTIONS.get(e.name)
    return row is not None and row.participants == WARPGROUP


def write_product(w: KernelWriter, e: Intrin, name: str) -> str:
    """Write a product, and return its sums. `name` is the instruction in PTX."""
    lhs, rhs, sums = e.args
    transposed = e.name.partition("_transposed_")[2]
    flips = "a" in transposed, "b" in transposed
    starts = [_descriptor(w, m, flip) for m, flip in zip((lhs, rhs), flips, strict=True)]
    t, vector, count = llvm_type(sums.dtype), w.value(sums), sums.dtype.lanes
    # Inline assembly takes and returns scalars: the vector of sums is taken apart, and put together
    # again.
    elements = [w.line(f"extractelement {t} {vector}, i32 {k}") for k in range(count)]
    steps = [
        [w.line(f"add i64 {start}, {k * size // _UNIT}") for k in range(WARPGROUP_TERMS // _TERMS)]
        for start, flip in zip(starts, flips, strict=True)
        for size in (_STEP_TRANSPOSED if flip else _STEP,)
    ]
    text = _assembly(name, lhs.dtype.row.ptx, count, len(steps[0]), flips)
    places = [x for pair in zip(*steps, strict=True) for x in pair]
    outputs, inputs = ",".join(["=f"] * count), ",".join(map(str, range(count)))
    bounds = f"{outputs},{','.join(['l'] * len(places))},{inputs},~{{memory}}"
    args = ", ".join([*(f"i64 {x}" for x in places), *(f"float {x}" for x in elements)])
    result = "{" + ", ".join(["float"] * count) + "}"
    struct = w.line(f'call {result} asm sideeffect "{text}", "{bounds}"({args})')
    output = "poison"
    for k in range(count):
        x = w.line(f"extractvalue {result} {struct}, {k}")
        output = w.line(f"insertelement {t} {output}, float {x}, i32 {k}")
    return output


def write_fence(w: KernelWriter) -> None:
    """Make what this thread wrote to shared memory visible to tensor cores."""
    w.emit(f"  call {FENCE}")


def _assembly(name: str, dtype: str, count: int, steps: int, flips: tuple[bool, bool]) -> str:
    registers = ", ".join(f"${k}" for k in range(count))
    immediates = ", ".join(["1", "1", "1", *(str(int(flip)) for flip in flips)])
    lines = ["wgmma.fence.sync.aligned;"]
    for k in range(steps):
        lhs, rhs = f"${count + 2 * k}", f"${count + 2 * k + 1}"
        lines.append(f"{name}.f32.{dtype}.{dtype} {{{registers}}}, {lhs}, {rhs}, {immediates};")
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
