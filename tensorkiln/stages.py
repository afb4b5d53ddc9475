"""The stages of a compile: passes on graphs, passes on tensor programs, code and what it needs."""

from __future__ import annotations

from collections.abc import Mapping

from tensorkiln.assemble import LibraryParts
from tensorkiln.base.licenses import LicensePolicy
from tensorkiln.base.origin import Origin
from tensorkiln.base.progress import Progress
from tensorkiln.codegen.kernel_names import with_names_for_c, with_prefixed_kernels
from tensorkiln.codegen.llvm.compile import CompiledKernel, known_objects
from tensorkiln.codegen.lowered import require_lowered
from tensorkiln.compile_plan import CompilePlan
from tensorkiln.external import (
    declared_dependencies,
    emit_externals,
    in_memory_dependencies,
    settled_dependencies,
    uses_of,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.kernel_code import kernel_code
from tensorkiln.passes import PassRunner
from tensorkiln.target import accelerators, becomes_c, required_features, schedule_target
from tensorkiln.transform.relax.device_keys import with_device_keys
from tensorkiln.transform.tir.guard_conditions import guard_conditions


def planned_module(
    mod: IRModule, plan: CompilePlan, runner: PassRunner, progress: Progress
) -> tuple[IRModule, IRModule | None]:
    """The module after the passes on graphs, and after the first phase of these, when no kernels
    are made of fused groups yet."""
    mod = with_device_keys(mod, plan.target, bool(plan.relax))
    mod = with_names_for_c(guard_conditions(mod) if plan.relax else mod)
    fused = None
    for phase, passes in plan.relax_phases:
        progress.phase(phase)
        mod = runner.run(mod, "relax", passes)
        fused = fused or mod
    return mod, fused


def lowered_module(
    mod: IRModule, plan: CompilePlan, runner: PassRunner, progress: Progress
) -> tuple[IRModule, Mapping[str, CompiledKernel]]:
    """The module as code is generated for it, and the kernels whose objects the cache has."""
    progress.phase("lower kernels")
    mod = runner.run(mod, "tir", plan.tir)
    mod = runner.run(mod, "pre_codegen", plan.pre_codegen)
    place = schedule_target(plan.target)
    objects = known_objects(mod, place, plan.cache) if plan.makes_objects else {}
    mod = mod.with_programs(but=objects)
    mod = with_prefixed_kernels(mod, lambda f: becomes_c(plan.target, f.attrs))
    require_lowered(mod)
    if accelerators(plan.target):
        from tensorkiln.transform.tir.insert_barriers import insert_barriers, require_barriers

        if insert_barriers not in plan.tir:
            require_barriers(mod)
    return mod, objects


def library_parts(
    mod: IRModule,
    plan: CompilePlan,
    objects: Mapping[str, CompiledKernel],
    policy: LicensePolicy,
    jobs: int,
    progress: Progress,
) -> LibraryParts:
    """The code of a lowered module and what it needs: all parts of a library but the model's source
    and the options of the compile. Kernels of `objects` are not compiled, others `jobs` at a time.

    Raises the UserErrors of `settled_dependencies`, and what `kernel_code` raises.
    """
    emitted = emit_externals(mod, plan.externals)
    declared = declared_dependencies(mod, plan.externals)
    declared += in_memory_dependencies(emitted.artifacts)
    settled_dependencies(declared, policy)  # what is refused is not compiled first
    progress.phase("compile kernels", len(mod.kernels))
    kernels = kernel_code(mod, plan.kernel_targets, plan.cache, objects, jobs, progress)
    # What an external makes may use all that its target has.
    external_targets = {e.name: e.target or plan.target for e in plan.externals}
    others_need = {
        x for f in mod.externals for x in required_features(external_targets[f.external])
    }
    declared += in_memory_dependencies(kernels.emitted.artifacts)  # of a kind's `tir_codegen`
    return LibraryParts(
        module=mod,
        target=plan.target,
        cpu=plan.cpu,
        code=kernels.emitted.add(emitted),
        externals=plan.externals,
        texts=kernels.texts,
        devices=kernels.devices,
        cpu_features=tuple(sorted({*kernels.cpu_features, *others_need})),
        linker=plan.linker,
        dependencies=settled_dependencies(declared, policy),
        origin=Origin(
            uses=uses_of(mod, declared, [*emitted.artifacts, *kernels.emitted.artifacts])
        ),
    )
