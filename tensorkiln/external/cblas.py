"""The external `cblas`: matrix products in float32 and float64 by OpenBLAS.

    exe = tk.compile(module, externals=["cblas"])

It takes `linear` and `matmul`. Rows may be symbolic. The library of this machine is linked, and
must be there when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.artifact import Artifact
from tensorkiln.external.c_text import KernelExtents, c_source, kernel_head
from tensorkiln.external.host_library import LibraryExternal
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.relax import Call, Function, TensorType

_GEMM = {"float32": ("sgemm", "float"), "float64": ("dgemm", "double")}
_MOST = (1 << 31) - 1  # sizes are `int` in this interface
_ROWS = 1 << 24  # of a product that is computed at once


def _linear(call: Call, types: Sequence[TensorType]) -> str:
    return "" if all(map(_is_small, types[1].shape)) else "the weights have symbolic sizes"


def _matmul(call: Call, types: Sequence[TensorType]) -> str:
    a, b = types
    if a.ndim < 2 or b.ndim < 2:
        return "an operand is a vector"
    if call.attrs.wide:
        return "its sums are wider than its operands"
    if not all(map(_is_small, b.shape[-2:])):
        return "the right operand has symbolic rows or columns"
    if call.attrs.transpose_a and not _is_small(a.shape[-1]):
        return "the left operand is transposed and has symbolic columns"
    if a.shape[:-2] != b.shape[:-2] and (b.ndim > 2 or call.attrs.transpose_a):
        return "the operands are broadcast"
    return ""


def _is_small(d: Expr) -> bool:
    n = int_value(d)
    return n is not None and n <= _MOST


def emit(f: Function, symbol: str) -> list[Artifact]:
    """C that calls `cblas_sgemm` or `cblas_dgemm`, in pieces of as many rows as fit an `int`."""
    (binding,) = f.bindings
    call = binding.value
    assert isinstance(call, Call)
    a, b = (p.tensor for p in f.params[:2])
    trans_a = call.op == "matmul" and bool(call.attrs.transpose_a)
    trans_b = call.op == "matmul" and bool(call.attrs.transpose_b)
    n, k = (int_value(d) for d in (b.shape[-2:] if trans_b else b.shape[-1:-3:-1]))
    shared = b.ndim == 2 and not trans_a  # all rows of `a` are of one product
    sizes = KernelExtents(f)
    rows = a.shape[:-1] if shared else (a.shape[-1 if trans_a else -2],)
    gemm, c = _GEMM[a.dtype.name]
    bias = len(f.params) == 3
    filled = f"    for (int64_t i = 0; i < rows; i++) memcpy(y + i * {n}, bias, sizeof({c}[{n}]));"
    body = [
        f"    const int64_t rows = {sizes.product(rows)};",
        f"    const int64_t batches = {sizes.product(() if shared else a.shape[:-2])};",
        f"    const int64_t step = {'rows' if trans_a else _ROWS};",
        *([filled] if bias else []),
        "    for (int64_t p = 0; p < batches; p++)",
        "        for (int64_t i = 0; i < rows; i += step) {",
        "            const int64_t m = rows - i < step ? rows - i : step;",
        f"            cblas_{gemm}(ROW_MAJOR, {_flag(trans_a)}, {_flag(trans_b)}, (int)m, "
        f"{n}, {k},",
        f"                        1, a + (p * rows + i) * {k}, {'(int)rows' if trans_a else k},",
        f"                        b + p * {n} * {k}, {k if trans_b else n}, {int(bias)},",
        f"                        y + (p * rows + i) * {n}, {n});",
        "        }",
    ]
    names = ["a", "b", *(["bias"] if bias else []), "y"]
    declared = (
        "enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };\n"
        f"void cblas_{gemm}(int order, int left, int right, int m, int n, int k, {c} alpha,\n"
        f"                 const {c} *a, int lda, const {c} *b, int ldb, {c} beta,\n"
        f"                 {c} *y, int ldy);\n"
    )
    text = c_source(kernel_head(f, symbol, names), declared, "\n".join(body) + "\n")
    return [Artifact("cblas", "native", f"{symbol}.c", text)]


def _flag(transposed: bool) -> str:
    return "TRANSPOSED" if transposed else "PLAIN"


CBLAS = LibraryExternal(
    name="cblas",
    file="libopenblas.so.0",
    install="apt-get install libopenblas0, or dnf install openblas",
    short_name="openblas",
    url="https://github.com/OpenMathLib/OpenBLAS.git",
    license="BSD-3-Clause",
    dtypes=tuple(_GEMM),
    reasons={"linear": _linear, "matmul": _matmul},
    emit=emit,
)
cblas = CBLAS.external
