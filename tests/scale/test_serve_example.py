"""The example of Ray Serve, served: requests that come together are called together, and a row that
fails costs its own request."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.script import from_source

pytestmark = pytest.mark.scale

# The second result is the number of rows of the call.
SOURCE = """
@tk.script.ir_module(name="served")
class Served:
    @T.prim_func
    def doubled(
        X: T.Buffer(("n", 3), "float32"),
        Y: T.Buffer(("n", 3), "float32"),
        N: T.Buffer(("n",), "int64"),
    ):
        for i in range(X.shape[0]):
            assert X[i, 0] < 100.0, "the first number is below 100"
            N[i] = X.shape[0]
            for j in range(3):
                Y[i, j] = X[i, j] * 2.0

    @R.function
    def main(x: R.Tensor(("n", 3), "float32")):
        cls = Served
        y = R.call_tir(
            cls.doubled, [x], [R.Tensor(("n", 3), "float32"), R.Tensor(("n",), "int64")]
        )
        return y[0], y[1]
"""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    pytest.importorskip("ray.serve")
    import ray
    from ray import serve

    from examples import serve_model

    tk.compile(from_source(SOURCE)).export_library(tmp_path / "served.so")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    ray.init(
        "local",
        num_cpus=2,
        object_store_memory=100_000_000,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        serve_model.deploy(str(tmp_path / "served.so"), number, 1)
        yield number
    finally:
        serve.shutdown()
        ray.shutdown()


def _ask(port: int, body: Any) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_requests_are_batched_and_fail_alone(port: int) -> None:
    rows = np.random.default_rng(0).integers(0, 90, (200, 3)).astype(np.float32)
    bad = {3, 77, 199}
    rows[list(bad), 0] = 100
    with ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda row: _ask(port, {"x": [row.tolist()]}), rows))
    sizes = []
    for k, (status, answer) in enumerate(answers):
        if k in bad:
            assert (status, answer) == (422, {"error": "main: the first number is below 100"})
            continue
        assert status == 200
        assert answer["output0"] == (2 * rows[k]).tolist()
        sizes.append(answer["output1"])
    assert max(sizes) > 1, "some requests were one call"
    assert max(sizes) <= 32
    for wrong in ({}, [], {"x": [1, 2, 3]}, {"x": [[1, 2, 3], [4, 5, 6]]}, {"x": ["a"]}):
        assert _ask(port, wrong)[0] == 400, wrong
    assert _ask(port, {"x": [[1, 2]]})[0] == 422
    assert _ask(port, {"x": [[1, 2, 3]]}) == (200, {"output0": [2, 4, 6], "output1": 1})
