"""Device instructions in LLVM IR for a GPU of NVIDIA: calls of LLVM's intrinsics, on registers of
32 bits as PTX has them."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.device_functions import instructions_in
from tensorkiln.codegen.llvm import intrinsics
from tensorkiln.codegen.llvm.addresses import address
from tensorkiln.codegen.llvm.types import llvm_type
from tensorkiln.codegen.llvm.writer import Expressions, KernelWriter
from tensorkiln.ir.buffer import Load
from tensorkiln.ir.copies import is_asynchronous
from tensorkiln.ir.device_instructions import DEVICE_INSTRUCTIONS
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Intrin
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.target.capability import ASYNC_COPIES
from tensorkiln.target.gpus import capability_of

_CODEGEN = "ptx"
# Types of operands in the names of LLVM's intrinsics. Factors of float32 are tf32.
_NAMES = {"bfloat16": "bf16", "float32": "tf32", "int8": "s8", "uint8": "u8"}
_HALVES = "<2 x half>"


def require_instructions(f: PrimFunc, archs: Sequence[str]) -> None:
    """Raise UnsupportedError for an instruction that has no text in PTX, or that one of the
    architectures lacks, as it does asynchronous copies."""
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
            known = [name for name, row in DEVICE_INSTRUCTIONS.items() if _CODEGEN in row.text]
            message = f"{e.name} is an instruction that GPUs of NVIDIA do not have"
            hint = f"the target's code generator has {', '.join(known)}"
            raise UnsupportedError(message, where=f.name, hint=hint)
        least = texts[0].capability
        for arch in archs:
            if capability_of(arch) < least:
                raise UnsupportedError(
                    f"{arch} does not have {e.name}, which needs compute capability "
                    f"{least // 10}.{least % 10}",
                    where=f.name,
                    hint=f"sm_{least} or newer, for arch and each of also",
                )


def _intrin(w: KernelWriter, e: Intrin) -> str:
    row = DEVICE_INSTRUCTIONS.get(e.name)
    if row is None:
        return intrinsics.EXPRESSIONS[Intrin](w, e)
    name = f"llvm.nvvm.{row.text[_CODEGEN][0].text}"
    if row.memory:
        return _load_matrix(w, e, name)
    if e.name.startswith("warp_mma"):
        return _mma(w, e, name)
    return _by_lane(w, e, name)


def _mma(w: KernelWriter, e: Intrin, name: str) -> str:
    left, right, sums = (a.dtype for a in e.args)
    if left.name == "float16":
        types = "f32.f32"  # of the sums
    else:
        types = ".".join(dict.fromkeys((_NAMES[left.name], _NAMES[right.name])))
    register = _HALVES if left.name == "float16" else "i32"
    args = [f"{register} {x}" for a in e.args[:2] for x in _registers(w, w.value(a), a.dtype)]
    t, vector = llvm_type(sums.element), w.value(e.args[2])
    for k in range(sums.lanes):
        x = w.line(f"extractelement {llvm_type(sums)} {vector}, i32 {k}")
        args.append(f"{t} {x}")
    return _called(w, name.format(types=types), args, t, sums)


def _load_matrix(w: KernelWriter, e: Intrin, name: str) -> str:
    (row,) = e.args
    assert isinstance(row, Load)
    pointer, _ = address(w, row.buffer, row.indices)
    place = w.line(f"addrspacecast ptr {pointer} to ptr addrspace(3)")
    count = e.dtype.lanes * e.dtype.bytes // 4
    found = _called(w, name, [f"ptr addrspace(3) {place}"], "i32", DType("int32", count))
    own = llvm_type(DType("int32", count))
    return w.line(f"bitcast {own} {found} to {llvm_type(e.dtype)}")


def _by_lane(w: KernelWriter, e: Intrin, name: str) -> str:
    """An instruction of a scalar, of each lane; the result is of the same bits."""
    (a,) = e.args
    t, given = llvm_type(a.dtype), w.value(a)
    made = given
    for k in range(a.dtype.lanes):
        x = given if a.dtype.lanes == 1 else w.line(f"extractelement {t} {given}, i32 {k}")
        bits = _called(w, name, [f"{llvm_type(a.dtype.element)} {x}"], "i32", DType("int32"))
        made_one = w.line(f"bitcast i32 {bits} to {llvm_type(a.dtype.element)}")
        if a.dtype.lanes == 1:
            return made_one
        made = w.line(f"insertelement {t} {made}, {llvm_type(a.dtype.element)} {made_one}, i32 {k}")
    return made


def _registers(w: KernelWriter, value: str, dtype: DType) -> list[str]:
    """A vector in registers of 32 bits: two of float16, or a number."""
    count = dtype.lanes * dtype.bytes // 4
    wide = w.line(f"bitcast {llvm_type(dtype)} {value} to <{count} x i32>")
    found = [w.line(f"extractelement <{count} x i32> {wide}, i32 {k}") for k in range(count)]
    if dtype.name == "float16":
        found = [w.line(f"bitcast i32 {x} to {_HALVES}") for x in found]
    return found


def _called(w: KernelWriter, name: str, args: Sequence[str], t: str, dtype: DType) -> str:
    """The result of an intrinsic that returns each lane of `dtype` as a `t`."""
    result = t if dtype.lanes == 1 else "{" + ", ".join([t] * dtype.lanes) + "}"
    types = ", ".join(a.rpartition(" ")[0] for a in args)
    w.declares.add(f"declare {result} @{name}({types})")
    found = w.line(f"call {result} @{name}({', '.join(args)})")
    if dtype.lanes == 1:
        return found
    vector, made = llvm_type(dtype), "poison"
    for k in range(dtype.lanes):
        x = w.line(f"extractvalue {result} {found}, {k}")
        made = w.line(f"insertelement {vector} {made}, {t} {x}, i32 {k}")
    return made


EXPRESSIONS: Expressions = {Intrin: _intrin}
__all__ = ["EXPRESSIONS", "require_instructions"]
