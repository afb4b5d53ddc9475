"""Divide graph functions among the devices of a composite target.

    y = conv2d(x, w); z = softmax(y); return z
    ->  y = main_dsp(x); z = softmax(y); return z   placed = (("conv2d", "dsp", "..."), ...)
        main_dsp(x): return conv2d(x, w)                part, private, target = "dsp"

A call of an operator goes to the device that the type of its result names (`pin_devices`) or the
function's attribute `target`, else to the first whose `operators` name it, else to the first that
names none, in the order of the target; where a target says what work costs, these last are weighed
against other such devices and the host (`device_costs.py`). A call of a tensor program goes to the
device with memory of its own that the program's attribute `target` names. Calls that no device
takes stay in the function, which the host runs. Each part of a device is a function of its own, as
large as the order of calls allows; the passes that follow choose layouts and kernels for the device
that its attribute `target` names, and `join_devices` puts the parts back.

Needs: canonical operators; run after `partition_externals`, whose calls stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorkiln import ops
from tensorkiln.base.errors import Issue, UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Call,
    Function,
    GlobalRef,
    RVar,
    TensorType,
    Value,
)
from tensorkiln.ir.type_text import show
from tensorkiln.ir.visit_graph import variables
from tensorkiln.kernels import computes, is_view
from tensorkiln.target import (
    HOST,
    Target,
    accelerators,
    cpu_target,
    device_named,
    devices_of,
    runs_kernels,
)
from tensorkiln.transform.relax.device_costs import Costs, says_costs
from tensorkiln.transform.relax.parts import called_parts, divided, joined, parts_of


@dataclass(frozen=True, slots=True)
class AssignDevices:
    """Divide every graph function that is not divided yet among the devices of `target` that have
    kernels of the compiler: those that run code of their own are externals, whose calls are
    functions already.

    Raises UserError: code `unknown-device` for an attribute `target` that is not a device,
    `unknown-operator` for a name in a device's `operators`. Raises UnsupportedError that lists the
    operators for which the device that they are pinned to has no kernel; for tensor programs of
    several results on a device with memory of its own.
    """

    target: Target

    def __call__(self, mod: IRModule) -> IRModule:
        """The divided module; `mod` itself if the target is not a composite."""
        devices = devices_of(self.target)
        if not devices:
            return mod
        for key, device in devices.items():
            _require_operators(key, device)
        rows = {key: device for key, device in devices.items() if runs_kernels(device)}
        parts = parts_of(mod)
        accelerator_keys = set(accelerators(self.target))
        programs = {f.name: str(f.attrs.get("target", "")) for f in mod.prim_funcs}
        programs = {name: key for name, key in programs.items() if key in accelerator_keys}
        todo = {f.name: f for f in mod.unplanned if not {"part", "placed"} & set(f.attrs)}
        pinned = {name for f in todo.values() for name in called_parts(f, parts)}
        function_names, functions = set(mod) - pinned, list[AnyFunction]()
        for f in mod.functions:
            if f.name in todo:
                division = _Division(todo[f.name], parts, rows, self.target, programs)
                functions += division.functions(function_names)
            elif f.name not in pinned:
                functions.append(f)
        return mod.with_functions(tuple(functions)) if todo else mod


def _require_operators(key: str, device: Target) -> None:
    for name in device.operators:
        if name not in ops.OPS:
            raise UserError(
                f"device {key!r} computes {name!r}, which is no operator",
                code="unknown-operator",
                where="target.devices",
                hint=nearest(name, ops.OPS) or "as in the text of a module: 'conv2d'",
            )


class _Division:
    """The division of one graph function; `parts` are those that `pin_devices` has made, `programs`
    the devices of tensor programs."""

    def __init__(
        self,
        f: Function,
        parts: Mapping[str, Function],
        devices: Mapping[str, Target],
        target: Target,
        programs: Mapping[str, str],
    ):
        self.devices, self.programs = devices, programs
        self.pinned = _pin(f, devices, target)
        self.pins: Mapping[RVar, str] = {}
        if called_parts(f, parts):
            whole = joined(f, parts)
            self.pins = whole.device
            f = replace(f, bindings=tuple(whole.bindings), result=whole.result)
        self.f, self.target = replace(f, bindings=tuple(map(_named, f.bindings))), target
        lives = f.attrs.get("param_devices", (HOST,) * len(f.params))
        assert isinstance(lives, tuple)
        # Parameters in the memory of a device.
        self.lives = {v: key for v, key in zip(f.params, lives, strict=True) if key != HOST}
        self.rows: dict[RVar, tuple[str, str, str]] = {}  # of the attribute `placed`
        self.free: set[RVar] = set()  # which nothing but the order of devices has placed
        self.issues: list[Issue] = []

    def functions(self, function_names: set[str]) -> list[Function]:
        """The parts of devices and the function that calls them, which says in its attribute
        `placed` where each operator is, and why."""
        placement = self._devices()
        if self.issues:
            raise UnsupportedError(self.issues)
        if says_costs((*self.devices.values(), cpu_target(self.target))):
            self._weigh(placement)
        accelerator_keys = set(accelerators(self.target))
        unchecked = tuple(
            _unchecked(b) if placement[b.var] in accelerator_keys else b for b in self.f.bindings
        )
        functions, bindings = divided(
            replace(self.f, bindings=unchecked), placement, function_names
        )
        attrs = Attrs.of(**self.f.attrs, placed=tuple(self.rows.values()))
        return [*functions, replace(self.f, bindings=bindings, attrs=attrs)]

    def _devices(self) -> dict[RVar, str]:
        """The device of each binding, empty for the host."""
        placement: dict[RVar, str] = {}
        for b in self.f.bindings:
            call = b.value
            placement[b.var] = self._device_of_program(b)
            if placement[b.var]:
                self.rows[b.var] = b.var.name, placement[b.var], "the target of its program"
            if not isinstance(call, Call) or not call.op or not isinstance(b.var.type, TensorType):
                continue
            device, reason = self._device(b, call, placement)
            placement[b.var] = device
            self.rows[b.var] = call.span, device or HOST, reason
        return placement

    def _device_of_program(self, b: Binding) -> str:
        """The device with memory of its own that runs the tensor program of a call, else "". Raises
        UnsupportedError for a program of several results there."""
        call = b.value
        if not isinstance(call, Call) or not isinstance(call.callee, GlobalRef):
            return ""
        device = self.programs.get(call.callee.name, "")
        if device and not isinstance(b.var.type, TensorType):
            raise UnsupportedError(
                f"{call.callee.name} gives several results on device {device!r}",
                where=self.f.name,
                hint="a tensor program for each result",
            )
        return device

    def _weigh(self, placement: dict[RVar, str]) -> None:
        """Move operators whose device follows only from the order of devices to where they take the
        least time, copies included: to another device that takes all operators, or to the host.
        Groups of neighbours on one device move together."""
        accelerator_keys = accelerators(self.target)
        targets = {**self.devices, HOST: cpu_target(self.target)}
        costs = Costs(self.f, targets, accelerator_keys)
        for group in self._groups(placement):
            first = placement[group[0].var]
            able = [key for key in self.devices if self._takes(key, group)]
            candidates = [first, *(key for key in (*able, HOST) if key != first)]
            device_costs = [
                c for key in candidates if (c := costs.of(group, key, placement)) is not None
            ]
            if len(device_costs) < 2 or device_costs[0].device != first:
                continue
            best = min(device_costs, key=lambda c: c.micros)
            runner_up = min((c for c in device_costs if c is not best), key=lambda c: c.micros)
            for b in group:
                placement[b.var] = "" if best.device == HOST else best.device
                node, _, reason = self.rows[b.var]
                if not is_view(b):
                    reason = f"{best}, {runner_up}"
                self.rows[b.var] = node, best.device, reason

    def _takes(self, key: str, group: Sequence[Binding]) -> bool:
        """Whether a device takes all operators, and has kernels for those of a group."""
        device = self.devices[key]
        return not device.operators and all(is_view(b) or computes(device, b) for b in group)

    def _groups(self, placement: Mapping[RVar, str]) -> list[list[Binding]]:
        """The free operators, those together that are on one device and read each other."""
        group_of: dict[RVar, list[Binding]] = {}
        for b in self.f.bindings:
            if b.var not in self.free:
                continue
            near = [
                v for v in variables(b.value) if v in group_of and placement[v] == placement[b.var]
            ]
            groups = {id(g): g for g in (group_of[v] for v in near)}
            merged = [x for g in groups.values() for x in g] + [b]
            group_of.update((x.var, merged) for x in merged)
        distinct_groups = {id(g): g for g in group_of.values()}
        return [g for g in distinct_groups.values() if not all(map(is_view, g))]

    def _device(self, b: Binding, call: Call, placement: Mapping[RVar, str]) -> tuple[str, str]:
        """The device of an operator, and why."""
        if b.var in self.pins:
            key = self.pins[b.var]
            return self._able(b, call, key), f"the type of its result names {key!r}"
        if self.pinned is not None:
            reason = f"the function's target is {self.pinned or HOST!r}"
            return self._able(b, call, self.pinned or HOST), reason
        if is_view(b) and isinstance(call.args[0], RVar):
            if call.args[0] in self.free:
                self.free.add(b.var)
            place = placement.get(call.args[0]) or self.lives.get(call.args[0], "")
            return place, "a view, which stays with its operand"
        if call.op == "bounds_check" and self._is_on_host(call.args[0], placement):
            return "", "the host has the indices, and checks them"
        able = {key: d for key, d in self.devices.items() if computes(d, b)}
        for key, device in able.items():
            if call.op in device.operators:
                return key, f"its operators name {call.op}"
        for key, device in able.items():
            if not device.operators:
                self.free.add(b.var)
                return key, "the first device for all operators"
        lacking = [key for key in self.devices if key not in able]
        return "", f"{listed(lacking)}: no kernel" if lacking else f"no device names {call.op}"

    def _is_on_host(self, v: Value, placement: Mapping[RVar, str]) -> bool:
        return not isinstance(v, RVar) or not (placement.get(v) or self.lives.get(v, ""))

    def _able(self, b: Binding, call: Call, key: str) -> str:
        """The device that an operator is pinned to, empty for the host; if it has no kernel, that
        is an issue."""
        if key == HOST:
            return ""
        if not is_view(b) and not computes(self.devices[key], b):
            types = dict.fromkeys(a.type for a in call.args) | {b.var.type: None}
            device = self.devices[key]
            lacks = [
                t for t in types if isinstance(t, TensorType) and not device.has_type(t.dtype.name)
            ]
            message = f"device {key!r} has no kernel for {call.op} of {show(b.var.type)}"
            message += f": it does not have {lacks[0].dtype}" if lacks else ""
            hint = "supports_float64 in its target" if lacks else "leave it to another device"
            node = f"{self.f.name}({call.span})"
            self.issues.append(Issue("device", node, call.op, message, hint))
        return key


def _named(b: Binding) -> Binding:
    """A binding whose operator has a name to which reasons refer: its node's, or else the
    variable's."""
    if not isinstance(b.value, Call) or not b.value.op or b.value.span:
        return b
    return Binding(b.var, replace(b.value, span=b.var.name))


def _pin(f: Function, devices: Mapping[str, Target], target: Target) -> str | None:
    """The device that the function's attribute `target` names, empty for the host; None if it names
    none, or all."""
    named = device_named(f.attrs.get("target"), target, f.name)
    if named and named != HOST and named not in devices:
        raise UserError(
            f"its target {named!r} is an external, which takes operators that it supports",
            code="unknown-device",
            where=f.name,
            hint=listed(devices) or "no device of the target runs kernels",
        )
    return "" if named == HOST else named or None


def _unchecked(b: Binding) -> Binding:
    """A `bounds_check` in the memory of a device becomes an identity, because the host cannot read
    that memory."""
    call = b.value
    if not isinstance(call, Call) or call.op != "bounds_check":
        return b
    return Binding(b.var, Call("identity", call.args, span=call.span))
