"""What a host entry file is generated from: functions, their tensors, and their call plans.

Sizes are numbers, symbols written `"s_<name>"`, or formulas over symbols. A dimension of an
argument that is just `"s_seq"` gives the symbol its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tensorkiln.base.errors import InternalError, UnsupportedError

MAX_PARAMS, MAX_SYMBOLS, MAX_COMPUTED, MAX_RANK = 256, 64, 256, 16  # as in crt.h and kiln.h


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic over symbols: as people read it, and as C whose operations note in a local
    variable `large` what does not fit into 64 bits (crt/sizes.h). `size_text.py` makes both.

    `s_n * 4` and `kiln_mul(s_n, 4, &large)`
    """

    text: str
    checked: str = field(compare=False)

    def __str__(self) -> str:
        """As people read it."""
        return self.text


Size = int | str | Formula
_SYMBOL = re.compile(r"\bs_(\w+)")
_PLAIN_NAME = re.compile(r"[\w.:/]+\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: DLPack code and bits, and the C type of an element in a plain C entry."""

    code: int
    bits: int
    c_type: str


DTYPES: Mapping[str, DType] = {
    "bool": DType(6, 8, "uint8_t"),
    "int8": DType(0, 8, "int8_t"),
    "int16": DType(0, 16, "int16_t"),
    "int32": DType(0, 32, "int32_t"),
    "int64": DType(0, 64, "int64_t"),
    "uint8": DType(1, 8, "uint8_t"),
    "uint16": DType(1, 16, "uint16_t"),
    "uint32": DType(1, 32, "uint32_t"),
    "uint64": DType(1, 64, "uint64_t"),
    "float16": DType(2, 16, "uint16_t"),
    "bfloat16": DType(4, 16, "uint16_t"),
    "float32": DType(2, 32, "float"),
    "float64": DType(2, 64, "double"),
    "handle": DType(3, 64, "void *const"),  # a set of addresses
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor parameter. `align` is the alignment in bytes that its kernels rely on (0: the
    element size); a caller's tensor with less is copied. With an empty `role` it is an input or an
    output by the list it is in. A tensor function lists all parameters as inputs, and has role
    `"out"` or `"inout"` for those that its kernel writes."""

    name: str
    dtype: str
    dims: tuple[Size, ...]
    align: int = 0
    role: Literal["", "in", "out", "inout"] = ""


@dataclass(frozen=True, slots=True)
class ScalarInfo:
    """A number that the caller of a tensor function passes; `s_<name>` in expressions."""

    name: str
    dtype: str = "int64"


Param = TensorInfo | ScalarInfo


@dataclass(frozen=True, slots=True)
class Ptr:
    """An address: byte `offset` of the weights, of storage `index` in the workspace, or of
    parameter `index` (inputs, then outputs)."""

    base: Literal["weights", "workspace", "arg"]
    index: int = 0
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class ScalarExpr:
    """A number passed to a kernel, a size or a C literal, and its C type."""

    value: Size
    ctype: str = "int64_t"


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One call of a compiled kernel. `span` names the model's node, for a comment in the C; a
    kernel that `may_fail` has assertions, and after the call the C tests whether one failed."""

    symbol: str
    args: tuple[Ptr | ScalarExpr, ...]
    span: str = ""
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on the symbols of a call, and the text that error messages quote."""

    holds: Size
    sentence: str


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory for intermediate results: its bytes, and where it starts in the workspace."""

    size: Size
    start: Size = 0


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function of the library. `symbol_bounds` holds the least legal value of a symbol (1 by
    default; 0 allows empty tensors), `symbol_names` the model's name for it (the symbol itself by
    default). A call that violates a condition of `requires` is refused before a kernel runs.
    `storages` are parts of the workspace, which has `workspace_bytes`."""

    name: str
    kind: Literal["graph", "tensor"]
    inputs: tuple[Param, ...]
    outputs: tuple[TensorInfo, ...]
    symbols: tuple[str, ...] = ()
    symbol_bounds: Mapping[str, int] = field(default_factory=dict)
    workspace_bytes: Size = 0
    calls: tuple[KernelCall, ...] = ()
    symbol_names: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[Condition, ...] = ()
    storages: tuple[Storage, ...] = ()

    @property
    def params(self) -> tuple[Param, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    def model_name(self, symbol: str) -> str:
        """What the model calls a symbolic dimension."""
        return self.symbol_names.get(symbol, symbol)


def c_name(text: str) -> str:
    """`text` as a C identifier: `a.b` becomes `a_b`, and `1x` becomes `_1x`."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() else name


def symbols_in(size: Size) -> tuple[str, ...]:
    """Names of the symbols in an expression, without their `s_`."""
    return () if isinstance(size, int) else tuple(_SYMBOL.findall(str(size)))


def spelled(name: str) -> str:
    """A dimension's name as part of an expression: quoted if it could be read as an expression
    itself, such as `'a + b'`."""
    return name if _PLAIN_NAME.match(name) else f"'{name}'"


def plain(function: HostFunction, size: Size) -> str:
    """A size for people: `s_n` becomes the model's name for symbol `n`."""
    symbol = bound_symbol(function, size)
    if symbol is not None:
        return function.model_name(function.symbols[symbol])
    text = str(size).replace("kiln_floor", "floor")
    return _SYMBOL.sub(lambda m: spelled(function.model_name(m[1])), text)


def shape_text(function: HostFunction, tensor: TensorInfo) -> str:
    """`"[n, 784]"`."""
    return f"[{', '.join(plain(function, dim) for dim in tensor.dims)}]"


def bound_symbol(function: HostFunction, dim: Size) -> int | None:
    """The index of the symbol that `dim` consists of; None if it is a number or an expression."""
    if isinstance(dim, str) and dim.startswith("s_") and dim[2:] in function.symbols:
        return function.symbols.index(dim[2:])
    return None


def computed_sizes(function: HostFunction) -> list[Formula]:
    """Formulas among the sizes of parameters, each once, in order of appearance."""
    sizes = (dim for p in function.params if isinstance(p, TensorInfo) for dim in p.dims)
    return list(dict.fromkeys(d for d in sizes if isinstance(d, Formula)))


def role(function: HostFunction, index: int) -> Literal["in", "out", "inout", "scalar"]:
    """Whether parameter `index` is read, written, both, or a number."""
    param = function.params[index]
    if isinstance(param, ScalarInfo):
        return "scalar"
    return param.role or ("in" if index < len(function.inputs) else "out")


def _faults(function: HostFunction) -> Iterator[str]:
    """Yield a message for each property of a function that the entry file cannot express."""
    params = function.params
    tensors = [p for p in params if isinstance(p, TensorInfo)]
    if not _IDENTIFIER.match(function.name):
        yield "its name is not a C identifier"
    for name in function.symbols:
        bare = any(f"s_{name}" in t.dims for t in tensors)
        if not _IDENTIFIER.match(name):
            yield f"symbol {name!r} is not a C identifier"
        elif not bare:
            yield f"symbol {name!r} is not the size of any dimension, so no call could give it"
    scalars = {p.name for p in params if isinstance(p, ScalarInfo)}
    known = set(function.symbols) | scalars
    if scalars and function.kind == "graph":
        yield "a graph takes tensors only"
    if scalars & set(function.symbols):
        yield f"{sorted(scalars & set(function.symbols))} are both symbols and parameters"
    for tensor in tensors:
        unknown = {s for dim in tensor.dims for s in symbols_in(dim)} - set(function.symbols)
        if unknown:
            yield f"{tensor.name!r} uses unknown symbols {sorted(unknown)}"
    for condition in function.requires:
        unknown = set(symbols_in(condition.holds)) - set(function.symbols)
        if unknown:
            yield f"{condition.sentence!r} uses unknown symbols {sorted(unknown)}"
    for call in function.calls:
        yield from _call_faults(function, call, known)


def _call_faults(function: HostFunction, call: KernelCall, known: set[str]) -> Iterator[str]:
    for arg in call.args:
        size = arg.value if isinstance(arg, ScalarExpr) else arg.offset
        unknown = set(symbols_in(size)) - known
        if unknown:
            yield f"the call of {call.symbol} uses unknown symbols {sorted(unknown)}"
        if (
            isinstance(arg, Ptr)
            and arg.base == "arg"
            and not (
                0 <= arg.index < len(function.params)
                and isinstance(function.params[arg.index], TensorInfo)
            )
        ):
            yield f"the call of {call.symbol} takes parameter {arg.index}, which is not a tensor"


def check(function: HostFunction) -> None:
    """Raise InternalError if the function is malformed, UnsupportedError if it exceeds a limit of
    the runtime (MAX_PARAMS, ...) or has a parameter of another element type than DTYPES."""
    params = function.params
    for param in params:
        if param.dtype not in DTYPES:
            raise UnsupportedError(
                f"{function.name}: {param.name!r} has element type {param.dtype}, the host entry "
                f"takes {', '.join(DTYPES)}"
            )
        if isinstance(param, TensorInfo) and len(param.dims) > MAX_RANK:
            raise UnsupportedError(f"{param.name!r} has more than {MAX_RANK} dimensions")
    counts = (
        (len(params), MAX_PARAMS, "parameters"),
        (len(function.symbols), MAX_SYMBOLS, "symbolic dimensions"),
        (len(computed_sizes(function)), MAX_COMPUTED, "computed sizes"),
    )
    for count, limit, what in counts:
        if count > limit:
            raise UnsupportedError(f"{function.name} has {count} {what}, the limit is {limit}")
    faults = list(_faults(function))
    if faults:
        raise InternalError(f"host function {function.name!r}: {'; '.join(faults)}")


def _param_metadata(function: HostFunction, index: int) -> dict[str, object]:
    param = function.params[index]
    entry: dict[str, object] = {"name": param.name, "dtype": param.dtype}
    if isinstance(param, TensorInfo):
        entry["shape"] = [d if isinstance(d, int) else plain(function, d) for d in param.dims]
    if role(function, index) not in ("in", "out") or function.kind == "tensor":
        entry["role"] = role(function, index)
    return entry


def metadata_of(function: HostFunction) -> dict[str, object]:
    """The function's entry in the library's metadata."""
    count = len(function.inputs)
    workspace = function.workspace_bytes
    entry: dict[str, object] = {
        "name": function.name,
        "kind": function.kind,
        "inputs": [_param_metadata(function, i) for i in range(count)],
        "outputs": [_param_metadata(function, i) for i in range(count, len(function.params))],
        "symbols": {
            function.model_name(s): function.symbol_bounds.get(s, 1) for s in function.symbols
        },
        "workspace_bytes": workspace if isinstance(workspace, int) else plain(function, workspace),
        "kernel_calls": len(function.calls),
    }
    if function.requires:
        entry["requires"] = [c.sentence for c in function.requires]
    return entry
