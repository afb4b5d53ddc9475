"""Devices in the types of values: operators that a device must compute become a part of it, before
other passes rewrite them, and types have no device any more.

    def main(x: R.Tensor((4,), "float32", device="gpu")):
        y: R.Tensor((4,), "float32", device="dsp") = R.exp(x)
        return R.relu(y)
    ->  def main(x): y = main_dsp(x); return relu(y)   param_devices = ("gpu",)
        def main_dsp(x): return exp(x)                 part, private, target = "dsp"

An operator is computed by the device that the type of its result names. A parameter is in the
memory of the one that its type names, and so is a result: then the caller's tensors are there. CPUs
share the host's memory. `assign_devices` puts the parts back.

Needs: `outline_dataflow`, after which straight-line functions call no others; run before passes
that make values, whose types name no device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Constant,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.type_devices import device_of, has_devices
from tensorkiln.ir.visit_graph import substitute, substitute_value
from tensorkiln.target import HOST, Target, accelerators, devices_of, runs_kernels
from tensorkiln.transform.relax.parts import divided


@dataclass(frozen=True, slots=True)
class PinDevices:
    """Honour the devices in the types of every graph function, for the devices of `target`.

    Raises UserError (code `unknown-device`) for one that the target does not have, or a device that
    runs no kernels of the compiler; UnsupportedError where no operator makes the value, such as the
    result of a branch.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The module without devices in types; `mod` itself if it has none."""
        if not any(map(has_devices, mod.functions)):
            return mod
        names, functions = set(mod), list[AnyFunction]()
        todo = {f.name for f in (*mod.unplanned, *mod.outers)}
        for f in mod.functions:
            if not has_devices(f):
                functions.append(f)
            elif f.name not in todo:
                raise UnsupportedError(
                    "devices in the types of a fused group, or of a planned function",
                    where=f.name,
                    hint="its attribute target is the key of its device",
                )
            elif isinstance(f, Function):
                functions += _Pinned(f, self.target).functions(names)
        return mod.with_functions(tuple(functions))


def _bare(t: Type) -> Type:
    """A type without devices."""
    if isinstance(t, TupleType):
        return TupleType(tuple(map(_bare, t.fields)))
    return replace(t, device="") if isinstance(t, TensorType) else t


class _Pinned:
    """One function whose types name devices."""

    def __init__(self, f: Function, target: Target):
        self.f, self.devices, self.accelerators = f, devices_of(target), accelerators(target)

    def functions(self, names: set[str]) -> list[Function]:
        """The parts of devices, and the function that calls them."""
        f = self.f
        result = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
        if f.is_outer:
            self._require_outlined()
            return [_without_devices(f)]
        lives = {
            "param_devices": [self._memory(p) for p in f.params],
            "result_devices": [self._memory(v) for v in result],
        }
        placement = {b.var: self._pin(b, result) for b in f.bindings}
        functions, bindings = divided(f, placement, names)
        device_attrs = {
            k: tuple(keys) for k, keys in lives.items() if any(key != HOST for key in keys)
        }
        attrs = Attrs.of(**f.attrs, **device_attrs)
        caller = replace(f, bindings=bindings, attrs=attrs)
        return [_without_devices(g) for g in (*functions, caller)]

    def _memory(self, v: Value) -> str:
        """The device in whose memory a parameter or result is: HOST also for CPUs."""
        t = v.type
        key = t.device if isinstance(t, TensorType) else ""
        if key:
            self._require(key, v)
        return key if key in self.accelerators else HOST

    def _pin(self, b: Binding, results: tuple[Value, ...]) -> str:
        """The device that computes a binding, empty if its type names none."""
        key = device_of(b.var.type)
        if not key:
            return ""
        self._require(key, b.var)
        if isinstance(b.value, Call) and b.value.op and isinstance(b.var.type, TensorType):
            return key
        if not isinstance(b.value, RVar | Constant) or b.var not in results:
            raise self._not_made(b)
        return ""  # another name for a result, which says only where that is

    def _require_outlined(self) -> None:
        """Raise an error if an outer function names a device that no function which it calls
        honours: its own operators are in those."""
        for v in (*self.f.params, *(b.var for b in self.f.bindings)):
            if device_of(v.type):
                self._require(device_of(v.type), v)
        for b in self.f.bindings:
            called = isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef)
            if device_of(b.var.type) and not called and not isinstance(b.value, TupleItem):
                raise self._not_made(b)
            alone = replace(self.f, params=(), bindings=(b,))
            if has_devices(alone) and not device_of(b.var.type):
                raise self._not_made(b)

    def _not_made(self, b: Binding) -> UnsupportedError:
        return UnsupportedError(
            "a device in the type of a value that no operator makes",
            where=f"{self.f.name}({b.var.name})",
            hint="in the type of an operator's result, a parameter or what is returned",
        )

    def _require(self, key: str, v: Value) -> None:
        """Raise UserError unless `key` is a device with kernels of the compiler, or the host."""
        runs = [k for k, device in self.devices.items() if runs_kernels(device)]
        if key in runs or (self.devices and key == HOST):
            return
        name = v.name if isinstance(v, RVar) else "result"
        message = f"no device {key!r}: the target has none" if not self.devices else ""
        if key in self.devices:
            message = f"device {key!r} is an external, which takes operators that it supports"
        raise UserError(
            message or f"no device {key!r}",
            code="unknown-device",
            where=f"{self.f.name}({name})",
            hint=nearest(key, (HOST, *runs)) or _keys_text(runs, bool(self.devices)),
        )


def _keys_text(runs: list[str], has: bool) -> str:
    return f"the target's are {listed((HOST, *runs))}" if has else 'as {"devices": [...]}'


def _without_devices(f: Function) -> Function:
    """`f` with variables of types without devices."""
    by: dict[RVar, Value] = {}

    def bare(v: RVar) -> RVar:
        if not device_of(v.type):
            return v
        by[v] = bare_var = RVar(v.name, _bare(v.type))
        return bare_var

    params = tuple(map(bare, f.params))
    bindings = tuple(Binding(bare(b.var), substitute(b.value, by)) for b in f.bindings)
    return replace(f, params=params, bindings=bindings, result=substitute_value(f.result, by))


__all__ = ["PinDevices"]
