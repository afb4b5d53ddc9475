"""The C header that goes with a library: one documented plain C entry per function.

It also defines a symbol of the library's name, so that linking two libraries of one name fails
instead of calling either.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.text import unused
from tensorkiln.codegen.c_text.names import c_name, plain_name
from tensorkiln.codegen.c_text.text import comment, quote
from tensorkiln.codegen.c_text.types import entry_type
from tensorkiln.codegen.host.function import HostFunction


@dataclass(frozen=True, slots=True)
class EntryParameter:
    """One parameter of a plain C entry: its C name and the whole declaration."""

    kind: Literal["symbol", "tensor", "scalar"]
    name: str
    declaration: str


def entry_parameters(function: HostFunction, reserved: Iterable[str] = ()) -> list[EntryParameter]:
    """Parameters of the plain C entry: symbols first, then inputs, then outputs. Their names are
    unique, and not among `reserved`: a second `x` becomes `x_2`."""
    names = set(reserved)

    def fresh(text: str) -> str:
        name = unused(plain_name(text), names)
        names.add(name)
        return name

    out = []
    for symbol in function.symbols:
        name = fresh(symbol)
        out.append(EntryParameter("symbol", name, f"int64_t {name}"))
    for param in function.params:
        info = param.info
        name = fresh(info.name)
        if param.dims is None:
            out.append(EntryParameter("scalar", name, f"{entry_type(info.dtype)} {name}"))
        else:
            const = "const " if info.role == "in" and not info.device else ""
            ctype = (
                "void" if info.device else PARAMETER_TYPES[info.dtype].c_element
            )  # no address of the host
            out.append(EntryParameter("tensor", name, f"{const}{ctype} *{name}"))
    return out


def _in_model(name: str, original: str) -> str:
    return "" if name == original else f" ({original!r} in the model)"


def parameter_lines(function: HostFunction, params: Sequence[EntryParameter]) -> list[str]:
    """Lines of a C comment that describe a function's parameters and conditions."""
    lines: list[str] = []
    for symbol, param in zip(function.symbols, params, strict=False):
        model_note = _in_model(param.name, function.symbols[symbol])
        lines.append(f" *   size   {param.name:<12} at least {function.least(symbol)}{model_note}")
    tensor_params = params[len(function.symbols) :]
    for source, param in zip((p.info for p in function.params), tensor_params, strict=True):
        kind = f"{source.dtype} {source.shape_text}".rstrip()
        kind += (
            f", on device {source.device}: its handle, as DLPack's data" if source.device else ""
        )
        lines.append(
            f" *   {source.role:<6} {param.name:<12} {kind}" + _in_model(param.name, source.name)
        )
    lines += [f" *   requires {sentence}" for sentence in function.info.requires]
    return [" *" + comment(line[2:]) for line in lines]


def _entry(function: HostFunction, prefix: str) -> str:
    params = entry_parameters(function)
    name = function.info.name
    lines = [f"/* {name}", *parameter_lines(function, params), " */"]
    head = f"int {prefix}_{name}("
    joined = f",\n{' ' * len(head)}".join(p.declaration for p in params) or "void"
    return "\n".join([*lines, f"{head}{joined});"])


def _outer(names: Sequence[str]) -> str:
    """A comment on how to call the outer functions `names`, which have no plain C entry."""
    if not names:
        return ""
    calls = "".join(
        f' *   kiln_executor_invoke(executor, kiln_function_index("{name}"), ..., &result)\n'
        for name in names
    )
    return (
        "\n/* Functions of values (tuples, strings, functions, tensors of any size) are called by\n"
        f" * number, with what kiln.h declares:\n{calls} */\n"
    )


def _one_library(prefix: str, identity: str) -> str:
    """C text that makes the link of a program fail if its objects include the headers of two
    different libraries with this prefix."""
    sign, identity_symbol = f"{prefix}_names_one_library", f"{prefix}_{identity}"
    return f"""
/* A linker takes the first of two definitions in archives and shared libraries without a word. So
 * every object of a program that includes this has a symbol to say which library it means, and
 * those of two libraries of one name clash; they are compiled with other names (`--name`, `name=`).
 * -D{prefix.upper()}_UNCHECKED turns that off, which clang's -flto=thin needs. */
#if defined(__ELF__) && defined(__GNUC__) && !defined({prefix.upper()}_UNCHECKED)
static __attribute__((used)) void {sign}_here(void)
{{
    __asm__(".ifndef {identity_symbol}\\n"
            ".set {identity_symbol}, 0\\n"
            ".pushsection .{sign},\\"G\\",%progbits,{identity_symbol},comdat\\n"
            ".globl {sign}\\n"
            ".hidden {sign}\\n"
            "{sign}:\\n"
            ".byte 0\\n"
            ".popsection\\n"
            ".endif\\n");
}}
#endif
"""


def _link(prefix: str, libraries: Sequence[str]) -> str:
    """A macro with the linker arguments that a program needs besides the static library; empty if
    there are no `libraries`."""
    if not libraries:
        return ""
    return (
        "\n/* What a program that links the static library (.a, .o) links too, behind it. */\n"
        f"#define {prefix.upper()}_LINK {quote(' '.join(libraries))}\n"
    )


def _flush(prefix: str) -> str:
    """A macro that says that denormal numbers are 0 in the entries of a library."""
    return (
        "\n/* Numbers below the smallest normal one count as 0 in an entry, in every thread that\n"
        " * computes; the caller's floating-point state is as before when it returns. */\n"
        f"#define {prefix.upper()}_FLUSHES_DENORMALS 1\n"
    )


def header_h(
    functions: Sequence[HostFunction],
    *,
    library_name: str,
    prefix: str = "",
    outers: Sequence[str] = (),
    libraries: Sequence[str] = (),
    identity: str = "0",
    flushes: bool = False,
) -> str:
    """The text of the header. Tensors are contiguous, row-major and aligned for their element type;
    their memory stays the caller's. Numbers are int64_t, uint64_t or double, and their range is
    checked (scalars.py). Outer functions, `outers`, are only listed by name; `libraries` are linker
    arguments that a program needs besides the static library. `identity`, hexadecimal digits,
    distinguishes the library from others of the same name. `flushes` says that denormal numbers are
    0 in entries."""
    prefix = prefix or c_name(library_name)
    guard = f"{prefix.upper()}_H"
    entries = "\n\n".join(_entry(function, prefix) for function in functions)
    flush = _flush(prefix) if flushes else ""
    return f"""/* {library_name}: plain C entries. Generated by Tensorkiln.
 *
 * Each entry returns 0, or an error code of kiln.h; {prefix}_last_error() then holds one sentence
 * about the last failure in this thread. Tensors are row-major without gaps, in memory of the
 * caller; shapes and types stand above each entry. A number that its type cannot hold is refused;
 * fractions are rounded to nearest. Entries may be called from several threads at once.
 */
#ifndef {guard}
#define {guard} 0x{identity}u

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

{entries}
{_outer(outers)}{_link(prefix, libraries)}{flush}{_one_library(prefix, identity)}
/* What went wrong in this thread; "" when nothing did. */
const char *{prefix}_last_error(void);

/* Threads a call may use, the caller included; 0 returns to the default. With 1 no thread is ever
 * created. Results do not depend on it. */
void {prefix}_set_num_threads(int threads);
int {prefix}_get_num_threads(void);

#ifdef __cplusplus
}}
#endif

#elif {guard} != 0x{identity}u
#error "two libraries are named {prefix}: compile one with --name, or name="
#endif
"""
