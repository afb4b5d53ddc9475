"""A pass that fails is named, and the module it failed on lies on disk, ready to be run again."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.config import Config
from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import Binary
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Function, RVar
from tensorkiln.ir.stmt import For, PrimFunc, Store
from tensorkiln.kernels.case import rand
from tensorkiln.passes import make_runner, pass_name
from tensorkiln.pipeline import relax_passes
from tensorkiln.script import constant_table, from_source
from tensorkiln.transform.relax import plan_memory as planner
from tensorkiln.transform.relax.plan_memory import plan_memory
from tests.transform.graphs import graph

MODULE = graph(lambda g, x: g.tanh(g.mul(x, rand(64))), x=(64,))


def break_names(mod: IRModule) -> IRModule:
    """A value that is used before it is bound."""
    (f,) = mod.graphs
    return mod.with_functions((replace(f, bindings=tuple(reversed(f.bindings))),))


def raise_something(mod: IRModule) -> IRModule:
    raise ZeroDivisionError("by zero, of all things")


@dataclass(frozen=True)
class DropBinding:
    name: str

    def __call__(self, mod: IRModule) -> IRModule:
        def drop(f: Function) -> Function:
            return replace(f, bindings=tuple(b for b in f.bindings if b.var.name != self.name))

        return mod.map_graphs(drop)


def place(error: Exception) -> Path:
    found = re.search(r"the module before it: (\S+/before\.py)", str(error))
    assert found is not None, error
    return Path(found[1])


def again(before: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(before.parent / "reproduce.py")]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_callers_pass_that_breaks_the_module() -> None:
    first = relax_passes(tk.Target("native"))[0]
    with pytest.raises(UserError) as caught:
        tk.compile(MODULE, relax_pipeline=[first, break_names])
    error = caught.value
    assert error.code == "malformed-ir" and error.where == "relax_pipeline"
    assert "pass 2 'break_names' broke the module: main" in str(error)
    assert isinstance(error.__cause__, InternalError)
    # What the verifier advises comes first, then how to see it again.
    assert error.hint.startswith(f"{error.__cause__.hint}\n") and "reproduce.py" in error.hint
    before = place(error)
    again = from_source(before.read_text(), constant_table(MODULE))
    assert first_difference(again, MODULE) is None


def test_a_module_that_was_malformed_before_any_pass() -> None:
    """It is the caller's, whichever pass would have met it first."""
    with pytest.raises(UserError) as caught:
        tk.compile(break_names(MODULE))
    error = caught.value
    assert error.code == "malformed-ir" and error.where.startswith("main.bindings[0]")
    assert "is not bound here" in error.message and "names bound here: x" in error.hint


def test_a_callers_pass_that_raises() -> None:
    with pytest.raises(UserError) as caught:
        tk.compile(MODULE, tir_pipeline=[raise_something])
    error = caught.value
    assert error.code == "pass-failed" and error.where == "tir_pipeline"
    assert "'raise_something' raised ZeroDivisionError: by zero, of all things" in str(error)
    assert isinstance(error.__cause__, ZeroDivisionError)
    done = again(place(error))
    assert done.returncode != 0


def test_a_pass_that_no_import_gives() -> None:
    """The reproducer says what to fill in, and works when it is."""

    def local(mod: IRModule) -> IRModule:
        raise ZeroDivisionError

    @dataclass(frozen=True)
    class Local:
        inner: object

        def __call__(self, mod: IRModule) -> IRModule:
            raise ZeroDivisionError

    for p, name in (
        (local, "local"),
        (Local(object()), "Local"),
        (partial(local), "local"),
        (lambda mod: 1 / 0, "<lambda>"),
    ):
        with pytest.raises(UserError) as caught:
            tk.compile(MODULE, relax_pipeline=p)
        before = place(caught.value)
        done = again(before)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert f"fill in `p` of {before.parent / 'reproduce.py'}" in done.stderr
        assert f"{name}, {__file__}:" in done.stderr
    script = before.parent / "reproduce.py"
    script.write_text(script.read_text().replace("p = None", "p = lambda mod: mod"))
    assert again(before).returncode == 0


def test_a_dataclass_goes_by_the_name_of_a_function() -> None:
    name = MODULE.graphs[0].bindings[0].var.name
    with pytest.raises(UserError, match="pass 1 'drop_binding' broke the module"):
        tk.compile(MODULE, relax_pipeline=DropBinding(name))


def test_what_is_nested_too_deeply_is_named() -> None:
    text = """@T.prim_func
def deep(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")) -> None:
    for i in range(4):
        Y[i] = X[i] + T.float32(1)
"""
    f = from_source(text)["deep"]
    assert isinstance(f, PrimFunc) and isinstance(f.body, For) and isinstance(f.body.body, Store)
    value = f.body.body.value
    for _ in range(2000):
        value = Binary("add", value, f.body.body.value)
    deep = replace(f, body=replace(f.body, body=replace(f.body.body, value=value)))
    with pytest.raises(UnsupportedError, match=r"\n  deep: .* nested too deeply"):
        tk.compile(IRModule((*MODULE.functions, deep)))


def test_our_own_pass_is_our_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> None:
        raise KeyError("storage")

    monkeypatch.setattr(planner._Plan, "_lifetimes", broken)
    with pytest.raises(InternalError, match="'plan_memory' raised KeyError: 'storage'") as caught:
        tk.compile(MODULE)
    assert caught.value.code == "pass-failed"
    # Without the fault put into it, the reproducer runs the pass on the same module, and it works.
    done = again(place(caught.value))
    assert done.returncode == 0, done.stderr
    written = {f.name for f in place(caught.value).parent.iterdir()}
    assert written == {"before.py", "constants.npz", "reproduce.py"}


def test_a_reproducer_holds_the_weights_and_the_target(tmp_path: Path) -> None:
    """Bytes of every type come back, and a pass with options is made again."""
    target = tk.Target("native")
    runner = make_runner((), Config(dump=tmp_path), [])
    mod = MODULE
    for lower in relax_passes(target):
        if pass_name(lower) == "lower_groups":
            break
        mod = lower(mod)
    broken = mod.map_graphs(lambda f: replace(f, bindings=(*f.bindings, _unbound(f))))
    with pytest.raises(InternalError, match="pass 1 'lower_groups'"):
        runner.run(broken, "relax", [lower])
    folder = tmp_path / "failure-01-lower_groups"
    assert (
        f"p = LowerGroups(target=Target({str(target)!r}))" in (folder / "reproduce.py").read_text()
    )
    arrays = np.load(folder / "constants.npz")
    assert [k.split("|")[1:] for k in arrays] == [["float32", "64"]]
    np.testing.assert_array_equal(next(iter(arrays.values())).view("float32"), rand(64).array)


def _unbound(f: Function) -> Binding:
    last = f.bindings[-1]
    return Binding(RVar("again", last.var.type), RVar("nowhere", last.var.type))


def test_errors_about_the_model_stay_what_they_are() -> None:
    def complain(mod: IRModule) -> IRModule:
        raise UnsupportedError("no such thing yet", hint="another")

    with pytest.raises(UnsupportedError, match="no such thing yet") as caught:
        tk.compile(MODULE, relax_pipeline=complain)
    assert "in pass 'complain'" in caught.value.__notes__


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    runner = make_runner((), Config(), [])
    runner.failures = file / "below"
    with pytest.raises(UserError, match="could not be written"):
        runner.run(MODULE, "relax", [raise_something])


def test_a_pass_that_returns_no_module() -> None:
    with pytest.raises(UserError, match="<lambda> returned NoneType") as caught:
        tk.compile(MODULE, relax_pipeline=lambda mod: None)
    assert caught.value.code == "bad-pass" and caught.value.where == "relax_pipeline"


def test_a_class_is_no_pass() -> None:
    with pytest.raises(UserError, match="is the class DropBinding, expected an instance") as caught:
        tk.compile(MODULE, relax_pipeline=[plan_memory, DropBinding])
    assert caught.value.code == "bad-pass" and "DropBinding(...)" in caught.value.hint


def test_the_reproducer_of_a_plan_for_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script makes the pass for the same target, with its pools."""

    def broken(self: object) -> None:
        raise KeyError("storage")

    monkeypatch.setattr(planner._Plan, "_lifetimes", broken)
    target = {"kind": "llvm", "mcpu": "haswell", "memory": [{"name": "sram", "size": "1M"}]}
    with pytest.raises(InternalError, match="'plan_memory' raised KeyError") as caught:
        tk.compile(MODULE, target)
    script = (place(caught.value).parent / "reproduce.py").read_text()
    assert "PlanMemory(target=Target(" in script and "sram" in script
    done = again(place(caught.value))
    assert done.returncode == 0, done.stderr
