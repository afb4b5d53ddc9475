"""C that code of externals has in common: the head of a kernel, and sizes as expressions."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.ir.expr import Expr, Var, int_value
from tensorkiln.ir.relax import Function, TensorType, size_symbols


def is_size(d: Expr) -> bool:
    """Whether `KernelExtents` can express an extent: a number or a single symbol."""
    return isinstance(d, Var) or int_value(d) is not None


class KernelExtents:
    """The extents of a function as C: numbers, and the parameters `s_0`, `s_1`, ... that the kernel
    gets after its tensors."""

    def __init__(self, f: Function):
        self._names = {v: f"s_{i}" for i, v in enumerate(size_symbols(f))}

    @property
    def parameters(self) -> list[str]:
        """The declarations of the parameters."""
        return [f"int64_t {name}" for name in self._names.values()]

    def one(self, d: Expr) -> str:
        """An extent."""
        n = int_value(d)
        return self._names[d] if isinstance(d, Var) else f"INT64_C({n})"

    def product(self, dims: Sequence[Expr]) -> str:
        """The number of elements of a tensor with these extents."""
        return " * ".join(map(self.one, dims)) or "INT64_C(1)"


def kernel_head(f: Function, symbol: str, names: Sequence[str]) -> str:
    """`void symbol(const float *x, ..., float *y, int64_t s_0, ...)`; the tensors have `names`."""
    results = f.result.type
    assert isinstance(results, TensorType)
    types = [*(p.tensor for p in f.params), results]
    params = [
        f"{'' if i == len(types) - 1 else 'const '}{t.dtype.row.c} *{name}"
        for i, (t, name) in enumerate(zip(types, names, strict=True))
    ]
    return f"void {symbol}({', '.join([*params, *KernelExtents(f).parameters])})"


def c_source(head: str, declarations: str, body: str) -> bytes:
    """A C file with one function: `body` is its statements."""
    return (
        f"#include <stdint.h>\n#include <string.h>\n\n{declarations}\n{head};\n\n"
        f"{head}\n{{\n{body}}}\n"
    ).encode()
