"""Arithmetic of sizes is checked: in all C that is generated, and in the runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_text.sizes import Formula
from tensorkiln.codegen.host.function import (
    Condition,
    HostStorage,
    KernelCall,
    Ptr,
    ScalarExpr,
    host_function,
)
from tensorkiln.codegen.host.interface import model_interface
from tensorkiln.codegen.host.interface_c import interface_c
from tensorkiln.ir.expr import (
    Expr,
    IntImm,
    binary,
    cast,
    logical_and,
    maximum,
    select,
    unary,
)
from tensorkiln.link.shared import CRT
from tensorkiln.script import from_source
from tests.artifact.test_loaders import STREAMER
from tests.crt import extremes
from tests.crt.formulas import M, N, entry_of, own, size, tensor
from tests.crt.test_null import MODULE
from tests.link import sample

# Operators between two operands: types of pointers have no space behind the star.
_BINARY = re.compile(r"(?<=[\w)\]]) (?:[-+*/%]|<<) (?=[\w(&-])|[-+*/]=|<<=")
# A place in memory whose size was checked as a whole; divisions that cannot overflow.
_ALLOWED = re.compile(
    r"\b(?:(?:frame->)?workspace\w*|kiln_weights|weights|in_\w+|out_\w+) \+ "
    r"(?:size_\d+|s_\w+|\d+)\b(?! [-+*/%])"
    r"|[)\w] [/%] [1-9]\d*"
)


def _code(text: str) -> str:
    """C without comments, literals and lines of the preprocessor."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\]|\\.)\'', '""', text)
    return re.sub(r"^#.*(?:\\\n.*)*", "", text, flags=re.M)


def unchecked(text: str) -> list[str]:
    """Lines of C that compute without a check."""
    lines = (_ALLOWED.sub("", line) for line in _code(text).splitlines())
    return [line.strip() for line in lines if _BINARY.search(line)]


FIELDS: dict[str, Any] = {
    "name": "f",
    "kind": "graph",
    "inputs": (tensor("x", "float32", ("s_n", "s_m")),),
    "outputs": (
        tensor(
            "y", "float32", (size(binary("max", (N + 3) // 4 * 4, binary("min", N, 2))),), "out"
        ),
    ),
    "symbols": own("n", "m"),
    "workspace_bytes": size((N * M + 64) % 7 - unary("neg", N)),
    "calls": (
        KernelCall(
            "k",
            (
                Ptr("arg", 0, size(N * 4)),
                Ptr("workspace", 1, size(M - 1)),
                ScalarExpr(size(select(binary("lt", N, M), N * 2, M % N))),
                ScalarExpr("s_n", "int32_t"),
                ScalarExpr(size(N // 4 + 1), "uint8_t"),
            ),
        ),
    ),
    "requires": (
        Condition(
            size(logical_and(binary("le", N * M, 512), unary("not", binary("eq", N, 3)))),
            "n * m <= 512 and n is not 3",
        ),
    ),
    "storages": (HostStorage(64), HostStorage(size(N * M), size(N + 63))),
}
EVERYTHING = host_function(**FIELDS)


def texts() -> Iterator[tuple[str, str]]:
    yield "sample", sample.entry()
    yield "everything", entry_of([EVERYTHING], "e")
    yield "interface", interface_c(model_interface("e", [EVERYTHING]), "pointer")
    exes = (
        tk.compile(extremes.module(), name="extremes"),
        tk.compile(from_source(MODULE), externals=[STREAMER], name="net"),
    )
    for exe in exes:
        for artifact in exe.artifacts:
            if artifact.file_name.endswith(".c"):
                yield artifact.file_name, artifact.text()


def test_generated_c() -> None:
    texts_by_name = dict(texts())
    assert len(texts_by_name) >= 4
    wrong = {name: lines for name, text in texts_by_name.items() if (lines := unchecked(text))}
    assert not wrong
    for name in ("everything", "interface"):
        assert texts_by_name[name].count("kiln_mul(") >= 4, name


def test_sizes_for_narrow_parameters_are_in_range() -> None:
    """Whether a symbol, or a formula that begins with one."""
    for value in ("s_n", size(N * 4), size(N // 4 + 1)):
        call = KernelCall("k", (Ptr("arg", 0), ScalarExpr(value, "uint8_t")))
        f = host_function(**(FIELDS | {"calls": (call,), "storages": (), "workspace_bytes": 0}))
        assert "UINT8_MAX, &large)" in entry_of([f], "e"), value


LINES = ("int64_t n = s_n * 4;", "f(workspace + s_n * 4);", "a += s_n;", "x = 1 << s_n;")


@pytest.mark.parametrize("line", [*LINES, "size[0] = (s_n + 1) - s_m;", "x = a / s_n;"])
def test_the_walk_sees(line: str) -> None:
    assert unchecked(line)


@pytest.mark.parametrize(
    ("e", "text", "checked"),
    [
        (N * 4, "s_n * 4", "kiln_mul(s_n, 4, &large)"),
        (N * -4, "s_n * -4", "kiln_mul(s_n, -4, &large)"),
        ((N + 15) // 16, "(s_n + 15) / 16", "(kiln_add(s_n, 15, &large) / 16)"),
        ((N + 15) % 16, "(s_n + 15) % 16", "(kiln_add(s_n, 15, &large) % 16)"),
        (
            (N - 2) // 3,
            "kiln_floordiv((s_n - 2), 3)",
            "kiln_divide(kiln_sub(s_n, 2, &large), 3, &large)",
        ),
        (N % M, "kiln_floormod(s_n, s_m)", "kiln_floormod(s_n, s_m)"),
        (N // M, "kiln_floordiv(s_n, s_m)", "kiln_divide(s_n, s_m, &large)"),
        (unary("neg", N), "-s_n", "kiln_sub(0, s_n, &large)"),
        (unary("abs", N), "s_n < 0 ? -s_n : s_n", "((s_n < 0) ? kiln_sub(0, s_n, &large) : s_n)"),
        (
            maximum(N, M * 2),
            "kiln_max(s_n, (s_m * 2))",
            "kiln_max(s_n, kiln_mul(s_m, 2, &large))",
        ),
        (
            unary("not", binary("eq", N + 1, M)),
            "!((s_n + 1) == s_m)",
            "!((kiln_add(s_n, 1, &large) == s_m))",
        ),
        (
            select(binary("lt", N, M), N * 2, M),
            "(s_n < s_m) ? (s_n * 2) : s_m",
            "((s_n < s_m) ? kiln_mul(s_n, 2, &large) : s_m)",
        ),
        (cast(N * 2, "int32"), "s_n * 2", "kiln_mul(s_n, 2, &large)"),
    ],
)
def test_the_forms_of_expressions(e: Expr, text: str, checked: str) -> None:
    formula = size(e)
    assert isinstance(formula, Formula)
    assert (formula.text, formula.checked) == (text, checked)
    assert not unchecked(f"x = {formula.checked};")


def test_what_needs_no_arithmetic() -> None:
    assert (size(N), size(IntImm(-4)), size(IntImm(0))) == ("s_n", -4, 0)


@pytest.mark.parametrize("op", ["shl", "bitand"])
def test_what_sizes_do_not_have(op: str) -> None:
    with pytest.raises(UnsupportedError, match="no C form for the size"):
        size(binary(op, N, M))


# ---- the runtime ---------------------------------------------------------------------------------

# Files that compute with no size from outside: hashes, numbers, processors, time, the system.
OTHERS = {
    "sha256.c",
    "scalar.c",
    "cpu.c",
    "cpu_features.h",
    "float_state.h",
    "mem.c",
    "sizes.h",
    "kiln.h",
    "pool.c",
    "threads.c",
    "share.c",
    "worker.c",
    "error.c",
    "os_posix.c",
}
_TENSOR = "of a tensor that kiln_check_tensor() has seen, where all products of sizes fit"
_COUNT = "an int, or the length of what is in memory, times the bytes of a struct, in size_t"
_FILE = "of what lies in a file or container, whose length was checked"
# How many lines multiply, shift or allocate a sum, and why that fits. Whoever writes another one
# uses crt/sizes.h or kiln_room(), or has such a reason.
FITS: dict[str, tuple[int, str]] = {
    "append.c": (4, _TENSOR),
    "bind.c": (1, "1 << symbol, of which there are KILN_MAX_SYMBOLS"),
    "closure.c": (1, _COUNT),
    "container.c": (9, _FILE),
    "crt.h": (2, "bits and lanes: 24 bits"),
    "cuda.c": (1, "the numbers of a version"),
    "cuda_graph.c": (
        11,
        "words of a run's launches, of at most KILN_MAX_DEVICE_PARAMS values each",
    ),
    "cuda_api.h": (1, "constants"),
    "cuda_launch.c": (3, f"numbers of versions, below 10^5; {_COUNT}"),
    "cuda_maps.c": (1, _TENSOR),
    "dynamic.c": (11, _TENSOR),
    "element.h": (6, "numbers, no sizes"),
    "ffi.c": (2, "KILN_MAX_RANK, and kiln_bytes_of(), which is at most KILN_MOST_BYTES"),
    "indices.h": (1, "half of what an index of so many bits has: 8 to 64"),
    "loader.c": (3, _COUNT),
    "match.c": (1, _TENSOR),
    "nms.c": (20, _TENSOR),
    "opencl_launch.c": (2, f"KILN_OPENCL_MOST_TEXT; {_COUNT}"),
    "registry.c": (1, _COUNT),
    "storage.c": (1, _COUNT),
    "strided.c": (1, "an element of a tensor, in its memory"),
    "tensor.c": (4, _TENSOR),
    "unique.c": (18, _TENSOR),
    "value.c": (5, _COUNT),
    "weights.c": (5, _FILE),
    "workspace.c": (3, "grow() refuses what is near SIZE_MAX"),
}


def _sized(text: str) -> Iterator[str]:
    """Lines that multiply, shift, or allocate a sum."""
    for line in _code(text).splitlines():
        if re.search(r"(?<=[\w)\]]) (?:\*|<<) (?=[\w(])|\*= |<<= ", line) or re.search(
            r"(?:alloc|allocate|new_object|map)\(.* \+ ", line
        ):
            yield line.strip()


def test_the_runtime() -> None:
    paths = sorted([*CRT.glob("*.c"), *CRT.glob("*.h")])
    sized_lines = {p.name: list(_sized(p.read_text())) for p in paths if p.name not in OTHERS}
    for name, lines in sized_lines.items():
        count, reason = FITS.get(name, (0, "there was none"))
        assert len(lines) == count, "\n".join([f"{name}: {count} {reason}; now:", *lines])
