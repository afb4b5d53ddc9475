"""The kernels of a model as workloads that can be tuned separately.

A workload is one fused group, as the text of a module of its own. Compiled anywhere, that text
gives a library with exactly the kernel that a compile of the whole model makes of the group.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln import ops
from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.base.trust import private_temporary
from tensorkiln.codegen.kernel_names import with_names_for_c
from tensorkiln.executable import Executable
from tensorkiln.external.argument import Externals
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Constant, Function, GlobalRef, RVar, TensorType
from tensorkiln.ir.relax import size_symbols as symbols_of
from tensorkiln.ir.text.printer import constant_table, print_module
from tensorkiln.ir.visit_graph import bindings_in
from tensorkiln.kernels import Family
from tensorkiln.kernels.knobs import ATTRIBUTE, Knob
from tensorkiln.kernels.records import workload_of
from tensorkiln.measure.inputs import numpy_type
from tensorkiln.measure.kernels import size_of
from tensorkiln.passes import Pass, make_runner
from tensorkiln.pipeline import compile, plan_for
from tensorkiln.runtime.tensor import Array
from tensorkiln.runtime.trial import Operand, Trial
from tensorkiln.schedule.choose import fitting, knobs_of
from tensorkiln.schedule.group import Group
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.script import from_source
from tensorkiln.target import Target, cpu_target, schedule_target, target_in
from tensorkiln.target.kinds import KINDS
from tensorkiln.transform.relax.device_keys import with_device_keys
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.plan_memory import PlanMemory
from tensorkiln.verification.reference import Tolerance, walk

Choice = tuple[int, ...]  # a value of each knob, in their order
TrialOption = float | int | tuple[int, ...]

# A nominal machine for estimates of cost, which only rank the kernels.
_FLOPS, _BYTES = 16e9, 8e9  # per second
_PASSES = 4  # operations per element read or written, of operators that are not products
_CALLER = "main"


@dataclass(frozen=True, slots=True)
class Workload:
    """A kernel of a model that has knobs. `key` is the hash by which records refer to it, `text`
    the module of its fused group, `target` what it is compiled for. `calls` is the number of its
    calls in a run of the model, `nodes` are the model's nodes that it computes. `cost` is an
    estimate of the seconds of one call. `weights` are the numbers of those operands that are
    constants of the model, whose constants have `network_bytes` in total."""

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
    weights: tuple[int, ...] = ()
    network_bytes: int = 0

    @property
    def untuned(self) -> Choice:
        """The choice that a compile makes without a record."""
        return tuple(k.untuned for k in self.knobs)

    @property
    def total(self) -> float:
        """Estimated seconds of all its calls in a run of the model."""
        return self.calls * self.cost

    def chosen(self, choice: Choice) -> dict[str, int]:
        """A choice as a mapping from names of knobs to values, without those that are untuned."""
        pairs = zip(self.knobs, choice, strict=True)
        return {k.name: value for k, value in pairs if value != k.untuned}


@dataclass(frozen=True, slots=True)
class FixedKernel:
    """A kernel without knobs, and the share of a run's time that it takes, by an estimate."""

    name: str
    family: str
    share: float


def fused_module(mod: IRModule, target: Target, externals: Externals = ()) -> IRModule:
    """The fused groups of a model, as a compile makes them. UserError (code `not-lowered`) if the
    passes of the target's kind make none."""
    plan = plan_for(target, externals)
    index = next((i for i, p in enumerate(plan.relax) if isinstance(p, LowerGroups)), None)
    if index is None:
        message = "the passes of the target's kind make no kernels of fused groups"
        raise UserError(message, code="not-lowered", where="target")
    runner = make_runner((), read_config(), plan.passes)
    mod = with_names_for_c(with_device_keys(mod, plan.target, True))
    return runner.run(mod, "relax", plan.relax[:index])


def require_tunable(target: Target) -> None:
    """Raise UnsupportedError for a target whose kernels are not object code of a shared library."""
    kind = KINDS[target.kind]
    if cpu_target(target).kind == "llvm" and (kind.is_cpu or kind.composite):
        return
    raise UnsupportedError(
        f"kernels of target kind {target.kind!r} are not tuned: candidates are libraries of kind "
        "'llvm' for a CPU",
        where="target",
        hint="records for a CPU of kind llvm",
    )


def workloads_of(
    mod: IRModule, target: Target, sizes: Mapping[str, int]
) -> tuple[list[Workload], list[FixedKernel]]:
    """The kernels of a fused module that have knobs, the costliest first by an estimate, and the
    others.

    `sizes` are of symbolic dimensions; UserError (code `unknown-dim`) for one that a kernel needs
    and is not among them.
    """
    place = schedule_target(target)
    _require_known(mod, sizes)
    calls, weights, network = _calls(mod), _weights(mod), _constant_bytes(mod)
    workloads: dict[tuple[str, Target], Workload] = {}
    fixed_costs: list[tuple[str, str, float]] = []
    for f in mod.functions:
        if not isinstance(f, Function) or not f.is_primitive or f.external:
            continue
        kernel_target = target_in(place, f.attrs)
        if not KINDS[kernel_target.kind].is_cpu:
            continue
        group, count = Group(f, f.name, kernel_target), calls.get(f.name, 0)
        family, knobs = _family_of(group, kernel_target)
        cost = _estimate(group, sizes)
        key, record_text = workload_of(f)
        if all(len(k.values) < 2 for k in knobs):
            fixed_costs.append((f.name, family.op_class, count * cost))
        elif (twin := workloads.get((key, kernel_target))) is not None:
            nodes = (*twin.nodes, *_nodes(f))
            workloads[key, kernel_target] = replace(twin, calls=twin.calls + count, nodes=nodes)
        else:
            needs = tuple((v.name, _size(v.name, sizes)) for v in symbols_of(f))
            text, nodes = workload_text(f), _nodes(f)
            workload = Workload(
                key,
                f.name,
                text,
                record_text,
                kernel_target,
                family,
                knobs,
                count,
                nodes,
                cost,
                needs,
            )
            constant = tuple(sorted(weights.get(f.name, ())))
            workloads[key, kernel_target] = replace(
                workload, weights=constant, network_bytes=network
            )
    total = sum(w.total for w in workloads.values()) + sum(cost for *_, cost in fixed_costs) or 1.0
    by_cost = sorted(workloads.values(), key=lambda w: (-w.total, w.name))
    kernels = [FixedKernel(name, family, cost / total) for name, family, cost in fixed_costs]
    return by_cost, sorted(kernels, key=lambda k: (-k.share, k.name))


def _group_calls(mod: IRModule) -> Iterator[tuple[str, Call]]:
    """The calls of fused groups, each with the group's name."""
    for f in mod.functions:
        if isinstance(f, Function) and not f.is_primitive:
            for b in bindings_in(f.bindings):
                if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef):
                    yield b.value.callee.name, b.value


def _calls(mod: IRModule) -> Counter[str]:
    """How often each fused group is called, by name."""
    return Counter(name for name, _ in _group_calls(mod))


def _weights(mod: IRModule) -> dict[str, set[int]]:
    """The operands of each fused group that are constants in all its calls, by its name."""
    weight_indices: dict[str, set[int]] = {}
    for name, call in _group_calls(mod):
        constant = {i for i, a in enumerate(call.args) if isinstance(a, Constant)}
        weight_indices[name] = weight_indices.get(name, constant) & constant
    return weight_indices


def _constant_bytes(mod: IRModule) -> int:
    """Bytes of the constants that fused groups are called with, each once."""
    operands = (a for _, call in _group_calls(mod) for a in call.args)
    bytes_of_operand = {id(a): a.data.nbytes for a in operands if isinstance(a, Constant)}
    return sum(bytes_of_operand.values())


def _nodes(f: Function) -> tuple[str, ...]:
    """The nodes of the model that a group computes."""
    return tuple(dict.fromkeys(b.value.span for b in f.bindings if isinstance(b.value, Call)))


def _require_known(mod: IRModule, sizes: Mapping[str, int]) -> None:
    """Raise UserError (code `unknown-dim`) if `sizes` names a dimension that the model does not
    have."""
    graphs = [f for f in mod.functions if isinstance(f, Function)]
    dims = sorted({v.name for f in graphs for v in symbols_of(f)})
    for name in sizes:
        if name not in dims:
            hint = nearest(name, dims) or f"symbolic dimensions: {listed(dims) or 'none'}"
            raise UserError(
                f"no symbolic dimension {name!r}", code="unknown-dim", where="sizes", hint=hint
            )


def _size(name: str, sizes: Mapping[str, int]) -> int:
    if name not in sizes:
        raise UserError(
            f"a kernel has the symbolic dimension {name!r}",
            code="unknown-dim",
            where="sizes",
            hint=f"sizes={{{name!r}: 1}} says for which size to tune it",
        )
    return sizes[name]


def _family_of(group: Group, target: Target) -> tuple[Family, tuple[Knob, ...]]:
    """The family that computes a group, unless it declines, and its knobs."""
    family = next(fitting(group, target))
    return family, knobs_of(family, group, target)


def _estimate(group: Group, sizes: Mapping[str, int]) -> float:
    """Estimated seconds of a call: the larger of its arithmetic and its memory traffic on a nominal
    machine. Only the order of these estimates is used."""
    work = sum(_work(call, v.tensor, sizes) for v, call in group.calls.items())
    tensors = [*(p.tensor for p in group.function.params), group.out_type]
    moved = sum(t.dtype.size(math.prod(_shape(t, sizes))) for t in tensors)
    return max(work / _FLOPS, moved / _BYTES)


def _work(call: Call, out: TensorType, sizes: Mapping[str, int]) -> float:
    """About how many arithmetic operations a call of an operator takes: for products, two per term,
    less what Winograd's transforms save; for other operators, a fixed number per element."""
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    whole = math.prod(_shape(out, sizes))
    if call.op == "attention":
        return float(4 * math.prod(_shape(types[0], sizes)) * _shape(types[1], sizes)[2])
    if ops.get(call.op).pattern == "contraction" or call.op.startswith("winograd"):
        w = _shape(types[1], sizes)
        terms = w[-2] if call.op in ("linear", "matmul") else math.prod(w[1:])
        return float(2 * whole * terms / math.prod(call.attrs.get("tile", ())))
    return float(_PASSES * (whole + sum(math.prod(_shape(t, sizes)) for t in types)))


def _shape(t: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size_of(d, sizes) or 1 for d in t.shape)


def workload_text(f: Function) -> str:
    """The module of a fused group alone; UserError (code `not-text`) for one that holds arrays."""
    attrs = Attrs.of(**{k: v for k, v in f.attrs.items() if k not in (ATTRIBUTE, "target")})
    mod = IRModule((replace(f, attrs=attrs),))
    if constant_table(mod):
        raise UserError(f"group {f.name} holds arrays", code="not-text")
    return print_module(mod)


def _group_in(text: str) -> Function:
    """The fused group of a workload."""
    mod = from_source(text)
    assert isinstance(mod, IRModule)
    (f,) = mod.functions
    assert isinstance(f, Function)
    return f


def compiled(
    text: str, target: Target, family: str, chosen: Sequence[tuple[str, int]] = ()
) -> Executable:
    """The executable of a workload, compiled with these values of a family's knobs. Raises what
    `compile` raises, and UserError (code `declined`) if another family computes it."""
    group = _group_in(text)
    if chosen:
        rows = tuple((family, *row) for row in chosen)
        group = replace(group, attrs=Attrs.of(**{**group.attrs, ATTRIBUTE: rows}))
    # A function that calls it, of the same symbolic dimensions: in text they would be others.
    params = tuple(RVar(f"x{i}", p.type) for i, p in enumerate(group.params))
    y = RVar("y", group.result.type)
    call = Binding(y, Call(GlobalRef(group.name), params))
    mod = IRModule((Function(_CALLER, params, (call,), y), group))
    passes: list[Pass] = [LowerGroups(target), PlanMemory(target), partial_graph_aot]
    exe = compile(mod, target, relax_pipeline=passes)
    (kernel,) = exe.kernels
    if kernel.kernel_class != family:
        raise UserError(f"{kernel.kernel_class} computes it, {family} declines", code="declined")
    return exe


def library_of(
    text: str, target: Target, family: str, chosen: Sequence[tuple[str, int]] = ()
) -> tuple[bytes, str]:
    """The library of a workload with these values of a family's knobs, and the symbol of its
    kernel. Raises what `compiled` raises."""
    exe = compiled(text, target, family, chosen)
    (kernel,) = exe.kernels
    with private_temporary("kiln-workload-") as folder:
        path = exe.export_library(f"{folder}/kernel.so", exports=[kernel.symbol])
        return path.read_bytes(), kernel.symbol


def trial_for(
    text: str, symbol: str, sizes: Mapping[str, int], options: Mapping[str, TrialOption]
) -> Trial:
    """The trial of a workload: its operands, and the result that NumPy computes in float64. If
    negative numbers would give NaN, the operands have none."""
    f = _group_in(text)
    mod = IRModule((f,))
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
    """The result of a group in float64, and the permitted error of each element."""
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
