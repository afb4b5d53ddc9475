"""fold_grid: blocks that may be too many along y or z are launched along x, and write what they
did."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.launch import block_loops
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import For, PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.pipeline import tir_passes
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tensorkiln.transform.relax.pass_sizes import pass_sizes
from tensorkiln.transform.tir.fold_grid import MOST_ALONG_X, MOST_ALONG_Y, FoldGrid
from tensorkiln.transform.tir.split_device import split_device
from tests.rotation import rows_in_turn
from tests.schedule.gpu.runner import Kernels
from tests.transform.graphs import check_text

CUDA = Target("cuda")
MODULE = """
@ir_module
class Module:
    @T.prim_func(private=True)
    def f_device({params}):
        T.func_attr({{"device_function": True}})
        {loops}

    @T.prim_func
    def f({params}):
        T.call(cls.f_device, {args}, grid={grid}, block=(2, 1, 1))
"""
PARAMS = 'Y: T.Buffer(("n", 4, 2), "float32"), n: T.int64'
BEFORE = MODULE.format(
    params=PARAMS,
    args="Y, n",
    grid="(4, 1, n)",
    loops="""
        for z in T.thread_binding(n, thread="blockIdx.z"):
            for x in T.thread_binding(4, thread="blockIdx.x"):
                for t in T.thread_binding(2, thread="threadIdx.x"):
                    Y[z, x, t] = 1.0
""",
)
AFTER = MODULE.format(
    params=PARAMS,
    args="Y, n",
    grid="(n * 4, 1, 1)",
    loops="""
        for block in T.thread_binding(n * 4, thread="blockIdx.x"):
            x: T.int64 = T.Cast("int64", T.Cast("uint32", block) % T.uint32(4))
            z: T.int64 = T.Cast("int64", T.Cast("uint32", block) // T.uint32(4))
            for t in T.thread_binding(2, thread="threadIdx.x"):
                Y[z, x, t] = 1.0
""",
)


def test_text() -> None:
    check_text(FoldGrid(CUDA), BEFORE, AFTER)


# A nest over blocks that store where they are; axes from outside inwards.
NEST = """
@T.prim_func
def f(Y: T.Buffer(({z}, {y}, {x}), "int32")):
{loops}
"""
STORE = 'Y[bz, by, bx] = T.Cast("int32", bz * 1000003 + by * 101 + bx)'


def nest(axes: str, x: object, y: object, z: object) -> PrimFunc:
    """The program; sizes are numbers, or names of symbols."""
    sizes = {"x": x, "y": y, "z": z}
    lines = []
    for depth, axis in enumerate((*axes, "t")):
        of, count = ("threadIdx.x", 1) if axis == "t" else (f"blockIdx.{axis}", sizes[axis])
        lines.append(
            f'{"    " * (depth + 1)}for b{axis} in T.thread_binding({count}, thread="{of}"):'
        )
    lines.append("    " * (len(axes) + 2) + STORE)
    shape = {a: f'"{n}"' if isinstance(n, str) else n for a, n in sizes.items()}
    source = NEST.format(loops="\n".join(lines), **shape)
    return next(f for f in from_source(source).prim_funcs)


LIMITS = [
    (1, MOST_ALONG_Y, 1),
    (1, MOST_ALONG_Y + 1, 1),
    (1, 1, MOST_ALONG_Y),
    (1, 1, MOST_ALONG_Y + 1),
    (2, MOST_ALONG_Y + 2, 2),
    (3, 1, 70001),
    (1, 70001, 2),
    (5, 3, 7),
]


ORDERS = (("zyx", ""), ("xyz", ""), ("zyx", "z"), ("zyx", "y"), ("yzx", "zy"), ("zxy", "xyz"))


@pytest.mark.parametrize(("axes", "symbols"), rows_in_turn(ORDERS, family=len))
def test_every_block_runs_at_the_limits(axes: str, symbols: str) -> None:
    """On the emulator, which launches no more along an axis than CUDA does."""
    cases = {}
    for x, y, z in LIMITS:
        extents = {a: f"n{a}" if a in symbols else n for a, n in zip("xyz", (x, y, z), strict=True)}
        cases.setdefault(tuple(extents.items()), []).append((x, y, z))
    programs = [replace(nest(axes, **dict(key)), name=f"f{i}") for i, key in enumerate(cases)]
    kernels = Kernels(programs, CUDA)
    for f, (key, shapes) in zip(programs, cases.items(), strict=True):
        for x, y, z in shapes:
            out = np.full((z, y, x), -1, np.int32)
            kernels.run(f.name, {"nx": x, "ny": y, "nz": z}, out)
            indices = np.ogrid[:z, :y, :x]
            want = indices[0] * 1000003 + indices[1] * 101 + indices[2]
            np.testing.assert_array_equal(out, want.astype(np.int32), str((key, x, y, z)))


def grids(f: PrimFunc, target: Target = CUDA) -> IRModule:
    mod = split_device(pass_sizes(IRModule((f,), "m")))
    folded = FoldGrid(target)(mod)
    verify(folded)
    assert (folded is mod) == (folded.script() == mod.script())
    return mod if folded is mod else folded


SIZES = [c for c in itertools.product([1, 7, 70001, "n"], repeat=3) if c.count(70001) < 2]


@pytest.mark.parametrize(("x", "y", "z"), SIZES)
def test_only_what_may_exceed_is_folded(x: object, y: object, z: object) -> None:
    (device,) = (f for f in grids(nest("zyx", x, y, z)).prim_funcs if f.is_device)
    axes = {s.attrs["thread"] for s in _loops(device)}
    assert (axes == {"blockIdx.x"}) == any(n in (70001, "n") for n in (y, z))


def _loops(f: PrimFunc) -> list[For]:
    return [*block_loops(f.body)[0]]


@pytest.mark.parametrize("target", ["opencl", "webgpu"])
def test_grids_of_other_devices_stay(target: str) -> None:
    grid_module = grids(nest("zyx", 1, 70001, "n"), Target(target))
    (device,) = (f for f in grid_module.prim_funcs if f.is_device)
    assert len(_loops(device)) == 3


def test_devices_of_a_composite_are_told_apart() -> None:
    rows = [{"kind": "cuda", "target_key": "a"}, {"kind": "opencl", "target_key": "b"}]
    target = Target({"kind": "composite", "devices": rows})
    assert any(isinstance(p, FoldGrid) for p in tir_passes(CUDA))
    for key, count in (("a", 1), ("b", 3)):
        f = nest("zyx", 1, 70001, 2)
        f = replace(f, attrs=type(f.attrs).of(target=key, **f.attrs))
        (device,) = (g for g in grids(f, target).prim_funcs if g.is_device)
        assert len(_loops(device)) == count


def test_more_than_a_grid_has() -> None:
    limit = MOST_ALONG_X
    grids(nest("zyx", limit // 70001, 70001, 1))
    with pytest.raises(UnsupportedError, match=f"a grid of {70001 * 70001} blocks, .* {limit}"):
        grids(nest("zyx", 70001, 70001, 1))
