"""What operators cost on devices, to choose between those that may take them.

The time of an operator is that of a kernel of its own:

    launch_us + max(operations / gflops, bytes / bandwidth)

`operations` are those of its tensor program: floating-point operations of an element, times
elements. `bytes` are those of its operands and its result. Where an operand or a reader is in other
memory there is a copy of `copy_us + bytes / copy_bandwidth`; constants are copied once per library
and cost nothing. The figures are options of the devices' targets. Fusion, caches and overlap are
left out: this tells whether work is worth its copies, not how long a model takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln import ops
from tensorkiln.ir.expr import Binary, Expr, Intrin, Reduce, Unary, Var, int_value
from tensorkiln.ir.relax import Binding, Call, Function, RVar, TensorType, Tuple
from tensorkiln.ir.visit import children
from tensorkiln.ir.visit_graph import variables
from tensorkiln.kernels import is_view
from tensorkiln.ops.op import TensorIn
from tensorkiln.target import HOST, Target
from tensorkiln.target.kinds import KINDS

FIGURES = ("gflops", "bandwidth", "launch_us", "copy_bandwidth", "copy_us")
# Operations per element of operands, of opaque operators: softmax, layer norm.
_PASSES = 10


def says_costs(targets: Iterable[Target]) -> bool:
    """Whether any target gives a figure: without one, costs decide nothing."""
    return any(set(FIGURES) & set(t.attrs) for t in targets)


def has_costs(target: Target) -> bool:
    """Whether the target's kind has figures, given or by default."""
    return "gflops" in {option.name for option in KINDS[target.kind].options}


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of operators on a device in microseconds, copies included, and of its copies."""

    device: str
    micros: float
    copies: int
    copying: float

    def __str__(self) -> str:
        """`gpu takes 61 us, 40 of them for 2 copies`."""
        noun = "copy" if self.copies == 1 else "copies"
        copies = f", {_shown(self.copying)} of them for {self.copies} {noun}"
        return f"{self.device} takes {_shown(self.micros)} us{copies if self.copies else ''}"


def _shown(micros: float) -> str:
    return f"{micros:.3g}" if micros < 1000 else f"{micros:.0f}"


class Costs:
    """The costs of operators of one function. `targets` are those of devices by key, HOST among
    them, `accelerators` the keys of those with memory of their own."""

    def __init__(self, f: Function, targets: Mapping[str, Target], accelerators: Sequence[str]):
        self.targets, self.accelerators = targets, accelerators
        self.readers: dict[RVar, list[RVar]] = {}
        for b in f.bindings:
            for v in dict.fromkeys(variables(b.value)):
                self.readers.setdefault(v, []).append(b.var)
        fields = f.result.fields if isinstance(f.result, Tuple) else (f.result,)
        lives = f.attrs.get("result_devices", (HOST,) * len(fields))
        self.results = [p for p in zip(fields, lives, strict=True) if isinstance(p[0], RVar)]
        param_devices = f.attrs.get("param_devices", (HOST,) * len(f.params))
        self.params = dict(zip(f.params, param_devices, strict=True))

    def of(
        self, group: Sequence[Binding], device: str, placement: Mapping[RVar, str]
    ) -> Cost | None:
        """The cost of a group of operators on a device, if others have the `placement` (empty: the
        host); None if a size or a figure is not known."""
        if not has_costs(self.targets[device]):
            return None
        total = sum(self._time(b, device) for b in group if not is_view(b))
        moved = self._moved(group, device, placement)
        copying = sum(self._copy(t, a, b) for t, a, b in moved)
        if math.isnan(total + copying):
            return None
        count = sum((a != HOST) + (b != HOST) for _, a, b in moved)
        return Cost(device, total + copying, count, copying)

    def _figure(self, device: str, name: str) -> float:
        value = self.targets[device][name]
        assert isinstance(value, int)
        return float(value)

    def _time(self, b: Binding, device: str) -> float:
        """Microseconds of an operator; NaN if a size is not known."""
        call = b.value
        assert isinstance(call, Call)
        types = [a.type for a in call.args if isinstance(a.type, TensorType)]
        work = operations(call, b.var.tensor) / self._figure(device, "gflops")
        data = sum(map(_bytes, (*types, b.var.tensor))) / self._figure(device, "bandwidth")
        launch = self._figure(device, "launch_us") if device in self.accelerators else 0.0
        return launch + (math.nan if math.isnan(work + data) else max(work, data) / 1e3)

    def _moved(
        self, group: Sequence[Binding], device: str, placement: Mapping[RVar, str]
    ) -> list[tuple[TensorType, str, str]]:
        """The tensors that are copied for a group, from where, and to where."""
        inside = {b.var for b in group}
        memory = self._memory(device)
        read = dict.fromkeys(v for b in group for v in variables(b.value) if v not in inside)
        copies = [(v, self._home(v, placement), memory) for v in read]
        for v in inside:
            readers = (self._home(r, placement) for r in self.readers.get(v, ()) if r not in inside)
            lives = (self._memory(key) for result, key in self.results if result is v)
            copies += [(v, memory, to) for to in dict.fromkeys((*readers, *lives))]
        return [(v.tensor, a, b) for v, a, b in copies if a != b and isinstance(v.type, TensorType)]

    def _home(self, v: RVar, placement: Mapping[RVar, str]) -> str:
        return self._memory(placement.get(v) or self.params.get(v, HOST))

    def _memory(self, device: str) -> str:
        return device if device in self.accelerators else HOST

    def _copy(self, t: TensorType, source: str, destination: str) -> float:
        """Microseconds of a copy, which goes through the host between two devices."""
        return sum(
            self._figure(key, "copy_us") + _bytes(t) / self._figure(key, "copy_bandwidth") / 1e3
            for key in (source, destination)
            if key != HOST
        )


def operations(call: Call, out: TensorType) -> float:
    """Floating-point operations of an operator, those on integers too; NaN if a size is unknown."""
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    op = ops.get(call.op)
    if call.op == "attention":  # two products: of queries and keys, and of that and the values
        positions = int_value(types[1].shape[2])
        return 4 * _elements(types[0]) * (math.nan if positions is None else positions)
    if op.program is None or op.pattern == "opaque":
        return _PASSES * sum(map(_elements, types))
    operands = [TensorIn(t, _element(t)) for t in types]
    full = ops.with_defaults(call)
    element = op.program(operands, full.attrs, out)(*(Var(f"i{k}") for k in range(out.ndim)))
    return _elements(out) * _count(element, {})


def _element(t: TensorType) -> Callable[..., Expr]:
    return lambda *index: Var("x", t.dtype)


def _count(e: Expr, counts: dict[int, float]) -> float:
    """Operations of an expression; the value of a sum counts once per term, and so does adding."""
    if id(e) in counts:
        return counts[id(e)]
    total = sum(_count(child, counts) for child in children(e))
    if isinstance(e, Reduce):
        sizes = [int_value(extent) for _, extent in e.axes]
        terms = math.nan if None in sizes else float(math.prod(s or 0 for s in sizes))
        total = terms * (total + 1)
    elif isinstance(e, Binary | Unary | Intrin):
        total += 1
    counts[id(e)] = total
    return total


def _elements(t: TensorType) -> float:
    shape = t.static_shape()
    return math.nan if shape is None else float(math.prod(shape))


def _bytes(t: TensorType) -> float:
    return _elements(t) * t.dtype.bytes


__all__ = ["FIGURES", "Cost", "Costs", "operations", "says_costs"]
