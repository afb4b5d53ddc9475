"""What callers give and say of it: texts, objects that lie, tensors of hosts and loaders."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import InternalError, TensorkilnError, UserError
from tensorkiln.cli.entry import main as kiln
from tensorkiln.runtime import Executor, Module, Tensor, load_module, register_function
from tensorkiln.runtime.native import Value
from tensorkiln.runtime.tensor import DLTensor, describe_array
from tensorkiln.runtime.values import from_value
from tensorkiln.script import from_source
from tests.exports import Exports
from tests.safety.objects import NONSENSE

F = np.float32
TEXT = """
@tk.script.ir_module(name="given")
class Given:
    @R.function
    def add(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("n", "m"), "float32")):
        return R.add(x, y)

    @R.function
    def same(x: R.Object):
        return x

    @R.function
    def ask(x: R.Object) -> R.Object:
        y: R.Object = R.call_packed("test_actual_types.host", x, R.Object)
        return y

    @T.prim_func
    def scale(x: T.Buffer(("n",), "float32"), factor: T.float32, shift: T.int64):
        for i in range(n):
            x[i] = x[i] * factor + T.cast("float32", shift)
"""


@pytest.fixture(scope="module")
def compiled() -> tk.Executable:
    return tk.compile(from_source(TEXT), tk.Target("native"))


@pytest.fixture(scope="module")
def module(compiled: tk.Executable) -> Iterator[Module]:
    register_function("test_actual_types.host", lambda x: x)
    yield compiled.jit()
    tk.runtime.unregister_function("test_actual_types.host")


# ---- texts --------------------------------------------------------------------------------------

TEXTS = ("\ud800", "add\0", "\0", "\udcff", "a\udfffb", "", "x" * 100_000)
Use = Callable[[tk.Executable, Module, str, Path], object]
USES: dict[str, Use] = {
    "function": lambda e, m, t, p: m[t],
    "function of an executor": lambda e, m, t, p: Executor(m)[t],
    "function of an executable": lambda e, m, t, p: e[t],
    "info": lambda e, m, t, p: m.info(t),
    "contains": lambda e, m, t, p: t in m,
    "set_input": lambda e, m, t, p: Executor(m).set_input(t, 1),
    "set_output": lambda e, m, t, p: Executor(m).set_output(t, 0, None),
    "invoke": lambda e, m, t, p: Executor(m).invoke(t),
    "get_outputs": lambda e, m, t, p: Executor(m).get_outputs(t),
    "name of an input": lambda e, m, t, p: Executor(m)["add"](**{t: 1}),
    "value": lambda e, m, t, p: Executor(m)["same"](t),
    "value in a tuple": lambda e, m, t, p: Executor(m)["same"]((1, [t])),
    "tensor": lambda e, m, t, p: Executor(m)["add"](t, t),
    "number": lambda e, m, t, p: m["scale"](np.ones(2, F), t, 1),
    "out": lambda e, m, t, p: Executor(m)["add"](np.ones((1, 1), F), np.ones((1, 1), F), out=t),
    "answer of a function": lambda e, m, t, p: _ask(m, t),
    "error of a function": lambda e, m, t, p: _ask(m, UserError(t)),
    "register": lambda e, m, t, p: register_function(t, len),
    "unregister": lambda e, m, t, p: tk.runtime.unregister_function(t),
    "loader": lambda e, m, t, p: tk.runtime.register_loader(t, len),
    "no loader": lambda e, m, t, p: tk.runtime.unregister_loader(t),
    "load": lambda e, m, t, p: load_module(t),
    "metadata": lambda e, m, t, p: tk.runtime.read_metadata(t),
    "export": lambda e, m, t, p: e.export_library(p / f"{t}.so"),
    "export by a compiler": lambda e, m, t, p: e.export_library(p / "net.so", fcompile=f"gcc {t}"),
    "workspace": lambda e, m, t, p: e.export_library(p / "n.so", workspace_dir=f"{p}/{t}"),
    "addon": lambda e, m, t, p: e.export_library(p / "n.so", addons=[t]),
    "exports": lambda e, m, t, p: e.export_library(p / "n.so", exports=[t]),
    "weights": lambda e, m, t, p: e.export_library(p / "n.so", weights=t),
    "archive": lambda e, m, t, p: e.export_model_library_format(p / t),
    "archive of a name": lambda e, m, t, p: e.export_model_library_format(p / "m.tar", t),
    "jit": lambda e, m, t, p: e.jit(fcompile=f"gcc {t}"),
    "set": lambda e, m, t, p: e.artifacts.save(p / t),
    "set again": lambda e, m, t, p: tk.ArtifactSet.load(p / t),
    "artifact": lambda e, m, t, p: e.artifacts[t],
    "dtype": lambda e, m, t, p: tk.nd.empty((2,), t),
    "target": lambda e, m, t, p: tk.Target(t),
    "name of a module": lambda e, m, t, p: tk.compile(from_source(TEXT), name=t),
}
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("{}",),
    ("compile", "{}"),
    ("compile", "net.onnx", "-o", "{}"),
    ("run", "{}"),
    ("run", "net.so", "{}"),
    ("inspect", "{}"),
    ("check", "{}"),
    ("explain", "{}"),
    ("bench", "{}"),
    ("compile", "{}", "--target", "{}"),
    ("targets", "{}"),
    ("demo", "--{}"),
)


def _ask(module: Module, answer: Any) -> object:
    def host(x: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    register_function("test_actual_types.host", host)
    return Executor(module)["ask"](1)


def _outcome(call: Callable[[], object]) -> str:
    """The code of its error; anything but one of ours is the test's."""
    try:
        call()
    except InternalError:
        raise
    except TensorkilnError as error:
        assert str(error).encode(errors="replace")
        return error.code
    return ""


@pytest.mark.parametrize("use", USES)
def test_texts(compiled: tk.Executable, module: Module, use: str, tmp_path: Path) -> None:
    """Every call that takes one: it is taken as it is, or the error is ours."""
    for text in TEXTS:
        if use == "error of a function":
            with pytest.raises(UserError) as caught:
                USES[use](compiled, module, text, tmp_path)
            assert caught.value.message == text  # the very one
            continue
        code = _outcome(lambda t=text: USES[use](compiled, module, t, tmp_path))  # type: ignore[misc]
        if "function" in use and use != "answer of a function":
            assert code, f"{text!r} is the name of none"
        if use.startswith("value") or use == "answer of a function":
            assert bool(code) == (text in ("\ud800", "a\udfffb")), repr(text)
    tk.runtime.unregister_function("x" * 100_000)
    tk.runtime.unregister_loader("x" * 100_000)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_come_back(module: Module, text: str) -> None:
    """As they were given; bytes of other programs are halves of pairs, which come and go too."""
    identity = Executor(module)["same"]
    if _outcome(lambda: identity(text)) == "":
        assert identity(text) == text
    else:
        assert max(text) >= "\ud800" and text != "\udcff"


@pytest.mark.parametrize("words", COMMANDS)
def test_texts_of_commands(
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("\udcff", "a\0b", "\ud800", ""):
        try:
            code = kiln([word.format(text) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        assert code == 2, (text, capsys.readouterr())


@pytest.mark.parametrize("name", [7, None, b"add", ["add"], 1.5, object()])
def test_names_that_are_none(module: Module, name: Any) -> None:
    for call in (
        lambda: module[name],
        lambda: Executor(module)[name],
        lambda: Executor(module).invoke(name),
        lambda: tk.runtime.unregister_function(name),
        lambda: register_function(name, len),
        lambda: tk.runtime.register_loader(name, len),
    ):
        assert _outcome(call) == "argument-kind"
    assert name not in module


# ---- objects that lie ---------------------------------------------------------------------------


class _OwnError(Exception):
    pass


def _liar(base: type, attribute: str, answer: Any) -> Any:
    """An array, number or text whose class says something else of it, or raises."""

    def say(self: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(answer, _OwnError):
            raise answer
        return answer

    liar_class = type(
        "Liar", (base,), {attribute: say if attribute[:3] == "__i" else property(say)}
    )
    if base is np.ndarray:
        return np.ones((2, 3), F).view(liar_class)
    return liar_class(np.ones((2, 3), F)) if base is Exports else liar_class("1")


ATTRIBUTES = (
    "__class__",
    "shape",
    "dtype",
    "ndim",
    "strides",
    "flags",
    "ctypes",
    "size",
    "__int__",
    "__index__",
    "__array_interface__",
    "__iter__",
)
ANSWERS = (_OwnError(), int, bool, str, tuple, list, np.ndarray, np.float32, Tensor, *NONSENSE)
CALLS: dict[str, Callable[[Executor, Any], object]] = {
    "input": lambda e, x: e["add"](x, np.ones((2, 3), F)),
    "out": lambda e, x: e["add"](np.ones((2, 3), F), np.ones((2, 3), F), out=x),
    "value": lambda e, x: e["same"](x),
    "out of a value": lambda e, x: e["same"](np.ones((2, 3), F), out=x),
    "in a tuple": lambda e, x: e["same"]((x, [x])),
    "buffer": lambda e, x: e["scale"](x, 1, 1),
    "real": lambda e, x: e["scale"](np.ones(2, F), x, 1),
    "integer": lambda e, x: e["scale"](np.ones(2, F), 1, x),
}


@pytest.mark.parametrize("base", [np.ndarray, Exports, int, float, str])
@pytest.mark.parametrize("call", CALLS)
def test_objects_that_lie(module: Module, call: str, base: type) -> None:
    """Taken for what they are, refused by an error of ours, or it is their own that comes."""
    executor = Executor(module)
    for attribute in ATTRIBUTES:
        for answer in ANSWERS:
            value = _liar(base, attribute, answer)
            try:
                CALLS[call](executor, value)
            except InternalError:
                raise
            except UserError:
                pass
            except _OwnError as error:
                assert error is answer


# ---- tensors of others --------------------------------------------------------------------------


def _tensor(**changes: Any) -> tuple[DLTensor, object]:
    view, owner = describe_array(np.ones((2, 3), F))
    for name, value in changes.items():
        setattr(view, name, value)
    return view, owner


def _sizes(*numbers: int) -> Any:
    return ctypes.cast((ctypes.c_int64 * 80)(*numbers), ctypes.POINTER(ctypes.c_int64))


WRONG: dict[str, dict[str, Any]] = {
    "negative": {"shape": _sizes(2, -3)},
    "both negative": {"shape": _sizes(-2, -3)},
    "negative beside nothing": {"shape": _sizes(0, -3)},
    "no data": {"data": None},
    "no shape": {"shape": None},
    "rank below 0": {"ndim": -1},
    "rank of 65": {"ndim": 65, "shape": _sizes(*[1] * 65)},
    "rank of 2**31": {"ndim": 2**31 - 1},
    "device": {"device_type": 2},
    "unknown type": {"code": 5, "bits": 64},
    "handle": {"code": 3, "bits": 64},
    "no bits": {"bits": 0},
    "half a byte": {"code": 0, "bits": 4},
    "bits of nothing": {"bits": 33},
    "one bit": {"code": 6, "bits": 1},
    "no lanes": {"lanes": 0},
    "lanes": {"lanes": 4},
    "larger than memory": {"shape": _sizes(1 << 40, 1 << 40), "strides": None},
    "larger by strides": {"shape": _sizes(1 << 62, 1 << 62), "strides": _sizes(0, 0)},
    "empty and larger": {"shape": _sizes(0, 1 << 62), "strides": None},
    "strides beyond": {"strides": _sizes(1 << 62, 1 << 62)},
}


@pytest.mark.parametrize("lie", WRONG)
def test_tensors_of_others(module: Module, lie: str) -> None:
    """A host's function and a loader give what they like: an error, or an array of that shape."""
    view, owner = _tensor(**WRONG[lie])
    value = Value()
    value.kind, value.payload.pointer = 7, ctypes.addressof(view)
    with pytest.raises(UserError) as caught:
        from_value(module.library, value)
    assert isinstance(caught.value, TypeError | ValueError)
    del owner


def test_tensors_of_others_that_are_right(module: Module) -> None:
    for changes in ({}, {"shape": _sizes(2, 0), "data": None}, {"strides": None}, {"ndim": 0}):
        view, owner = _tensor(**changes)
        value = Value()
        value.kind, value.payload.pointer = 7, ctypes.addressof(view)
        assert from_value(module.library, value).numpy().all()
        del owner


# ---- errors of functions ------------------------------------------------------------------------


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [_Unspeakable(), ValueError("a\0b"), ValueError("\ud800")])
def test_an_error_that_cannot_be_said(module: Module, error: Exception) -> None:
    """It passes as it is all the same."""
    with pytest.raises(type(error)) as caught:
        _ask(module, error)
    assert caught.value is error


# ---- numbers and lists without end --------------------------------------------------------------


def test_numbers_that_cannot_be_said(module: Module) -> None:
    """str() refuses integers of more than 4300 digits: the message does without."""
    executor, x = Executor(module), np.ones((1, 1), F)
    for number in (10**5000, -(10**5000)):
        for call in (
            lambda n=number: module.set_num_threads(n),
            lambda n=number: executor.set_num_threads(n),
            lambda n=number: tk.cpu(n),
            lambda n=number: executor["same"](n),
            lambda n=number: executor["add"](n, x),
            lambda n=number: executor["scale"](x[0], n, 1),
            lambda n=number: executor["scale"](x[0], 1, n),
            lambda n=number: executor["scale"](n, 1, 1),
        ):
            assert _outcome(call)


def test_a_list_in_itself(module: Module) -> None:
    endless: list[object] = []
    endless.append(endless)
    for value in (endless, (1, endless)):
        assert _outcome(lambda v=value: Executor(module)["same"](v)) == "call-depth"  # type: ignore[misc]
