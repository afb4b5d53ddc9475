"""`tk.load("net.so")(x)` and `tk.compile(...)(x)`: what goes in, what comes out, how it shows."""

from __future__ import annotations

import array
import copy
import hashlib
import inspect
import pickle
import pydoc
import subprocess
import sys
import threading
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.runtime import LoadedModel, Outputs
from tensorkiln.runtime.tensor import dtype_named
from tensorkiln.script import from_source

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
DTYPES = ["float32", "float64", "float16", "bfloat16", "bool", *INTEGERS]

TURN = """
@R.function
def turn_{d}(x: R.Tensor((2, 3), "{d}")) -> R.Tensor((3, 2), "{d}"):
    y: R.Tensor((3, 2), "{d}") = R.transpose(x, axes=(1, 0))
    return y
"""
OTHERS = """
@R.function
def pair(a: R.Tensor(("n",), "float32"), b: R.Tensor(("n",), "float32")):
    s = R.add(a, b)
    d = R.sub(a, b)
    return s, d
@R.function
def scale(x: R.Tensor((2,), "float32"), by: R.Tensor((), "float32")):
    return R.mul(x, by)
@R.function
def odd(self: R.Tensor((2,), "float32"), out: R.Tensor((2,), "float32")):
    return R.sub(self, out)
@T.prim_func
def fill(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = X[i] + T.float32(1)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    text = "".join(TURN.replace("{d}", d) for d in DTYPES) + OTHERS
    exe = tk.compile(from_source(text), "native")
    return exe.export_library(tmp_path_factory.mktemp("loaded") / "net.so")


@pytest.fixture(scope="module")
def net(path: Path) -> LoadedModel:
    return tk.load(path)


def values(dtype: str) -> np.ndarray:
    kind = dtype_named(dtype)
    return (np.arange(6).reshape(2, 3) % (2 if dtype == "bool" else 100)).astype(kind)


class Readable:
    """Like an image: NumPy reads it."""

    def __init__(self, of: np.ndarray):
        self._of = of

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._of, dtype=dtype, copy=copy)


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda x: x,
    "strided": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "subclass": lambda x: x.view(np.ma.MaskedArray).data,
    "list": lambda x: x.tolist(),
    "tuple": lambda x: tuple(map(tuple, x.tolist())),
    "rows": list,  # of arrays
    "readable": Readable,
    "ours": lambda x: tk.nd.array(x),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_form_and_type_goes_in_and_arrays_come_out(
    net: LoadedModel, dtype: str, form: str
) -> None:
    x = values(dtype)
    y = net[f"turn_{dtype}"](FORMS[form](x))
    assert type(y) is np.ndarray and y.dtype == dtype_named(dtype)
    np.testing.assert_array_equal(y, x.T)


@pytest.mark.parametrize("code", "bBhHiIqQfd")
def test_buffers_have_types(net: LoadedModel, code: str) -> None:
    flat = array.array(code, range(6))
    x = memoryview(flat).cast("B").cast(code, (2, 3))
    name = np.dtype(code).name
    y = net[f"turn_{name}"](x)
    np.testing.assert_array_equal(y, np.asarray(x).T)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["plain", "strided", "parameter"])
def test_torch_in_torch_out(net: LoadedModel, dtype: str, form: str) -> None:
    kind = getattr(torch, dtype)
    x = torch.arange(6).reshape(2, 3).remainder(2 if dtype == "bool" else 100).to(kind)
    if form == "strided":
        x = x.repeat_interleave(2, 1)[:, ::2]
    if form == "parameter":
        x = torch.nn.Parameter(x, requires_grad=False)
    y = net[f"turn_{dtype}"](x)
    assert isinstance(y, torch.Tensor) and y.dtype == kind and y.shape == (3, 2)
    assert torch.equal(y, x.T)


def test_one_torch_tensor_decides(net: LoadedModel) -> None:
    for a, b in (
        (torch.ones(3), np.ones(3, np.float32)),
        (np.ones(3, np.float32), torch.ones(3)),
        ([1, 1, 1], torch.ones(3)),
    ):
        y = net["pair"](a, b)
        assert type(y) is Outputs and all(isinstance(v, torch.Tensor) for v in y)
    with pytest.raises(UserError, match="require"):
        net["pair"](torch.ones(3, requires_grad=True), torch.ones(3))


def test_inputs_by_name_in_a_dictionary_or_both(net: LoadedModel) -> None:
    a, b = np.arange(3, dtype=np.float32), np.full(3, 2, np.float32)
    f = net["pair"]
    by_name = {"a": a, "b": b}
    mapped = (by_name, UserDict(by_name), MappingProxyType(by_name))  # tokenizers return the second
    for y in (f(a, b), f(a, b=b), f(b=b, a=a), *map(f, mapped), f({"b": b}, a=a)):
        assert len(y.names) == 2
        np.testing.assert_array_equal(y[0], a + b)
        np.testing.assert_array_equal(y[y.names[1]], a - b)
        assert list(y.asdict()) == list(y.names) and next(iter(y)) is y[0]
    x, z = np.ones(2, np.float32), np.zeros(2, np.float32)
    np.testing.assert_array_equal(net["odd"]({"self": x, "out": z}), x)
    np.testing.assert_array_equal(net["odd"](x, z), x)
    np.testing.assert_array_equal(net["scale"]([1, 2], 3), [3, 6])
    np.testing.assert_array_equal(net["scale"]([1.5, 2], np.float32(2)), [3, 4])
    np.testing.assert_array_equal(net["scale"](by=2.0, x=(1, 2)), [2, 4])


def test_outputs(net: LoadedModel) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for place in (np.zeros((3, 2), np.float32), torch.zeros(3, 2)):
        assert net["turn_float32"](x, out=place) is place
        np.testing.assert_array_equal(np.asarray(place), x.T)
    a = np.ones(3, np.float32)
    places = [np.zeros(3, np.float32), np.ones(3, np.float32)]
    assert net["pair"](a, a, out=places) is places
    assert places[0].tolist() == [2] * 3 and places[1].tolist() == [0] * 3
    y = net["pair"](a, a)
    assert y[:1] == (y[0],) and type(y[:1]) is tuple and y[-1] is y[1]
    for copied in (copy.copy(y), pickle.loads(pickle.dumps(y))):
        assert type(copied) is Outputs and copied.names == y.names
    assert repr(y).startswith("Outputs(") and y.names[0] in repr(y)
    with pytest.raises(KeyError, match="no output 'z'"):
        y["z"]
    with pytest.raises(IndexError):
        y[2]


# What is refused: function, arguments, names, words of the error, its code
REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str]] = [
    ("turn_float32", (np.zeros((2, 3)),), {}, "float32, received float64", "dtype-mismatch"),
    ("turn_float32", (np.zeros((2, 4), "f4"),), {}, "shape|size|dimension", "shape-mismatch"),
    ("turn_float32", ([[1, 2, 3], [4, 5]],), {}, "NumPy makes no array", "shape-mismatch"),
    ("turn_float32", ([[1, 2, 3]],), {}, "x", "shape-mismatch"),
    ("turn_float32", ([["a"] * 3] * 2,), {}, "input 'x', a list, holds str", "dtype-mismatch"),
    ("turn_float32", ([[1j] * 3] * 2,), {}, "holds complex128", "dtype-mismatch"),
    ("turn_float32", ([[object()] * 3] * 2,), {}, "holds object", "dtype-mismatch"),
    ("turn_int8", ([[1.5] * 3] * 2,), {}, "holds float64 and must hold int8", "dtype-mismatch"),
    ("turn_int8", ([[128] * 3] * 2,), {}, "beyond int8, -128 to 127", "out-of-range"),
    ("turn_uint8", ([[-1] * 3] * 2,), {}, "beyond uint8, 0 to 255", "out-of-range"),
    ("turn_bool", ([[1] * 3] * 2,), {}, "must hold bool", "dtype-mismatch"),
    ("turn_float32", (None,), {}, "received NoneType", "argument-kind"),
    ("turn_float32", ("text",), {}, "received str", "argument-kind"),
    ("turn_float32", (object(),), {}, "received object", "argument-kind"),
    ("turn_float32", (), {}, "expected 1 input", "argument-count"),
    ("turn_float32", (1, 2), {}, "expected 1 input", "argument-count"),
    ("turn_float32", (), {"xx": 1}, "has no input 'xx'", "unknown-input"),
    ("turn_float32", ({"xx": 1},), {}, "has no input 'xx'", "unknown-input"),
    ("turn_float32", ({1: 1},), {}, "names of inputs are strings", "argument-kind"),
    ("turn_float32", ({"x": 1},), {"x": 1}, "given twice", "argument-count"),
    ("pair", ([1.0],), {}, "expected 2 inputs", "argument-count"),
    ("pair", ([1.0],), {"a": [1.0]}, "given twice", "argument-count"),
    ("fill", (1,), {}, "expected 2 inputs", "argument-count"),
    ("fill", (np.ones(4, "f4"),) * 2, {"out": np.ones(4, "f4")}, "not `out`", "argument-kind"),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda r: f"{r[0]}-{r[4]}-{r[3][:12]}")
def test_what_is_refused(net: LoadedModel, row: tuple[Any, ...]) -> None:
    name, arguments, named, words, code = row
    with pytest.raises(UserError, match=words) as caught:
        net[name](*arguments, **named)
    assert caught.value.code == code


def test_empty_lists(net: LoadedModel) -> None:
    y = net["pair"]([], [])
    assert [v.shape for v in y] == [(0,), (0,)]


def test_a_tensor_program_writes_into_its_arguments(net: LoadedModel) -> None:
    y = np.zeros(4, np.float32)
    assert net["fill"](np.ones(4, np.float32), y) is None and y.tolist() == [2] * 4
    assert net["fill"]({"X": np.zeros(4, np.float32), "Y": y}) is None and y.tolist() == [1] * 4


def test_outer_functions_return_arrays_within_tuples() -> None:
    text = """
@R.function
def main(x: R.Tensor((2,), "float32"), c: R.Tensor((), "bool")):
    if c:
        y = R.neg(x)
    else:
        y = R.relu(x)
    return y
"""
    exe = tk.compile(from_source(text))
    x = np.array([1, -2], np.float32)
    y = exe(x, True)
    assert type(y) is np.ndarray and y.tolist() == [-1, 2]
    z = exe(torch.from_numpy(x), np.array(False))
    assert isinstance(z, torch.Tensor) and z.tolist() == [1, 0]
    assert exe([1, -2], True).tolist() == [-1, 2]


# ---- entries, how they show ----------------------------------------------------------------------


def one(text: str = TURN.replace("{d}", "float32")) -> tk.Executable:
    return tk.compile(from_source(text))


def test_the_entry(net: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only one function") as caught:
        net(1)
    assert caught.value.code == "no-entry" and "f['turn_float32'](...)" in caught.value.hint
    assert "turn_float32" in net and "x" not in net and 5 not in net
    assert set(net) == set(net.functions)
    f = tk.load(one().export_library(tmp_path / "one.so"))
    assert f.entry == "turn_float32" and f.inputs[0].name == "x" and f.outputs[0].shape == (3, 2)
    x = values("float32")
    np.testing.assert_array_equal(f(x), x.T)
    assert f["turn_float32"] is f["turn_float32"]
    f.close()
    with pytest.raises(UserError, match="closed"):
        f(x)


def test_signatures_and_help(net: LoadedModel) -> None:
    exe = one()
    f = exe.jit()
    loaded = LoadedModel(f, f.create_executor(), None)
    for subject in (exe, loaded, loaded["turn_float32"], net["turn_float32"]):
        signature = inspect.signature(subject)
        assert list(signature.parameters) == ["x", "out"]
        assert signature.parameters["x"].annotation == "float32[2, 3]"
        assert signature.return_annotation == "float32[3, 2]"
    for subject in (loaded, loaded["turn_float32"]):
        assert "x: float32 [2, 3]" in pydoc.render_doc(subject, renderer=pydoc.plaintext)
    assert "turn_float32(x: float32 [2, 3])" in repr(exe)
    assert "turn_float32(x: float32 [2, 3])" in repr(loaded)
    assert "graph function pair" in repr(net["pair"]) and "net.so" in repr(net)
    assert inspect.signature(net["odd"]).parameters["input0"].kind.name == "POSITIONAL_ONLY"
    assert inspect.signature(net["fill"]).return_annotation is None
    for page in (exe._repr_html_(), loaded._repr_html_()):
        for words in ("<table>", "float32 [2, 3]", "workspace", "weights", "kernels"):
            assert words in page, words
    assert "workspace" not in net._repr_html_() and "turn_int8" in net._repr_html_()  # too many


def test_names_with_markup_are_escaped() -> None:
    exe = one()
    exe.name = "<b>"
    assert "<b>" not in exe._repr_html_()


def test_the_package_shows_its_public_names_only() -> None:
    assert dir(tk) == sorted(tk.__all__)
    for name in tk.__all__:
        assert getattr(tk, name) is not None


# ---- threads, pickles, hashes --------------------------------------------------------------------


def test_threads(path: Path) -> None:
    f = tk.load(path, num_threads=1)
    assert f.num_threads == 1
    f.num_threads = 3
    assert f.num_threads == 3
    f.num_threads = 0
    assert f.num_threads == f.module.num_threads
    for wrong in (-1, 5000, "2", 1.5):
        with pytest.raises(UserError):
            f.num_threads = wrong  # type: ignore[assignment]
        with pytest.raises(UserError):
            tk.load(path, num_threads=wrong)  # type: ignore[arg-type]


def test_calls_from_many_threads(net: LoadedModel) -> None:
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
        for _ in range(200):
            if not np.array_equal(net["turn_float32"](x), x.T):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_pickles(path: Path, tmp_path: Path) -> None:
    f = tk.load(path, tk.cpu(), num_threads=1)
    again = pickle.loads(pickle.dumps(f))
    assert again.num_threads == 1 and again.module.path == path
    code = "import pickle, sys; f = pickle.load(sys.stdin.buffer); print(f['scale']([1, 2], 3))"
    process = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(f), capture_output=True, check=True
    )
    assert process.stdout == b"[3. 6.]\n"
    exe = one()
    x = values("float32")
    exe(x)  # loaded, which does not go into the pickle
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(exe))(x), x.T)
    assert exe._model is not None
    with pytest.raises(UnsupportedError, match="temporary one"):
        pickle.dumps(exe._model)


def test_the_hash_of_the_file(path: Path) -> None:
    right = hashlib.sha256(path.read_bytes()).hexdigest()
    for text in (right, right.upper()):
        assert tk.load(path, sha256=text)["scale"]([1, 2], 1).tolist() == [1, 2]
        assert "scale" in tk.runtime.load_module(path, sha256=text)
    wrong_hash = ("0" if right[0] != "0" else "1") + right[1:]
    with pytest.raises(
        UserError, match=f"has the SHA-256 {right}, expected {wrong_hash}"
    ) as caught:
        tk.load(path, sha256=wrong_hash)
    assert caught.value.code == "bad-hash"
    for wrong in ("", "12", right[:-1], right + "00", "g" * 64, 5, b"x"):
        with pytest.raises(UserError, match="sha256"):
            tk.load(path, sha256=wrong)  # type: ignore[arg-type]


def test_bfloat16_of_ml_dtypes(net: LoadedModel) -> None:
    x = values("bfloat16")
    assert x.dtype == ml_dtypes.bfloat16
    y = net["turn_bfloat16"](x.tolist())
    assert y.dtype == ml_dtypes.bfloat16 and np.array_equal(y, x.T)
