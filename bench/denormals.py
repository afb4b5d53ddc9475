"""`python -m bench.denormals`: what numbers below the smallest normal one cost, by kernel family.

Intel's processors take some 150 cycles for an operation on one; others take none. Each kernel runs
on one thread with normal numbers, and with denormal ones as inputs, as weights, and as what is made
on the way: products of normal numbers, or functions where they vanish. Attention has masks. With
`denormals="flush"` the dearest of these is shown.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tensorkiln as tk
from bench.contenders import Array
from bench.limits import least
from bench.report import DENORMALS_HEAD, FLUSHED, NORMAL, denormal_lines
from bench.store import add, machine

# Sizes whose products are not normal, and those that are not normal themselves.
_SMALL, _DENORMAL = 1e-20, 1e-39


@dataclass(frozen=True, slots=True)
class Case:
    """A network of one kernel family. `vanishing` are inputs for which what is computed on the way
    is not normal, by their names; without them products of small weights and inputs are."""

    name: str
    network: Callable[[], nn.Module]
    shapes: Sequence[tuple[int, ...]]
    vanishing: Callable[[], Mapping[str, Sequence[Array]]] | None = None


class _Function(nn.Module):
    def __init__(self, f: Callable[..., torch.Tensor]):
        super().__init__()
        self.f = f

    def forward(self, *xs: torch.Tensor) -> torch.Tensor:
        """The function."""
        return self.f(*xs)


_RNG = np.random.default_rng(7)
_QUERIES = (8, 4, 49, 32)  # of Swin's windows
MASKS = (-100.0, -1e4, -3e38, -math.inf)


def _numbers(shape: tuple[int, ...], size: float = 1.0) -> Array:
    return (_RNG.standard_normal(shape) * size).astype(np.float32)


def _tails() -> Mapping[str, Sequence[Array]]:
    """Where e**x is not normal, and e**-x."""
    x = _RNG.uniform(-104, -87.4, (64, 768)).astype(np.float32)
    x[:, 0] = 0
    return {"on the way": [x], "large": [-x]}


def _masks() -> Mapping[str, Sequence[Array]]:
    operands = [_numbers(_QUERIES) for _ in range(3)]
    hidden = _RNG.random((_QUERIES[2],) * 2) < 0.5
    hidden[:, 0] = False
    return {
        f"mask {size:g}": [*operands, np.where(hidden, size, 0).astype(np.float32)]
        for size in MASKS
    }


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=m)


def _function(name: str, f: Callable[..., torch.Tensor], tails: bool = True) -> Case:
    return Case(name, lambda: _Function(f), [(64, 768)], _tails if tails else None)


_IMAGE = (1, 64, 28, 28)
CASES = (
    Case("linear", lambda: nn.Linear(768, 768), [(64, 768)]),
    Case("linear, one row", lambda: nn.Linear(768, 768), [(1, 768)]),
    Case("matmul", lambda: _Function(torch.matmul), [(4, 64, 64), (4, 64, 64)]),
    Case("convolution 1x1", lambda: nn.Conv2d(64, 64, 1), [_IMAGE]),
    Case("convolution 3x3", lambda: nn.Conv2d(64, 64, 3, 2, 1), [_IMAGE]),
    Case("Winograd", lambda: nn.Conv2d(64, 64, 3, 1, 1), [_IMAGE]),
    Case("depthwise", lambda: nn.Conv2d(64, 64, 3, 1, 1, groups=64), [_IMAGE]),
    Case("transposed convolution", lambda: nn.ConvTranspose2d(64, 32, 2, 2), [_IMAGE]),
    Case("LSTM", lambda: nn.LSTM(128, 128), [(10, 1, 128)]),
    Case("attention", lambda: _Function(_attention), [*[_QUERIES] * 3, (49, 49)], _masks),
    Case("layer normalisation", lambda: nn.LayerNorm(768), [(64, 768)]),
    Case("average pooling", lambda: nn.AvgPool2d(3, 1), [_IMAGE]),
    Case("maximum pooling", lambda: nn.MaxPool2d(3, 1), [_IMAGE]),
    Case("global pooling", lambda: nn.AdaptiveAvgPool2d(1), [_IMAGE]),
    Case("addition", lambda: _Function(torch.add), [(64, 768), (64, 768)]),
    Case("multiplication", lambda: _Function(torch.mul), [(64, 768), (64, 768)]),
    _function("softmax", lambda x: torch.softmax(x, -1)),
    _function("log-softmax", lambda x: torch.log_softmax(x, -1)),
    _function("exp", torch.exp),
    _function("sigmoid", torch.sigmoid),
    _function("SiLU", F.silu),
    _function("GELU", F.gelu),
    _function("GELU by tanh", lambda x: F.gelu(x, approximate="tanh")),
    _function("tanh", torch.tanh),
    _function("erf", torch.erf),
    _function("softplus", F.softplus),
    _function("ELU", F.elu),
    _function("mish", F.mish),
    _function("relu", F.relu, tails=False),
)


def measure(case: Case, times: int = 30) -> dict[str, float]:
    """Microseconds of one call, the least, with numbers of each kind; of the dearest kind where
    they are flushed."""
    with_denormals, flushed = (_measured(case, denormals, times) for denormals in ("keep", "flush"))
    return {**with_denormals, FLUSHED: max(flushed.values())}


def _measured(case: Case, denormals: str, times: int) -> dict[str, float]:
    torch.manual_seed(0)
    normal = [_numbers(shape) for shape in case.shapes]
    network = case.network().eval()
    run = _compiled(network, normal, denormals)
    calls = {
        NORMAL: (run, normal),
        "inputs": (run, [x * np.float32(_DENORMAL) for x in normal]),
    }
    if case.vanishing is not None:
        calls |= {name: (run, xs) for name, xs in case.vanishing().items()}
    weights = list(network.parameters())
    if weights:
        _scale(weights, _DENORMAL)
        calls["weights"] = _compiled(network, normal, denormals), normal
        _scale(weights, _SMALL / _DENORMAL)
    if case.vanishing is None:
        small = _compiled(network, normal, denormals) if weights else run
        calls["on the way"] = small, [x * np.float32(_SMALL) for x in normal]
    return {name: _micros(f, xs, times) for name, (f, xs) in calls.items()}


def _scale(weights: Sequence[nn.Parameter], factor: float) -> None:
    with torch.no_grad():
        for w in weights:
            w.copy_((w.double() * factor).float())


def _compiled(network: nn.Module, inputs: Sequence[Array], denormals: str) -> Callable[..., object]:
    example = tuple(map(torch.from_numpy, inputs))
    library = tk.compile(network, "native", example_inputs=example, denormals=denormals).jit()
    executor = tk.runtime.Executor(library)
    executor.set_num_threads(1)
    return executor["main"]


def _micros(f: Callable[..., object], inputs: Sequence[Array], times: int) -> float:
    f(*inputs)
    return round(least(lambda: f(*inputs), times) * 1e6, 1)


def main(arguments: list[str] | None = None) -> None:
    """Measure the cases that are asked for, print the table and keep it."""
    parser = argparse.ArgumentParser(prog="python -m bench.denormals", description=__doc__)
    parser.add_argument("--only", default="", help="comma-separated names of kernels; all")
    only = [name for name in parser.parse_args(arguments).only.split(",") if name]
    names = [case.name for case in CASES]
    unknown = [name for name in only if name not in names]
    if unknown:
        parser.error(f"unknown kernel {unknown[0]!r}; known: {', '.join(names)}")
    rows = {}
    for case in CASES:
        if not only or case.name in only:
            rows[case.name] = measure(case)
    record = {"rows": rows} if only else add("denormals", "all", 1, {"rows": rows})
    print(machine(), *DENORMALS_HEAD, *denormal_lines(record), sep="\n")


if __name__ == "__main__":
    main()
