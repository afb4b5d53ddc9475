"""What a host entry file is generated from: functions, their tensors, and their call plans.

Sizes are numbers, symbols written `"s_<name>"`, or formulas over symbols. A dimension of an
argument that is just `"s_seq"` gives the symbol its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorkiln.artifact.metadata import FunctionInfo, KeptInfo, ParamInfo, PoolInfo
from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.errors import InternalError, UnsupportedError
from tensorkiln.codegen.c_text.function import ffi_entry
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.sizes import Formula, Size, shown_size, symbols_in

MAX_SYMBOLS, MAX_COMPUTED, MAX_RANK = 64, 256, 16  # as in crt.h and kiln.h
USUAL_PARAMS = 256  # KILN_MAX_PARAMS of crt.h, where entry.c does not define another
MAX_PARAMS = 4096  # of which a call takes 460 kB of stack


_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter in C: a tensor with sizes `dims`, or a number (None), which is `s_<name>` in
    expressions. `align` is the alignment in bytes that kernels rely on (0: the element size); a
    caller's tensor with less is copied."""

    info: ParamInfo
    dims: tuple[Size, ...] | None
    align: int = 0


def tensor_param(
    name: str,
    dtype: str,
    dims: Sequence[Size],
    symbols: Mapping[str, str],
    *,
    role: str = "in",
    align: int = 0,
    device: int = 0,
) -> Param:
    """A tensor on the device of that number; `symbols` are those of its function."""
    shape = tuple(shown_size(d, symbols) for d in dims)
    return Param(ParamInfo(name, dtype, shape, role, device=device), tuple(dims), align)


def number_param(name: str, dtype: str = "int64") -> Param:
    """A number, which the caller of a tensor function passes."""
    return Param(ParamInfo(name, dtype, None, "scalar"), None)


@dataclass(frozen=True, slots=True)
class Ptr:
    """An address: byte `offset` of the weights that device `index` has (0: the host), of storage
    `index`, or of parameter `index` (inputs, then outputs)."""

    base: Literal["weights", "workspace", "arg"]
    index: int = 0
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class ScalarExpr:
    """A number passed to a kernel, a size or a C literal, and its C type."""

    value: Size
    ctype: str = "int64_t"


@dataclass(frozen=True, slots=True)
class CheckedIndices:
    """Indices in memory, of element type `dtype`, that must lie within a dimension of `extent`;
    where `negative` is not 0, negative ones count from its end. `count` is the product of their own
    extents `dims`."""

    place: Ptr
    dtype: str
    extent: Size
    negative: Size
    count: Size
    dims: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class ArgumentCheck:
    """Indices that a caller passes, checked before the first kernel. `span` names the model's node
    that reads there."""

    indices: CheckedIndices
    span: str


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a compiled kernel. `span` names the model's node, for a comment in the C; a
    kernel that `may_fail` has assertions, and after the call the C tests whether one failed.
    `indices` are what it has written, if the C checks that."""

    symbol: str
    args: tuple[Ptr | ScalarExpr, ...]
    span: str = ""
    may_fail: bool = False
    indices: CheckedIndices | None = None


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the symbols of a call, and the text that error messages quote."""

    holds: Size
    sentence: str


@dataclass(frozen=True, slots=True)
class HostStorage:
    """Memory for intermediate results: its bytes, where it starts in the workspace, the target's
    pool that it belongs to (empty: any memory), and the alignment of its address in bytes. `device`
    is the number of the device that has it, 0 for the host."""

    size: Size
    start: Size = 0
    pool: str = ""
    align: int = 64
    device: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFunction:
    """A function of the library: what its metadata says of it, and what only its C needs.

    `params` are the inputs, then the outputs. `symbols` maps the C names of symbolic dimensions to
    the model's. A call that violates a condition of `requires` is refused before a kernel runs, and
    so is one whose indices, of `checks`, are outside.
    `storages` are parts of the workspace, which has `workspace_bytes`, or of the memory of
    `devices`: the keys of those with memory of their own that it uses.
    """

    info: FunctionInfo
    params: tuple[Param, ...]
    symbols: Mapping[str, str]
    workspace_bytes: Size
    calls: tuple[KernelCall, ...]
    requires: tuple[Condition, ...]
    storages: tuple[HostStorage, ...]
    devices: tuple[str, ...] = ()
    checks: tuple[ArgumentCheck, ...] = ()

    def least(self, symbol: str) -> int:
        """The least legal value of a symbol. It is 0, which makes tensors empty, and 1 for tensor
        programs, which may access element 0 of a buffer of n."""
        return self.info.symbols[self.symbols[symbol]]


def host_function(
    name: str,
    kind: Literal["graph", "tensor"],
    *,
    inputs: Sequence[Param] = (),
    outputs: Sequence[Param] = (),
    symbols: Mapping[str, str] | None = None,
    workspace_bytes: Size = 0,
    calls: tuple[KernelCall, ...] = (),
    requires: tuple[Condition, ...] = (),
    storages: tuple[HostStorage, ...] = (),
    devices: tuple[str, ...] = (),
    kept: tuple[KeptInfo, ...] = (),
    checks: tuple[ArgumentCheck, ...] = (),
) -> HostFunction:
    """A host function and its description."""
    symbols = symbols or {}
    info = FunctionInfo(
        name,
        kind,
        tuple(p.info for p in inputs),
        tuple(p.info for p in outputs),
        symbols=dict.fromkeys(symbols.values(), int(kind == "tensor")),
        workspace_bytes=shown_size(workspace_bytes, symbols),
        kernel_calls=len(calls),
        requires=tuple(c.sentence for c in requires),
        pools=tuple(
            PoolInfo(s.pool, shown_size(s.size, symbols), s.align) for s in storages if s.pool
        ),
        kept=kept,
    )
    return HostFunction(
        info=info,
        params=(*inputs, *outputs),
        symbols=symbols,
        workspace_bytes=workspace_bytes,
        calls=calls,
        requires=requires,
        storages=storages,
        devices=devices,
        checks=checks,
    )


@dataclass(frozen=True, slots=True)
class OuterCode:
    """C of all outer functions. `infos` describe the public ones, and `exports` are the symbols
    that the library exports for them; `helpers` are graph functions and tensor programs that only
    outer functions call; `count` counts all outer functions."""

    text: str
    infos: tuple[FunctionInfo, ...]
    exports: tuple[str, ...]
    helpers: tuple[HostFunction, ...]
    count: int
    public: tuple[PublicOuter, ...] = ()


@dataclass(frozen=True, slots=True)
class PublicOuter:
    """A public outer function, and its place in the table of all."""

    name: str
    number: int

    @property
    def c_name(self) -> str:
        """Its name in C."""
        return c_name(self.name)

    def entry(self, pointer: str) -> str:
        """Its tvm-ffi entry; `pointer` is its kiln_outer's in C."""
        return ffi_entry(self.name, f"kiln_outer_ffi_call({pointer}")


def computed_sizes(function: HostFunction) -> list[Formula]:
    """Formulas among the sizes of parameters, each once, in order of appearance."""
    sizes = (dim for p in function.params for dim in p.dims or ())
    return list(dict.fromkeys(d for d in sizes if isinstance(d, Formula)))


def _faults(function: HostFunction) -> Iterator[str]:
    """Yield a message for each property of a function that the entry file cannot express."""
    name, symbols = function.info.name, function.symbols
    tensors = [(p.info.name, p.dims) for p in function.params if p.dims is not None]
    if not _IDENTIFIER.match(name):
        yield "its name is not a C identifier"
    for symbol in symbols:
        bare = any(f"s_{symbol}" in dims for _, dims in tensors)
        if not _IDENTIFIER.match(symbol):
            yield f"symbol {symbol!r} is not a C identifier"
        elif not bare:
            yield f"symbol {symbol!r} is not the size of any dimension, so no call could give it"
    numbers = {p.info.name for p in function.params if p.dims is None}
    names = set(symbols) | numbers
    if numbers and function.info.kind == "graph":
        yield "a graph takes tensors only"
    if numbers & set(symbols):
        yield f"{sorted(numbers & set(symbols))} are both symbols and parameters"
    for tensor, dims in tensors:
        unknown = {s for dim in dims for s in symbols_in(dim)} - set(symbols)
        if unknown:
            yield f"{tensor!r} uses unknown symbols {sorted(unknown)}"
    for condition in function.requires:
        unknown = set(symbols_in(condition.holds)) - set(symbols)
        if unknown:
            yield f"{condition.sentence!r} uses unknown symbols {sorted(unknown)}"
    for call in function.calls:
        yield from _call_faults(function, call, names)


def _call_faults(function: HostFunction, call: KernelCall, names: set[str]) -> Iterator[str]:
    for arg in call.args:
        size = arg.value if isinstance(arg, ScalarExpr) else arg.offset
        unknown = set(symbols_in(size)) - names
        if unknown:
            yield f"the call of {call.symbol} uses unknown symbols {sorted(unknown)}"
        if (
            isinstance(arg, Ptr)
            and arg.base == "arg"
            and not (
                0 <= arg.index < len(function.params)
                and function.params[arg.index].dims is not None
            )
        ):
            yield f"the call of {call.symbol} takes parameter {arg.index}, which is not a tensor"


def check(function: HostFunction) -> None:
    """Raise InternalError if the function is malformed, UnsupportedError if it exceeds a limit of
    the runtime (MAX_PARAMS, ...) or has a parameter of another element type than
    PARAMETER_TYPES."""
    params, name = function.params, function.info.name
    for param in params:
        if param.info.dtype not in PARAMETER_TYPES:
            raise UnsupportedError(
                f"{name}: {param.info.name!r} has element type {param.info.dtype}, the host entry "
                f"takes {', '.join(PARAMETER_TYPES)}"
            )
        if len(param.dims or ()) > MAX_RANK:
            raise UnsupportedError(f"{param.info.name!r} has more than {MAX_RANK} dimensions")
    counts = (
        (len(params), MAX_PARAMS, "parameters"),
        (len(function.symbols), MAX_SYMBOLS, "symbolic dimensions"),
        (len(computed_sizes(function)), MAX_COMPUTED, "computed sizes"),
    )
    for count, limit, noun in counts:
        if count > limit:
            raise UnsupportedError(f"{name} has {count} {noun}, the limit is {limit}")
    faults = list(_faults(function))
    if faults:
        raise InternalError(f"host function {name!r}: {'; '.join(faults)}")
