"""Writes a small network in Model Library Format, and inputs and expected outputs to check it with.

    python examples/firmware/make.py build
    tar -xf build/net.tar -C build
    cc -std=c11 -O2 -Ibuild/codegen/host/include -Ibuild/runtime -o build/demo \\
        examples/firmware/main.c build/expected.c build/codegen/host/src/*.c \\
        build/codegen/host/lib/*.o -lm
    build/demo
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.script import R

rng = np.random.default_rng(0)
w1, w2 = (rng.standard_normal(s).astype("float32") for s in ((8, 16), (16, 4)))
b1 = rng.standard_normal(16).astype("float32")


@tk.script.ir_module(name="net")
class Net:
    """`one` has fixed sizes, `many` takes any number of rows."""

    @R.function
    def one(x: R.Tensor((1, 8), "float32")) -> R.Tensor((1, 4), "float32"):
        a: R.Tensor((1, 16), "float32") = R.linear(x, w1)
        b: R.Tensor((1, 16), "float32") = R.add(a, b1)
        c: R.Tensor((1, 16), "float32") = R.relu(b)
        d: R.Tensor((1, 4), "float32") = R.linear(c, w2)
        y: R.Tensor((1, 4), "float32") = R.tanh(d)
        return y

    @R.function
    def many(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 4), "float32"):
        a: R.Tensor(("n", 16), "float32") = R.linear(x, w1)
        b: R.Tensor(("n", 16), "float32") = R.add(a, b1)
        c: R.Tensor(("n", 16), "float32") = R.relu(b)
        d: R.Tensor(("n", 4), "float32") = R.linear(c, w2)
        y: R.Tensor(("n", 4), "float32") = R.tanh(d)
        return y


def expected(x: np.ndarray) -> np.ndarray:
    """The network's output, computed by NumPy in float64."""
    return np.tanh(np.maximum(x.astype("float64") @ w1 + b1, 0) @ w2)


def c_array(name: str, values: np.ndarray) -> str:
    """The C definition of an array of floats."""
    return f"const float {name}[] = {{{', '.join(f'{v:.9g}' for v in values.ravel())}}};\n"


def main(folder: Path) -> None:
    """Write `net.tar` and `expected.c` to `folder`."""
    folder.mkdir(exist_ok=True)
    tk.compile(Net).export_model_library_format(folder / "net.tar")
    x = rng.standard_normal((5, 8)).astype("float32")
    (folder / "expected.c").write_text(
        c_array("net_input", x) + c_array("net_expected", expected(x))
    )


main(Path(sys.argv[1]))
