"""Attributes that a script leaves out have their defaults, whoever reads the call first."""

import numpy as np

import tensorkiln as tk
from tensorkiln.ir.equal import structural_equal
from tensorkiln.script import from_source


def test_a_product_without_attributes_compiles() -> None:
    mod = from_source("""
@R.function
def main(
    x: R.Tensor((2, 4), "float32"), w: R.Tensor((4, 3), "float32")
) -> R.Tensor((2, 3), "float32"):
    a: R.Tensor((2, 3), "float32") = R.matmul(x, w)
    return a
""")
    x, w = np.random.default_rng(1).standard_normal((2, 4, 4)).astype(np.float32)
    found = tk.runtime.Executor(tk.compile(mod), tk.cpu())["main"](x[:2], w[:, :3].copy())
    assert np.allclose(found.numpy(), x[:2] @ w[:, :3], rtol=1e-5)
    assert structural_equal(from_source(mod.script()), mod)
