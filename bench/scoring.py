"""`python -m bench.scoring`: ResNet-18 over the rows of a Parquet file, on all CPUs.

Ours in threads and on Ray Data, ONNX Runtime in actors of Ray Data, and what they are measured by:
a loop over arrays in memory on one thread, times the number of CPUs; and as many such loops at
once, which is what the machine can do. Each runs in a process of its own; memory is what its whole
tree of processes has (Pss), sampled once a second. Rates are from the first row that any worker
begins to the last result, so that the start of Ray and of workers is in `whole` only.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tensorkiln as tk
from bench.contenders import Array
from tensorkiln.base.config import available_cpus

SIDE = 224
BYTES = SIDE * SIDE * 3
DISTINCT = 32  # images in a row group, whose rows are these again and again
GROUP = 100  # rows of a row group
MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
SCALE = 1 / (np.array([0.229, 0.224, 0.225], np.float32) * 255)


def pictures(count: int) -> Array:
    """Random images [count, 224, 224, 3] of bytes."""
    return np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3)).astype(np.uint8)


_MARKS = "BENCH_SCORING_MARKS"  # a folder: workers are processes of others


def prepare(images: Array) -> Array:
    """Images as the network takes them: float32 [n, 3, 224, 224]."""
    mark = Path(os.environ[_MARKS]) / str(os.getpid())
    if not mark.exists():
        mark.write_text(str(time.time()))
    return np.ascontiguousarray(((images - MEAN) * SCALE).transpose(0, 3, 1, 2))


def preprocess(batch: Any) -> Mapping[str, Array]:
    """The input of the network of a batch with the column `image`."""
    column = batch.column("image")
    data = np.frombuffer(column.buffers()[1], np.uint8)
    begin = column.offset * BYTES
    images = data[begin : begin + len(column) * BYTES].reshape(-1, SIDE, SIDE, 3)
    return {"x": prepare(images)}


def write_table(path: Path, rows: int) -> None:
    """A file of `rows` images, a column of fixed-size binary; read, it has 150 kB a row."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = pictures(DISTINCT).reshape(DISTINCT, BYTES)
    kind = pa.binary(BYTES)
    schema = pa.schema({"id": pa.int64(), "image": kind})
    options = {"use_dictionary": ["image"], "dictionary_pagesize_limit": 1 << 30}
    with pq.ParquetWriter(path, schema, **options) as writer:
        for first in range(0, rows, GROUP):
            ids = np.arange(first, min(first + GROUP, rows))
            chosen = np.ascontiguousarray(images[ids % DISTINCT])
            column = pa.FixedSizeBinaryArray.from_buffers(
                kind, len(ids), [None, pa.py_buffer(chosen)]
            )
            writer.write_table(pa.Table.from_arrays([pa.array(ids), column], schema=schema))


# ---- contenders: batches of results, with their numbers of rows ----------------------------------


@functools.cache
def _batch(folder: Path) -> int:
    """The rows of a call that map_batches chooses."""
    import pyarrow.parquet as pq

    from tensorkiln.scale.scorer import Scorer, Scoring

    schema = pq.ParquetFile(folder / "rows.parquet").schema_arrow
    scoring = Scoring(str(folder / "net.so"), preprocess=preprocess, columns=("id",))
    return Scorer(scoring, schema).call_rows


def _loop(folder: Path, rows: int, batch: int) -> Iterator[int]:
    f = tk.load(folder / "net.so").with_threads(1)
    images = pictures(DISTINCT)
    for first in range(0, rows, batch):
        chosen = images[np.arange(first, min(first + batch, rows)) % DISTINCT]
        yield len(f(prepare(chosen)))


def one_loop(folder: Path, rows: int) -> Iterator[int]:
    """One process, one thread, arrays in memory."""
    yield from _loop(folder, max(200, rows // 10), _batch(folder))


def _count(folder: Path, rows: int, batch: int, queue: Any) -> None:
    for count in _loop(folder, rows, batch):
        queue.put(count)


def loops(folder: Path, rows: int) -> Iterator[int]:
    """As many such processes as there are CPUs."""
    cpus = available_cpus()
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    rows_of_process = max(200, rows // 10)
    workers = [
        context.Process(target=_count, args=(folder, rows_of_process, _batch(folder), queue))
        for _ in range(cpus)
    ]
    for worker in workers:
        worker.start()
    for _ in range(-(-rows_of_process // _batch(folder)) * cpus):
        yield queue.get()


def _options(folder: Path) -> dict[str, Any]:
    return {
        "library": folder / "net.so",
        "data": folder / "rows.parquet",
        "preprocess": preprocess,
        "columns": ["id"],
    }


def local(folder: Path, rows: int) -> Iterator[int]:
    """Ours, in threads of one process."""
    for batch in tk.scale.map_batches(**_options(folder)):
        yield batch.num_rows


def _init_ray() -> None:
    import ray

    ray.init(
        "local",
        num_cpus=available_cpus(),
        object_store_memory=4_000_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    ray.data.DataContext.get_current().enable_progress_bars = False


def _sizes(dataset: Any) -> Iterator[int]:
    for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        yield batch.num_rows


def on_ray(folder: Path, rows: int) -> Iterator[int]:
    """Ours, in actors of Ray Data."""
    _init_ray()
    yield from _sizes(tk.scale.map_batches(**_options(folder), engine="ray"))


class OnnxRuntime:
    """An actor of Ray Data with a session of ONNX Runtime of one thread."""

    def __init__(self, model: str):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])

    def __call__(self, table: Any) -> Any:
        """The rows with their results."""
        import pyarrow as pa

        (scores_array,) = self._session.run(
            None, preprocess(table.combine_chunks().to_batches()[0])
        )
        scores = pa.FixedSizeListArray.from_arrays(
            pa.array(scores_array.reshape(-1)), scores_array.shape[1]
        )
        return pa.table({"id": table.column("id"), "y": scores})


def onnx_runtime_on_ray(folder: Path, rows: int) -> Iterator[int]:
    """ONNX Runtime in actors of Ray Data, of the same number and with the same batches."""
    import ray

    from tests.zoo.export import model_path

    _init_ray()
    cpus = available_cpus()
    dataset = ray.data.read_parquet(
        str(folder / "rows.parquet"), override_num_blocks=max(1, min(8 * cpus, rows // GROUP))
    ).map_batches(
        OnnxRuntime,
        fn_constructor_args=(str(model_path("resnet18-batch")),),
        batch_format="pyarrow",
        batch_size=_batch(folder),
        compute=ray.data.ActorPoolStrategy(size=cpus),
        num_cpus=(cpus - 1) / cpus if cpus > 1 else 0.5,
    )
    yield from _sizes(dataset)


CONTENDERS: dict[str, Callable[[Path, int], Iterator[int]]] = {
    "loop, one thread": one_loop,
    "loops, a process a CPU": loops,
    "map_batches, threads": local,
    "map_batches, Ray Data": on_ray,
    "ONNX Runtime, Ray Data": onnx_runtime_on_ray,
}


# ---- measuring -----------------------------------------------------------------------------------


def run(name: str, folder: Path, rows: int) -> dict[str, float]:
    """Rows; rows per second, since the first of them was begun, and of all that is done; and rows
    per second of a CPU, which others on the machine hardly change."""
    begin = time.time()
    with tempfile.TemporaryDirectory() as marks:
        os.environ[_MARKS] = marks
        stop, cpu_times, before = threading.Event(), dict[int, float](), dict[int, float]()

        def watch() -> None:
            while not stop.wait(0.1):
                cpu_times.update(cpu_seconds(os.getpid()))
                if not before and any(Path(marks).iterdir()):
                    before.update(cpu_times)

        watcher = threading.Thread(target=watch)
        watcher.start()
        total = sum(CONTENDERS[name](folder, rows))
        end = time.time()
        stop.set()
        watcher.join()
        cpu_times.update(cpu_seconds(os.getpid()))
        first = min(float(mark.read_text()) for mark in Path(marks).iterdir())
    return {
        "rows": total,
        "rate": total / (end - first),
        "whole": total / (end - begin),
        "cpu": total / (sum(cpu_times.values()) - sum(before.values())),
    }


def tree(root: int) -> Iterator[tuple[int, list[str]]]:
    """A process and all below it: their numbers, and the fields of `stat` from `ppid` on."""
    rows: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                rows[int(entry.name)] = (entry / "stat").read_text().rpartition(")")[2].split()[1:]
    queue = [root]
    while queue:
        process = queue.pop()
        queue += [child for child, fields in rows.items() if int(fields[0]) == process]
        if process in rows:
            yield process, rows[process]


def cpu_seconds(root: int) -> dict[int, float]:
    """What a process and all below it have used, by their numbers."""
    tick = os.sysconf("SC_CLK_TCK")
    return {process: (int(f[10]) + int(f[11])) / tick for process, f in tree(root)}


def tree_bytes(root: int) -> int:
    """Pss of a process and of all below it."""
    total = 0
    for process, _ in tree(root):
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += sum(
                int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")
            )
    return 1024 * total


def measured(name: str, folder: Path, rows: int) -> dict[str, float]:
    """`run` in a process of its own, with the most memory of its tree."""
    command = [sys.executable, "-m", "bench.scoring", "--only", name, "--rows", str(rows)]
    stop = threading.Event()
    peak = [0]
    with subprocess.Popen([*command, "--folder", str(folder)], stdout=subprocess.PIPE) as process:

        def sample() -> None:
            while not stop.wait(1):
                peak[0] = max(peak[0], tree_bytes(process.pid))

        thread = threading.Thread(target=sample)
        thread.start()
        text, _ = process.communicate()
        stop.set()
        thread.join()
    if process.returncode:
        raise SystemExit(f"{name} failed")
    return {**json.loads(text.splitlines()[-1]), "bytes": peak[0]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scoring", description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--folder", type=Path, help="for the library and the table; kept")
    parser.add_argument("--only", choices=CONTENDERS, help="one of them, in this process")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(run(options.only, options.folder, options.rows)), flush=True)
        os._exit(0)  # what Ray says at its end is no result
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        if not (folder / "net.so").exists():
            from tests.zoo.export import model_path

            tk.compile(model_path("resnet18-batch")).export_library(folder / "net.so")
        write_table(folder / "rows.parquet", options.rows)
        cpus = available_cpus()
        print(f"{options.rows} rows, {_batch(folder)} in a call, {cpus} CPUs")
        print("| | rows/s | of loop x CPUs | of loops | per CPU s | of loop | whole | memory |")
        print("|---|---|---|---|---|---|---|---|")
        figures: dict[str, dict[str, float]] = {}
        for name in CONTENDERS:
            figures[name] = row = measured(name, folder, options.rows)
            loop, limit = figures["loop, one thread"], figures.get("loops, a process a CPU", row)
            cells = [
                f"{row['rate']:.1f}",
                f"{row['rate'] / (loop['rate'] * cpus):.3f}",
                f"{row['rate'] / limit['rate']:.3f}",
                f"{row['cpu']:.1f}",
                f"{row['cpu'] / loop['cpu']:.3f}",
                f"{row['whole']:.1f}",
                f"{row['bytes'] >> 20} MB",
            ]
            print(
                f"| {name} | {' | '.join(cells)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
