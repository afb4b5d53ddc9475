"""The table of device instructions: what threads of a device compute beyond plain arithmetic.

A row is an intrinsic of tensor programs, `T.subgroup_sum(x, 32)`. It says which threads take part,
the types of the operands and of the result, which operands are memory, and the text of the
instruction for each code generator that has it. A code generator is a key of `text`: another one
adds its key to the rows that it has, and rows of its own. A row for PTX also says which compute
capability an architecture needs; a target without it is refused by name.

An instruction has no effect beyond its result. What it reads of memory is a Load among its
operands, and what is done with its result is a Store, so regions, dependences and races follow as
for all others, and proofs need no rules for instructions.

Instructions of a sub-group take the number of threads of one as their last operand, a literal N:
threads n * N to n * N + N - 1 along x take part, and all of them must reach it
(`ir/verify_device.py`); for PTX they are parts of whole warps. Those of a warp, or of a warpgroup
(four warps), are for GPUs of NVIDIA, whose warps have 32 threads. Which elements of a matrix each
of these threads holds is in `schedule/intrin/fragments.py`. Schedules use instructions by
`tensorize` (`schedule/intrin/device.py`, `schedule/intrin/warp.py`,
`schedule/intrin/warpgroup.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorkiln.base.element_types import BYTE_TYPES, HALF_TYPES
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.operators import Fault

# Who takes part in an instruction: each thread by itself, or the threads of a sub-group, of a warp,
# or of a warpgroup, together.
THREAD, SUBGROUP, WARP, WARPGROUP = "thread", "subgroup", "warp", "warpgroup"
WARP_THREADS, WARPGROUP_THREADS = 32, 128


@dataclass(frozen=True, slots=True)
class InstructionText:
    """An expression in the language of a code generator, over the operands `a`, `b`, `c`. `{lanes}`
    is the number of lanes of the result, `{space}` the qualifier of a pointer among the operands.
    `option`: a target option that must be true. `extensions`: what the device must support.

    For PTX (`ptx`) it is the name of LLVM's intrinsic after "llvm.nvvm.", in which `{types}` are
    those of the operands (`codegen/ptx/instructions.py`). `result`: LLVM's type of one lane of the
    result, where that is another of as many bits. `capability`: the least compute capability of a
    GPU of NVIDIA that has it, 80 for 8.0; later ones have it too, unless `archs` lists the only
    architectures. `newer`: the capability for operand types that were added later.
    """

    text: str
    option: str = ""
    extensions: tuple[str, ...] = ()
    result: str = ""
    capability: int = 0
    newer: Mapping[str, int] = field(default_factory=dict)
    archs: tuple[str, ...] = ()

    def capability_for(self, dtype: DType) -> int:
        """The least compute capability that has it for a first operand of this type."""
        return self.newer.get(dtype.element.name, self.capability)


Signature = tuple[DType, ...]


@dataclass(frozen=True, slots=True)
class DeviceInstruction:
    """A row. `signatures`: the possible types of the result and of each operand. `memory`: for
    operands that are Loads, by position, the scopes of memory that they may read. `text`: by code
    generator; of several, the first whose option the target has."""

    name: str
    participants: str
    signatures: tuple[Signature, ...]
    text: Mapping[str, tuple[InstructionText, ...]]
    memory: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def arity(self) -> int:
        """The number of operands."""
        return len(self.signatures[0]) - 1

    def result(self, operands: Signature) -> DType | None:
        """The type of the result for these types of operands; None if there is none."""
        return next((s[0] for s in self.signatures if s[1:] == operands), None)

    def dtype(self, args: Sequence[Any]) -> DType:
        """The type of its value, for these expressions."""
        types = tuple(a.dtype for a in args)
        return self.result(types) or types[0]

    def fault(self, name: str, types: Sequence[DType]) -> Fault | None:
        """What is wrong with operands of these types; None if nothing is."""
        if self.result(tuple(types)) is not None:
            return None
        choices = dict.fromkeys(", ".join(map(str, s[1:])) for s in self.signatures)
        return f"{name} of {', '.join(map(str, types))}", f"{name} takes {' or '.join(choices)}"


def _signature(text: str) -> Signature:
    return tuple(map(DType.parse, text.split()))


def _each_count(text: str, *counts: int) -> tuple[Signature, ...]:
    return tuple(
        _signature(text.format(n=n) if n > 1 else text.replace("x{n}", "")) for n in counts
    )


_COUNTS = (1, 2, 4, 8, 16)
_NUMBERS = ("float32", "int32", "uint32")
# A size of sub-groups that the compiler chooses, so that an instruction means the same everywhere.
_SUBGROUPS = ("cl_khr_subgroups", "cl_intel_required_subgroup_size")


def _of_subgroup(name: str, function: str) -> DeviceInstruction:
    text = InstructionText(f"sub_group_reduce_{function}(a)", "supports_subgroups", _SUBGROUPS)
    exchange = InstructionText("shfl.sync.bfly.{types}", capability=70)
    signatures = tuple(_signature(f"{t} {t} int64") for t in _NUMBERS)
    return DeviceInstruction(name, SUBGROUP, signatures, {"opencl": (text,), "ptx": (exchange,)})


def _mma(
    shape: str, *signatures: str, capability: int = 80, newer: Mapping[str, int] | None = None
) -> DeviceInstruction:
    """a * b + c, of fragments of matrices of shape m x k, k x n and m x n."""
    text = InstructionText(
        f"mma.{shape}.row.col.{{types}}", capability=capability, newer=newer or {}
    )
    name = f"warp_mma_{shape}"
    return DeviceInstruction(name, WARP, tuple(map(_signature, signatures)), {"ptx": (text,)})


def _load_matrix(count: int, transposed: bool) -> DeviceInstruction:
    """Fragments of 1, 2 or 4 matrices of 8 x 8 elements of 16 bits, or of 8 rows of 16 bytes."""
    other_types = () if transposed else (*BYTE_TYPES, FLOAT32.name)
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}.b16.p3"
    signatures = tuple(
        (DType(t, max(1, 4 // DType(t).bytes) * count), DType(t, 16 // DType(t).bytes))
        for t in (*HALF_TYPES, *other_types)
    )
    return DeviceInstruction(
        f"warp_load_matrix_{count}{'_transposed' if transposed else ''}",
        WARP,
        signatures,
        {"ptx": (InstructionText(text, capability=75),)},
        {0: ("shared",)},
    )


# Rows of the left factor of a warpgroup's product, its terms, and how many columns it may have.
WARPGROUP_ROWS, WARPGROUP_TERMS, WARPGROUP_COLUMNS = 64, 64, (64, 128, 192, 256)
TRANSPOSED = ("", "a", "b", "ab")
# Terms and columns of the products of attention: of queries with keys, and of weights, which
# threads hold, with values.
ATTENTION_SIZES = (64, 128)
MATRIX_ALIGN = 1024  # bytes, of its factors: eight rows of 128, after which their pattern repeats


def warpgroup_mma_name(
    columns: int, transposed: str = "", terms: int = WARPGROUP_TERMS, fragment: bool = False
) -> str:
    """The name of a product of a warpgroup. `transposed` has the letters of the factors, "a" and
    "b", that are transposed; with `fragment` threads hold the left one."""
    tail = f"_transposed_{transposed}" if transposed else ""
    kind = "fragment_" * fragment
    return f"warpgroup_mma_{kind}m{WARPGROUP_ROWS}n{columns}k{terms}{tail}"


def _warpgroup_mma(
    columns: int, transposed: str, terms: int = WARPGROUP_TERMS, fragment: bool = False
) -> DeviceInstruction:
    """a * b + c, of whole matrices in shared memory, which the instruction reads itself; with
    `fragment`, the threads hold a."""
    lhs_size, rhs_size = WARPGROUP_ROWS * terms, columns * terms
    if fragment:
        lhs_size //= WARPGROUP_THREADS
    sums = f"float32x{WARPGROUP_ROWS * columns // WARPGROUP_THREADS}"
    shape = f"m{WARPGROUP_ROWS}n{columns}"
    text = InstructionText(f"wgmma.mma_async.sync.aligned.{shape}k16", archs=("sm_90a",))
    return DeviceInstruction(
        warpgroup_mma_name(columns, transposed, terms, fragment),
        WARPGROUP,
        tuple(_signature(f"{sums} {t}x{lhs_size} {t}x{rhs_size} {sums}") for t in HALF_TYPES),
        {"ptx": (text,)},
        dict.fromkeys(range(int(fragment), 2), ("shared",)),
    )


_DOT = "supports_integer_dot_product"
DEVICE_INSTRUCTIONS: dict[str, DeviceInstruction] = {
    row.name: row
    for row in (
        # a * b + c, rounded once.
        DeviceInstruction(
            "thread_fma",
            THREAD,
            _each_count("float32x{n} float32x{n} float32x{n} float32x{n}", *_COUNTS),
            {"opencl": (InstructionText("fma(a, b, c)"),)},
        ),
        # a + the sum of b[k] * c[k]; it wraps.
        DeviceInstruction(
            "thread_dot4",
            THREAD,
            (_signature("int32 int32 int8x4 int8x4"),),
            {
                "opencl": (
                    InstructionText(
                        "as_int(as_uint(a) + as_uint(dot(b, c)))",
                        _DOT,
                        ("cl_khr_integer_dot_product",),
                    ),
                    InstructionText(
                        "as_int(as_uint(a) + as_uint(b.x*c.x + b.y*c.y + b.z*c.z + b.w*c.w))"
                    ),
                )
            },
        ),
        # Elements of float16 in memory as float32.
        DeviceInstruction(
            "thread_load_half",
            THREAD,
            _each_count("float32x{n} float16x{n}", 2, 4, 8, 16),
            {"opencl": (InstructionText("vload_half{lanes}(0, (const {space}half *)a)"),)},
            {0: ("global", "shared")},
        ),
        # The sum, maximum or minimum of a over the threads of a sub-group, in each of them. Sums of
        # floats are added in an order that the device chooses.
        _of_subgroup("subgroup_sum", "add"),
        _of_subgroup("subgroup_max", "max"),
        _of_subgroup("subgroup_min", "min"),
        # 2 to the power a, within 2^-22 of it; 0 or infinity beyond the range of normal numbers.
        DeviceInstruction(
            "thread_exp2",
            THREAD,
            _each_count("float32x{n} float32x{n}", *_COUNTS),
            {"ptx": (InstructionText("ex2.approx.ftz.f", capability=50),)},
        ),
        # The larger of a and b; of a number and a NaN the number.
        DeviceInstruction(
            "thread_max",
            THREAD,
            _each_count("float32x{n} float32x{n} float32x{n}", *_COUNTS),
            {"ptx": (InstructionText("fmax.f", capability=50),)},
        ),
        # The nearest number of 11 significant bits, ties away from zero: a factor of m16n8k8.
        DeviceInstruction(
            "thread_round_tf32",
            THREAD,
            _each_count("float32x{n} float32x{n}", *_COUNTS),
            {"ptx": (InstructionText("f2tf32.rna", result="i32", capability=80),)},
        ),
        # Products on tensor cores. Sums are in the type of c: those of integers wrap, those of
        # floats are added in an order, and with roundings, that the device chooses. Factors of
        # m16n8k8 in float32 have at most 11 significant bits (`thread_round_tf32`).
        _mma(
            "m16n8k16",
            "float32x4 float16x8 float16x4 float32x4",
            "float32x4 bfloat16x8 bfloat16x4 float32x4",
        ),
        _mma(
            "m16n8k8",
            "float32x4 float32x4 float32x2 float32x4",
            "float32x4 float16x4 float16x2 float32x4",
            capability=75,
            newer={"float32": 80},
        ),
        _mma(
            "m16n8k32", *(f"int32x4 {a}x16 {b}x8 int32x4" for a in BYTE_TYPES for b in BYTE_TYPES)
        ),
        _mma(
            "m8n8k16",
            *(f"int32x2 {a}x4 {b}x4 int32x2" for a in BYTE_TYPES for b in BYTE_TYPES),
            capability=75,
        ),
        # What the threads of a warp have of matrices in shared memory. Thread 8 * m + r gives row r
        # of matrix m, 16 bytes; of those without a matrix nothing is read.
        *(_load_matrix(count, flip) for flip in (False, True) for count in (1, 2, 4)),
        # Products of a warpgroup: sums of float32 in registers, added in an order and with
        # roundings that the device chooses, of 64 terms for each row of a and column of b. Elements
        # of 16 bits lie in rows of 128 bytes, whose pieces of 16 bytes are permuted by the number
        # of the row (`swizzled` in schedule/intrin/warpgroup.py); a matrix begins at a multiple of
        # 1024 bytes. Of a transposed factor, each row of 128 bytes is of one term. Of 128 terms,
        # the second half of either matrix lies behind the first.
        *(_warpgroup_mma(n, factors) for n in WARPGROUP_COLUMNS for factors in TRANSPOSED),
        *(
            _warpgroup_mma(n, "b" * fragment, terms, fragment)
            for fragment in (False, True)
            for n in ATTENTION_SIZES
            for terms in ATTENTION_SIZES
            if fragment or terms > WARPGROUP_TERMS
        ),
    )
}


__all__ = [
    "ATTENTION_SIZES",
    "DEVICE_INSTRUCTIONS",
    "MATRIX_ALIGN",
    "SUBGROUP",
    "THREAD",
    "TRANSPOSED",
    "WARP",
    "WARPGROUP",
    "WARPGROUP_COLUMNS",
    "WARPGROUP_ROWS",
    "WARPGROUP_TERMS",
    "WARPGROUP_THREADS",
    "WARP_THREADS",
    "DeviceInstruction",
    "InstructionText",
    "warpgroup_mma_name",
]
