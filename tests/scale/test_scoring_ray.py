"""`tk.scale.map_batches` on clusters of several processes, of which one is killed: nothing is lost,
nothing is there twice, and the result is that of this machine's threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tests.scale.score_library import Array

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.scale
ROWS = 400


def _table() -> Any:
    x = np.random.default_rng(0).integers(0, 90, (ROWS, 3)).astype(np.float32)
    x[[0, 123, ROWS - 1], 0] = 100  # these fail
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3)
    return pa.table({"k": pa.array(range(ROWS), pa.int64()), "x": column})


def slowly(marks: str) -> Callable[[Any], Mapping[str, Array]]:
    """A user's function that takes its time, and leaves a mark of each batch."""

    def preprocess(batch: Any) -> Mapping[str, Array]:
        place = Path(marks) / f"{batch.column('k')[0].as_py()}-{os.getpid()}"
        place.touch()
        time.sleep(0.1)
        return {"x": np.array(batch.column("x").to_pylist(), np.float32)}

    return preprocess


@pytest.fixture
def call(scored_library: Path, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "in").mkdir()
    (tmp_path / "marks").mkdir()
    for k in range(4):
        piece = _table().slice(k * ROWS // 4, ROWS // 4)
        pq.write_table(piece, tmp_path / "in" / f"{k}.parquet", row_group_size=20)
    return {
        "library": scored_library,
        "data": tmp_path / "in",
        "function": "assertive",
        "preprocess": slowly(str(tmp_path / "marks")),
        "batch_size": 10,
        "on_error": "report",
    }


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head and two machines, each a process of its own."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    test_cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 100_000_000}
    )
    try:
        test_cluster.others = [
            test_cluster.add_node(num_cpus=2, object_store_memory=100_000_000) for _ in range(2)
        ]
        test_cluster.wait_for_nodes()
        ray.init(test_cluster.address, log_to_driver=False, logging_level="ERROR")
        yield test_cluster
    finally:
        ray.shutdown()
        try:
            test_cluster.shutdown()
        except ValueError:  # what ended a Dataset had joined again; the attempt made it leave
            test_cluster.shutdown()


def _when(marks: Path, count: int, act: Callable[[], Any]) -> threading.Thread:
    """Act in a thread when so many batches have begun."""

    def wait() -> None:
        end = time.monotonic() + 120
        while len(list(marks.iterdir())) < count and time.monotonic() < end:
            time.sleep(0.05)
        if time.monotonic() < end:
            act()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def _local(call: Mapping[str, Any], **options: Any) -> Any:
    return tk.scale.map_batches(**{**call, **options, "preprocess": None})


def test_ray_data_survives_a_machine(call: dict[str, Any], cluster: Any, tmp_path: Path) -> None:
    import ray

    kill = _when(
        tmp_path / "marks",
        5,
        lambda: cluster.remove_node(cluster.others[0], allow_graceful=False),
    )
    dataset = tk.scale.map_batches(**call, engine="ray")
    table = pa.concat_tables(ray.get(dataset.to_arrow_refs()))
    kill.join()
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert table.column("k").to_pylist() == list(range(ROWS))
    assert table.equals(_local(call).table())
    assert table.column("error").null_count == ROWS - 3


def test_parts_survive_a_machine(call: dict[str, Any], cluster: Any, tmp_path: Path) -> None:
    kill = _when(
        tmp_path / "marks",
        5,
        lambda: cluster.remove_node(cluster.others[0], allow_graceful=False),
    )
    with tk.scale.ray_executor() as executor:
        scores = tk.scale.map_batches(**call, executor=executor, out=tmp_path / "out", part_bytes=1)
    kill.join()
    _equal_to_local(call, scores, tmp_path)


def test_parts_survive_a_worker_of_dask(call: dict[str, Any], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        (process, *_) = client.run(os.getpid).values()
        kill = _when(tmp_path / "marks", 5, lambda: os.kill(process, signal.SIGKILL))
        scores = tk.scale.map_batches(
            **call, executor=client.get_executor(), out=tmp_path / "out", part_bytes=1
        )
        kill.join()
    _equal_to_local(call, scores, tmp_path)


def _equal_to_local(call: dict[str, Any], scores: Any, folder: Path) -> None:
    """As local results, file by file; the function of a user is told in them by its name."""
    local_scores = _local(call, out=folder / "local", part_bytes=1)
    assert (scores.rows, scores.failed) == (local_scores.rows, local_scores.failed) == (ROWS, 3)
    assert [p.name for p in scores.files] == [p.name for p in local_scores.files]
    for file, local_file in zip(scores.files, local_scores.files, strict=True):
        assert pq.read_table(file).equals(pq.read_table(local_file))
    assert list(map(str, scores.failures())) == list(map(str, local_scores.failures()))
    assert sorted(p.name for p in scores.folder.iterdir()) == [p.name for p in scores.files]


# What else is Ray's: a table, and Datasets of several kinds of columns.
@pytest.mark.parametrize("source", ["table", "dataset", "numpy", "pandas blocks", "empty"])
def test_datasets_of_ray(scored_library: Path, cluster: Any, source: str) -> None:
    import ray

    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 3)
    table = pa.table({"x": column})
    data = {
        "table": lambda: table,
        "dataset": lambda: ray.data.from_arrow(table).repartition(4),
        "numpy": lambda: ray.data.from_numpy(x).rename_columns({"data": "x"}),
        "pandas blocks": lambda: ray.data.from_items(
            [{"x": row.tolist()} for row in x]
        ).map_batches(lambda frame: frame.astype({"x": object}), batch_format="pandas"),
        "empty": lambda: ray.data.from_arrow(table.slice(0, 0)),
    }[source]()
    options: dict[str, Any] = {"engine": "ray", "function": "row_sum", "concurrency": 1}
    if source == "pandas blocks":  # lists of Python's numbers are float64
        options["preprocess"] = lambda batch: {
            "x": np.array(batch.column("x").to_pylist(), np.float32)
        }
    rows = tk.scale.map_batches(scored_library, data, **options).take_all()
    expected = [] if source == "empty" else x.sum(axis=1).tolist()
    assert [row["output0"] for row in rows] == expected


def test_ray_says_what_failed(call: dict[str, Any], cluster: Any) -> None:
    dataset = tk.scale.map_batches(
        **{**call, "on_error": "raise"}, engine="ray", concurrency=(1, 2)
    )
    with pytest.raises(Exception, match="the first number is below 100"):
        dataset.materialize()
    with pytest.raises(tk.UserError, match="which cannot hold every value"):
        tk.scale.map_batches(
            **{**call, "preprocess": None, "data": pa.table({"x": ["text"]})}, engine="ray"
        )
