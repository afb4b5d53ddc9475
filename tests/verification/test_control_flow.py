"""tk.verify inside functions with control flow: every value of what ran is compared, a fault is
found where it begins, and the branch, iteration or call is named."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.ir.kept import KEPT_VALUES
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Call, Function, If
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target
from tests.verification.faults import SpoiledKernel, SpoiledOperator, passes_with, tir_with
from tests.verification.programs import BRANCH, DYNAMIC, LOOP, PROGRAMS, X, script

V3 = {"kind": "llvm", "mcpu": "x86-64-v3"}
TARGET = Target(V3)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_ran_is_compared(name: str, tmp_path: Path) -> None:
    """As an Executable, one that is compiled again, and a library with and without values."""
    program = PROGRAMS[name]
    mod = program.make()
    plain = tk.compile(mod, TARGET)
    debug = tk.compile(mod, TARGET, debug=True)
    library = debug.export_library(tmp_path / "debug.so")
    counts = set()
    for compiled in (debug, plain, library):
        verification = tk.verify(compiled, mod, program.inputs)
        assert verification.ok and verification.first is None, str(verification)
        counts.add(verification.compared)
    assert len(counts) == 1 and counts.pop() >= program.compared
    verification = tk.verify(plain.export_library(tmp_path / "plain.so"), mod, program.inputs)
    assert verification.ok and verification.compared == 0
    assert any("without debug only its outputs" in note for note in verification.notes)
    # Without a watcher it computes the same.
    have, want = (e.create_executor()["main"](*program.inputs) for e in (debug, plain))
    for a, b in zip(_flat(have), _flat(want), strict=True):
        np.testing.assert_array_equal(a, b)


def _flat(value: Any) -> list[np.ndarray]:
    if isinstance(value, tuple | list):
        return [x for part in value for x in _flat(part)]
    return [value.numpy()]


def _is_called(name: str, f: PrimFunc) -> bool:
    return f.name == name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_in_each_kernel(name: str) -> None:
    """Each kernel that runs, one after the other; those of the branch not taken change nothing."""
    program = PROGRAMS[name]
    mod = program.make()
    sound = tk.compile(mod, TARGET, debug=True)
    kept_rows = next(f for f in sound.outer.infos if f.name == "main").kept  # type: ignore[union-attr]
    kept_kernels = {row.kernel for row in kept_rows}
    floats = {f.name for f in sound.module.kernels if f.buffers[-1].dtype.is_float}
    # Integers are sizes here: with a wrong one, the function does not come to its end.
    kernels = [k.symbol for k in sound.kernels if k.symbol in kept_kernels & floats]
    assert kernels
    found_in = 0
    for kernel in kernels:
        spoil = SpoiledKernel(partial(_is_called, kernel))
        exe = tk.compile(mod, TARGET, tir_pipeline=tir_with(spoil, TARGET), debug=True)
        verification = tk.verify(exe, mod, program.inputs)
        assert spoil.name == kernel
        if verification.first is None:  # a branch not taken; a copy of zeros
            assert name in ("then", "else", "onnx if") or kernel == "identity", (
                f"{kernel}: {verification}"
            )
            continue
        found_in += 1
        first = verification.first
        assert (first.kernel, first.fault) == (kernel, "kernel"), str(verification)
        assert (first.local.times or 0) > 100
    assert found_in >= min(2, len(kernels) - 1)


@pytest.mark.parametrize(
    ("name", "operator", "replacement", "path"),
    [
        ("then", "exp", "tanh", ("then of",)),
        ("else", "neg", "abs", ("else of",)),
        ("loop", "add", "mul", ("iteration 0",)),
        ("nested", "sigmoid", "tanh", ("iteration 0", "then of")),
        ("recursion", "tanh", "exp", ("else of",)),
        ("calls", "exp", "tanh", ("twice",)),
        ("dynamic", "exp", "tanh", ()),
        ("onnx loop", "add", "mul", ("iteration 0",)),
        ("onnx scan", "tanh", "exp", ("iteration 0",)),
    ],
)
@pytest.mark.parametrize("after", ["infer_types", "outline_dataflow", "eliminate_dead_code"])
def test_a_fault_after_a_pass(
    name: str, operator: str, replacement: str, path: tuple[str, ...], after: str
) -> None:
    program = PROGRAMS[name]
    mod = program.make()
    spoil = SpoiledOperator(operator, replacement, 0)
    exe = tk.compile(mod, TARGET, relax_pipeline=passes_with(spoil, after, TARGET), debug=True)
    verification = tk.verify(exe, mod, program.inputs)
    first = verification.first
    assert first is not None and spoil.name in (first.value, *first.nodes), str(verification)
    assert (first.fault, first.passed) == ("passes", "spoiled_operator"), str(verification)
    assert len(first.path) == len(path), first.path
    assert all(words in step for words, step in zip(path, first.path, strict=True)), first.path
    for step in first.path:
        assert step in str(verification)


def test_the_first_iteration_that_diverges() -> None:
    """A kernel that is wrong of large values only."""
    mod = LOOP()

    @dataclass
    class WrongAbove:
        def __call__(self, mod: IRModule) -> IRModule:
            return mod.map_graphs(self.function)

        def function(self, f: Function) -> Function:
            bindings: list[Binding] = []
            for b in f.bindings:
                call = b.value
                if not isinstance(call, Call) or call.op != "mul":
                    bindings.append(b)
                    continue
                # min(y * 1.5, 25): the same until an element is larger.
                wrong = replace(b.var, name=f"{b.var.name}_wide")
                upper_bound = tk.ir.relax.constant(np.array(25, "float32"))
                bindings.append(Binding(wrong, call))
                bindings.append(
                    Binding(b.var, replace(call, callee="minimum", args=(wrong, upper_bound)))
                )
            return replace(f, bindings=tuple(bindings))

    exe = tk.compile(
        mod,
        TARGET,
        relax_pipeline=passes_with(WrongAbove(), "outline_dataflow", TARGET),
        debug=True,
    )
    y, iteration = np.exp(X.astype("float64")), 0
    while (z := (y + np.exp(y - y.max()) / np.exp(y - y.max()).sum()) * 1.5).max() < 25:
        y, iteration = z, iteration + 1
    assert iteration > 1
    first = tk.verify(exe, mod, [X]).first
    assert first is not None and first.passed == "wrong_above"
    assert first.path == (f"iteration {iteration} of a loop",)


def swapped(mod: IRModule) -> IRModule:
    """A pass that takes the other branch."""

    def other(b: Binding) -> Binding:
        if not isinstance(b.value, If):
            return b
        return Binding(b.var, If(b.value.cond, b.value.orelse, b.value.then))

    functions = tuple(
        replace(f, bindings=tuple(map(other, f.bindings))) if isinstance(f, Function) else f
        for f in mod.functions
    )
    return mod.with_functions(functions)


@pytest.mark.parametrize("name", ["then", "else"])
def test_another_branch(name: str) -> None:
    program = PROGRAMS[name]
    mod = program.make()
    passes = passes_with(swapped, "fuse_ops", TARGET)
    verification = tk.verify(
        tk.compile(mod, TARGET, relax_pipeline=passes, debug=True), mod, program.inputs
    )
    first = verification.first
    assert first is not None and first.fault == "host", str(verification)
    assert first.path[0].startswith(f"{name} of") and first.local.is_missing
    assert "they take another branch" in str(verification)


def test_a_step_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that the host runs: all that kernels compute is right."""
    from tensorkiln.codegen.outer import calls

    wrong = calls._OPERATORS["nonzero"]

    def emit(w: Any, var: Any, call: Any, out: str) -> None:
        wrong(w, var, call, out)
        w.line(f"{{ kiln_tensor *t = kiln_tensor_of(&{out}); ((int64_t *)t->data)[0] += 1; }}")

    monkeypatch.setitem(calls._OPERATORS, "nonzero", emit)
    mod = DYNAMIC()
    verification = tk.verify(tk.compile(mod, TARGET, debug=True), mod, [X])
    assert verification.first is not None and verification.first.fault == "host", str(verification)
    assert verification.first.operator == "nonzero" and "none: a step of the host" in str(
        verification
    )


def test_what_a_callback_gives_is_not_asked_for_again() -> None:
    mod = script(
        """
    @R.function
    def main(x: R.Tensor((3,), "float32")):
        y = R.call_packed("test.noise", R.exp(x), R.Tensor((3,), "float32"))
        return R.neg(y)
"""
    )()
    rng = np.random.default_rng(0)
    calls = []

    def noise(x: Any) -> Any:
        calls.append(x)
        return rng.normal(size=3).astype("float32")

    tk.runtime.register_function("test.noise", noise)
    try:
        verification = tk.verify(tk.compile(mod, TARGET, debug=True), mod, [X])
    finally:
        tk.runtime.unregister_function("test.noise")
    assert verification.ok and verification.compared == 3 and len(calls) == 1, str(verification)


@pytest.mark.parametrize("target", ["c", "llvmjit", "minimal"])
def test_targets(target: str) -> None:
    compile_target = TARGET if target == "minimal" else Target({**V3, "kind": target})
    passes = "minimal" if target == "minimal" else "auto"
    program = PROGRAMS["nested"]
    mod = program.make()
    exe = tk.compile(mod, compile_target, relax_pipeline=passes, debug=True)
    verification = tk.verify(exe, mod, program.inputs)
    assert verification.ok and verification.compared >= program.compared, str(verification)
    spoil = SpoiledKernel(lambda f: "sigmoid" in f.name)
    exe = tk.compile(
        mod,
        compile_target,
        relax_pipeline=passes,
        tir_pipeline=tir_with(spoil, compile_target),
        debug=True,
    )
    first = tk.verify(exe, mod, program.inputs).first
    assert first is not None and spoil.name.split("_kernel_")[-1] in first.kernel
    assert first.path[0].startswith("iteration 0") and first.fault == "kernel"


@pytest.mark.parametrize("name", ["loop", "calls"])
def test_the_script_repeats_the_fault(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    mod = program.make()
    spoil = SpoiledKernel(lambda f: "softmax" in f.name)
    exe = tk.compile(mod, TARGET, tir_pipeline=tir_with(spoil, TARGET), debug=True)
    tk.verify(exe, mod, program.inputs, output=tmp_path / "fault")
    process = subprocess.run(
        [sys.executable, str(tmp_path / "fault" / "repeat.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert process.returncode == 1, process.stderr
    assert "in the library:" in process.stdout and "expected" in process.stdout
    assert "the node compiled by itself: within the tolerance" in process.stdout


def test_another_way_in_float64() -> None:
    """A condition that rounding decides: what ran is right, and the difference is said."""
    mod = script(
        """
    @R.function
    def main(x: R.Tensor((3,), "float32")):
        y = R.sum(x, axes=(0,), keepdims=False)
        if R.equal(y, R.const(0.3, "float32")):
            z = R.exp(x)
        else:
            z = R.neg(x)
        return z
"""
    )()
    exe = tk.compile(mod, TARGET, debug=True)
    x = np.array([0.1, 0.1, 0.1], "float32")
    verification = tk.verify(exe, mod, [x])
    assert verification.ok, str(verification)


def test_the_name_is_taken() -> None:
    mod = BRANCH()
    duplicate = replace(next(iter(mod.outers)), name=KEPT_VALUES)
    with pytest.raises(UserError, match=KEPT_VALUES) as e:
        tk.compile(mod.with_functions((*mod.functions, duplicate)), TARGET, debug=True)
    assert e.value.code == "name-clash"


def test_there_is_no_other_reference() -> None:
    program = PROGRAMS["then"]
    mod = program.make()
    with pytest.raises(UserError, match="control flow"):
        tk.verify(tk.compile(mod, TARGET), mod, program.inputs, reference="onnxruntime")
