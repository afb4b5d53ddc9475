"""Models as libraries that run on CUDA: on the machine's GPU, or by the emulator behind the
stand-in for its driver."""

from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.module import IRModule
from tensorkiln.runtime import Executor, Module, load_module
from tests.cuda.emulator.build import build_all
from tests.cuda.lookalike import require_cuda
from tests.models.library import Run


def let_run(exe: tk.Executable, *, watch: bool = True) -> None:
    """Where there is no GPU: have an emulator of an executable's kernels. Without `watch` it does
    not look for races in buffers, and takes a tenth of the time."""
    if not require_cuda():
        for path in build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"])):
            ctypes.CDLL(str(path)).emulator_watch(int(watch))


def runner(module: Module) -> Run:
    """`main` of a module on device 0, from NumPy arrays to NumPy arrays."""
    main = Executor(module, tk.cuda(0))["main"]

    def run(*arrays: np.ndarray) -> list[np.ndarray]:
        result = main(*arrays)
        return [t.numpy() for t in (result if isinstance(result, tuple | list) else (result,))]

    return run


def exported(mod: IRModule, target: Any, path: Path) -> tuple[tk.Executable, Module]:
    """Compiled without races being looked for, exported, and loaded again."""
    exe = tk.compile(mod, target)
    let_run(exe, watch=False)
    return exe, load_module(exe.export_library(path))


CHECK = "bounds_check"  # in names of kernels that check indices


def devices(exe: tk.Executable) -> set[str]:
    """The devices of all kernels but those that check indices, which are on the host."""
    return {p.device for p in exe.placement() if CHECK not in p.kernel}


def host_kernels(exe: tk.Executable) -> list[str]:
    """What a run computes on the host, by the artifacts alone: code for processors beside the entry
    file, and kernels that no launch of a device function stands for. Checks of indices are there on
    purpose: a call that they refuse launches nothing."""
    native_files = [
        a.name for a in exe.artifacts if a.codegen_id in ("llvm", "c") and a.loader == "native"
    ]
    names = [*native_files, *(k.symbol for k in exe.kernels if k.target_key is None)]
    return [name for name in names if CHECK not in name]


def check_modules(exe: tk.Executable) -> None:
    """For each device: the functions that its table names are the entries of every PTX module, and
    all of them are launched by the entry file."""
    launched = set(re.findall(r"kiln_launch\(&device_\d+_(\w+), ", exe.artifacts["entry.c"].text()))
    tables = [a for a in exe.artifacts if a.loader == "cuda" and a.file_name.endswith(".fmap.json")]
    assert tables
    for table in tables:
        functions = json.loads(table.text())["functions"]
        modules = [
            a
            for a in exe.artifacts
            if a.target_key == table.target_key and a.file_name.endswith(".ptx")
        ]
        assert modules
        for ptx in modules:
            entries = re.findall(r"^\.visible \.entry (\w+)\(", ptx.text(), re.M)
            assert sorted(entries) == sorted(functions), ptx.name
        assert set(functions) <= launched, set(functions) - launched
