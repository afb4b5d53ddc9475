"""split_device: device functions and the launches of them."""

from __future__ import annotations

from textwrap import indent

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.ir.verify import verify
from tensorkiln.script import from_source
from tensorkiln.transform.tir.insert_barriers import insert_barriers
from tensorkiln.transform.tir.split_device import split_device
from tests.ir.evaluate import run
from tests.ir.evaluate_device import ORDERS, run_host
from tests.script.test_script_roundtrip import check
from tests.transform.graphs import check_text

HEAD = """
@ir_module
class Module:
    @T.prim_func
    def f({parameters}):
{body}
"""
N = 'X: T.Buffer(("n", 4), "int32"), Y: T.Buffer(("n", 4), "int32"), n: T.int64'


def text(body: str, parameters: str = N) -> str:
    return HEAD.format(parameters=parameters, body=body)


DEVICE = """
    @T.prim_func({options}private=True)
    def {name}({parameters}):
        T.func_attr({{"device_function": True}})
{body}
"""


def device(name: str, body: str, parameters: str = N, options: str = "") -> str:
    return DEVICE.format(name=name, body=body, parameters=parameters, options=options)


NEST = """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = X[b, t] + 1
"""
OTHER = """\
        for b in T.thread_binding(n, thread="blockIdx.y"):
            for c in T.thread_binding(2, thread="blockIdx.x"):
                for t in T.thread_binding(2, thread="threadIdx.y"):
                    Y[b, 2 * c + t] = Y[b, 2 * c + t] * 2
"""
IN_PLACE = 'Y: T.Buffer(("n", 4), "int32"), n: T.int64'

# what it shows: (parameters, before, the program after, device functions)
TEXTS: dict[str, tuple[str, str, str, str]] = {
    "one nest": (
        N,
        NEST,
        "        T.call(cls.f_device, X, Y, n, grid=(n, 1, 1), block=(4, 1, 1))\n",
        device("f_device", NEST),
    ),
    "two nests; each has the parameters that it uses": (
        N,
        NEST + OTHER,
        """\
        T.call(cls.f_0, X, Y, n, grid=(n, 1, 1), block=(4, 1, 1))
        T.call(cls.f_1, Y, n, grid=(2, n, 1), block=(1, 2, 1))
""",
        device("f_0", NEST) + device("f_1", OTHER, IN_PLACE),
    ),
    "a buffer between launches": (
        N,
        """\
        Z = T.alloc_buffer((n, 4), "int32", scope="global")
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Z[b, t] = X[b, 3 - t]
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = Z[n - 1 - b, t]
""",
        """\
        Z = T.alloc_buffer((n, 4), "int32", scope="global")
        T.call(cls.f_0, X, Z, n, grid=(n, 1, 1), block=(4, 1, 1))
        T.call(cls.f_1, Z, Y, n, grid=(n, 1, 1), block=(4, 1, 1))
""",
        device(
            "f_0",
            """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Z[b, t] = X[b, 3 - t]
""",
            N.replace("Y:", "Z:"),
        )
        + device(
            "f_1",
            """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = Z[n - 1 - b, t]
""",
            N.replace("X:", "Z:"),
        ),
    ),
    "no blocks: one of them": (
        'X: T.Buffer((4,), "int32"), Y: T.Buffer((4,), "int32")',
        """\
        for t in T.thread_binding(4, thread="threadIdx.x"):
            Y[t] = X[t]
""",
        "        T.call(cls.f_device, X, Y, grid=(1, 1, 1), block=(4, 1, 1))\n",
        device(
            "f_device",
            """\
        for block in T.thread_binding(1, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[t] = X[t]
""",
            'X: T.Buffer((4,), "int32"), Y: T.Buffer((4,), "int32")',
        ),
    ),
    "no threads: one of them": (
        N,
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for k in range(4):
                Y[b, k] = X[b, k]
""",
        "        T.call(cls.f_device, X, Y, n, grid=(n, 1, 1), block=(1, 1, 1))\n",
        device(
            "f_device",
            """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for thread in T.thread_binding(1, thread="threadIdx.x"):
                for k in range(4):
                    Y[b, k] = X[b, k]
""",
        ),
    ),
    "what stands beside threads runs in one of them": (
        N,
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            s = T.alloc_buffer((4,), "int32", scope="shared")
            for k in range(4):
                s[k] = X[b, k]
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = s[3 - t]
""",
        "        T.call(cls.f_device, X, Y, n, grid=(n, 1, 1), block=(4, 1, 1))\n",
        device(
            "f_device",
            """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            s = T.alloc_buffer((4,), "int32", scope="shared")
            for thread in T.thread_binding(1, thread="threadIdx.x"):
                for k in range(4):
                    s[k] = X[b, k]
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = s[3 - t]
""",
        ),
    ),
    "threads inside of other loops of a thread": (
        N,
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for u in T.thread_binding(2, thread="threadIdx.y"):
                Y[b, 3 * u] = 0
                for k in range(1):
                    for t in T.thread_binding(2, thread="threadIdx.x"):
                        if t + u > 0:
                            Y[b, 2 * u + t - k] = X[b, 2 * u + t]
""",
        "        T.call(cls.f_device, X, Y, n, grid=(n, 1, 1), block=(2, 2, 1))\n",
        device(
            "f_device",
            """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for thread_y in T.thread_binding(2, thread="threadIdx.y"):
                for thread_x in T.thread_binding(2, thread="threadIdx.x"):
                    if thread_y < 2:
                        if thread_x == 0:
                            Y[b, 3 * thread_y] = 0
                        for k in range(1):
                            if thread_x < 2:
                                if thread_x + thread_y > 0:
                                    Y[b, 2 * thread_y + thread_x - k] = \
X[b, 2 * thread_y + thread_x]
""",
        ),
    ),
    "memory of a thread, by its number": (
        N,
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            s = T.alloc_buffer((4, 1), "int32", scope="local")
            for t in T.thread_binding(4, thread="threadIdx.x"):
                s[t, 0] = X[b, t]
                if t < 1:
                    s[0, 0] = s[t, 0] + 5
                if t == 2:
                    s[2, 0] = s[2, 0] * 7
                Y[b, t] = s[t, 0]
""",
        """\
        T.call(cls.f_device, X, Y, n, grid=(n, 1, 1), block=(4, 1, 1))
""",
        device(
            "f_device",
            """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            s = T.alloc_buffer((1,), "int32", scope="local")
            for t in T.thread_binding(4, thread="threadIdx.x"):
                s[0] = X[b, t]
                if t < 1:
                    s[0] = s[0] + 5
                if t == 2:
                    s[0] = s[0] * 7
                Y[b, t] = s[0]
""",
        ),
    ),
    "a name for a size": (
        N,
        """\
        m: T.int64 = (n + 1) // 2
        for b in T.thread_binding(m, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = X[b, t]
""",
        """\
        T.call(cls.f_device, X, Y, n, grid=((n + 1) // 2, 1, 1), block=(4, 1, 1))
""",
        device(
            "f_device",
            """\
        for b in T.thread_binding((n + 1) // 2, thread="blockIdx.x"):
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = X[b, t]
""",
        ),
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    parameters, before, after, device_text = TEXTS[name]
    check_text(
        split_device,
        text(before, parameters),
        text(after, parameters).replace("@T.prim_func\n", "@T.prim_func(outputs=1)\n", 1)
        + device_text,
    )


@pytest.mark.parametrize("name", TEXTS)
def test_launches_compute_what_the_program_does(name: str) -> None:
    """The grid and block of the launch are those of the function's loops (`run_host` compares)."""
    parameters, before, _, _ = TEXTS[name]
    whole = from_source(text(before, parameters))
    mod = insert_barriers(split_device(whole))
    verify(mod)
    check(mod)
    rng = np.random.default_rng(0)
    shape = (4,) if "no blocks" in name else (5, 4)
    x = rng.integers(0, 9, shape).astype("int32")
    if "other loops of a thread" in name:
        return  # two of its threads write one element
    expected = np.full(shape, -1, "int32")
    f = whole["f"]
    assert isinstance(f, PrimFunc)
    run(f, {"X": x, "Y": expected, "n": 5})
    for order in ORDERS:
        output = np.full(shape, -1, "int32")
        assert run_host(mod, "f", {"X": x, "Y": output, "n": 5}, order) == []
        assert np.array_equal(output, expected), order


def test_names_that_are_taken() -> None:
    extra_text = "\n    @T.prim_func\n    def f_device(A: T.Buffer((1,))):\n        A[0] = 0.0\n"
    mod = from_source(text(NEST) + extra_text)
    assert [f.name for f in split_device(mod).functions] == ["f", "f_device_2", "f_device"]


def test_attributes() -> None:
    body = '        T.func_attr({"mine.note": 1, "global_symbol": "f"})\n' + NEST
    mod = split_device(from_source(text(body)))
    f, device_function = mod["f"], mod["f_device"]
    assert isinstance(f, PrimFunc) and isinstance(device_function, PrimFunc)
    assert f.public and not device_function.public and device_function.is_device and not f.is_device
    assert dict(device_function.attrs) == {"device_function": True, "mine.note": 1}
    assert dict(f.attrs) == {"mine.note": 1, "global_symbol": "f"}


def test_an_input_in_the_place_of_the_output() -> None:
    source = text(NEST).replace("@T.prim_func", "@T.prim_func(inplace=(0,))")
    device_function = split_device(from_source(source))["f_device"]
    assert isinstance(device_function, PrimFunc) and device_function.inplace == (0,)


def test_programs_for_other_devices_are_left() -> None:
    mod = from_source(text("        for k in T.parallel(n):\n            Y[k, 0] = X[k, 0]\n"))
    assert split_device(mod) is mod


def test_the_shape_of_a_launch() -> None:
    mod = split_device(from_source(text(OTHER, IN_PLACE)))
    device_function = mod["f_device"]
    assert isinstance(device_function, PrimFunc)
    launch = launch_of(device_function)
    assert launch.block == (1, 2, 1) and len(launch.loops) == 2 and not launch.shared
    assert [repr(e) for e in launch.grid[1:2]] == ["n"]


WRONG = {
    "a loop around launches": (
        "        for k in range(2):\n" + indent(NEST, "    ").replace("b, t", "k, t"),
        "loop k around launches outside of the loops over blockIdx",
        "bind this part too",
    ),
    "a store beside": ("        Y[0, 0] = 1\n" + NEST, "store of Y outside", "bind this part"),
    "a loop beside": (
        NEST + "        for k in range(n):\n            Y[k, 0] = 1\n",
        "loop k outside of the loops over blockIdx",
        "bind this part",
    ),
    "a condition around": ("        if n > 2:\n" + indent(NEST, "    "), "If", "bind"),
    **{
        f"memory of another thread, {name}": (
            f"""\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            s = T.alloc_buffer((4, 1), "int32", scope="local")
            for t in T.thread_binding(4, thread="threadIdx.x"):
                s[t, 0] = X[b, t]
                if {condition}:
                    Y[b, t] = s[1, 0]
                else:
                    Y[b, t] = {otherwise}
""",
            "local buffer s is allocated for a whole block",
            "let each thread use elements of its own index alone",
        )
        for name, condition, otherwise in (
            ("of two", "t < 2", "0"),
            ("wrong number", "t == 2", "0"),
            ("else", "t == 1", "s[1, 0]"),
        )
    },
    "a local buffer of a block": (
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            s = T.alloc_buffer((4,), "int32", scope="local")
            for t in T.thread_binding(4, thread="threadIdx.x"):
                s[t] = X[b, t]
            for t in T.thread_binding(4, thread="threadIdx.x"):
                Y[b, t] = s[3 - t]
""",
        "local buffer s is allocated for a whole block",
        "or make it shared",
    ),
    "blocks inside of other statements": (
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for k in range(4):
                for c in T.thread_binding(2, thread="blockIdx.y"):
                    Y[b, k] = X[b, k]
""",
        "a loop over blockIdx.y inside of statements that each block runs",
        "directly inside the other",
    ),
    "a grid that depends on a block": (
        """\
        for b in T.thread_binding(n, thread="blockIdx.x"):
            for c in T.thread_binding(b + 1, thread="blockIdx.y"):
                Y[b, 0] = X[b, 0]
""",
        "the number of blocks along blockIdx.y is known only inside",
        "sizes of the program's parameters",
    ),
    "a grid from memory": (
        """\
        for b in T.thread_binding(T.Cast("int64", X[0, 0]), thread="blockIdx.x"):
            Y[b, 0] = X[b, 0]
""",
        "the number of blocks along blockIdx.x is known only inside",
        "sizes of the program's parameters",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(name: str) -> None:
    body, message, hint = WRONG[name]
    with pytest.raises(UnsupportedError) as info:
        split_device(from_source(text(body)))
    (issue,) = info.value.issues
    assert message in issue.message and hint in issue.hint and issue.node == "f"


def test_sizes_are_parameters() -> None:
    mod = from_source(text(NEST, N.removesuffix(", n: T.int64")))
    with pytest.raises(UnsupportedError, match="size n is not a parameter"):
        split_device(mod)


def test_equal_inputs_give_equal_text() -> None:
    source = text(NEST + OTHER)
    first, second = (split_device(from_source(source)).script() for _ in range(2))
    assert first == second
