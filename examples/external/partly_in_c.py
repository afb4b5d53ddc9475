"""A user's own code generator for one operator: `maximum` is compiled to C that `emit` writes.

python examples/external/partly_in_c.py
"""

from __future__ import annotations

import numpy as np

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.external import External
from tensorkiln.ir.relax import Call, Function
from tensorkiln.script import R


def supports(call: Call, target: tk.Target) -> bool:
    """Whether `call` is `maximum` of two float32 tensors of the same static shape."""
    if call.op != "maximum":
        return False
    a, b = (operand.type for operand in call.args)
    return a == b and a.dtype.name == "float32" and a.static_shape() is not None


def emit(function: Function, symbol: str) -> list[Artifact]:
    count = int(np.prod(function.result.type.static_shape()))
    text = f"""void {symbol}(const float *a, const float *b, float *out);
void {symbol}(const float *a, const float *b, float *out)
{{
    for (int i = 0; i < {count}; ++i) {{
        out[i] = a[i] > b[i] ? a[i] : b[i];
    }}
}}
"""
    return [Artifact("my_c", "native", f"{symbol}.c", text.encode())]


# With `merge=False` every call becomes a function of its own: `emit` gets one operator at a time.
MY_C = External("my_c", supports, emit, merge=False)


@tk.script.ir_module
class Network:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32")):  # noqa: ANN201
        a: R.Tensor((2, 3), "float32") = R.tanh(x)
        b: R.Tensor((2, 3), "float32") = R.maximum(a, y)
        return b


executable = tk.compile(Network, externals=[MY_C])
for place in executable.placement():
    print(f"{place.kernel}: {place.kernel_class}")
print(executable.artifacts["my_c/my_c_maximum.c"].text())

x, y = (np.random.default_rng(i).standard_normal((2, 3), np.float32) for i in (0, 1))
result = tk.runtime.Executor(executable, tk.cpu())["main"](x, y).numpy()
print("largest difference:", np.abs(result - np.maximum(np.tanh(x), y)).max())
