"""Random graphs through the whole road, many to a library, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tensorkiln.ir.module import IRModule
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.runtime import Executor
from tensorkiln.script import print_function
from tests.codegen.kernels import LEVELS
from tests.transform.graphs import arguments, main
from tests.transform.test_random_graphs import modules

GRAPHS = 25


# Not shrunk: every step would link a library. The failing graph is printed instead.
@settings(
    max_examples=6,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(modules(), min_size=GRAPHS, max_size=GRAPHS), st.sampled_from(sorted(LEVELS)))
def test_graphs_match_float64(graphs: list[IRModule], level: str) -> None:
    functions = [replace(main(m), name=f"g{k}") for k, m in enumerate(graphs)]
    run = Executor(compile_module(IRModule(tuple(functions), "random"), LEVELS[level]).jit())
    for f, mod in zip(functions, graphs, strict=True):
        inputs = arguments(mod)
        with np.errstate(all="ignore"):
            want = evaluate(f, inputs, dtype="float64")
        got = [np.asarray(t) for t in run[f.name](*inputs.values())]
        for a, b in zip(got, want, strict=True):
            assert a.shape == b.shape
            scale = max(1e-30, float(np.abs(b[np.isfinite(b)]).max(initial=0)))
            np.testing.assert_allclose(
                a, b, rtol=0, atol=1e-4 * scale, err_msg=f"{level}: {print_function(f)}"
            )
