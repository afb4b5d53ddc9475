"""Whether what is about to be measured is right on this GPU: every class of kernels against float64
at several sizes, products and attention by warpgroups where it has them, the tests of the runtime,
and a run that torch captures."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy
import numpy as np

import tensorkiln as tk
from bench.gpu.cases import off_by
from bench.gpu.device import Gpu, on_device
from bench.gpu.peers import Absent, torch_with_cuda
from bench.store import ROOT
from tensorkiln.base.element_types import HALF_TYPES
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.ops.builder import GraphBuilder
from tensorkiln.ops.evaluate import evaluate
from tests.cuda.classes import HALVES
from tests.cuda.test_attention import made_up
from tests.cuda.test_attention_warpgroups import CASES as ATTENTIONS
from tests.cuda.test_convolutions import filled
from tests.cuda.test_parts import PARTS
from tests.cuda.test_wgmma import PRODUCTS
from tests.schedule.battery import TOLERANCE, Battery, Case, arguments, typed
from tests.schedule.gpu.kernels import KERNELS

_TOLERANCE = {**TOLERANCE, "float32": 2e-5}  # integers are exact
_DRY_CLASSES = ("flat_symbolic", "softmax_short", "matmul", "max_pool", *HALVES)
_SIZES = (1, 7, 40)
# Tests that run on the machine's GPU where it has one.
_TESTS = (
    "tests/cuda/test_models.py",
    "tests/cuda/test_streams.py",
    "tests/runtime/test_devices.py",
)


def kernel_classes(dry: bool) -> Battery:
    """Every class in each of its forms; some of them in a dry run."""
    battery = Battery()
    for name in _DRY_CLASSES if dry else (*KERNELS, *HALVES):
        case = HALVES[name] if name in HALVES else KERNELS[name]
        symbols = sorted({str(n) for n in case.shape if not isinstance(n, int)})
        sizes = [dict.fromkeys(symbols, n) for n in _SIZES] if symbols else [{}]
        battery.add(name, case.build, case.parameter, sizes=sizes)
    return battery


@cache
def _classes(gpu: Gpu) -> tuple[Battery, Any]:
    battery = kernel_classes(gpu.dry)
    mod = IRModule(tuple(c.function for c in battery.cases.values()), "battery")
    exe = tk.compile(mod, {"kind": "cuda", "arch": gpu.arch})
    gpu.let_run(exe)
    return battery, tk.runtime.Executor(exe, tk.cuda(0))


def check_class(name: str) -> Callable[[Gpu], str]:
    """A class of kernels at all its sizes; empty when it is right."""

    def check(gpu: Gpu) -> str:
        battery, executor = _classes(gpu)
        return wrong_result(battery.cases[name], executor)

    return check


def wrong_result(case: Case, executor: Any) -> str:
    """Empty when a graph of one result is right at all its sizes, NaN where its meaning is."""
    for k, sizes in enumerate(case.sizes):
        inputs = arguments(case, sizes, k)
        with np.errstate(all="ignore"):
            (want,) = evaluate(case.function, inputs, sizes, dtype="float64")
        array = executor[case.name](*inputs.values()).numpy()
        undefined = np.isnan(want.astype(np.float64))
        if (undefined != np.isnan(array.astype(np.float64))).any():
            return f"wrong result: NaN in other places, sizes {dict(sizes)}"
        have, want = (np.where(undefined, 0, x) for x in (array, want))
        if wrong := off_by(have, want, _TOLERANCE.get(array.dtype.name, 0.0)):
            return f"wrong result: {wrong}, sizes {dict(sizes)}"
    return ""


@dataclass(frozen=True)
class Table:
    """Graphs of a kind, compiled with `options` of the target; on one architecture if `only`."""

    fill: Callable[[Battery], None]
    options: Mapping[str, object] = field(default_factory=dict)
    only: str = ""

    def check(self, gpu: Gpu) -> str:
        """Empty when all its graphs are right, or none is for this GPU."""
        if self.only not in ("", gpu.arch):
            return f"absent: of {self.only} alone"
        battery = Battery()
        self.fill(battery)
        mod = IRModule(tuple(c.function for c in battery.cases.values()), "battery")
        exe = tk.compile(mod, {"kind": "cuda", "arch": gpu.arch, **self.options})
        executor = tk.runtime.Executor(exe, tk.cuda(0))
        wrong = ((name, wrong_result(c, executor)) for name, c in battery.cases.items())
        return "; ".join(f"{name}: {reason}" for name, reason in wrong if reason)


def _symbol(words: str) -> str:
    return words.replace(",", "").replace(" ", "_")


def _products(dtype: str, battery: Battery) -> None:
    for name, p in PRODUCTS.items():
        battery.add(_symbol(name), p.build, *(typed(dtype, *s) for s in p.shapes), sizes=p.sizes)


def _attentions(dtype: str, battery: Battery) -> None:
    for name, a in ATTENTIONS.items():
        battery.add(_symbol(name), a.build, *a.params(dtype), sizes=a.sizes, make=made_up)


def _parts(battery: Battery) -> None:
    for name, case in PARTS.items():
        battery.add(_symbol(name), case.build, case.parameter)


def _convolutions(dtype: str, battery: Battery) -> None:
    for name, case in filled(dtype).cases.items():
        battery.cases[name] = case


# What `make test` runs through the emulator.
TABLES: dict[str, Table] = {
    **{
        f"products by warpgroups, {dtype}, copies by {copies}": Table(
            partial(_products, dtype), {"matmul_copies": copies}, "sm_90a"
        )
        for dtype in HALF_TYPES
        for copies in ("tma", "warp", "threads")
    },
    **{
        f"attention by warpgroups, {dtype}": Table(partial(_attentions, dtype), only="sm_90a")
        for dtype in HALF_TYPES
    },
    "products in parts": Table(_parts),
    **{f"convolutions, {dtype}": Table(partial(_convolutions, dtype)) for dtype in HALF_TYPES},
}


def check_tests(path: str) -> Callable[[Gpu], str]:
    """A file of tests; empty when all pass, and some do."""

    def check(gpu: Gpu) -> str:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = process.stdout.strip().splitlines() or [f"pytest ended with {process.returncode}"]
        passed = re.search(r"\d+ passed", lines[-1])
        return "" if process.returncode == 0 and passed else f"failed: {lines[-1][:120]}"

    return check


def check_torch(gpu: Gpu) -> str:
    """A run within `torch.cuda.graph`, replayed on other values; empty when it is right."""
    try:
        torch = torch_with_cuda(gpu)
    except Absent as reason:
        return f"absent: {reason}"
    g = GraphBuilder()
    mod = IRModule((g.finish(g.emit("exp", g.param("x", tensor((1000,), "float32")))),))
    exe = tk.compile(on_device(mod, "cuda"), {"kind": "cuda", "arch": gpu.arch})
    executor = tk.runtime.Executor(exe, tk.cuda(0))
    x = torch.rand(1000, device="cuda")
    y, graph, side = torch.zeros_like(x), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(side):
        executor.set_stream(side)
        executor["main"](x, out=y)
    side.synchronize()
    with torch.cuda.graph(graph, stream=side):
        executor["main"](x, out=y)
    x.copy_(torch.rand(1000, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    return off_by(y.cpu().numpy(), np.exp(x.cpu().numpy().astype(np.float64)), 2e-5)


def checks(dry: bool) -> Iterator[tuple[str, Callable[[Gpu], str]]]:
    """All of them, by name."""
    for name in kernel_classes(dry).cases:
        yield f"kernels {name}", check_class(name)
    if not dry:  # `make test` runs them through the stand-in
        for name, table in TABLES.items():
            yield name, table.check
        for path in _TESTS:
            yield path, check_tests(path)
    yield "torch.cuda.graph", check_torch
