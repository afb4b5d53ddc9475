"""`kiln bench`: what is measured, what is compared only on request, and the trace of kernels."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.cli import main
from tensorkiln.cli.bench import answer_text
from tensorkiln.cli.compare import Answer
from tensorkiln.measure.kernels import KernelTime
from tensorkiln.measure.latency import Latency, throughput
from tensorkiln.measure.trace import trace_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "mlp.onnx"
    path.write_bytes(make_mlp().SerializeToString())
    return path


@pytest.fixture(scope="module")
def library(model: Path) -> Path:
    return tk.compile(model, "native").export_library(model.with_suffix(".so"))


def bench(capsys: pytest.CaptureFixture[str], *options: object) -> tuple[int, str, str]:
    code = main(["bench", *map(str, options), "--seconds", "0.01", "--dim", "batch=2"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_percentiles() -> None:
    times = [float(n) for n in range(100, 0, -1)]
    assert Latency.of(times) == Latency(1.0, 50.5, 100, 90.0, 99.0)
    assert Latency.of([3.0]) == Latency(3.0, 3.0, 1, 3.0, 3.0)
    assert Latency.of([2.0, 1.0]) == Latency(1.0, 1.5, 2, 2.0, 2.0)


def test_nothing_is_compared_that_nobody_asked_for(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = bench(capsys, model, "--json")
    answer = json.loads(out)
    assert code == 0 and answer["agrees"] is None and answer["peer"] is None
    assert answer["not_compared"] == "--compare was not given"
    assert answer["ours"]["min_ms"] <= answer["ours"]["p90_ms"] <= answer["ours"]["p99_ms"]
    code, out, _ = bench(capsys, model, "--compare", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["agrees"] is True and answer["peer"]["count"] > 0


def test_streams_of_a_library_and_of_a_model(
    model: Path, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = bench(capsys, library, "--streams", 3, "--json")
    answer = json.loads(out)
    assert code == 0 and answer["streams"] == 3 and answer["threads"] == 1
    assert set(answer["per_second"]) == {"ours"} and answer["per_second"]["ours"] > 0
    code, out, _ = bench(capsys, library, "--model", model, "--streams", 2)
    assert code == 0 and "ONNX Runtime:" in out
    assert out.count("calls per second with 2 at a time, 1 thread(s) each") == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["LIBRARY", "--compare"], "needs the model that the library was made from"),
        (["LIBRARY", "--profile", "t.json"], "do not go together"),
        (["MODEL", "--profile", "/none/t.json"], "the folder does not exist"),
    ],
)
def test_what_is_refused(
    options: list[str],
    words: str,
    model: Path,
    library: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {"LIBRARY": library, "MODEL": model}
    code, _, err = bench(capsys, *(named.get(o, o) for o in options))
    assert code == 2 and words in err


@pytest.mark.parametrize("count", ["0", "-1", "x", "5000"])
def test_numbers_of_streams(count: str, library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench(capsys, library, f"--streams={count}")


def test_throughput_runs_all_at_a_time_and_tells_errors() -> None:
    meet = threading.Barrier(3, timeout=20)
    first = [True, True, True]

    def call(k: int) -> None:
        if first[k]:  # all three are there at once, or this fails
            first[k] = False
            meet.wait()

    calls = [lambda k=k: call(k) for k in range(3)]  # type: ignore[misc]
    rates = throughput({"a": calls, "b": [lambda: None]}, seconds=0.02, turns=1)
    assert rates["a"] > 0 and rates["b"] > 0

    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        throughput({"a": [lambda: None, fails]}, seconds=0.02, turns=1)


def test_the_trace_of_kernels(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    code, _, err = bench(capsys, model, "--profile", path)
    assert code == 0 and f"{path}: 3 kernels" in err
    trace = json.loads(path.read_text())
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    exe = tk.compile(model, "native")
    assert [e["name"] for e in events] == [c.symbol for f in exe.functions for c in f.calls]
    end = 0.0
    for e in events:
        assert e["ts"] == pytest.approx(end, abs=0.01) and e["dur"] > 0
        end = e["ts"] + e["dur"]
        assert e["args"]["bytes"] > 0 and e["args"]["nodes"]
    assert trace["otherData"]["not measured"] == "nothing"


def test_kernels_without_times_are_named(model: Path) -> None:
    exe = tk.compile(model, "native")
    first, *other_symbols = [k.symbol for k in exe.kernels]
    times = [KernelTime(first, "linear", 1, math.nan, 0, 0)]
    times += [KernelTime(name, "linear", 1, 2.0, 4e3, 8e3) for name in other_symbols]
    trace = trace_of(exe, times)
    assert trace["otherData"]["not measured"] == first  # type: ignore[index]
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]  # type: ignore[attr-defined]
    assert [e["name"] for e in events] == other_symbols
    assert events[0]["args"]["GFLOP/s"] == 2.0 and events[0]["args"]["GB/s"] == 4.0


def test_rates_in_the_table() -> None:
    answer = Answer(Latency(1, 2, 5, 3, 4), 1, streams=4, per_second={"ours": 1234.5})
    text = answer_text(answer)
    assert "tensorkiln: 1,234.5 calls per second with 4 at a time" in text and "P99" in text
