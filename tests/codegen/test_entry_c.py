from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, UnsupportedError, UserError
from tensorkiln.codegen.host.entry_c import exported_symbols
from tensorkiln.codegen.host.function import (
    MAX_PARAMS,
    Condition,
    HostFunction,
    KernelCall,
    Ptr,
    ScalarExpr,
    host_function,
    number_param,
)
from tensorkiln.codegen.host.header import header_h
from tensorkiln.ir.expr import binary
from tensorkiln.link.shared import link_shared, runtime_defines
from tensorkiln.runtime import Executor, load_module
from tests.crt.formulas import M, N, Q, entry_of, own, size, tensor
from tests.link import sample

X = tensor("x", "float32", ("s_n", 4))
GOOD: dict[str, Any] = {
    "name": "f",
    "kind": "graph",
    "inputs": (X,),
    "outputs": (tensor("y", "float32", ("s_n",), "out"),),
    "symbols": own("n"),
    "calls": (KernelCall("k", (Ptr("arg", 0), Ptr("arg", 1), ScalarExpr("s_n"))),),
}


def text(*functions: HostFunction, prefix: str = "") -> str:
    return entry_of(functions, "lib", prefix=prefix)


def changed(**fields: object) -> HostFunction:
    return host_function(**(GOOD | fields))


def test_the_call_plan_is_one_line_per_kernel() -> None:
    plan = sample.entry().split("static void run_main")[1].split("}\n")[0]
    assert plan.splitlines()[2:] == [
        "    char *const in_x = frame->arg[0];",
        "    char *const out_out = frame->arg[1];",
        "    char *const weights = kiln_weights;",
        "    char *const workspace = frame->workspace;",
        "    const int64_t s_n = frame->symbol[0];",
        "",
        "    dense(in_x, weights, weights + 512, workspace + 64, s_n, 8, 16,",
        "          (int32_t)(1)); /* fc1: Gemm * / Relu */",
        "    dense(workspace + 64, weights + 576, weights + 832, out_out, s_n, 16, 4,",
        "          (int32_t)(0)); /* fc2: Gemm */",
    ]


def test_lines_fit_and_are_ascii() -> None:
    for produced in (sample.entry(), sample.header()):
        assert produced.isascii()
        assert max(len(line) for line in produced.splitlines()) <= 110


def test_header_documents_each_entry() -> None:
    header = sample.header()
    assert (
        "int mlp_main(int64_t n,\n             const float *x,\n             float *out);" in header
    )
    assert " *   in     x            float32 [n, 8]" in header
    assert " *   size   n            at least 0" in header
    assert (
        "int mlp_scale(int64_t n,\n              float *x,\n              double factor," in header
    )


def test_names_that_c_reserves() -> None:
    function = host_function(
        "g",
        "graph",
        inputs=(tensor("input.1", "int8", (2,)), tensor("int", "bool", (2,))),
        outputs=(tensor("input_1", "float16", (2,), "out"), tensor("0", "bfloat16", (2,), "out")),
    )
    header = header_h([function], library_name="my-net.v2")
    expected = "const int8_t *input_1,const uint8_t *int_,uint16_t *input_1_2,uint16_t *_0"
    assert f"int my_net_v2_g({expected});" in header.replace(",\n" + " " * 16, ",")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (changed(name="a-b"), "its name is not a C identifier"),
        (changed(symbols=own("n", "m")), "symbol 'm' is not the size of any dimension"),
        (changed(symbols=own("n", "2m")), "symbol '2m' is not a C identifier"),
        (
            changed(outputs=(tensor("y", "float32", (size(Q + 1),), "out"),)),
            "'y' uses unknown symbols",
        ),
        (changed(calls=(KernelCall("k", (ScalarExpr("s_m"),)),)), "call of k uses unknown symbols"),
        (
            changed(requires=(Condition(size(binary("lt", M, 4)), "m < 4"),)),
            "'m < 4' uses unknown symbols",
        ),
        (changed(calls=(KernelCall("k", (Ptr("arg", 2),)),)), "takes parameter 2, which is not"),
        (changed(inputs=(X, number_param("a"))), "a graph takes tensors only"),
        (changed(calls=(KernelCall("k", (Ptr("weights"),)),)), "reads weights, but there are none"),
        (
            changed(calls=(KernelCall("k", ()), KernelCall("k", (Ptr("arg"),)))),
            "kernel k is called with different argument types",
        ),
    ],
)
def test_malformed_functions(function: HostFunction, words: str) -> None:
    with pytest.raises(InternalError, match=words):
        text(function)


def test_limits_and_names() -> None:
    wide = tuple(tensor(f"x{i}", "float32", (1,)) for i in range(MAX_PARAMS + 1))
    with pytest.raises(UnsupportedError, match="4097 parameters, the limit is 4096"):
        text(changed(inputs=wide, symbols={}, outputs=(), calls=()))
    for count, defined in ((256, ()), (257, ("#define KILN_MAX_PARAMS 512",))):
        entry_text = text(changed(inputs=wide[:count], symbols={}, outputs=(), calls=()))
        assert runtime_defines({"entry.c": entry_text}) == defined
    with pytest.raises(UnsupportedError, match="element type complex64"):
        text(changed(inputs=(tensor("x", "complex64", ("s_n",)),)))
    with pytest.raises(UserError, match="two entries of the library would be called 'lib_f'"):
        text(changed(), changed())
    with pytest.raises(UserError, match="'lib_last_error'"):
        text(changed(name="last_error"))
    with pytest.raises(UserError, match="prefix 'a b'"):
        text(changed(), prefix="a b")


KERNELS = r"""
#include <stdint.h>
void halves(uint16_t *x, uint16_t *y, int64_t n, int64_t m)
{
    for (int64_t i = 0; i < m; i++) y[i] = i < n ? x[i] : 7;
}
void tick(void) {}
"""


def test_scalars_no_weights_small_types_and_rounded_sizes(tmp_path: Path) -> None:
    rounded = size(binary("max", (N + 3) // 4 * 4, binary("min", N, 2)))
    functions = [
        host_function(
            "pad",
            "graph",
            inputs=(tensor("x", "bfloat16", ("s_n",)),),
            outputs=(tensor("y", "bfloat16", (rounded,), "out"),),
            symbols=own("n"),
            calls=(
                KernelCall(
                    "halves", (Ptr("arg"), Ptr("arg", 1), ScalarExpr("s_n"), ScalarExpr(rounded))
                ),
            ),
        ),
        host_function("nothing", "graph", calls=(KernelCall("tick", ()),)),
        host_function(
            "zero_rank",
            "graph",
            inputs=(tensor("x", "float64", ()),),
            outputs=(tensor("y", "float64", (), "out"),),
        ),
    ]
    path = link_shared(
        [],
        {"entry.c": text(*functions), "k.c": KERNELS},
        None,
        tmp_path / "lib.so",
        triple=sample.TRIPLE,
        exports=exported_symbols(functions, prefix="lib"),
    )
    executor = Executor(load_module(path))
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for n in (1, 4, 5):
        x = np.arange(n).astype(ml_dtypes.bfloat16)
        y = executor["pad"](x).numpy()
        assert y.dtype == x.dtype and len(y) == -(-n // 4) * 4
        assert y[:n].tolist() == x.tolist()
        assert set(y[n:].view(np.uint16).tolist()) <= {7}
    assert executor["nothing"]() == ()
    assert executor["zero_rank"](np.array(2.0)).shape == ()
    assert ctypes.CDLL(str(path)).lib_nothing() == 0


def test_a_library_without_functions(tmp_path: Path) -> None:
    path = link_shared([], {"entry.c": text()}, None, tmp_path / "l.so", triple=sample.TRIPLE)
    assert not load_module(path).functions
