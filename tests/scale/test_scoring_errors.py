"""`tk.scale.map_batches` refuses by name what does not fit together, before it reads a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import InternalError, TensorkilnError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

X = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(6, np.float32)), 3)
TABLE = pa.table({"x": X, "k": [0, 1]})
TWICE = pa.Table.from_arrays([X, X], names=["x", "x"])

# what is wrong -> the call, its code, and words that the error has
WRONG: dict[str, tuple[Mapping[str, Any], str, str]] = {
    "a misspelt function": ({"function": "row_sun"}, "no-function", "did you mean 'row_sum'"),
    "no function of several": ({"function": None}, "no-entry", "row_sum"),
    "a tensor program": ({"function": "checked"}, "not-scorable", "no function from tensors"),
    "a misspelt input": ({"inputs": {"X": "x"}}, "no-such-name", "did you mean 'x'"),
    "a misspelt column": ({"inputs": {"x": "xx"}}, "no-such-name", "did you mean 'x'"),
    "a column of another type": ({"inputs": {"x": "k"}}, "column-type", "column 'k'"),
    "a misspelt output": ({"outputs": {"output": "y"}}, "no-such-name", "did you mean 'output0'"),
    "no output": ({"outputs": []}, "no-output", "no output"),
    "outputs of one name": (
        {"function": "tokens", "inputs": {"ids": "x"}, "data": pa.table({"x": [[1]]})}
        | {"outputs": {"output0": "y", "output1": "y"}},
        "column-name",
        "'y'",
    ),
    "an output named as a column": ({"outputs": {"output0": "x"}}, "column-name", "'x'"),
    "errors named as a column": (
        {"on_error": "report", "error_column": "k"},
        "column-name",
        "'k'",
    ),
    "columns that are not there": ({"columns": ["kk"]}, "no-such-name", "did you mean 'k'"),
    "two columns of one name": ({"data": TWICE}, "column-name", "'x'"),
    "a constant that is no input": ({"constants": {"w": 1}}, "no-such-name", "no input 'w'"),
    "nothing but constants": ({"constants": {"x": 1}}, "not-scorable", "nothing of a row"),
    "an input that is a constant": (
        {"constants": {"x": 1}, "inputs": {"x": "x"}},
        "contradiction",
        "'x'",
    ),
    "rows of two numbers": (
        {"function": "uneven", "data": pa.table({"x": X, "y": X})},
        "not-scorable",
        "constants=",
    ),
    "a result of all rows": ({"function": "all_rows"}, "not-scorable", "output0"),
    "an input that is no rows'": (
        {"function": "pairs", "data": pa.table({"a": [[1.0]], "b": [1.0], "w": [1.0]})},
        "not-scorable",
        "constants=",
    ),
    "a batch of another size": (
        {"function": "row_sum_eight", "batch_size": 4},
        "batch-size",
        "8 rows at a time",
    ),
    "inputs and a function": (
        {"inputs": {"x": "x"}, "preprocess": lambda batch: {}},
        "contradiction",
        "preprocess",
    ),
    "no file": ({"data": "none.parquet"}, "no-rows", "none.parquet"),
    "no pattern": ({"data": "*.parquet"}, "no-rows", "*.parquet"),
    "a URL": ({"data": "s3://a/b.parquet"}, "bad-data", "pyarrow.dataset"),
    "no table": ({"data": {"x": [1]}}, "bad-data", "dict"),
    "no tables": ({"data": []}, "bad-data", "list"),
    "a library that is not there": ({"library": "none.so"}, None, "none.so"),
    "an engine": ({"engine": "rai"}, "bad-engine", "did you mean 'ray'"),
    "a choice": ({"on_error": "reprot"}, "user-error", "did you mean 'report'"),
    "Ray and a folder": ({"engine": "ray", "out": "out"}, "contradiction", "write_parquet"),
    "Ray and parts": ({"engine": "ray", "part_bytes": 1}, "contradiction", "part_bytes"),
    "parts without a folder": ({"part_bytes": 1}, "contradiction", "out="),
}


@pytest.mark.parametrize("problem", WRONG)
def test_what_does_not_fit(
    scored_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    arguments, code, words = WRONG[problem]
    if arguments.get("engine") == "ray":
        pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    call = {"library": scored_library, "data": TABLE, "function": "row_sum", **arguments}
    with pytest.raises(TensorkilnError) as e:
        tk.scale.map_batches(**call)
    assert not isinstance(e.value, InternalError)
    assert code in (None, e.value.code), e.value
    assert words in f"{e.value}\n{e.value.hint}"
    assert list(tmp_path.iterdir()) == []


def test_executors_read_files_and_write_files(scored_library: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        for arguments in (
            {"out": tmp_path / "out"},
            {"data": "t.parquet"},
            {"data": "t.parquet", "out": tmp_path / "out", "concurrency": 2},
            {"engine": "ray", "out": tmp_path / "out"},
        ):
            call = {"data": TABLE, "function": "row_sum", "executor": pool, **arguments}
            with pytest.raises(tk.UserError) as e:
                tk.scale.map_batches(scored_library, **call)
            assert e.value.code == "contradiction", arguments
        for executor in (None, pool):
            call = {"data": tmp_path / "no.parquet", "executor": executor, "out": tmp_path / "out"}
            (tmp_path / "no.parquet").write_bytes(b"PAR1 and no more")
            with pytest.raises(tk.UserError) as e:
                tk.scale.map_batches(scored_library, function="row_sum", **call)
            assert e.value.code == "bad-data"


def test_files_of_two_schemas(scored_library: Path, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    for other_table in (
        TABLE.rename_columns(["x", "l"]),
        TABLE.drop_columns(["k"]),
        TABLE.append_column("m", pa.array([1, 2])),
        TABLE.set_column(1, "k", pa.array(["a", "b"])),
    ):
        pq.write_table(other_table, tmp_path / "b.parquet")
        with pytest.raises(tk.UserError, match="not those of") as e:
            tk.scale.map_batches(scored_library, tmp_path, function="row_sum")
        assert (e.value.code, e.value.where) == ("bad-data", str(tmp_path / "b.parquet"))


VALUES = (None, 5, -1, 0, 2.5, "text", "", "a\0b", b"by", [], [1], ["a"], {}, {"a": 1}, {1: "a"})
VALUES += ((1,), object(), int, len, np.ones(2), True)
ARGUMENTS = (
    *("library", "data", "function", "inputs", "outputs", "columns", "constants", "preprocess"),
    *("batch_size", "batch_bytes", "part_bytes", "concurrency", "engine", "executor", "on_error"),
    *("error_column", "out", "progress"),
)


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_every_argument_of_every_wrong_kind(
    scored_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    """It is honoured, or an error of this package."""
    monkeypatch.chdir(tmp_path)
    for value in VALUES:
        call = {"library": scored_library, "data": TABLE, "function": "row_sum", argument: value}
        try:
            scores = tk.scale.map_batches(**call)
            if isinstance(scores, Iterator):
                list(scores)
        except TensorkilnError as error:
            assert not isinstance(error, InternalError), (value, error)
