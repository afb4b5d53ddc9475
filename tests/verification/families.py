"""A small model of each class of kernels of each device, in which the class computes something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, constant, tensor
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.target import Target
from tests.schedule.gpu.kernels import KERNELS
from tests.schedule.test_places import forest
from tests.schedule.test_policies_checked import CASES
from tests.transform.graphs import Build, graph, rand

V3 = {"kind": "llvm", "mcpu": "x86-64-v3"}
# WGSL is compiled, but no program of Python runs it: tests/wgsl has pages that do.
ONLY_IN_TILES = {"conv2d_tiles"}  # C has none
RUN_HERE = ("cpu", "opencl", "cuda")


@dataclass(frozen=True, slots=True)
class Case:
    """A graph of one parameter `x`, the class of one of its kernels, and what is compiled for."""

    build: Build
    shape: tuple[object, ...]
    target: Mapping[str, object]
    dtype: str = "float32"
    sizes: Mapping[str, int] = field(default_factory=dict)

    def module(self) -> IRModule:
        """The graph as a module."""
        return graph(self.build, x=tensor(self.shape, self.dtype))  # type: ignore[arg-type]

    def asked(self) -> Target:
        """The target."""
        return Target(dict(self.target))

    def dims(self) -> dict[str, int]:
        """A size for each symbolic dimension."""
        names = {str(d) for d in self.shape if not isinstance(d, int)}
        return {name: self.sizes.get(name, 5) for name in names}


def _halves(*shape: int) -> Constant:
    return constant((np.random.default_rng(1).standard_normal(shape) / 8).astype(np.float16))


def _bytes(*shape: int) -> Constant:
    return constant(np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8))


def _transposed(g, x):  # noqa: ANN001, ANN202
    return g.conv2d_transpose(x, rand(4, 6, 3, 3), rand(6), strides=(2, 2))


H, W = Var("H"), Var("W")
# By device and class, what neither of the tables of schedules' tests has.
_MORE: dict[tuple[str, str], Case] = {
    ("cpu", "images"): Case(
        lambda g, x: g.conv2d(g.relu(x), rand(24, 16, 3, 3), padding=(1, 1, 1, 1)),
        (1, 16, H, W),
        V3,
        sizes={"H": 9, "W": 11},
    ),
    ("cpu", "indices"): Case(
        lambda g, x: g.take(rand(9, 4), g.cast(g.mul(g.sigmoid(x), 8.0), dtype="int64"), axis=0),
        (70,),
        V3,
    ),
    ("cpu", "conv2d_tiles"): Case(
        lambda g, x: g.conv2d(x, _bytes(64, 64, 3, 3), padding=(1, 1, 1, 1)),
        (1, 64, 9, 32),
        {"kind": "llvm", "mcpu": "sapphirerapids"},
        "uint8",
    ),
    ("cpu", "tree_leaves"): Case(forest(11, "int32", 6, 3), (70, 6), V3),
    ("cpu", "coupled"): Case(lambda g, x: g.coupled(g.sigmoid(x), classes=3), (2000, 3), V3),
    ("opencl", "conv2d_transposed"): Case(_transposed, (1, 4, 7, 9), {"kind": "opencl"}),
    ("cuda", "conv2d_transposed"): Case(_transposed, (1, 4, 7, 9), {"kind": "cuda"}),
    ("cuda", "gpu_tensor_cores"): Case(
        lambda g, x: g.linear(x, _halves(48, 80)),
        (33, 48),
        {"kind": "cuda", "arch": "sm_80"},
        "float16",
    ),
    ("cuda", "gpu_wgmma"): Case(
        lambda g, x: g.linear(x, _halves(64, 64)),
        (64, 64),
        {"kind": "cuda", "arch": "sm_90a"},
        "float16",
    ),
    ("cuda", "gpu_attention_tensor_cores"): Case(
        lambda g, x: g.attention(x, x, x, scale=0.1),
        (1, 2, 35, 64),
        {"kind": "cuda", "arch": "sm_80"},
        "float16",
    ),
}


# Rows that only say how their operator is decomposed for a device: the class that computes most.
DECOMPOSED = {(device, "conv2d_transposed"): "gpu_contraction" for device in ("opencl", "cuda")}


def cases() -> dict[tuple[str, str], Case]:
    """By device and class of kernels; families without a case are missing."""
    found: dict[tuple[str, str], Case] = dict(_MORE)
    for build, shape, kind in CASES.values():
        found.setdefault(("cpu", kind), Case(build, shape, V3))
    for build, shape, kind in KERNELS.values():
        for device in ("opencl", "cuda"):
            found.setdefault((device, kind), Case(build, shape, {"kind": device}))
    return {key: found[key] for key in families() if key in found}


def families() -> list[tuple[str, str]]:
    """The devices that run here, and the classes of kernels that they have."""
    pairs = (
        (d, f.op_class) for f in built_in_families() for d in sorted(f.devices) if d in RUN_HERE
    )
    return list(dict.fromkeys(pairs))


__all__ = ["DECOMPOSED", "ONLY_IN_TILES", "RUN_HERE", "Case", "cases", "families"]
