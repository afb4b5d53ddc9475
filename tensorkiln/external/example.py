"""The example external: chains of float32 elementwise operators as plain C99.

    from tensorkiln.external.example import C_REFERENCE

    exe = tk.compile(module, externals=[C_REFERENCE])

One loop over the elements of the result, one line per operator. It is meant to be copied as a
starting point: the table FORMS lists the operators, and everything else is in this file.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from tensorkiln.artifact import Artifact
from tensorkiln.external.external import External
from tensorkiln.external.match import Refused
from tensorkiln.ir.dtype import FLOAT32
from tensorkiln.ir.expr import Var, int_value
from tensorkiln.ir.relax import (
    Call,
    Constant,
    Function,
    RVar,
    TensorType,
    Value,
    size_symbols,
)
from tensorkiln.target import Target

# operator -> C, for operands a and b
FORMS = {
    "add": "{a} + {b}",
    "sub": "{a} - {b}",
    "mul": "{a} * {b}",
    "div": "{a} / {b}",
    "neg": "-({a})",
    "relu": "({a} > 0.0f || {a} != {a}) ? {a} : 0.0f",
}


def supports(call: Call, target: Target) -> bool | Refused:
    """Whether the call is an operator of FORMS on float32 tensors of one shape.

    An operand may also be a finite constant of one element, or lack leading dimensions (bias
    `[8]` of a `[4, 8]`). Sizes must be numbers or single symbols.
    """
    if call.op not in FORMS:
        return False
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    shapes = [
        a.type.shape
        for a in call.args
        if isinstance(a, RVar | Constant) and isinstance(a.type, TensorType) and not _is_number(a)
    ]
    longest = max(shapes, key=len, default=())
    if any(t.dtype != FLOAT32 for t in types):
        return Refused("its operands are not all float32")
    if not all(isinstance(d, Var) or int_value(d) is not None for d in longest):
        return Refused("a size is an expression of symbols")
    is_uniform = all(s == longest[len(longest) - len(s) :] for s in shapes)
    if not shapes or not is_uniform or any(t.ndim > len(longest) for t in types):
        return Refused("its operands have neither one shape nor shapes that end alike")
    if not all(np.isfinite(a.array).all() for a in call.args if _is_number(a)):
        return Refused("an operand is infinite or NaN")
    return True


def _is_number(v: Value) -> TypeGuard[Constant]:
    return isinstance(v, Constant) and v.array.size == 1


def emit(f: Function, symbol: str) -> list[Artifact]:
    """Return one C file that defines `symbol`."""
    return [Artifact("c_reference", "native", f"{symbol}.c", _source(f, symbol).encode())]


def _source(f: Function, symbol: str) -> str:
    assert isinstance(f.result, RVar)
    params = [f"const float *{p.name}" for p in f.params]
    params += ["float *out", *(f"int64_t s_{i}" for i in range(len(size_symbols(f))))]
    sizes = {v: f"s_{i}" for i, v in enumerate(size_symbols(f))}
    lines: list[str] = []
    names: dict[RVar, str] = {}

    def size(t: TensorType) -> str:
        return " * ".join(sizes.get(d, str(int_value(d))) for d in t.shape) or "1"  # type: ignore[call-overload]

    def operand(v: Value) -> str:
        if isinstance(v, Constant):
            return f"{float(v.array.reshape(()))!r}f"
        assert isinstance(v, RVar)
        if v in names:
            return names[v]
        is_whole = v.tensor.shape == f.result.type.shape  # type: ignore[union-attr]
        return f"{v.name}[i]" if is_whole else f"{v.name}[i % ({size(v.tensor)})]"

    for k, b in enumerate(f.bindings):
        call = b.value
        assert isinstance(call, Call)
        args = dict(zip("ab", map(operand, call.args), strict=False))
        lines.append(f"        const float v{k} = {FORMS[call.op].format(**args)};")
        names[b.var] = f"v{k}"
    head = ",\n    ".join(params)
    body = "\n".join(lines)
    return (
        f"/* {f.name}: {', '.join(b.value.op for b in f.bindings)}. */\n"  # type: ignore[union-attr]
        f"#include <stdint.h>\n\nvoid {symbol}(\n    {head});\n\n"
        f"void {symbol}(\n    {head})\n{{\n"
        f"    const int64_t count = {size(f.result.tensor)};\n"
        f"    for (int64_t i = 0; i < count; ++i) {{\n{body}\n"
        f"        out[i] = {names[f.result]};\n    }}\n}}\n"
    )


C_REFERENCE = External("c_reference", supports, emit)
