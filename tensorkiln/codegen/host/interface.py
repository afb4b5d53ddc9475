"""The names and structs by which a C program calls a model: what `interface_c.py`, `interface_h.py`
and the metadata of an archive agree about.

All names begin with `kiln_<model>`; those of the entry function follow at once (`kiln_net_run`),
those of another have its name between (`kiln_net_decode_run`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from tensorkiln.artifact.metadata import ParamInfo
from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.schema import Dim
from tensorkiln.base.text import unused
from tensorkiln.codegen.c_text.names import Names, plain_name
from tensorkiln.codegen.c_text.sizes import Size, shown_size, symbols_in
from tensorkiln.codegen.host.function import HostFunction, Param

ALIGNMENT = 64  # bytes, of pools and of constants


@dataclass(frozen=True, slots=True)
class Member:
    """A tensor or number as a member of the struct of inputs or outputs; `index` is its place among
    the function's parameters."""

    name: str
    index: int
    param: Param

    @property
    def info(self) -> ParamInfo:
        """What metadata says of it."""
        return self.param.info

    @property
    def declaration(self) -> str:
        """`const float *x`; without `const` where a call writes."""
        ctype = PARAMETER_TYPES[self.info.dtype].c_element
        if self.param.dims is None:
            return f"{ctype} {self.name}"
        const = "const " if self.info.role == "in" else ""
        return f"{const}{ctype} *{self.name}"

    @property
    def size_bytes(self) -> Dim:
        """Bytes of its memory: a number, or an expression of the model's symbolic sizes."""
        item = PARAMETER_TYPES[self.info.dtype].argument.size(1)
        if self.param.dims is None:
            return item
        if all(isinstance(d, int) for d in self.param.dims):
            return item * math.prod(d for d in self.param.dims if isinstance(d, int))
        shape = self.info.shape or ()
        return " * ".join([*(d if _is_word(d) else f"({d})" for d in map(str, shape)), str(item)])

    @property
    def alignment(self) -> int:
        """What kernels rely on: its address is divisible by this."""
        return max(self.param.align, PARAMETER_TYPES[self.info.dtype].argument.size(1))


def _is_word(text: str) -> bool:
    return text.isidentifier() or text.isdigit()


@dataclass(frozen=True, slots=True)
class PoolPart:
    """A storage of the function, and the byte of the pool where it begins."""

    storage: int
    start: Size


@dataclass(frozen=True, slots=True)
class InterfacePool:
    """Memory that the caller provides for the time of a call, and the storages that lie in it.
    `shown_size` has the model's names of symbolic sizes."""

    name: str
    size: Size
    shown_size: Dim
    parts: tuple[PoolPart, ...]
    alignment: int = ALIGNMENT


@dataclass(frozen=True, slots=True)
class Interface:
    """How C calls one function. `symbols` are C names of the arguments for symbolic sizes, in the
    order of `function.symbols`."""

    function: HostFunction
    stem: str
    inputs: tuple[Member, ...]
    outputs: tuple[Member, ...]
    symbols: tuple[str, ...]
    pools: tuple[InterfacePool, ...]

    @property
    def run(self) -> str:
        """The C function."""
        return f"{self.stem}_run"

    @property
    def members(self) -> tuple[Member, ...]:
        """Inputs and outputs in the order of the function's parameters."""
        return tuple(sorted((*self.inputs, *self.outputs), key=lambda m: m.index))

    def macro(self, role: str) -> str:
        """`KILN_NET_<WHAT>_SIZE`."""
        return f"{self.stem}_{role}_size".upper()

    @property
    def symbolic_pools(self) -> tuple[InterfacePool, ...]:
        """The pools whose size depends on the call."""
        return tuple(pool for pool in self.pools if symbols_in(pool.size))


@dataclass(frozen=True, slots=True)
class ModelInterface:
    """All functions of a model. `prefix` is `kiln_<model>`; `reporting` are kernels that call
    `failure_hook` with a sentence when they cannot go on."""

    model: str
    prefix: str
    functions: tuple[Interface, ...]
    reporting: frozenset[str]
    names: Names = field(compare=False, repr=False)

    @property
    def failure_hook(self) -> str:
        """The function that a program may define to be told why a kernel cannot go on."""
        return f"{self.prefix}_on_failure"


def model_interface(
    model: str,
    functions: Sequence[HostFunction],
    names: Names | None = None,
    externals: Collection[str] = (),
) -> ModelInterface:
    """The interface of the model called `model`, a name of C. `names` are the symbols of the
    program that it becomes a part of; those of this model are added to them. `externals` are
    kernels that external code generators made.

    Raises UserError (code `name-clash`) where two functions, tensors or models would have one name
    in C.
    """
    prefix, names = f"kiln_{model}", names or Names("C")
    entry = entry_function(functions)
    interfaces = tuple(_interface(f, prefix, model, f is entry, names) for f in functions)
    reporting = {c.symbol for f in functions for c in f.calls if c.may_fail} & {*externals}
    for name in ("parallel_for", "body", "weights", *(["on_failure"] if reporting else [])):
        names.add(f"{prefix}_{name}", f"model {model!r}")
    return ModelInterface(model, prefix, interfaces, frozenset(reporting), names)


def entry_function(functions: Sequence[HostFunction]) -> HostFunction | None:
    """`main`, or the only function; None if there is neither."""
    main = next((f for f in functions if f.info.name == "main"), None)
    return functions[0] if main is None and len(functions) == 1 else main


def _interface(
    function: HostFunction, prefix: str, model: str, is_entry: bool, names: Names
) -> Interface:
    stem = prefix if is_entry else f"{prefix}_{function.info.name}"
    owner = f"function {function.info.name!r} of model {model!r}"
    pools = _pools(function)
    sizes = [f"{stem}_{pool.name}_size" for pool in pools]
    for name in (*(f"{stem}_{s}" for s in ("run", "inputs", "outputs", "pools")), *sizes):
        names.add(name, owner)
    for name in sizes:  # the macros
        names.add(name.upper(), owner)
    inputs: list[tuple[int, Param]] = []
    outputs: list[tuple[int, Param]] = []
    for i, param in enumerate(function.params):
        is_input = param.info.role in ("in", "scalar")
        (inputs if is_input else outputs).append((i, param))
    members = [
        _members(params, f"the {kind}s of {owner}", f"{stem}_{kind}", names)
        for kind, params in (("input", inputs), ("output", outputs))
    ]
    symbols = _arguments(function)
    return Interface(function, stem, members[0], members[1], symbols, pools)


def _pools(function: HostFunction) -> tuple[InterfacePool, ...]:
    """One pool for all storages; where the target has pools of its own, each storage is one."""
    storages = function.storages
    if not any(s.pool for s in storages):
        parts = tuple(PoolPart(i, s.start if i else 0) for i, s in enumerate(storages))
        size, size_text = function.workspace_bytes, function.info.workspace_bytes
        return (InterfacePool("workspace", size, size_text, parts),)
    names: set[str] = set()
    pools = []
    for i, s in enumerate(storages):
        name = unused(plain_name(s.pool or "workspace"), names)
        names.add(name)
        size_text = shown_size(s.size, function.symbols)
        pools.append(InterfacePool(name, s.size, size_text, (PoolPart(i, 0),), s.align))
    return tuple(pools)


def _members(
    params: Sequence[tuple[int, Param]], scope: str, stem: str, symbols: Names
) -> tuple[Member, ...]:
    names, members = Names(scope), []
    for index, param in params:
        owner = f"{param.info.name!r} (parameter {index})"
        name = names.add(plain_name(param.info.name), owner)
        symbols.add(f"{stem}_{name}_size".upper(), f"{owner} of {scope}")
        members.append(Member(name, index, param))
    return tuple(members)


# Names of other arguments and of local variables in the C.
_TAKEN = re.compile(
    r"inputs|outputs|pools|weights|workspace|large|bytes|(in|out|s|size|workspace)_.*"
)


def _arguments(function: HostFunction) -> tuple[str, ...]:
    """Names of the arguments for symbolic sizes."""
    names, arguments = Names(f"the arguments of {function.info.name!r}"), []
    for symbol, model_name in function.symbols.items():
        name = plain_name(symbol)
        name = f"arg_{name}" if _TAKEN.fullmatch(name) else name
        arguments.append(names.add(name, f"size {model_name!r}"))
    return tuple(arguments)


def kernel_prefix(prefix: str) -> str:
    """The prefix of the kernels' symbols."""
    return f"{prefix}_kernel_"
