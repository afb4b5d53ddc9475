"""Small inputs of large consequence: sizes that double with each node, constants that grow, loops
of a billion. Each is compiled in a process of bounded memory, and is right or a typed error."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from tensorkiln.base.errors import TensorkilnError
from tensorkiln.script import from_source

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 12 << 30
N, F = helper.make_node, TensorProto.FLOAT
TWO = numpy_helper.from_array(np.array([2]), "two")
ONE = numpy_helper.from_array(np.array([1], np.float32), "one")


def model(nodes: list[object], shape: list[object], result: str, opset: int = 18) -> bytes:
    """Bytes of a model of `x`, a float32 of a shape."""
    g = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", F, shape)],
        [helper.make_tensor_value_info(result, F, None)],
        [TWO, ONE],
    )
    ids = [helper.make_opsetid("", opset)]
    data: bytes = helper.make_model(g, opset_imports=ids, ir_version=9).SerializeToString()
    return data


def size_chain(steps: Callable[[str, str], list[object]], count: int) -> bytes:
    """A vector of ones, as long as `count` steps make the first size of x."""
    nodes = [N("Shape", ["x"], ["s0"], start=0, end=1)]
    for i in range(count):
        nodes += steps(f"s{i}", f"s{i + 1}")
    return model([*nodes, N("Expand", ["one", f"s{count}"], ["y"])], ["n", 4], "y")


def growing(op: str, operand: str, count: int) -> bytes:
    """x plus a constant that each of `count` nodes makes twice as long."""
    nodes = [N("Identity", ["one"], ["c0"])]
    for i in range(count):
        last = f"c{i}" if op == "Concat" else operand
        options = {"axis": 0} if op == "Concat" else {}
        nodes.append(N(op, [f"c{i}", last], [f"c{i + 1}"], **options))
    return model([*nodes, N("Add", ["x", f"c{count}"], ["y"])], [1], "y")


def longer_tensors(count: int) -> bytes:
    """x and its half, joined, `count` times."""
    nodes = []
    for i in range(count):
        pool = N("MaxPool", [f"t{i}" if i else "x"], [f"p{i}"], kernel_shape=[2], strides=[2])
        operands = [f"t{i}" if i else "x", f"p{i}"]
        nodes += [pool, N("Concat", operands, [f"t{i + 1}"], axis=2)]
    return model(nodes, [1, 2, "n"], f"t{count}")


def of_opset(version: int) -> bytes:
    """A model that declares a version."""
    return model([N("Relu", ["x"], ["y"])], [2], "y", version)


def program(body: str) -> str:
    """A tensor program of two vectors."""
    head = (
        '@T.prim_func\ndef f(A: T.Buffer((8192,), "float32"), B: T.Buffer((8192,), "float32")):\n'
    )
    return head + "".join(f"    {line}\n" for line in body.split("\n"))


def half_more(s: str, t: str) -> list[object]:
    """t = s + s // 2"""
    return [N("Div", [s, "two"], [f"h{s}"]), N("Add", [s, f"h{s}"], [t])]


def half_or_two(s: str, t: str) -> list[object]:
    """t = max(s // 2, 2)"""
    return [N("Div", [s, "two"], [f"h{s}"]), N("Max", [f"h{s}", "two"], [t])]


def remainder(s: str, t: str) -> list[object]:
    """t = (s + s // 2) % s"""
    return [*half_more(s, f"a{s}"), N("Mod", [f"a{s}", s], [t])]


def chain(op: str, count: int, opset: int = 20) -> bytes:
    """One operator, `count` times."""
    nodes = [N(op, [f"e{i}" if i else "x"], [f"e{i + 1}"]) for i in range(count)]
    return model(nodes, [2], f"e{count}", opset)


# What is compiled, and the code of the error; "" if there is none.
CASES: dict[str, tuple[bytes | str, str]] = {
    "s + s // 2, 14 times": (size_chain(half_more, 14), ""),
    "s + s // 2, 60 times": (size_chain(half_more, 60), ""),
    "12 squares of a size": (size_chain(lambda s, t: [N("Mul", [s, s], [t])], 12), ""),
    "300 Div and Max": (size_chain(half_or_two, 150), ""),
    "40 Mod": (size_chain(remainder, 40), ""),
    "300 Exp": (chain("Exp", 300), ""),
    "100 Gelu": (chain("Gelu", 100), ""),
    "40 Concat of a constant": (growing("Concat", "", 40), ""),
    "40 Tile of a constant": (growing("Tile", "two", 40), ""),
    "12 joined halves": (longer_tensors(12), ""),
    "opset 2^31": (of_opset(1 << 31), "unsupported"),
    "opset 2^63 - 1": (of_opset((1 << 63) - 1), "unsupported"),
    "opset -1": (of_opset(-1), "unsupported"),
    "unrolled billion": (program("for i in T.unroll(1000000000):\n    B[0] = A[0]"), "unroll"),
    "unrolled in unrolled": (
        program("for i in T.unroll(999):\n  for j in T.unroll(999):\n    B[0] = A[0]"),
        "unroll",
    ),
    "vector of a billion": (
        program("for i in T.vectorized(1000000000):\n    B[0] = A[0]"),
        "vectorize",
    ),
    "number of 400 digits": (program("B[0] = A[0] * 1" + "0" * 400), "script"),
    "parentheses": (program("B[0] = " + "(" * 500 + "A[0]" + ")" * 500), "script"),
    "long sum": (program("B[0] = A[0]" + " + A[0]" * 900), "script"),
}


def outcome(source: bytes | str) -> str:
    """The code of the error of a compile; empty if there is none."""
    try:
        tk.compile(from_source(source) if isinstance(source, str) else source, "llvm")
    except TensorkilnError as error:
        return error.code
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_small_inputs_end_well() -> None:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY},) * 2)"
    work = "import tests.growth.test_compiled as t; t.main()"
    child = subprocess.run(
        [sys.executable, "-c", f"{limit}; {work}"], cwd=ROOT, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == [f"{name}: {code}" for name, (_, code) in CASES.items()]


def main() -> None:
    """Print the outcome of each case."""
    for name, (source, _) in CASES.items():
        print(f"{name}: {outcome(source)}", flush=True)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_sizes_that_are_computed_when_a_function_runs_are_right(n: int) -> None:
    size = n
    for _ in range(14):
        size += size // 2
    result = np.asarray(tk.compile(size_chain(half_more, 14))(np.zeros((n, 4), np.float32)))
    np.testing.assert_array_equal(result, np.ones(size, np.float32))


def test_tensors_of_sizes_that_grow() -> None:
    x = np.random.default_rng(0).random((1, 2, 5), np.float32)
    want = x
    for _ in range(12):
        pairs = want[..., : want.shape[2] // 2 * 2].reshape(1, 2, -1, 2)
        want = np.concatenate([want, pairs.max(-1)], axis=2)
    np.testing.assert_array_equal(np.asarray(tk.compile(longer_tensors(12))(x)), want)
