"""Attention whose keys and values do not stay in the second-level cache, on every level of x86-64:
several tiles of queries take a block of keys before the next block."""

from __future__ import annotations

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.codegen.stack import local_bytes
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Tuple, tensor
from tensorkiln.kernels.knobs import MOST_ON_STACK
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tests.codegen.kernels import LEVELS
from tests.rotation import NATIVE, rows_in_turn
from tests.schedule.groups import groups_of

# (heads, queries, keys, features, whether scores have a mask): queries fill less than a group of
# tiles, one, a little more, several; heads are fewer than tasks for threads, and enough.
CASES = (
    (1, 5, 4200, 16, False),
    (2, 48, 1100, 64, False),
    (1, 49, 1030, 64, True),
    (9, 113, 1025, 64, False),
    (1, 200, 2100, 32, True),
)


@pytest.mark.parametrize("level", LEVELS)
def test_tiles_that_take_keys_in_turn(level: str) -> None:
    cases = CASES if level == NATIVE else rows_in_turn(CASES, str, lambda _: "")
    rng, g, inputs, outs = np.random.default_rng(4), GraphBuilder(), {}, []
    for k, (heads, queries, keys, size, masked) in enumerate(cases):
        shapes = {"q": (heads, queries, size), "k": (heads, keys, size), "v": (heads, keys, size)}
        if masked:
            shapes["m"] = (1, queries, keys)
        operands = []
        for name, shape in shapes.items():
            values = rng.standard_normal((1, *shape)).astype("f4")
            inputs[f"{name}{k}"] = (
                np.where(values > 1.0, -np.inf, values) if name == "m" else values
            )
            operands.append(g.param(f"{name}{k}", tensor((1, *shape), "float32")))
        outs.append(g.emit("attention", *operands, scale=size**-0.5))
    mod = IRModule((g.finish(Tuple(tuple(outs))),))
    exe = tk.compile(mod, LEVELS[level])
    assert sum(p.kernel_class == "attention_fused" for p in exe.placement()) == len(cases)
    lib = exe.jit()
    results = []
    for threads in (1, 2):
        lib.set_num_threads(threads)
        ys = tk.runtime.Executor(lib, tk.cpu())["main"](*inputs.values())
        results.append([y.numpy() for y in ([ys] if len(cases) == 1 else ys)])
    for k, want in enumerate(evaluate(mod, inputs, dtype="float64")):
        np.testing.assert_allclose(results[0][k], want, rtol=1e-4, atol=1e-5, err_msg=f"case {k}")
        np.testing.assert_array_equal(results[0][k], results[1][k])


@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "znver5"])
@pytest.mark.parametrize("size", [64, 256, 1024, 4096])
def test_sums_of_tiles_fit_the_stack(mcpu: str, size: int) -> None:
    g, target = GraphBuilder(), Target({"kind": "llvm", "mcpu": mcpu})
    operands = [g.param(x, tensor((1, 2, 700, size), "float32")) for x in "qkv"]
    mod = IRModule((g.finish(g.emit("attention", *operands, scale=size**-0.5)),))
    (group,) = [x for x in groups_of(mod, target) if x.anchor is not None]
    kernel = schedule_group(group, target)
    assert kernel.op_class == "attention_fused" and local_bytes(kernel) <= MOST_ON_STACK
