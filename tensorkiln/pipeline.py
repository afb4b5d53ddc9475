"""The compiler on one page: from a module to an Executable, pass by pass.

To change the pipeline, copy `relax_passes` or `tir_passes`, edit the list, and pass it to
`compile` (docs/howto/customise-the-pipeline.md). A pass is any callable from IRModule to IRModule:
a function, or a frozen dataclass when it has options. `passes/run.py` runs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from tensorkiln import frontend
from tensorkiln.assemble import assemble
from tensorkiln.base.config import MOST_JOBS, read_config
from tensorkiln.base.errors import InternalError, Issue, UnsupportedError, UserError, require
from tensorkiln.base.licenses import LicensePolicy
from tensorkiln.base.nesting import nesting_checked
from tensorkiln.base.origin import Origin
from tensorkiln.base.progress import Progress, watched
from tensorkiln.codegen.host.system_lib_c import check_prefix
from tensorkiln.codegen.kernel_names import (
    with_names_for_c,
    with_prefixed_kernels,
)
from tensorkiln.codegen.llvm.compile import known_objects
from tensorkiln.codegen.lowered import require_lowered
from tensorkiln.codegen.memory.budget import GivenBudget, read_budget, require_memory
from tensorkiln.codegen.memory.weights import is_much, model_weights
from tensorkiln.executable import Debug, Executable, Refusal, refusals_of, tuned_kernels
from tensorkiln.external import (
    External,
    PartitionExternals,
    PartitionPatterns,
    declared_dependencies,
    emit_externals,
    in_memory_dependencies,
    settled_dependencies,
    uses_of,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernel_cache import KernelCache, kernel_cache
from tensorkiln.kernel_code import kernel_code
from tensorkiln.kernels.records import GivenRecords, Records, records_of
from tensorkiln.kind_hooks import (
    hook,
    last_passes,
    linker_of,
    own_externals,
    with_device_pipelines,
    with_device_programs,
)
from tensorkiln.link.shared import Fcompile
from tensorkiln.ops.verify import verify
from tensorkiln.passes import Instrument, Pass, Pipeline, make_runner, resolve
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import (
    Target,
    accelerators,
    annotated_target,
    becomes_c,
    cpu_target,
    devices_of,
    hooks_of,
    require_codegen,
    runs_kernels,
    with_host,
)
from tensorkiln.target.capability import copies_ahead, most_shared
from tensorkiln.target.isa import word_bits
from tensorkiln.target.triple import LIBRARIES
from tensorkiln.transform.relax.apply_precision import ApplyPrecision
from tensorkiln.transform.relax.assign_devices import AssignDevices
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.check_arguments import CheckArguments
from tensorkiln.transform.relax.check_indices import CheckIndices
from tensorkiln.transform.relax.decompose_operators import DecomposeOperators
from tensorkiln.transform.relax.device_keys import with_device_keys
from tensorkiln.transform.relax.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tensorkiln.transform.relax.fold_constants import fold_constants
from tensorkiln.transform.relax.fold_scale import fold_scale
from tensorkiln.transform.relax.forward_values import forward_values
from tensorkiln.transform.relax.fuse_ops import FuseOps
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.join_devices import JoinDevices
from tensorkiln.transform.relax.keep_values import keep_values
from tensorkiln.transform.relax.match_activations import match_activations
from tensorkiln.transform.relax.match_attention import match_attention
from tensorkiln.transform.relax.match_integer import match_integer
from tensorkiln.transform.relax.match_layer_norm import match_layer_norm
from tensorkiln.transform.relax.match_linear import match_linear
from tensorkiln.transform.relax.name_values import name_values
from tensorkiln.transform.relax.outline_dataflow import outline_dataflow
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.relax.pin_devices import PinDevices
from tensorkiln.transform.relax.plan_memory import PlanMemory
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tensorkiln.transform.relax.state_conditions import state_conditions
from tensorkiln.transform.relax.widen_statistics import WidenStatistics
from tensorkiln.transform.tir.allocate_shared import AllocateShared
from tensorkiln.transform.tir.async_copies import AsyncCopies
from tensorkiln.transform.tir.check_races import CheckRaces
from tensorkiln.transform.tir.fold_grid import FoldGrid
from tensorkiln.transform.tir.guard_conditions import guard_conditions
from tensorkiln.transform.tir.insert_barriers import insert_barriers, require_barriers
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.narrow_indices import narrow_device_indices, narrow_indices
from tensorkiln.transform.tir.skip_empty_loops import skip_empty_loops
from tensorkiln.transform.tir.split_device import split_device
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops

Externals = Sequence[External | str]


def relax_passes(target: Target, externals: Externals = ()) -> list[Pass]:
    """Graphs of operators -> one kernel call per fused group, memory planned.

    Operators that neither `externals` nor the code generators of the target's kind support are
    compiled for the target's CPU.
    """
    target = with_host(target)
    place, externals = placed_on(target), all_externals(target, externals)
    return [
        infer_types,
        outline_dataflow,  # later passes see straight-line graphs only
        state_conditions,  # of the graph as its author wrote it
        PinDevices(place),  # before others make values of types without devices
        pass_sizes,
        PartitionPatterns(target, externals),  # before quantised operators are rewritten
        match_integer,  # before fold_constants, which would dequantise the weights
        WidenStatistics(of_constants=True),  # fold_constants evaluates them in the type they have
        fold_constants,
        canonicalize,
        match_activations,
        match_layer_norm,
        match_linear,  # before fold_scale, which folds into the weights of linear
        match_attention,
        fold_scale,
        canonicalize,  # folding leaves neutral operations behind
        fold_constants,
        WidenStatistics(),  # after what recognises normalisations and folds into weights
        eliminate_common_subexpressions,
        eliminate_dead_code,  # before layouts: a dead reader would cost a layout conversion
        CheckIndices(target),  # of what is still computed
        CheckArguments(target),
        # Externals see canonical operators on row-major tensors.
        PartitionExternals(target, externals),
        AssignDevices(place),  # each part of a device is a function until join_devices
        ApplyPrecision(place),
        SelectAlgorithms(place),
        DecomposeOperators(place),  # attention of 16 bits is of float32 by now
        AssignLayouts(place),
        FuseOps(place),
        LowerGroups(place),
        JoinDevices(place),
        PlanMemory(place),
        partial_graph_aot,  # last: it fixes storages and the order of calls
    ]


def placed_on(target: Target) -> Target:
    """The target that kernels are scheduled for: a composite, of whose devices each has its own,
    else the target's CPU."""
    return with_host(target) if devices_of(target) else cpu_target(target)


def minimal_relax_passes(target: Target, externals: Externals = ()) -> list[Pass]:
    """Only the passes that lowering needs, one kernel per operator: to tell whether an optimisation
    is at fault."""
    target = with_host(target)
    place, externals = placed_on(target), all_externals(target, externals)
    return [
        infer_types,
        outline_dataflow,
        state_conditions,
        PinDevices(place),
        pass_sizes,
        PartitionPatterns(target, externals),
        forward_values,
        WidenStatistics(),
        CheckIndices(target),
        CheckArguments(target),
        PartitionExternals(target, externals),
        AssignDevices(place),
        ApplyPrecision(place),
        DecomposeOperators(place),
        FuseOps(place, default=False),
        LowerGroups(place),
        JoinDevices(place),
        PlanMemory(place),
        partial_graph_aot,
    ]


def tir_passes(target: Target, externals: Externals = ()) -> list[Pass]:
    """Blocks and scheduled loops -> loops of explicit vectors: ready for code generation."""
    target = with_host(target)
    short = word_bits(cpu_target(target).arch) == 32
    own = bool(accelerators(target))
    device: list[Pass] = [
        split_device,
        AllocateShared(None, _shared_memory(target)),
        AsyncCopies(_with_copies(target)),
        insert_barriers,  # of which some wait for copies
    ]
    last: list[Pass] = [CheckRaces(), FoldGrid(target)]  # races: of programs that people wrote
    return [
        pass_sizes,  # for modules that ran no relax pipeline
        lower_blocks,
        *(device if own else []),
        vectorize_loops,
        *([narrow_indices] if short else [narrow_device_indices] if own else []),  # of vectors too
        *(last if own else []),
        skip_empty_loops,
    ]


def _shared_memory(target: Target) -> tuple[tuple[str, int], ...]:
    """The bytes that a block of each device with memory of its own may share, by key."""
    found = devices_of(target)
    return tuple((key, most_shared(d)) for key, d in found.items() if key in accelerators(target))


def _with_copies(target: Target) -> tuple[str, ...]:
    """The keys of the devices with memory of their own that copy to shared memory while they
    compute."""
    found = devices_of(target)
    return tuple(key for key in accelerators(target) if copies_ahead(found[key]))


def all_externals(target: Target, externals: Externals = ()) -> tuple[External, ...]:
    """The given externals, text being the name of an installed one, then those of the target's
    kind, then those of the kinds of a composite's devices, in their order. UserError (`bad-kind`)
    if a hook `relax_codegen` returns anything but Externals."""
    return (*(_named(e) for e in externals), *own_externals(target))


def _named(external: External | str) -> External:
    if not isinstance(external, str):
        return external
    from tensorkiln.external.plugins import external_called  # importlib.metadata takes 30 ms

    return external_called(external)


_MOST_NOTES = 3  # of nodes without the kernel that is fast for them


def auto_relax_passes(target: Target, externals: Externals = ()) -> Pipeline:
    """The relax pipeline of the target's kind, else `relax_passes` with those of the kinds of a
    composite's devices."""
    own = hook(target, "relax_pipeline", object, target, externals)
    if own is not None:
        return cast(Pipeline, own)
    passes = relax_passes(target, externals)
    return with_device_pipelines(passes, with_host(target), externals, RELAX_PIPELINES)


def auto_tir_passes(target: Target, externals: Externals = ()) -> Pipeline:
    """The TIR pipeline of the target's kind, else `tir_passes` with those of the kinds of a
    composite's devices."""
    own = hook(target, "tir_pipeline", object, target)
    if own is not None:
        return cast(Pipeline, own)
    return with_device_programs(tir_passes(target), with_host(target), TIR_PIPELINES)


# Pipelines by name: the values of `relax_pipeline=` and `tir_pipeline=` that are strings.
Named = dict[str, Callable[[Target, Externals], Pipeline]]
RELAX_PIPELINES: Named = {
    "auto": auto_relax_passes,
    "default": relax_passes,  # even if the target's kind has its own
    "minimal": minimal_relax_passes,
    "none": lambda target, externals: None,
}
TIR_PIPELINES: Named = {
    "auto": auto_tir_passes,
    "default": tir_passes,
    "none": lambda target, externals: None,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The target, code generators and passes of one compile."""

    target: Target  # with its host
    cpu: Target  # the target of host code and of kernels that no external takes
    externals: tuple[External, ...]
    relax: tuple[Pass, ...]
    tir: tuple[Pass, ...]
    pre_codegen: tuple[Pass, ...]  # of the kind's hook
    linker: Fcompile | str | None
    cache: KernelCache | None = None  # where code generation finds and stores kernels

    @property
    def passes(self) -> tuple[Pass, ...]:
        """All passes, in the order they run."""
        return (*self.relax, *self.tir, *self.pre_codegen)

    @property
    def relax_phases(self) -> list[tuple[str, tuple[Pass, ...]]]:
        """The passes of graphs by phases of progress: where kernels are many, `LowerGroups` takes
        longer than all others."""
        at = next((i for i, p in enumerate(self.relax) if isinstance(p, LowerGroups)), None)
        if at is None:
            return [("optimise graph", self.relax)]
        return [
            ("optimise graph", self.relax[:at]),
            ("schedule kernels", self.relax[at : at + 1]),
            ("plan memory", self.relax[at + 1 :]),
        ]

    @property
    def kernel_targets(self) -> dict[str, Target]:
        """The target of kernels by the key of their device, empty for all that are of none: then
        that is the whole target, whose kind may have a code generator."""
        devices = devices_of(self.target)
        all_of_it = not devices or hooks_of(self.target).tir_codegen is not None
        here = self.target if all_of_it else self.cpu
        own = {key: with_host(d) for key, d in devices.items() if runs_kernels(d)}
        return {"": here, **own}

    @property
    def makes_objects(self) -> bool:
        """Whether all kernels become LLVM's objects, which the cache finds without their programs:
        not where a kind has the hook `tir_codegen`, and not for CPUs of kind `llvmjit`, which links
        bitcode in memory, and `c`, whose kernels are C sources."""
        kinds = {cpu_target(t).kind for t in self.kernel_targets.values()}
        return not self.has_hooked_kernels and kinds.isdisjoint(("llvmjit", "c"))

    @property
    def has_hooked_kernels(self) -> bool:
        """Whether a kind has its own code generator for tensor programs, the hook `tir_codegen`."""
        return any(hooks_of(t).tir_codegen for t in self.kernel_targets.values())

    def with_kept_values(self) -> Plan:
        """This plan with passes that return what kernels compute; UserError (code `not-lowered`) if
        its passes make no kernels of fused groups."""
        at = self._lowering("debug=True")
        relax = (name_values, *self.relax[:at], keep_values, *self.relax[at:])
        return replace(self, relax=relax)

    def with_records(self, records: Records, note: Callable[[str], None]) -> Plan:
        """This plan with a pass that applies records; UserError (code `not-lowered`) if its passes
        make no kernels of fused groups."""
        from tensorkiln.schedule.apply_records import ApplyRecords  # loads what schedules share

        at = self._lowering("records=")
        target = next(p.target for p in self.relax if isinstance(p, LowerGroups))
        applied = ApplyRecords(target, records, note)
        return replace(self, relax=(*self.relax[:at], applied, *self.relax[at:]))

    def _lowering(self, asked: str) -> int:
        """The place of the pass that makes kernels of fused groups, which `asked` needs."""
        at = next((i for i, p in enumerate(self.relax) if isinstance(p, LowerGroups)), None)
        if at is None:
            raise UserError(
                f"{asked} needs a relax pipeline with the pass LowerGroups",
                code="not-lowered",
                where="relax_pipeline",
                hint="pipeline.relax_passes lists the passes in order",
            )
        return at

    def with_cache(self, cache: KernelCache | None) -> Plan:
        """This plan with a cache, which `LowerGroups` gets too if objects are made."""
        known = cache if self.makes_objects else None
        relax = (replace(p, cache=known) if isinstance(p, LowerGroups) else p for p in self.relax)
        return replace(self, relax=tuple(relax), cache=cache)


def plan_for(
    target: Target,
    externals: Externals = (),
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
) -> Plan:
    """The plan of a compile: pipelines of the caller, else of the target's kind, else the
    compiler's own; externals of the caller, then of the kind.

    Raises UnsupportedError for a target without code generator.
    """
    require_codegen(target)
    target = with_host(target)
    given = tuple(map(_named, externals))
    return Plan(
        target,
        cpu_target(target),
        all_externals(target, given),
        resolve("relax_pipeline", relax_pipeline, RELAX_PIPELINES, target, given),
        resolve("tir_pipeline", tir_pipeline, TIR_PIPELINES, target, given),
        last_passes(target) if tir_pipeline not in (None, "none") else (),
        linker_of(target),
    )


@nesting_checked()
def compile(
    model: IRModule | Function | PrimFunc | str | Path | Any,
    target: Target | str | dict[str, object] | None = None,
    *,
    example_inputs: Any = None,
    freeze: Mapping[str, int] | None = None,
    precision: str | None = None,
    optimize: str | None = None,
    indices: str | None = None,
    denormals: str | None = None,
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
    name: str | None = None,
    system_lib_prefix: str | None = None,
    externals: Externals = (),
    instruments: Sequence[Instrument] = (),
    progress: Progress | None = None,
    max_workspace: GivenBudget | None = None,
    allow_licenses: Sequence[str] = (),
    deny_licenses: Sequence[str] = (),
    debug: bool = False,
    jobs: int | None = None,
    records: GivenRecords | None = None,
) -> Executable:
    """Compile a model for a target (None: those that functions of a module name by their attribute
    `target`, else this machine's CPU); what is returned is called with arrays,
    `tk.compile("net.onnx")(x)`, or exported.

    `model` is the path of an ONNX file, its bytes, or an `onnx.ModelProto`; a `torch.nn.Module`
    with `example_inputs`, the tensors of one call; a `torch.export.ExportedProgram`; an IRModule;
    or a single function, as a module that contains only it. `freeze` gives symbolic dimensions of a
    model that is imported a size: `{"batch": 1}`. `tk.frontend` has all options of the importers.
    `precision`, "bfloat16" or "float16", is the target's option of this name: the operands of
    products are rounded to it, sums stay float32 (docs/howto/precision.md). `optimize`, "speed"
    or "size", is the target's, too: with "size" weights take no more than the model's
    (docs/howto/it-is-too-big.md); so is `indices`, "check" or "clamp": what is done where data has
    an index outside of the dimension that it indexes (docs/howto/indices.md); and `denormals`,
    "keep" or "flush": whether numbers below the smallest normal one count as 0 while a function of
    the library runs (docs/howto/it-is-slow.md).
    Pipelines: `"auto"` is the pipeline of the target's kind; the other names are `"default"`,
    `"minimal"` (`relax_pipeline` only) and `"none"`; None runs no pass and expects the module to be
    lowered already; a pass, or a list of passes, replaces the automatic pipeline. `externals` are
    code generators; an operator goes to the first one that supports it, those of the target's kind
    coming last; text is the name of an installed one (docs/externals.md). `instruments` watch every
    pass (`tensorkiln.passes`). The external dependencies of what is compiled must have licenses
    that `allow_licenses` permits, if it is not empty, and `deny_licenses` does not refuse: SPDX
    identifiers (docs/external-dependencies.md).
    `name` is the library's name, by default the module's: C entries and the header begin with it,
    so libraries in one program need different names. With `system_lib_prefix` (`"net_"`) several
    libraries can be linked into one program: export each to a name ending in .a or .o
    (docs/artifacts.md).
    `max_workspace` are the bytes that intermediate results of a function may take at most: 262144,
    "256K", or those of the target's pools, {"sram": "200K"}. A function that needs more is an error
    (code `workspace`) before code is generated; so is one that overflows a pool.
    With `debug`, graph functions also return what each of their kernels computes, as further
    outputs, for `tk.verify`; kernels and schedules are the same (docs/howto/it-is-wrong.md).
    `jobs` is how many kernels are compiled at a time, by as many processes; None: as
    KILN_COMPILE_JOBS says. The bytes are the same.
    `records` are measured choices of schedules: the path of a file, `Records`, or a list of them
    (docs/formats/records.md). Those of other targets and kernels are left alone; those that fit
    this compile's kernels and cannot be used are named in notes of `progress`.
    Raises UserError, UnsupportedError (all issues at once), InternalError.
    """
    _require_arguments(externals, instruments, system_lib_prefix, jobs)
    policy = LicensePolicy.of(allow_licenses, deny_licenses)
    mod = _asked_module(model, name, example_inputs, freeze)
    asked = asked_option(target_for(mod, target), "precision", precision)
    asked = asked_option(asked, "optimize", optimize)
    asked = asked_option(asked, "indices", indices)
    asked = asked_option(asked, "denormals", denormals)
    plan = plan_for(asked, externals, relax_pipeline, tir_pipeline)
    require(debug, bool, "debug")
    given = records_of(records)
    if debug:
        plan = plan.with_kept_values()
    _require_precision(plan)
    _require_optimize(plan)
    _note_baseline(plan.cpu, progress)
    config, progress = read_config(), watched(progress)
    if given:
        plan = plan.with_records(given, progress.note)
    plan = plan.with_cache(kernel_cache())
    budget = read_budget(max_workspace, plan.cpu.memory)
    runner = make_runner(instruments, config, plan.passes)
    _require_well_formed(mod, runner.verified)
    weights = model_weights(mod)
    made_from = mod.source
    mod = with_device_keys(mod, plan.target, bool(plan.relax))
    mod = with_names_for_c(guard_conditions(mod) if plan.relax else mod)
    fused = None
    for phase, passes in plan.relax_phases:
        progress.phase(phase)
        mod = runner.run(mod, "relax", passes)
        fused = fused or mod
    require_memory(mod, plan.cpu.memory, budget, accelerators(plan.target))
    progress.phase("lower kernels")
    mod = runner.run(mod, "tir", plan.tir)
    mod = runner.run(mod, "pre_codegen", plan.pre_codegen)
    known = known_objects(mod, placed_on(plan.target), plan.cache) if plan.makes_objects else {}
    mod = mod.with_programs(but=known)
    mod = with_prefixed_kernels(mod, lambda f: becomes_c(plan.target, f.attrs))
    require_lowered(mod)
    if accelerators(plan.target) and insert_barriers not in plan.tir:
        require_barriers(mod)
    emitted = emit_externals(mod, plan.externals)
    declared = declared_dependencies(mod, plan.externals)
    declared += in_memory_dependencies(emitted.artifacts)
    dependencies = settled_dependencies(declared, policy)
    progress.phase("compile kernels", len(mod.kernels))
    at_a_time = jobs or config.compile_jobs or 2
    made = kernel_code(mod, plan.kernel_targets, plan.cache, known, at_a_time, progress)
    if plan.has_hooked_kernels:  # whose code generators may have made such artifacts, too
        declared += in_memory_dependencies(made.emitted.artifacts)
        dependencies = settled_dependencies(declared, policy)
    uses = uses_of(mod, declared, [*emitted.artifacts, *made.emitted.artifacts])
    origin = Origin(
        replace(made_from, freeze=()) if made_from else None,
        given_options(
            freeze=dict((made_from.freeze if made_from else ()) or freeze or {}) or None,
            relax_pipeline=relax_pipeline,
            tir_pipeline=tir_pipeline,
            system_lib_prefix=system_lib_prefix,
            externals=list(dict.fromkeys(f.external for f in mod.externals)),
            debug=debug,
            records=tuned_kernels(mod),
        ),
        uses,
    )
    progress.phase("pack weights")
    executable = assemble(
        mod,
        plan.target,
        plan.cpu,
        plan.externals,
        made.emitted.add(emitted),
        made.texts,
        plan.linker,
        system_lib_prefix,
        dependencies,
        made.devices,
        origin,
    )
    executable = replace(
        executable,
        is_named=name is not None,
        model_weights=weights,
        debug=Debug(fused, plan.relax) if debug and fused else None,
    )
    _note_weights(executable, progress)
    _note_reasons(executable, progress)
    return executable


def given_options(**options: object) -> dict[str, object]:
    """The options of a compile that are not their defaults, as JSON values: a pipeline that
    has a name by it. None of them is a path. Those that the target says, such as
    precision and denormals, are not among them."""
    found: dict[str, object] = {}
    for name, value in options.items():
        if name.endswith("_pipeline") and (value == "auto" or not isinstance(value, str)):
            continue  # passes of the caller's have no name; without any, the module is what is left
        if value not in (None, False, [], {}):
            found[name] = value
    return found


def require_externals(externals: object) -> None:
    """Raise UserError (code `wrong-type`) unless externals are several of something."""
    require(externals, Iterable, "externals")
    if isinstance(externals, str):
        message = f"externals are a list, not a text ({externals!r})"
        raise UserError(message, code="wrong-type", hint=f"externals=[{externals!r}]")


def _require_arguments(
    externals: object, instruments: object, system_lib_prefix: object, jobs: object
) -> None:
    """Raise UserError for arguments of `compile` that are not what they should be."""
    require_externals(externals)
    require(instruments, Iterable, "instruments")
    if system_lib_prefix is not None:
        require(system_lib_prefix, str, "system_lib_prefix")
        check_prefix(system_lib_prefix)
    if jobs is not None:
        require(jobs, int, "jobs")
        if not 1 <= cast(int, jobs) <= MOST_JOBS:
            raise UserError(f"jobs={jobs}: expected 1 to {MOST_JOBS}", code="bad-argument")


def _asked_module(
    model: Any, name: object, example_inputs: Any, freeze: Mapping[str, int] | None
) -> IRModule:
    """The module of a model, under the `name` that the caller of `compile` chose for it."""
    mod = frontend.import_model(model, example_inputs=example_inputs, freeze=freeze)
    if name is None:
        return mod
    require(name, str, "name")
    return replace(mod, name=check_prefix(name, "name"))


def _note_baseline(cpu: Target, progress: Progress | None) -> None:
    """Say that the target is the oldest processor of its architecture: to `progress`, else as a
    warning at the line that calls `compile`."""
    if not cpu.is_baseline or cpu.arch not in LIBRARIES:
        return
    note = f"{cpu.mcpu} is the baseline of {cpu.arch}: 'native' uses all this CPU has"
    if progress is None:
        warnings.warn(note, stacklevel=3)
    else:
        watched(progress).note(note)


def _note_weights(executable: Executable, progress: Progress) -> None:
    """Say why weights take much more than in the model, and what to do about that."""
    model = executable.model_weights
    if model is None or not is_much(executable.weights_bytes, model.bytes):
        return
    found = executable.memory().weights
    assert found is not None
    small = cpu_target(executable.target).optimize == "size"
    hint = "" if small else "; --optimize size, or compile(optimize='size'), keeps them small"
    progress.note(f"{found.note}{hint}")


def _note_reasons(executable: Executable, progress: Progress) -> None:
    """Say which nodes have no kernel of the family that is fast for them, and why."""
    slow = []
    for row in executable.placement():
        more = f" and {len(row.nodes) - 1} more" if len(row.nodes) > 1 else ""
        slow += [f"{row.nodes[0]}{more}: {why}" for why in row.reasons if why.startswith("no ")]
    for text in slow[:_MOST_NOTES]:
        progress.note(text)
    if len(slow) > _MOST_NOTES:
        progress.note(f"{len(slow) - _MOST_NOTES} more of these: Executable.placement()")


def target_for(mod: IRModule, target: Target | str | dict[str, object] | None) -> Target:
    """The Target that an argument `target=` stands for; None: those that functions of the module
    name by their attribute `target`, else this machine's CPU. Raises as `asked_target`."""
    if target is None:
        texts = ((f.name, f.attrs.get("target")) for f in mod.functions)
        said = annotated_target((name, t) for name, t in texts if isinstance(t, str) and t)
        target = said if said is not None else "native"
    return asked_target(target)


def asked_target(target: Target | str | dict[str, object] | None) -> Target:
    """The Target that an argument `target=` stands for, None being this machine's CPU.

    Raises UnsupportedError if no code generator exists for its kind.
    """
    asked = Target("native") if target is None else Target(target)
    require_codegen(asked)
    if asked.kind != "llvmjit" or not asked.is_baseline:
        return asked
    # llvmjit code runs on this machine only, so it may use every feature of this CPU: begin with
    # "native" and override the options that the caller gave.
    plain = Target("llvmjit").to_json()
    said = {k: v for k, v in asked.to_json().items() if v != plain.get(k)}
    return Target({**Target("native").to_json(), "kind": "llvmjit", **said})


def asked_option(target: Target, name: str, given: str | None) -> Target:
    """The target with the option `name` that an argument of `compile` of this name stands for.

    Raises UserError for an unknown value, a kind of target without the option, and one that says
    another value itself (code `contradiction`).
    """
    if given is None:
        return target
    require(given, str, name)
    said = target[name]
    if said not in (None, given):
        raise UserError(
            f"{name}={given!r}, but the target says {said!r}",
            code="contradiction",
            where=name,
            hint="give it once",
        )
    return target.replace(**{name: given})


def _require_precision(plan: Plan) -> None:
    """Raise UserError if a target asks for a precision that its passes do not apply."""
    lower = next((t for t in plan.kernel_targets.values() if t.has_narrow_operands), None)
    if lower is None or not plan.relax or any(isinstance(p, ApplyPrecision) for p in plan.relax):
        return
    raise UserError(
        f"the target asks for {lower.precision}, but no pass of relax_pipeline applies it",
        code="precision",
        where="relax_pipeline",
        hint="ApplyPrecision(target) goes before SelectAlgorithms, as in pipeline.relax_passes",
    )


def _require_optimize(plan: Plan) -> None:
    """Raise UserError if weights are to be small, but passes choose kernels for a target that does
    not say so."""
    chosen = [p for p in plan.relax if isinstance(p, SelectAlgorithms | AssignLayouts)]
    if plan.cpu.optimize == "size" and any(cpu_target(p.target).optimize != "size" for p in chosen):
        raise UserError(
            "the target asks for small weights, but passes of relax_pipeline are for one that does "
            "not",
            code="contradiction",
            where="relax_pipeline",
            hint="relax_passes(target) of the target with its option optimize",
        )


def _require_well_formed(mod: IRModule, known: dict[int, object]) -> None:
    """Verify the caller's module before any pass runs: here a malformed module is a UserError,
    later it is the fault of a pass."""
    try:
        verify(mod, known, places=True)
    except InternalError as error:
        raise UserError(
            error.message, code=error.code, where=error.where, hint=error.hint
        ) from None


def check(
    model: object,
    target: Target | str | dict[str, object] | None = None,
    *,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
) -> tuple[Issue, ...]:
    """Every reason why an ONNX model cannot be compiled for the target (None: this machine's CPU);
    empty when it can. `shapes` are as for `from_onnx`.

    Issues of the target come first: that no code generator exists for it. Those of the model do not
    depend on it, since every target has a CPU that computes what its other devices do not.
    """
    try:
        asked_target(target)
    except UnsupportedError as error:
        return (*error.issues, *frontend.check_onnx(model, shapes=shapes))
    return frontend.check_onnx(model, shapes=shapes)


def refusals(
    mod: IRModule,
    target: Target | str | dict[str, object] | None = None,
    externals: Externals = (),
) -> tuple[Refusal, ...]:
    """What externals refuse of a module and why, without compiling it: `Executable.refusals`."""
    for step in relax_passes(target_for(mod, target), externals):
        mod = step(mod)
        if isinstance(step, PartitionExternals):
            break
    return refusals_of(mod)
