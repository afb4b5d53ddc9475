"""The node tests of the ONNX standard: what imports must be right."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.frontend import from_onnx
from tests.frontend.onnx_models import main, ours

# Wrong in the last bit of float16: the expanded form rounds after every step.
ROUNDING = {
    "test_causal_conv_with_state_silu_fp16",
    "test_causal_conv_with_state_silu_fp16_expanded",
}
# Drawn by a generator that the standard does not name: only shapes and types can agree.
RANDOM = {"test_bernoulli_seed", "test_bernoulli_seed_expanded"}
SIZED_BY_THE_FIRST = (
    "BlackmanWindow",
    "ConstantOfShape",
    "HammingWindow",
    "HannWindow",
    "If",
    "Loop",
    "MelWeightMatrix",
    "Range",
)
# How many of the standard's cases import and agree; may only grow.
AT_LEAST = 1750


# Element types that are only stored, of package ml_dtypes -> that of the bytes in our tensors.
STORED = {
    **{np.dtype(getattr(ml_dtypes, name)): "int8" for name in ("int2", "int4")},
    **{
        np.dtype(getattr(ml_dtypes, name)): "uint8"
        for name in dir(ml_dtypes)
        if name.startswith(("uint2", "uint4", "float4", "float6", "float8"))
    },
}


def arrays(values: Any) -> list[Any]:
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def in_bytes(array: Any) -> Any:
    """Elements of narrow types as the bytes that we take and give; others as they are."""
    stored = STORED.get(array.dtype) if isinstance(array, np.ndarray | np.generic) else None
    if stored is None:
        return array
    whole = array.dtype.name.startswith(("int", "uint"))
    return array.astype(stored) if whole else array.view(stored)


def with_constants(case: Any, operands: list[Any]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model, with small operands behind the first as initializers: axes, pads, shapes."""
    made = onnx.ModelProto.FromString(case.model.SerializeToString())
    sized = any(n.op_type in SIZED_BY_THE_FIRST for n in made.graph.node)
    first = 0 if sized or case.name.startswith("test_range") else 1
    names = [v.name for v in made.graph.input]
    feeds = dict(zip(names, operands, strict=False))
    for name in names[first:]:
        if not isinstance(feeds.get(name), np.ndarray | np.generic):
            continue
        array = np.asarray(feeds[name])
        if array.ndim <= 1 and array.size <= 16:
            del feeds[name]
            made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made, feeds


def run(case: Any, operands: list[Any]) -> list[np.ndarray]:
    names = [v.name for v in case.model.graph.input]
    feeds = dict(zip(names, operands, strict=False))
    try:
        module = from_onnx(case.model)
    except UnsupportedError as error:
        if not any("data" in i.message or "constant" in i.message for i in error.issues):
            raise
        made, feeds = with_constants(case, operands)
        module = from_onnx(made)
    wanted = main(module).attrs["input_names"]
    return ours(module, {k: in_bytes(v) for k, v in feeds.items() if k in wanted})


def flat(values: Any) -> list[Any]:
    """The tensors of results, of which some may be sequences."""
    return [t for v in values for t in (v if isinstance(v, list) else [v])]


def compare(case: Any, got: list[np.ndarray], want: list[Any]) -> str:
    for a, b in zip(got, flat(want), strict=True):
        if b.dtype in STORED:
            a, b = (v.astype(np.float32) for v in (a.view(b.dtype), b))
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"{a.dtype}{a.shape}, expected {b.dtype}{b.shape}"
        if case.name in RANDOM:
            continue
        atol = 1e-3 if b.dtype == np.float16 else 1e-6
        if not np.allclose(a, b, rtol=max(case.rtol, 1e-4), atol=atol, equal_nan=True):
            return "the values differ"
    return ""


@pytest.mark.slow
def test_standard_node_cases() -> None:
    from onnx.backend.test.case.node import collect_testcases

    good, wrong = 0, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
        for case in cases:
            if "bfloat16" in case.name or "_bf16" in case.name or case.name in ROUNDING:
                continue  # the NumPy reference has no bfloat16 arithmetic
            operands, want = (arrays(v) for v in case.data_sets[0])
            try:
                said = compare(case, run(case, operands), want)
            except UnsupportedError:
                continue
            if said:
                wrong[case.name] = said
            good += not said
    assert wrong == {}
    assert good >= AT_LEAST
