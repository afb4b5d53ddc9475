"""The call plan as C: declarations of pointers and sizes, then one line per kernel.

`entry.c` and the C of a model in an archive (`interface_c.py`) share it. A kernel whose assertion
fails passes the message to `kiln_assertion_failed` in the thread of its caller, and returns. After
each call of a kernel with assertions the plan asks `kiln_assertion()` and stops if there was one;
`kiln_run` then returns `KILN_ERROR_ASSERTION` with the message.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence

from tensorkiln.base.errors import InternalError
from tensorkiln.codegen.c_text.function import CFunction, range_failure
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.size_locals import DECLARATION, SizeLocals, checked, measured
from tensorkiln.codegen.c_text.sizes import Size, shown_size, symbols_in
from tensorkiln.codegen.c_text.text import comment, heading, quote, wrap
from tensorkiln.codegen.c_text.types import kernel_member, kernel_type
from tensorkiln.codegen.host.function import (
    CheckedIndices,
    HostFunction,
    KernelCall,
    Ptr,
    ScalarExpr,
)


def _signature(call: KernelCall) -> tuple[str, ...]:
    return tuple("void *" if isinstance(a, Ptr) else a.ctype for a in call.args)


def prototypes(functions: Sequence[HostFunction]) -> str:
    """Declarations of all kernels."""
    kernels: dict[str, tuple[str, ...]] = {}
    for function in functions:
        for call in function.calls:
            types = _signature(call)
            if kernels.setdefault(call.symbol, types) != types:
                raise InternalError(f"kernel {call.symbol} is called with different argument types")
    if not kernels:
        return ""
    lines = [
        wrap(f"void {symbol}(", list(types) or ["void"], ");") for symbol, types in kernels.items()
    ]
    return "\n".join([heading("kernels", 93), *lines, ""])


def symbol_lines(names: Iterable[str], texts: Iterable[Size], source: str) -> list[str]:
    """Declarations of the symbols that the texts use; symbol `names[i]` is `source[i]` in C."""
    symbols = {name for text in texts for name in symbols_in(text)}
    return [
        f"    const int64_t s_{name} = {source}[{i}];"
        for i, name in enumerate(names)
        if name in symbols
    ]


def measured_sizes(
    function: HostFunction, sizes: Sequence[tuple[str, Size]], code: str
) -> list[str]:
    """Lines that assign checked sizes, (target, size), and return whether they fit; if not, the
    error has this `code`."""
    lines = [DECLARATION]
    for target, size in sizes:
        words = str(shown_size(size, function.symbols))
        lines.append(measured(target, checked(size), words))
    return [*lines, f"    return kiln_fits({code}, {quote(function.info.name)}, &large);"]


def argument_names(function: HostFunction) -> list[str]:
    """A unique C name for each parameter: `in_x`, `out_y`."""
    names: list[str] = []
    for i, param in enumerate(function.params):
        name = ("in_" if i < len(function.info.inputs) else "out_") + c_name(param.info.name)
        names.append(name if name not in names else f"{name}_{i}")
    return names


def run_text(function: HostFunction) -> str:
    """The C function `run_<name>`: declarations, checks of sizes, then the kernel calls."""
    names = argument_names(function)
    pointers = pointers_of(function)
    texts = texts_of(function)
    symbols = {text_symbol for text in texts for text_symbol in symbols_in(text)}
    lines: list[str] = []
    for i, name in enumerate(names):
        param = function.params[i]
        if any(p.base == "arg" and p.index == i for p in pointers):
            lines.append(f"    char *const {name} = frame->arg[{i}];")
        elif param.dims is None and param.info.name in symbols:
            ctype, member = kernel_type(param.info.dtype), kernel_member(param.info.dtype)
            value = f"({ctype})frame->scalar[{i}].{member}"
            lines.append(f"    const {ctype} s_{param.info.name} = {value};")
    for n in sorted({p.index for p in pointers if p.base == "weights"}):
        source = f"frame->device[{n}].weights" if n else "kiln_weights"
        lines.append(f"    char *const {_numbered('weights', n)} = {source};")
    on_devices = {i: s.device for i, s in enumerate(function.storages) if s.device}
    lines += [
        f"    char *const {storage_name(i)} = frame->device[{n}].workspace;"
        for i, n in on_devices.items()
        if any(p.base == "workspace" and p.index == i for p in pointers)
    ]
    stored = sorted({p.index for p in pointers if p.base == "workspace"} - on_devices.keys())
    starts = [function.storages[i].start if i else 0 for i in stored]
    if 0 in stored:
        lines.append("    char *const workspace = frame->workspace;")
    lines += symbol_lines(function.symbols, [*texts, *starts], "frame->symbol")
    sizes = size_locals(function)
    places = [
        f"    char *const {storage_name(i)} = frame->workspace + {sizes.name(start)};"
        for i, start in zip(stored, starts, strict=True)
        if i
    ]
    calls = call_lines(function, names, sizes, index_failure(function.info.name))
    if checks_indices(function):
        lines.append("    kiln_outside outside;")
    lines += sizes.lines(range_failure(function.info.name))
    lines += places
    body = [*(lines or ["    (void)frame;"]), "", *calls]
    head = f"static void run_{function.info.name}(const kiln_frame *frame)"
    return CFunction(head, body).definition


def size_locals(function: HostFunction) -> SizeLocals:
    """Local variables for the sizes of a call plan; messages use the model's names."""
    return SizeLocals(lambda size: str(shown_size(size, function.symbols)))


def pointers_of(function: HostFunction) -> list[Ptr]:
    """All kernel arguments that are addresses, and arguments of the call that are checked."""
    read = [a for call in function.calls for a in call.args if isinstance(a, Ptr)]
    return [*read, *(c.indices.place for c in function.checks)]


def texts_of(function: HostFunction) -> list[Size]:
    """The expressions in all kernel arguments, from which those of checks of their results are
    taken, and of checks of arguments: offsets of addresses, and numbers."""
    args = [a for call in function.calls for a in call.args]
    checks = [c.indices for c in function.checks]
    numbers = [n for i in checks for n in (i.count, i.extent, i.negative, *i.dims)]
    return [*(a.offset if isinstance(a, Ptr) else a.value for a in args), *numbers]


def storage_name(index: int) -> str:
    """The C variable that points to a storage: `workspace`, `workspace_1`, ..."""
    return _numbered("workspace", index)


def _numbered(name: str, index: int) -> str:
    return f"{name}_{index}" if index else name


# C lines of what is done where an index is outside, for the node that reads there.
IndexFailure = Callable[[str, CheckedIndices, SizeLocals], list[str]]


def call_lines(
    function: HostFunction, names: list[str], sizes: SizeLocals, failed: IndexFailure
) -> list[str]:
    """C lines of all checks of arguments, and of all kernel calls, each with the model's node as a
    comment, and of what is `failed` where an argument is an index outside, or a kernel has written
    one. Sizes that need arithmetic are added to `sizes`, whose declarations the caller writes
    before these lines."""
    symbols = {f"s_{symbol}" for symbol in function.symbols}
    lines: list[str] = []

    def check(i: CheckedIndices, span: str) -> None:
        lines.append(_outside(i, names, sizes, symbols) + " {")
        lines.extend([*failed(span, i, sizes), "    }"])

    for argument_check in function.checks:
        check(argument_check.indices, argument_check.span)
    for call in function.calls:
        args = [_arg(a, names, sizes, symbols) for a in call.args]
        tail = f"); /* {comment(call.span)} */" if call.span else ");"
        lines.append(wrap(f"    {call.symbol}(", args, tail))
        if call.may_fail:
            lines.append("    if (kiln_assertion() != NULL)\n        return;")
        if call.indices is not None:
            check(call.indices, call.span)
    return lines


def checks_indices(function: HostFunction) -> bool:
    """Whether C of the function has a variable `outside`, about indices that are outside."""
    return bool(function.checks) or any(call.indices is not None for call in function.calls)


def _outside(
    i: CheckedIndices, names: list[str], sizes: SizeLocals, symbols: Container[str]
) -> str:
    """The head of the `if` that finds an index outside."""
    numbers = [sizes.name(size) for size in (i.count, i.extent, i.negative)]
    place = _arg(i.place, names, sizes, symbols)
    return wrap(f"    if (kiln_outside_{i.dtype}(", [place, *numbers, "&outside"], "))")


def index_failure(function: str) -> IndexFailure:
    """C of what the function of a library does where an index is outside."""

    def lines(span: str, i: CheckedIndices, sizes: SizeLocals) -> list[str]:
        dims = ", ".join(sizes.name(size) for size in i.dims)
        shape = f"(const int64_t[]){{{dims}}}" if i.dims else "NULL"
        numbers = [sizes.name(size) for size in (i.extent, i.negative)]
        texts = [quote(function), quote(span)]
        args = [*texts, "&outside", *numbers, str(len(i.dims)), shape]
        return [wrap("        kiln_index_failed(", args, ");"), "        return;"]

    return lines


def _arg(
    arg: Ptr | ScalarExpr, names: list[str], sizes: SizeLocals, symbols: Container[str]
) -> str:
    if isinstance(arg, ScalarExpr):
        if arg.ctype in ("float", "double"):
            return f"({arg.ctype})({arg.value})"
        is_number = isinstance(arg.value, str) and arg.value.startswith("s_")
        is_number = is_number and arg.value not in symbols
        text = sizes.name(arg.value, arg.ctype, is_size=not is_number)
        return text if arg.ctype == "int64_t" else f"({arg.ctype})({text})"
    base = names[arg.index] if arg.base == "arg" else arg.base
    base = _numbered(base, arg.index) if arg.base != "arg" else base
    return base if arg.offset == 0 else f"{base} + {sizes.name(arg.offset)}"
