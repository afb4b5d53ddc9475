"""C for processors of 32-bit words: counters and offsets are int32 where they provably fit.

The same C is compiled for this machine and run under a sanitizer, which ends a program whose
arithmetic overflows, with the results of the evaluator of the language."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln import pipeline
from tensorkiln.codegen.c_like import writer
from tensorkiln.ir.module import IRModule
from tensorkiln.script import from_source
from tests.codegen.c_like.build import compiler
from tests.codegen.c_like.test_random import wrong
from tests.codegen.test_random_programs import SEED

RV32 = {"kind": "c", "mtriple": "riscv32-unknown-none-elf"}
RV64 = {"kind": "c", "mtriple": "riscv64-unknown-none-elf"}
ARMV7 = {"kind": "c", "mtriple": "armv7-linux-gnueabihf"}
PROGRAM = """
@T.prim_func
def f({parameters}):
{body}
"""


def kernel(parameters: str, body: str, target: object = RV32) -> str:
    """The statements of the C of a program."""
    source = PROGRAM.format(parameters=parameters, body=body)
    text = tk.compile(from_source(source), target).artifacts["kernels.c"].text()  # type: ignore[arg-type]
    return text[text.rindex("\n{\n") :]


@pytest.fixture
def words_of_32_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile for this machine as for one of 32 bits."""
    for module in (pipeline, writer):
        monkeypatch.setattr(module, "word_bits", lambda arch: 32)


# Offsets of elements up to and beyond the largest int32: rows of X, whether they fit.
@pytest.mark.parametrize(
    ("rows", "columns", "fits"),
    [
        (1 << 15, 1 << 16, True),  # the last offset is 2^31 - 1
        ((1 << 15) + 1, 1 << 16, False),
        (1 << 16, 1 << 15, True),
        (1 << 16, (1 << 15) + 1, False),
        (46341, 46341, False),
        (46340, 46340, True),
        (2, (1 << 30) - 1, True),
        (3, (1 << 30) - 1, False),
    ],
)
def test_offsets_up_to_the_largest(rows: int, columns: int, fits: bool) -> None:
    parameters = f'Y: T.Buffer(({rows}, {columns}), "int8")'
    body = f"""
    for i in range({rows}):
        for j in range({columns}):
            Y[i, j] = T.int8(1)
"""
    text = kernel(parameters, body)
    assert f"for (int32_t j = 0; j < {columns}; ++j)" in text
    narrow, wide = f"Y[i * {columns} + j]", f"Y[(int64_t)i * {columns} + (int64_t)j]"
    assert (narrow if fits else wide) in text


def test_what_a_sum_passes_through_fits_too() -> None:
    """Every index is an int32, and so is every offset; a sum of some of its terms is not."""
    parameters = 'X: T.Buffer((2147483647,), "int8"), Y: T.Buffer((16,), "int8")'
    body = """
    for i in range(16):
        Y[i] = X[i * 71582788 - i * 71582787]
"""
    assert "X[i * 71582788 - i * 71582787]" in kernel(parameters, body)
    longer_body = body.replace("71582787]", "71582787 + i * 71582786]")
    assert "X[(int64_t)" in kernel(parameters, longer_body)


def test_large_buffers_in_small_parts() -> None:
    """What counts is how far an access reaches, and how large strides and literals are."""
    parameters = 'X: T.Buffer((3, 2147483648), "int8"), Y: T.Buffer((16,), "int8")'
    body = """
    for i in range(16):
        Y[i] = X[0, i] + X[1, i] + X[0, 2147483647 - i]
"""
    text = kernel(parameters, body)
    assert "X[i]" in text and "X[(int64_t)i + INT64_C(2147483648)]" in text
    assert "X[(int64_t)i * -1 + 2147483647]" in text
    assert "int64_t" not in kernel(
        'Y: T.Buffer((1, 1099511627776), "int8")',
        "    for i in range(9):\n        Y[0, i] = T.int8(1)",
    )


def test_symbolic_sizes_and_numbers_from_elsewhere() -> None:
    parameters = (
        'X: T.Buffer(("n", 8), "int8"), N: T.Buffer((8,), "int32"), Y: T.Buffer(("n", 8), "int8")'
    )
    body = """
    for i in range(n):
        for j in range(8):
            Y[i, j] = X[N[j], j]
"""
    text = kernel(parameters, body)
    assert "for (int64_t i = 0; i < n; ++i)" in text and "for (int32_t j = 0; j < 8; ++j)" in text
    assert "Y[i * 8 + (int64_t)j] = X[(int64_t)N[j] * 8 + (int64_t)j]" in text


def test_loops_of_int32_that_a_user_writes() -> None:
    """Their numbers wrap around; only what provably does not is computed by C's own operators."""
    parameters = 'Y: T.Buffer((16,), "int32"), k: T.int32'
    body = """
    for i in range(k, k + 4):
        Y[(i + k) % 16] = i
    for i in range(T.int32(16)):
        Y[i] = i + k
"""
    text = kernel(parameters, body)
    first, second = text.split("for (")[1:]
    assert "int64_t i_at" in first and "(int64_t)" in first
    assert second.startswith("int32_t i = 0; i < 16; ++i)") and "Y[i] =" in second


def test_words_of_64_bits_have_no_other_text() -> None:
    parameters = 'X: T.Buffer((4, 8), "int8"), Y: T.Buffer((4, 8), "int8")'
    body = """
    for i in T.parallel(4):
        for j in range(8):
            Y[i, j] = X[3 - i, (j + 3) % 8]
"""
    wide, narrow = kernel(parameters, body, RV64), kernel(parameters, body)
    assert "int32_t" not in wide and narrow == wide.replace("int64_t", "int32_t")


def test_parallel_loops_take_ranges_of_int64() -> None:
    parameters = 'X: T.Buffer((4, 8), "int8"), Y: T.Buffer((4, 8), "int8")'
    body = """
    for i in T.parallel(1, 4):
        for j in range(8):
            Y[i, j] = X[i - 1, j]
"""
    source = PROGRAM.format(parameters=parameters, body=body)
    text = tk.compile(from_source(source), ARMV7).artifacts["kernels.c"].text()  # type: ignore[arg-type]
    assert "(void *closure, int64_t begin, int64_t end)" in text
    assert "for (int64_t i_at = begin; i_at < end; ++i_at)" in text
    assert "const int32_t i = (int32_t)i_at;" in text
    assert "Y[i * 8 + j + 8] = X[i * 8 + j];" in text


@pytest.mark.usefixtures("words_of_32_bits")
@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
def test_random_programs(capfd: pytest.CaptureFixture[str]) -> None:
    differences = wrong(f"{SEED} words", 15, "undefined", Counter())
    assert not differences, differences[0]
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.usefixtures("words_of_32_bits")
@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
def test_results_in_parallel_and_with_negative_parts() -> None:
    source = PROGRAM.format(
        parameters='X: T.Buffer((16, 8), "int32"), Y: T.Buffer((16, 8), "int32")',
        body="""
    for i in T.parallel(-5, 11):
        for j in range(8):
            at: T.int64 = (i * 7 - j * 3) // 4
            Y[i + 5, j] = X[at % 16, (j - i) % 8] + T.Cast("int32", at * i)
""",
    )
    library = tk.compile(from_source(source), "c").jit(
        compiler("gcc", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover")
    )
    x = np.arange(128, dtype="int32").reshape(16, 8) * 1009
    y = np.zeros_like(x)
    library["f"](x, y)
    for i in range(-5, 11):
        for j in range(8):
            position = (i * 7 - j * 3) // 4
            assert y[i + 5, j] == x[position % 16, (j - i) % 8] + position * i


def test_the_word_of_a_target_is_used(words_of_32_bits: None) -> None:
    """The fixture does what it says."""
    source = PROGRAM.format(
        parameters='Y: T.Buffer((16,), "int8")',
        body="    for i in range(16):\n        Y[i] = T.int8(1)",
    )
    mod = IRModule(from_source(source).functions, "m")
    with pytest.warns(UserWarning, match="baseline"):
        text = tk.compile(mod, "c").artifacts["kernels.c"].text()
    assert re.search(r"for \(int32_t i = 0; i < 16; \+\+i\)", text)
