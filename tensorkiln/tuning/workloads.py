"""The kernels of a model as workloads: each fused group by itself, as text that compiles anywhere
to a library with the very kernel that a compile of the whole model makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.trust import private_temporary
from tensorkiln.executable import Executable
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, GlobalRef, RVar, TensorType
from tensorkiln.ir.relax import size_symbols as symbols_of
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.text.printer import constant_table, print_module
from tensorkiln.kernels import Family, families
from tensorkiln.kernels.knobs import ATTRIBUTE, Knob
from tensorkiln.kernels.records import workload_of
from tensorkiln.measure.inputs import numpy_type
from tensorkiln.measure.kernels import call_counts, flops, size_of, time_kernels
from tensorkiln.passes import Instrument, Pass, Step
from tensorkiln.pipeline import compile, placed_on
from tensorkiln.runtime.tensor import Array
from tensorkiln.runtime.trial import Operand, Trial
from tensorkiln.schedule.choose import knobs_of
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.script import from_source
from tensorkiln.target import Target, target_in
from tensorkiln.target.kinds import KINDS
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.plan_memory import PlanMemory
from tensorkiln.verification.reference import Tolerance, walk

Choice = tuple[int, ...]  # a value of each knob, in their order

# What a machine is taken to do where kernels cannot be timed: only their order follows from it.
_FLOPS, _BYTES = 16e9, 8e9  # a second
_CALLER = "main"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kernel of a model that has knobs. `key` is the hash by which records know it, `text` the
    module of its fused group and a function that calls it, `target` what it is compiled for.
    `calls` are those of a run of the model, `nodes` what it computes there. `cost` is what one call
    takes: seconds, measured or estimated."""

    key: str
    name: str
    text: str
    record_text: str
    target: Target
    family: Family
    knobs: tuple[Knob, ...]
    calls: int
    nodes: tuple[str, ...]
    cost: float
    sizes: tuple[tuple[str, int], ...] = ()

    @property
    def untuned(self) -> Choice:
        """The choice that is taken without a record."""
        return tuple(k.untuned for k in self.knobs)

    @property
    def total(self) -> float:
        """What all its calls in a run of the model take."""
        return self.calls * self.cost

    def chosen(self, choice: Choice) -> dict[str, int]:
        """A choice by the names of knobs: those that are not untuned."""
        pairs = zip(self.knobs, choice, strict=True)
        return {k.name: value for k, value in pairs if value != k.untuned}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that has no knobs, and what part of a run it takes."""

    name: str
    family: str
    share: float


@dataclass(slots=True)
class _Fused(Instrument):
    """Keeps the module that `LowerGroups` gets."""

    module: IRModule | None = None

    def before(self, step: Step) -> None:
        if step.name == "lower_groups":
            self.module = step.before


def fused_module(model: object, target: Target, **options: object) -> tuple[IRModule, Executable]:
    """The fused groups of a model, and what it compiles to. UserError (code `not-lowered`) if its
    passes make none."""
    seen = _Fused()
    executable = compile(model, target, instruments=[seen], **options)  # type: ignore[arg-type]
    if seen.module is None:
        raise UserError(
            "the passes of the target's kind make no kernels of fused groups", code="not-lowered"
        )
    return seen.module, executable


def require_tunable(target: Target) -> None:
    """Raise UnsupportedError for a target whose kernels are no objects of a library."""
    cpu = placed_on(target)
    if cpu.kind == "llvm":
        return
    raise UnsupportedError(
        f"kernels of target kind {target.kind!r} are not tuned: candidates are libraries of kind "
        "'llvm' for a CPU",
        where="target",
        hint="records for a CPU of kind llvm",
    )


def workloads_of(
    mod: IRModule, exe: Executable, target: Target, sizes: Mapping[str, int], timed: bool
) -> tuple[list[Workload], list[Kernel]]:
    """The kernels of a fused module that have knobs, the costliest first, and the others.

    `timed`: they run here, and their times decide; else their work. `sizes` are of symbolic
    dimensions; UserError (code `unknown-dim`) for one that a kernel needs and is not among them.
    """
    place = placed_on(target)
    counts, spent = call_counts(exe), _spent(exe, sizes, timed)
    classes = {k.symbol: k.kernel_class for k in exe.kernels}
    nodes = {k.symbol: k.nodes for k in exe.kernels}
    found: dict[str, Workload] = {}
    others: dict[str, Kernel] = {}
    total = sum(spent.values()) or 1.0
    for f in mod.functions:
        if not isinstance(f, Function) or not f.is_primitive or f.external:
            continue
        own = target_in(place, f.attrs)
        if f.name not in counts:  # equal groups share the kernel of the first
            continue
        calls = counts[f.name]
        family, knobs = _knobs_of(f, own, classes[f.name])
        is_tunable = KINDS[own.kind].is_cpu and any(len(k.values) > 1 for k in knobs)
        if family is None or not is_tunable:
            share = spent.get(f.name, 0.0) / total
            others[f.name] = Kernel(f.name, classes[f.name], share)
            continue
        key, record_text = workload_of(f)
        found[key] = Workload(
            key,
            f.name,
            workload_text(f),
            record_text,
            own,
            family,
            knobs,
            calls,
            nodes[f.name],
            spent.get(f.name, 0.0) / max(1, calls),
            tuple((v.name, _size(v.name, sizes)) for v in symbols_of(f)),
        )
    by_cost = sorted(found.values(), key=lambda w: (-w.total, w.name))
    return by_cost, sorted(others.values(), key=lambda k: (-k.share, k.name))


def _size(name: str, sizes: Mapping[str, int]) -> int:
    if name not in sizes:
        raise UserError(
            f"a kernel has the symbolic dimension {name!r}",
            code="unknown-dim",
            where="sizes",
            hint=f"sizes={{{name!r}: 1}} says for which size to tune it",
        )
    return sizes[name]


def _knobs_of(f: Function, target: Target, op_class: str) -> tuple[Family | None, tuple[Knob, ...]]:
    """The family that computes a group, and its knobs for it."""
    group = Group(f, f.name, target)
    rows = families(target).of(group.main.op)
    family = next((row for row in rows if row.op_class == op_class), None)
    return family, knobs_of(family, group, target) if family is not None else ()


def _spent(exe: Executable, sizes: Mapping[str, int], timed: bool) -> dict[str, float]:
    """Seconds that all calls of each kernel take, measured here or estimated."""
    if timed:
        rows = time_kernels(exe, 0.01, sizes=sizes)
        return {r.name: r.total * 1e-6 for r in rows if not math.isnan(r.micros)}
    counts, mod = call_counts(exe), exe.module.with_programs()
    found = {}
    for name, calls in counts.items():
        f = mod[name]
        if isinstance(f, PrimFunc):
            shapes = [[size_of(d, sizes) or 1 for d in b.shape] for b in f.buffers]
            moved = sum(
                math.prod(s) * b.dtype.bytes for s, b in zip(shapes, f.buffers, strict=True)
            )
            found[name] = calls * max(flops(f.body, sizes) / _FLOPS, moved / _BYTES)
    return found


def workload_text(f: Function) -> str:
    """The module of a fused group and a function that calls it; UserError (code `not-text`) for a
    group that holds arrays."""
    params = tuple(RVar(f"x{i}", p.type) for i, p in enumerate(f.params))
    result = f.result
    assert isinstance(result, RVar)
    attrs = Attrs.of(**{k: v for k, v in f.attrs.items() if k not in (ATTRIBUTE, "target")})
    y = RVar("y", result.type)
    group = replace(f, attrs=attrs)
    caller = Function(_CALLER, params, (Binding(y, Call(GlobalRef(f.name), params)),), y)
    mod = IRModule((caller, group))
    if constant_table(mod):
        raise UserError(f"group {f.name} holds arrays", code="not-text")
    return print_module(mod)


def group_in(mod: IRModule) -> Function:
    """The fused group of a workload's module."""
    return next(f for f in mod.functions if isinstance(f, Function) and f.is_primitive)


def library_of(
    text: str, target: Target, chosen: Sequence[tuple[str, str, int]]
) -> tuple[bytes, str]:
    """The library of a workload with the values of knobs, rows of (family, knob, value), and its
    kernel's symbol. Raises what `compile` raises."""
    mod = from_source(text)
    assert isinstance(mod, IRModule)
    group = group_in(mod)
    if chosen:
        attrs = Attrs.of(**{**group.attrs, ATTRIBUTE: tuple(chosen)})
        changed = replace(group, attrs=attrs)
        mod = mod.with_functions(tuple(changed if f is group else f for f in mod.functions))
    passes: list[Pass] = [LowerGroups(target), PlanMemory(target), partial_graph_aot]
    exe = compile(mod, target, relax_pipeline=passes)
    (kernel,) = exe.kernels
    with private_temporary("kiln-workload-") as folder:
        path = exe.export_library(f"{folder}/kernel.so", exports=[kernel.symbol])
        return path.read_bytes(), kernel.symbol


def trial_for(
    text: str, symbol: str, sizes: Mapping[str, int], options: Mapping[str, float | int]
) -> Trial:
    """The trial of a workload: its operands, and what NumPy in float64 says of the result. Where
    numbers below 0 give NaN, operands have none."""
    mod = from_source(text)
    assert isinstance(mod, IRModule)
    f = group_in(mod)
    assert isinstance(f.result, RVar)
    operands = tuple(_operand(v, sizes) for v in (*f.params, f.result))
    numbers = tuple(sizes[v.name] for v in symbols_of(f))
    for positive in (False, True):
        trial = Trial(symbol, operands, numbers, positive=positive, **options)  # type: ignore[arg-type]
        want, may = _reference(mod, f, trial)
        if not np.isnan(want).any():
            break
    places = trial.places()
    return replace(
        trial,
        want=np.ascontiguousarray(want.reshape(-1)[places]).tobytes(),
        may=np.ascontiguousarray(may.reshape(-1)[places]).tobytes(),
    )


def _operand(v: RVar, sizes: Mapping[str, int]) -> Operand:
    t = v.type
    assert isinstance(t, TensorType)
    shape = []
    for d in t.shape:
        n = size_of(d, sizes)
        assert n is not None
        shape.append(n)
    axes = tuple((a.dim, a.divisor, a.modulus, a.halo) for a in t.memory.axes)
    return Operand(t.dtype.name, tuple(shape), axes)


def _reference(mod: IRModule, f: Function, trial: Trial) -> tuple[Array, Array]:
    """The result of a group in float64, and what each element may be off by."""
    inputs = {p.name: x for p, x in zip(f.params, trial.drawn(), strict=True)}
    out = trial.operands[-1]
    assert isinstance(f.result, RVar)
    dtype = numpy_type(out.dtype)
    have = {f.result.name: [np.zeros(out.shape, dtype)]}
    tolerance = Tolerance()
    with np.errstate(all="ignore"):
        (row,) = walk(mod, f, inputs, have, tolerance, local=False, arrays=True).compared
        assert row.want is not None
        may = tolerance.of(row.want, row.may, out.dtype)
    want = row.want.astype(np.float64)
    return want, np.broadcast_to(may, want.shape).astype(np.float64)
