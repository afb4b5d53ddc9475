"""The C of kernels as people read it: golden texts, literals, names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like.c99 import C99
from tensorkiln.ir.dtype import DType
from tensorkiln.script import from_source
from tests.codegen.c_like.build import compiler

GOLDEN = Path(__file__).parent / "golden"
GRAPH = """
@tk.script.ir_module(name="net")
class Net:
    @R.function
    def main(x: R.Tensor({shape}, "{dtype}")) -> R.Tensor({shape}, "{dtype}"):
{body}
        return y
"""
LINEAR = """
        a: R.Tensor((4, 16), "float32") = R.linear(x, R.const("w", "float32", (16, 16)))
        y: R.Tensor((4, 16), "float32") = R.relu(a)
"""
WEIGHTS = {"w": np.linspace(-1, 1, 256, dtype="float32").reshape(16, 16)}
M4 = {"kind": "c", "mtriple": "thumbv7em-none-eabi", "mcpu": "cortex-m4"}
SCRIPT = """
@T.prim_func
def every_form(X: T.Buffer((n, 8), "int8"), Y: T.Buffer((n, 8), "int8"), on: T.bool, k: T.int64):
    assert k >= 0, "k is negative"
    for i in T.parallel(n):
        for j in range(8):
            if on:
                Y[i, j] = T.max(X[i, (j + k) % 8], T.int8(-128)) + X[i, j // 2]
            else:
                Y[i, j] = T.Cast("int8", T.round(T.Cast("float32", X[i, j]) * 0.1))
"""
# name -> (module, target)
TEXTS = {
    "linear_sse2": (GRAPH.format(shape="(4, 16)", dtype="float32", body=LINEAR), "c"),
    "linear_m4": (GRAPH.format(shape="(4, 16)", dtype="float32", body=LINEAR), M4),
    "softmax_avx2": (
        GRAPH.format(
            shape="(4, 20)",
            dtype="float32",
            body='        y: R.Tensor((4, 20), "float32") = R.softmax(x)',
        ),
        {"kind": "c", "mcpu": "haswell"},
    ),
    "statements": (SCRIPT.replace("(n, 8)", '("n", 8)').replace("parallel(n)", "parallel(n)"), "c"),
}


def compiled(source: str, target: object) -> tk.Executable:
    constants = {k: v for k, v in WEIGHTS.items() if f'"{k}"' in source}
    return tk.compile(from_source(source, constants=constants), target)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("name", TEXTS)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    text = compiled(*TEXTS[name]).artifacts["kernels.c"].text()
    path = GOLDEN / f"{name}.c"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("name", TEXTS)
def test_printed_and_parsed_it_has_the_same_text(name: str) -> None:
    source, target = TEXTS[name]
    constants = {k: v for k, v in WEIGHTS.items() if f'"{k}"' in source}
    mod = from_source(source, constants=constants)
    again = from_source(mod.script(), constants=constants)
    first_text, second_text = (
        tk.compile(m, target).artifacts["kernels.c"].text() for m in (mod, again)
    )  # type: ignore[arg-type]
    assert first_text == second_text


def test_literals_keep_their_bits() -> None:
    """Every literal is C whose value is exact; NaN keeps its sign, zero too."""
    single, double = DType("float32"), DType("float64")
    for value in (0.0, -0.0, 0.5, 0.1, 1e-45, 3.4028234663852886e38, 1 / 3, 123456.0, 1e10):
        for dtype, suffix in ((single, "f"), (double, "")):
            rounded = float(np.dtype(dtype.name).type(value))
            text = C99.real(value, dtype)
            assert text.endswith(suffix)
            digits = text.removesuffix(suffix) if suffix and "x" not in text else text.rstrip("f")
            parsed_value = float.fromhex(digits) if "x" in digits else float(digits)
            assert parsed_value == rounded and np.signbit(parsed_value) == np.signbit(rounded)
            assert re.search(r"[.ep]", text), text  # no integer
    assert C99.real(float("inf"), single) == "INFINITY" and C99.real(-np.inf, double)[0] == "-"
    assert C99.real(float("nan"), single) == "NAN" and C99.real(-np.nan, single) == "-NAN"
    assert C99.real(1.0, DType("float16")) == "0x3c00"
    assert C99.real(-2.0, DType("bfloat16")) == "0xc000"
    assert C99.integer(-(1 << 63), DType("int64")) == "INT64_MIN"
    assert C99.integer(-(1 << 31), DType("int32")) == "INT32_MIN"
    assert C99.integer(1 << 40, DType("int64")) == "INT64_C(1099511627776)"
    assert C99.integer((1 << 32) - 1, DType("uint32")) == "4294967295u"
    assert C99.integer((1 << 64) - 1, DType("uint64")) == "UINT64_C(18446744073709551615)"
    assert C99.integer(-128, DType("int8")) == "-128"


def test_without_vectors_it_is_plain_c() -> None:
    source = TEXTS["linear_m4"][0]
    for target in (
        M4,
        {"kind": "c", "mtriple": "thumbv6m-none-eabi", "mcpu": "cortex-m0plus"},
        {"kind": "c", "mtriple": "thumbv8.1m.main-none-eabi", "mcpu": "cortex-m55"},
        {"kind": "c", "mtriple": "riscv32-unknown-none-elf"},
        {"kind": "c", "mtriple": "riscv64-unknown-none-elf"},
        {"kind": "c", "mtriple": "armv6-linux-gnueabihf"},
    ):
        executable = compiled(source, target)
        text = executable.artifacts["kernels.c"].text()
        assert "vector_size" not in text and "__builtin_convertvector" not in text
        with pytest.raises(UnsupportedError):
            executable.export_library("net.so")


@pytest.mark.filterwarnings("ignore:.*is the baseline")
def test_names_of_c_are_left_alone() -> None:
    """What the compiler names gets the model's name; a program of the user's is refused by name."""
    body = '        y: R.Tensor((4, 16), "float32") = R.tanh(x)'
    executable = compiled(GRAPH.format(shape="(4, 16)", dtype="float32", body=body), "c")
    assert [k.symbol for k in executable.kernels] == ["net_kernel_tanh"]
    x = np.linspace(-2, 2, 64, dtype="float32").reshape(4, 16)
    y = executable.jit(compiler("gcc", "-O1")).create_executor()["main"](x).numpy()
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)
    program = """
@T.prim_func
def {name}(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = T.max(X[i], 0.0)
"""
    with pytest.raises(UnsupportedError, match="'sinh' is a function of the C library"):
        tk.compile(from_source(program.format(name="sinh")), "c")
    with pytest.raises(UnsupportedError, match="'max_f32' is a function that its C calls"):
        tk.compile(from_source(program.format(name="max_f32")), "c")
    names = program.replace("X", "f32x4").replace("Y", "restrict").format(name="relu")
    lib = tk.compile(from_source(names), "c").jit(compiler("gcc", "-O1"))
    output = np.zeros(4, "float32")
    lib["relu"](np.array([-1, 2, -3, 4], "float32"), output)
    assert output.tolist() == [0, 2, 0, 4]


def test_equal_inputs_give_equal_text() -> None:
    source, target = TEXTS["softmax_avx2"]
    first_text, second_text = (
        compiled(source, target).artifacts["kernels.c"].text() for _ in range(2)
    )
    assert first_text == second_text


# What a program says and nothing reads: shuffles that take no lane of an operand, views that only
# such operands read, indices of vectors that are neither contiguous nor of one place.
UNREAD = """
    @T.prim_func
    def f{k}(X: T.Buffer((16,), "int64"), Y: T.Buffer((4, 4), "int64"), s: T.int64):
        Y[0, T.Ramp(0, 1, 4)] = {value}
"""
UNREAD_VALUES = {
    "first": "T.shuffle(X[X[T.Ramp(0, 2, 4)] % T.Broadcast(16, 4)], "
    "X[T.Ramp(1, 1, 4)], (4, 5, 7, 6))",
    "second": "T.shuffle(X[T.Ramp(1, 1, 4)], "
    "X[X[T.Ramp(0, 2, 4)] % T.Broadcast(16, 4)], (3, 0, 1, 1))",
    "a parameter": "T.shuffle(T.Broadcast(s, 4), X[T.Ramp(1, 1, 4)], (4, 5, 7, 6))",
    "a mask": "T.select(T.shuffle(T.Broadcast(s, 4) < X[T.Ramp(0, 1, 4)], "
    "X[T.Ramp(1, 1, 4)] < T.Broadcast(9, 4), (4, 7, 6, 5)), X[T.Ramp(3, 1, 4)], T.Broadcast(s, 4))",
    "places in places": 'X[T.vector_reduce("min", X[X[T.Ramp(1, 3, 4)] % T.Broadcast(16, 4)]) % 4 '
    "+ T.Ramp(0, 4, 4) % T.Broadcast(16, 4)]",
    "strided places": 'Y[T.Ramp(0, 1, 4), T.vector_reduce("max", X[X[T.Ramp(1, 3, 4)] '
    "% T.Broadcast(16, 4)]) % 4]",
}


@pytest.mark.filterwarnings("ignore:.*is the baseline")
@pytest.mark.parametrize("command", ["gcc", "clang"])
def test_what_nothing_reads_is_not_declared(command: str) -> None:
    functions = [UNREAD.format(k=k, value=v) for k, v in enumerate(UNREAD_VALUES.values())]
    module = from_source("@tk.script.ir_module\nclass Net:" + "".join(functions))
    in_c = tk.compile(module, "c").jit(compiler(command, "-O1"))
    executable = tk.compile(module)
    x = np.random.default_rng(1).permutation(16)
    for k, name in enumerate(UNREAD_VALUES):
        y, expected = np.arange(16).reshape(4, 4), np.arange(16).reshape(4, 4)
        in_c[f"f{k}"](x, y, 3)
        executable[f"f{k}"](x, expected, 3)
        np.testing.assert_array_equal(y, expected, err_msg=name)


def test_arrays_that_are_only_written_do_not_warn(tmp_path: Path) -> None:
    """gcc warns of an array that is set but not used, whatever its index says."""
    mod = from_source(
        """
@T.prim_func
def f(X: T.Buffer((4,), "int64"), Y: T.Buffer((4,), "int64")):
    a = T.alloc_buffer((4,), "int64")
    b = T.alloc_buffer((4,), "int64")
    for i in range(4):
        a[T.select(X[i] != 0, 1, 2)] = X[i]
        b[i] = X[i]
        Y[b[i] % 4] = X[i]
"""
    )
    executable = tk.compile(mod, "c", relax_pipeline=None)
    text = executable.artifacts["kernels.c"].text()
    assert text.count("(void)a;") == 1
    assert "(void)b;" not in text
    executable.export_library(tmp_path / "f.so", fcompile=compiler("gcc", "-O2"))


@pytest.mark.in_turn()
@pytest.mark.parametrize("name", ["t", "t1", "v", "i"])
def test_loop_variables_of_any_name(name: str) -> None:
    """Also of the names that constants of the text have."""
    mod = from_source(
        f"""
@T.prim_func
def f(X: T.Buffer((8, 4), "float32"), Y: T.Buffer((8, 4), "float32")):
    for {name} in range(8):
        for j in T.vectorized(4):
            e = T.exp(X[{name}, j]) * T.exp(X[{name}, j])
            Y[{name}, j] = e + X[{name}, 0] * X[7 - {name}, 1]
"""
    )
    executable = tk.compile(mod, {"kind": "c", "mcpu": "haswell"}, relax_pipeline=None)
    run = executable.jit(compiler("gcc", "-O1"))
    x, y = np.random.default_rng(0).random((8, 4), "float32"), np.empty((8, 4), "float32")
    run["f"](x, y)
    want = np.exp(x.astype("float64")) ** 2 + x[:, :1] * x[::-1, 1:2]
    np.testing.assert_allclose(y, want, rtol=1e-5)
