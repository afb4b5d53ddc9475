"""`python -m bench.plain_c`: kernels as C beside those of LLVM, in one run.

Each model is compiled for this machine three times: by LLVM, and as C by gcc and by the packaged
clang. The libraries take turns on the same inputs. Times are of one inference from Python.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.measure.latency import measure
from tests.zoo.export import model_path
from tests.zoo.registry import NETWORKS, inputs

MODELS = ("resnet18", "resnet50", "mobilenetv2", "bert")
# Name -> kind of the target, and what compiles the C.
BUILDS = {"llvm": ("llvm", None), "gcc": ("c", "gcc"), "clang": ("c", None)}


def prepared(
    name: str, kind: str, fcompile: str | None, folder: Path, threads: int
) -> Callable[[], object]:
    """One inference of a model of the zoo."""
    module = tk.frontend.from_onnx(model_path(name))
    target = tk.Target("native").replace(kind=kind)
    path = folder / f"{name}-{kind}-{fcompile}.so"
    tk.compile(module, target).export_library(path, fcompile=fcompile)
    library = tk.runtime.load_module(path)
    library.set_num_threads(threads)
    main = tk.runtime.Executor(library, tk.cpu())["main"]
    arrays = tuple(inputs(NETWORKS[name], 0).values())
    return lambda: main(*arrays)


def first_output(result: object) -> np.ndarray:
    """The first result of an inference."""
    tensor = result[0] if isinstance(result, tuple | list) else result
    return np.asarray(tensor.numpy())  # type: ignore[attr-defined]


def main(arguments: list[str] | None = None) -> None:
    """Print a row per model: milliseconds, and how many times those of LLVM."""
    parser = argparse.ArgumentParser(prog="python -m bench.plain_c", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated, of the zoo")
    parser.add_argument("--seconds", type=float, default=3.0, help="least time per library")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    builds = {n: b for n, b in BUILDS.items() if b[1] is None or shutil.which(b[1])}
    print(f"{'model':14}" + "".join(f"{n:>20}" for n in builds))
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            runs = {
                n: prepared(name, kind, cc, Path(folder), options.threads)
                for n, (kind, cc) in builds.items()
            }
            want = first_output(runs["llvm"]())
            for n, run in runs.items():
                np.testing.assert_allclose(
                    first_output(run()),
                    want,
                    rtol=1e-4,
                    atol=1e-4 * float(np.abs(want).max()),
                    err_msg=n,
                )
            times = measure(runs, seconds=options.seconds, reps=5)
        llvm_ms = times["llvm"].min_ms
        cells = (f"{t.min_ms:10.2f} ms {t.min_ms / llvm_ms:5.2f}x" for t in times.values())
        print(f"{name:14}" + "".join(f"{c:>20}" for c in cells), flush=True)


if __name__ == "__main__":
    main()
