"""Devices with memory of their own, in entry.c: their functions, launches, copies, weights.

A kernel of such a device becomes device functions and a C function that launches them, with the
arguments of any kernel. So planned graphs, call plans and run functions are those of a CPU; an
address of a device is a pointer on which the host only does arithmetic. crt/device.h says what each
piece is for. Devices are numbered from 1 on, in the order of the target; 0 is the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorkiln.arith import simplify
from tensorkiln.base.element_types import PARAMETER_TYPES
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_text.function import CFunction, range_failure
from tensorkiln.codegen.c_text.literals import literal
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.size_locals import SizeLocals
from tensorkiln.codegen.c_text.sizes import size_of
from tensorkiln.codegen.c_text.text import heading, quote, wrap
from tensorkiln.codegen.c_text.types import kernel_type
from tensorkiln.codegen.host.function import HostFunction
from tensorkiln.codegen.host.run_c import measured_sizes, symbol_lines
from tensorkiln.codegen.host.tensor_maps import TensorMap
from tensorkiln.codegen.host.weights import ALIGN
from tensorkiln.ir.buffer import AddressOf, Buffer
from tensorkiln.ir.expr import Expr, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import CallKernel, PrimFunc, Seq
from tensorkiln.ir.tensor_bytes import bytes_of
from tensorkiln.target import HOST


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """What whoever launches a function needs to know of it: what it takes ("buffer", or the dtype
    of a number), the threads of a block, bytes that a block shares, extensions of the device, and
    the tensor maps that it takes behind its parameters."""

    name: str
    params: tuple[str, ...]
    block: tuple[int, int, int]
    shared_bytes: int
    extensions: tuple[str, ...]
    maps: tuple[TensorMap, ...] = ()


@dataclass(slots=True)
class HostDevices:
    """The devices of a library that have memory of their own: kinds by key, and `functions` by key,
    as a code generator has described them. Weights that their kernels read are placed here."""

    kinds: Mapping[str, str]
    functions: Mapping[str, Sequence[DeviceFunction]]
    # By key: the offset in the library's weights -> (offset on the device, bytes).
    weights: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    weights_bytes: dict[str, int] = field(default_factory=dict)

    def number(self, key: str) -> int:
        """The number of a device; 0 for the host."""
        return 0 if key in ("", HOST) else 1 + list(self.kinds).index(key)

    def place(self, key: str, offset: int, size: int) -> int:
        """Where on a device the `size` bytes at `offset` of the weights are copied to."""
        rows = self.weights.setdefault(key, {})
        if offset not in rows:
            end = self.weights_bytes.get(key, 0)
            rows[offset] = end, size
            self.weights_bytes[key] = end + -(-max(size, 1) // ALIGN) * ALIGN
        return rows[offset][0]

    def text(self, mod: IRModule, functions: Sequence[HostFunction]) -> str:
        """C of what the devices run: before the functions that call it."""
        if not self.kinds:
            return ""
        programs = {f.name: f for f in mod.prim_funcs}
        lines = [heading("devices", 93)]
        for key in self.kinds:
            rows = enumerate(self.functions.get(key, ()))
            lines += [_described(function, self.number(key), i) for i, function in rows]
        for f in programs.values():
            if f.attrs.get("target") in self.kinds and not f.is_device:
                key = str(f.attrs["target"])
                maps = {
                    function.name: len(function.maps) for function in self.functions.get(key, ())
                }
                lines.append(_launcher(f, self.number(key), maps))
        lines += [self._copy(f) for f in mod.copies]
        lines += [self._workspace(f) for f in functions if self.used(f)]
        lines.append(self._table())
        return "\n".join(lines)

    def used(self, function: HostFunction) -> tuple[str, ...]:
        """The devices whose storages, weights or functions a host function uses."""
        return tuple(key for key in self.kinds if key in function.devices)

    def _copy(self, f: PrimFunc) -> str:
        """A copy between devices as a function with a kernel's parameters."""
        assert f.copies is not None
        source, destination = map(self.number, f.copies)
        x, *_ = f.buffers
        size, sizes = simplify(bytes_of(x.dtype, x.shape)), SizeLocals(str)
        text = sizes.name(size_of(size, _scalar_names(f)))
        return _function(
            f, sizes, [f"    kiln_device_copy(y, {destination}, x, {source}, {text});"], ("x", "y")
        )

    def _workspace(self, function: HostFunction) -> str:
        """The function that says how many bytes of storages a call needs on each device."""
        name = function.info.name
        rows = [(self.number(s.pool), s.size) for s in function.storages if s.pool in self.kinds]
        symbols = symbol_lines(function.symbols, [size for _, size in rows], "symbol")
        body = symbols or ["    (void)symbol;"]
        if rows:
            sizes = [(f"bytes[{n}]", size) for n, size in rows]
            body += measured_sizes(function, sizes, "KILN_ERROR_MEMORY")
        else:
            body += ["    (void)bytes;", "    return KILN_OK;"]
        head = f"static int device_workspace_{name}(const int64_t *symbol, int64_t *bytes)"
        return CFunction(head, body).definition

    def _table(self) -> str:
        lines, rows = [], []
        for key, kind in self.kinds.items():
            n, functions = self.number(key), self.functions.get(key, ())
            named = ", ".join(f"&device_{n}_{f.name}" for f in functions)
            if functions:
                lines.append(
                    wrap(
                        f"static const kiln_device_function *const functions_{n}[] = {{",
                        named.split(", "),
                        "};",
                    )
                )
            parts = self.weights.get(key, {})
            if parts:
                lines.append(f"static const kiln_device_weights weights_{n}[] = {{")
                lines += [
                    f"    {{{offset}, {to}, {size}}}," for offset, (to, size) in parts.items()
                ]
                lines.append("};")
            rows.append(
                f"    {{{quote(key)}, &kiln_{kind}, {len(functions)}, "
                f"{f'functions_{n}' if functions else 'NULL'}, {len(parts)}, "
                f"{f'weights_{n}' if parts else 'NULL'}, {self.weights_bytes.get(key, 0)}}},"
            )
        body = "\n".join(rows)
        lines.append(f"{DEVICE_TABLE}{body}\n}};\n")
        return "\n".join(lines)


NO_DEVICES = HostDevices({}, {})
DEVICE_TABLE = "static const kiln_device_target devices[] = {\n"  # the end of `HostDevices.text`


def _described(f: DeviceFunction, device: int, number: int) -> str:
    """The C description of a device function."""
    name = f"{device}_{f.name}"
    kinds = [
        "KILN_BUFFER" if p == "buffer" else f"KILN_BITS{PARAMETER_TYPES[p].bits}" for p in f.params
    ]
    kinds += ["KILN_TENSOR_MAP"] * len(f.maps)
    maps = "".join(f"{m.c_text(f'map_{name}_{k}')}\n" for k, m in enumerate(f.maps))
    params = maps + wrap(f"static const uint8_t params_{name}[] = {{", kinds, "};")
    extensions = "NULL"
    if f.extensions:
        extensions = f"extensions_{name}"
        listed = ", ".join(map(quote, f.extensions))
        params += f"\nstatic const char *const {extensions}[] = {{{listed}, NULL}};"
    block = ", ".join(map(str, f.block))
    return (
        f"{params}\nstatic const kiln_device_function device_{name} = {{\n"
        f"    {quote(f.name)}, {device}, {number}, {len(kinds)}, params_{name}, {{{block}}}, "
        f"{f.shared_bytes}, {extensions},\n}};\n"
    )


def _launcher(f: PrimFunc, number: int, maps: Mapping[str, int]) -> str:
    """A program that launches device functions, as a C function with a kernel's parameters. `maps`:
    how many tensor maps each of these takes."""
    statements = f.body.stmts if isinstance(f.body, Seq) else (f.body,)
    sizes, names, lines = SizeLocals(str), _scalar_names(f), list[str]()
    buffers = {b: f"p{i}" for i, b in enumerate(f.buffers)}
    for i, s in enumerate(statements):
        if not isinstance(s, CallKernel) or not s.grid:
            raise UnsupportedError(
                f"{type(s).__name__} between launches", where=f.name, hint="one program per launch"
            )
        grid = ", ".join(sizes.name(size_of(e, names)) for e in s.grid)
        values = [_argument(a, buffers, names, sizes) for a in s.args]
        prefix = f"map_{number}_{s.name}"
        values += [f"{{.bytes = &{prefix}_{k}}}" for k in range(maps.get(s.name, 0))]
        lines.append(f"    const int64_t grid_{i}[3] = {{{grid}}};")
        lines.append(wrap(f"    const kiln_argument argument_{i}[] = {{", values, "};"))
        device = f"&device_{number}_{s.name}"
        lines.append(f"    kiln_launch({device}, grid_{i}, argument_{i}, {len(values)});")
    return _function(f, sizes, lines)


def _argument(
    e: Expr, buffers: Mapping[Buffer, str], names: Mapping[Var, str], sizes: SizeLocals
) -> str:
    """An argument of a launch: a member of kiln_argument."""
    if isinstance(e, AddressOf):
        return f"{{.buffer = {buffers[e.buffer]}}}"
    bits, is_real = e.dtype.bits, e.dtype.is_float and not e.dtype.is_half
    member = f"{'float' if is_real else 'int'}{max(bits, 8)}"
    text = literal(e) or sizes.name(size_of(e, names))
    return f"{{.{member} = {text}}}" if is_real else f"{{.{member} = (int{max(bits, 8)}_t){text}}}"


def _scalar_names(f: PrimFunc) -> dict[Var, str]:
    return {v: c_name(v.name) for v in f.scalars}


def _function(
    f: PrimFunc, sizes: SizeLocals, body: Sequence[str], buffers: Sequence[str] = ()
) -> str:
    """A C function with the parameters of a kernel."""
    names = iter(buffers or [f"p{i}" for i in range(len(f.buffers))])
    scalars = _scalar_names(f)
    params = [
        f"void *{next(names)}"
        if isinstance(p, Buffer)
        else f"{kernel_type(p.dtype.name)} s_{scalars[p]}"
        for p in f.params
    ]
    lines = [*sizes.lines(range_failure(f.name)), *body]
    return CFunction.of("void", f.name, params, lines).definition
