"""WGSL: each device function as a module of its own, for WebGPU.

A module has one entry point, with the function's name. Buffers are bindings of group 0, in the
order of the parameters; the binding after them is a uniform struct of its numbers. Numbers in
registers have 32 bits: integers of 8 and 16 bits are sign- or zero-extended, floats of 16 bits are
kept as their bits, and indices and sizes are int32 (`codegen/expand/short_indices.py`). There are
no vectors: their lanes are computed one by one (`codegen/expand/scalarize.py`).

Elementary functions are the programs of `codegen/expand/math.py`, as in all languages. Infinities
and NaN have no literals in WGSL, so they are made from their bits at run time; implementations may
assume that they do not occur.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like import (
    control,
    conversions,
    intrinsics,
    loops,
    threads,
    values,
    wgsl_memory,
)
from tensorkiln.codegen.c_like.arithmetic import COMPARE
from tensorkiln.codegen.c_like.c99 import NO_COMMENTS
from tensorkiln.codegen.c_like.code import COMPARISON, Code, call, infix
from tensorkiln.codegen.c_like.dialect import Dialect
from tensorkiln.codegen.c_like.types import define
from tensorkiln.codegen.c_like.wgsl_memory import WgslWriter, binding_type
from tensorkiln.codegen.c_like.wgsl_words import WORDS
from tensorkiln.codegen.c_like.writer import Expressions, FileText, Statements, TextWriter
from tensorkiln.codegen.c_text.text import wrap
from tensorkiln.codegen.device_functions import require_runnable
from tensorkiln.codegen.expand.drop_starts import drop_starts
from tensorkiln.codegen.expand.fold import fold
from tensorkiln.codegen.expand.offsets import elements
from tensorkiln.codegen.expand.scalarize import scalarize
from tensorkiln.codegen.expand.short_indices import short_indices
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.ir.buffer import AddressOf
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Binary, Expr, Var, int_value
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import print_expr
from tensorkiln.ir.visit import stmt_exprs, substitute, walk, walk_stmt
from tensorkiln.target import Target

MOST_BLOCKS = 65535  # along a dimension (maxComputeWorkgroupsPerDimension)
_MOST_ALONG = (256, 256, 64)  # threads of a block along x, y, z (maxComputeWorkgroupSizeX, ...)


def _square_root(w: TextWriter, name: str, dtype: DType) -> str:
    t = w.type(dtype)
    return define(w, t, name, [(t, "x")], [], "sqrt(x)")


WGSL = Dialect(
    scalars={name: row.wgsl for name, row in ELEMENT_TYPES.items() if row.wgsl},
    widest="{x}",
    lowest="i32({x})",
    infinity="bitcast<f32>(infinity_bits)",
    nan="bitcast<f32>(nan_bits)",
    vector_name="",
    vector_declaration="",
    memory_declaration="",
    most_lanes=1,
    convert_vector="",
    vector_bits="",
    scalar_bits="bitcast<{type}>({x})",
    comparison="{x}",
    vector_of="",
    splat="",
    choice="",
    lane="",
    load="",
    store="",
    load_vector="",
    store_vector="",
    word_bits=32,
    spaces={},
    indices={"blockIdx": "block_id.{axis}", "threadIdx": "thread_id.{axis}"},
    barrier="workgroupBarrier();",
    array="array<{type}, {size}>",
    prefetch="",
    square_root=_square_root,
    dot=lambda w, function_name, name, lanes: None,
    note_failure="",
    parallel_for=False,
    stores_bools=True,
    extern="",
    restrict="",
    function="fn",
    vector_function="fn",
    cast="{type}({x})",
    narrow="extractBits({x}, 0u, {bits}u)",
    wraps=True,
    reassociates=True,
    only_words=True,
    constant="let {name} = {x};",
    variables=lambda t, names: [f"var {name}: {t};" for name in names],
    discard="_ = {x};",
    loop="for (var {name}: {type} = {first}; {name} < {end}; {name}++)",
    conditional="select({b}, {a}, {condition})",
    parameter="{name}: {type}",
    definition="{how} {name}({parameters}) -> {result}",
    isnan="(bitcast<u32>({x}) & 2147483647u) > 2139095040u",
    nonzero="(bitcast<u32>({x}) & 2147483647u) != 0u",
    rounded="{op}({x})",
)


def _binary(w: TextWriter, e: Binary) -> str:
    """Bools have no order in WGSL, so they are compared as numbers. And a NaN is not equal to
    itself, which a `!=` of WGSL need not find."""
    if e.a.dtype.is_bool and e.op in COMPARE and e.op not in ("eq", "ne"):
        x, y = (call("u32", w.value(v)) for v in (e.a, e.b))
        return infix(COMPARE[e.op], x, y, COMPARISON)
    if e.op == "ne" and e.a.dtype.is_float:
        equal = values.EXPRESSIONS[Binary](w, replace(e, op="eq"))
        return Code(f"!({equal})", COMPARISON)
    return values.EXPRESSIONS[Binary](w, e)


EXPRESSIONS: Expressions = {
    **values.EXPRESSIONS,
    **conversions.EXPRESSIONS,
    **intrinsics.EXPRESSIONS,
    **wgsl_memory.EXPRESSIONS,
    Binary: _binary,
}
STATEMENTS: Statements = {
    **control.STATEMENTS,
    **loops.STATEMENTS,
    **threads.STATEMENTS,
    **wgsl_memory.STATEMENTS,
}


@dataclass(frozen=True, slots=True)
class WgslFunction:
    """A device function as a WGSL module, and what is needed to dispatch it.

    `bindings` are (name, dtype, whether it is written) of its buffers, bindings 0, 1, ... of group
    0; `numbers` are (name, dtype) of the members of the uniform struct, four bytes each, the
    binding after them. `grid` are the numbers of workgroups along x, y and z, as integers or
    expressions of the numbers; `block` their invocations; `shared_bytes` is the storage of one.
    """

    name: str
    text: str
    bindings: tuple[tuple[str, str, bool], ...]
    numbers: tuple[tuple[str, str], ...]
    grid: tuple[int | str, int | str, int | str]
    block: tuple[int, int, int]
    shared_bytes: int


def emit_wgsl(
    funcs: Sequence[PrimFunc], target: Target, comments: Mapping[str, Sequence[str]] = NO_COMMENTS
) -> tuple[WgslFunction, ...]:
    """Device functions, as `split_device`, `allocate_shared` and `insert_barriers` leave them, as
    WGSL; `comments` has lines about each.

    A number has four bytes: int64 is int32, whatever is shorter is extended, bool is 0 or 1, floats
    of 16 bits are their bits. Elements of buffers are those of tensors, in a binding whose size is
    a multiple of four.

    Raises UnsupportedError for tensors of 64-bit elements, computations in 64 bits, assertions,
    calls and addresses, for names that WGSL keeps for itself, and for what exceeds a limit: threads
    and storage of a workgroup and storage buffers as `target` has them, workgroups of a dispatch.
    """
    return tuple(_function(f, target, comments.get(f.name, ())) for f in funcs)


def _function(device_function: PrimFunc, target: Target, about: Sequence[str]) -> WgslFunction:
    _require_printable(device_function)
    short = short_indices(device_function)
    func = drop_starts(fold(scalarize(unroll_function(short))))
    launch = launch_of(func)
    folded = _is_folded(func)
    indices = {"blockIdx": "block_index"} if folded else {}
    dialect = replace(WGSL, indices={**WGSL.indices, **indices})
    file = FileText(target, dialect, frozenset(WORDS | {func.name}), frozenset({func.name}))
    w = WgslWriter(func, short, file, EXPRESSIONS, STATEMENTS)
    with w.function() as state:
        for p in w.func.params:
            state.names[p] = w.name_of(p)
        bindings = [(state.names[b], b.dtype.name, b in w.written) for b in func.buffers]
        members = [(state.names[v], v.dtype.name) for v in func.scalars]
        for v in func.scalars:
            w.line(f"let {state.names[v]} = numbers.{state.names[v]};")
            if v.dtype.is_bool:
                state.bytes.add(v)
        if folded:
            w.line(f"let block_index = block_id.x + block_id.y * {MOST_BLOCKS}u;")
            with w.block(f"if (block_index >= u32({w.value(launch.grid[0])}))"):
                w.line("return;")
        w.statement(w.func.body)
        body = w.body()
        names = dict(
            zip(device_function.scalars, (state.names[v] for v in func.scalars), strict=True)
        )
    text = _module(w, about, bindings, members, body)
    shared = sum(-(-(elements(b) or 1) * 4 // 16) * 16 for b in launch.shared)
    grid = _grid(device_function, names)
    function = WgslFunction(
        func.name, text, tuple(bindings), tuple(members), grid, launch.block, shared
    )
    _require_limits(function, target)
    return function


def _module(
    w: WgslWriter,
    about: Sequence[str],
    bindings: Sequence[tuple[str, str, bool]],
    members: Sequence[tuple[str, str]],
    body: str,
) -> str:
    head = [f"// {_line(line)}" for line in (w.func.name, *about)] if about else []
    for k, (name, dtype, written) in enumerate(bindings):
        access, t = "read_write" if written else "read", binding_type(DType(dtype), written)
        head.append(f"@group(0) @binding({k}) var<storage, {access}> {name}: array<{t}>;")
    if members:
        fields = [f"    {name}: {number_type(DType(dtype))}," for name, dtype in members]
        head += ["struct Numbers {", *fields, "}"]
        head.append(f"@group(0) @binding({len(bindings)}) var<uniform> numbers: Numbers;")
    head += w.shared
    x, y, z = launch_of(w.func).block
    text = body + "".join(w.file.helpers.values())
    bits = {"infinity_bits": "0x7f800000u", "nan_bits": "0x7fc00000u"}
    constants = {n: v for n, v in bits.items() if re.search(rf"\b{n}\b", text)}
    head += [f"var<private> {name}: u32 = {value};" for name, value in constants.items()]
    builtins = [
        f"@builtin({builtin}) {name}: vec3<u32>"
        for builtin, name in (("workgroup_id", "block_id"), ("local_invocation_id", "thread_id"))
        if re.search(rf"\b{name}\b", body)
    ]
    entry = [
        f"@compute @workgroup_size({x}, {y}, {z})",
        wrap(f"fn {w.func.name}(", builtins, ")"),
        "{",
        *([body] if body else []),
        "}\n",
    ]
    return "\n".join(["\n".join(head) + "\n", *w.file.helpers.values(), "\n".join(entry)])


def _line(text: str) -> str:
    """Text for a line comment: without characters that end a line, also those of Unicode."""
    return "".join(c if c.isprintable() else " " for c in text)


def number_type(dtype: DType) -> str:
    """The type of a number in the uniform struct, where bool is not allowed."""
    return "u32" if dtype.is_bool else WGSL.scalar(dtype)


def _is_folded(f: PrimFunc) -> bool:
    """Whether blocks along x are dispatched along x and y, because there are, or may be, more of
    them than one dimension allows."""
    x, y, z = launch_of(f).grid
    count = int_value(x)
    return int_value(y) == int_value(z) == 1 and (count is None or count > MOST_BLOCKS)


def _grid(f: PrimFunc, names: Mapping[Var, str]) -> tuple[int | str, int | str, int | str]:
    """The workgroups of a dispatch along x, y and z. `names` are the names of the numbers that the
    function takes. A folded grid is as wide along x as is allowed, and as long along y as it
    takes."""
    x, y, z = (_extent(e, names) for e in launch_of(f).grid)
    if not _is_folded(f):
        return x, y, z
    if isinstance(x, int):
        return MOST_BLOCKS, -(-x // MOST_BLOCKS), 1
    return f"min({x}, {MOST_BLOCKS})", f"({x} + {MOST_BLOCKS - 1}) // {MOST_BLOCKS}", 1


def _extent(e: Expr, names: Mapping[Var, str]) -> int | str:
    number = int_value(e)
    renames = {v: Var(name, v.dtype) for v, name in names.items()}
    if number is not None:
        return number
    # For hosts that read it, a smaller number is `min`, as in what `_grid` writes.
    return print_expr(substitute(e, renames)).replace("T.min(", "min(").replace("T.max(", "max(")


def _require_printable(f: PrimFunc) -> None:
    require_runnable(f)
    fault = hint = ""
    expressions = (x for s in walk_stmt(f.body) for e in stmt_exprs(s) for x in walk(e))
    if f.name in WORDS or f.name.startswith("__"):
        fault = f"{f.name!r} is a name that WGSL keeps for itself"
        hint = f"my_{f.name.lstrip('_')}"
    elif any(isinstance(x, AddressOf) for x in expressions):
        fault = "a device function takes an address, which WGSL lacks"
    if fault:
        raise UnsupportedError(fault, where=f.name, hint=hint)


def _require_limits(f: WgslFunction, target: Target) -> None:
    x, y, z = f.block
    rows: list[tuple[str, int, object, str]] = [
        (resource, count, target[option], option)
        for resource, count, option in (
            ("threads in a block", x * y * z, "max_num_threads"),
            ("bytes of shared memory", f.shared_bytes, "max_shared_memory_per_block"),
            ("storage buffers", len(f.bindings), "max_storage_buffers"),
        )
    ]
    for axis, count, upper in zip("xyz", f.block, _MOST_ALONG, strict=True):
        rows.append((f"threads along {axis}", count, upper, ""))
    for axis, blocks in zip("xyz", f.grid, strict=True):
        if isinstance(blocks, int):
            rows.append((f"blocks along {axis}", blocks, MOST_BLOCKS, ""))
    for resource, count, limit, option in rows:
        if isinstance(limit, int) and count > limit:
            owner = "the target has" if option else "WebGPU allows"
            message = f"a device function needs {count} {resource}, and {owner} {limit}"
            hint = (
                f"the target's option {option}" if option else "smaller blocks, or more per thread"
            )
            raise UnsupportedError(message, where=f.name, hint=hint)


__all__ = ["MOST_BLOCKS", "WGSL", "WgslFunction", "emit_wgsl", "number_type"]
