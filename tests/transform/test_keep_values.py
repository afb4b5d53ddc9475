"""keep_values: results of kernels that functions return besides."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tensorkiln.pipeline import minimal_relax_passes
from tensorkiln.target import Target
from tensorkiln.transform.relax.keep_values import keep_values
from tests.transform.graphs import check_text, graph
from tests.verification.programs import PROGRAMS
from tests.verification.test_planted import NETWORKS

V3 = {"kind": "llvm", "mcpu": "x86-64-v3"}
TARGETS = {"llvm": Target(V3), "c": Target({**V3, "kind": "c"}), "minimal": Target(V3)}


def test_results_are_copied() -> None:
    check_text(
        keep_values,
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((2, 3), "float32")):
                y = M.exp(x)
                z = R.reshape(y, shape=(3, 2))
                u = M.neg(z)
                return u

            @R.function(attrs={"primitive": True})
            def exp(p0: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
                y = R.exp(p0)
                return y

            @R.function(attrs={"primitive": True})
            def neg(p0: R.Tensor((3, 2), "float32")) -> R.Tensor((3, 2), "float32"):
                y = R.neg(p0)
                return y
        """,
        """
        @tk.script.ir_module
        class M:
            @R.function(attrs={"kept": ((1, "exp", "y", "z"), (0, "neg", "u"))})
            def main(x: R.Tensor((2, 3), "float32")):
                y = M.exp(x)
                y_kept = M.keep_identity(y)
                z = R.reshape(y, shape=(3, 2))
                u = M.neg(z)
                return (u, y_kept)

            @R.function(attrs={"primitive": True})
            def exp(p0: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
                y = R.exp(p0)
                return y

            @R.function(attrs={"primitive": True})
            def neg(p0: R.Tensor((3, 2), "float32")) -> R.Tensor((3, 2), "float32"):
                y = R.neg(p0)
                return y

            @R.function(attrs={"primitive": True})
            def keep_identity(p0: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
                y = R.identity(p0)
                return y
        """,
    )


@pytest.mark.parametrize(
    ("network", "target"),
    [*((n, "llvm") for n in NETWORKS), ("separable", "c"), ("residual", "minimal")],
)
def test_kernels_are_those_without(network: str, target: str) -> None:
    """Equal objects, or C, of every kernel; equal classes; as much memory."""
    mod = NETWORKS[network]()
    compile_target = TARGETS[target]
    passes = minimal_relax_passes(compile_target) if target == "minimal" else "auto"
    plain = tk.compile(mod, compile_target, relax_pipeline=passes)
    debug = tk.compile(mod, compile_target, relax_pipeline=passes, debug=True)
    kinds = {k.symbol: k.kernel_class for k in plain.kernels}
    assert kinds.items() <= {k.symbol: k.kernel_class for k in debug.kernels}.items()
    if compile_target.kind == "c":
        texts = [e.artifacts["kernels.c"].text() for e in (plain, debug)]
        bodies = [set(text.split("\n\n")) for text in texts]
        assert {b for b in bodies[0] if b.startswith(("void", "static void"))} <= bodies[1]
    else:
        objects = [
            {a.file_name: a.sha256 for a in e.artifacts.plain if a.file_name.endswith(".o")}
            for e in (plain, debug)
        ]
        assert len(objects[0]) == len(plain.kernels)
        assert objects[0].items() <= objects[1].items()
    (before,), (after,) = plain.functions, debug.functions
    assert before.info.workspace_bytes == after.info.workspace_bytes


@pytest.mark.parametrize("target", ["llvm", "c"])
def test_what_is_returned(target: str) -> None:
    """The model's outputs are the same to the bit, and others are what metadata says of them."""
    mod = NETWORKS["separable"]()
    compile_target = TARGETS[target]
    plain, debug = tk.compile(mod, compile_target), tk.compile(mod, compile_target, debug=True)
    x = np.random.default_rng(1).normal(size=(1, 3, 20, 20)).astype("float32")
    have = debug.create_executor()["main"](x)
    want = plain.create_executor()["main"](x)
    np.testing.assert_array_equal(np.asarray(have[0]), np.asarray(want))
    info = debug.functions[0].info
    assert len(have) == len(info.outputs) == len({k.output for k in info.kept})
    assert {k.kernel for k in info.kept} <= {k.symbol for k in debug.kernels}
    assert all(k.names for k in info.kept)
    assert not plain.functions[0].info.kept and plain.debug is None


def test_metadata_has_the_rows(tmp_path: object) -> None:
    mod = graph(lambda g, x: g.relu(g.linear(x, rand(4, 3))), x=(2, 4))
    for debug, number in ((False, 2), (True, 4)):
        exe = tk.compile(mod, TARGETS["llvm"], debug=debug)
        path = exe.export_library(f"{tmp_path}/net{debug}.so")
        metadata = tk.runtime.load_module(path).metadata
        assert metadata["format"] == number
        rows = metadata["functions"][0].get("kept")
        assert rows == (
            [{"output": 0, "kernel": "linear_relu", "names": ["n1_relu"]}] if debug else None
        )
        assert json.dumps(metadata)


def test_a_pipeline_without_groups_is_refused() -> None:
    mod = graph(lambda g, x: g.relu(x), x=(2, 4))
    with pytest.raises(UserError, match="LowerGroups") as e:
        tk.compile(mod, TARGETS["llvm"], relax_pipeline=None, debug=True)
    assert e.value.code == "not-lowered"


@pytest.mark.parametrize("name", PROGRAMS)
def test_outer_functions_show_values(name: str) -> None:
    """Each once: what functions that they call return, and what steps of the host give. Results are
    the same, to the bit, and a second run of the pass changes nothing."""
    program = PROGRAMS[name]
    mod = program.make()
    plain = tk.compile(mod, TARGETS["llvm"])
    debug = tk.compile(mod, TARGETS["llvm"], debug=True)
    assert debug.debug is not None and debug.outer is not None
    fused = debug.debug.fused
    assert keep_values(fused) is fused
    info = next(f for f in debug.outer.infos if f.name == "main")
    assert [k.output for k in info.kept] == list(range(len(info.kept)))
    names = [n for k in info.kept for n in k.names]
    if name != "calls":  # which calls one function in two places
        assert len(set(names)) == len(names)
    kernels = {k.symbol for k in debug.kernels}
    assert {k.kernel for k in info.kept if k.kernel} <= kernels
    assert {k.symbol: k.kernel_class for k in plain.kernels}.items() <= {
        k.symbol: k.kernel_class for k in debug.kernels
    }.items()


def test_public_functions_that_outer_ones_call() -> None:
    """They return what kernels compute, too, wherever they are called from."""
    program = PROGRAMS["calls"]
    exe = tk.compile(program.make(), TARGETS["llvm"], debug=True)
    x = np.ones(4, "float32")
    y, inner = exe.create_executor()["twice"](x)
    np.testing.assert_allclose(np.asarray(inner), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(y), np.full(4, 0.25), rtol=1e-6)


def test_values_are_shown() -> None:
    check_text(
        keep_values,
        """
        @tk.script.ir_module
        class M:
            @R.function(attrs={"outer": True})
            def main(x: R.Tensor((2,), "float32"), c: R.Tensor((), "bool")):
                if c:
                    y = M.main_part0(x)
                else:
                    y = x
                return y

            @R.function(attrs={"private": True})
            def main_part0(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
                z = M.exp(x)
                y = M.exp(z)
                return y

            @R.function(attrs={"primitive": True})
            def exp(p0: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
                y = R.exp(p0)
                return y
        """,
        """
        @tk.script.ir_module
        class M:
            @R.function(attrs={
                "outer": True,
                "kept": ((0, "exp", "z"), (1, "exp", "y"), (2, "", "y")),
            })
            def main(x: R.Tensor((2,), "float32"), c: R.Tensor((), "bool")):
                if c:
                    y_and_kept: R.Tuple(R.Tensor((2,), "float32"), R.Object) = M.main_part0(x)
                    y_0 = y_and_kept[0]
                    y_1 = y_and_kept[1]
                    y_2 = y_0
                    kept = R.call_packed("kiln_kept_values", R.prim_value(0), (y_1, y_0), R.Object)
                    y = y_2
                else:
                    y = x
                kept_1 = R.call_packed("kiln_kept_values", R.prim_value(2), (y,), R.Object)
                return y

            @R.function(attrs={"private": True})
            def main_part0(
                x: R.Tensor((2,), "float32"),
            ) -> R.Tuple(R.Tensor((2,), "float32"), R.Tensor((2,), "float32")):
                z = M.exp(x)
                z_kept = M.keep_identity(z)
                y = M.exp(z)
                return (y, z_kept)

            @R.function(attrs={"primitive": True})
            def exp(p0: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
                y = R.exp(p0)
                return y

            @R.function(attrs={"primitive": True})
            def keep_identity(p0: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
                y = R.identity(p0)
                return y

            @R.function(attrs={"outer": True})
            def kiln_kept_values(first: R.Prim("int64"), values: R.Object):
                return values
        """,
    )
