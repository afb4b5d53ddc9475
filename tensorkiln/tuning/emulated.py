"""AArch64 kernels measured on a machine of another kind, by counting the instructions that qemu
executes.

A small program loads the library under qemu and calls the kernel once, or not at all; the
difference between the two counts belongs to the call. A qemu plugin counts instructions and, among
them, loads and stores, which it recognizes by their encoding. The plugin is compiled here from
`emulator_plugin.c`.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import numpy as np

from tensorkiln.base.cache import key_of, user_cache
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.files import atomic_write
from tensorkiln.base.tools import ToolFailure, run_tool
from tensorkiln.base.trust import private_temporary
from tensorkiln.link.toolchain import run_zig, zig_path
from tensorkiln.runtime.tensor import dtype_named
from tensorkiln.runtime.timing import CRASH, ERROR, HANG
from tensorkiln.runtime.trial import Trial, TrialMemory, WrongResult
from tensorkiln.target import Target, schedule_target

EMULATOR = "qemu-aarch64"
ROOT = Path("/usr/aarch64-linux-gnu")  # where Debian's package has the C library
GET = "apt-get install qemu-user libc6-arm64-cross"
_TRIPLE = "aarch64-linux-gnu.2.17"
_HERE = Path(__file__).parent
_VERSIONS = range(1, 7)  # of the interface of qemu's plugins
_WROTE = 9  # exit status of the program if the kernel wrote past the end of its result
_COUNTS = re.compile(r"kiln-counts (\d+) (\d+)")


class EmulationFailure(UserError):
    """The emulated program crashed, hung or failed; `state` says which (`runtime.timing`)."""

    code = "emulation-failed"

    def __init__(self, message: str, state: str):
        self.state = state
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class InstructionCount:
    """Measures an AArch64 kernel by the instructions that one call executes. Loads and stores count
    twice, because small processors spend most of their time waiting for them. It is a proxy for
    time that ignores caches. `processor` is qemu's `-cpu`; by default one with all instruction set
    extensions."""

    processor: str = "max"
    unit: str = "instructions"

    @property
    def machine(self) -> str:
        """The emulator and the processor that it emulates, for reports."""
        return f"{EMULATOR} -cpu {self.processor}"

    @staticmethod
    def missing() -> str:
        """The required tools that are not installed, as text; empty if all are."""
        if shutil.which(EMULATOR) is None:
            return f"no {EMULATOR} on the PATH"
        if not list(_root().glob("lib/ld-linux-*")):
            return f"no C library in {_root()}"
        return ""

    def require(self, target: Target) -> None:
        """Raise UserError (code `no-tool`) if qemu is not installed, UnsupportedError for a target
        other than AArch64."""
        arch = schedule_target(target).arch
        if arch != "aarch64":
            raise UnsupportedError(
                f"instructions are counted of aarch64, and the target is {arch}", where="measure"
            )
        if missing := self.missing():
            raise UserError(f"counting instructions: {missing}", code="no-tool", hint=GET)

    def __call__(self, library: Path, trial: Trial) -> float:
        """The instructions of a call, plus its loads and stores a second time."""
        return float(sum(self.count(library, trial)))

    def count(self, library: Path, trial: Trial) -> tuple[int, int]:
        """(instructions, loads and stores) of a call. Raises WrongResult if it computes something
        wrong, EmulationFailure if it crashes, hangs or fails."""
        memory = TrialMemory(trial)
        with private_temporary("kiln-emulated-") as name:
            folder = Path(name)
            program, plugin = _programs(folder)
            sizes = [a.nbytes for a in memory.inputs]
            out = trial.operands[-1]
            nbytes = math.prod(out.physical) * dtype_named(out.dtype).itemsize
            for i, array in enumerate(memory.inputs):
                array.tofile(folder / f"in{i}")
            words = [
                str(library),
                trial.symbol,
                *map(str, trial.sizes),
                "--",
                *map(str, [*sizes, nbytes]),
            ]
            counts = [
                self._run(folder, program, plugin, [str(calls), *words], trial.limit)
                for calls in (0, 1)
            ]
            result = np.fromfile(folder / "out", dtype_named(out.dtype)).reshape(out.physical)
        trial.check(result)
        (a, b), (c, d) = counts
        return c - a, d - b

    def _run(
        self, folder: Path, program: Path, plugin: Path, words: list[str], limit: float
    ) -> tuple[int, int]:
        command = _command(self.processor, plugin, [str(program), *words])
        try:
            output = run_tool(command, folder, seconds=30 + 20 * limit)
        except ToolFailure as error:
            raise _failure(error) from None
        counts = _COUNTS.search(output)
        if counts is None:
            raise UserError(
                f"{EMULATOR} loads no plugins: {output.strip()[:200]}", code="no-plugin"
            )
        return int(counts[1]), int(counts[2])


def _failure(error: ToolFailure) -> UserError:
    """The error for a failed run of the emulated program, from its exit status and output."""
    lines = [line for line in str(error).splitlines()[1:] if not _COUNTS.search(line)]
    words = lines[-1] if lines else f"exit status {error.status}"
    if error.status == _WROTE:
        return WrongResult(words)
    if error.status < 0:
        return EmulationFailure(f"emulated, it ended by {Signals(-error.status).name}", CRASH)
    late = "did not finish" in words
    return EmulationFailure(f"emulated: {words}", HANG if late else ERROR)


def _root() -> Path:
    return Path(os.environ.get("QEMU_LD_PREFIX", ROOT))


def _programs(folder: Path) -> tuple[Path, Path]:
    """The program that runs under qemu, and the plugin, compiled for the plugin interface of this
    version of qemu. UserError (code `no-plugin`) if this qemu cannot load plugins, as statically
    linked builds cannot."""
    program = _built(folder, "caller", "emulator_caller.c", "-target", _TRIPLE, "-ldl")
    output = ""
    for version in _VERSIONS:
        options = ("-shared", "-fPIC", f"-DVERSION={version}")
        plugin = _built(folder, f"plugin{version}.so", "emulator_plugin.c", *options)
        output = _said(folder, _command("max", plugin, [str(program)]), 60)
        if _COUNTS.search(output):
            return program, plugin
    raise UserError(f"{EMULATOR} loads no plugins: {output[-200:]}", code="no-plugin", hint=GET)


def _command(processor: str, plugin: Path, program: list[str]) -> list[str]:
    emulator = shutil.which(EMULATOR)
    if emulator is None:
        raise UserError(f"no {EMULATOR} on the PATH", code="no-tool", hint=GET)
    options = ["-L", str(_root()), "-cpu", processor, "-plugin", str(plugin), "-d", "plugin"]
    return [emulator, *options, *program]


def _said(folder: Path, command: list[str], seconds: float) -> str:
    """The output of a command, whether or not it fails."""
    try:
        return run_tool(command, folder, seconds=seconds)
    except ToolFailure as failure:
        return str(failure)


def _built(folder: Path, name: str, source: str, *options: str) -> Path:
    """A C file of this package compiled into the folder, or taken from the cache."""
    text = (_HERE / source).read_text(encoding="utf-8")
    zig = zig_path()
    key = key_of({"kind": "emulator", "text": text, "options": " ".join(options), "zig": str(zig)})
    store, path = user_cache(), folder / name
    content = store.get(key) if store is not None else None
    if content is None:
        atomic_write(folder / source, text)
        flags = ["-std=c99", "-D_GNU_SOURCE", "-O2", "-g0", "-fno-sanitize=undefined"]
        run_zig(["cc", *flags, source, *options, "-o", name], folder, store)
        if store is not None:
            store.put(key, path.read_bytes())
        return path
    atomic_write(path, content, 0o700)
    return path
