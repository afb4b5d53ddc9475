"""What is measured: a case, and what turns it into a callable. Tensorkiln is here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Array = np.ndarray
Runner = Callable[[], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """One model, the inputs that every contender gets, and the precision that all are asked for:
    with int8, the file is one that was quantised."""

    network: str
    path: Path
    inputs: Mapping[str, Array]
    folder: Path  # for files of contenders; lives as long as the runners
    precision: str = "float32"


@dataclass(frozen=True, slots=True)
class Contender:
    """`package` is what has to be importable; `prepare` compiles and returns one inference, in one
    of `precisions`; those that compile for a minute or more are `slow`."""

    name: str
    label: str
    package: str
    distribution: str
    prepare: Callable[[Case, int], Runner]
    slow: bool = False
    precisions: tuple[str, ...] = ("float32",)

    def missing(self, precision: str = "float32") -> str:
        """Empty when the package can be imported and computes so, else the sentence for the
        table."""
        if precision not in self.precisions:
            return f"has no {precision} on CPUs"
        try:
            spec = importlib.util.find_spec(self.package)
        except ModuleNotFoundError:  # of the package's parent
            spec = None
        return "" if spec else f"not installed (pip install {self.distribution})"

    def version(self) -> str:
        """Version of the installed distribution, empty when it has none."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return ""


def ours(case: Case, threads: int, cpu: str = "native") -> Runner:
    """Compile for a processor, export, load, run: the road a user takes. Threads come from
    KILN_NUM_THREADS."""
    import tensorkiln as tk

    module = tk.frontend.from_onnx(case.path)
    precision = "float32" if case.precision == "int8" else case.precision
    executable = tk.compile(module, target_of(cpu), precision=precision)
    path = executable.export_library(case.folder / f"{case.network}.so")
    library = tk.runtime.load_module(path)
    main = tk.runtime.Executor(library, tk.cpu())["main"]
    arrays = tuple(case.inputs.values())

    def run() -> tuple[Array, ...]:
        result = main(*arrays)
        outputs = result if isinstance(result, tuple | list) else (result,)
        return tuple(output.numpy() for output in outputs)

    return run


def target_of(cpu: str) -> str | dict[str, str]:
    """The target for a processor by its name: "native" is this one, "x86-64-v2" a level."""
    return cpu if cpu == "native" else {"kind": "llvm", "mcpu": cpu}


OURS = Contender(
    "ours",
    "Tensorkiln",
    "tensorkiln",
    "tensorkiln",
    ours,
    precisions=("float32", "bfloat16", "float16", "int8"),
)
