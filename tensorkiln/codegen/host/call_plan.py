"""Turn a planned graph function into a `HostFunction`: its kernel calls, with an address for each
argument.

A `HostFunction` (`function.py`) has the `FunctionInfo` that metadata states and the runtime reads,
and what only C needs: sizes as C expressions of symbolic dimensions, the storages one after the
other in one workspace, and a `KernelCall` per call, whose arguments are addresses in weights,
storages or the caller's tensors. A kernel with the attribute `CHECKED_INDICES` puts indices into
memory, and gets their limits from here: the entry file looks at its result before the next kernel
runs (`crt/indices.h`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from tensorkiln.arith import simplify
from tensorkiln.artifact.metadata import KeptInfo
from tensorkiln.base.errors import Issue, UnsupportedError
from tensorkiln.base.text import unused
from tensorkiln.codegen.c_text.literals import literal
from tensorkiln.codegen.c_text.names import c_name
from tensorkiln.codegen.c_text.sizes import Size, condition_text, size_of
from tensorkiln.codegen.c_text.types import kernel_type
from tensorkiln.codegen.host.devices import NO_DEVICES, HostDevices
from tensorkiln.codegen.host.function import (
    ArgumentCheck,
    CheckedIndices,
    Condition,
    HostFunction,
    HostStorage,
    KernelCall,
    Param,
    Ptr,
    ScalarExpr,
    host_function,
    number_param,
    tensor_param,
)
from tensorkiln.codegen.host.weights import ALIGN, WeightArena
from tensorkiln.ir.array_types import array_type
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.checked_arguments import CheckedArgument, checked_arguments
from tensorkiln.ir.conditions import SizeCondition, conditions_of
from tensorkiln.ir.expr import Expr, IntImm, Var, as_expr
from tensorkiln.ir.kept import kept_of
from tensorkiln.ir.known_attrs import CHECKED_INDICES
from tensorkiln.ir.module import AnyFunction, AnyKernel, IRModule
from tensorkiln.ir.outputs import written_parameters
from tensorkiln.ir.plan import Address, Plan, PlannedCall
from tensorkiln.ir.relax import Function, TensorType
from tensorkiln.ir.stmt import Assert, PrimFunc, TensorProgram
from tensorkiln.ir.text.printer import printed_names
from tensorkiln.ir.visit import free_vars, walk_stmt
from tensorkiln.target import HOST


class Symbols:
    """C names and model names of the symbolic dimensions of one function.

    C names are unique: a second `n` becomes `n_2`. `spelled` maps variables to their names in the
    function's text; `dim_names` has the model's names of those that the model calls otherwise.
    """

    def __init__(
        self,
        types: list[TensorType],
        spelled: Mapping[object, str],
        dim_names: Mapping[Var, str],
    ):
        self.names: dict[Var, str] = {}
        self._spelled, self._dim_names = spelled, dim_names
        for t in types:
            for d in t.shape:
                for v in free_vars(d):
                    self._name(v)

    @classmethod
    def of(cls, plan: Plan) -> Symbols:
        """Those of a graph function."""
        f = plan.graph
        dim_names = dict(f.attrs.get("dim_names", ()))
        return cls([*plan.inputs, *plan.results], printed_names(f), dim_names)

    def _name(self, v: Var) -> None:
        if v not in self.names:
            self.names[v] = unused(c_name(self._spelled[v]), set(self.names.values()))

    def size(self, e: Expr) -> Size:
        """A size in the C names of its dimensions."""
        return size_of(e, self.names)

    def model_name(self, v: Var) -> str:
        """What the model calls a dimension."""
        return self._dim_names.get(v, self._spelled[v])

    def condition(self, c: SizeCondition) -> Condition:
        """A condition on the sizes of a call; its variables must be symbols of the function."""
        model_names = {v: self.model_name(v) for v in free_vars(c.holds)}
        return Condition(size_of(c.holds, self.names), condition_text(c, model_names))

    def dims(self, t: TensorType) -> tuple[Size, ...]:
        """The extents of a tensor."""
        return tuple(self.size(d) for d in t.shape)


def graph_host_function(
    f: Function, mod: IRModule, arena: WeightArena, devices: HostDevices = NO_DEVICES
) -> HostFunction:
    """The call plan of a graph function after `partial_graph_aot`. Constants that its kernels read
    are placed in `arena`, and those of a device's kernels also there."""
    plan = mod.plan(f.name)
    types = (*plan.inputs, *plan.results)
    spelled = printed_names(f)
    symbols = Symbols.of(plan)
    host_storages = [s for s in plan.storages if s.pool not in devices.kinds]
    starts, total = _laid_out([s.size for s in host_storages])
    start_of = dict(zip(map(id, host_storages), starts, strict=True))

    def argument(a: Address | Expr, device: str) -> Ptr | ScalarExpr:
        if isinstance(a, Expr):
            return ScalarExpr(literal(a) or symbols.size(a), kernel_type(a.dtype.name))
        if a.base == "constant":
            c = plan.constants[a.index]
            offset = arena.place_constant(c)
            offset = devices.place(device, offset, c.data.nbytes) if device else offset
            return Ptr("weights", devices.number(device), symbols.size(offset + a.offset))
        base: Literal["arg", "workspace"] = "arg" if a.base == "tensor" else "workspace"
        return Ptr(base, a.index, symbols.size(a.offset))

    kernel_devices = {c.name: _device_of(mod[c.name], devices) for c in plan.calls}
    calls = tuple(
        _kernel_call(c, tuple(argument(a, kernel_devices[c.name]) for a in c.args), mod)
        for c in plan.calls
    )
    # The model's own names: they need not be identifiers.
    input_names = f.attrs.get("input_names") or [spelled[p] for p in f.params]
    model_names = {name: symbols.model_name(v) for v, name in symbols.names.items()}
    count = len(f.params)
    lives = [
        *f.attrs.get("param_devices", (HOST,) * count),
        *f.attrs.get("result_devices", (HOST,) * (len(types) - count)),
    ]

    def params(names: Iterable[object], rows: slice, role: str) -> list[Param]:
        return [
            tensor_param(
                str(n),
                array_type(f, str(n), t.dtype.name),
                symbols.dims(t),
                model_names,
                role=role,
                device=number,
            )
            for n, t, number in zip(
                names, types[rows], map(devices.number, lives[rows]), strict=True
            )
        ]

    inputs = params(input_names, slice(count), "in")
    names = f.attrs.get("output_names") or [f"output{i}" for i in range(len(types) - count)]
    outputs = params(names, slice(count, None), "out")
    renamed = _unique(inputs, map(str, names))
    outputs = [
        replace(p, info=replace(p.info, name=n)) for p, n in zip(outputs, renamed, strict=True)
    ]
    return host_function(
        f.name,
        "graph",
        inputs=inputs,
        outputs=outputs,
        symbols=model_names,
        workspace_bytes=symbols.size(total),
        calls=calls,
        requires=tuple(map(symbols.condition, conditions_of(f))),
        storages=tuple(
            HostStorage(
                symbols.size(s.size),
                symbols.size(start_of.get(id(s), IntImm(0))),
                s.pool,
                s.align,
                devices.number(s.pool) if s.pool in devices.kinds else 0,
            )
            for s in plan.storages
        ),
        devices=tuple(
            dict.fromkeys(k for k in (*kernel_devices.values(), *lives) if k not in ("", HOST))
        ),
        kept=tuple(KeptInfo(k.output, k.kernel, k.names) for k in kept_of(f.attrs)),
        checks=tuple(_argument_check(f, row, symbols) for row in checked_arguments(f.attrs)),
    )


def _argument_check(f: Function, row: CheckedArgument, symbols: Symbols) -> ArgumentCheck:
    t = f.params[row.param].tensor
    checked = CheckedIndices(
        Ptr("arg", row.param),
        t.dtype.name,
        symbols.size(simplify(as_expr(row.extent))),
        int(row.negative and not t.dtype.is_unsigned),
        symbols.size(simplify(prod(t.shape, start=IntImm(1)))),
        tuple(symbols.dims(t)),
    )
    return ArgumentCheck(checked, row.span)


def _kernel_call(
    call: PlannedCall, args: tuple[Ptr | ScalarExpr, ...], mod: IRModule
) -> KernelCall:
    f = mod[call.name]
    return KernelCall(call.name, args, call.span, _may_fail(f), _checked_indices(f, args))


def _checked_indices(f: AnyFunction, args: Sequence[Ptr | ScalarExpr]) -> CheckedIndices | None:
    """What the host checks after a call of a kernel: its result, if that is indices."""
    if not isinstance(f, TensorProgram) or CHECKED_INDICES not in f.attrs:
        return None
    rank, out = f.attrs[CHECKED_INDICES], f.buffers[-1]
    place = next(a for a, p in zip(args, f.params, strict=True) if p is out)
    assert isinstance(place, Ptr)
    extent, negative, count, *dims = (a.value for a in args[len(args) - 3 - rank :])  # type: ignore[union-attr]
    return CheckedIndices(place, out.dtype.name, extent, negative, count, tuple(dims))


def _device_of(f: AnyFunction, devices: HostDevices) -> str:
    """The device with memory of its own on which a kernel runs, if it is one."""
    key = str(f.attrs.get("target", ""))
    return key if key in devices.kinds else ""


def _may_fail(f: AnyFunction) -> bool:
    """Whether what follows a call must not run if it failed: it has assertions, or what a device
    has computed comes back to the host by it."""
    back = isinstance(f, PrimFunc) and f.copies is not None and f.copies[1] == HOST
    return back or has_assertions(f)


def _laid_out(sizes: Sequence[Expr]) -> tuple[list[Expr], Expr]:
    """The byte offset of each storage in one workspace, and the size of the workspace."""
    starts: list[Expr] = []
    total: Expr = IntImm(0)
    for size in sizes:
        if starts:
            total = simplify((total + (ALIGN - 1)) // ALIGN * ALIGN)
        starts.append(total)
        total = total + size
    return starts, total


def _unique(inputs: Sequence[Param], names: Iterable[str]) -> list[str]:
    """`names` of outputs, different from each other and from those of the inputs: a second `y`
    becomes `y_2`."""
    reserved = {p.info.name for p in inputs}
    out = []
    for name in names:
        out.append(unused(name, reserved))
        reserved.add(out[-1])
    return out


def implied_sizes(f: AnyKernel) -> tuple[Var, ...]:
    """Scalar parameters that are a dimension of a tensor parameter: its shape gives the value."""
    dims = [d for b in f.buffers for d in b.shape]
    return tuple(v for v in f.scalars if any(d is v for d in dims))


def sizes_read(f: AnyKernel) -> tuple[Var, ...]:
    """The trailing scalar parameters that `pass_sizes` added. Callers of the library do not pass
    them; the entry reads them off the shapes of tensors."""
    count = int(f.attrs.get("sizes", 0))
    return f.scalars[len(f.scalars) - count :]


def has_assertions(f: AnyFunction) -> bool:
    """Whether the kernel contains assertions, so that a call of it may fail. Known kernels have
    none (`LowerGroups` gives no key to a kernel with one)."""
    return isinstance(f, PrimFunc) and any(isinstance(s, Assert) for s in walk_stmt(f.body))


def _require_told_sizes(f: AnyKernel, implied: tuple[Var, ...]) -> None:
    """Raise UnsupportedError if a tensor's shape contains a scalar parameter that the caller passes
    as well: the shape and the number could disagree."""
    passed = set(f.scalars) - set(implied)
    issues = [
        Issue(
            "tensor-program",
            f.name,
            "",
            f"parameter {v.name} is a size in the shape of {b.name}",
            f"leave the parameter out: the tensors tell {v.name} by their shapes",
        )
        for b in f.buffers
        for v in dict.fromkeys(v for d in b.shape for v in free_vars(d) if v in passed)
    ]
    if issues:
        raise UnsupportedError(issues)


def tensor_host_function(
    f: AnyKernel,
    name: str,
    mod: IRModule,
    implied: tuple[Var, ...] = (),
    devices: HostDevices = NO_DEVICES,
) -> HostFunction:
    """The host function `name` that calls tensor program `f` of `mod`. Its caller passes all
    parameters but those `implied`, which are read off the shapes of tensors; tensors of a program
    for a device with memory of its own are there."""
    _require_told_sizes(f, implied)
    spelled = printed_names(f)
    names: dict[Var, str] = {v: spelled[v] for v in f.scalars}
    for buf in f.buffers:
        for d in buf.shape:
            names.update((v, spelled[v]) for v in free_vars(d))
    declared = {names[v] for v in f.scalars if v not in implied}
    symbols = {n: n for n in names.values() if n not in declared}
    written, key = written_parameters(f, mod), _device_of(f, devices)
    inputs: list[Param] = []
    args: list[Ptr | ScalarExpr] = []
    for p in f.params:
        if isinstance(p, Buffer):
            dims = tuple(size_of(d, names) for d in p.shape)
            role = "out" if p in written else "in"
            t = p.dtype.name
            param = tensor_param(
                spelled[p], t, dims, symbols, role=role, align=p.align, device=devices.number(key)
            )
            inputs.append(param)
            args.append(Ptr("arg", len(inputs) - 1))
        elif p in implied:
            args.append(ScalarExpr(f"s_{names[p]}", kernel_type(p.dtype.name)))
        else:
            inputs.append(number_param(names[p], p.dtype.name))
            args.append(ScalarExpr(f"s_{names[p]}", kernel_type(p.dtype.name)))
    call = KernelCall(f.name, tuple(args), may_fail=has_assertions(f))
    keys = (key,) if key else ()
    return host_function(
        name, "tensor", inputs=inputs, symbols=symbols, calls=(call,), devices=keys
    )
