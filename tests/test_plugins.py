"""Whatever somebody else's function does, the error names it and keeps its exception as the cause.

Every place where a user's function is called x every way in which it may misbehave.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.base.progress import Progress
from tensorkiln.external import External
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.inspectors import Inspectors
from tensorkiln.inspectors.extract import extract
from tensorkiln.inspectors.registry import make_inspector
from tensorkiln.passes import Instrument
from tensorkiln.runtime import load
from tensorkiln.script import from_source
from tensorkiln.target import register_target_kind, unregister_target_kind
from tensorkiln.target.hooks import Hooks
from tests.transform.graphs import graph

MODULE = graph(lambda g, x: g.tanh(g.mul(x, 2.0)), x=(4,))
X = np.ones(4, np.float32)
Misbehave = Callable[..., Any]


class OwnError(Exception):
    pass


def raises(*_: object, **__: object) -> Any:
    raise OwnError("of all things")


def interrupted(*_: object, **__: object) -> Any:
    raise KeyboardInterrupt


def gives(value: object) -> Misbehave:
    return lambda *_, **__: value


RAISES = {"raises": raises, "interrupted": interrupted}
ANSWERS: dict[str, Misbehave] = {
    "none": gives(None),
    "text": gives("text"),
    "number": gives(7.5),
    "object": gives(object()),
    "bytes": gives(b"bytes"),
    "list": gives([1, "a"]),
}


# -- one entry per place: calls the misbehaving function; the words that errors must hold ----------


def supports(f: Misbehave, tmp: Path) -> None:
    tk.compile(MODULE, externals=[External("mine", f, C_REFERENCE.emit)])


def match(f: Misbehave, tmp: Path) -> None:
    external = External("mine", lambda c, t: False, C_REFERENCE.emit, match=f)
    tk.compile(MODULE, externals=[external])


def emit(f: Misbehave, tmp: Path) -> None:
    tk.compile(MODULE, externals=[External("mine", lambda c, t: c.op == "mul", f)])


def dependencies(f: Misbehave, tmp: Path) -> None:
    mine = External("mine", lambda c, t: c.op == "mul", C_REFERENCE.emit, f)
    tk.compile(MODULE, externals=[mine])


def of_a_module(f: Misbehave, tmp: Path) -> None:
    load.register_loader("mine", lambda files, devices: {"get_external_dependencies": f})
    try:
        tk.compile(MODULE, externals=[ELSEWHERE]).jit().get_external_dependencies()
    finally:
        load.unregister_loader("mine")


def inspector(f: Misbehave, tmp: Path) -> None:
    artifact = Artifact("npu", "npu", "stream.bin", b"")
    Inspectors([make_inspector("mine", f, suffix=".bin")]).text(artifact)


def extracted(f: Misbehave, tmp: Path) -> None:
    artifacts = ArtifactSet((Artifact("npu", "npu", "stream.bin", b""),))
    said: list[str] = []
    row = make_inspector("mine", f, suffix=".bin", writes=".txt")
    extract(artifacts, tmp / "out", Inspectors([row]), "", said.append)
    if said:
        raise UserError(said[0])


def loader(f: Misbehave, tmp: Path) -> None:
    load.register_loader("mine", f)
    try:
        exe = tk.compile(MODULE, externals=[ELSEWHERE])
        exe.jit()
    finally:
        load.unregister_loader("mine")


def in_memory(f: Misbehave, tmp: Path) -> None:
    made = InMemoryArtifact("mine", "part.bin", f)
    external = External("mine", lambda c, t: c.op == "mul", lambda g, s: [made])
    tk.compile(MODULE, externals=[external]).jit()


def a_pass(f: Misbehave, tmp: Path) -> None:
    def mine(mod: Any) -> Any:
        return f(mod)

    tk.compile(MODULE, relax_pipeline=[mine])


def instrument(method: str, f: Misbehave, tmp: Path) -> None:
    made = type("Mine", (Instrument,), {method: lambda self, step: f(step)})()
    tk.compile(MODULE, instruments=[made])


def hook(name: str, f: Misbehave, tmp: Path) -> None:
    register_target_kind("mine", "cpu", **{"relax_codegen": gives(()), name: f})
    try:
        tk.compile(MODULE, "mine").export_library(tmp / "net.so")
    finally:
        unregister_target_kind("mine")


def fcompile(f: Misbehave, tmp: Path) -> None:
    exe = tk.compile(MODULE)

    def mine(output: str, files: list[str], options: list[str]) -> Any:
        return f(output)

    exe.export_library(tmp / "net.so", fcompile=mine)


def progress(method: str, f: Misbehave, tmp: Path) -> None:
    made = type("Mine", (Progress,), {method: lambda self, *a, **k: f(*a, **k)})()
    tk.compile(MODULE, "llvm", progress=made)


ELSEWHERE = External(
    "mine", lambda c, t: c.op == "mul", lambda f, s: [Artifact("mine", "mine", "a.bin", b"")]
)
HOOKS = [f.name for f in fields(Hooks)]
PLACES: dict[str, tuple[Callable[[Misbehave, Path], None], list[str]]] = {
    "supports": (supports, ["external 'mine'", "supports(mul)"]),
    "match": (match, ["external 'mine'", "match(mul)"]),
    "emit": (emit, ["external 'mine'", "mine_mul"]),
    "dependencies": (dependencies, ["external 'mine'", "dependencies(mine_mul)"]),
    "get_external_dependencies": (of_a_module, ["get_external_dependencies of loader 'mine'"]),
    "inspector": (inspector, ["artifact.inspect_bin_mine", "npu/stream.bin"]),
    "loader": (loader, ["loader 'mine'"]),
    "in_memory": (in_memory, ["mine"]),
    "pass": (a_pass, ["mine"]),
    "instrument.before": (partial(instrument, "before"), ["instrument Mine", "before("]),
    "instrument.after": (partial(instrument, "after"), ["instrument Mine", "after("]),
    "fcompile": (fcompile, ["fcompile 'mine'"]),
    **{f"hook.{name}": (partial(hook, name), [name, "kind 'mine'"]) for name in HOOKS},
    **{
        f"progress.{name}": (partial(progress, name), ["progress Mine", name])
        for name in ("phase", "advance", "note")
    },
}
# What these give is not looked at, or may be that.
IGNORED = {
    "instrument.before",
    "instrument.after",
    "progress.phase",
    "progress.advance",
    "progress.note",
}
RIGHT = {("match", "none"), ("inspector", "text"), ("hook.linker", "text")}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_raised(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call, words = PLACES[place]
    monkeypatch.setenv("KILN_CACHE", "0") if place == "fcompile" else None
    with pytest.raises(UserError) as caught:
        call(raises, tmp_path)
    error = caught.value
    assert all(w in str(error) for w in [*words, "OwnError: of all things"]), error
    assert isinstance(error.__cause__, OwnError)
    with pytest.raises(KeyboardInterrupt):
        call(interrupted, tmp_path)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("place", sorted(PLACES.keys() - IGNORED))
def test_what_is_answered(place: str, answer: str, tmp_path: Path) -> None:
    if (place, answer) in RIGHT:
        return
    call, words = PLACES[place]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError) as caught:
            call(ANSWERS[answer], tmp_path)
    text = str(caught.value)
    named = all(w in text for w in words) or place.removeprefix("hook.") in text
    assert named, caught.value


@pytest.mark.parametrize("place", sorted(IGNORED))
def test_what_is_not_looked_at(place: str, tmp_path: Path) -> None:
    PLACES[place][0](ANSWERS["object"], tmp_path)


def test_an_inspector_that_raises_midway() -> None:
    def pieces(artifact: Artifact) -> Any:
        yield "one"
        raise OwnError("later")

    with pytest.raises(UserError, match="OwnError: later"):
        inspector(pieces, Path())
    with pytest.raises(UserError, match="returned int, expected pieces of text"):
        inspector(lambda artifact: ["a", 3], Path())


@pytest.mark.parametrize("given", [3, "plain", Progress, object()])
def test_what_is_no_progress(given: Any) -> None:
    with pytest.raises(UserError, match="progress is .*, expected an object with phase"):
        tk.compile(MODULE, progress=given)


@pytest.mark.parametrize("kind", ["llvm", "llvmjit"])
def test_c_that_does_not_compile(kind: str, tmp_path: Path) -> None:
    def emit(f: Any, symbol: str) -> list[Artifact]:
        return [Artifact("mine", "native", f"{symbol}.c", b"void broken( { return 3 }\n")]

    external = External("mine", lambda c, t: c.op == "mul", emit)
    target = tk.Target({**tk.Target("native").to_json(), "kind": kind})
    with pytest.raises(UserError) as caught:
        tk.compile(MODULE, target, externals=[external]).export_library(tmp_path / "net.so")
    error = caught.value
    assert error.code == "external-source" and error.where == "mine/mine_mul.c"
    assert "the C of 'mine' does not compile" in str(error) and "error:" in str(error)
    assert "mine_mul.c:1" in str(error)


def test_functions_of_a_loader_and_packed_functions() -> None:
    """Their exceptions go to whoever called, as they are, with a note that says where from."""
    load.register_loader("mine", gives({"mine_mul": raises}))
    try:
        exe = tk.compile(MODULE, externals=[ELSEWHERE])
        with pytest.raises(OwnError) as caught:
            tk.runtime.Executor(exe, tk.cpu())["main"](X)
        assert any("'mine_mul' of loader 'mine'" in note for note in caught.value.__notes__)
    finally:
        load.unregister_loader("mine")
    text = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    y: R.Tensor((4,), "float32") = R.call_packed("test_plugins.f", x)
    return y
"""
    vm = tk.runtime.Executor(tk.compile(from_source(text)), tk.cpu())
    for misbehave, kind in ((raises, OwnError), (interrupted, KeyboardInterrupt)):
        tk.runtime.register_function("test_plugins.f", misbehave)
        with pytest.raises(kind):
            vm["main"](X)
    for answer, misbehave in ANSWERS.items():
        tk.runtime.register_function("test_plugins.f", misbehave)
        with pytest.raises(TensorkilnError, match=r"test_plugins\.f|object|bytes") as wrong:
            vm["main"](X)
        assert isinstance(wrong.value, UserError), answer
    tk.runtime.callbacks.unregister_function("test_plugins.f")
