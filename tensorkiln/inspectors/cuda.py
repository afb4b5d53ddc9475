"""Metrics of kernels for CUDA: what launches say of them, and what NVIDIA's assembler does where it
is installed. It runs on the PTX of the artifacts, when its figures are asked for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.device_functions import DeviceFunctionInfo, device_functions_from
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.inspectors.table import table_lines
from tensorkiln.target.cuda_tools import KernelMetrics, assembled, instruction_counts
from tensorkiln.target.occupancy import occupancy

_TARGET = re.compile(r"^\.target\s+(sm_\w+)", re.MULTILINE)
# Columns of instructions: products on tensor cores and alone, loads and stores by memory.
_INSTRUCTIONS = ("HGMMA", "HMMA", "IMMA", "FFMA", "LDS", "STS", "LDG", "STG")
_HEAD = ("function", "threads", "shared", "registers", "spilled", "blocks", "warps", "for want of")


@dataclass(frozen=True, slots=True)
class ModuleMetrics:
    """Of a PTX module: its architecture, metrics and instructions by kernel, and notes: advice of
    the assembler, or why there are no metrics or instructions."""

    arch: str
    kernels: Mapping[str, KernelMetrics]
    instructions: Mapping[str, Counter[str]]
    notes: tuple[str, ...] = ()


def show_metrics(artifacts: Sequence[Artifact]) -> Iterator[str]:
    """For each PTX module a table of its kernels: threads and bytes of shared memory of a block,
    registers and spilled bytes of a thread, how many blocks a multiprocessor holds at once, the
    share of its warps that these are, and what there is too little of for more; instructions.
    Raises UserError (code `no-kernels`) where no table lists device functions."""
    tables = [a for a in artifacts if a.file_name.endswith(".json")]
    listed = [(a, device_functions_from(a.view, a.name)) for a in tables]
    functions_of_key = {a.target_key: functions for a, functions in listed if functions is not None}
    modules = [
        a for a in artifacts if a.file_name.endswith(".ptx") and a.target_key in functions_of_key
    ]
    if not modules:
        raise UserError(
            "no PTX here has a table of its device functions",
            code="no-kernels",
            hint="kernels.<arch>.ptx and kernels.fmap.json of one compile",
        )
    for k, module in enumerate(modules):
        metrics = metrics_of(module.text())
        yield f"{'' if k == 0 else chr(10)}# {module.name}, {metrics.arch or 'no architecture'}\n"
        yield from metrics_table(metrics, functions_of_key[module.target_key])


def metrics_table(metrics: ModuleMetrics, functions: Sequence[DeviceFunctionInfo]) -> Iterator[str]:
    """Lines for the functions of a module: figures that are not known are `-`, and notes say
    why."""
    names = [i for i in _INSTRUCTIONS if any(c[i] for c in metrics.instructions.values())]
    rows = []
    for f in functions:
        k = metrics.kernels.get(f.name)
        cells = [f.name, str(f.threads), str(f.shared_bytes)]
        cells += [str(k.registers), str(k.spills)] if k else ["-", "-"]
        counts = metrics.instructions.get(f.name, Counter())
        rows.append(
            [*cells, *_occupancy(metrics.arch, f, k), *(str(counts[i] or "-") for i in names)]
        )
    yield from table_lines((*_HEAD, *names), rows, "lrrrrrrl" + "r" * len(names))
    yield from (f"{note}\n" for note in metrics.notes)


def _occupancy(arch: str, f: DeviceFunctionInfo, k: KernelMetrics | None) -> list[str]:
    if k is None:
        return ["-", "-", "-"]
    try:
        shared = f.shared_bytes + k.shared_bytes
        occupancy_of_sm = occupancy(arch, f.threads, k.registers, shared, k.barriers)
    except UserError:
        return ["-", "-", "-"]
    return [str(occupancy_of_sm.blocks), f"{occupancy_of_sm.share:.0%}", occupancy_of_sm.limit]


def metrics_of(ptx: str) -> ModuleMetrics:
    """What the tools of this machine say of a PTX module; without them, that they are not here."""
    named = _TARGET.search(ptx)
    arch = named[1] if named else ""
    try:
        code = assembled(ptx, arch)
    except TensorkilnError as error:
        return ModuleMetrics(arch, {}, {}, (f"no registers and occupancy: {error}",))
    notes, counts = list(code.advice), dict[str, Counter[str]]()
    try:
        counts = instruction_counts(code.cubin)
    except TensorkilnError as error:
        notes.append(f"no counts of instructions: {error}")
    return ModuleMetrics(arch, code.kernels, counts, tuple(notes))
