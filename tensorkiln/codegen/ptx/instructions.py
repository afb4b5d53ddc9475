"""Device instructions (`ir/device_instructions.py`) as calls of LLVM's NVVM intrinsics.

PTX has vectors in registers of 32 bits, so a vector operand is cut into such registers and a result
is put together from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.device_functions import instructions_in
from tensorkiln.codegen.llvm import intrinsics
from tensorkiln.codegen.llvm.addresses import address
from tensorkiln.codegen.llvm.arithmetic import binary
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.codegen.ptx.warpgroup import write_product
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.device_instructions import (
    DEVICE_INSTRUCTIONS,
    SUBGROUP,
    WARP,
    WARP_THREADS,
    WARPGROUP,
)
from tensorkiln.ir.dtype import FLOAT16, FLOAT32, DType
from tensorkiln.ir.expr import REDUCE_BINARY, IntImm, Intrin, int_value
from tensorkiln.ir.launch import thread_of
from tensorkiln.ir.stmt import THREAD_INDICES, For, PrimFunc
from tensorkiln.ir.visit import stmt_exprs, walk, walk_stmt
from tensorkiln.target.capability import ASYNC_COPIES
from tensorkiln.target.gpus import capability_of

_CODEGEN = "ptx"
_HALVES = "<2 x half>"
_SUBGROUPS = tuple(n for n, row in DEVICE_INSTRUCTIONS.items() if row.participants == SUBGROUP)


def require_instructions(f: PrimFunc, archs: Sequence[str]) -> None:
    """Raise UnsupportedError for an instruction without text in PTX, and for one, or asynchronous
    copies, that an architecture of the target lacks."""
    if any(map(is_asynchronous, walk_stmt(f.body))):
        for arch in (a for a in archs if capability_of(a) < ASYNC_COPIES):
            raise UnsupportedError(
                f"{arch} does not have asynchronous copies",
                where=f.name,
                hint="sm_80 or newer, for arch and each of also; or leave the annotation out",
            )
    for e in instructions_in(f):
        texts = DEVICE_INSTRUCTIONS[e.name].text.get(_CODEGEN, ())
        if not texts:
            names = [name for name, row in DEVICE_INSTRUCTIONS.items() if _CODEGEN in row.text]
            message = f"{e.name} is an instruction that GPUs of NVIDIA do not have"
            hint = f"the target's code generator has {', '.join(names)}"
            raise UnsupportedError(message, where=f.name, hint=hint)
        capability, only = texts[0].capability_for(e.args[0].dtype), texts[0].archs
        for arch in archs:
            if only and arch not in only:
                raise UnsupportedError(
                    f"{arch} does not have {e.name}, which {' and '.join(only)} alone has",
                    where=f.name,
                    hint=f"{' or '.join(only)} for arch, and no others in also",
                )
            if capability_of(arch) < capability:
                raise UnsupportedError(
                    f"{arch} does not have {e.name}, which needs compute capability "
                    f"{capability // 10}.{capability % 10}",
                    where=f.name,
                    hint=f"sm_{capability} or newer, for arch and each of also",
                )
    _require_whole_warps(f)


def _require_whole_warps(f: PrimFunc) -> None:
    """Raise UnsupportedError for a sub-group that is not part of a full warp: the intrinsic
    exchanges values among all 32 threads, so all of them must execute it."""
    for s in walk_stmt(f.body):
        if not isinstance(s, For) or thread_of(s) != THREAD_INDICES[0]:
            continue
        threads = int_value(s.extent) or 0
        for x in (x for t in walk_stmt(s) for e in stmt_exprs(t) for x in walk(e)):
            if not isinstance(x, Intrin) or x.name not in _SUBGROUPS:
                continue
            size = int_value(x.args[-1]) or 0
            if size > WARP_THREADS or threads % WARP_THREADS:
                message = f"{x.name} over {size} of {threads} threads along x"
                hint = f"up to {WARP_THREADS} threads, in a nest of a multiple of {WARP_THREADS}"
                raise UnsupportedError(message, where=f.name, hint=hint)


def _intrin(w: KernelWriter, e: Intrin) -> str:
    row = DEVICE_INSTRUCTIONS.get(e.name)
    if row is None:
        return intrinsics.EXPRESSIONS[Intrin](w, e)
    text = row.text[_CODEGEN][0]
    name = f"llvm.nvvm.{text.text}"
    if row.participants == WARPGROUP:
        return write_product(w, e, text.text)
    if row.participants == WARP:
        return _load_matrix(w, e, name) if row.memory else _mma(w, e, name)
    if row.participants == SUBGROUP:
        return _reduced(w, e, name)
    return _by_lane(w, e, name, text.result)


def _mma(w: KernelWriter, e: Intrin, name: str) -> str:
    lhs, rhs, sums = (a.dtype for a in e.args)
    if lhs.element == FLOAT16:
        types = "f32.f32"  # of the sums
    else:
        types = ".".join(dict.fromkeys(map(_factor, (lhs, rhs))))
    register = _HALVES if lhs.element == FLOAT16 else "i32"
    args = [f"{register} {x}" for a in e.args[:2] for x in _registers(w, w.value(a), a.dtype)]
    t, vector = llvm_type(sums.element), w.value(e.args[2])
    for k in range(sums.lanes):
        x = w.line(f"extractelement {llvm_type(sums)} {vector}, i32 {k}")
        args.append(f"{t} {x}")
    return _called(w, name.format(types=types), args, t, sums)


def _factor(dtype: DType) -> str:
    """A factor's type in the names of LLVM's intrinsics: of a float32 its first bits count."""
    return "tf32" if dtype.element == FLOAT32 else dtype.row.ptx


def _load_matrix(w: KernelWriter, e: Intrin, name: str) -> str:
    (row,) = e.args
    assert isinstance(row, Load)
    pointer, _ = address(w, row.buffer, row.indices)
    place = w.line(f"addrspacecast ptr {pointer} to ptr addrspace(3)")
    count = e.dtype.lanes * e.dtype.bytes // 4
    registers = _called(w, name, [f"ptr addrspace(3) {place}"], "i32", DType("int32", count))
    word_type = llvm_type(DType("int32", count))
    return w.line(f"bitcast {word_type} {registers} to {llvm_type(e.dtype)}")


def _reduced(w: KernelWriter, e: Intrin, name: str) -> str:
    """A reduction over neighbouring threads, as a butterfly: each thread combines its value with
    that of the thread 1, 2, 4, ... away."""
    a, size = e.args
    t, value = llvm_type(a.dtype), w.value(a)
    op = REDUCE_BINARY[e.name.removeprefix("subgroup_")]
    name = name.format(types="f32" if a.dtype.is_float else "i32")
    apart = 1
    while apart < (int_value(size) or 1):
        args = ["i32 -1", f"{t} {value}", f"i32 {apart}", f"i32 {WARP_THREADS - 1}"]
        partner = _called(w, name, args, t, a.dtype)
        value = binary(w, op, value, partner, a.dtype, IntImm(0))
        apart *= 2
    return value


def _by_lane(w: KernelWriter, e: Intrin, name: str, result: str) -> str:
    """An instruction on scalars, applied to each lane. The result has as many bits as the first
    operand, and in LLVM the type `result`, or its own if that is empty."""
    dtype = e.args[0].dtype
    t, element = llvm_type(dtype), llvm_type(dtype.element)
    vectors = [w.value(a) for a in e.args]
    output = vectors[0]
    for k in range(dtype.lanes):
        args = vectors
        if dtype.lanes > 1:
            args = [w.line(f"extractelement {t} {x}, i32 {k}") for x in vectors]
        lane = _called(w, name, [f"{element} {x}" for x in args], result or element, dtype.element)
        if result:
            lane = w.line(f"bitcast {result} {lane} to {element}")
        if dtype.lanes == 1:
            return lane
        output = w.line(f"insertelement {t} {output}, {element} {lane}, i32 {k}")
    return output


def _registers(w: KernelWriter, value: str, dtype: DType) -> list[str]:
    """A vector as registers of 32 bits: two float16 each, or whole numbers."""
    count = dtype.lanes * dtype.bytes // 4
    wide = w.line(f"bitcast {llvm_type(dtype)} {value} to <{count} x i32>")
    words = [w.line(f"extractelement <{count} x i32> {wide}, i32 {k}") for k in range(count)]
    if dtype.element == FLOAT16:
        words = [w.line(f"bitcast i32 {x} to {_HALVES}") for x in words]
    return words


def _called(w: KernelWriter, name: str, args: Sequence[str], t: str, dtype: DType) -> str:
    """The result of an intrinsic that returns each lane of `dtype` as a `t`."""
    result = t if dtype.lanes == 1 else "{" + ", ".join([t] * dtype.lanes) + "}"
    types = ", ".join(a.rpartition(" ")[0] for a in args)
    w.declares.add(f"declare {result} @{name}({types})")
    struct = w.line(f"call {result} @{name}({', '.join(args)})")
    if dtype.lanes == 1:
        return struct
    vector, output = llvm_type(dtype), "poison"
    for k in range(dtype.lanes):
        x = w.line(f"extractvalue {result} {struct}, {k}")
        output = w.line(f"insertelement {vector} {output}, {t} {x}, i32 {k}")
    return output


EXPRESSIONS: Expressions = {Intrin: _intrin}
__all__ = ["EXPRESSIONS", "require_instructions"]
