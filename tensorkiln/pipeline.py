"""The compiler on one page: from a module to an Executable, pass by pass.

To change the pipeline, copy `relax_passes` or `tir_passes`, edit the list, and pass it to
`compile` (docs/howto/customise-the-pipeline.md). A pass is any callable from IRModule to IRModule:
a function, or a frozen dataclass when it has options. `passes/run.py` runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tensorkiln.assemble import LibraryParts, assemble, assemble_levels
from tensorkiln.base.config import Config, read_config
from tensorkiln.base.frames import with_frame_room
from tensorkiln.base.licenses import LicensePolicy
from tensorkiln.base.nesting import nesting_checked
from tensorkiln.base.progress import Progress, watched
from tensorkiln.codegen.memory.budget import GivenBudget, read_budget, require_memory
from tensorkiln.codegen.memory.weights import model_weights
from tensorkiln.compile_plan import CompilePlan
from tensorkiln.executable import Debug, Executable
from tensorkiln.external import PartitionExternals, PartitionPatterns
from tensorkiln.external.argument import Externals, named_externals
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernel_cache import kernel_cache
from tensorkiln.kernels.records import GivenRecords, records_of
from tensorkiln.kind_hooks import (
    Named,
    all_externals,
    kind_relax_pipeline,
    kind_tir_pipeline,
    last_passes,
    linker_of,
)
from tensorkiln.notes import note_baseline, note_results
from tensorkiln.options import (
    TargetArgument,
    module_target,
    named_module,
    origin_of,
    require_arguments,
    require_well_formed,
    with_options,
)
from tensorkiln.passes import Instrument, Pass, Pipeline, make_runner, resolve
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.stages import library_parts, lowered_module, planned_module
from tensorkiln.target import (
    Target,
    accelerators,
    cpu_target,
    require_codegen,
    schedule_target,
    with_host,
)
from tensorkiln.target.capability import keys_with_copies, shared_memory
from tensorkiln.target.isa import word_bits
from tensorkiln.transform.relax.apply_precision import ApplyPrecision
from tensorkiln.transform.relax.assign_devices import AssignDevices
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.check_arguments import CheckArguments
from tensorkiln.transform.relax.check_indices import CheckIndices
from tensorkiln.transform.relax.decompose_operators import DecomposeOperators
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
from tensorkiln.transform.relax.match_activations import match_activations
from tensorkiln.transform.relax.match_attention import match_attention
from tensorkiln.transform.relax.match_integer import match_integer
from tensorkiln.transform.relax.match_layer_norm import match_layer_norm
from tensorkiln.transform.relax.match_linear import match_linear
from tensorkiln.transform.relax.outline_dataflow import outline_dataflow
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.relax.pin_devices import PinDevices
from tensorkiln.transform.relax.plan_memory import PlanMemory
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tensorkiln.transform.relax.state_conditions import state_conditions
from tensorkiln.transform.relax.widen_statistics import WidenStatistics
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.narrow_indices import narrow_device_indices, narrow_indices
from tensorkiln.transform.tir.skip_empty_loops import skip_empty_loops
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops


def relax_passes(target: Target, externals: Externals = ()) -> list[Pass]:
    """Graphs of operators -> one kernel call per fused group, memory planned.

    Operators that neither `externals` nor the code generators of the target's kind support are
    compiled for the target's CPU.
    """
    target = with_host(target)
    place, externals = schedule_target(target), all_externals(target, externals)
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


def minimal_relax_passes(target: Target, externals: Externals = ()) -> list[Pass]:
    """Only the passes that lowering needs, one kernel per operator: to tell whether an optimisation
    is at fault."""
    target = with_host(target)
    place, externals = schedule_target(target), all_externals(target, externals)
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
    has_devices = bool(accelerators(target))
    device, last = _device_passes(target) if has_devices else ([], [])
    return [
        pass_sizes,  # for modules that ran no relax pipeline
        lower_blocks,
        *device,
        vectorize_loops,
        # Of vectors too.
        *([narrow_indices] if short else [narrow_device_indices] if has_devices else []),
        *last,
        skip_empty_loops,
    ]


def _device_passes(target: Target) -> tuple[list[Pass], list[Pass]]:
    """The passes of `tir_passes` for devices: before loops become vectors, and after."""
    from tensorkiln.transform.tir.allocate_shared import AllocateShared
    from tensorkiln.transform.tir.async_copies import AsyncCopies
    from tensorkiln.transform.tir.check_races import CheckRaces
    from tensorkiln.transform.tir.fold_grid import FoldGrid
    from tensorkiln.transform.tir.insert_barriers import insert_barriers
    from tensorkiln.transform.tir.split_device import split_device

    first: list[Pass] = [
        split_device,
        AllocateShared(None, shared_memory(target)),
        AsyncCopies(keys_with_copies(target)),
        insert_barriers,  # of which some wait for copies
    ]
    return first, [CheckRaces(), FoldGrid(target)]  # races: of programs that people wrote


def auto_relax_passes(target: Target, externals: Externals = ()) -> Pipeline:
    """The relax pipeline of the target's kind, else `relax_passes` with those of the kinds of a
    composite's devices."""
    return kind_relax_pipeline(target, externals, relax_passes, RELAX_PIPELINES)


def auto_tir_passes(target: Target, externals: Externals = ()) -> Pipeline:
    """The TIR pipeline of the target's kind, else `tir_passes` with those of the kinds of a
    composite's devices."""
    return kind_tir_pipeline(target, tir_passes, TIR_PIPELINES)


# Pipelines by name: the values of `relax_pipeline=` and `tir_pipeline=` that are strings.
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


def plan_for(
    target: Target,
    externals: Externals = (),
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
) -> CompilePlan:
    """The plan of a compile: pipelines of the caller, else of the target's kind, else the
    compiler's own; externals of the caller, then of the kind.

    Raises UnsupportedError for a target without code generator, and for one of several processors:
    `compile` makes a plan for each of `target.levels`.
    """
    require_codegen(target)
    target = with_host(target)
    external_rows = named_externals(externals)
    return CompilePlan(
        target,
        cpu_target(target),
        all_externals(target, external_rows),
        resolve("relax_pipeline", relax_pipeline, RELAX_PIPELINES, target, external_rows),
        resolve("tir_pipeline", tir_pipeline, TIR_PIPELINES, target, external_rows),
        last_passes(target) if tir_pipeline not in (None, "none") else (),
        linker_of(target),
    )


def _dumped_apart(config: Config, level: str) -> Config:
    """Return the configuration with a folder of its own for the stages of a level."""
    return config if config.dump is None else replace(config, dump=config.dump / level)


@with_frame_room
@nesting_checked()
def compile(
    model: IRModule | Function | PrimFunc | str | Path | Any,
    target: TargetArgument = None,
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
    pass (`tensorkiln.passes`); for a target of several processors, the passes of each in turn. The
    external dependencies of what is compiled must have licenses that `allow_licenses` permits, if
    it is not empty, and `deny_licenses` does not refuse: SPDX identifiers
    (docs/external-dependencies.md).
    `name` is the library's name, by default the module's: C entries and the header begin with it,
    so libraries in one program need different names. With `system_lib_prefix` (`"net_"`) several
    libraries can be linked into one program: export each to a name ending in .a or .o
    (docs/artifacts.md).
    `max_workspace` are the bytes that intermediate results of a function may take at most: 262144,
    "256K", or those of the target's pools, {"sram": "200K"}. A function that needs more is an error
    (code `workspace`) before code is generated; so is one that overflows a pool.
    With `debug`, graph functions also return what each of their kernels computes, as further
    outputs, for `tk.verify`; kernels and schedules are the same (docs/howto/it-is-wrong.md).
    `jobs` is how many kernels are scheduled and compiled at a time, by as many processes; None: as
    KILN_COMPILE_JOBS says. The bytes are the same.
    `records` are measured choices of schedules: the path of a file, `Records`, or a list of them
    (docs/formats/records.md). Those of other targets and kernels are left alone; those that fit
    this compile's kernels and cannot be used are named in notes of `progress`.
    Raises UserError, UnsupportedError (all issues at once), InternalError.
    """
    require_arguments(externals, instruments, system_lib_prefix, jobs, debug)
    policy = LicensePolicy.of(allow_licenses, deny_licenses)
    mod = named_module(model, name, example_inputs, freeze)
    options = {"precision": precision, "optimize": optimize, "indices": indices}
    named_target = with_options(module_target(mod, target), **options, denormals=denormals)
    levels = named_target.levels or (named_target,)
    plans = [plan_for(level, externals, relax_pipeline, tir_pipeline) for level in levels]
    choices = records_of(records)
    plans = [plan.with_kept_values() if debug else plan for plan in plans]
    for plan in plans:
        plan.require_options()
    if not named_target.levels:
        note_baseline(plans[0].cpu, progress)
    config, progress = read_config(), watched(progress)
    jobs = jobs or config.compile_jobs or 2
    cache = kernel_cache()

    def parts_of(plan: CompilePlan) -> LibraryParts:
        plan = plan.with_records(choices, progress.note) if choices else plan
        plan = plan.for_run(cache, jobs)
        budget = read_budget(max_workspace, plan.cpu.memory)
        stages = config if len(plans) == 1 else _dumped_apart(config, plan.cpu.mcpu)
        runner = make_runner(instruments, stages, plan.passes)
        require_well_formed(mod, runner.verified)
        weights, source = model_weights(mod), mod.source
        planned, fused = planned_module(mod, plan, runner, progress)
        require_memory(planned, plan.cpu.memory, budget, accelerators(plan.target))
        lowered, objects = lowered_module(planned, plan, runner, progress)
        parts = library_parts(lowered, plan, objects, policy, jobs, progress)
        origin = origin_of(
            lowered, source, freeze, relax_pipeline, tir_pipeline, system_lib_prefix, debug
        )
        return replace(
            parts,
            system_lib_prefix=system_lib_prefix,
            origin=replace(origin, uses=parts.origin.uses),
            is_named=name is not None,
            model_weights=weights,
            debug=Debug(fused, plan.relax) if debug and fused else None,
        )

    parts = [parts_of(plan) for plan in plans]
    progress.phase("pack weights")
    executable = assemble_levels(named_target, parts) if named_target.levels else assemble(parts[0])
    note_results(executable, progress)
    return executable
