"""Kinds of columns x types of elements: the library gets what NumPy has, or an error names it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tests.scale.score_library import TYPES, Array

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def _element(x: Array) -> Any:
    return pa.from_numpy_dtype(x.dtype)


def _listed(kind: Callable[[Any], Any]) -> Callable[[Array], Any]:
    return lambda x: pa.array([list(row.reshape(-1)) for row in x], kind(_element(x)))


def _tensor(x: Array) -> Any:
    storage = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 6)
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(_element(x), (2, 3)), storage)


def _bytes(kind: Any) -> Callable[[Array], Any]:
    return lambda x: pa.array([row.tobytes() for row in x], kind(x.itemsize * 6))


def _nested(outer: int, inner: int) -> Callable[[Array], Any]:
    return lambda x: pa.array(
        [[list(line) for line in row] for row in x],
        pa.list_(pa.list_(_element(x), inner), outer),
    )


# name -> x [n, 2, 3] as a column
KINDS: dict[str, Callable[[Array], Any]] = {
    "fixed list": _listed(lambda e: pa.list_(e, 6)),
    "list": _listed(pa.list_),
    "large list": _listed(pa.large_list),
    "fixed lists of fixed": _nested(2, 3),
    "lists of fixed": _nested(-1, 3),
    "fixed of lists": _nested(2, -1),
    "lists of lists": _nested(-1, -1),
    "tensor": _tensor,
    "fixed bytes": _bytes(pa.binary),
    "bytes": _bytes(lambda size: pa.binary()),
    "large bytes": _bytes(lambda size: pa.large_binary()),
    "dictionary": lambda x: _bytes(lambda size: pa.binary())(x).dictionary_encode(),
    "list of a dictionary": lambda x: pa.ListArray.from_arrays(
        pa.array(range(0, 6 * len(x) + 1, 6), pa.int32()),
        pa.array(x.reshape(-1)).dictionary_encode(),
    ),
}
# How the rows lie in memory.
FORMS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda c: c,
    "slice": lambda c: pa.concat_arrays([c.slice(5, 2), c, c.slice(0, 3)]).slice(2, len(c)),
    "chunks": lambda c: pa.chunked_array([c.slice(0, 3), c.slice(3, 0), c.slice(3)]),
}


def _values(dtype: str, rows: int = 11) -> Array:
    rng = np.random.default_rng(rows)
    return rng.integers(0, 2 if dtype == "bool" else 100, (rows, 2, 3)).astype(dtype)


def _scored(library: Path, column: Any, **options: Any) -> Any:
    return tk.scale.map_batches(library, pa.table({"x": column}), **options).table()


def _rows(column: Any) -> Any:
    """The lists of a column, whether they are a tensor's or, before pyarrow 26, nested ones."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole


def _elements(column: Any) -> Array:
    """The elements of rows that are not null, in order."""
    values = _rows(column)
    while isinstance(values, pa.ListArray | pa.FixedSizeListArray):
        values = values.flatten()
    return np.asarray(values)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_every_type(scored_library: Path, kind: str, dtype: str) -> None:
    x = _values(dtype)
    if (kind, dtype) == ("list of a dictionary", "float16"):
        return  # Arrow has no dictionaries of these
    column = KINDS[kind](x)
    for form, lies in FORMS.items():
        scored_table = _scored(scored_library, lies(column), function=f"flip_{dtype}", batch_size=4)
        result = scored_table.column(1)
        element = pa.from_numpy_dtype(np.dtype(dtype))
        if isinstance(result.type, pa.ListType):
            assert result.type == pa.list_(pa.list_(element)), form
        else:
            assert result.type == pa.fixed_shape_tensor(element, (3, 2)), form
        assert np.array_equal(_elements(result).reshape(-1, 3, 2), x.transpose(0, 2, 1)), form


@pytest.mark.parametrize("dtype", TYPES)
def test_only_conversions_that_keep_every_value(scored_library: Path, dtype: str) -> None:
    """Those that NumPy calls safe; every other one is refused by name before a row is read."""
    for column in TYPES:
        x = _values(column)
        full_column = KINDS["fixed list"](x)
        if np.can_cast(column, dtype, "safe"):
            scored_table = _scored(scored_library, full_column, function=f"flip_{dtype}").column(1)
            flat = _elements(scored_table).reshape(-1, 3, 2)
            assert np.array_equal(flat, x.astype(dtype).transpose(0, 2, 1)), column
            continue
        with pytest.raises(tk.UserError, match=rf"input 'x' is {dtype}, which cannot hold") as e:
            _scored(scored_library, full_column, function=f"flip_{dtype}")
        assert (e.value.code, e.value.where) == ("column-type", "column 'x'"), column


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "list of a dictionary"])
def test_null_rows_of_every_kind(scored_library: Path, kind: str) -> None:
    """First, last, neighbours, all: each row has its reason, and no other row moves."""
    x = _values("float32", 9)
    full_column = KINDS[kind](x)
    for rows in ([0], [8], [3, 4], [0, 2, 4, 6, 8], list(range(9))):
        indices = pa.array([None if r in rows else r for r in range(9)], pa.int64())
        column = full_column.take(indices)
        scored_table = _scored(
            scored_library, column, function="flip_float32", on_error="report", batch_size=4
        )
        reasons = scored_table.column("error").to_pylist()
        assert reasons == ["column 'x' is null" if r in rows else None for r in range(9)]
        storage = _rows(scored_table.column(1))
        for r in range(9):
            if r in rows:
                assert not storage[r].is_valid
            else:
                assert np.ravel(storage[r].as_py()).tolist() == x[r].T.reshape(-1).tolist()


@pytest.mark.parametrize("kind", [k for k in KINDS if "list" in k and "dictionary" not in k])
def test_a_null_in_a_row(scored_library: Path, kind: str) -> None:
    x = _values("float64", 6)
    rows = [list(row.reshape(-1)) for row in x]
    for bad, place in ((0, 0), (5, 5), (3, 2)):
        flat = [v for row in rows for v in row]
        flat[bad * 6 + place] = None
        if "of" in kind:
            values = [[flat[r * 6 : r * 6 + 3], flat[r * 6 + 3 : r * 6 + 6]] for r in range(6)]
        else:
            values = [flat[r * 6 : r * 6 + 6] for r in range(6)]
        column = pa.array(values, KINDS[kind](x).type)
        scored_table = _scored(scored_library, column, function="flip_float64", on_error="report")
        reasons = scored_table.column("error").to_pylist()
        expected = [None if r != bad else "column 'x' has a null in it" for r in range(6)]
        assert reasons == expected, (kind, bad)
        good = [r for r in range(6) if r != bad]
        assert np.array_equal(
            _elements(scored_table.column(1).take(good)).reshape(-1, 3, 2),
            x[good].transpose(0, 2, 1),
        )


def _other_rows(kind: str) -> tuple[Any, str] | None:
    """Six rows of which the third has another shape, and its reason."""
    x = _values("float32", 6)
    rows: list[Any] = [list(row.reshape(-1)) for row in x]
    if kind in ("list", "large list"):
        rows[2] = rows[2][:5]
        return pa.array(rows, KINDS[kind](x).type), "column 'x' has a row of [5], expected [2, 3]"
    if kind == "lists of fixed":
        nested = [[row[:3], row[3:]] for row in rows]
        nested[2] = nested[2][:1]
        text = "column 'x' has a row of [1, 3], expected [2, 3]"
        return pa.array(nested, KINDS[kind](x).type), text
    if kind in ("lists of lists", "fixed of lists"):
        nested = [[row[:3], row[3:]] for row in rows]
        nested[2] = [[1.0], [2.0, 3.0]]
        text = "column 'x' has a list whose parts are of several lengths"
        return pa.array(nested, KINDS[kind](x).type), text
    if kind in ("bytes", "large bytes"):
        raw = [row.tobytes() for row in x]
        raw[2] = raw[2][:-1]
        text = "column 'x' has 23 bytes, expected 24 of [2, 3]"
        return pa.array(raw, KINDS[kind](x).type), text
    return None


@pytest.mark.parametrize("older", [False, True])
def test_null_rows_in_files(
    scored_library: Path, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A null list has no values, and tensors are nested lists where pyarrow is older than 26: its
    Parquet refuses other ones, or does not read them again."""
    if older:
        monkeypatch.setattr("tensorkiln.scale.result_columns._HAS_NULL_TENSORS", False)
    x = _values("float32", 5)
    column = KINDS["list"](x).take(pa.array([0, None, 2, 3, None], pa.int64()))
    scored_table = _scored(scored_library, column, function="flip_float32", on_error="report")
    result = scored_table.column(1)
    if older:
        assert result.type == pa.list_(pa.list_(pa.float32()))
        offsets = np.asarray(_rows(result).offsets)
        assert np.diff(offsets).tolist() == [3, 0, 3, 3, 0]
    pq.write_table(scored_table, tmp_path / "scores.parquet")
    read = pq.read_table(tmp_path / "scores.parquet").column(1)
    assert _rows(read).to_pylist() == _rows(result).to_pylist()
    assert np.array_equal(_elements(read).reshape(-1, 3, 2), x[[0, 2, 3]].transpose(0, 2, 1))


@pytest.mark.parametrize("kind", [k for k in KINDS if _other_rows(k) is not None])
def test_a_row_of_another_shape(scored_library: Path, kind: str) -> None:
    wrong_column = _other_rows(kind)
    assert wrong_column is not None
    scored_table = _scored(
        scored_library, wrong_column[0], function="flip_float32", on_error="report"
    )
    assert scored_table.column("error").to_pylist() == [
        None,
        None,
        wrong_column[1],
        None,
        None,
        None,
    ]
    assert _rows(scored_table.column(1)).is_valid().to_pylist() == [r != 2 for r in range(6)]
    with pytest.raises(tk.UserError, match="row 2") as e:
        _scored(scored_library, wrong_column[0], function="flip_float32")
    assert e.value.code == "bad-row"


WRONG_SHAPES: dict[str, tuple[Any, str]] = {
    "too few": (pa.list_(pa.float32(), 5), "column-shape"),
    "a tensor of another shape": (pa.fixed_shape_tensor(pa.float32(), (3, 2)), "column-shape"),
    "nested otherwise": (pa.list_(pa.list_(pa.float32(), 2), 3), "column-shape"),
    "a number": (pa.float32(), "column-shape"),
    "bytes of another size": (pa.binary(23), "column-shape"),
    "text": (pa.string(), "column-type"),
    "lists of text": (pa.list_(pa.string(), 6), "column-type"),
    "a structure": (pa.struct({"a": pa.float32()}), "column-type"),
    "a day": (pa.date32(), "column-type"),
    "a decimal": (pa.decimal128(5), "column-type"),
    "nothing": (pa.null(), "column-type"),
    "a map": (pa.map_(pa.string(), pa.float32()), "column-type"),
}


@pytest.mark.parametrize("problem", WRONG_SHAPES)
def test_columns_that_are_no_rows_are_refused_before_any_is_read(
    scored_library: Path, problem: str
) -> None:
    kind, code = WRONG_SHAPES[problem]
    read: list[int] = []

    def batches() -> Any:
        read.append(1)
        yield from ()

    reader = pa.RecordBatchReader.from_batches(pa.schema({"x": kind}), batches())
    with pytest.raises(tk.UserError) as e:
        tk.scale.map_batches(scored_library, reader, function="flip_float32")
    assert e.value.code == code
    assert "column 'x'" in str(e.value)
    assert "preprocess=" in e.value.hint
    assert not read


def test_columns_of_numbers_side_by_side(scored_library: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 50, (20, 3))
    table = pa.table(
        {
            "b": pa.array(x[:, 1], pa.int8()),
            "a": pa.array(x[:, 0], pa.float32()),
            "c": pa.array([None if r == 4 else v for r, v in enumerate(x[:, 2])], pa.uint8()),
        }
    )
    options: dict[str, Any] = {"function": "row_sum", "outputs": {"output0": "sum"}}
    scored_table = tk.scale.map_batches(
        scored_library, table, inputs={"x": ["a", "b", "c"]}, on_error="report", **options
    ).table()
    expected = [None if r == 4 else float(v) for r, v in enumerate(x.sum(axis=1))]
    assert scored_table.column("sum").to_pylist() == expected
    assert scored_table.column("error").to_pylist()[4] == "column 'c' is null"
    for inputs, code in (
        ({"x": ["a", "b"]}, "column-shape"),
        ({"x": ["a", "b", "d"]}, "no-such-name"),
        ({"x": []}, "user-error"),
        ({"y": ["a", "b", "c"]}, "no-such-name"),
    ):
        with pytest.raises(tk.UserError) as e:
            tk.scale.map_batches(scored_library, table, inputs=inputs, **options)
        assert e.value.code == code, inputs


def test_lists_of_many_lengths_are_scored_by_length_and_stay_in_order(
    scored_library: Path,
) -> None:
    """A symbolic dimension that is not the rows': rows of one length share calls."""
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 9, n).tolist() for n in rng.integers(1, 6, 40)]
    rows[7] = None
    table = pa.table({"ids": pa.array(rows, pa.list_(pa.int32())), "k": range(40)})
    scored_table = tk.scale.map_batches(
        scored_library, table, function="tokens", on_error="report", batch_size=7
    ).table()
    assert scored_table.column("k").to_pylist() == list(range(40))
    assert scored_table.column(2).type == pa.list_(pa.int64())
    assert scored_table.column(2).to_pylist() == [r and [2 * v for v in r] for r in rows]
    assert scored_table.column(3).to_pylist() == [r and sum(r) for r in rows]


def test_more_elements_than_a_list_can_have() -> None:
    from tensorkiln.scale.result_columns import _lists

    with pytest.raises(tk.UserError, match="a column of 2147483648 elements") as e:
        _lists(np.array([2**30, 2**30]), None, None, None)
    assert e.value.code == "column-shape"


def test_nested_lists_of_many_lengths(scored_library: Path) -> None:
    rng = np.random.default_rng(2)
    rows = [rng.integers(0, 9, (n, 2)).astype(np.float32) for n in rng.integers(1, 4, 12)]
    for kind in (pa.list_(pa.list_(pa.float32(), 2)), pa.list_(pa.list_(pa.float32()))):
        a = pa.array([r.tolist() if k != 5 else None for k, r in enumerate(rows)], kind)
        table = pa.table({"a": a, "b": pa.array(range(12), pa.int16())})
        scored_table = tk.scale.map_batches(
            scored_library,
            table,
            function="pairs",
            constants={"w": np.array([2, -1], np.float32)},
            columns=[],
            on_error="report",
            batch_size=4,
        ).table()
        assert scored_table.column(0).type == pa.list_(pa.list_(pa.float32()))
        expected = [(r * [2, -1]).tolist() if k != 5 else None for k, r in enumerate(rows)]
        assert scored_table.column(0).to_pylist() == expected
        assert scored_table.column(1).to_pylist() == [
            2.0 * k if k != 5 else None for k in range(12)
        ]
