"""Accesses that leave their buffers for certain are refused, with the place; others are not."""

from __future__ import annotations

import itertools

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.verify import verify
from tensorkiln.script import from_source

PARAMS = 'X: T.Buffer((4, 6), "int32"), N: T.Buffer((4,), "int64"), Y: T.Buffer((4, 6), "int32")'


def program(lines: list[str], params: str = PARAMS) -> IRModule:
    body = "".join(f"    {line}\n" for line in lines)
    mod = from_source(f"@T.prim_func\ndef f({params}):\n{body}")
    assert isinstance(mod, IRModule)
    return mod


# A way to reach an element of dimension 1 of a buffer of 6, which `{}` names, and what is written
# of it in the path.
ACCESSES = {
    "store": ("Y[0, {}] = 1", "store(Y)"),
    "load": ("Y[0, 0] = X[0, {}]", "store(Y).value"),
    "load_in_sum": ("Y[0, 0] = X[1, 1] + X[0, {}] * 2", "store(Y).value"),
    "load_in_index": ("Y[0, T.Cast('int64', X[0, {}]) % 6] = 1", "store(Y).indices"),
    "address": ("T.call_extern('void', 'g', T.address_of(Y[1, {}]))", "evaluate"),
    "view": ("V = T.match_buffer(Y[1, {}], (1,), strides=(1,))\nV[0] = 1", "match(V)"),
    "local": (
        "t = T.alloc_buffer((2, 6), 'int32', scope='local')\nt[0, {}] = 1\nY[0, 0] = 1",
        "store(t)",
    ),
    "global": (
        "t = T.alloc_buffer((2, 6), 'int32', scope='global')\nt[0, {}] = 1\nY[0, 0] = 1",
        "store(t)",
    ),
    "of_view": ("V = T.match_buffer(Y[0:4, 0:6], (4, 6))\nV[0, {}] = 1", "store(V)"),
    "condition": ("if X[0, {}] > 0:\n    Y[0, 0] = 1", "cond"),
    "extent": ("for q in range(T.Cast('int64', X[0, {}])):\n    Y[0, 0] = 1", "extent"),
}
# Loops around an access: lines, the index, and the values that are outside; None for what is right.
INDICES: dict[str, tuple[list[str], str, str | None]] = {
    "inside": ([], "5", None),
    "behind": ([], "6", "index 6"),
    "before": ([], "-1", "index -1"),
    "loop": (["for i in range(7):"], "i", "where i = 6"),
    "loop_inside": (["for i in range(6):"], "i", None),
    "moved": (["for i in range(1, 7):"], "i", "where i = 6"),
    "moved_inside": (["for i in range(1, 7):"], "i - 1", None),
    "backwards": (["for i in range(6):"], "4 - i", "where i = 5"),
    "two": (["for i in range(3):", "for j in T.parallel(2):"], "i * 2 + j", None),
    "two_behind": (
        ["for i in range(4):", "for j in T.parallel(3):"],
        "i * 2 + j",
        "where i = 3, j = 2",
    ),
    "unrolled": (["for i in T.unroll(3):"], "i * 2", None),
    "unrolled_behind": (["for i in T.unroll(4):"], "i * 3", "where i = 3"),
    "int32": (["for i in T.serial(T.int32(7)):"], "i", "where i = 6"),
    "guarded": (["for i in range(9):", "if i < 6:"], "i", None),
    "guarded_otherwise": (["for i in range(9):", "if N[0] > 2:"], "i", None),
    "unknown_extent": (["for i in range(N[0]):"], "7", None),
    "never": (["for i in range(0):"], "7", None),
    "while": (["while N[0] > 3:"], "7", None),
    "unknown": (["for i in range(9):"], "(i + N[i % 4]) % 6", None),
    "remainder": (["for i in range(9):"], "i % 6", None),
}


def lines_of(access: str, index: str) -> list[str]:
    around, text, _ = INDICES[index]
    lines = ["    " * k + line for k, line in enumerate(around)]
    return lines + ["    " * len(around) + x for x in ACCESSES[access][0].format(text).split("\n")]


@pytest.mark.parametrize("block", [False, True], ids=["", "in a block"])
@pytest.mark.parametrize("access", ACCESSES)
def test_every_access_at_every_index(access: str, block: bool) -> None:
    """A block says what it reads and writes; what nobody wrote says nothing of guarded accesses."""
    for index, (_, _, wrong) in INDICES.items():
        lines = lines_of(access, index)
        mod = program(["with T.block('b'):", *(f"    {x}" for x in lines)] if block else lines)
        if wrong is None:
            verify(mod, places=True)
            continue
        with pytest.raises(InternalError) as info:
            verify(mod, places=True)
        said = info.value
        assert wrong in said.message and ACCESSES[access][1] in said.where, (index, str(said))
        assert "elements of this dimension are 0 to 5" in said.hint
        assert ("an `if` around" in said.hint) is ("where" in wrong)
        verify(mod)  # passes may lead through the next dimension


RIGHT = [
    ["Y[0, 0] = T.select(X[0, 0] > 0, X[0, 7], 0)"],
    ["assert X[0, 0] > 0", "Y[0, 7] = 1"],
    ["T.prefetch(Y[3, 12])", "Y[0, 0] = 1"],
    [
        "for i in range(6):",
        "    with T.block('b'):",
        "        v = T.axis.spatial(9, i)",
        "        Y[0, v] = 1",
    ],
    ["V = T.match_buffer(Y[0:4, 0:6], (24,))", "V[23] = 1"],
    ["x = T.int32(9)", "Y[0, x % T.int32(6)] = 1"],
    ["for i in range(4):", "    Y[i, 0:6] = X[3 - i, 0:6]"],
]
WRONG = [
    (["Y[0, 1:7] = X[0, 0:6]"], "index 6 of dimension 1 of Y"),
    (["Y[0, 0:6:2] = X[0, 3:9:2]"], "index 7 of dimension 1 of X"),
    (
        [
            "for i in range(6):",
            "    with T.block('b'):",
            "        v = T.axis.spatial(9, i + 1)",
            "        Y[0, v] = 1",
        ],
        "index 6 of dimension 1 of Y: int32[4, 6], where i = 5",
    ),
    (["x = 7", "y: T.int64 = x", "Y[0, y] = 1"], "index 7"),
    (
        ["V = T.match_buffer(Y[0, 3], (4, 6), strides=(6, 1))", "V[0, 0] = 1"],
        "the view ends at element 26 of Y",
    ),
    (
        ["V = T.match_buffer(Y[2, 0], (3,), strides=(6,))", "V[0] = 1"],
        "the view ends at element 24 of Y",
    ),
    (
        [
            "for i in range(4):",
            "    V = T.match_buffer(Y[i, 1], (6,), strides=(1,))",
            "    V[0] = 1",
        ],
        "element 24 of Y: int32[4, 6], where i = 3",
    ),
    (["V = T.match_buffer(Y[0:4, 0:6], (24,))", "V[24] = 1"], "index 24 of dimension 0 of V"),
]


@pytest.mark.parametrize("lines", RIGHT, ids=lambda lines: lines[-1])
def test_what_may_be_right_is_taken(lines: list[str]) -> None:
    verify(program(lines), places=True)


@pytest.mark.parametrize(("lines", "message"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_outside_is_named(lines: list[str], message: str) -> None:
    with pytest.raises(InternalError) as info:
        verify(program(lines), places=True)
    assert message in info.value.message and info.value.hint


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_dimension(rank: int) -> None:
    shape = (3, 4, 5)[:rank]
    for k, value in itertools.product(range(rank), (-1, 2, 3, 4, 5)):
        at = [0] * rank
        at[k] = value
        text = ", ".join(map(str, at))
        mod = program([f"A[{text}] = 1.0"], f'A: T.Buffer({shape}, "float32")')
        if 0 <= value < shape[k]:
            verify(mod, places=True)
        else:
            with pytest.raises(InternalError, match=f"index {value} of dimension {k} of A"):
                verify(mod, places=True)


def test_a_size_that_is_not_known() -> None:
    mod = program(["A[n] = 1.0"], 'A: T.Buffer(("n",), "float32")')
    with pytest.raises(InternalError, match="dimension 0 of A"):
        verify(mod, places=True)
    verify(program(["A[n - 1] = 1.0"], 'A: T.Buffer(("n",), "float32")'), places=True)


def test_compile_says_it_to_the_user() -> None:
    with pytest.raises(UserError, match="index 7 of dimension 0 of A") as info:
        tk.compile(program(["A[7] = 1.0"], 'A: T.Buffer((4,), "float32")'))
    assert info.value.where == "f.body.store(A)"
    assert info.value.hint == "elements of this dimension are 0 to 3"


def test_a_region_that_is_outside() -> None:
    lines = ["with T.block('b'):", "    T.reads(X[0, 4:7])", "    Y[0, 0] = X[0, 5]"]
    with pytest.raises(InternalError, match="elements 4 to 6 of dimension 1 of X") as info:
        verify(program(lines), places=True)
    assert info.value.where == "f.body.block(b).reads[0]"
    assert info.value.hint == "elements of this dimension are 0 to 5"
