"""Programs for devices that are malformed: loops over a grid, shared memory, barriers, launches."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.verify import verify
from tensorkiln.script import from_source
from tests.script.test_script_roundtrip import check

HEAD = """
@ir_module
class Module:
    @T.prim_func
    def f(A: T.Buffer((64,), "float32"), n: T.int64):
"""


def module(body: str) -> IRModule:
    """A module of the function f, given the lines of its body."""
    return from_source(HEAD + "\n".join(" " * 8 + line for line in body.strip().splitlines()))


def bound(*threads: str, body: str = "A[0] = 0.0", extent: str = "4", name: str = "i") -> str:
    """Loops bound to indices, one inside of the other."""
    lines = [
        f"{'    ' * k}for {name}{k} in T.thread_binding({extent}, thread={t!r}):"
        for k, t in enumerate(threads)
    ]
    return "\n".join([*lines, *("    " * len(threads) + line for line in body.splitlines())])


SHARED = 'tile = T.alloc_buffer((4,), "float32", scope="shared")\ntile[0] = 0.0'
SYNC = 'T.sync("block")'
INSIDE = "belongs inside of a loop over blockIdx"


def around(head: str, body: str) -> str:
    return "\n".join([head, *("    " + line for line in body.splitlines())])


WRONG = [
    (bound("block"), "no index 'block' of a device's grid", "blockIdx.x"),
    (bound("threadIdx.w"), "no index 'threadIdx.w'", "threadIdx"),
    *(
        (bound(t, "threadIdx.z", t), f"loop i0 around it is bound to {t} too", "fuse")
        for t in ("threadIdx.x", "threadIdx.y")
    ),
    (bound("blockIdx.y", "blockIdx.x", "blockIdx.y"), "loop i0 around it is bound", "fuse"),
    (bound("threadIdx.x", "blockIdx.x"), "blockIdx.x inside of one over threadIdx.x", "outer"),
    (bound("blockIdx.x", "threadIdx.y", extent="n"), "over threadIdx.y is n", "constant"),
    (bound("blockIdx.x", "threadIdx.y", extent="0"), "over threadIdx.y is", "1 or more"),
    *(
        (around(f"for k in T.{kind}(4):", bound(t)), f"inside of one that is {kind}", "k serial")
        for kind in ("parallel", "vectorized")
        for t in ("blockIdx.z", "threadIdx.x")
    ),
    # shared memory and barriers belong to whole blocks
    *((text, "outside of the loops over blockIdx", INSIDE) for text in (SHARED, SYNC)),
    *(
        (bound("blockIdx.x", "threadIdx.x", body=text), "inside of loop i1 over thread", INSIDE)
        for text in (SHARED, SYNC, around("if n < 4:", SYNC), around("for k in range(4):", SYNC))
    ),
    *(
        (
            bound("blockIdx.x", body=around(f"for k in T.{kind}(4):", text)),
            f"inside of loop k, which is {kind}",
            INSIDE,
        )
        for kind in ("parallel", "vectorized")
        for text in (SHARED, SYNC)
    ),
    (
        bound("blockIdx.x", body=SHARED.replace("(4,)", "(n, 4)").replace("[0]", "[0, 0]")),
        "a shared buffer needs constant extents",
        "scope 'global'",
    ),
]


@pytest.mark.parametrize(("body", "message", "hint"), WRONG)
def test_what_is_refused(body: str, message: str, hint: str) -> None:
    with pytest.raises(InternalError) as info:
        verify(module(body))
    assert message in str(info.value) and hint in info.value.hint
    assert info.value.code == "malformed-ir" and info.value.where.startswith("f.body")


RIGHT = [
    bound("blockIdx.z", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
    bound("blockIdx.x", extent="n"),
    bound("blockIdx.x") + "\n" + bound("blockIdx.x"),
    bound(
        "blockIdx.x",
        body="\n".join((bound("threadIdx.x", name="j"), SYNC, bound("threadIdx.x", name="k"))),
    ),
    bound("blockIdx.x", body=around("for k in range(n):", SHARED + "\n" + SYNC)),
    bound("blockIdx.x", body=around("if n < 4:", SYNC)),
    bound("blockIdx.x", body=around("for k in T.unroll(4):", SHARED)),
]


@pytest.mark.parametrize("body", RIGHT)
def test_what_is_right_comes_back_from_text(body: str) -> None:
    mod = module(body)
    verify(mod)
    check(mod)


DEVICE = """
    @T.prim_func
    def g(A: T.Buffer((64,), "float32")):
        T.func_attr({"device_function": True})
        for b in T.thread_binding(16, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                A[4 * b + t] = 0.0

    @T.prim_func
    def plain(A: T.Buffer((64,), "float32")):
        A[0] = 0.0
"""


def launched(call: str) -> IRModule:
    return from_source(HEAD + f"        {call}\n" + DEVICE)


LAUNCHES = [
    ("T.call(cls.g, A)", "g is a device function, which a plain call cannot run", "grid="),
    (
        "T.call(cls.plain, A, grid=(n, 1, 1), block=(4, 1, 1))",
        "plain is launched, but it is no device function",
        "leave out grid",
    ),
    ("T.call(cls.g, A, grid=(n, 1, 1))", "block has 0 extents", "block=(x, y, z)"),
    ("T.call(cls.g, A, block=(4, 1, 1))", "grid has 0 extents", "grid=(x, y, z)"),
    (
        "T.call(cls.g, A, grid=(n, 1, 1), block=(4, 0, 1))",
        "a block of 4, 0, 1 threads",
        "1 or more",
    ),
    (
        "T.call(cls.g, A, grid=(n, 1.5, 1), block=(4, 1, 1))",
        "float32 as a number of blocks",
        "Cast(value, int64)",
    ),
]


@pytest.mark.parametrize(("call", "message", "hint"), LAUNCHES)
def test_launches_that_are_refused(call: str, message: str, hint: str) -> None:
    with pytest.raises(InternalError) as info:
        verify(launched(call))
    assert message in str(info.value) and hint in info.value.hint
    assert info.value.where.startswith("f.body.call(")


def test_launches_come_back_from_text() -> None:
    mod = launched("T.call(cls.g, A, grid=(n // 4 + 1, 2, n), block=(4, 1, 1), span='conv1')")
    verify(mod)
    check(mod)
    assert "grid=(n // 4 + 1, 2, n), block=(4, 1, 1), span=" in mod.script()


GLOBAL = 'v = T.alloc_buffer((4,), "float32", scope="global")\n'
FORM = {
    "no blocks": (bound("threadIdx.x"), "begins with no loop over blockIdx", "extent 1"),
    "a store for all threads": (bound("blockIdx.x"), "Store outside of the loops", "one thread"),
    "a store beside threads": (
        bound("blockIdx.x", body="A[0] = 0.0\n" + bound("threadIdx.x", name="j")),
        "Store outside of the loops over threadIdx: all threads would run it",
        "one thread",
    ),
    "blocks in a loop": (
        bound("blockIdx.x", body=around("for k in range(2):", bound("blockIdx.y", name="j"))),
        "a loop over blockIdx.y is not one of the outermost loops",
        "directly inside the other",
    ),
    "a grid that depends on a block": (
        "for b in T.thread_binding(4, thread='blockIdx.x'):\n"
        "    for c in T.thread_binding(b + 1, thread='blockIdx.y'):\n"
        "        for t in T.thread_binding(1, thread='threadIdx.x'):\n"
        "            A[0] = 0.0",
        "the number of blocks along blockIdx.y depends on what is inside",
        "scalar parameters",
    ),
    "global memory of a block": (
        bound("blockIdx.x", body=GLOBAL + bound("threadIdx.x", name="j")),
        "global buffer v is allocated for a whole block",
        "each thread's own",
    ),
    "threads apart": (
        bound(
            "blockIdx.x",
            "threadIdx.y",
            body=around("for k in range(2):", bound("threadIdx.x", name="j")),
        ),
        "a loop over threadIdx.x stands apart from those around it",
        "directly inside the other",
    ),
    "a call": (
        bound("blockIdx.x", "threadIdx.y", body="T.call(cls.f, A, n)"),
        "a device function calls another",
        "its body belongs here",
    ),
}


@pytest.mark.parametrize("name", FORM)
def test_the_form_of_device_functions(name: str) -> None:
    body, message, hint = FORM[name]
    if name != "a call":
        verify(module(body))  # it may be a program
    with pytest.raises(InternalError) as info:
        verify(module('T.func_attr({"device_function": True})\n' + body))
    assert message in str(info.value) and hint in info.value.hint


TEXTS = [
    ('T.sync("warp")', "no threads 'warp' that wait for each other"),
    ("T.sync()", "expected T.sync"),
    ("T.sync(scope='block')", "expected T.sync"),
    ("T.call(cls.f, A, n, grids=(1, 1, 1))", "unknown option 'grids' of T.call"),
    ("T.call(cls.f, A, n, grid=(1, 1))", "expected (x, y, z)"),
    ("T.call(cls.f, A, n, grid=4)", "expected (x, y, z)"),
    ("T.call(cls.f, A, n, block=(n, 1, 1))", "expected"),
    ('T.alloc_buffer((4,), "float32", scope="shard")', "shard"),
]


@pytest.mark.parametrize(("line", "message"), TEXTS)
def test_texts_that_are_refused(line: str, message: str) -> None:
    with pytest.raises(UserError) as info:
        module("b = " + line if "alloc" in line else line)
    assert message in str(info.value)
