"""Microcontrollers that QEMU emulates, and programs for them without an operating system.

`board.build(folder, sources)` links C files with what lies in `board/`: start-up code, files of the
host by semihosting, a heap that ends the run when it is asked, and a main function that runs a
model (`board/model.h`). `image.run(inputs)` gives its results, and for each run the instructions,
the bytes of stack and the bytes of the model's memory that it took.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.firmware.linker_map import LinkerMap, read_linker_map

Array = np.ndarray
SUPPORT = Path(__file__).parent / "board"
# What "builds unedited" means for generated C.
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror")
# What a program for a microcontroller is built with.
OPTIMISED = ("-O2", "-ffunction-sections", "-fdata-sections")
_REGIONS = ("start", "flash", "ram")
_MEMORY = {  # by machine: where it starts, flash, RAM; origins and bytes
    "mps2-an385": ((0x0, 0x400), (0x400, 0x3FFC00), (0x21000000, 8 << 20)),
    "mps2-an386": ((0x0, 0x400), (0x400, 0x3FFC00), (0x21000000, 8 << 20)),
    "mps2-an500": ((0x0, 0x400), (0x400, 0x3FFC00), (0x60000000, 8 << 20)),
    # Addresses of the secure state.
    "mps3-an547": ((0x10000000, 0x400), (0x11000000, 2 << 20), (0x31000000, 4 << 20)),
    "virt": ((0x80000000, 0x400), (0x80000400, 0x3FFC00), (0x80400000, 8 << 20)),
}


@dataclass(frozen=True, slots=True)
class Board:
    """A processor, the machine of QEMU that has it, and how C is compiled for it.

    `flags` choose the instructions; `support` are for files of `board/` only;
    `target` is what Tensorkiln compiles for.
    """

    name: str
    emulator: str
    machine: tuple[str, ...]
    compiler: str
    flags: tuple[str, ...]
    support: tuple[str, ...]
    target: dict[str, object]
    get: str

    @property
    def missing(self) -> str:
        """What is not installed and how to get it; empty where all is."""
        lacks = [tool for tool in (self.compiler, self.emulator) if shutil.which(tool) is None]
        if not lacks and not self._c_library():
            lacks = [f"C library of {self.compiler}"]
        return f"no {', no '.join(lacks)}: {self.get}" if lacks else ""

    def require(self) -> None:
        """Skip the test where a tool is missing; fail where REQUIRE_FIRMWARE is set."""
        if self.missing:
            (pytest.fail if os.environ.get("REQUIRE_FIRMWARE") else pytest.skip)(self.missing)

    def _c_library(self) -> bool:
        """Whether the compiler has one for these flags."""
        headers = ["-E", "-include", "string.h", "-xc", "/dev/null"]
        return _run([self.compiler, *self.flags, *headers]).returncode == 0

    def compile(self, source: Path, output: Path, *flags: str | Path) -> Path:
        """One C file to an object; CompileError has what the compiler says."""
        done = _run([self.compiler, *self.flags, *OPTIMISED, *flags, "-c", source, "-o", output])
        if done.returncode:
            raise CompileError(f"{source.name} for {self.name}: {done.stderr}")
        return output

    def build(
        self,
        folder: Path,
        sources: Sequence[Path],
        *,
        include: Sequence[Path] = (),
        flags: Sequence[str] = STRICT,
        libraries: Sequence[str] = ("-lm",),
    ) -> Image:
        """A program of `sources`, which define the model of `board/model.h`."""
        folder.mkdir(parents=True, exist_ok=True)
        includes = [f"-I{path}" for path in (SUPPORT, *include)]
        objects = [
            self.compile(source, folder / f"{i}-{source.stem}.o", *includes, *flags)
            for i, source in enumerate(sources)
        ]
        elf, linker_map = folder / "image.elf", folder / "image.map"
        places = [
            f"-Wl,--defsym=board_{kind}_{what}={number:#x}"
            for kind, numbers in zip(_REGIONS, _MEMORY[self.machine[1]], strict=True)
            for what, number in zip(("origin", "bytes"), numbers, strict=True)
        ]
        command = [self.compiler, *self.flags, "-nostartfiles", f"-T{SUPPORT / 'image.ld'}"]
        command += ["-Wl,--gc-sections", "-Wl,--fatal-warnings", f"-Wl,-Map={linker_map}", *places]
        command += [
            "-Wl,--no-warn-rwx-segments",
            *map(str, (*_support(self.name), *objects)),
            *libraries,
        ]
        done = _run([*command, "-o", elf])
        if done.returncode:
            raise CompileError(f"linking for {self.name}: {done.stderr}")
        return Image(self, elf, read_linker_map(linker_map))


class CompileError(Exception):
    """A C file for a board was refused; the message is the compiler's."""


class RunError(Exception):
    """A program ended with an error; the message is the sentence that it gave."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a model: its result, and what it took."""

    output: bytes
    instructions: int
    stack_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Image:
    """A linked program, and what its linker map says."""

    board: Board
    elf: Path
    map: LinkerMap

    def run(self, inputs: Sequence[Array], timeout: float = 300) -> list[Run]:
        """Run the model once for each input; RunError where the program says what went wrong."""
        folder = self.elf.parent
        (folder / "input.bin").write_bytes(b"".join(x.tobytes() for x in inputs))
        command = [self.board.emulator, *self.board.machine, "-nographic", "-monitor", "none"]
        command += ["-serial", "none", "-semihosting-config", "enable=on,target=native"]
        command += ["-icount", "shift=0", "-kernel", str(self.elf)]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout, check=False
        )
        if done.returncode:
            raise RunError(f"{self.board.name}: {done.stderr.strip()} ({done.returncode})")
        lines = (folder / "figures.txt").read_text().splitlines()
        data = (folder / "output.bin").read_bytes()
        assert len(lines) == len(inputs) and len(data) % len(lines) == 0
        size = len(data) // len(lines)
        return [
            Run(data[i * size : (i + 1) * size], *map(int, line.split()))
            for i, line in enumerate(lines)
        ]


def _run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)


def _arm(name: str, machine: str, triple: str, *flags: str) -> Board:
    counter, quarters = 0x40028018, 160  # 25 MHz
    if machine == "mps3-an547":
        counter, quarters = 0x59302018, 200  # 20 MHz
    return Board(
        name,
        "qemu-system-arm",
        ("-M", machine),
        "arm-none-eabi-gcc",
        ("-mthumb", *flags),
        (f"-DBOARD_COUNTER={counter:#x}", f"-DBOARD_QUARTERS={quarters}u"),
        {"kind": "c", "mtriple": f"{triple}", "mcpu": name},
        "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm",
    )


def _riscv(name: str, bits: int, march: str, mabi: str, **target: object) -> Board:
    return Board(
        name,
        f"qemu-system-riscv{bits}",
        ("-M", "virt", "-bios", "none", "-m", "16M"),
        "riscv64-unknown-elf-gcc",
        ("--specs=picolibc.specs", f"-march={march}", f"-mabi={mabi}", "-mcmodel=medany"),
        (),
        {"kind": "c", "mtriple": f"riscv{bits}-unknown-none-elf", **target},
        "apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc",
    )


_HARD = "-mfloat-abi=hard"
BOARDS = {
    board.name: board
    for board in (
        # An M3 executes what an M0+ does; where it would do more, at unaligned addresses, it traps.
        _arm("cortex-m0plus", "mps2-an385", "thumbv6m-none-eabi", "-mcpu=cortex-m0plus"),
        _arm(
            "cortex-m4",
            "mps2-an386",
            "thumbv7em-none-eabihf",
            "-mcpu=cortex-m4",
            _HARD,
            "-mfpu=fpv4-sp-d16",
        ),
        _arm(
            "cortex-m7",
            "mps2-an500",
            "thumbv7em-none-eabihf",
            "-mcpu=cortex-m7",
            _HARD,
            "-mfpu=fpv5-d16",
        ),
        _arm("cortex-m55", "mps3-an547", "thumbv8.1m.main-none-eabihf", "-mcpu=cortex-m55", _HARD),
        _riscv("rv32imac", 32, "rv32imac", "ilp32", mcpu="sifive-e31"),
        _riscv("rv64gc", 64, "rv64gc", "lp64d", mcpu="sifive-u54"),
    )
}


@cache
def _support(name: str) -> tuple[Path, ...]:
    """The objects of `board/` for a board; each process compiles them once."""
    board, folder = BOARDS[name], Path(tempfile.mkdtemp(prefix="kiln-board-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    family = "start_arm" if "arm" in board.compiler else "start_riscv"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fno-builtin-malloc", *board.support]
    return tuple(
        board.compile(source, folder / f"board-{source.stem}{source.suffix}.o", *flags)
        for source in sorted(SUPPORT.glob("*.[cS]"))
        if source.stem == family or not source.stem.startswith("start_")
    )


def board_rows(*fast: str) -> list[Any]:
    """Boards as parameters of a test: those named run in `make test`, all in `make firmware`."""
    assert set(fast) <= set(BOARDS)
    return [
        pytest.param(board, id=name, marks=() if name in fast else pytest.mark.firmware)
        for name, board in BOARDS.items()
    ]
