"""Put the parts that `assign_devices` has made back into the functions that call them, with copies
where a device has memory of its own.

    y = main_gpu(x); z = relu(y); return z      ->   x_gpu = copy_to_gpu(x)
    main_gpu(x): t = conv2d(x, w); return add(t, b)  t = conv2d(x_gpu, w); y = add(t, b)
                                                     y_host = copy_from_gpu(y)
                                                     z = relu(y_host); return z

Kernels know their device by now, and memory is planned for the whole function. A copy is a call of
a tensor program with the attribute `copy`; a value is copied to each device at most once. Constants
are not copied here: each device has a copy of those that its kernels read.

Needs: `lower_groups`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tensorkiln.base.text import unused
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.buffer import Buffer, Load
from tensorkiln.ir.expr import Expr, IntImm, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Function,
    GlobalRef,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    Value,
)
from tensorkiln.ir.stmt import For, Param, PrimFunc, Stmt, Store
from tensorkiln.ir.type_text import show
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.ir.visit_graph import substitute as substitute_bound
from tensorkiln.ir.visit_graph import variables
from tensorkiln.target import HOST, Target, accelerators
from tensorkiln.transform.relax.parts import called_parts, joined, parts_of


@dataclass(frozen=True, slots=True)
class JoinDevices:
    """Join the parts of every function for the devices of `target`."""

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The module without the parts; `mod` itself if it has none."""
        parts = parts_of(mod)
        homes = {"param_devices", "result_devices"}
        if not parts and not any(homes & set(f.attrs) for f in mod.unplanned):
            return mod
        copies = _Copies(set(mod))
        accelerator_keys = accelerators(self.target)
        whole = {
            f.name: _Joined(f, parts, accelerator_keys, copies).function()
            for f in mod.unplanned
            if "placed" in f.attrs
        }
        functions = (whole.get(f.name, f) for f in mod.functions if f.name not in parts)
        return mod.with_functions((*functions, *copies.programs.values()))


class _Joined:
    """One function with its parts. `memory` says which device's memory a value is in, "" being the
    host's; `copied` are the copies made so far."""

    def __init__(
        self,
        f: Function,
        parts: Mapping[str, Function],
        accelerator_keys: Sequence[str],
        copies: _Copies,
    ):
        self.f, self.parts, self.accelerator_keys, self.copies = f, parts, accelerator_keys, copies
        self.whole = joined(f, parts)
        self.names = {v.name for v in (*f.params, *(b.var for b in self.whole.bindings))}
        self.bindings: list[Binding] = []
        self.memory: dict[Value, str] = {}
        self.copied: dict[tuple[Value, str], Value] = {}

    def function(self) -> Function:
        f, whole = self.f, self.whole
        for p, key in zip(f.params, f.attrs.get("param_devices", ()), strict=False):
            self.memory[p] = self._memory_of(key)
        for b in whole.bindings:
            memory = self._memory_of(whole.device.get(b.var, ""))
            by = {v: self._in(v, memory) for v in variables(b.value)}
            self.bindings.append(Binding(b.var, substitute_bound(b.value, by)))
            self.memory[b.var] = memory
        fields = whole.result.fields if isinstance(whole.result, Tuple) else (whole.result,)
        lives = map(self._memory_of, f.attrs.get("result_devices", ("",) * len(fields)))
        result_fields = tuple(self._in(v, key) for v, key in zip(fields, lives, strict=True))
        result = Tuple(result_fields) if isinstance(whole.result, Tuple) else result_fields[0]
        return replace(f, bindings=tuple(self.bindings), result=result, attrs=self._attrs())

    def _attrs(self) -> Attrs:
        """The function's attributes, with those of its parts about decomposed operators and tuned
        kernels."""
        functions = (self.f, *(self.parts[name] for name in called_parts(self.f, self.parts)))
        rows_by_name = {
            name: tuple(dict.fromkeys(row for f in functions for row in f.attrs.get(name, ())))
            for name in ("decomposed", "tuned")
        }
        rows = {name: value for name, value in rows_by_name.items() if value}
        return Attrs.of(**{**self.f.attrs, **rows}) if rows else self.f.attrs

    def _memory_of(self, key: str) -> str:
        return key if key in self.accelerator_keys else ""

    def _name(self, stem: str) -> str:
        name = unused(stem, self.names)
        self.names.add(name)
        return name

    def _in(self, v: Value, memory: str) -> Value:
        """A value in the memory of a device: itself, or a copy, which goes through the host if it
        is between two devices."""
        home = self.memory.get(v, "")
        if home == memory or not isinstance(v, RVar) or not isinstance(v.type, TensorType):
            return v
        if (v, memory) in self.copied:
            return self.copied[v, memory]
        if home and memory:
            copy = self._in(self._in(v, ""), memory)
        else:
            program, sizes = self.copies.program(v.type, home, memory)
            copy = RVar(self._name(f"{v.name}_{memory or HOST}"), v.type)
            args = (v, ShapeValue(sizes)) if sizes else (v,)
            self.bindings.append(Binding(copy, Call(GlobalRef(program.name), args)))
            self.memory[copy] = memory
            self.copied[copy, home] = v
        self.copied[v, memory] = copy
        return copy


@dataclass(slots=True)
class _Copies:
    """The tensor programs that copy, one per type and pair of devices."""

    names: set[str]
    programs: dict[tuple[str, str, str], PrimFunc] = field(default_factory=dict)

    def program(
        self, t: TensorType, source: str, destination: str
    ) -> tuple[PrimFunc, tuple[Expr, ...]]:
        """The program that copies a tensor of a type, and the sizes that it takes."""
        sizes = tuple(dict.fromkeys(v for d in t.shape for v in free_vars(d)))
        key = show(t), source, destination
        if key not in self.programs:
            name = unused(
                f"copy_to_{destination}" if destination else f"copy_from_{source}", self.names
            )
            self.names.add(name)
            self.programs[key] = _copy(name, t, sizes, (source or HOST, destination or HOST))
        return self.programs[key], sizes


def _copy(name: str, t: TensorType, sizes: Sequence[Var], pair: tuple[str, str]) -> PrimFunc:
    size_params = {v: Var(v.name, v.dtype) for v in sizes}
    shape = tuple(substitute(d, dict[Var, Expr](size_params)) for d in t.physical_shape)
    x, y = (Buffer(n, t.dtype, shape, align=t.dtype.bytes) for n in "xy")
    indices = tuple(Var(f"i{k}") for k in range(len(shape)))
    body: Stmt = Store(y, indices, Load(x, indices))
    for var, extent in reversed(list(zip(indices, shape, strict=True))):
        body = For(var, IntImm(0), extent, "serial", body)
    params: tuple[Param, ...] = (x, y, *(size_params[v] for v in sizes))
    return PrimFunc(name, params, body, op_class="copy", attrs=Attrs.of(copy=pair))


__all__ = ["JoinDevices"]
