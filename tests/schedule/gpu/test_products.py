"""Tiles of products: every way in which a factor is copied, edges, epilogues, and devices of few
threads and little shared memory, on OpenCL and on the emulator of CUDA."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.ir.expr import Var
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import Alloc, PrimFunc
from tensorkiln.ir.visit import walk_stmt
from tensorkiln.kernels.case import Build
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tensorkiln.target.capability import most_shared
from tests.cuda.emulator.launch import BACKWARD, FORWARD
from tests.schedule.battery import Battery
from tests.schedule.gpu.runner import OPENCL, DeviceRunner, Kernels, groups_for
from tests.transform.graphs import graph

N = Var("N")
ROWS = [{"N": n} for n in (1, 64, 70)]
CUDA = Target({"kind": "cuda", "arch": "sm_80"})
TARGETS = {
    "opencl": OPENCL,
    "128 threads": Target(
        {"kind": "opencl", "max_num_threads": 128, "max_shared_memory_per_block": 16 << 10}
    ),
    "64 threads": Target(
        {"kind": "opencl", "max_num_threads": 64, "max_shared_memory_per_block": 4 << 10}
    ),
    "cuda": CUDA,
}


def _products() -> Battery:
    """Factors that are adjacent along terms, along rows or columns, by fours, by twos or not."""
    b = Battery()

    def linear(name: str, m: int | Var, k: int, n: int, build: Build | None = None) -> None:
        build = build or (lambda g, x, w: g.linear(x, w))
        sizes = [{}] if isinstance(m, int) else ROWS
        b.add(name, build, (m, k), (k, n), sizes=sizes, tolerance=2e-5)

    for k in (16, 18, 21, 40):
        linear(f"terms_{k}", 33, k, 72)
    for n in (9, 10, 12, 68, 70, 131):
        linear(f"columns_{n}", 40, 24, n)
    linear("rows", N, 36, 20)
    linear("rows_odd", N, 7, 21)
    linear("epilogue", 35, 20, 44, lambda g, x, w: g.gelu(g.add(g.linear(x, w), 0.5)))
    linear("prologue", 35, 20, 44, lambda g, x, w: g.linear(g.relu(x), w))
    linear("integers", 35, 20, 44, lambda g, x, w: g.cast(g.linear(x, w), dtype="int32"))
    b.add(
        "residual",
        lambda g, x, w, v, y: g.relu(g.add(g.add(g.linear(x, w), v), y)),
        *((70, 33), (33, 64), (64,), (70, 64)),
        tolerance=2e-5,
    )
    b.add(
        "per_row",
        lambda g, x, w, v: g.mul(g.linear(x, w), v),
        *((70, 33), (33, 64), (70, 1)),
        tolerance=2e-5,
    )
    for k in (16, 19):
        b.add(
            f"transposed_{k}",
            lambda g, x, y: g.matmul(x, y, transpose_b=True),
            *((2, 40, k), (2, 36, k)),
            tolerance=2e-5,
        )
    b.add("batch", lambda g, x, y: g.matmul(x, y), (3, 20, 17), (3, 17, 24), tolerance=2e-5)
    b.add("batch_rows", lambda g, x, y: g.matmul(x, y), (2, N, 12), (2, 12, 24), sizes=ROWS)
    return b


def _convolutions() -> Battery:
    b = Battery()
    cases = {
        # (batch, channels, height, width), (filters, height, width), attributes
        "point": ((2, 20, 6, 8), (16, 1, 1), {}),
        "point_odd": ((2, 20, 5, 7), (16, 1, 1), {}),
        "point_apart": ((2, 20, 6, 8), (16, 1, 1), {"strides": (2, 2)}),
        "windows": ((1, 4, 8, 8), (16, 3, 3), {"padding": (1, 1, 1, 1)}),
        "windows_left": ((1, 5, 9, 9), (24, 3, 3), {"padding": (1, 0, 2, 1)}),
        "windows_apart": ((2, 8, 9, 12), (16, 3, 3), {"strides": (2, 2)}),
        "windows_wide": ((1, 6, 9, 12), (16, 2, 5), {"padding": (0, 2, 1, 2)}),
        "windows_large": ((1, 3, 12, 12), (16, 7, 7), {"padding": (3, 3, 3, 3)}),
        "groups": ((2, 8, 6, 8), (32, 3, 3), {"padding": (1, 1, 1, 1), "groups": 2}),
        "images": ((N, 4, 6, 8), (16, 3, 3), {"padding": (1, 1, 1, 1)}),
    }
    for name, ((n, ch, h, w), (f, kh, kw), attrs) in cases.items():
        per_group = ch // int(attrs.get("groups", 1))
        sizes = [{}] if isinstance(n, int) else [{"N": 1}, {"N": 3}]
        b.add(
            name,
            lambda g, x, w, v, a=attrs: g.relu(g.conv2d(x, w, v, **a)),
            *((n, ch, h, w), (f, per_group, kh, kw), (f,)),
            sizes=sizes,
            tolerance=2e-5,
        )
    # As many tiles as fill a device: the larger ones.
    b.add(
        "large",
        lambda g, x, w: g.conv2d(x, w, padding=(1, 1, 1, 1)),
        *((1, 3, 128, 128), (64, 3, 3, 3)),
        tolerance=2e-5,
    )
    return b


BATTERIES = {"products": _products(), "convolutions": _convolutions()}
# "large" on a CPU takes seconds: on the emulator, which finds more, only.
EVERY = [
    (target, battery, name)
    for target in TARGETS
    for battery, b in BATTERIES.items()
    for name in b.cases
    if name != "large" or target == "cuda"
]
# What OpenCL's compiler takes longest for: some in every run, on devices of several sizes.
SAMPLE = [x for k, x in enumerate(EVERY) if x[0] == "cuda" or k % 5 == 0]


@cache
def runner(target: str, battery: str, cases: tuple[str, ...]) -> DeviceRunner:
    return DeviceRunner(BATTERIES[battery], cases, TARGETS[target])


def check(target: str, battery: str, name: str, cases: list[tuple[str, str, str]]) -> None:
    found = runner(target, battery, tuple(n for t, b, n in cases if (t, b) == (target, battery)))
    if target != "cuda":
        found.check(name)
        return
    for order, aligned, late in ((BACKWARD, True, False), (FORWARD, False, True)):
        found.kernels.order, found.kernels.aligned, found.kernels.late = (order, 0), aligned, late
        found.check(name)


@pytest.mark.in_turn("target", "battery")
@pytest.mark.parametrize(("target", "battery", "name"), SAMPLE)
def test_products(target: str, battery: str, name: str) -> None:
    check(target, battery, name, SAMPLE)


@pytest.mark.fuzz
@pytest.mark.parametrize(("target", "battery", "name"), EVERY)
def test_all_products(target: str, battery: str, name: str) -> None:
    check(target, battery, name, EVERY)


# Products of which there are enough tiles, and multiply-adds for each load of shared memory.
LARGE: dict[str, tuple[Build, tuple[tuple[int, ...], ...], int]] = {
    "linear": (lambda g, x, w: g.linear(x, w), ((2048, 2048), (2048, 2048)), 16),
    "epilogue": (
        lambda g, x, w, v: g.relu(g.add(g.linear(x, w), v)),
        ((2048, 1024), (1024, 2048), (2048,)),
        16,
    ),
    "transposed": (
        lambda g, x, w: g.matmul(x, w, transpose_b=True),
        ((2048, 512), (2048, 512)),
        16,
    ),
    "points": (
        lambda g, x, w: g.conv2d(x, w),
        ((8, 64, 56, 56), (256, 64, 1, 1)),
        16,
    ),
    "windows": (
        lambda g, x, w: g.conv2d(x, w, padding=(1, 1, 1, 1)),
        ((8, 64, 56, 56), (64, 64, 3, 3)),
        10,
    ),
    "small": (lambda g, x, w: g.linear(x, w), ((256, 1024), (1024, 512)), 8),
}


def device_function(name: str) -> PrimFunc:
    build, shapes, _ = LARGE[name]
    *_, group = groups_for(graph(build, **{f"x{k}": s for k, s in enumerate(shapes)}), CUDA)
    made = Kernels([schedule_group(group, CUDA)], CUDA)
    (launch,) = made.launches(made.names[0])
    return made.func(launch.name)


@pytest.mark.parametrize("name", LARGE)
def test_factors_are_loaded_by_fours(name: str) -> None:
    """The text of a large product loads no single factor from shared memory, and few of them; a
    block leaves room for a second. With enough tiles, half as many threads have twice as many sums
    each."""
    f = device_function(name)
    text = ptx_of({f.name: emit_ptx_ir(f, CUDA)}, ["sm_80"])["sm_80"]
    loads = re.findall(r"ld\.shared(\.v\d)?\.", text)
    assert set(loads) == {".v4"}
    assert text.count("fma.rn.f32") >= LARGE[name][2] * len(loads)
    assert launch_of(f).block == (256 if name in ("windows", "small") else 128, 1, 1)
    assert 2 * launch_of(f).shared_bytes <= most_shared(CUDA)


@pytest.mark.parametrize("shared", [16 << 10, 4 << 10])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_few_rows_share_what_a_device_has(rows: int, shared: int) -> None:
    """As many threads along terms as have room for their sums."""
    target = Target({"kind": "opencl", "max_shared_memory_per_block": shared})
    mod = graph(lambda g, x, w: g.gelu(g.linear(x, w)), x=(rows, 2048), w=(2048, 96))
    launches = Kernels([schedule_group(g, target) for g in groups_for(mod, target)], target)
    for name in launches.names:
        for launch in launches.launches(name):
            assert launch_of(launches.func(launch.name)).shared_bytes <= shared


@pytest.mark.parametrize(
    ("options", "ahead"),
    [({"arch": "sm_80"}, True), ({"arch": "sm_75"}, False), ({"also": ["sm_75"]}, False)],
)
def test_a_library_copies_ahead_where_all_of_its_architectures_do(
    options: dict[str, object], ahead: bool
) -> None:
    mod = graph(lambda g, x, w: g.linear(x, w), x=(64, 96), w=(96, 64))
    exe = compile_module(mod, {"kind": "cuda", "arch": "sm_80", **options})
    texts = [a.text() for a in exe.artifacts if a.file_name.endswith(".ptx")]
    assert len(texts) == 1 + ("also" in options)
    assert all(("cp.async.wait_all" in text) == ahead for text in texts)


COMPUTED: dict[str, tuple[Build, int]] = {
    "elements of memory": (lambda g, x, w: g.linear(x, w), 3),
    "computed": (lambda g, x, w: g.linear(g.relu(x), w), 2),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_factors_that_are_computed_are_not_copied_ahead(name: str) -> None:
    """Shared memory has a dimension of parts if it is filled ahead."""
    build, dims = COMPUTED[name]
    (group,) = groups_for(graph(build, x=(64, 96), w=(96, 64)), CUDA)
    f = schedule_group(group, CUDA)
    shared = {s.buffer.name: s.buffer for s in walk_stmt(f.body) if isinstance(s, Alloc)}
    assert [len(shared[name].shape) for name in ("left", "right")] == [dims, dims]
