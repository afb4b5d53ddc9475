"""Small example graphs of kernel families, which tests, benches and planted faults go through.

The file `case.py` of a family has them: `CASES` for processors, `GPU_CASES` for devices whose
threads run in blocks, each by a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Constant, RVar, TensorType, Value, constant, tensor
from tensorkiln.ops.builder import GraphBuilder

Build = Callable[..., Value]
# Extents that only a run knows, of rows and of columns.
N, S = Var("N"), Var("S")
# The value of such an extent, where a case says none.
_SIZE = 5
# The processor that cases are compiled for: AVX2, without tiles.
_PROCESSOR = {"kind": "llvm", "mcpu": "x86-64-v3"}


class Graph(GraphBuilder):
    """`g.add(x, 1.0)` emits; Python numbers become float32 constants without dimensions."""

    def __getattr__(self, op: str) -> Callable[..., RVar]:
        if op.startswith("_"):
            raise AttributeError(op)

        def emit(*args: Value | float, **attrs: object) -> RVar:
            values = [c(a) if isinstance(a, (int, float)) else a for a in args]
            return self.emit(op.removesuffix("_"), *values, span=f"node {op}", **attrs)  # type: ignore[arg-type]

        return emit


@dataclass(frozen=True, slots=True)
class Case:
    """A graph of one parameter `x`, of which a family computes something.

    `op_class` is the row's, `shape` and `dtype` those of `x`, `sizes` the values of its extents
    that are not known, `options` what a target needs beside its kind. `kernel` is the class that
    computes it where the row only says by which other operators.
    """

    op_class: str
    build: Build
    shape: tuple[int | Var, ...]
    dtype: str = "float32"
    options: Mapping[str, object] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    kernel: str = ""

    @property
    def parameter(self) -> TensorType:
        """The type of `x`."""
        return tensor(self.shape, self.dtype)

    def module(self) -> IRModule:
        """The graph, as the function `main`."""
        g = Graph()
        return IRModule((g.finish(self.build(g, g.param("x", self.parameter))),))

    def config(self, device: str) -> dict[str, object]:
        """What it is compiled for on a device, "cpu" or the kind of another one, as a target."""
        return {**(_PROCESSOR if device == "cpu" else {"kind": device}), **self.options}

    def dims(self) -> dict[str, int]:
        """A size for each extent that is not known."""
        names = (str(d) for d in self.shape if not isinstance(d, int))
        return {name: self.sizes.get(name, _SIZE) for name in names}

    def operand(self, seed: int = 0) -> np.ndarray:
        """`x`: normally distributed, of integers 0 or 1."""
        generator, dims = np.random.default_rng(seed), self.dims()
        shape = [d if isinstance(d, int) else dims[str(d)] for d in self.shape]
        if self.parameter.dtype.is_int:
            return generator.integers(0, 2, shape).astype(self.dtype)
        return generator.standard_normal(shape).astype(self.dtype)


def c(values: object, dtype: str = "float32") -> Constant:
    """A constant."""
    return constant(np.asarray(values, dtype))


def rand(*shape: int, seed: int = 0, low: float = -1.0, high: float = 1.0) -> Constant:
    """A constant of uniform random numbers."""
    generator = np.random.default_rng([seed, *shape])
    return constant(generator.uniform(low, high, shape).astype(np.float32))


def halves(*shape: int) -> Constant:
    """A constant of small random numbers of 16 bits."""
    return constant((np.random.default_rng(1).standard_normal(shape) / 8).astype(np.float16))


def int8(*shape: int, seed: int | tuple[int, ...] = ()) -> Constant:
    """A constant of random bytes with signs."""
    generator = np.random.default_rng(seed or shape)
    return constant(generator.integers(-128, 128, shape).astype(np.int8))


def quantized(op: str, *weights: int, **attrs: object) -> Build:
    """A product of uint8 by int8 weights of a shape, whose sums are quantized again."""
    zero, offset = c(3, "uint8"), c(0, "int32")

    def build(g: Graph, x: RVar) -> Value:
        y = g.emit(op, g.quantize(x, 0.05, zero), int8(*weights), **attrs)  # type: ignore[arg-type]
        return g.quantize(g.relu(g.dequantize(y, 0.01, offset)), 0.5, zero)

    return build
