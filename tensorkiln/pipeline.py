"""The compiler on one page: from a module to an Executable, pass by pass.

To change the pipeline, copy `relax_passes` or `tir_passes`, edit the list, and hand it to
`compile`. A pass is any function from IRModule to IRModule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tensorkiln import frontend
from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.dependency import merge_dependencies
from tensorkiln.artifact.metadata import KernelInfo, added_json, artifact_infos
from tensorkiln.base.cache import Cache
from tensorkiln.base.config import Config, read_config
from tensorkiln.base.errors import InternalError, Issue, UnsupportedError, UserError
from tensorkiln.base.progress import Progress
from tensorkiln.base.version import VERSION
from tensorkiln.codegen.call_plan import WeightArena, graph_host_function, tensor_host_function
from tensorkiln.codegen.host_c import entry_c, header_h
from tensorkiln.codegen.host_function import HostFunction, c_name
from tensorkiln.codegen.llvm.compile import compile_kernels
from tensorkiln.codegen.lowered import require_lowered
from tensorkiln.executable import Executable, weights_content
from tensorkiln.external import (
    External,
    checked_artifacts,
    emit_externals,
    partition_externals,
)
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, GlobalRef
from tensorkiln.ir.text.printer import print_module
from tensorkiln.ir.verify import verify
from tensorkiln.link.shared import Fcompile
from tensorkiln.schedule.lower import lower_groups
from tensorkiln.target import Target, cpu_target, hooks_of, require_codegen, with_host
from tensorkiln.transform.relax.assign_layouts import assign_layouts
from tensorkiln.transform.relax.canonicalize import canonicalize
from tensorkiln.transform.relax.decompose_attention import decompose_attention
from tensorkiln.transform.relax.eliminate_common_subexpressions import (
    eliminate_common_subexpressions,
)
from tensorkiln.transform.relax.eliminate_dead_code import eliminate_dead_code
from tensorkiln.transform.relax.fold_constants import fold_constants
from tensorkiln.transform.relax.fold_scale import fold_scale
from tensorkiln.transform.relax.fuse_ops import fuse_ops
from tensorkiln.transform.relax.infer_types import infer_types
from tensorkiln.transform.relax.match_activations import match_activations
from tensorkiln.transform.relax.match_attention import match_attention
from tensorkiln.transform.relax.match_layer_norm import match_layer_norm
from tensorkiln.transform.relax.match_linear import match_linear
from tensorkiln.transform.relax.plan_memory import plan_memory
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.unroll_loops import unroll_loops
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops

Pass = Callable[[IRModule], IRModule]
Pipeline = str | Pass | Sequence[Pass] | None


def relax_passes(target: Target, externals: Sequence[External] = ()) -> list[Pass]:
    """Graphs of operators -> one kernel call per fused group, memory planned.

    What neither `externals` nor the code generators of the target's kind take is for its CPU.
    """
    cpu, externals = cpu_target(target), all_externals(target, externals)
    return [
        infer_types,
        fold_constants,
        canonicalize,
        match_activations,
        match_layer_norm,
        match_linear,  # before fold_scale, which folds into linear's weights
        match_attention,
        fold_scale,
        canonicalize,  # folding leaves neutral operations behind
        fold_constants,
        eliminate_common_subexpressions,
        eliminate_dead_code,  # before layouts: dead readers would ask for conversions
        # Externals see canonical operators on row-major tensors.
        partial(partition_externals, target=target, externals=externals),
        partial(decompose_attention, target=cpu),
        partial(assign_layouts, target=cpu),
        fuse_ops,
        partial(lower_groups, target=cpu),
        plan_memory,
    ]


def tir_passes(target: Target) -> list[Pass]:
    """Blocks and scheduled loops -> explicit vectors, straight-line bodies: ready for codegen."""
    return [
        lower_blocks,
        vectorize_loops,
        unroll_loops,  # after vectorizing, which keeps the repeated bodies small
    ]


def all_externals(target: Target, externals: Sequence[External] = ()) -> tuple[External, ...]:
    """The code generators for operators: those given, then those of the target's kind."""
    own = hooks_of(target).relax_codegen
    return (*externals, *(own(target) if own else ()))


@dataclass(frozen=True, slots=True)
class Plan:
    """Who does what in one compile."""

    target: Target  # with its host
    cpu: Target  # what is compiled here is compiled for
    externals: tuple[External, ...]
    relax: Pipeline  # what "auto" means
    tir: Pipeline
    last: Pipeline
    linker: Fcompile | str | None


def plan_for(target: Target, externals: Sequence[External] = ()) -> Plan:
    """What the target's kind does itself, and the compiler's own for the rest."""
    require_codegen(target)
    target = with_host(target)
    hooks = hooks_of(target)
    return Plan(
        target,
        cpu_target(target),
        all_externals(target, externals),
        hooks.relax_pipeline(target) if hooks.relax_pipeline else relax_passes(target, externals),
        hooks.tir_pipeline(target) if hooks.tir_pipeline else tir_passes(target),
        hooks.pre_codegen(target) if hooks.pre_codegen else None,
        hooks.linker(target) if hooks.linker else None,
    )


def compile(
    mod: IRModule,
    target: Target | str | dict[str, object] | None = None,
    *,
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
    system_lib_prefix: str | None = None,
    externals: Sequence[External] = (),
    progress: Progress | None = None,
) -> Executable:
    """Compile a module for a target (None: this machine's CPU).

    Pipelines: `"auto"` is that of the target's kind; None runs nothing and expects the module to be
    lowered already; a pass, or a list of passes, replaces the automatic one. `externals` are code
    generators that get what they support, the first one first, before those of the kind.
    Raises UserError, UnsupportedError (all issues at once), InternalError.
    """
    if not isinstance(mod, IRModule):
        raise UserError(
            f"compile takes an IRModule, not {type(mod).__name__}",
            code="wrong-type",
            hint="tk.frontend.from_onnx reads a model file",
        )
    if system_lib_prefix is not None:
        raise UnsupportedError("system_lib_prefix: static system libraries are not built yet")
    plan = plan_for(Target("native") if target is None else Target(target), externals)
    cpu = plan.cpu
    if cpu.is_baseline:
        note = f"{cpu.mcpu} is the baseline of {cpu.arch}: 'native' uses all this CPU has"
        if progress is None:
            warnings.warn(note, stacklevel=2)
        else:
            progress.note(note)
    config, progress = read_config(), progress or Progress()
    progress.phase("optimise graph")
    mod = _run("relax_pipeline", relax_pipeline, plan.relax, mod, config)
    progress.phase("lower kernels")
    mod = _run("tir_pipeline", tir_pipeline, plan.tir, mod, config)
    if tir_pipeline is not None:
        mod = _run("pre_codegen", plan.last, None, mod, config)
    require_lowered(mod)
    emitted = emit_externals(mod, plan.externals)
    progress.phase("compile kernels", len(mod.prim_funcs))
    kernels = _kernels(mod, plan, config, progress)
    progress.phase("pack weights")
    return _assemble(mod, plan, (*kernels, *emitted))


def check(model: object, target: Target | str | None = None) -> tuple[Issue, ...]:
    """Everything in an ONNX model that cannot be compiled, at once; empty when all can."""
    return frontend.check_onnx(model)


# -- running passes ----------------------------------------------------------------------


def pass_name(p: Pass) -> str:
    """The name of a pass: its function's."""
    return pass_name(p.func) if isinstance(p, partial) else getattr(p, "__name__", type(p).__name__)


def _run(name: str, pipeline: Pipeline, auto: Pipeline, mod: IRModule, config: Config) -> IRModule:
    """Run one pipeline, verifying (and, when asked, dumping) after every pass that changed."""
    passes: Sequence[Pass]
    if pipeline == "auto":
        pipeline = auto
    if pipeline is None:
        passes = ()
    elif isinstance(pipeline, str):
        raise UserError(
            f"{name}={pipeline!r}: expected 'auto', None, a pass or a list of passes",
            code="unknown-pipeline",
            hint="did you mean 'auto'?",
        )
    else:
        passes = pipeline if isinstance(pipeline, list | tuple) else (pipeline,)
        _check_passes(name, passes)
    for i, p in enumerate(passes):
        new = p(mod)
        if new is mod:
            continue
        if not isinstance(new, IRModule):
            raise UserError(
                f"{name}: {pass_name(p)} returned {type(new).__name__}, expected an IRModule",
                code="bad-pass",
            )
        mod = new
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
            file = config.dump / f"{name.split('_')[0]}-{i:02d}-{pass_name(p)}.py"
            file.write_text(print_module(mod))
        try:
            verify(mod)
        except InternalError as e:
            raise InternalError(f"after {pass_name(p)}: {e.message}", code=e.code) from e
    return mod


def _check_passes(name: str, passes: Sequence[object]) -> None:
    for i, p in enumerate(passes):
        if not callable(p):
            raise UserError(
                f"{name}: pass {i} is {p!r}, expected a function from IRModule to IRModule",
                code="bad-pass",
            )


# -- from kernels to artifacts -----------------------------------------------------------


def _kernels(mod: IRModule, plan: Plan, config: Config, progress: Progress) -> list[Artifact]:
    """Code for the PrimFuncs: what the kind's own code generator makes of them, or objects."""
    own = hooks_of(plan.target).tir_codegen
    if own is not None and mod.prim_funcs:
        where = f"tir_codegen of kind {plan.target.kind!r}"
        return checked_artifacts(own(plan.target, mod.prim_funcs), where)
    kernels = compile_kernels(
        mod.prim_funcs,
        plan.cpu,
        jobs=config.compile_jobs or 2,
        cache=Cache(config.cache_dir, config.cache_limit) if config.cache else None,
        on_done=lambda name: progress.advance(item=name),
    )
    return [Artifact("llvm", "native", f"{k.name}.o", k.object) for k in kernels]


def _assemble(mod: IRModule, plan: Plan, code: Sequence[Artifact]) -> Executable:
    """Code of the kernels, entry file, header and weights become one Executable."""
    arena = WeightArena()
    functions: list[HostFunction] = [graph_host_function(f, mod, arena) for f in mod.graphs]
    functions += [tensor_host_function(f, f.name) for f in mod.prim_funcs if f.public]
    if not functions:
        raise UserError("the module has no public function", code="nothing-to-compile")
    name = c_name(mod.name)
    artifacts = list(code)
    if arena.size:
        artifacts.append(Artifact("host", "native", "weights.bin", weights_content(arena)))
    infos = _kernel_infos(mod)
    used = [e for e in plan.externals if any(f.external == e.name for f in mod.externals)]
    needs = merge_dependencies((f"external {e.name!r}", d) for e in used for d in e.dependencies)
    with ThreadPoolExecutor(2) as pool:  # both hash every weight, which runs outside Python's lock
        text = pool.submit(print_module, mod)
        metadata = added_json(
            VERSION, plan.target.to_json(), infos, artifact_infos(artifacts), needs
        )
    entry = entry_c(
        functions,
        library_name=name,
        weights_size=arena.size,
        metadata_json=metadata,
        cpu_features=plan.cpu.required_features,
        prefix=name,
    )
    header = header_h(functions, library_name=name, prefix=name)
    artifacts += [
        Artifact("host", "native", "entry.c", entry.encode()),
        Artifact("host", "header", f"{name}.h", header.encode()),
        Artifact("ir", "text", "module.py", text.result().encode()),
    ]
    libraries = tuple(dict.fromkeys(x for e in used for x in e.libraries))
    made = ArtifactSet(tuple(artifacts))
    return Executable(made, plan.target, tuple(functions), name, mod, infos, libraries, plan.linker)


def _kernel_infos(mod: IRModule) -> tuple[KernelInfo, ...]:
    """What each kernel computes: the model's nodes, and the class of its schedule."""
    spans: dict[str, list[str]] = {}
    for f in mod.graphs:
        for b in f.bindings:
            if isinstance(b.value, Call) and isinstance(b.value.callee, GlobalRef):
                spans.setdefault(b.value.callee.name, []).append(b.value.span)
    classes = {k.name: k.op_class for k in mod.prim_funcs}
    classes |= {f.name: f"external:{f.external}" for f in mod.externals}
    return tuple(
        KernelInfo(name, tuple(filter(None, spans.get(name, ()))), kernel_class)
        for name, kernel_class in classes.items()
    )
