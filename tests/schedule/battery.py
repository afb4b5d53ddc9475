"""Many small graphs compiled into one library, each compared with its float64 meaning.

A linked library costs a second, a kernel in it milliseconds: tests of schedules collect their
graphs in a `Battery` first and compile once.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy
import numpy as np

from tensorkiln.arith import simplify
from tensorkiln.executable import Executable
from tensorkiln.ir.expr import Expr, ExprLike, IntImm, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, TensorType, Value, tensor
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.kernels.case import Graph
from tensorkiln.ops.evaluate import evaluate
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.target import Target
from tests.emulated.machine import Library
from tests.rotation import family_of, rows_in_turn

Build = Callable[..., Value]
Spec = TensorType | tuple[ExprLike, ...]
# What kernels may call: the thread pool, and what every C library has.
ALLOWED = {"kiln_parallel_for", "memcpy", "memset", "memmove"}
# Largest error as a share of the largest element, by dtype of the result.
TOLERANCE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 5e-6, "float64": 1e-13}


def typed(dtype: str, *shape: ExprLike) -> TensorType:
    return tensor(shape, dtype)


@dataclass
class Case:
    """One graph function; `sizes` are values of its symbols, one run for each. With `exact` the
    reference computes in the types of the graph, and results must be the same to the bit."""

    name: str
    function: Function
    sizes: Sequence[Mapping[str, int]]
    make: Callable[[int, np.dtype, tuple[int, ...]], np.ndarray] | None = None
    tolerance: float = 0.0
    exact: bool = False

    def reference(
        self, inputs: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> list[np.ndarray]:
        """What NumPy computes, in float64 unless `exact`."""
        with np.errstate(all="ignore"):
            return evaluate(self.function, inputs, sizes, dtype=None if self.exact else "float64")

    def compare(self, output: np.ndarray, want: np.ndarray, label: str) -> None:
        """Assert that a result is what `reference` gave."""
        if self.exact:
            assert (output.dtype, output.shape) == (want.dtype, want.shape), label
            assert output.tobytes() == want.tobytes(), f"{label}: other bits"
        else:
            compare(output, want, self.tolerance, label)


@dataclass
class Battery:
    """Cases by name; `add` a builder, `compile`, `check` each. `table` has those of all runs, where
    this one takes a part."""

    cases: dict[str, Case] = field(default_factory=dict)
    table: dict[str, Case] = field(default_factory=dict)

    def add(
        self,
        name: str,
        build: Build,
        *params: Spec,
        sizes: Sequence[Mapping[str, int]] = ({},),
        make: Callable[..., np.ndarray] | None = None,
        tolerance: float = 0.0,
        exact: bool = False,
    ) -> None:
        """A graph over parameters x0, x1, ... ; plain tuples are float32 shapes."""
        g = Graph()
        types = [p if isinstance(p, TensorType) else tensor(p, "float32") for p in params]
        values = [g.param(f"x{k}", t) for k, t in enumerate(types)]
        assert name not in self.cases, name
        function = g.finish(build(g, *values), name)
        self.cases[name] = Case(name, function, sizes, make, tolerance, exact)

    def in_turn(self, family: Callable[[str], str] = family_of) -> Battery:
        """The battery without the cases that other runs of the tests take: of those of one family,
        whose names differ in numbers alone, each run takes a part."""
        self.table = self.cases
        self.cases = {name: self.cases[name] for name in rows_in_turn(self.cases, family=family)}
        return self

    def whole(self) -> Battery:
        """The cases of all runs, in the order in which they were added."""
        return Battery(self.table or self.cases)

    def compile(self, target: Target) -> Executable:
        functions = tuple(c.function for c in self.cases.values())
        return compile_module(IRModule(functions, "battery"), target)

    def check(self, name: str, run: Library) -> None:
        """Every size of one case against float64, and the same bytes for 1, 2 and 3 threads."""
        case = self.cases[name]
        for k, sizes in enumerate(case.sizes):
            inputs = arguments(case, sizes, k)
            want = case.reference(inputs, sizes)
            runs = []
            for threads in (1, 2, 3):
                run.set_num_threads(threads)
                out = run[name](*inputs.values())
                runs.append([np.asarray(t) for t in (out if isinstance(out, tuple) else (out,))])
            for first, second in itertools.pairwise(runs):
                for a, b in zip(first, second, strict=True):
                    assert a.tobytes() == b.tobytes(), f"{sizes}: bytes depend on threads"
            for output, expected in zip(runs[0], want, strict=True):
                case.compare(output, expected, f"{name} {dict(sizes)}")


def undefined_by(executable: Executable) -> set[str]:
    """Symbols that kernels need beyond those allowed."""
    names: set[str] = set()
    for artifact in executable.artifacts:
        if artifact.file_name.endswith(".o"):
            names |= undefined_symbols(bytes(artifact.view))
    return names - ALLOWED


def undefined_symbols(data: bytes) -> set[str]:
    """Names of the undefined symbols of a 64-bit little-endian ELF object."""
    header_offset = struct.unpack_from("<Q", data, 0x28)[0]
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [
        struct.unpack_from("<IIQQQQIIQQ", data, header_offset + k * size) for k in range(count)
    ]
    names = set()
    for s in sections:
        if s[1] != 2:  # SHT_SYMTAB
            continue
        text = sections[s[6]][4]
        for offset in range(s[4] + 24, s[4] + s[5], 24):
            name, _, _, index = struct.unpack_from("<IBBH", data, offset)
            if index == 0:
                end = data.index(b"\0", text + name)
                names.add(data[text + name : end].decode())
    return names


def arguments(case: Case, sizes: Mapping[str, int], seed: int) -> dict[str, np.ndarray]:
    """Random inputs in parameter order."""
    inputs = {}
    for k, p in enumerate(case.function.params):
        shape = tuple(extent_of(d, sizes) for d in p.tensor.shape)
        make = case.make or random_array
        inputs[p.name] = np.asarray(make(seed * 100 + k, np.dtype(p.tensor.dtype.name), shape))
    return inputs


def extent_of(d: Expr, sizes: Mapping[str, int]) -> int:
    """The number that an extent over symbols of these sizes is."""
    number = int_value(simplify(substitute(d, {v: IntImm(sizes[v.name]) for v in free_vars(d)})))
    assert number is not None, d
    return number


def random_array(seed: int, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Normal floats, the whole range of small integers and a small one of the others."""
    generator = np.random.default_rng([seed, *shape])
    if dtype.kind == "b":
        return generator.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return generator.integers(max(info.min, -100), min(info.max, 100), shape, dtype, True)
    return generator.standard_normal(shape).astype(dtype)


def compare(output: np.ndarray, want: np.ndarray, tolerance: float, label: str) -> None:
    """Integers exactly; floats within a share of the largest finite element."""
    assert output.shape == want.shape, f"{label}: shape {output.shape}, expected {want.shape}"
    name = output.dtype.name
    if name not in TOLERANCE:
        assert output.dtype == want.dtype, f"{label}: {output.dtype}, expected {want.dtype}"
        np.testing.assert_array_equal(output, want, err_msg=label)
        return
    x = output.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(x), np.isnan(want), err_msg=label)
    with np.errstate(all="ignore"):
        want = want.astype(name).astype(np.float64)  # beyond the type's range is infinity
    ends = np.isinf(want)
    np.testing.assert_array_equal(x[ends], want[ends], err_msg=label)
    x, want = x[np.isfinite(want)], want[np.isfinite(want)]
    if not x.size:
        return
    limit = (tolerance or TOLERANCE[name]) * max(float(np.abs(want).max()), 1e-30)
    error = np.abs(x - want)
    assert error.max() <= limit, f"{label}: error {error.max()} > {limit} at {int(error.argmax())}"
