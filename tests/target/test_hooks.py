"""What a registered kind brings is what `compile` uses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.module import IRModule
from tensorkiln.pipeline import plan_for, relax_passes, tir_passes
from tensorkiln.target import Target, hooks_of, register_target_kind, unregister_target_kind
from tests.transform.graphs import graph

X = np.array([-2, -0.5, 1, 3], np.float32)
MODULE = graph(lambda g, x: g.tanh(g.mul(x, 2.0)), x=(4,))


def run(exe: tk.Executable) -> Any:
    return tk.runtime.Executor(exe, tk.cpu())["main"](X).numpy()


@pytest.fixture
def register() -> Iterator[Any]:
    yield lambda **hooks: register_target_kind("mine", "cpu", **hooks)
    unregister_target_kind("mine")


def test_pipelines_and_last_passes(register: Any) -> None:
    pass_names: list[str] = []

    def noted(name: str) -> Any:
        def note(mod: IRModule) -> IRModule:
            pass_names.append(name)
            return mod

        return note

    register(
        relax_codegen=lambda target: [C_REFERENCE],
        relax_pipeline=lambda target, externals: [
            noted("relax"),
            *relax_passes(target, externals),
        ],
        tir_pipeline=lambda target: [*tir_passes(target), noted("tir")],
        pre_codegen=lambda target: noted("last"),
    )
    exe = tk.compile(MODULE, "mine")
    assert pass_names == ["relax", "tir", "last"]
    np.testing.assert_allclose(run(exe), np.tanh(2 * X), rtol=1e-6)
    assert [f.external for f in exe.module.externals] == ["c_reference"]
    again = tk.compile(exe.module, exe.target, relax_pipeline=None, tir_pipeline=None)
    assert again.artifacts == exe.artifacts and len(pass_names) == 3
    tk.compile(MODULE, "mine", tir_pipeline=tir_passes(exe.target))
    assert pass_names[3:] == ["relax", "last"]


def test_a_linker(register: Any, tmp_path: Path) -> None:
    def refuse(output: str, files: list[str], options: list[str]) -> None:
        raise UserError("the kind's linker was here")

    register(relax_codegen=lambda target: (), linker=lambda target: refuse)
    exe = tk.compile(MODULE, "mine")
    with pytest.raises(UserError, match="linker was here"):
        exe.export_library(tmp_path / "a.so")
    wrote: list[str] = []
    with pytest.raises(UserError, match="wrote no output"):
        exe.export_library(tmp_path / "b.so", fcompile=lambda output, *_: wrote.append(output))
    assert wrote


def test_a_generator_for_loops_replaces_ours(register: Any) -> None:
    """It emits what ours would have: the objects of another compile."""
    own_executable = tk.compile(MODULE)
    own_objects = [a for a in own_executable.artifacts if a.file_name.endswith(".o")]
    function_names: list[str] = []

    def generate(target: Target, functions: Any) -> list[Artifact]:
        function_names.extend(f.name for f in functions)
        return [Artifact("mine", "native", a.file_name, bytes(a.view)) for a in own_objects]

    register(tir_codegen=generate)
    exe = tk.compile(MODULE, "mine")
    assert function_names == [k.kernel for k in exe.placement()]
    assert {a.codegen_id for a in exe.artifacts} == {"mine", "host", "ir"}
    np.testing.assert_array_equal(run(exe), run(own_executable))


def test_a_generator_that_emits_nothing(register: Any) -> None:
    register(tir_codegen=lambda target, functions: ())
    with pytest.raises(UserError, match="emitted nothing") as caught:
        tk.compile(MODULE, "mine")
    assert "tir_codegen of kind 'mine'" in str(caught.value)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("cuda", "kind 'cuda' cannot be the host"),
        ({"mtriple": "wasm32-unknown-unknown"}, "no code is generated for wasm32 yet"),
    ],
)
def test_a_host_nothing_is_generated_for(register: Any, host: Any, says: str) -> None:
    register(relax_codegen=lambda target: ())
    with pytest.raises(UnsupportedError, match=says) as caught:
        tk.compile(MODULE, {"kind": "mine", "host": host})
    assert "target.host" in str(caught.value)


def test_the_compilers_own_kind_brings_nothing() -> None:
    target = Target("llvm")
    plan = plan_for(target)
    assert plan.target is plan.cpu is target
    assert plan.externals == () and plan.linker is None and plan.pre_codegen == ()
    assert hooks_of(target) == type(hooks_of(target))()
