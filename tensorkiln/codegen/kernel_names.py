"""Which names kernels may have: each is a C function, linked with the runtime and a C library.

Names that C, the runtime or the entry file use are refused (`name_issues`). Two kinds of kernels
are renamed instead. A tensor program `main` becomes `main_program`, because in C only a program may
define `main`; its attribute `global_symbol` keeps the name in the library. Kernels that are printed
as C and are not public get the prefix of their model, because headers of C and other models in the
same program have names too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from tensorkiln.base.errors import Issue
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.kept import with_kernels_renamed
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import Function, GlobalRef, Value
from tensorkiln.ir.stmt import CallKernel, PrimFunc, Stmt
from tensorkiln.ir.visit import extern_names, map_stmt
from tensorkiln.ir.visit_graph import map_values

C_WORDS = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum",
    "extern", "float", "for", "goto", "if", "inline", "int", "long", "register", "restrict",
    "return", "short", "signed", "sizeof", "static", "struct", "switch", "typedef", "union",
    "unsigned", "void", "volatile", "while",
})  # fmt: skip
_MEMORY = frozenset({"memcpy", "memset", "memmove", "memcmp", "bcmp"})  # crt/mem.c
_KEPT = re.compile(r"kiln_|_[A-Z_]")  # names of the runtime, and those that C reserves
# Names in entry.c: fixed ones, and those of a prefix and a function's name, such as `run_main`.
_ENTRY = frozenset({"metadata", "cpu_features", "functions", "outers", "main"})
_OF_FUNCTION = re.compile(
    "(function|params|dims|symbols|symbol_min|computed|requires|workspace|run|body|outer)_(.+)"
)


def name_issues(mod: IRModule, runtime_calls: Collection[str]) -> Iterator[Issue]:
    """Yield an issue for each kernel whose name is taken: by C, by the library, by a C function
    that the runtime calls (`runtime_calls`), or by one that a tensor program calls."""
    called = {name for f in mod.prim_funcs for name in extern_names(f)}
    for f in mod.kernels:
        name = f.name
        if c_name(name) != name:
            fault = f"{name!r} is not a C identifier, and kernels are C functions"
        elif name in C_WORDS:
            fault = f"{name!r} is a keyword of C, and kernels are C functions"
        elif name in runtime_calls or name in _MEMORY:
            fault = f"{name!r} is a function of the C library that the runtime calls"
        elif name in called:
            fault = f"{name!r} is a C function that a tensor program of the module calls"
        elif name in _ENTRY or _KEPT.match(name) or _is_given(name, mod):
            fault = f"{name!r} is a name that the library gives to something of its own"
        else:
            continue
        yield Issue("tensor-program", name, "", fault, c_name(f"my_{name.lstrip('_')}"))


def with_names_for_c(mod: IRModule) -> IRModule:
    """Rename a tensor program `main` to `main_program`, since in C only a program may define
    `main`. The library still calls it `main`, by its `global_symbol`."""
    if not isinstance(mod.get("main"), PrimFunc):
        return mod
    name = next(n for n in (f"main_program{i or ''}" for i in count()) if n not in mod)
    functions = []
    for f in mod.functions:
        f = _renamed(f, {"main": name})
        if isinstance(f, PrimFunc) and f.name == "main":
            attrs = Attrs.of(**{"global_symbol": "main", **f.attrs})
            f = replace(f, name=name, attrs=attrs)
        functions.append(f)
    return mod.with_functions(tuple(functions))


def with_prefixed_kernels(mod: IRModule, as_c: Callable[[PrimFunc], bool]) -> IRModule:
    """Rename kernels that become C sources (`as_c`) and are not public from `relu` to
    `net_kernel_relu`, in a module `net`: they must not have the names of C's own functions, nor of
    another model's kernels. Passes have run, and every kernel has its program."""
    prefix = kernel_prefix(mod)
    names = {f.name: f"{prefix}{f.name}" for f in mod.prim_funcs if not f.public and as_c(f)}
    if not names:
        return mod
    names = {old: new for old, new in names.items() if new not in mod}
    functions = [_renamed(f, names, kernels=True) for f in mod.functions]
    return mod.with_functions(
        tuple(replace(f, name=names[f.name]) if f.name in names else f for f in functions)
    )


def kernel_prefix(mod: IRModule) -> str:
    """The prefix that `with_prefixed_kernels` gives to names of kernels."""
    return f"{c_name(mod.name)}_kernel_"


def header_issues(kernels: Sequence[PrimFunc], declared: Collection[str]) -> Iterator[Issue]:
    """Yield an issue for each kernel with a name that headers of C declare, which its source cannot
    define."""
    for f in kernels:
        if f.name in declared:
            fault = (
                f"{f.name!r} is a function of the C library, which kernels as C cannot be called"
            )
            yield Issue("tensor-program", f.name, "", fault, f"my_{f.name.lstrip('_')}")


def _renamed(f: AnyFunction, names: Mapping[str, str], kernels: bool = False) -> AnyFunction:
    """`f` with references to functions replaced as `names` (old -> new) say: in a graph function,
    or in the kernel calls of a run function, and with `kernels` in those of every program."""

    def value(v: Value) -> Value:
        if isinstance(v, GlobalRef):
            return GlobalRef(names[v.name]) if v.name in names else v
        return map_values(v, value)

    def stmt(s: Stmt) -> Stmt:
        s = map_stmt(s, lambda e: e, stmt)
        return (
            replace(s, name=names[s.name]) if isinstance(s, CallKernel) and s.name in names else s
        )

    if isinstance(f, Function):
        f = map_values(f, value)
        attrs = with_kernels_renamed(f.attrs, names)
        return f if attrs is f.attrs else replace(f, attrs=attrs)
    if isinstance(f, PrimFunc) and (f.is_host or kernels):
        return replace(f, body=stmt(f.body))
    return f


def _is_given(name: str, mod: IRModule) -> bool:
    """Whether the entry file may use this name for something of its own: `net_main`, `run_main` or
    `dims_main_0` for a function `main` of module `net`."""
    prefix = f"{c_name(mod.name)}_"
    if name.startswith(prefix):
        suffix = name.removeprefix(prefix)
        return suffix in mod or suffix in ("last_error", "set_num_threads", "get_num_threads")
    match = _OF_FUNCTION.fullmatch(name)
    if match is None:
        return False
    owners = (c_name(f) for f in mod)
    return any(match[2] == f or match[2].startswith(f"{f}_") for f in owners)


__all__ = [
    "header_issues",
    "kernel_prefix",
    "name_issues",
    "with_names_for_c",
    "with_prefixed_kernels",
]
