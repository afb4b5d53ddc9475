"""The data of a report on one compile, and how it is gathered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.device_functions import DeviceFunctionInfo
from tensorkiln.base.errors import TensorkilnError
from tensorkiln.codegen.c_like.c99 import emit_c
from tensorkiln.codegen.c_like.devices import device_text
from tensorkiln.codegen.kernel_names import kernel_prefix
from tensorkiln.codegen.llvm.texts import kernel_texts
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.executable import Executable
from tensorkiln.external import External
from tensorkiln.inspectors.cuda import metrics_of, metrics_table
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.ir.stmt import CallKernel, PrimFunc
from tensorkiln.ir.text.printer import print_function
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.measure.kernels import KernelTime, call_counts, flops, time_kernels
from tensorkiln.passes import Pipeline, Step, Timing, module_diff
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.report.graph import GraphPicture, graph_picture, kernels_of_spans
from tensorkiln.report.memory import MemoryPicture, memory_pictures
from tensorkiln.runtime.failures import WorkspaceMemoryError
from tensorkiln.schedule.choose import trace_of
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target, becomes_c, cpu_target, device_key, devices_of, target_in
from tensorkiln.target.kinds import KINDS


@dataclass(frozen=True, slots=True)
class PassRow:
    """One run of a pass. `lines` and `functions` count those of the module after it, `lines` only
    if it changed something; `diff` is the change of the module's text. `seconds` is NaN if times
    were not asked for."""

    number: int
    pipeline: str
    name: str
    seconds: float
    changed: bool
    lines: int
    functions: int
    diff: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One kernel: what it computes, what it costs, and its text at every stage.

    `nodes`: of the model. `calls`: per inference. `micros`: microseconds of one call, NaN if it was
    not timed. `flops`: operations of one call. `size`: bytes of its object file. `trace`: the steps
    of its schedule, empty if it was not a fused group. `scheduled` and `tir`: the tensor program
    when it was made, and as code is generated from it. `source` is text in `language`, where code
    is generated as such. `metrics`: a table, of kernels for CUDA. Texts are empty for kernels of
    other code generators.
    """

    name: str
    op_class: str
    nodes: tuple[str, ...]
    calls: int
    micros: float
    flops: float
    size: int
    trace: str
    scheduled: str
    tir: str
    llvm: str
    source: str
    assembly: str
    language: str = ""
    metrics: str = ""

    @property
    def total(self) -> float:
        """Microseconds of all its calls in one inference; NaN if it was not timed."""
        return self.calls * self.micros


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that the page shows, in order. `machine`: the target in a few words. `weights`:
    the size of the weights in bytes."""

    name: str
    machine: str
    target: str
    sizes: Mapping[str, int]
    graph: GraphPicture
    passes: tuple[PassRow, ...]
    kernels: tuple[KernelRow, ...]
    memory: tuple[MemoryPicture, ...]
    weights: int
    notes: tuple[str, ...] = field(default=())


def record(
    mod: IRModule,
    name: str,
    target: Target,
    sizes: Mapping[str, int],
    relax_pipeline: Pipeline = "auto",
    tir_pipeline: Pipeline = "auto",
    externals: Sequence[External] = (),
    seconds: float = 0.02,
) -> tuple[Story, Executable]:
    """Compile a module and gather the data of its report, under `name`. `seconds`: for timing each
    kernel; with 0, nothing is timed. Raises what `compile` raises."""
    timing = Timing()
    exe = compile_module(
        mod,
        target,
        relax_pipeline=relax_pipeline,
        tir_pipeline=tir_pipeline,
        externals=externals,
        instruments=[timing],
    )
    times, notes = _times(exe, sizes, seconds)
    weights = exe.memory().weights
    notes += [weights.note] if weights is not None and weights.note else []
    spans = kernels_of_spans(timing.steps, exe.module, [k.symbol for k in exe.kernels])
    kernels = _kernel_rows(exe, timing.steps, times, spans, sizes)
    story = Story(
        name,
        _machine(exe.target),
        str(exe.target),
        dict(sizes),
        graph_picture(mod, spans),
        tuple(_pass_row(s, timed=seconds > 0) for s in timing.steps),
        tuple(kernels),
        memory_pictures(exe.module, cpu_target(exe.target).memory, sizes),
        exe.weights_bytes,
        tuple(notes),
    )
    return story, exe


def _machine(target: Target) -> str:
    """`cuda sm_90, llvm znver5, x86_64-unknown-linux-gnu`: kinds with their processors, and the
    host's triple."""
    cpu = cpu_target(target)
    devices = [
        f"{t.kind} {t.arch}".rstrip()
        for t in devices_of(target).values()
        if KINDS[t.kind].is_accelerator
    ]
    return ", ".join([*devices, f"{cpu.kind} {cpu.mcpu}", cpu.mtriple])


def _times(
    exe: Executable, sizes: Mapping[str, int], seconds: float
) -> tuple[dict[str, KernelTime], list[str]]:
    """(times by kernel, notes for the page). If kernels cannot be timed there are no times, and a
    note says why."""
    if seconds <= 0:
        return {}, ["Kernels were not timed."]
    try:
        rows = time_kernels(exe, seconds, 1, sizes)
    except WorkspaceMemoryError:
        raise  # of the sizes that were asked for: another --dim is the remedy, not a page
    except (TensorkilnError, OSError) as error:
        return {}, [f"Kernels were not timed: {error}"]
    notes = ["Times of kernels: one thread, warm operands, the least of many calls."]
    untimed = [r.name for r in rows if math.isnan(r.micros)]
    if untimed:
        notes.append(f"Not timed, being hidden or of unknown size: {', '.join(untimed)}.")
    return {r.name: r for r in rows}, notes


def _pass_row(s: Step, timed: bool) -> PassRow:
    after = s.after or s.before
    lines = sum(print_function(f).count("\n") for f in after.functions) if s.changed else 0
    diff = module_diff(s.before, after) if s.changed else []
    seconds = s.seconds if timed else math.nan
    functions = len(after.functions)
    return PassRow(s.number, s.pipeline, s.name, seconds, s.changed, lines, functions, tuple(diff))


def _kernel_rows(
    exe: Executable,
    steps: list[Step],
    times: Mapping[str, KernelTime],
    spans: Mapping[str, str],
    sizes: Mapping[str, int],
) -> list[KernelRow]:
    """The rows of all kernels, by descending total time; those without a time last."""
    programs = [f for f in exe.module.prim_funcs if f"{f.name}.o" in _files(exe.artifacts)]
    sources = {f.name: _source(f, exe) for f in exe.module.prim_funcs}
    texts = _texts(programs, exe.target, "llvm"), _texts(programs, exe.target, "assembly")
    scheduled, traces = _first_forms(steps), _traces(steps, exe.target)
    counts = call_counts(exe)
    files = _files(exe.artifacts)
    rows = []
    for k in exe.kernels:
        f = exe.module.get(k.symbol)
        time = times.get(k.symbol)
        tir = print_function(f) if f is not None else ""
        as_c = f is not None and becomes_c(exe.target, f.attrs)
        prefix = kernel_prefix(exe.module) if as_c else ""
        was = k.symbol.removeprefix(prefix)  # its name before it got that of a C function
        first = scheduled.get(was)
        rows.append(
            KernelRow(
                k.symbol,
                k.kernel_class,
                _nodes(k.symbol, spans) or tuple(k.nodes),
                counts[k.symbol],
                time.micros if time else math.nan,
                flops(f.body, sizes) if isinstance(f, PrimFunc) else 0.0,
                files.get(f"{k.symbol}.o", 0),
                traces.get(was, ""),
                print_function(first) if first is not None else tir,
                tir,
                texts[0].get(k.symbol, ""),
                sources.get(k.symbol, ""),
                texts[1].get(k.symbol, ""),
                *_about_source(f, exe, sources.get(k.symbol, "")),
            )
        )
    return sorted(rows, key=lambda r: -r.total if r.total == r.total else 0.0)


def _texts(funcs: Sequence[PrimFunc], target: Target, emit: str) -> dict[str, str]:
    """LLVM IR or assembly of kernels, those of each device for its target."""
    texts_of: dict[str, str] = {}
    for key in dict.fromkeys(device_key(target, f.attrs) for f in funcs):
        group = [f for f in funcs if device_key(target, f.attrs) == key]
        texts = kernel_texts(group, cpu_target(target_in(target, group[0].attrs)), emit)
        texts_of |= {f.name: text for f, text in zip(group, texts, strict=True)}
    return texts_of


def _source(f: PrimFunc, exe: Executable) -> str:
    """The C of a kernel for target `c`; the OpenCL C, WGSL or PTX of what one launches on a device;
    else empty."""
    target = target_in(exe.target, f.attrs)
    if KINDS[target.kind].is_accelerator:
        functions = _launched(f, exe)
        text = _ptx if target.kind == "cuda" else device_text
        return text(functions, target) if functions else ""
    cpu = cpu_target(target)
    return emit_c([f], cpu) if cpu.kind == "c" else ""


# Language of the text that code of a kind is generated as.
_LANGUAGES = {"c": "C", "cuda": "PTX", "opencl": "OpenCL C", "webgpu": "WGSL"}


def _about_source(f: object, exe: Executable, source: str) -> tuple[str, str]:
    """The language of a kernel's source, and a table of metrics of what it launches on CUDA."""
    if not isinstance(f, PrimFunc) or not source:
        return "", ""
    target = target_in(exe.target, f.attrs)
    kind = target.kind if KINDS[target.kind].is_accelerator else cpu_target(target).kind
    if kind != "cuda":
        return _LANGUAGES[kind], ""
    infos = [
        DeviceFunctionInfo(g.name, (), launch.block, launch.shared_bytes)
        for g in _launched(f, exe)
        for launch in (launch_of(g),)
    ]
    return _LANGUAGES[kind], "".join(metrics_table(metrics_of(source), infos))


def _launched(f: PrimFunc, exe: Executable) -> list[PrimFunc]:
    """The device functions that a kernel launches."""
    names = {s.name for s in walk_stmt(f.body) if isinstance(s, CallKernel)}
    return [g for g in exe.module.prim_funcs if g.name in names]


def _ptx(functions: Sequence[PrimFunc], target: Target) -> str:
    irs = {f.name: emit_ptx_ir(f, target) for f in functions}
    return ptx_of(irs, [target.arch])[target.arch]


def _nodes(kernel: str, spans: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the model's nodes that a kernel computes, without unnamed operators."""
    return tuple(n for n, k in spans.items() if k == kernel and not n.startswith("%"))


def _files(artifacts: ArtifactSet) -> dict[str, int]:
    return {a.file_name: a.size for a in artifacts}


def _first_forms(steps: list[Step]) -> dict[str, PrimFunc]:
    """Each tensor program as it was in the first module that has it: scheduled, but not lowered."""
    first_forms: dict[str, PrimFunc] = {}
    for s in steps:
        for f in s.after.prim_funcs if s.after is not None else ():
            first_forms.setdefault(f.name, f)
    return first_forms


def _traces(steps: list[Step], target: Target) -> dict[str, str]:
    """Kernel -> the text of its schedule's trace, for kernels that were fused groups."""
    traces: dict[str, str] = {}
    for s in steps:
        for f in s.before.functions if s.after is not None else ():
            lowered = s.after.get(f.name) if s.after is not None else None
            if isinstance(f, Function) and f.is_primitive and isinstance(lowered, PrimFunc):
                device_target = target_in(target, f.attrs)
                traces[f.name] = trace_of(Group(f, f.name, device_target), device_target)
    return traces
