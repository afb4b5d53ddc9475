"""Device function -> LLVM IR text for a GPU of NVIDIA.

The emitter is that of CPUs (`codegen/llvm/emit.py`) with tables of its own for loops bound to
thread indices, shared memory, barriers and device instructions. Pointers are generic; LLVM infers
which are global and which shared from where they begin: parameters, and the symbol of the shared
memory. Buffers are `noalias` unless other threads may write them around a barrier.

Elementary functions, integer arithmetic, all conversions but the casts to bfloat16, and which
multiply-adds may be contracted are as on CPUs; divisions and square roots round correctly, and
denormals are kept. Results therefore agree with the CPU's, and tests run the same LLVM IR on the
CPU with a fiber for each thread (tests/cuda/emulator).
"""

from __future__ import annotations

import math
import re

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.device_functions import require_runnable
from tensorkiln.codegen.expand.drop_starts import drop_starts
from tensorkiln.codegen.expand.only_read import only_read
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.codegen.expand.whole_registers import whole_registers
from tensorkiln.codegen.host.tensor_maps import MAP_BYTES, TensorMap
from tensorkiln.codegen.llvm import emit
from tensorkiln.codegen.llvm.types import parameter_type
from tensorkiln.codegen.llvm.writer import Expressions, Statements
from tensorkiln.codegen.ptx import conversions, instructions, rings
from tensorkiln.codegen.ptx.alignment import write_body
from tensorkiln.codegen.ptx.box_pieces import TensorMapBox
from tensorkiln.codegen.ptx.boxes import boxes_of, maps_of
from tensorkiln.codegen.ptx.threads import DeviceWriter, set_launch
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.copies import copies_in
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import buffer_bytes
from tensorkiln.ir.stmt import Alloc, PrimFunc, Store, Sync
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.target import Target
from tensorkiln.target.capability import archs_of

# A multiprocessor has to run two blocks of 256 threads at once to be busy. With this many words per
# thread in buffers of registers, ptxas takes more registers than that leaves, without need; with
# more words it would have to spill.
_TWICE, _MANY = 256, range(64, 97)
EXPRESSIONS: Expressions = {
    **emit.EXPRESSIONS,
    **conversions.EXPRESSIONS,
    **instructions.EXPRESSIONS,
}
STATEMENTS: Statements = {**emit.STATEMENTS, **rings.STATEMENTS}


def emit_ptx_ir(func: PrimFunc, target: Target) -> str:
    """LLVM IR text of a device function: `define ptx_kernel void name(ptr..., i64...)`, in the
    order of its parameters, and behind them the tensor maps that it needs (`tensor_maps_of`); bool
    is a byte, and float16 its bits. The memory that its blocks share is given at the launch. The
    same text is compiled for every architecture.

    Raises UnsupportedError for what a device does not run, for an instruction that an architecture
    of the target lacks, and for a name that PTX does not take.
    """
    _require_name(func)
    require_runnable(func)
    instructions.require_instructions(func, archs_of(target))
    rings.require_ring(func, archs_of(target))
    register_words = _own_words(func)
    func = _prepared(func)
    w = DeviceWriter(func, target, EXPRESSIONS, STATEMENTS)
    boxes = boxes_of(func)
    w.boxes = {id(nest): box for nest, box in boxes if isinstance(box, TensorMapBox)}
    params: dict[Buffer | Var, str] = {p: f"%p{i}" for i, p in enumerate(func.params)}
    w.maps = {m: f"%p{len(params) + i}" for i, m in enumerate(maps_of(boxes))}
    with w.definition(_head(w, params), params):
        set_launch(w)
        emit.take_numbers(w)
        write_body(w)
    size = ",".join(map(str, w.launch.block))
    # Two blocks of 256 threads share 65,536 registers, 128 for each thread. The attribute makes
    # ptxas keep to that. Where a thread needs fewer, ptxas finds a better number by itself: told
    # this one, it takes up to 128. Products of warpgroups need more than 128 for their sums.
    many = math.prod(w.launch.block) == _TWICE and register_words in _MANY and not w.for_products
    two = ' "nvvm.minctasm"="2"' if many else ""
    # Registers that threads leave to others are counted from those with which they begin.
    if w.registers:
        two = f' "nvvm.maxnreg"="{w.registers}"'
    attributes = f'attributes #0 = {{ nounwind "nvvm.reqntid"="{size}"{two} }}'
    text = "\n\n".join([*w.messages, *w.functions, "\n".join(sorted(w.declares)), attributes])
    return text + "\n\n!0 = !{i32 1}\n"


def _prepared(f: PrimFunc) -> PrimFunc:
    """A device function in the form that is emitted: unrolled, with registers accessed in whole
    pieces."""
    return drop_starts(whole_registers(unroll_function(f)))


def tensor_maps_of(f: PrimFunc) -> tuple[tuple[TensorMap, ...], dict[str, str]]:
    """(the tensor maps that a device function takes after its parameters; by name of each tensor
    that its threads copy although TMA was allowed, the reason)"""
    boxes = boxes_of(_prepared(f))
    copied = ((nest, box) for nest, box in boxes if isinstance(box, str))
    reasons = {x.load.buffer.name: reason for nest, reason in copied for x in copies_in(nest)}
    return maps_of(boxes), reasons


def _own_words(f: PrimFunc) -> int:
    """Words of 4 bytes that a thread keeps in buffers of registers."""
    allocs = (s.buffer for s in walk_stmt(f.body) if isinstance(s, Alloc))
    return sum(buffer_bytes(b) for b in allocs if b.scope == "register") // 4


def _head(w: DeviceWriter, params: dict[Buffer | Var, str]) -> str:
    """The head of the kernel. Buffers that nothing writes are `readonly`, so that they are loaded
    through the read-only cache."""
    read = only_read(w.func)
    args = []
    for p, name in params.items():
        if isinstance(p, Buffer):
            alias = "" if w.aliases or _may_change(w.func, p) else " noalias"
            constant = " readonly" if p in read and not w.aliases else ""
            args.append(f"ptr{alias}{constant} align {p.align} {name}")
        else:
            args.append(f"{parameter_type(p.dtype)} {name}")
    # By value, in the memory of parameters, where the driver puts it: a copy elsewhere would not be
    # a valid map.
    attributes = f'byval([{MAP_BYTES} x i8]) align {MAP_BYTES} "nvvm.grid_constant"'
    args += [f"ptr {attributes} {name}" for name in w.maps.values()]
    return f"define ptx_kernel void @{w.func.name}({', '.join(args)}) #0"


def _may_change(f: PrimFunc, buffer: Buffer) -> bool:
    """Whether a thread may read from a buffer what another thread wrote: only if it is read and
    written, and there is a barrier."""
    statements = list(walk_stmt(f.body))
    written = any(isinstance(s, Store) and s.buffer is buffer for s in statements)
    if not written or not any(isinstance(s, Sync) for s in statements):
        return False
    parts = (x for s in statements for e in stmt_exprs(s) for x in walk(e))
    return any(isinstance(x, Load) and x.buffer is buffer for x in parts)


def _require_name(f: PrimFunc) -> None:
    """PTX takes the names that C takes, except `_` and `WARP_SZ`."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*|_[A-Za-z0-9_]+", f.name) is None or f.name == "WARP_SZ":
        fault = f"{f.name!r} is not a name that PTX takes"
        raise UnsupportedError(fault, where=f.name, hint=f"my_{f.name}")
