"""Indices that a caller passes are checked where they lie, before anything runs."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.checked_arguments import CHECKED_ARGUMENTS
from tensorkiln.ir.expr import Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import tensor
from tensorkiln.ir.verify import verify
from tensorkiln.runtime.failures import IndexOutsideError
from tensorkiln.script import from_source
from tensorkiln.transform.relax.check_arguments import CheckArguments
from tensorkiln.transform.relax.check_indices import CheckIndices
from tensorkiln.transform.relax.infer_types import infer_types
from tests.transform.graphs import check_text, graph, main, ops_of

TARGET = tk.Target("llvm")
LOOKED_UP = """
@R.function
def main(
    x: R.Tensor(("n", 4), "float32"),
    z: R.Tensor((7,), "float32"),
    i: R.Tensor(("k", 3), "int64"),
    j: R.Tensor((2,), "int32"),
):
    a = R.take(x, i, axis=0)
    b = R.take(z, i, axis=0)
    both = R.add(j, j)
    c = R.take(z, both, axis=0)
    return a, b, c
"""


def checked(mod: IRModule, target: tk.Target = TARGET) -> IRModule:
    return CheckArguments(target)(CheckIndices(target)(infer_types(mod)))


def test_text() -> None:
    """Computed indices are checked by the kernel that computes them, and those that are returned
    are copied."""
    check_text(
        CheckArguments(TARGET),
        LOOKED_UP.replace(
            "    a = R.take(x, i, axis=0)\n    b = R.take(z, i, axis=0)\n",
            "    p = R.bounds_check(i, extent=n)\n    a = R.take(x, p, axis=0)\n"
            "    q = R.bounds_check(i, extent=7)\n    b = R.take(z, q, axis=0)\n",
        )
        .replace("):\n", "):\n    n = T.int64()\n")
        .replace("R.take(z, both", "R.take(z, R.bounds_check(both, extent=7)"),
        """
        @R.function(attrs={"checked_arguments": ((2, n, True, ""), (2, 7, True, ""))})
        def main(
            x: R.Tensor(("n", 4), "float32"),
            z: R.Tensor((7,), "float32"),
            i: R.Tensor(("k", 3), "int64"),
            j: R.Tensor((2,), "int32"),
        ):
            a = R.take(x, i, axis=0, outside="error")
            b = R.take(z, i, axis=0, outside="error")
            both = R.add(j, j)
            lv5 = R.bounds_check(both, extent=7, negative=True)
            c = R.take(z, lv5, axis=0, outside="error")
            return a, b, c
        """,
    )
    mod = graph(lambda g, x, i: g.bounds_check(i, extent=5), x=(5,), i=tensor((3,), "int64"))
    assert ops_of(checked(mod)) == ["bounds_check"]


def test_devices_may_have_the_argument() -> None:
    target = tk.Target({"kind": "composite", "host": "llvm", "devices": ["opencl"]})
    mod = graph(lambda g, x, i: g.take(x, i, axis=0), x=(5, 4), i=tensor((3,), "int64"))
    assert ops_of(checked(mod, target)) == ["bounds_check", "take"]
    assert ops_of(checked(mod)) == ["take"]


@pytest.fixture(scope="module")
def looked_up() -> tk.Executable:
    return tk.compile(from_source(LOOKED_UP))


# i, j -> what is said of them, for n = 5
WRONG = [
    (
        np.array([[0, 1, 2], [3, 5, 0]]),
        [0, 3],
        r"index 5 at \[1, 1\] is outside of a dimension of 5",
    ),
    (np.array([[0, 1, -6]]), [0, 3], r"index -6 at \[0, 2\] is outside of .* 5, expected -5 to 4"),
    (np.array([[2**63 - 1, 0, 0]]), [0, 0], r"index 9223372036854775807 at \[0, 0\]"),
    (np.array([[0, 1, 2]]), [0, 4], r"index 8 at \[1\] is outside of a dimension of 7"),
]


def test_calls(looked_up: tk.Executable) -> None:
    """Contiguous indices and those with gaps, as NumPy looks them up; nothing runs for others."""
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    z = np.arange(7, dtype=np.float32)
    i, j = np.array([[0, -5, 4], [1, 2, 3]]), np.array([0, -3], np.int32)
    for indices in (i, np.repeat(i, 2, 1)[:, ::2], np.asfortranarray(i), i[:0]):
        a, b, c = looked_up(x, z, indices, j)
        np.testing.assert_array_equal(a, x[indices])
        np.testing.assert_array_equal(b, z[indices])
        np.testing.assert_array_equal(c, z[2 * j])
    for wrong, second_indices, says in WRONG:
        for indices in (wrong, np.repeat(wrong, 2, 1)[:, ::2]):
            places = [np.full((len(indices), 3, 4), 9, np.float32)]
            places += [np.full((len(indices), 3), 9, np.float32), np.full(2, 9, np.float32)]
            with pytest.raises(IndexOutsideError, match=says):
                looked_up(x, z, indices, np.array(second_indices, np.int32), out=places)
            if "outside of a dimension of 7" not in says:
                assert all((place == 9).all() for place in places)


def test_no_kernel_copies_them(looked_up: tk.Executable) -> None:
    assert [k.symbol for k in looked_up.kernels if "bounds_check" in k.symbol] == [
        k.symbol for k in looked_up.kernels if "add" in k.symbol or "bounds_check" in k.symbol
    ]
    alone = tk.compile(graph(lambda g, x, i: g.take(x, i, axis=0), x=(5,), i=tensor((3,), "int8")))
    assert not any("bounds_check" in k.symbol for k in alone.kernels)
    with pytest.raises(UserError, match=r"index 5 at \[2\] .*\(node take\)"):
        alone(np.zeros(5, np.float32), np.array([0, -5, 5], np.int8))


def test_a_branch_looks_up() -> None:
    """What a function of control flow passes to its parts."""
    f = tk.compile(
        from_source(
            """
@R.function
def main(x: R.Tensor((5,), "float32"), i: R.Tensor((3,), "int64"), c: R.Tensor((), "bool")):
    if c:
        y = R.take(x, i, axis=0)
    else:
        y = R.take(x, R.neg(i), axis=0)
    return y
"""
        )
    )
    x, i = np.arange(5, dtype=np.float32), np.array([1, 0, 4])
    np.testing.assert_array_equal(f(x, i, np.array(True)), x[i])
    np.testing.assert_array_equal(f(x, i, np.array(False)), x[-i])
    for wrong, c in ((5, True), (6, False)):
        with pytest.raises(UserError, match="is outside of a dimension of 5"):
            f(x, np.array([0, wrong, 0]), np.array(c))


@pytest.mark.parametrize("row", [(0, 5, True, ""), (2, 5, True, ""), (-1, 5, True, "")])
def test_rows_of_other_parameters_are_malformed(row: tuple[object, ...]) -> None:
    mod = graph(lambda g, x, i: g.take(x, i, axis=0), x=(Var("n"),), i=tensor((3,), "int64"))
    f = replace(main(mod), attrs=Attrs.of(**{CHECKED_ARGUMENTS: (row,)}))
    with pytest.raises(InternalError, match=f"parameter {row[0]} is no tensor of integers"):
        verify(IRModule((f,), "wrong"))


C_PROGRAM = """
#include "indices.h"
#include <stdio.h>
#include <stdlib.h>
static uint64_t word(void)
{
    return (uint64_t)rand() << 33 ^ (uint64_t)rand() << 16 ^ (uint64_t)rand();
}
#define TRY(name, type)                                                                          \\
    for (int turn = 0; turn < 20000; turn++) {                                                   \\
        int64_t e = (int64_t)(word() >> (2 + rand() % 62));                                      \\
        if (turn % 4 == 0)                                                                       \\
            e = ((int64_t)1 << rand() % 34) + rand() % 3 - 1;                                    \\
        const int negative = turn % 2 && (type)-1 < 0;                                           \\
        type at[7];                                                                              \\
        int64_t want = -1;                                                                       \\
        for (int i = 6; i >= 0; i--) {                                                           \\
            const uint64_t edges[] = {(uint64_t)e, (uint64_t)e - 1, -(uint64_t)e, ~(uint64_t)e}; \\
            at[i] = (type)(rand() % 3 ? (uint64_t)rand() % (uint64_t)(e + !e)                    \\
                           : rand() % 2 ? word() : edges[rand() % 4]);                           \\
            if ((__int128)at[i] < (negative ? -(__int128)e : 0) || (__int128)at[i] >= e)         \\
                want = i;                                                                        \\
        }                                                                                        \\
        kiln_outside outside = {-1, 0, 0};                                                       \\
        const int found = kiln_outside_##name(at, 7, e, negative, &outside);                     \\
        if (found != (want >= 0) || outside.place != want ||                                     \\
            (found && (type)outside.index != at[want]))                                          \\
            return printf("%s: extent %lld, negative %d\\n", #name, (long long)e, negative), 1;   \\
    }
int main(void)
{
    TRY(int8, int8_t)
    TRY(int16, int16_t)
    TRY(int32, int32_t)
    TRY(int64, int64_t)
    TRY(uint8, uint8_t)
    TRY(uint16, uint16_t)
    TRY(uint32, uint32_t)
    TRY(uint64, uint64_t)
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_every_extent_in_c(tmp_path: Path) -> None:
    """Beside numbers of 128 bits: extents up to 2^62, and indices at their edges."""
    (tmp_path / "it.c").write_text(C_PROGRAM)
    crt = Path(tk.__file__).parent / "crt"
    words = ["gcc", "-O2", "-fsanitize=undefined", "-I", crt, "it.c", "-o", "it"]
    subprocess.run(words, cwd=tmp_path, check=True)
    process = subprocess.run([tmp_path / "it"], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
