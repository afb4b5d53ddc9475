"""The compiler on one page: from a module to an Executable, pass by pass.

To change the pipeline, copy `relax_passes` or `tir_passes`, edit the list, and pass it to
`compile` (docs/howto/customise-the-pipeline.md). A pass is any callable from IRModule to IRModule:
a function, or a frozen dataclass when it has options. `passes/run.py` runs them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tensorkiln import frontend
from tensorkiln.artifact import Artifact, ArtifactSet, TextContent
from tensorkiln.assemble import assemble
from tensorkiln.base.config import Config, read_config
from tensorkiln.base.errors import InternalError, Issue, UnsupportedError, UserError, require
from tensorkiln.base.plugin import bad_answer, plugin
from tensorkiln.base.progress import Progress, watched
from tensorkiln.codegen.host.system_lib_c import check_prefix
from tensorkiln.codegen.kernel_names import with_names_for_c
from tensorkiln.codegen.llvm.compile import Kernel, compile_kernels, known_objects
from tensorkiln.codegen.llvm.texts import KernelFiles, module_text
from tensorkiln.codegen.lowered import require_cpu_programs, require_lowered
from tensorkiln.executable import Executable
from tensorkiln.external import Emitted, External, PartitionExternals, checked, emit_externals
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernel_cache import KernelCache, kernel_cache
from tensorkiln.link.shared import Fcompile
from tensorkiln.link.stubs import RUNTIME_CALLS
from tensorkiln.ops.verify import verify
from tensorkiln.passes import Instrument, Pass, Pipeline, make_runner, resolve
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target, cpu_target, hooks_of, require_codegen, with_host
from tensorkiln.transform.relax.assign_layouts import AssignLayouts
from tensorkiln.transform.relax.canonicalize import canonicalize
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
from tensorkiln.transform.relax.match_activations import match_activations
from tensorkiln.transform.relax.match_attention import match_attention
from tensorkiln.transform.relax.match_integer import match_integer
from tensorkiln.transform.relax.match_layer_norm import match_layer_norm
from tensorkiln.transform.relax.match_linear import match_linear
from tensorkiln.transform.relax.outline_dataflow import outline_dataflow
from tensorkiln.transform.relax.partial_graph_aot import partial_graph_aot
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.relax.plan_memory import plan_memory
from tensorkiln.transform.relax.select_algorithms import SelectAlgorithms
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops


def relax_passes(target: Target, externals: Sequence[External] = ()) -> list[Pass]:
    """Graphs of operators -> one kernel call per fused group, memory planned.

    Operators that neither `externals` nor the code generators of the target's kind support are
    compiled for the target's CPU.
    """
    cpu, externals = cpu_target(target), all_externals(target, externals)
    return [
        infer_types,
        outline_dataflow,  # later passes see straight-line graphs only
        pass_sizes,
        match_integer,  # before fold_constants, which would dequantise the weights
        fold_constants,
        canonicalize,
        match_activations,
        match_layer_norm,
        match_linear,  # before fold_scale, which folds into the weights of linear
        match_attention,
        fold_scale,
        canonicalize,  # folding leaves neutral operations behind
        fold_constants,
        eliminate_common_subexpressions,
        eliminate_dead_code,  # before layouts: a dead reader would cost a layout conversion
        # Externals see canonical operators on row-major tensors.
        PartitionExternals(target, externals),
        DecomposeOperators(cpu),
        SelectAlgorithms(cpu),
        AssignLayouts(cpu),
        FuseOps(cpu),
        LowerGroups(cpu),
        plan_memory,
        partial_graph_aot,  # last: it fixes storages and the order of calls
    ]


def minimal_relax_passes(target: Target, externals: Sequence[External] = ()) -> list[Pass]:
    """Only the passes that lowering needs, one kernel per operator: to tell whether an optimisation
    is at fault."""
    cpu, externals = cpu_target(target), all_externals(target, externals)
    return [
        infer_types,
        outline_dataflow,
        pass_sizes,
        forward_values,
        PartitionExternals(target, externals),
        DecomposeOperators(cpu),
        FuseOps(cpu, default=False),
        LowerGroups(cpu),
        plan_memory,
        partial_graph_aot,
    ]


def tir_passes(target: Target, externals: Sequence[External] = ()) -> list[Pass]:
    """Blocks and scheduled loops -> loops of explicit vectors: ready for code generation."""
    return [
        pass_sizes,  # for modules that ran no relax pipeline
        lower_blocks,
        vectorize_loops,
    ]


def all_externals(target: Target, externals: Sequence[External] = ()) -> tuple[External, ...]:
    """The given externals, then those of the target's kind; UserError (`bad-kind`) if the kind's
    hook `relax_codegen` returns anything but Externals."""
    own = hook(target, "relax_codegen", list | tuple, target) or ()
    wrong = next((e for e in own if not isinstance(e, External)), None)
    if wrong is not None:
        what = f"relax_codegen of kind {target.kind!r}"
        raise bad_answer(what, wrong, "External in its list", "bad-kind")
    return (*externals, *own)


def hook(target: Target, name: str, expected: Any, *given: object) -> Any:
    """The result of hook `name` of the target's kind; None if the kind does not define the hook.

    Raises UserError (code `bad-kind`) if the result is not an instance of `expected`, and
    `plugin-failed` if the hook raises.
    """
    own = getattr(hooks_of(target), name)
    if own is None:
        return None
    what = f"{name} of kind {target.kind!r}"
    with plugin(what):
        answer = own(*given)
    if answer is None or not isinstance(answer, expected):
        raise bad_answer(what, answer, _ANSWERS[name], "bad-kind")
    return answer


_ANSWERS = {
    "relax_codegen": "a list of External",
    "relax_pipeline": "a pass, a list of passes or a pipeline's name",
    "tir_pipeline": "a pass, a list of passes or a pipeline's name",
    "pre_codegen": "a pass or a list of passes",
    "linker": "a command or a function",
}


def auto_relax_passes(target: Target, externals: Sequence[External] = ()) -> Pipeline:
    """The relax pipeline of the target's kind, else `relax_passes`."""
    own = hook(target, "relax_pipeline", object, target, externals)
    return relax_passes(target, externals) if own is None else own


def auto_tir_passes(target: Target, externals: Sequence[External] = ()) -> Pipeline:
    """The TIR pipeline of the target's kind, else `tir_passes`."""
    own = hook(target, "tir_pipeline", object, target)
    return tir_passes(target) if own is None else own


# Pipelines by name: the values of `relax_pipeline=` and `tir_pipeline=` that are strings.
Named = dict[str, Callable[[Target, Sequence[External]], Pipeline]]
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
    def makes_objects(self) -> bool:
        """Whether kernels become LLVM's objects, which the cache finds without their programs: not
        where the target's kind has the hook `tir_codegen`, and not for target `llvmjit`, which
        links bitcode in memory."""
        return hooks_of(self.target).tir_codegen is None and self.target.kind != "llvmjit"

    def with_cache(self, cache: KernelCache | None) -> Plan:
        """This plan with a cache, which `LowerGroups` gets too if objects are made."""
        known = cache if self.makes_objects else None
        relax = (replace(p, cache=known) if isinstance(p, LowerGroups) else p for p in self.relax)
        return replace(self, relax=tuple(relax), cache=cache)


def plan_for(
    target: Target,
    externals: Sequence[External] = (),
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
) -> Plan:
    """The plan of a compile: pipelines of the caller, else of the target's kind, else the
    compiler's own; externals of the caller, then of the kind.

    Raises UnsupportedError for a target without code generator.
    """
    require_codegen(target)
    target = with_host(target)
    pre_codegen = None
    if tir_pipeline not in (None, "none"):
        pre_codegen = hook(target, "pre_codegen", object, target)
    given = tuple(externals)
    return Plan(
        target,
        cpu_target(target),
        all_externals(target, given),
        resolve("relax_pipeline", relax_pipeline, RELAX_PIPELINES, target, given),
        resolve("tir_pipeline", tir_pipeline, TIR_PIPELINES, target, given),
        resolve("pre_codegen", pre_codegen, {}),
        hook(target, "linker", Callable | str, target),
    )


def compile(
    mod: IRModule | Function | PrimFunc,
    target: Target | str | dict[str, object] | None = None,
    *,
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
    name: str | None = None,
    system_lib_prefix: str | None = None,
    externals: Sequence[External] = (),
    instruments: Sequence[Instrument] = (),
    progress: Progress | None = None,
) -> Executable:
    """Compile a module for a target (None: this machine's CPU). A single function is compiled as a
    module that contains only it.

    Pipelines: `"auto"` is the pipeline of the target's kind; the other names are `"default"`,
    `"minimal"` (`relax_pipeline` only) and `"none"`; None runs no pass and expects the module to be
    lowered already; a pass, or a list of passes, replaces the automatic pipeline. `externals` are
    code generators; an operator goes to the first one that supports it, those of the target's kind
    coming last. `instruments` watch every pass (`tensorkiln.passes`).
    `name` is the library's name, by default the module's: C entries and the header begin with it,
    so libraries in one program need different names. With `system_lib_prefix` (`"net_"`) several
    libraries can be linked into one program: export each to a name ending in .a or .o
    (docs/artifacts.md).
    Raises UserError, UnsupportedError (all issues at once), InternalError.
    """
    _require_arguments(externals, instruments, system_lib_prefix)
    mod = _asked_module(mod, name)
    plan = plan_for(asked_target(target), externals, relax_pipeline, tir_pipeline)
    _note_baseline(plan.cpu, progress)
    config, progress = read_config(), watched(progress)
    plan = plan.with_cache(kernel_cache())
    runner = make_runner(instruments, config, plan.passes)
    _require_well_formed(mod, runner.verified)
    _require_targets(mod, plan)
    mod = with_names_for_c(mod)
    progress.phase("optimise graph")
    mod = runner.run(mod, "relax", plan.relax)
    progress.phase("lower kernels")
    mod = runner.run(mod, "tir", plan.tir)
    mod = runner.run(mod, "pre_codegen", plan.pre_codegen)
    known = known_objects(mod, plan.cpu, plan.cache) if plan.makes_objects else {}
    mod = mod.with_programs(but=known)
    require_lowered(mod)
    emitted = emit_externals(mod, plan.externals)
    progress.phase("compile kernels", len(mod.kernels))
    code, texts = _compiled_kernels(mod, plan, known, config, progress)
    progress.phase("pack weights")
    return assemble(
        mod,
        plan.target,
        plan.cpu,
        plan.externals,
        code.add(emitted),
        texts,
        plan.linker,
        system_lib_prefix,
    )


def _require_arguments(externals: object, instruments: object, system_lib_prefix: object) -> None:
    """Raise UserError for arguments of `compile` that are not what they should be."""
    require(externals, Iterable, "externals")
    require(instruments, Iterable, "instruments")
    if system_lib_prefix is not None:
        require(system_lib_prefix, str, "system_lib_prefix")
        check_prefix(system_lib_prefix)


def _asked_module(mod: object, name: object) -> IRModule:
    """The module that the arguments of `compile` stand for: a function is a module of its own, and
    `name` replaces the module's. Raises UserError for anything else."""
    if isinstance(mod, Function | PrimFunc):
        own = replace(mod, public=True) if isinstance(mod, PrimFunc) else mod
        mod = IRModule((own,), mod.name)
    if not isinstance(mod, IRModule):
        raise UserError(
            f"compile takes an IRModule, not {type(mod).__name__}",
            code="wrong-type",
            hint="tk.frontend.from_onnx reads a model file",
        )
    if name is None:
        return mod
    require(name, str, "name")
    return replace(mod, name=check_prefix(name, "name"))


def _note_baseline(cpu: Target, progress: Progress | None) -> None:
    """Say that the target is the oldest processor of its architecture: to `progress`, else as a
    warning at the line that calls `compile`."""
    if not cpu.is_baseline:
        return
    note = f"{cpu.mcpu} is the baseline of {cpu.arch}: 'native' uses all this CPU has"
    if progress is None:
        warnings.warn(note, stacklevel=3)
    else:
        watched(progress).note(note)


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


def _require_well_formed(mod: IRModule, known: dict[int, object]) -> None:
    """Verify the caller's module before any pass runs: here a malformed module is a UserError,
    later it is the fault of a pass."""
    try:
        verify(mod, known, places=True)
    except InternalError as error:
        raise UserError(
            error.message, code=error.code, where=error.where, hint=error.hint
        ) from None


def _require_targets(mod: IRModule, plan: Plan) -> None:
    """Raise UnsupportedError for a function whose attribute `target` is neither the target of this
    compile nor its CPU (a module is compiled for one target), UserError for an invalid one."""
    for f in mod.functions:
        text = f.attrs.get("target")
        if text is None:
            continue
        try:
            own = with_host(Target(text))
        except UserError as error:
            where = f"{f.name}.attrs.target"
            raise UserError(error.message, code=error.code, where=where, hint=error.hint) from None
        if own not in (plan.target, plan.cpu):
            raise UnsupportedError(
                f"its target is {text}, and the module is compiled for {plan.target}",
                where=f.name,
                hint="compile it for its target, in a module of its own",
            )


def check(
    model: object, target: Target | str | dict[str, object] | None = None
) -> tuple[Issue, ...]:
    """Every reason why an ONNX model cannot be compiled for the target (None: this machine's CPU);
    empty when it can.

    Issues of the target come first: that no code generator exists for it. Those of the model do not
    depend on it, since every target has a CPU that computes what its other devices do not.
    """
    try:
        asked_target(target)
    except UnsupportedError as error:
        return (*error.issues, *frontend.check_onnx(model))
    return frontend.check_onnx(model)


def _compiled_kernels(
    mod: IRModule,
    plan: Plan,
    known: Mapping[str, Kernel],
    config: Config,
    progress: Progress,
) -> tuple[Emitted, list[Artifact]]:
    """Generate code for the kernels, by the hook `tir_codegen` of the target's kind or, without
    one, by LLVM. Beside it, the artifacts for people: the text of the module and, of LLVM's
    objects, LLVM text and assembly."""
    text = TextContent(partial(module_text, mod, plan.cache))
    texts = [Artifact("ir", "text", "module.py", text)]
    own = hooks_of(plan.target).tir_codegen
    if own is not None and mod.kernels:
        where = f"tir_codegen of kind {plan.target.kind!r}"
        names = [f.name for f in mod.prim_funcs]
        return checked(partial(own, plan.target, mod.prim_funcs), names, where), texts
    require_cpu_programs(mod, RUNTIME_CALLS)
    kernels = compile_kernels(
        mod.kernels,
        plan.cpu,
        jobs=config.compile_jobs or 2,
        cache=plan.cache,
        known=known,
        keys=mod.kernel_keys,
        emit="object" if plan.makes_objects else "bitcode",
        on_done=lambda name: progress.advance(item=name),
    )
    loader, suffix = ("native", "o") if plan.makes_objects else ("llvmjit", "bc")
    code = (Artifact("llvm", loader, f"{k.name}.{suffix}", k.object) for k in kernels)
    files = KernelFiles(mod.kernels, kernels, plan.cpu, plan.cache)
    texts += [Artifact("llvm", "text", name, text) for name, text in files.contents()]
    return Emitted(ArtifactSet(tuple(code))), texts
