"""name_values: names that say which value of the model it is, and what passes make of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tensorkiln.ir.equal import structural_equal
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Binding, Function, TensorType
from tensorkiln.ir.visit_graph import bindings_in
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.passes import pass_name
from tensorkiln.pipeline import relax_passes
from tensorkiln.schedule.lower import LowerGroups
from tensorkiln.target import Target
from tensorkiln.transform.relax.name_values import name_values
from tests.transform.graphs import check_text
from tests.verification.programs import PROGRAMS


def test_values_are_numbered() -> None:
    check_text(
        name_values,
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((2, 3), "float32")):
                y = R.exp(x)
                n0_z = R.neg(y)
                return n0_z
        """,
        """
        @tk.script.ir_module
        class M:
            @R.function
            def main(x: R.Tensor((2, 3), "float32")):
                n0_y = R.exp(x)
                n1_n0_z = R.neg(n0_y)
                return n1_n0_z
        """,
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_outer_functions(name: str) -> None:
    """In branches and closures too, and no two have one name; parameters of the functions keep
    theirs. Nothing else changes."""
    mod = PROGRAMS[name].make()
    new = name_values(mod)
    names = [
        b.var.name
        for f in new.functions
        if isinstance(f, Function)
        for b in bindings_in(f.bindings)
        if isinstance(b.var.type, TensorType)
    ]
    assert len(set(names)) == len(names) and all(re.match(r"n\d+_", n) for n in names)
    assert [p.name for p in new["main"].params] == [p.name for p in mod["main"].params]  # type: ignore[union-attr]
    assert structural_equal(new, mod)
    assert name_values(new).script() == new.script()


def named(mod: IRModule, inputs: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """What a run in float64 computes of values that have a name of `name_values`."""
    values_by_name: dict[str, list[np.ndarray]] = {}

    def watch(b: Binding, value: Any) -> None:
        if isinstance(value, np.ndarray):
            values_by_name.setdefault(b.var.name, []).append(value)

    evaluate(mod, inputs, dtype="float64", watch=watch)
    return values_by_name


NETWORKS = ["residual", "separable", "transformer"]
ZOO = ["bert_2", "bert_2_sdpa-opset23", "convnext_small-legacy13", "gpt2_2-legacy17", "llama_2"]
ZOO += ["mobilenetv2", "resnet18-legacy11", "vit_2-legacy14"]


@pytest.mark.parametrize(
    "name", [*NETWORKS, *(pytest.param(n, marks=pytest.mark.conformance) for n in ZOO)]
)
def test_no_pass_gives_a_name_to_something_else(name: str) -> None:
    """After every pass, a value of a name of the model is that value."""
    if name in NETWORKS:
        from tests.verification import test_planted

        mod = test_planted.NETWORKS[name]()
        inputs = [np.random.default_rng(0).normal(size=s).astype("float32") for s in shapes(mod)]
    else:
        for package in ("torch", "onnx", "onnxscript"):
            pytest.importorskip(package)
        import tests.zoo.registry as registry
        from tensorkiln.frontend import from_onnx
        from tests.zoo.export import model_path

        mod = from_onnx(model_path(name))
        network = registry.NETWORKS[registry.EXPORTS[name].network]
        inputs = list(registry.inputs(network, 1).values())
    mod = name_values(mod)
    main = mod["main"]
    assert isinstance(main, Function)
    given = {p.name: x for p, x in zip(main.params, inputs, strict=True)}
    model = named(mod, given)
    assert all(len(values) == 1 for values in model.values())
    name_count = 0
    for step in relax_passes(Target({"kind": "llvm", "mcpu": "x86-64-v3"})):
        if isinstance(step, LowerGroups):
            break
        new = step(mod)
        if new is mod:
            continue
        mod = new
        shared_names = {n: v for n, v in named(mod, given).items() if n in model}
        name_count = len(shared_names)
        for value_name, values in shared_names.items():
            (want,) = model[value_name]
            top = np.abs(want.astype(np.float64))
            scale = float(top[np.isfinite(top) & (top < 1e30)].max(initial=0))
            for have in values:
                message = f"{value_name} after {pass_name(step)}"
                assert have.shape == want.shape, message
                close = np.allclose(have, want, rtol=1e-5, atol=1e-5 * scale, equal_nan=True)
                assert close, message
    assert name_count >= 8


def shapes(mod: IRModule) -> list[tuple[int, ...]]:
    f = mod["main"]
    assert isinstance(f, Function)
    return [p.tensor.static_shape() or () for p in f.params]
