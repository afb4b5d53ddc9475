"""What rounding may do: every operator in float32 is within it, of operands that were rounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tensorkiln as tk
from tensorkiln import ops
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, TensorType
from tensorkiln.kernels.case import Graph
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.target import Target
from tensorkiln.verification.reference import Tolerance, walk
from tests.ops.test_attribute import SAMPLES
from tests.transform.test_random_graphs import modules

TARGET = Target({"kind": "llvm", "mcpu": "x86-64-v3"})


def _is_static(name: str) -> bool:
    types, _, arrays = SAMPLES[name]
    return arrays is not None and all(
        isinstance(t, TensorType) and t.static_shape() is not None for t in types
    )


NAMES = [n for n in SAMPLES if n not in ops.DYNAMIC and n != "bitcast" and _is_static(n)]


def case(name: str) -> tuple[IRModule, dict[str, np.ndarray]]:
    """A call of the operator, each of whose floating operands is computed, and inputs."""
    types, attrs, arrays = SAMPLES[name]
    assert arrays is not None
    g = Graph()
    inputs: dict[str, np.ndarray] = {}
    operands = []
    for i, (t, array) in enumerate(zip(types, arrays, strict=True)):
        assert isinstance(t, TensorType)
        if t.dtype.is_float:
            t = TensorType(t.shape, DType("float32"))
        p = g.param(f"x{i}", t)
        inputs[f"x{i}"] = np.asarray(array).astype(t.dtype.name)
        operands.append(g.mul(p, p) if t.dtype.is_float else p)
    out = g.emit(
        name,
        *operands,
        **{k: v for k, v in attrs.items() if k != "dtype"}
        | (
            {"dtype": "float32" if DType(str(attrs["dtype"])).is_float else attrs["dtype"]}
            if "dtype" in attrs
            else {}
        ),
    )
    return IRModule((g.finish(out),)), inputs


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_in_float32(name: str) -> None:
    mod, inputs = case(name)
    (have,) = evaluate(mod, inputs)
    f = mod["main"]
    assert isinstance(f, Function)
    last = f.bindings[-1].var.name
    (end,) = walk(mod, f, inputs, {last: [np.asarray(have)]}, Tolerance()).compared
    assert not end.difference.is_too_much, end.difference
    if have.dtype.kind == "f" and (have != 0).any():
        wrong = (have * np.float32(1.01)).astype(have.dtype)
        (end,) = walk(mod, f, inputs, {last: [wrong]}, Tolerance()).compared
        assert end.difference.is_too_much, end.difference


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(modules())
def test_random_graphs_agree(mod: IRModule) -> None:
    verification = tk.verify(tk.compile(mod, TARGET, debug=True), mod)
    assert verification.ok, str(verification)
