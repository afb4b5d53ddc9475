"""One-pass attention on a device of OpenCL: masks of every kind, far scores, odd sizes, and where
it is taken apart instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

from tensorkiln.families.attention.gpu_row import tile_of
from tensorkiln.ir.expr import Var
from tensorkiln.ir.relax import Call, RVar
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.target import Target
from tests.schedule.battery import Battery, typed
from tests.schedule.gpu.runner import OPENCL, DeviceRunner, fused
from tests.schedule.test_masked_attention import CASES as MASKED
from tests.transform.graphs import graph, main

N, S, T = Var("N"), Var("S"), Var("T")
MASKS = [name for name in MASKED if name.startswith("op_float32_16_")]


class _Functions:
    """The cases of a runner as functions of arrays, whose symbols are named here."""

    def __init__(self, runner: DeviceRunner):
        self.runner = runner

    def __getitem__(self, name: str) -> Callable[..., np.ndarray]:
        def call(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
            names = [p.name for p in self.runner.battery.cases[name].function.params]
            sizes = {"S": q.shape[2], "T": k.shape[2]}
            kernels = self.runner.kernels
            run = {n: partial(kernels.run, n, sizes) for n in kernels.names}
            inputs = dict(zip(names, (q, k, v, mask), strict=True))
            (result,) = evaluate(self.runner.mod, inputs, sizes, function=name, packed=run)
            return result

        return call


@cache
def masked() -> _Functions:
    b = Battery()
    for name in MASKS:
        case = MASKED[name]
        kv = (2, 1, case.keys, case.width)
        shapes = [typed(case.dtype, *s) for s in ((2, 1, S, case.width), kv, kv)]
        b.add(name, case.build, *shapes, typed(case.kind, S, case.keys))
    return _Functions(DeviceRunner(b))


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_in_every_place(name: str) -> None:
    for keys in (17, 130):
        MASKED[name].run(masked(), keys)  # type: ignore[arg-type]


def _whole(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Integers, of which scores are exact and hundreds apart."""
    return np.random.default_rng([seed, *shape]).integers(-20, 21, shape).astype(dtype)


def _battery() -> Battery:
    b = Battery()
    for batch, heads, rows, keys, depth, width in (
        (1, 2, 1, 70, 7, 7),
        (2, 1, 37, 3, 20, 5),
        (1, 3, 65, 67, 64, 48),
        (1, 1, 3, 33, 33, 65),
        (16, 8, 70, 40, 16, 16),
        *((1, 2, rows, 1, 16, 16) for rows in (1, 3, 5)),  # a single key
    ):
        q, k, v = ((batch, heads, n, d) for n, d in ((rows, depth), (keys, depth), (keys, width)))
        for causal in (False, True):
            b.add(
                f"{rows}_{keys}_{depth}_{width}_{int(causal)}",
                lambda g, q, k, v, z=causal: g.attention(q, k, v, scale=0.5, causal=z),
                *(q, k, v),
                make=_whole,
            )
    b.add(
        "symbolic",
        lambda g, q, k, v: g.attention(q, k, v, scale=0.25, causal=True),
        (N, 2, S, 12),
        (N, 2, T, 12),
        (N, 2, T, 20),
        sizes=[{"N": n, "S": s, "T": t} for n, s, t in ((1, 1, 9), (2, 40, 33), (1, 19, 100))],
        make=_whole,
    )
    return b


BATTERY = _battery()


@cache
def odd() -> DeviceRunner:
    return DeviceRunner(BATTERY)


@pytest.mark.parametrize("name", BATTERY.cases)
def test_far_scores_and_odd_sizes(name: str) -> None:
    odd().check(name)
    assert {f.op_class for f in odd().mod.prim_funcs} == {"gpu_attention"}


def _attention(depth: int, dtype: str = "float32") -> list[str]:
    shape = typed(dtype, 1, 2, 40, depth)
    mod = graph(lambda g, q, k, v: g.attention(q, k, v, scale=0.1), q=shape, k=shape, v=shape)
    return [f.name for f in fused(mod).functions if f.name != "main"]


@pytest.mark.parametrize(("depth", "dtype"), [(64, "float16"), (1024, "float32")])
def test_it_is_taken_apart_where_no_tile_fits(depth: int, dtype: str) -> None:
    assert _attention(16) == ["attention"]
    apart = _attention(depth, dtype)
    assert len(apart) > 1 and "attention" not in apart


@pytest.mark.parametrize("shared", [4 << 10, 16 << 10, 32 << 10, 48 << 10])
@pytest.mark.parametrize("threads", [8, 64, 256])
@pytest.mark.parametrize(("rows", "depth"), [(1, 64), (13, 16), (512, 64), (512, 128)])
def test_tiles_are_within_the_limits(shared: int, threads: int, rows: int, depth: int) -> None:
    options = {"max_shared_memory_per_block": shared, "max_num_threads": threads}
    mod = graph(lambda g, x: g.attention(x, x, x, scale=0.1), x=(1, 12, rows, depth))
    (call,) = (b.value for b in main(mod).bindings if isinstance(b.value, Call))
    assert isinstance(call.args[0], RVar)
    tile = tile_of(call, Target({"kind": "opencl", **options}))
    whole = tile_of(call, OPENCL)
    assert whole is not None and (rows < 16 or whole.all_rows >= 8)
    if tile is not None:
        assert tile.threads <= threads and tile.shared(depth, depth) * 4 <= shared
