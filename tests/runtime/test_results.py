"""Results behave as arrays: Python's operators and NumPy's functions, against the array itself."""

from __future__ import annotations

import copy
import math
import operator
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.runtime import Executor, Tensor, nd
from tests.transform.graphs import graph

ARRAYS = {
    "float32": np.array([[1.5, -2.0, 0.0], [3.0, math.nan, -0.5]], np.float32),
    "float64": np.array([0.25, 4.0]),
    "float16": np.array([1, -2, 3], np.float16),
    "bfloat16": np.array([1.5, -2, 3], ml_dtypes.bfloat16),
    "int32": np.array([[5, -3], [2, 7]], np.int32),
    "uint8": np.array([1, 2, 255], np.uint8),
    "int64": np.array(6),
    "bool": np.array([True, False, True]),
    "one": np.array([2.5], np.float32),
    "whole": np.array([3]),
    "empty": np.zeros((0, 2), np.float32),
    "scalar": np.array(2.5, np.float32),
    "truth": np.array(True),
}
_BINARY = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor lt le eq ne gt ge"
_IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor"
_UNARY = "neg pos abs invert truth index not_ length_hint"
Use = Callable[[Any], Any]

PYTHON: dict[str, Use] = {name: getattr(operator, name) for name in _UNARY.split()}
for _name in _BINARY.split():
    _op = getattr(operator, _name)
    PYTHON[f"{_name} itself"] = lambda y, op=_op: op(y, y)
    PYTHON[f"{_name} 2"] = lambda y, op=_op: op(y, 2)
    PYTHON[f"2 {_name}"] = lambda y, op=_op: op(2, y)
    PYTHON[f"{_name} array"] = lambda y, op=_op: op(y, np.ones(np.shape(y), np.int8))
    PYTHON[f"array {_name}"] = lambda y, op=_op: op(np.ones(np.shape(y), np.int8), y)
    PYTHON[f"{_name} None"] = lambda y, op=_op: op(y, None)
for _name in _IN_PLACE.split():
    _op = getattr(operator, _name)
    PYTHON[f"{_name} 1"] = lambda y, op=_op: np.asarray(op(y, 1))
PYTHON |= {
    "divmod": lambda y: divmod(y, 2),
    "rdivmod": lambda y: divmod(7, y),
    "int": int,
    "float": float,
    "complex": complex,
    "bool": bool,
    "len": len,
    "list": list,
    "tuple": tuple,
    "hash": hash,
    "iter": lambda y: [np.asarray(x).tolist() for x in y],
    "sum": sum,
    "max": max,
    "sorted": sorted,
    "range": lambda y: list(range(y)),
    "format": lambda y: f"{y:.2f}",
    "[0]": lambda y: y[0],
    "[-1]": lambda y: y[-1],
    "[9]": lambda y: y[9],
    "[()]": lambda y: y[()],
    "[...]": lambda y: y[...],
    "[::-1]": lambda y: y[::-1],
    "[:, 0]": lambda y: y[:, 0],
    "[None]": lambda y: y[None],
    "[mask]": lambda y: y[y > 1],
    "[list]": lambda y: y[[0, 0]],
    "['x']": lambda y: y["x"],
    "in": lambda y: 2 in y,
    "not in": lambda y: 99 not in y,
    "reversed": lambda y: list(reversed(y)),
    "unpacked": lambda y: [*y],
    "if": lambda y: 1 if y else 0,
    "all": all,
    "any": any,
    "matched": lambda y: y.dtype == y[()].dtype,
    "shape": lambda y: y.shape,
    "size": lambda y: y.size,
    "ndim": lambda y: y.ndim,
    "nbytes": lambda y: y.nbytes,
    "T": lambda y: y.T,
    "method": lambda y: y.sum(),
    "mean": lambda y: y.mean(axis=0),
    "astype": lambda y: y.astype("float32"),
    "item": lambda y: y.item(),
    "tolist": lambda y: y.tolist(),
    "reshape": lambda y: y.reshape(-1),
    "unknown": lambda y: y.nothing,
    "copy": lambda y: np.asarray(copy.copy(y)),
    "deepcopy": lambda y: np.asarray(copy.deepcopy(y)),
    "pickle": lambda y: np.asarray(pickle.loads(pickle.dumps(y))),
    "set item": lambda y: _set(y, 0, 3),
    "set all": lambda y: _set(y, ..., y * 1),
    "set wrong": lambda y: _set(y, 0, [1] * 9),
    "call": lambda y: y(),
    "dtype": lambda y: (y.dtype == np.float32, y.dtype == "float32", y.dtype.kind),
}

_REDUCTIONS = (
    "sum prod mean std var min max argmin argmax sort argsort cumsum any all ravel transpose "
    "squeeze shape size ndim sqrt exp tanh isnan isfinite sign floor round abs unique nonzero "
    "flip diff copy atleast_2d zeros_like ones_like trace array_repr array_str isscalar"
)
NUMPY: dict[str, Use] = {name: getattr(np, name) for name in _REDUCTIONS.split()} | {
    "concatenate": lambda y: np.concatenate([y, y]),
    "stack": lambda y: np.stack([y, np.asarray(y)]),
    "where": lambda y: np.where(y > 0, y, 0),
    "dot": lambda y: np.dot(y, 2),
    "clip": lambda y: np.clip(y, 0, 1),
    "outer": lambda y: np.outer(y, y),
    "allclose": lambda y: np.allclose(y, y, equal_nan=True),
    "array_equal": lambda y: np.array_equal(y, y),
    "testing": lambda y: np.testing.assert_array_equal(y, np.asarray(y)),
    "expand_dims": lambda y: np.expand_dims(y, 0),
    "tile": lambda y: np.tile(y, 2),
    "take": lambda y: np.take(y, [0]),
    "copyto": lambda y: (np.copyto(y, 1), np.asarray(y))[1],
    "fill_diagonal": lambda y: (np.fill_diagonal(y, 1), np.asarray(y))[1],
    "einsum": lambda y: np.einsum("...->...", y),
    "linalg": lambda y: np.linalg.norm(y),
    "array": np.array,
    "asarray": np.asarray,
    "asarray typed": lambda y: np.asarray(y, "float64"),
    "isin": lambda y: np.isin(2, y),
    "array copy=False": lambda y: np.array(y, copy=False),
    "histogram": lambda y: np.histogram(y, 3),
    "add out": lambda y: np.asarray(np.add(y, 1, out=y)),
    "add where": lambda y: np.add(y, 1, out=np.zeros(np.shape(y)), where=y > 0),
    "modf": lambda y: np.modf(y),
    "frexp out": lambda y: np.frexp(y, np.zeros(np.shape(y), y.dtype), None)[1],
    "reduce": lambda y: np.add.reduce(y),
    "accumulate": lambda y: np.add.accumulate(y),
    "ufunc.outer": lambda y: np.multiply.outer(y, [1, 2]),
    "ufunc.at": lambda y: (np.add.at(y, 0, 1), np.asarray(y))[1],
    "result_type": lambda y: np.result_type(y, np.float32),
    "from_dlpack": lambda y: np.from_dlpack(y),
    "frombuffer": lambda y: np.asarray(memoryview(np.asarray(y))).shape,
}


def _set(y: Any, key: Any, value: Any) -> Any:
    y[key] = value
    return np.asarray(y)


def outcome(use: Use, y: Any) -> tuple[str, Any]:
    """What came, or the type of the exception."""
    with np.errstate(all="ignore"):
        try:
            return "value", use(y)
        except Exception as error:
            return "raised", type(error)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, str | bool | int | type(None)) and not isinstance(a, np.generic):
        return bool(type(a) is type(b) and a == b)
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return x.tobytes() == y.tobytes() or bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ARRAYS)
def test_as_the_array(kind: str) -> None:
    wrong = []
    for name, use in (PYTHON | NUMPY).items():
        expected = outcome(use, ARRAYS[kind].copy())
        actual = outcome(use, Tensor(ARRAYS[kind].copy()))
        if expected[0] != actual[0] or (
            actual[1] is not expected[1]
            if actual[0] == "raised"
            else not equal(actual[1], expected[1])
        ):
            wrong.append((name, expected, actual))
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.parametrize("kind", ARRAYS)
def test_types_are_numpys(kind: str) -> None:
    array = ARRAYS[kind]
    y = Tensor(array)
    assert y.dtype == array.dtype and y.dtype == array.dtype.name and y.dtype == array.dtype.type
    assert (y.dtype == np.complex64) is False and y.dtype != "int4"
    assert f"{y.dtype}" == array.dtype.name and str(y) == repr(y)


def test_results_share_their_memory() -> None:
    run = Executor(tk.compile(graph(lambda g, x: g.relu(x), x=(4,))))["main"]
    y = run(np.array([-1, 0, 1, 2], np.float32))
    assert (y == [0, 0, 1, 2]).all() and (y + 1).tolist() == [1, 1, 2, 3] and y[3] == 2
    view = y[1:]
    y[2] = 7
    assert view[1] == 7 and y.numpy()[2] == 7 and np.shares_memory(y.T, y.numpy())
    before = y
    y += 1
    assert y is before and isinstance(y, Tensor) and y.tolist() == [1, 1, 8, 3]
    room = nd.zeros((4,))
    assert np.multiply(y, 2, out=room) is room and room.tolist() == [2, 2, 16, 6]
    assert run(y).tolist() == [1, 1, 8, 3] and run(y[::-1]).tolist() == [3, 8, 1, 1]
    with pytest.raises(ValueError, match="truth value of an array with more than one element"):
        bool(y == y)


def test_two_results_and_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b = nd.array([1.0, 2.0]), nd.array([3.0, 5.0])
    assert isinstance(a + b, np.ndarray) and (a + b).tolist() == [4, 7]
    assert (b - a * 2).tolist() == [1, 1] and (a @ b) == 13 and (a < b).all()
    assert torch.from_dlpack(a).tolist() == [1, 2] and torch.asarray(a).tolist() == [1, 2]
    assert np.asarray(a + torch.ones(2).double()).tolist() == [2, 3]
    assert math.isclose(sum(a), 3) and max(b) == 5 and 5 in b
