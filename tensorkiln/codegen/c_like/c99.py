"""C99, with the vector extensions of GCC and clang where the target has vectors.

Processor features are set by pragmas in the text, so a C compiler needs no flags for them; dot
products are intrinsics (`machine.py`). Where registers have 32 bits, loop variables and indices are
int32 if they provably fit (`transform/tir/narrow_indices.py`, `words.py`). The C sources are
artifacts of loader `native`, which the link compiles; kernels are not cached one by one, only the
linked code is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tensorkiln.base.element_types import ELEMENT_TYPES
from tensorkiln.codegen.c_like import (
    calls,
    control,
    conversions,
    intrinsics,
    loops,
    memory,
    values,
    vectors,
)
from tensorkiln.codegen.c_like.dialect import Dialect
from tensorkiln.codegen.c_like.machine import features_c, machine_dot
from tensorkiln.codegen.c_like.writer import Expressions, FileText, Statements, TextWriter
from tensorkiln.codegen.c_text.text import comment, wrap
from tensorkiln.codegen.expand.by_lane import by_lane
from tensorkiln.codegen.expand.drop_starts import drop_starts
from tensorkiln.codegen.expand.unroll import unroll_function
from tensorkiln.codegen.expand.whole_registers import whole_registers
from tensorkiln.codegen.kernel_names import C_WORDS
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import FLOAT32, DType
from tensorkiln.ir.stmt import CallKernel, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.target import Target

EXPRESSIONS: Expressions = {
    **values.EXPRESSIONS,
    **conversions.EXPRESSIONS,
    **vectors.EXPRESSIONS,
    **memory.EXPRESSIONS,
    **intrinsics.EXPRESSIONS,
    **calls.EXPRESSIONS,
}
STATEMENTS: Statements = {
    **control.STATEMENTS,
    **loops.STATEMENTS,
    **memory.STATEMENTS,
    **calls.STATEMENTS,
}


def _square_root(w: TextWriter, name: str, dtype: DType) -> str:
    """By the processor's instruction, which compilers know under a name of their own also where
    -fno-builtin makes sqrt() a call."""
    t, suffix = w.type(dtype), "f" if dtype == FLOAT32 else ""
    body = (
        "#if defined(__GNUC__)\n"
        f"    return __builtin_sqrt{suffix}(x);\n"
        "#else\n"
        f"    return sqrt{suffix}(x);\n"
        "#endif\n"
    )
    w.file.headers.add("math.h")
    return f"static inline {t} {name}({t} x)\n{{\n{body}}}\n"


C99 = Dialect(
    scalars={name: row.c for name, row in ELEMENT_TYPES.items() if row.c},
    widest="{u}INT64_C({x})",
    lowest="INT{bits}_MIN",
    infinity="INFINITY",
    nan="NAN",
    vector_name="{lane}x{count}",
    vector_declaration="typedef {element} {type} __attribute__((vector_size({bytes})));\n",
    memory_declaration=(
        "typedef {element} {type}_in_memory\n"
        "    __attribute__((vector_size({bytes}), aligned({align}), may_alias));\n"
    ),
    most_lanes=0,
    convert_vector="__builtin_convertvector({x}, {type})",
    vector_bits="({type}){x}",
    scalar_bits="",
    comparison="({type})({x})",
    vector_of="({type}){{{items}}}",
    splat="",
    choice="",
    lane="{x}[{i}]",
    load="{name}({p})",
    store="{name}({p}, {x});",
    load_vector=(
        "ALWAYS_INLINE {type} {name}(const {element} *p)\n"
        "{{\n    return *(const {type}_in_memory *)p;\n}}\n"
    ),
    store_vector=(
        "ALWAYS_INLINE void {name}({element} *p, {type} x)\n"
        "{{\n    *({type}_in_memory *)p = x;\n}}\n"
    ),
    word_bits=0,
    spaces={},
    indices={},
    barrier="",
    array="{type} {name}[{size}] ALIGNED({align});",
    prefetch="PREFETCH({p}, {write}, {locality});",
    square_root=_square_root,
    dot=machine_dot,
    note_failure="__atomic_store_n({cell}, {message}, __ATOMIC_RELAXED);",
    parallel_for=True,
    extern='extern {result} {name}({types}) __asm__("{symbol}");',
    restrict="restrict",
    function="static inline",
    vector_function="ALWAYS_INLINE",
)

NO_COMMENTS: Mapping[str, Sequence[str]] = MappingProxyType({})
_MACROS = {
    "ALWAYS_INLINE": "#define ALWAYS_INLINE static inline __attribute__((always_inline))\n",
    "ALIGNED": "#if defined(__GNUC__)\n#define ALIGNED(bytes) __attribute__((aligned(bytes)))\n"
    "#else\n#define ALIGNED(bytes)\n#endif\n",
    "PREFETCH": "#if defined(__GNUC__)\n"
    "#define PREFETCH(p, write, locality) __builtin_prefetch(p, write, locality)\n"
    "#else\n#define PREFETCH(p, write, locality) (void)(p)\n#endif\n",
}
_HEADERS = {
    "math.h": r"\b(INFINITY|NAN|sqrtf?)\b",
    "stdbool.h": r"\b(bool|true|false)\b",
    "stddef.h": r"\bNULL\b",
}


def emit_c(
    funcs: Sequence[PrimFunc], target: Target, comments: Mapping[str, Sequence[str]] = NO_COMMENTS
) -> str:
    """C99 text that defines `void name(...)` for each function, and compiles by itself; `comments`
    has lines about each, by name. Operations that the processor of `target` lacks are expanded.

    Raises UserError for a C function with two signatures, UnsupportedError for a kernel with the
    name of a function that the text needs.
    """
    names = frozenset(f.name for f in funcs)
    reserved = frozenset(C_WORDS | names | {"NULL", "bool", "true", "false", *_MACROS})
    serial = replace(C99, parallel_for=False)  # without an operating system there are no threads
    dialect = serial if target.mtriple.split("-")[2] == "none" else C99
    file = FileText(target, dialect, reserved, names)
    kernels = [_kernel(f, file, comments.get(f.name, ())) for f in _callees_first(funcs)]
    externs = ["\n".join(text for name, text in file.externs.items() if name not in names) + "\n"]
    types = ["".join(file.types.values())] if file.types else []
    body = "\n".join([*types, *(externs if file.externs else []), *file.helpers.values(), *kernels])
    macros = [text for name, text in _MACROS.items() if re.search(rf"\b{name}\b", body)]
    headers = {h for h, words in _HEADERS.items() if re.search(words, body)}
    includes = "".join(f"#include <{h}>\n" for h in sorted({*headers, "stdint.h", *file.headers}))
    begin, end = features_c(target, body)
    return "\n".join([includes, *begin, *macros, body, *end]).rstrip("\n") + "\n"


def _callees_first(funcs: Sequence[PrimFunc]) -> list[PrimFunc]:
    """The functions in their order, but each behind those that it calls; none calls itself."""
    by_name, ordered = {f.name: f for f in funcs}, dict[str, PrimFunc]()

    def add(f: PrimFunc) -> None:
        for s in walk_stmt(f.body):
            if isinstance(s, CallKernel) and s.name in by_name and s.name not in ordered:
                add(by_name[s.name])
        ordered.setdefault(f.name, f)

    for f in funcs:
        add(f)
    return list(ordered.values())


def _kernel(func: PrimFunc, file: FileText, about: Sequence[str]) -> str:
    """The functions of one kernel, after a comment about it."""
    unrolled = drop_starts(whole_registers(unroll_function(func)))
    if file.target.multiplies_by_lane:
        unrolled = by_lane(unrolled)
    w = TextWriter(unrolled, func, file, EXPRESSIONS, STATEMENTS)
    text = _definition(w)
    lines = "".join(f" * {comment(line)}".rstrip() + "\n" for line in about)
    head = f"/* {func.name}\n{lines} */\n" if about else ""
    return head + "\n".join([*w.functions, text])


def _definition(w: TextWriter) -> str:
    func = w.func
    with w.function() as state:
        head = wrap(f"void {func.name}(", _parameters(w) or ["void"], ")")
        w.statement(func.body)
        names = [state.names[p] for p in func.params]
        state.lines[:0] = [w.indented(f"(void){x};") for x in names if not w.is_used(x, 0)]
        body = w.body()
    return "\n".join([f"{head};\n", head, "{", *([body] if body else []), "}\n"])


def _parameters(w: TextWriter) -> list[str]:
    """Declare the parameters."""
    out = []
    restrict = "" if w.func.inplace else f"{w.dialect.restrict} "
    for p in w.func.params:
        name = w.state.names[p] = w.name_of(p)
        if not isinstance(p, Buffer) and p.dtype.is_bool:
            w.state.bytes.add(p)
        if isinstance(p, Buffer):
            t = f"{w.pointer_to(p)}{restrict}"
        else:
            t = f"{w.dialect.element(p.dtype)} "
        out.append(f"{t}{name}")
    return out


__all__ = ["C99", "emit_c"]
