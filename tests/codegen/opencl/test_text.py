"""OpenCL C as people read it, what stands beside it, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like.opencl import OPENCL, emit_opencl
from tensorkiln.codegen.c_like.opencl_kernels import opencl_kernels
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import TensorType
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernels.case import Build, rand
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tests.codegen.opencl.device import device
from tests.schedule.battery import typed
from tests.schedule.gpu.runner import OPENCL as TARGET
from tests.schedule.gpu.runner import device_passes, groups_for
from tests.transform.graphs import graph

GOLDEN = Path(__file__).parent / "golden"
GRAPHS: dict[str, tuple[Build, TensorType]] = {
    "add_relu": (lambda g, x: g.relu(g.add(x, 1.0)), typed("float32", 6, 50)),
    "cast": (lambda g, x: g.cast(x, dtype="float16"), typed("bool", 5, 7)),
    "softmax": (lambda g, x: g.softmax(x, axis=-1), typed("float32", 3, 100)),
    "linear": (lambda g, x: g.relu(g.linear(x, rand(9, 20), rand(20))), typed("float32", 70, 9)),
}
SCRIPT = """
@T.prim_func
def {name}(X: T.Buffer((8,), "{dtype}"), Y: T.Buffer((8,), "{dtype}"), on: T.bool, k: T.int64):
    for i in T.thread_binding(2, thread="blockIdx.x"):
        for j in T.thread_binding({threads}, thread="threadIdx.x"):
{body}
"""
STORE = "            Y[i * 4 + j] = X[i * 4 + j]"


def functions(*kernels: PrimFunc) -> list[PrimFunc]:
    mod = IRModule(kernels, "kernels")
    for p in device_passes(TARGET):
        mod = p(mod)
    return [f for f in mod.prim_funcs if f.is_device]


def scripted(
    name: str = "kernel_1", dtype: str = "float32", threads: int = 4, body: str = STORE
) -> list[PrimFunc]:
    source = SCRIPT.format(name=name, dtype=dtype, threads=threads, body=body)
    return functions(*from_source(source).prim_funcs)


@pytest.mark.parametrize("name", GRAPHS)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    build, t = GRAPHS[name]
    (group,) = groups_for(graph(build, x=t))
    files, _ = opencl_kernels(functions(schedule_group(group, TARGET)), TARGET)
    text = "\n".join(f"// {a.file_name}\n{a.text()}" for a in files)
    path = GOLDEN / f"{name}.cl"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_what_stands_beside_the_text() -> None:
    scalars = STORE.replace("X[i * 4 + j]", 'T.Cast("float64", k) + T.Cast("float64", on)')
    files, _ = opencl_kernels(
        [*scripted("first"), *scripted("second", "float64", body=scalars)], TARGET, "gpu"
    )
    assert [(a.codegen_id, a.loader, a.file_name, a.target_key) for a in files] == [
        ("opencl", "opencl", "kernels.cl", "gpu"),
        ("opencl", "opencl", "kernels.fmap.json", "gpu"),
    ]
    assert json.loads(files[1].text()) == {
        "format": 1,
        "functions": {
            "first_device": {
                "params": ["buffer", "buffer"],
                "block": [4, 1, 1],
                "shared_bytes": 0,
                "extensions": [],
            },
            "second_device": {
                "params": ["buffer", "bool", "int64"],
                "block": [4, 1, 1],
                "shared_bytes": 0,
                "extensions": ["cl_khr_fp64"],
            },
        },
    }
    assert opencl_kernels([], TARGET) == ([], ())


def test_literals() -> None:
    assert OPENCL.integer(-(1 << 63), DType("int64")) == "LONG_MIN"
    assert OPENCL.integer(-(1 << 31), DType("int32")) == "INT_MIN"
    assert OPENCL.integer(1 << 40, DType("int64")) == "1099511627776L"
    assert OPENCL.integer((1 << 64) - 1, DType("uint64")) == "18446744073709551615UL"
    assert OPENCL.real(float("inf"), DType("float32")) == "INFINITY"


REFUSED = {
    "a name of OpenCL's": (lambda: scripted_device("exp"), "'exp' is a name that OpenCL C keeps"),
    "a vector type": (lambda: scripted_device("float4"), "'float4' is a name"),
    "a keyword": (lambda: scripted_device("kernel"), "'kernel' is a name"),
    "threads": (lambda: scripted(threads=512), "needs 512 threads in a block, and the target has"),
    "a C function": (
        lambda: scripted(body="            T.call_extern('void', 'f', k)\n" + STORE),
        "calls the C function 'f'",
    ),
    "an assertion": (
        lambda: scripted(body='            assert k > 0, "positive"\n' + STORE),
        "cannot report a failed assertion",
    ),
    "wide vectors": (
        lambda: scripted(
            body="            for l in T.vectorized(32):\n"
            "                Y[(l + j + i) % 8] = X[l // 4]"
        ),
        "a vector of 32",
    ),
}


def scripted_device(name: str) -> list[PrimFunc]:
    return [replace(f, name=name) for f in scripted()]


@pytest.mark.parametrize("refusal", REFUSED)
def test_refused_by_name(refusal: str) -> None:
    make, message = REFUSED[refusal]
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        emit_opencl(make(), TARGET)


def test_float64_needs_a_device_that_has_it() -> None:
    with pytest.raises(UnsupportedError, match="computes in float64, which the target does not"):
        emit_opencl(scripted(dtype="float64"), Target("opencl"))
    opencl = emit_opencl(scripted(dtype="float16"), Target("opencl"))
    assert opencl.functions[0].extensions == () and "double" not in opencl.text


def test_names_of_opencl_are_left_alone() -> None:
    """Parameters and variables of a program may be called anything."""
    source = """
@T.prim_func
def copied(float4: T.Buffer((8,), "float32"), as_int: T.Buffer((8,), "float32")):
    for get_group_id in T.thread_binding(2, thread="blockIdx.x"):
        for half in T.thread_binding(4, thread="threadIdx.x"):
            if half == 0:
                for vload4 in range(1):
                    for long in T.vectorized(4):
                        as_int[get_group_id * 4 + long] = T.exp(
                            float4[get_group_id * 4 + long + vload4]
                        )
"""
    opencl = emit_opencl(functions(*from_source(source).prim_funcs), TARGET)
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    device().build(opencl.text).run("copied_device", (2, 1, 1), (4, 1, 1), [x, y])
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)


def test_equal_inputs_give_equal_text() -> None:
    build, t = GRAPHS["softmax"]
    texts = []
    for _ in range(2):
        (group,) = groups_for(graph(build, x=t))
        texts.append(emit_opencl(functions(schedule_group(group, TARGET)), TARGET).text)
    assert texts[0] == texts[1]
