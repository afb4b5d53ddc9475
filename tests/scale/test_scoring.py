"""`tk.scale.map_batches` on this machine: every source, every batch, rows that fail, runs that are
interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.base.progress import Progress
from tests.scale.score_library import Array

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pads = pytest.importorskip("pyarrow.dataset")


def rows(count: int) -> Any:
    """`count` rows of three numbers below 100, which are exact in every order of sums."""
    x = np.random.default_rng(count).integers(0, 90, (count, 3)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3)
    return pa.table({"k": pa.array(range(count), pa.int64()), "x": column})


def values(table: Any) -> Array:
    return np.array(table.column("x").to_pylist(), np.float32).reshape(-1, 3)


def with_bad(table: Any, bad: Any) -> Any:
    """The table whose rows `bad` fail an assertion of `assertive`."""
    x = values(table)
    x[list(bad), 0] = 100
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3)
    return table.set_column(1, "x", column)


def _files(table: Any, folder: Path, groups: int = 5) -> list[Path]:
    folder.mkdir(parents=True)
    third = max(1, table.num_rows // 3)
    paths = []
    for k, start in enumerate((0, third, 2 * third)):
        piece = table.slice(start, third if k < 2 else None)
        paths.append(folder / f"{k}.parquet")
        pq.write_table(piece, paths[-1], row_group_size=groups)
    return paths


def _of_files(choose: Callable[[list[Path], Path], Any]) -> Callable[[Any, Path], Any]:
    return lambda table, folder: choose(_files(table, folder / "in"), folder / "in")


# name -> a table as `data`
SOURCES: dict[str, Callable[[Any, Path], Any]] = {
    "table": lambda t, folder: t,
    "chunked table": lambda t, folder: pa.concat_tables(
        [t.slice(0, 2), t.slice(2, 0), t.slice(2, 3), t.slice(5)]
    ),
    "batch": lambda t, folder: pa.RecordBatch.from_pylist(t.to_pylist(), schema=t.schema),
    "batches": lambda t, folder: t.to_batches(3) or [pa.RecordBatch.from_pylist([], t.schema)],
    "reader": lambda t, folder: t.to_reader(4),
    "dataset": _of_files(lambda paths, folder: pads.dataset([str(p) for p in paths])),
    "dataset in memory": lambda t, folder: pads.dataset(t),
    "files": _of_files(lambda paths, folder: paths),
    "folder": _of_files(lambda paths, folder: str(folder)),
    "pattern": _of_files(lambda paths, folder: f"{folder}/[0-9].par*"),
}


@pytest.mark.in_turn("source")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("function", ["row_sum", "row_sum_one", "row_sum_eight"])
def test_every_source_by_libraries_of_every_batch(
    scored_library: Path, tmp_path: Path, source: str, function: str
) -> None:
    """Streamed and written, each row has its own result, in its place."""
    for count in (0, 1, 7, 8, 9, 50):
        table = rows(count)
        expected = values(table).sum(axis=1).tolist()
        for size in (None, 1, 3) if function == "row_sum" else (None,):
            place = tmp_path / f"{count}-{size}"
            options: dict[str, Any] = {"function": function, "batch_size": size}
            data = SOURCES[source](table, place)
            scored = tk.scale.map_batches(scored_library, data, **options)
            scored_table = scored.table()
            assert scored_table.column_names == ["k", "x", "output0"]
            assert scored_table.schema == scored.schema
            assert scored_table.column("k").to_pylist() == list(range(count))
            assert scored_table.column("output0").to_pylist() == expected
            again = SOURCES[source](table, place / "again")
            scores = tk.scale.map_batches(scored_library, again, out=place / "out", **options)
            assert (scores.rows, scores.failed, list(scores.failures())) == (count, 0, [])
            read = pa.concat_tables([pq.read_table(p) for p in scores.files])
            assert read.equals(scored_table.cast(read.schema)), (count, size)
            assert pads.dataset(place / "out").count_rows() == count


def test_results_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    """Of a network, called by row there, by batches and threads here."""
    ort = pytest.importorskip("onnxruntime")
    model = make_mlp().SerializeToString()
    tk.compile(model).export_library(tmp_path / "mlp.so")
    x = np.random.default_rng(0).standard_normal((50, 784)).astype(np.float32)
    table = pa.table({"pixels": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 784)})
    scored_table = tk.scale.map_batches(
        tmp_path / "mlp.so",
        table,
        inputs={"image": "pixels"},
        outputs={"logits": "scores"},
        columns=[],
        batch_size=8,
    ).table()
    session = ort.InferenceSession(model)
    logits = np.concatenate([session.run(None, {"image": row[None]})[0] for row in x])
    scores = np.array(scored_table.column("scores").to_pylist(), np.float32)
    assert scored_table.column_names == ["scores"]
    np.testing.assert_allclose(scores, logits, rtol=1e-4, atol=1e-5)
    f = tk.load(tmp_path / "mlp.so")
    assert np.array_equal(scores, np.concatenate([f(row[None]) for row in x]))
    by_row_function = tk.scale.map_batches(
        f, table, inputs={"image": "pixels"}, outputs=["logits"]
    ).table()
    assert by_row_function.column("logits").to_pylist() == scored_table.column("scores").to_pylist()


# ---- rows that fail ------------------------------------------------------------------------------

PLACES = {
    "first": [0],
    "last": [22],
    "neighbours": [7, 8, 9],
    "ends of calls": [3, 4, 11, 12],
    "every other": list(range(0, 23, 2)),
    "all but one": [r for r in range(23) if r != 13],
    "all": list(range(23)),
}


def refuse_above(batch: Any) -> Mapping[str, Array]:
    """A user's function that raises for a batch with a row of 100 or more."""
    x = values(batch)
    if (x >= 100).any():
        raise ValueError(f"{int(x.max())} is too large")
    return {"x": x}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("function", ["assertive", "assertive_four", "preprocess"])
def test_rows_that_fail_are_named_and_the_others_delivered(
    scored_library: Path, tmp_path: Path, function: str, place: str
) -> None:
    bad = PLACES[place]
    table = with_bad(rows(23), bad)
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=6)
    options: dict[str, Any] = {"function": function, "batch_size": None}
    reason = f"{function}: the first number is below 100"
    if function == "preprocess":
        options = {"function": "assertive", "preprocess": refuse_above}
        reason = "preprocess: ValueError: 100 is too large"
    if function != "assertive_four":
        options["batch_size"] = 4
    call = {"library": scored_library, **options}
    file = str(tmp_path / "t.parquet")
    result = tk.scale.map_batches(data=table, on_error="report", **call)
    scored_table = result.table()
    assert [(f.file, f.row, f.reason) for f in result.failures] == [("", r, reason) for r in bad]
    expected = [None if r in bad else (2 * v).tolist() for r, v in enumerate(values(table))]
    assert scored_table.column("k").to_pylist() == list(range(23))
    assert scored_table.column("output0").to_pylist() == expected
    assert scored_table.column("error").to_pylist() == [
        reason if r in bad else None for r in range(23)
    ]
    scores = tk.scale.map_batches(
        data=file, on_error="report", out=tmp_path / "out", part_bytes=1, **call
    )
    assert [(f.file, f.row, f.reason) for f in scores.failures()] == [
        (file, r, reason) for r in bad
    ]
    assert (scores.rows, scores.failed, len(scores.files)) == (23, len(bad), 4)
    read = pa.concat_tables([pq.read_table(p) for p in scores.files])
    assert read.equals(scored_table.cast(read.schema))
    for out in ({}, {"out": tmp_path / "other"}):
        with pytest.raises(tk.UserError) as e:
            rest_scores = tk.scale.map_batches(
                data=file, part_bytes=1 if out else None, **out, **call
            )
            list(rest_scores)
        assert (e.value.code, e.value.message) == ("bad-row", reason)
        assert e.value.where == f"{file}: row {bad[0]}"
    written = sorted(p.name for p in (tmp_path / "other").glob("[!.]*"))
    assert written == [f"part-{k:06d}.parquet" for k in range(bad[0] // 6)]


WRONG_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda batch: None,
    "another name": lambda batch: {"y": values(batch)},
    "another type": lambda batch: {"x": values(batch).astype(np.float64)},
    "fewer rows": lambda batch: {"x": values(batch)[1:]},
    "a number": lambda batch: {"x": np.float32(1)},
}


@pytest.mark.parametrize("problem", WRONG_FUNCTIONS)
def test_a_function_that_makes_no_inputs_is_no_failure_of_rows(
    scored_library: Path, problem: str
) -> None:
    scores = tk.scale.map_batches(
        scored_library,
        rows(5),
        function="row_sum",
        preprocess=WRONG_FUNCTIONS[problem],
        on_error="report",
    )
    with pytest.raises(tk.UserError) as e:
        scores.table()
    assert (e.value.code, e.value.where) == ("bad-preprocess", "preprocess=")


# ---- interrupted and repeated --------------------------------------------------------------------


class Stops(Progress):
    """Ctrl-C after so many rows."""

    def __init__(self, rows: int):
        super().__init__()
        self.left = rows

    def advance(self, count: int = 1, item: str = "") -> None:
        super().advance(count, item)
        self.left -= count
        if self.left <= 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("after", [1, 30, 77, 99])
def test_an_interrupted_run_goes_on_with_what_is_missing(
    scored_library: Path, tmp_path: Path, after: int
) -> None:
    table = with_bad(rows(100), [2, 50, 99])
    _files(table, tmp_path / "in", 10)
    call: dict[str, Any] = {
        "library": scored_library,
        "data": tmp_path / "in",
        "function": "assertive",
        "on_error": "report",
        "part_bytes": 1,
        "batch_size": 5,
    }
    whole = tk.scale.map_batches(out=tmp_path / "whole", **call)
    with pytest.raises(KeyboardInterrupt):
        tk.scale.map_batches(out=tmp_path / "out", progress=Stops(after), **call)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("[!.]*")}
    assert len(before) < len(whole.files)
    assert not [p for p in (tmp_path / "out").iterdir() if p.name not in before], "no remains"
    killed = tmp_path / "out" / ".part-000003.parquet.0123456789abcdef.tmp"
    killed.touch()  # as a worker leaves one that is killed
    scores = tk.scale.map_batches(out=tmp_path / "out", **call)
    assert scores.done_before == len(before)
    assert not killed.exists()
    assert {n: (tmp_path / "out" / n).stat().st_mtime_ns for n in before} == before
    assert [p.name for p in scores.files] == [p.name for p in whole.files]
    for file, whole_file in zip(scores.files, whole.files, strict=True):
        assert file.read_bytes() == whole_file.read_bytes()
    assert list(map(str, scores.failures())) == list(map(str, whole.failures()))
    assert [f.row for f in scores.failures()] == [2, 50 - 33, 99 - 66]


CHANGES: dict[str, Callable[[dict[str, Any], Path], dict[str, Any]]] = {
    "function": lambda call, folder: {"function": "assertive_four", "batch_size": None},
    "columns": lambda call, folder: {"columns": ["k"]},
    "outputs": lambda call, folder: {"outputs": {"output0": "y"}},
    "preprocess": lambda call, folder: {"preprocess": refuse_above},
    "errors": lambda call, folder: {"on_error": "raise"},
    "files": lambda call, folder: {"data": [folder / "in" / "0.parquet"]},
    "parts": lambda call, folder: {"part_bytes": 1 << 20},
}


@pytest.mark.parametrize("change", CHANGES)
def test_results_of_another_call_are_not_taken_for_this_one(
    scored_library: Path, tmp_path: Path, change: str
) -> None:
    _files(rows(30), tmp_path / "in")
    call: dict[str, Any] = {
        "library": scored_library,
        "data": tmp_path / "in",
        "function": "assertive",
        "on_error": "report",
        "out": tmp_path / "out",
        "part_bytes": 1,
    }
    first = tk.scale.map_batches(**call)
    contents = {p: p.read_bytes() for p in first.files}
    with pytest.raises(tk.UserError, match="is no result of this call") as e:
        tk.scale.map_batches(**{**call, **CHANGES[change](call, tmp_path)})
    assert e.value.code == "cannot-write"
    assert {p: p.read_bytes() for p in (tmp_path / "out").iterdir()} == contents


def test_another_s_files_stay(scored_library: Path, tmp_path: Path) -> None:
    """Also those of the names of parts."""
    paths = _files(rows(30), tmp_path / "in")
    (tmp_path / "out").mkdir()
    for name in ("part-000000.parquet", "note.txt"):
        place = tmp_path / "out" / name
        place.write_bytes(b"mine")
        for data in (paths, rows(5)):
            with pytest.raises(tk.UserError) as e:
                tk.scale.map_batches(scored_library, data, function="row_sum", out=tmp_path / "out")
            assert e.value.code == "cannot-write"
        assert [p.read_bytes() for p in (tmp_path / "out").iterdir()] == [b"mine"]
        place.unlink()


def test_what_is_no_file_is_written_whole_or_not_at_all(
    scored_library: Path, tmp_path: Path
) -> None:
    call: dict[str, Any] = {"library": scored_library, "function": "row_sum", "batch_size": 5}
    with pytest.raises(KeyboardInterrupt):
        tk.scale.map_batches(data=rows(50), out=tmp_path / "out", progress=Stops(20), **call)
    assert list(tmp_path.iterdir()) == []
    for count in (50, 20):
        scores = tk.scale.map_batches(
            data=rows(count), out=tmp_path / "out", part_bytes=300, **call
        )
        assert scores.rows == count and len(scores.files) > 1
        assert pads.dataset(tmp_path / "out").to_table().column("k").to_pylist() == list(
            range(count)
        )


def test_closing_a_stream_ends_its_workers(scored_library: Path) -> None:
    read: list[int] = []

    def batches() -> Iterator[Any]:
        for k in range(1000):
            read.append(k)
            yield from rows(10).to_batches()

    reader = pa.RecordBatchReader.from_batches(rows(1).schema, batches())
    call: dict[str, Any] = {"function": "row_sum", "batch_size": 10, "concurrency": 2}
    with tk.scale.map_batches(scored_library, reader, **call) as stream:
        assert next(stream).num_rows == 10
    assert len(read) < 20, "few batches are held"
    assert list(stream) == []


# ---- executors -----------------------------------------------------------------------------------


def dies_once(batch: Any) -> Mapping[str, Array]:
    """Kills its process at row 17, the first time."""
    mark = Path(os.environ["KILN_TEST_MARK"])
    if 17 in batch.column("k").to_pylist() and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": values(batch)}


def _pools() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    return {
        "threads": lambda: ThreadPoolExecutor(2),
        "processes": lambda: tk.scale.local_executor(2),
        "by name": lambda: nullcontext("local:2"),
    }


@pytest.mark.parametrize("pool", _pools())
def test_executors_make_the_same_files(scored_library: Path, tmp_path: Path, pool: str) -> None:
    table = with_bad(rows(60), [0, 31, 59])
    _files(table, tmp_path / "in", 10)
    call: dict[str, Any] = {
        "library": scored_library,
        "data": tmp_path / "in",
        "function": "assertive",
        "part_bytes": 1,
    }
    whole = tk.scale.map_batches(out=tmp_path / "whole", on_error="report", **call)
    with _pools()[pool]() as executor:
        scores = tk.scale.map_batches(
            out=tmp_path / "out", on_error="report", executor=executor, **call
        )
        again = tk.scale.map_batches(
            out=tmp_path / "out", on_error="report", executor=executor, **call
        )
        with pytest.raises(tk.UserError) as e:
            tk.scale.map_batches(out=tmp_path / "raised", executor=executor, **call)
    assert e.value.code == "bad-row" and "below 100" in e.value.message
    assert again.done_before == len(whole.files) == 6
    for file, whole_file in zip(scores.files, whole.files, strict=True):
        assert file.read_bytes() == whole_file.read_bytes()
    assert list(map(str, scores.failures())) == list(map(str, whole.failures()))


def test_a_worker_that_dies_costs_its_part(
    scored_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_TEST_MARK", str(tmp_path / "mark"))
    _files(rows(40), tmp_path / "in", 10)
    with tk.scale.local_executor(2) as executor:
        scores = tk.scale.map_batches(
            scored_library,
            tmp_path / "in",
            function="row_sum",
            preprocess=dies_once,
            part_bytes=1,
            out=tmp_path / "out",
            executor=executor,
        )
    assert (tmp_path / "mark").exists()
    read = pa.concat_tables([pq.read_table(p) for p in scores.files])
    assert read.column("k").to_pylist() == list(range(40))
    assert read.column("output0").to_pylist() == values(rows(40)).sum(axis=1).tolist()


# ---- memory --------------------------------------------------------------------------------------

_PEAK = """
import resource, sys
import tensorkiln as tk
library, data, out = sys.argv[1:]
scores = tk.scale.map_batches(
    library, data, function="wide", columns=[], out=out, part_bytes=1, batch_size=64, concurrency=2
)
print(scores.rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_rows(scored_library: Path, tmp_path: Path) -> None:
    """Ten times as many rows: 240 MB instead of 24."""
    peaks = []
    for count in (6_000, 60_000):
        schema = pa.schema({"x": pa.list_(pa.float32(), 1024)})
        with pq.ParquetWriter(tmp_path / f"{count}.parquet", schema) as writer:
            for k in range(count // 2000):
                x = np.tile(np.arange(k, k + 1024, dtype=np.float32), 2000)
                column = pa.FixedSizeListArray.from_arrays(pa.array(x), 1024)
                writer.write_table(pa.table({"x": column}))
        command = [sys.executable, "-c", _PEAK, str(scored_library)]
        process = subprocess.run(
            [*command, str(tmp_path / f"{count}.parquet"), str(tmp_path / f"out-{count}")],
            capture_output=True,
            text=True,
            check=True,
        )
        row_count, peak = map(int, process.stdout.split())
        assert row_count == count
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 60, f"{peaks} MB"
