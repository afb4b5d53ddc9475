"""An external of a package of its own: `maximum` of two tensors of one shape, in C.

Installed, it is `tk.compile(model, externals=["maximum_in_c"])`, and `kiln compile model.onnx
--external maximum_in_c`. Its dependency shows how one is declared that is needed to build only.
"""

from __future__ import annotations

import math

from tensorkiln.artifact import Artifact
from tensorkiln.external import External, ExternalDependency
from tensorkiln.ir.relax import Call, Function, TensorType
from tensorkiln.target import Target


def supports(call: Call, target: Target) -> bool:
    """Whether `call` is `maximum` of two float32 tensors of the same static shape."""
    if call.op != "maximum":
        return False
    a, b = (operand.type for operand in call.args)
    if not isinstance(a, TensorType) or a != b or a.dtype.name != "float32":
        return False
    return a.static_shape() is not None


def emit(function: Function, symbol: str) -> list[Artifact]:
    """One C file. NaN of either operand is the result, as ONNX asks."""
    assert isinstance(function.result.type, TensorType)
    count = math.prod(function.result.type.static_shape() or ())
    head = f"void {symbol}(const float *a, const float *b, float *out)"
    text = f"""{head};
{head}
{{
    for (int i = 0; i < {count}; ++i)
        out[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i];
}}
"""
    return [Artifact("maximum_in_c", "native", f"{symbol}.c", text.encode())]


HEADERS = ExternalDependency(
    "maximum-headers",
    "https://example.org/maximum-1.0.tar.gz",
    version_spec="1.0",
    license="MIT",
    build_time=True,
)
EXTERNAL = External("maximum_in_c", supports, emit, (HEADERS,), merge=False)
