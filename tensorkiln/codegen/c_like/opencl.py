"""OpenCL C 1.2: device functions as kernels, whose thread loops are the indices of work items.

A loop that is bound to a thread index prints as its body, after a constant that holds the index; a
nest of threads that is smaller than the block is guarded. Floats of 16 bits are kept as their bits,
so no device needs cl_khr_fp16.

Results are equal to the CPU's bit for bit where the device divides and takes square roots as IEEE
754 says: elementary functions (`codegen/expand/math.py`), conversions and integer arithmetic are
the same programs. Whoever builds the text must not allow fast math and, where a device can, asks
for divisions and square roots that round correctly (`-cl-fp32-correctly-rounded-divide-sqrt`).

Raises UnsupportedError for what a device could not run, such as float64 without `supports_float64`
or a block beyond the limits of the target.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like import (
    control,
    conversions,
    intrinsics,
    loops,
    memory,
    threads,
    values,
    vectors,
)
from tensorkiln.codegen.c_like.c99 import NO_COMMENTS
from tensorkiln.codegen.c_like.device_instructions import require_instructions, uses_subgroups
from tensorkiln.codegen.c_like.dialect import Dialect
from tensorkiln.codegen.c_like.writer import Expressions, FileText, Statements, TextWriter
from tensorkiln.codegen.c_text.text import comment, wrap
from tensorkiln.codegen.device_functions import described, require_runnable
from tensorkiln.codegen.expand.drop_starts import drop_starts
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.codegen.expand.whole_registers import whole_registers
from tensorkiln.codegen.host.devices import DeviceFunction
from tensorkiln.codegen.kernel_names import C_WORDS
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target

_SCALARS = {name: row.opencl for name, row in ELEMENT_TYPES.items() if row.opencl}


def _square_root(w: TextWriter, name: str, dtype: DType) -> str:
    t = w.type(dtype)
    return f"static inline {t} {name}({t} x)\n{{\n    return sqrt(x);\n}}\n"


OPENCL = Dialect(
    scalars=_SCALARS,
    widest="{x}{u}L",
    lowest="{name}_MIN",
    infinity="INFINITY",
    nan="NAN",
    vector_name="{element}{count}",
    vector_declaration="",
    memory_declaration="",
    most_lanes=16,
    convert_vector="convert_{type}({x})",
    vector_bits="as_{type}({x})",
    scalar_bits="as_{type}({x})",
    comparison="{x}",
    vector_of="({type})({items})",
    splat="({type})({x})",
    choice="select({b}, {a}, {mask})",
    lane="{x}.s{i:x}",
    load="vload{count}(0, {p})",
    store="vstore{count}({x}, 0, {p});",
    load_vector="",
    store_vector="",
    word_bits=32,
    spaces={"global": "__global ", "shared": "__local "},
    indices={"blockIdx": "get_group_id({number})", "threadIdx": "get_local_id({number})"},
    barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
    array="{type} {name}[{size}] __attribute__((aligned({align})));",
    prefetch="",
    square_root=_square_root,
    dot=lambda w, function_name, name, lanes: None,
    note_failure="",
    parallel_for=False,
    extern="",
    restrict="restrict",
    function="static inline",
    vector_function="static inline",
    instructions="opencl",
)

EXPRESSIONS: Expressions = {
    **values.EXPRESSIONS,
    **conversions.EXPRESSIONS,
    **vectors.EXPRESSIONS,
    **memory.EXPRESSIONS,
    **intrinsics.EXPRESSIONS,
}
STATEMENTS: Statements = {
    **control.STATEMENTS,
    **loops.STATEMENTS,
    **memory.STATEMENTS,
    **threads.STATEMENTS,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


# Keywords and types beyond C's, and the functions that the text calls.
_WORDS = _words(
    """
    asm atomic_int barrier bool complex constant event_t false generic get_group_id get_local_id
    global half imaginary INFINITY INT_MIN intptr_t kernel local LONG_MIN NAN NULL pipe private
    ptrdiff_t quad read_only read_write sampler_t select signed size_t sqrt true uchar uint
    uintptr_t ulong unsigned ushort vector write_only
    """
)
_COUNTS = ("", "2", "3", "4", "8", "16")
_TYPES = [f"{name}{count}" for name in (*_SCALARS.values(), "half") for count in _COUNTS]
_OF_TYPES = frozenset(
    {
        *_TYPES,
        *(f"{verb}_{t}" for verb in ("as", "convert") for t in _TYPES),
        *(f"v{verb}{count}" for verb in ("load", "store") for count in _COUNTS[1:]),
    }
)
# Kernels may have no name of a built-in function, since these have the types of many arguments.
_FUNCTIONS = _words(
    """
    abs abs_diff acos acosh acospi add_sat all any asin asinh asinpi atan atan2 atan2pi atanh
    atanpi bitselect cbrt ceil clamp clz copysign cos cosh cospi cross ctz degrees distance dot
    erf erfc exp exp10 exp2 expm1 fabs fast_distance fast_length fast_normalize fdim floor fma
    fmax fmin fmod fract frexp hadd hypot ilogb isequal isfinite isgreater isgreaterequal isinf
    isless islessequal islessgreater isnan isnormal isnotequal isordered isunordered ldexp
    length lgamma lgamma_r log log10 log1p log2 logb mad mad24 mad_hi mad_sat max maxmag
    mem_fence min minmag mix modf mul24 mul_hi nan native_cos native_divide native_exp
    native_exp10 native_exp2 native_log native_log10 native_log2 native_powr native_recip
    native_rsqrt native_sin native_sqrt native_tan nextafter normalize popcount pow pown powr
    prefetch printf radians read_mem_fence remainder remquo rhadd rint rootn rotate round rsqrt
    shuffle shuffle2 sign signbit sin sincos sinh sinpi smoothstep step sub_sat tan tanh tanpi
    tgamma trunc upsample vec_step wait_group_events work_group_barrier write_mem_fence
    """
)


# Extensions that are attributes, or functions of later versions of the language.
_WITHOUT_PRAGMA = ("cl_intel_required_subgroup_size", "cl_khr_integer_dot_product")


@dataclass(frozen=True, slots=True)
class DeviceText:
    """The text of device functions, and what each of them is."""

    text: str
    functions: tuple[DeviceFunction, ...]


def emit_opencl(
    funcs: Sequence[PrimFunc], target: Target, comments: Mapping[str, Sequence[str]] = NO_COMMENTS
) -> DeviceText:
    """OpenCL C that defines a kernel for each device function; `comments` has lines about each.

    A buffer parameter becomes two: `__global uchar *x_memory`, a memory object, and `long x_start`,
    the byte in it at which the buffer begins. Symbolic sizes and other numbers follow in the
    function's order; bool is a byte, and floats of 16 bits are their bits.

    Raises UnsupportedError for assertions and calls of C functions, for names that OpenCL C keeps
    for itself, for vectors of more than 16 lanes, for a block of more threads or shared memory than
    `target` has, and for float64 where the target does not say `supports_float64`.
    """
    for f in funcs:
        _require_free_name(f)
        require_runnable(f)
        require_instructions(f, OPENCL.instructions, target)
    names = frozenset(f.name for f in funcs)
    file = FileText(target, OPENCL, frozenset(C_WORDS | _WORDS | _OF_TYPES | names), names)
    texts = [_kernel(f, file, comments.get(f.name, ())) for f in funcs]
    described = tuple(_described(f, text, file) for f, text in zip(funcs, texts, strict=True))
    extensions = sorted({e for d in described for e in d.extensions})
    pragmas = "".join(
        f"#pragma OPENCL EXTENSION {e} : enable\n" for e in extensions if e not in _WITHOUT_PRAGMA
    )
    head = [pragmas] if pragmas else []
    return DeviceText("\n".join([*head, *file.helpers.values(), *texts]), described)


def _require_free_name(f: PrimFunc) -> None:
    if f.name in C_WORDS | _WORDS | _OF_TYPES | _FUNCTIONS:
        fault = f"{f.name!r} is a name that OpenCL C keeps for itself"
        raise UnsupportedError(fault, where=f.name, hint=f"my_{f.name}")


def _kernel(func: PrimFunc, file: FileText, about: Sequence[str]) -> str:
    """The text of one kernel, after a comment about it."""
    w = TextWriter(
        drop_starts(whole_registers(unroll_function(func))), func, file, EXPRESSIONS, STATEMENTS
    )
    block = launch_of(func).block
    with w.function() as state:
        params, pointers = _parameters(w)
        head = wrap(f"void {func.name}(", params or ["void"], ")")
        w.statement(w.func.body)
        shared = list(map(w.indented, w.shared))
        state.lines[:0] = [*pointers, *shared]
        body = w.body()
    size = ", ".join(map(str, block))
    lines = "".join(f" * {comment(line)}".rstrip() + "\n" for line in about)
    heading = f"/* {func.name}\n{lines} */\n" if about else ""
    attribute = f"__kernel __attribute__((reqd_work_group_size({size})))"
    if uses_subgroups(func):
        lanes = file.target["thread_warp_size"]
        attribute += f" __attribute__((intel_reqd_sub_group_size({lanes})))"
    return "\n".join([f"{heading}{attribute}", head, "{", *([body] if body else []), "}\n"])


def _parameters(w: TextWriter) -> tuple[list[str], list[str]]:
    """Declare the parameters; return them, and the lines that make pointers of memory objects."""
    params, pointers = [], []
    restrict = "" if w.func.inplace else f"{w.dialect.restrict} "
    for p in w.func.params:
        name = w.state.names[p] = w.name_of(p)
        if not isinstance(p, Buffer):
            if p.dtype.is_bool:
                w.state.bytes.add(p)
            params.append(f"{w.dialect.element(p.dtype)} {name}")
            continue
        const = "const " if p in w.read_only else ""
        place, start = w.name(f"{name}_memory"), w.name(f"{name}_start")
        params += [f"__global {const}uchar *{place}", f"long {start}"]
        t = w.pointer_to(p)
        pointers.append(w.indented(f"{t}{restrict}const {name} = ({t})({place} + {start});"))
    return params, pointers


def _described(f: PrimFunc, text: str, file: FileText) -> DeviceFunction:
    double = _uses_double(text, file)
    extensions: tuple[str, ...] = ("cl_khr_fp64",) if double else ()
    extensions += require_instructions(f, OPENCL.instructions, file.target)
    function = described(f, file.target, extensions)
    if double and not file.target["supports_float64"]:
        message = "a device function computes in float64, which the target does not support"
        hint = '{"supports_float64": true}, if the device has cl_khr_fp64'
        raise UnsupportedError(message, where=f.name, hint=hint)
    return function


def _uses_double(text: str, file: FileText) -> bool:
    """Whether the text, or a function that it calls, has values of type double."""
    names: set[str] = set()
    queue = [text]
    while queue:
        words = set(re.findall(r"\w+", queue.pop()))
        if any(re.fullmatch(r"double(2|3|4|8|16)?", word) for word in words):
            return True
        called = (words & file.helpers.keys()) - names
        names |= called
        queue += [file.helpers[name] for name in called]
    return False


__all__ = ["OPENCL", "DeviceFunction", "DeviceText", "emit_opencl"]
