"""set_output with everything that can be given as a place, for outputs of all functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, Module, Tensor
from tensorkiln.script import from_source
from tests.exports import Exports

F = np.float32
X = np.arange(6, dtype=F).reshape(2, 3)
TEXT = """
@tk.script.ir_module(name="places")
class Places:
    @R.function
    def one(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "m"), "float32")):
        return R.add(x, y)

    @R.function
    def two(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "m"), "float32")):
        return (R.add(x, y), R.sub(x, y))

    @R.function
    def outer_one(x: R.Object, y: R.Object):
        return x

    @R.function
    def outer_two(x: R.Object, y: R.Object):
        return (x, y)
"""
WANTED = {
    "one": (X + X,),
    "two": (X + X, X - X),
    "outer_one": (X,),
    "outer_two": (X, X),
}


@pytest.fixture(scope="module")
def module() -> Module:
    return tk.compile(from_source(TEXT), tk.Target("native")).jit()


def _torch(array: np.ndarray, **options: Any) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array).requires_grad_(options.get("grad", False))


def _locked() -> np.ndarray:
    array = np.zeros((2, 3), F)
    array.flags.writeable = False
    return array


class _Subclass(np.ndarray):
    pass


# What is made for each, and whether it can be filled.
PLACES: dict[str, tuple[Callable[[np.ndarray], Any], bool]] = {
    "array": (lambda x: np.zeros((2, 3), F), True),
    "subclass": (lambda x: np.zeros((2, 3), F).view(_Subclass), True),
    "Tensor": (lambda x: Tensor(np.zeros((2, 3), F)), True),
    "torch": (lambda x: _torch(np.zeros((2, 3), F)), True),
    "DLPack": (lambda x: Exports(np.zeros((2, 3), F)), True),
    "Fortran": (lambda x: np.zeros((3, 2), F).T, True),
    "gaps": (lambda x: np.zeros((4, 3), F)[::2], True),
    "backwards": (lambda x: np.zeros((2, 3), F)[::-1, ::-1], True),
    "torch gaps": (lambda x: _torch(np.zeros((4, 3), F))[::2], True),
    "input": (lambda x: x, True),
    "input as Tensor": (Tensor, True),
    "beside input": (lambda x: x.base[1:3] if x.base is not None else x, True),
    "read-only": (lambda x: _locked(), False),
    "read-only Tensor": (lambda x: Tensor(_locked()), False),
    "read-only DLPack": (lambda x: Exports(_locked()), False),
    "torch that learns": (lambda x: _torch(np.zeros((2, 3), F), grad=True), False),
    "rank": (lambda x: np.zeros(6, F), False),
    "no rank": (lambda x: np.zeros((), F), False),
    "shape": (lambda x: np.zeros((3, 2), F), False),
    "empty": (lambda x: np.zeros((0, 3), F), False),
    "dtype": (lambda x: np.zeros((2, 3)), False),
    "bytes the other way": (lambda x: np.zeros((2, 3), ">f4"), False),
    "objects": (lambda x: np.zeros((2, 3), object), False),
    "number": (lambda x: 7, False),
    "number of NumPy's": (lambda x: np.float32(1), False),
    "text": (lambda x: "out", False),
    "object": (lambda x: object(), False),
    "list": (lambda x: [[0.0] * 3] * 2, False),
    "tuple of arrays": (lambda x: (np.zeros((2, 3), F),), False),
}


def _inputs() -> tuple[np.ndarray, np.ndarray]:
    """Of the same values, with memory around the first."""
    room = np.zeros((4, 3), F)
    room[:2] = X
    return room[:2], X.copy()


def _values(place: Any) -> np.ndarray:
    return np.asarray(place.array if isinstance(place, Exports) else place)


def _invoke(executor: Executor, name: str, inputs: tuple[Any, ...]) -> Any:
    executor.set_input(name, *inputs)
    executor.invoke(name)
    return executor.get_outputs(name)


@pytest.mark.parametrize("invoked", [False, True], ids=["new", "invoked"])
@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("name", WANTED)
def test_every_place(module: Module, name: str, kind: str, invoked: bool) -> None:
    """It is filled and given back, or the error is ours and the next call is as if nothing were."""
    make, fits = PLACES[kind]
    count = len(WANTED[name])
    for positions in itertools.chain.from_iterable(
        itertools.combinations(range(count), n + 1) for n in range(count)
    ):
        executor = Executor(module)
        if invoked:
            _invoke(executor, name, _inputs())
        inputs = _inputs()
        places = {k: make(inputs[k]) for k in positions}  # `input` is another for each
        for k, place in places.items():
            executor.set_output(name, k, place)
        if fits:
            result = _invoke(executor, name, inputs)
            results = result if count > 1 else (result,)
            for k, expected in enumerate(WANTED[name]):
                shares = "input" in kind and len(positions) < count and name == "outer_two"
                if not shares:  # there a result is the input that another output was written to
                    assert np.array_equal(_values(results[k]), expected), (k, positions)
            assert all(results[k] is place for k, place in places.items())
        else:
            with pytest.raises(UserError) as caught:
                _invoke(executor, name, inputs)
            assert caught.value.message and isinstance(caught.value, TypeError | ValueError)
            with pytest.raises(UserError, match="no outputs"):
                executor.get_outputs(name)
        for k in positions:
            executor.set_output(name, k, None)
        result = _invoke(executor, name, _inputs())
        for array_given, expected in zip(
            result if count > 1 else (result,), WANTED[name], strict=True
        ):
            assert np.array_equal(array_given.numpy(), expected)


INDICES: tuple[Any, ...] = (-1, 1.0, "0", None, 1 << 70, X, 10**5000)


@pytest.mark.parametrize("index", INDICES, ids=lambda i: type(i).__name__)
@pytest.mark.parametrize("name", WANTED)
def test_no_such_output(module: Module, name: str, index: Any) -> None:
    executor = Executor(module)
    with pytest.raises(UserError) as caught:
        executor.set_output(name, index, np.zeros((2, 3), F))
        _invoke(executor, name, _inputs())
    assert caught.value.code == "no-output"
