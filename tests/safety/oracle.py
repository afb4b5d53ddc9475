"""What functions of the libraries compute, by NumPy, where that is cheap to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorkiln.ops.dynamic import DYNAMIC
from tests.safety.libraries import WEIGHTS

_MOST = 20000  # elements


def _take(x: Any, i: Any) -> Any:
    return x[np.where(i < 0, i + len(x), i)]


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _concat(x: Any, y: Any) -> Any:
    z = np.concatenate([x, y])
    return z, _softmax(z)


def _dynamic(op: str, **attrs: Any) -> Any:
    operator = DYNAMIC[op]
    return lambda *arrays: operator.numpy(arrays, operator.complete(attrs))


def _places(x: Any) -> Any:
    """NumPy refuses rows of length 0 also where there are none; ONNX Runtime gives no places."""
    return x.argmax(axis=1) if len(x) else np.zeros(0, np.int64)


RIGHT = {
    "add": lambda x, y: x + y,
    "scalar": lambda x: -x,
    "total": lambda x, y: (x @ y).sum(),
    "four": lambda a, b, c, d: a.sum() + b.sum() + c.sum() + d.sum(),
    "concat": _concat,
    "take": _take,
    "best": _places,
    "deep": lambda x: x.transpose(),
    "dense": lambda x: np.maximum(x @ WEIGHTS, 0),
    "nonzero": _dynamic("nonzero"),
    "unique": _dynamic("unique"),
    "unique_first": _dynamic("unique", axis=0, sorted=False),
    "unique_last": _dynamic("unique", axis=-1),
    "compress": _dynamic("compress"),
    "compress_second": _dynamic("compress", axis=1),
    "cut": _dynamic("slice_dynamic"),
    "same": lambda x: x,
}


def wrong_result(name: str, arguments: Sequence[Any], result: Any) -> str:
    """What is wrong with a result; empty where nothing is, or nobody knows."""
    if name not in RIGHT or not all(isinstance(a, np.ndarray) for a in arguments):
        return ""
    if any(a.size > _MOST or a.dtype.kind == "V" for a in arguments):
        return ""
    try:
        want = RIGHT[name](*arguments)
    except Exception as error:
        return f"taken, and NumPy refuses it: {type(error).__name__}: {error}"
    expected = want if isinstance(want, tuple) else (want,)
    results = result if isinstance(result, tuple) else (result,)
    if len(expected) != len(results):
        return f"{len(results)} results, expected {len(expected)}"
    for w, g in zip(map(np.asarray, expected), results, strict=True):
        if g.shape != w.shape:
            return f"a result of shape {g.shape}, expected {w.shape}"
        if not np.allclose(g.numpy(), w, rtol=1e-3, atol=1e-3, equal_nan=True):
            return f"the result is {g.numpy()!r}, expected {w!r}"[:600]
    return ""
