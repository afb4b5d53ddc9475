"""`python -m bench.compile_time`: cold and cached compile time and peak memory, per model.

Each compile is a fresh process; "cold" has an empty kernel cache, "cached" the cache that the cold
one filled. Inside the figures is all that `kiln compile model.onnx` does but the start of Python:
importing tensorkiln and NumPy (from .pyc files, which a discarded first run writes), reading the
model, compiling, and writing the library to disk. "cpu" is the processor time of the process and
its children over all of that, the start of Python included: on a busy machine the steadier figure.

"own peak" is ru_maxrss of the compiling process; "tree peak" is the largest sum over it and all its
workers and linkers at one moment, sampled from /proc (ru_maxrss of children is that of the largest
one only, and would hide a pool).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.store import ROOT, add

MODELS = ("mlp", "resnet18", "resnet50", "mobilenetv2", "bert")
SAMPLE_S = 0.02

HEAD = (
    "| model | cache | total s | cpu | import | read | compile | export "
    "| weights MiB | .so MiB | own peak MiB | tree peak MiB |",
    "|---" * 12 + "|",
)

COMPILE = """
import json, resource, sys, time
start = time.perf_counter()
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
    "import_s": imported - start, "frontend_s": read - imported, "compile_s": compiled - read,
    "export_s": end - compiled, "total_s": end - start,
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
    environment = {**os.environ, "KILN_CACHE_DIR": str(folder / "cache"), "KILN_PROGRESS": "off"}
    library = folder / f"{model}-{kind}.so"
    process = subprocess.Popen(
        [sys.executable, "-c", COMPILE, str(onnx_path), str(library)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, resident_mib(process.pid))
        time.sleep(SAMPLE_S)
    output, errors = process.communicate()
    if process.returncode != 0:
        lines = errors.strip().splitlines() or [f"exit code {process.returncode}"]
        return Row(model, kind, f"failed: {lines[-1][:160]}")
    figures = json.loads(output.splitlines()[-1])
    mib = {"weights_mib": onnx_path.stat().st_size, "library_mib": library.stat().st_size}
    sizes = {name: size / 2**20 for name, size in mib.items()}
    return Row(model, kind, "ok", tree_mib=peak, **sizes, **figures)


def row_text(row: Row) -> str:
    """One line of the table."""
    head = f"| {row.model} | {row.kind} | "
    if row.status != "ok":
        return head + f"{row.status} |"
    return head + (
        f"{row.total_s:.2f} | {row.cpu_s:.2f} | {row.import_s:.2f} | {row.frontend_s:.2f} | "
        f"{row.compile_s:.2f} | {row.export_s:.2f} | {row.weights_mib:.0f} | "
        f"{row.library_mib:.0f} | {row.self_mib:.0f} | {row.tree_mib:.0f} |"
    )


def main(arguments: list[str] | None = None) -> None:
    """Compiles every model cold, then from the cache; prints a Markdown table, keeps the rows."""
    parser = argparse.ArgumentParser(prog="python -m bench.compile_time", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args(arguments)
    from tests.zoo.export import model_path
    from tests.zoo.registry import EXPORTS

    with tempfile.TemporaryDirectory() as folder:
        compile_once("mlp", "first", model_path("mlp"), Path(folder))
    print("\n".join(HEAD))
    for model in options.models.split(","):
        rows = []
        if model not in EXPORTS:
            parser.error(f"unknown model {model!r}; known: {', '.join(EXPORTS)}")
        with tempfile.TemporaryDirectory() as folder:
            for kind in ("cold", "cached"):
                rows.append(compile_once(model, kind, model_path(model), Path(folder)))
                print(row_text(rows[-1]), flush=True)
        add("compile", model, len(os.sched_getaffinity(0)), {"rows": [asdict(r) for r in rows]})


if __name__ == "__main__":
    main()
