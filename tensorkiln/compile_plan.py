"""`CompilePlan`: the target, code generators and passes of one compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tensorkiln.base.errors import UserError
from tensorkiln.external import External
from tensorkiln.kernel_cache import KernelCache
from tensorkiln.kernels.records import Records
from tensorkiln.link.shared import Fcompile
from tensorkiln.passes import Pass
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target, cpu_target, devices_of, hooks_of, runs_kernels, with_host
from tensorkiln.transform.relax.apply_precision import ApplyPrecision
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.keep_values import keep_values
from tensorkiln.transform.relax.name_values import name_values
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms


@dataclass(frozen=True, slots=True)
class CompilePlan:
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
        place = self._lowering
        if place is None:
            return [("optimise graph", self.relax)]
        return [
            ("optimise graph", self.relax[:place]),
            ("schedule kernels", self.relax[place : place + 1]),
            ("plan memory", self.relax[place + 1 :]),
        ]

    @property
    def kernel_targets(self) -> dict[str, Target]:
        """The target of kernels by the key of their device, empty for all that are of none: then
        that is the whole target, whose kind may have a code generator."""
        devices = devices_of(self.target)
        whole = not devices or hooks_of(self.target).tir_codegen is not None
        device_targets = {k: with_host(d, self.cpu) for k, d in devices.items() if runs_kernels(d)}
        return {"": self.target if whole else self.cpu, **device_targets}

    @property
    def makes_objects(self) -> bool:
        """Whether all kernels become LLVM's objects, which the cache finds without their programs:
        not where a kind has the hook `tir_codegen`, and not for CPUs of kind `llvmjit`, which links
        bitcode in memory, and `c`, whose kernels are C sources."""
        if any(hooks_of(t).tir_codegen for t in self.kernel_targets.values()):
            return False
        kinds = {cpu_target(t).kind for t in self.kernel_targets.values()}
        return kinds.isdisjoint(("llvmjit", "c"))

    def with_kept_values(self) -> CompilePlan:
        """This plan with passes that return what kernels compute; UserError (code `not-lowered`) if
        its passes make no kernels of fused groups."""
        before, after = self._around_lowering("debug=True")
        return replace(self, relax=(name_values, *before, keep_values, *after))

    def with_records(self, records: Records, note: Callable[[str], None]) -> CompilePlan:
        """This plan with a pass that applies records; UserError (code `not-lowered`) if its passes
        make no kernels of fused groups."""
        from tensorkiln.schedule.apply_records import ApplyRecords  # loads what schedules share

        before, after = self._around_lowering("records=")
        target = next(p.target for p in after if isinstance(p, LowerGroups))
        return replace(self, relax=(*before, ApplyRecords(target, records, note), *after))

    @property
    def _lowering(self) -> int | None:
        """The place of the pass that makes kernels of fused groups."""
        return next((i for i, p in enumerate(self.relax) if isinstance(p, LowerGroups)), None)

    def _around_lowering(self, argument: str) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
        """The passes before the one that makes kernels of fused groups, which `argument` needs, and
        those from it on."""
        place = self._lowering
        if place is None:
            raise UserError(
                f"{argument} needs a relax pipeline with the pass LowerGroups",
                code="not-lowered",
                where="relax_pipeline",
                hint="pipeline.relax_passes lists the passes in order",
            )
        return self.relax[:place], self.relax[place:]

    def for_run(self, cache: KernelCache | None, jobs: int) -> CompilePlan:
        """This plan with a cache, which `LowerGroups` gets too if objects are made, and the number
        of kernels that it schedules at a time."""
        object_cache = cache if self.makes_objects else None
        relax = (
            replace(p, cache=object_cache, jobs=jobs) if isinstance(p, LowerGroups) else p
            for p in self.relax
        )
        return replace(self, relax=tuple(relax), cache=cache)

    def require_options(self) -> None:
        """Raise UserError if the target asks for a precision that no pass applies, or for small
        weights, but passes choose kernels for a target that does not."""
        lower = next((t for t in self.kernel_targets.values() if t.has_narrow_operands), None)
        applied = any(isinstance(p, ApplyPrecision) for p in self.relax)
        if lower is not None and self.relax and not applied:
            raise UserError(
                f"the target asks for {lower.precision}, but no pass of relax_pipeline applies it",
                code="precision",
                where="relax_pipeline",
                hint="ApplyPrecision(target) goes before SelectAlgorithms, as in "
                "pipeline.relax_passes",
            )
        choices = [p for p in self.relax if isinstance(p, SelectAlgorithms | AssignLayouts)]
        large = any(cpu_target(p.target).optimize != "size" for p in choices)
        if self.cpu.optimize == "size" and large:
            raise UserError(
                "the target asks for small weights, but passes of relax_pipeline are for one that "
                "does not",
                code="contradiction",
                where="relax_pipeline",
                hint="relax_passes(target) of the target with its option optimize",
            )
