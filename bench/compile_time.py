"""`python -m bench.compile_time`: cold and cached compile time and peak memory, per model.

Models are those of `tests/zoo/` and the networks of `tests/gallery/`, such as detectors and
networks of video, which have hundreds of kernels.

Each compile is a fresh process; "cold" has an empty kernel cache, "cached" the cache that the cold
one filled, and nothing else of the former. "total" is what somebody waits for who types the
command: from before the process is started until it is gone. In it are the start of Python,
importing tensorkiln and NumPy, reading the model, compiling, writing the library to a new file
(into the system's file cache), and the end of the process. Modules come from .pyc files, as they do
where a package is installed: a discarded run writes them, in a folder of its own, whatever
PYTHONDONTWRITEBYTECODE says. Of three cached compiles the fastest is shown: the others waited for
the disk, which writes down what they and others had written before. "cpu" is the processor time of
the process and its children: on a busy machine the steadier figure.

"own peak" is ru_maxrss of the compiling process; "tree peak" is the largest sum over it and all its
workers and linkers at one moment, sampled from /proc (ru_maxrss of children is that of the largest
one only, and would hide a pool).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.store import ROOT, add

MODELS = ("mlp", "resnet18", "resnet50", "mobilenetv2", "bert", "yolo11n")
SAMPLE_S = 0.05
CACHED = 3

HEAD = (
    "| model | cache | total s | cpu | start | import | read | compile | export "
    "| weights MiB | .so MiB | own peak MiB | tree peak MiB |",
    "|---" * 13 + "|",
)

COMPILE = """
import time
start = time.perf_counter()
import json, resource, sys
import tensorkiln as tk
imported = time.perf_counter()
module = tk.frontend.from_onnx(sys.argv[1])
read = time.perf_counter()
executable = tk.compile(module, target=None)
compiled = time.perf_counter()
executable.export_library(sys.argv[2])
end = time.perf_counter()
own, children = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
print(json.dumps({
    "start_s": start - float(sys.argv[3]), "import_s": imported - start,
    "frontend_s": read - imported, "compile_s": compiled - read, "export_s": end - compiled,
    "cpu_s": sum(sum(resource.getrusage(who)[:2]) for who in (own, children)),
    "self_mib": resource.getrusage(own).ru_maxrss / 1024,
    "largest_child_mib": resource.getrusage(children).ru_maxrss / 1024,
}))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One compile. `tree_mib` is the largest sampled sum over the whole process tree."""

    model: str
    kind: str
    status: str
    weights_mib: float = 0.0
    library_mib: float = 0.0
    start_s: float = 0.0
    import_s: float = 0.0
    frontend_s: float = 0.0
    compile_s: float = 0.0
    export_s: float = 0.0
    total_s: float = 0.0
    cpu_s: float = 0.0
    self_mib: float = 0.0
    largest_child_mib: float = 0.0
    tree_mib: float = 0.0


def resident_mib(root: int) -> float:
    """Resident memory of a process and all below it, from /proc.

    An upper bound: a page that two processes share counts in both.
    """
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            fields = _read(folder / "stat").rpartition(")")[2].split()
            if fields:
                parents[int(folder.name)] = int(fields[1])
    tree = {root}
    while grown := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= grown
    pages = sum(int(text.split()[1]) for pid in tree if (text := _read(Path(f"/proc/{pid}/statm"))))
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _read(path: Path) -> str:
    """Text of a /proc file, empty when the process is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def compile_once(model: str, kind: str, onnx_path: Path, folder: Path) -> Row:
    """One compile in a fresh process with `folder`/cache as its kernel cache."""
    environment = {
        **os.environ,
        "KILN_CACHE_DIR": str(folder / "cache"),
        "KILN_PROGRESS": "off",
        "PYTHONPYCACHEPREFIX": str(folder / "pyc"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    library = folder / f"{model}-{kind}.so"
    start = time.perf_counter()  # one clock for all processes
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(onnx_path), str(library), repr(start)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = 0.0

    def sample() -> None:
        nonlocal peak
        while process.returncode is None:
            peak = max(peak, resident_mib(process.pid))
            time.sleep(SAMPLE_S)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    output, errors = process.communicate()
    total = time.perf_counter() - start
    sampler.join()
    if process.returncode != 0:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        return Row(model, kind, f"failed: {lines[-1][:160]}")
    figures = json.loads(output.splitlines()[-1])
    mib = {"weights_mib": onnx_path.stat().st_size, "library_mib": library.stat().st_size}
    sizes = {name: size / 2**20 for name, size in mib.items()}
    library.unlink()
    return Row(model, kind, "ok", total_s=total, tree_mib=peak, **sizes, **figures)


def gallery_file(name: str, folder: Path) -> Path:
    """A network of the gallery as an ONNX file in `folder`."""
    import torch

    from tests.gallery.case import imported, quiet, scatter
    from tests.gallery.rows import ROWS
    from tests.gallery.torchvision_alone import torchvision_alone

    quiet()
    torch.manual_seed(0)
    torchvision_alone()
    model, arguments = ROWS[name].make()
    scatter(model)
    model.eval().requires_grad_(False)
    with torch.no_grad():
        _, path = imported(model, arguments, "script", None, folder)
    assert path is not None
    return path


def row_text(row: Row) -> str:
    """One line of the table."""
    head = f"| {row.model} | {row.kind} | "
    if row.status != "ok":
        return head + f"{row.status} |"
    return head + (
        f"{row.total_s:.2f} | {row.cpu_s:.2f} | {row.start_s:.2f} | {row.import_s:.2f} | "
        f"{row.frontend_s:.2f} | {row.compile_s:.2f} | {row.export_s:.2f} | "
        f"{row.weights_mib:.0f} | {row.library_mib:.0f} | {row.self_mib:.0f} | {row.tree_mib:.0f} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Compiles every model cold, then from the cache; prints a Markdown table, keeps the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args(arguments)
    from tests.gallery.rows import ROWS
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS

    for model in options.models.split(","):
        if model not in EXPORTS and model not in ROWS:
            parser.error(f"unknown model {model!r}; known: {', '.join([*EXPORTS, *ROWS])}")
    print("\n".join(HEAD))
    for model in options.models.split(","):
        rows = []
        with tempfile.TemporaryDirectory() as folder:
            compile_once("mlp", "first", model_path("mlp"), Path(folder))
            shutil.rmtree(Path(folder) / "cache", ignore_errors=True)
            of_zoo = model in EXPORTS
            onnx_path = model_path(model) if of_zoo else gallery_file(model, Path(folder))
            for kind, times in (("cold", 1), ("cached", CACHED)):
                trials = [compile_once(model, kind, onnx_path, Path(folder)) for _ in range(times)]
                rows.append(min(trials, key=lambda row: (row.status != "ok", row.total_s)))
                print(row_text(rows[-1]), flush=True)
        add("compile", model, len(os.sched_getaffinity(0)), {"rows": [asdict(r) for r in rows]})


if __name__ == "__main__":
    main()
