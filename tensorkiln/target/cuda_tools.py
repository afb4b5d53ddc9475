"""NVIDIA's assembler and disassembler: PTX -> code for one architecture, and what they say of it.

They come with the packages nvidia-cuda-nvcc and nvidia-cuda-nvdisasm
(`pip install 'tensorkiln[cuda]'`) and with CUDA's toolkit. Only what asks for them by name needs
them: a library's bytes do not depend on whether they are there.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.base.packages import install_line
from tensorkiln.base.tools import ToolFailure, run_tool
from tensorkiln.base.trust import private_temporary

_PLACES = ("cu*/bin", "cuda_nvcc/bin", "cuda_nvdisasm/bin")  # in package `nvidia`: CUDA 13, 12
_SECONDS = 300
_KERNEL = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared_bytes": re.compile(r"(\d+) bytes smem"),
}
# A remark that code is slower than asked for, such as C7517, a product that waits for each step.
_ADVICE = re.compile(r"^.*(?:\bC75\d\d\b|^ptxas[^:]*warning).*$", re.MULTILINE | re.IGNORECASE)
# Lines of nvdisasm: the name of a function, an instruction.
_FUNCTION = re.compile(r"\.text\.(\S+):")
_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


@dataclass(frozen=True, slots=True)
class KernelMetrics:
    """The resources that a kernel uses, as ptxas reports them: registers of a thread, barriers of a
    block, and bytes: of a thread's stack, of spilled registers, and of shared memory of fixed
    size."""

    registers: int = 0
    barriers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared_bytes: int = 0

    @property
    def spills(self) -> int:
        """Bytes of registers that are spilled and reloaded."""
        return self.spill_stores + self.spill_loads


@dataclass(frozen=True, slots=True)
class Assembled:
    """The machine code of a PTX module, the metrics of its kernels, and the advice of ptxas:
    warnings, and remarks that code is slower than it could be."""

    cubin: bytes
    kernels: dict[str, KernelMetrics]
    advice: tuple[str, ...]


@functools.cache
def ptxas_path() -> Path | None:
    """The assembler of the installed package, the newest if there are several, else that on PATH,
    else None."""
    return _path("ptxas")


@functools.cache
def nvdisasm_path() -> Path | None:
    """The disassembler, found in the same way."""
    return _path("nvdisasm")


def _path(name: str) -> Path | None:
    spec = importlib.util.find_spec("nvidia")
    folders = map(Path, spec.submodule_search_locations or ()) if spec else ()
    tools = [f for x in folders for p in _PLACES for f in sorted(x.glob(f"{p}/{name}"))]
    on_path = shutil.which(name)
    return tools[-1] if tools else Path(on_path) if on_path else None


@functools.cache
def tool_identity(path: Path) -> str:
    """The version that a tool reports."""
    return run_tool([str(path), "--version"], Path("/"))


def assembled(ptx: str, arch: str) -> Assembled:
    """The machine code of a PTX module for `arch`. Raises UserError if there is no assembler (code
    `no-tool`) or it does not support the architecture (`tool-failed`), and InternalError
    (`bad-ptx`) if it rejects the PTX."""
    path = ptxas_path()
    if path is None:
        raise UserError(
            "ptxas is not installed",
            code="no-tool",
            hint=f"{install_line('nvidia')}; without it the driver compiles the PTX",
        )
    with private_temporary("kiln-ptxas-") as name:
        folder = Path(name)
        (folder / "kernels.ptx").write_text(ptx)
        command = [str(path), "-v", f"-arch={arch}", "kernels.ptx", "-o", "kernels.cubin"]
        try:
            log = run_tool(command, folder, seconds=_SECONDS)
        except ToolFailure as failure:
            text = str(failure)
            if f"Value '{arch}' is not defined" in text:
                message = f"{path} has no code for {arch}: {tool_identity(path).splitlines()[-1]}"
                hint = "leave cubin out: the driver compiles the PTX"
                raise UserError(message, code="tool-failed", where="target", hint=hint) from None
            raise InternalError(f"ptxas refuses PTX: {text}", code="bad-ptx") from failure
        cubin = (folder / "kernels.cubin").read_bytes()
    return Assembled(cubin, _metrics(log), tuple(x.strip() for x in _ADVICE.findall(log)))


def _metrics(log: str) -> dict[str, KernelMetrics]:
    """The metrics of each kernel in the output of `ptxas -v`."""
    parts = _KERNEL.split(log)
    metrics = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        frame = _FRAME.search(text)
        stack, stores, loads = map(int, frame.groups()) if frame else (0, 0, 0)
        resources = {k: int(m[1]) if (m := form.search(text)) else 0 for k, form in _USED.items()}
        metrics[name] = KernelMetrics(
            resources["registers"],
            resources["barriers"],
            stack,
            stores,
            loads,
            resources["shared_bytes"],
        )
    return metrics


def instruction_counts(cubin: bytes) -> dict[str, Counter[str]]:
    """The number of instructions of each name in each kernel of a cubin; modifiers are dropped,
    `FFMA.FTZ` counts as `FFMA`. Raises UserError (code `no-tool`) if there is no disassembler,
    InternalError (code `bad-cubin`) if it rejects the code."""
    path = nvdisasm_path()
    if path is None:
        hint = install_line("nvidia")
        raise UserError("nvdisasm is not installed", code="no-tool", hint=hint)
    with private_temporary("kiln-nvdisasm-") as name:
        folder = Path(name)
        (folder / "kernels.cubin").write_bytes(cubin)
        try:
            text = run_tool([str(path), "-c", "kernels.cubin"], folder, seconds=_SECONDS)
        except ToolFailure as failure:
            raise InternalError(f"nvdisasm refuses code: {failure}", code="bad-cubin") from failure
    counts: dict[str, Counter[str]] = {}
    kernel_counts: Counter[str] = Counter()
    for line in text.splitlines():
        if function := _FUNCTION.match(line):
            kernel_counts = counts[function[1]] = Counter()
        elif instruction := _INSTRUCTION.match(line):
            kernel_counts[instruction[1]] += 1
    return counts
