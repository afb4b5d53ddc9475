"""Networks as C in programs: of 32 bits, and two of one graph name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tests.codegen.c_like.build import require_compiler
from tests.codegen.c_like.in_32_bits import require_32_bits, run_in_32_bits


@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("vectors", [True, False])
def test_kernels_of_a_32_bit_machine(vectors: bool, tmp_path: Path) -> None:
    """A program that calls the kernels of a network one after the other, as a 32-bit process of
    this machine: with SSE2 and, as a microcontroller's C, without vectors."""
    require_32_bits(tmp_path)
    board = {"kind": "c", "mtriple": "thumbv7em-none-eabi", "mcpu": "cortex-m4"}
    mod = tk.script.from_source(NET, constants={"w": WEIGHT})
    executable = tk.compile(mod, tk.Target("c") if vectors else tk.Target(board))
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 9)).astype("float32")
    want = tk.compile(mod, "native").jit().create_executor()["main"](x).numpy()
    (have,) = run_in_32_bits(executable, [x], [want], tmp_path)
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-5)


WEIGHT = np.random.default_rng(2).standard_normal((5, 3, 3, 3)).astype("float32")
NET = """
@tk.script.ir_module(name="net")
class Net:
    @R.function
    def main(x: R.Tensor((1, 3, 9, 9), "float32")) -> R.Tensor((1, 5), "float32"):
        a: R.Tensor((1, 5, 9, 9), "float32") = R.conv2d(
            x, R.const("w", "float32", (5, 3, 3, 3)), padding=(1, 1, 1, 1))
        b: R.Tensor((1, 5, 9, 9), "float32") = R.tanh(a)
        m: R.Tensor((1, 5), "float32") = R.mean(b, axes=(2, 3), keepdims=False)
        y: R.Tensor((1, 5), "float32") = R.softmax(m)
        return y
"""


@pytest.mark.filterwarnings("ignore:.*is the baseline")
def test_two_models_of_one_graph_name_in_one_program(tmp_path: Path) -> None:
    """Their names are what the caller gives them; each has kernels of its own."""
    require_compiler("gcc")
    mod = tk.script.from_source(NET, constants={"w": WEIGHT})
    negated_mod = tk.script.from_source(NET, constants={"w": -WEIGHT})
    x = np.random.default_rng(3).standard_normal((1, 3, 9, 9)).astype("float32")
    wants = [tk.compile(m, "native")(x) for m in (mod, negated_mod)]
    for m, name in ((mod, "one"), (negated_mod, "two")):
        executable = tk.compile(m, "c", name=name)
        executable.export_library(tmp_path / f"{name}.a", fcompile="gcc")
        (tmp_path / f"{name}.h").write_text(executable.header())
        assert all(k.symbol.startswith(f"{name}_kernel_") for k in executable.kernels)
    values = ", ".join(float(v).hex() for v in x.ravel())
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\n#include "one.h"\n#include "two.h"\n'
        f"static const float x[] = {{{values}}};\n"
        "int main(void)\n{\n    float a[5], b[5];\n"
        "    if (one_main(x, a) || two_main(x, b))\n        return 1;\n"
        '    for (int i = 0; i < 5; ++i)\n        printf("%.9g %.9g\\n", a[i], b[i]);\n'
        "    return 0;\n}\n"
    )
    command = ["gcc", "-std=c99", "main.c", "one.a", "two.a", "-o", "main", "-lpthread", "-ldl"]
    process = subprocess.run([*command, "-lm"], cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    run = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    table = np.array([line.split() for line in run.stdout.splitlines()], "float32")
    for column, want in zip(table.T, wants, strict=True):
        np.testing.assert_allclose(column, want.ravel(), rtol=1e-5)
