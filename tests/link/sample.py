"""A small library with hand-written kernels, shared by the tests of crt, link and runtime.

`main`: x[n, 8] -> relu(x @ w1 + b1) @ w2 + b2, n from 0; `fixed`: the same for n = 1;
`split`: x[n, 8] -> its first and last four columns doubled, a computed size and two outputs;
`pair`: a[n], b[n] -> a + 2 b; `add_one(x, y)`, `scale(x, factor, shift)`: tensor functions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorkiln.artifact import Content
from tensorkiln.artifact.artifact import content_size
from tensorkiln.codegen.host.entry_c import exported_symbols
from tensorkiln.codegen.host.function import (
    HostFunction,
    KernelCall,
    Ptr,
    ScalarExpr,
    host_function,
    number_param,
)
from tensorkiln.codegen.host.header import header_h
from tensorkiln.link.shared import link_shared
from tests.crt.formulas import N, entry_of, own, size, tensor

TRIPLE = "x86_64-unknown-linux-gnu"

KERNELS = r"""
#include <stdint.h>
void kiln_parallel_for(void (*body)(void *, int64_t, int64_t), void *closure, int64_t n);

typedef struct { const float *x, *w, *b; float *y; int64_t k, m; int32_t relu; } dense_args;

static void dense_rows(void *closure, int64_t begin, int64_t end)
{
    const dense_args *a = closure;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < a->m; j++) {
            float sum = a->b[j];
            for (int64_t k = 0; k < a->k; k++)
                sum += a->x[i * a->k + k] * a->w[k * a->m + j];
            a->y[i * a->m + j] = a->relu && sum < 0 ? 0 : sum;
        }
}

void dense(float *x, float *w, float *b, float *y, int64_t n, int64_t k, int64_t m, int32_t relu)
{
    dense_args a = {x, w, b, y, k, m, relu};
    kiln_parallel_for(dense_rows, &a, n);
}

void columns(float *x, float *left, float *right, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < 4; j++) {
            left[i * 4 + j] = 2 * x[i * 8 + j];
            right[i * 4 + j] = 2 * x[i * 8 + 4 + j];
        }
}

void pair(float *a, float *b, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) /* writes before it has read everything */
        y[i] = a[i] + 2 * b[n - 1 - i];
}

void add_one(float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] + 1;
}

void scale(float *x, int64_t n, double factor, int64_t shift)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(x[i] * factor + (double)shift);
}
"""

_RNG = np.random.default_rng(7)
W1 = _RNG.standard_normal((8, 16)).astype(np.float32)
B1 = _RNG.standard_normal(16).astype(np.float32)
W2 = _RNG.standard_normal((16, 4)).astype(np.float32)
B2 = _RNG.standard_normal(4).astype(np.float32)
WEIGHTS = (W1, B1, W2, B2)
DATA = b"".join(w.tobytes() for w in WEIGHTS)
WEIGHT_BYTES = len(DATA)


def expected(x: np.ndarray) -> np.ndarray:
    """What `main` computes."""
    return np.maximum(x @ W1 + B1, 0) @ W2 + B2


def _mlp(name: str, rows: int | str) -> HostFunction:
    n = ScalarExpr(str(rows))
    symbolic = isinstance(rows, str)
    at = np.cumsum([0, *(w.nbytes for w in WEIGHTS)]).tolist()
    w1, b1, w2, b2 = (Ptr("weights", 0, offset) for offset in at[:4])
    x, out, hidden = Ptr("arg", 0), Ptr("arg", 1), Ptr("workspace", 0, 64)
    first = (x, w1, b1, hidden, n, ScalarExpr("8"), ScalarExpr("16"), ScalarExpr("1", "int32_t"))
    last = (hidden, w2, b2, out, n, ScalarExpr("16"), ScalarExpr("4"), ScalarExpr("0", "int32_t"))
    return host_function(
        name,
        "graph",
        inputs=(tensor("x", "float32", (rows, 8)),),
        outputs=(tensor("out", "float32", (rows, 4), "out"),),
        symbols=own("n") if symbolic else {},
        workspace_bytes=size(N * 64 + 64) if symbolic else 128,
        calls=(
            KernelCall("dense", first, "fc1: Gemm */ Relu"),
            KernelCall("dense", last, "fc2: Gemm"),
        ),
    )


FUNCTIONS = (
    _mlp("main", "s_n"),
    _mlp("fixed", 1),
    host_function(
        "split",
        "graph",
        inputs=(tensor("x", "float32", ("s_n", 8), align=64),),
        outputs=(
            tensor("left", "float32", ("s_n", 4), "out"),
            tensor("right", "float32", (size(N * 4),), "out"),
        ),
        symbols=own("n"),
        calls=(
            KernelCall("columns", (Ptr("arg", 0), Ptr("arg", 1), Ptr("arg", 2), ScalarExpr("s_n"))),
        ),
    ),
    host_function(
        "pair",
        "graph",
        inputs=(tensor("a", "float32", ("s_n",)), tensor("b", "float32", ("s_n",))),
        outputs=(tensor("y", "float32", ("s_n",), "out"),),
        symbols=own("n"),
        calls=(
            KernelCall("pair", (Ptr("arg", 0), Ptr("arg", 1), Ptr("arg", 2), ScalarExpr("s_n"))),
        ),
    ),
    host_function(
        "add_one",
        "tensor",
        inputs=(tensor("x", "float32", ("s_n",)), tensor("y", "float32", ("s_n",), "out")),
        symbols=own("n"),
        calls=(KernelCall("add_one", (Ptr("arg", 0), Ptr("arg", 1), ScalarExpr("s_n"))),),
    ),
    host_function(
        "scale",
        "tensor",
        inputs=(
            tensor("x", "float32", ("s_n",), "inout"),
            number_param("factor", "float32"),
            number_param("shift"),
        ),
        symbols=own("n"),
        calls=(
            KernelCall(
                "scale",
                (
                    Ptr("arg", 0),
                    ScalarExpr("s_n"),
                    ScalarExpr("s_factor", "double"),
                    ScalarExpr("s_shift"),
                ),
            ),
        ),
    ),
)


def entry(
    name: str = "mlp",
    cpu_features: tuple[str, ...] = (),
    compiler: str = "tests",
    weights_size: int = WEIGHT_BYTES,
) -> str:
    """The host entry file of the sample."""
    return entry_of(FUNCTIONS, name, weights=weights_size, features=cpu_features, compiler=compiler)


def header(name: str = "mlp") -> str:
    """The C header of the sample."""
    return header_h(FUNCTIONS, library_name=name)


def build(
    output: Path,
    *,
    name: str = "mlp",
    cpu_features: tuple[str, ...] = (),
    kernels: str = KERNELS,
    triple: str = TRIPLE,
    weights: Content = DATA,
    **options: object,
) -> Path:
    """Link the sample library."""
    return link_shared(
        [],
        {
            "entry.c": entry(name, cpu_features, weights_size=content_size(weights)),
            "kernels.c": kernels,
        },
        weights,
        output,
        triple=triple,
        exports=exported_symbols(FUNCTIONS, prefix=name),
        **options,  # type: ignore[arg-type]
    )
