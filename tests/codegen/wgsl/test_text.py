"""WGSL as people read it, what stands beside it, and what is refused. Nothing here is run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.c_like.wgsl import WGSL, WgslFunction, emit_wgsl
from tensorkiln.codegen.c_like.wgsl_kernels import wgsl_kernels
from tensorkiln.codegen.c_like.wgsl_words import WORDS
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.script import R, from_source
from tensorkiln.target import Target
from tests.codegen.opencl.test_text import GRAPHS
from tests.codegen.wgsl.device import Program
from tests.schedule.gpu.runner import WEBGPU, device_passes, groups_for
from tests.transform.graphs import graph

GOLDEN = Path(__file__).parent / "golden"
SCRIPT = """
@T.prim_func
def {name}(X: T.Buffer(({n},), "{dtype}"), Y: T.Buffer(({n},), "{dtype}"), k: T.int64,
           m: T.int32):
    for i in T.thread_binding({blocks}, thread="blockIdx.{axis}"):
        for j in T.thread_binding({threads}, thread="threadIdx.{along}"):
{body}
"""
STORE = "Y[i * 4 + j] = X[i * 4 + j]"


def functions(*kernels: PrimFunc) -> list[PrimFunc]:
    mod = IRModule(kernels, "kernels")
    for p in device_passes(WEBGPU):
        mod = p(mod)
    return [f for f in mod.prim_funcs if f.is_device]


def scripted(
    body: str = STORE,
    name: str = "kernel_1",
    dtype: str = "float32",
    n: int | str = 8,
    blocks: int | str = 2,
    threads: int = 4,
    axis: str = "x",
    along: str = "x",
) -> list[PrimFunc]:
    lines = "\n".join(f"            {line}" for line in body.split("\n"))
    source = SCRIPT.format(
        name=name,
        dtype=dtype,
        n=n,
        blocks=blocks,
        threads=threads,
        axis=axis,
        along=along,
        body=lines,
    )
    return functions(*from_source(source).prim_funcs)


def emitted(*args: object, **options: object) -> WgslFunction:
    (f,) = emit_wgsl(scripted(*args, **options), WEBGPU)  # type: ignore[arg-type]
    return f


@pytest.mark.parametrize("name", GRAPHS)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    build, t = GRAPHS[name]
    (group,) = groups_for(graph(build, x=t), WEBGPU)
    files, _ = wgsl_kernels(functions(schedule_group(group, WEBGPU)), WEBGPU)
    text = "\n".join(f"// {a.file_name}\n{a.text()}" for a in files)
    path = GOLDEN / f"{name}.wgsl"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_what_stands_beside_the_text() -> None:
    uses = "Y[i * 4 + j] = X[i * 4 + j] + T.Cast('float32', m)"
    symbolic = replace(scripted(uses, n='"k"', blocks="k // 4 + 1")[0], name="second")
    files, described = wgsl_kernels([*scripted(), symbolic], WEBGPU, "gpu")
    assert [(a.codegen_id, a.loader, a.file_name, a.target_key) for a in files] == [
        ("webgpu", "webgpu", name, "gpu")
        for name in ("kernel_1_device.wgsl", "second.wgsl", "kernels.fmap.json")
    ]
    x = {"name": "X", "dtype": "float32", "access": "read"}
    buffers = [x, {"name": "Y", "dtype": "float32", "access": "read_write"}]
    assert json.loads(files[-1].text()) == {
        "format": 1,
        "functions": {
            "kernel_1_device": {
                "file": "kernel_1_device.wgsl",
                "buffers": buffers,
                "numbers": [],
                "grid": [2, 1, 1],
                "block": [4, 1, 1],
                "shared_bytes": 0,
            },
            "second": {
                "file": "second.wgsl",
                "buffers": buffers,
                "numbers": [{"name": "k", "dtype": "int32"}, {"name": "m", "dtype": "int32"}],
                "grid": [
                    "min(k // 4 + 1, 65535)",
                    "(k // 4 + 1 + 65534) // 65535",
                    1,
                ],
                "block": [4, 1, 1],
                "shared_bytes": 0,
            },
        },
    }
    assert described[0].params == ("buffer", "buffer")
    assert wgsl_kernels([], WEBGPU) == ([], ())


def test_literals() -> None:
    assert WGSL.integer(-(1 << 31), DType("int32")) == "i32(-2147483648)"
    assert WGSL.integer((1 << 32) - 1, DType("uint32")) == "4294967295u"
    assert WGSL.integer(200, DType("uint8")) == "200u"
    assert WGSL.real(1.0, DType("float16")) == "0x3c00u"
    assert WGSL.real(0.5, DType("float32")) == "0.5f"
    assert WGSL.real(float("-inf"), DType("float32")) == "-bitcast<f32>(infinity_bits)"


def test_infinity_and_nan_are_made_at_run_time() -> None:
    text = emitted("Y[j] = T.max(X[j], T.float32('-inf')) + T.float32('nan')").text
    assert "var<private> infinity_bits: u32 = 0x7f800000u;" in text
    assert "var<private> nan_bits: u32 = 0x7fc00000u;" in text
    assert "private" not in emitted().text


def test_comparisons_among_arguments_are_no_templates() -> None:
    """`select(a < b, c > d, e)` might be a template list."""
    text = emitted("Y[j] = T.select(T.select(X[0] < X[1], X[2] < X[3], X[4] > X[5]), X[6], X[7])")
    arguments = re.findall(r"select\((.*)\);", text.text)
    assert arguments and not re.search(r"(?<!\()X\[\d\] [<>]", arguments[0])


def test_a_comment_ends_with_its_line() -> None:
    (f,) = emit_wgsl(scripted(), WEBGPU, {"kernel_1_device": ["node 'a\nfn b() {}\u2028c\x00'"]})
    assert f.text.splitlines()[:2] == ["// kernel_1_device", "// node 'a fn b() {} c '"]


SHARED = """
@T.prim_func
def reversed(X: T.Buffer((64,), "{dtype}"), Y: T.Buffer((64,), "{dtype}")):
    for i in T.thread_binding(1, thread="blockIdx.x"):
        tile = T.alloc_buffer(({size},), "{dtype}", scope="shared")
        for j in T.thread_binding(64, thread="threadIdx.x"):
            tile[j] = X[j]
        for j in T.thread_binding(64, thread="threadIdx.x"):
            Y[j] = tile[63 - j]
"""


def shared(dtype: str, size: int) -> list[PrimFunc]:
    return functions(*from_source(SHARED.format(dtype=dtype, size=size)).prim_funcs)


def test_elements_of_shared_memory_take_words() -> None:
    (f,) = emit_wgsl(shared("int8", 65), WEBGPU)
    assert "var<workgroup> tile: array<i32, 65>;" in f.text and f.shared_bytes == 272


def test_barriers_are_of_storage_where_that_is_read_again() -> None:
    assert "storageBarrier" not in emit_wgsl(shared("int32", 64), WEBGPU)[0].text
    handed_on = shared("int32", 64)[0]
    source = SHARED.format(dtype="int32", size=64).replace("tile[j] = X[j]", "Y[j] = X[j]")
    source = source.replace("tile[63 - j]", "Y[63 - j]")
    (again,) = functions(*from_source(source).prim_funcs)
    assert handed_on.name == again.name
    assert "storageBarrier();" in emit_wgsl([again], WEBGPU)[0].text


MANY = "".join(f', x{k}: T.Buffer((4,), "float32")' for k in range(8))
SUM = " + ".join(f"x{k}[i]" for k in range(8))
NINE = f"""
@T.prim_func
def nine(y: T.Buffer((4,), "float32"){MANY}):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        y[i] = {SUM}
"""


def named(name: str) -> list[PrimFunc]:
    return [replace(f, name=name) for f in scripted()]


REFUSED: dict[str, tuple[Callable[[], list[PrimFunc]], str]] = {
    "a keyword": (lambda: named("loop"), "'loop' is a name that WGSL keeps"),
    "a reserved word": (lambda: named("module"), "'module' is a name that WGSL keeps"),
    "underscores": (lambda: named("__f"), "'__f' is a name that WGSL keeps"),
    "threads": (lambda: scripted(threads=512), "needs 512 threads in a block, and the target has"),
    "threads along z": (
        lambda: scripted(threads=128, along="z"),
        "needs 128 threads along z, and WebGPU allows 64",
    ),
    "blocks along y": (
        lambda: scripted(blocks=65536, axis="y"),
        "needs 65536 blocks along y, and WebGPU allows 65535",
    ),
    "shared memory": (
        lambda: shared("int8", 5000),
        "needs 20000 bytes of shared memory, and the target has 16384",
    ),
    "buffers": (
        lambda: functions(*from_source(NINE).prim_funcs),
        "needs 9 storage buffers, and the target has 8",
    ),
    "int64 tensors": (lambda: scripted(dtype="int64"), "buffer X is of type int64"),
    "uint64 tensors": (lambda: scripted(dtype="uint64"), "buffer X is of type uint64"),
    "float64 tensors": (lambda: scripted(dtype="float64"), "buffer X is of type float64"),
    "float64": (
        lambda: scripted("Y[j] = T.Cast('float32', T.Cast('float64', X[j]) * T.float64(0.1))"),
        "is of type float64, and the device has no numbers of 64 bits",
    ),
    "sums in int64": (
        lambda: scripted(
            "Y[j] = T.Cast('int32', (T.Cast('int64', X[j]) + T.Cast('int64', X[0])) // 2)",
            dtype="int32",
        ),
        "is computed of numbers that are no indices, in int64",
    ),
    "floats in int64": (
        lambda: scripted("Y[j] = T.Cast('float32', T.Cast('int64', X[j]))"),
        "converts to int64",
    ),
    "a product of lanes": (
        lambda: scripted("Y[j] = X[T.vector_reduce('mul', T.Broadcast(j, 8)) % 3]"),
        "multiplies 8 indices",
    ),
    "large numbers": (
        lambda: scripted("Y[j] = T.Cast('float32', j + 5000000000)"),
        "5000000000 takes more than 32 bits",
    ),
    "a C function": (
        lambda: scripted("T.call_extern('void', 'f', k)\n" + STORE),
        "calls the C function 'f'",
    ),
    "an assertion": (
        lambda: scripted('assert k > 0, "positive"\n' + STORE),
        "cannot report a failed assertion",
    ),
}


@pytest.mark.parametrize("refusal", REFUSED)
def test_refused_by_name(refusal: str) -> None:
    make, message = REFUSED[refusal]
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        emit_wgsl(make(), WEBGPU)


def test_limits_are_those_of_the_target() -> None:
    larger = Target({"kind": "webgpu", "max_num_threads": 512, "max_storage_buffers": 9})
    assert emit_wgsl(functions(*from_source(NINE).prim_funcs), larger)[0].block == (4, 1, 1)
    with pytest.raises(UnsupportedError, match="needs 512 threads along x, and WebGPU allows 256"):
        emit_wgsl(scripted(threads=512), larger)


def test_names_of_wgsl_are_left_alone() -> None:
    """Parameters and variables of a program may be called anything."""
    source = """
@T.prim_func
def copied(array: T.Buffer((8,), "float32"), numbers: T.Buffer((8,), "float32"), fn: T.int32):
    for workgroup in T.thread_binding(2, thread="blockIdx.x"):
        for thread_id in T.thread_binding(4, thread="threadIdx.x"):
            for let in range(1):
                for select in range(fn):
                    numbers[workgroup * 4 + thread_id] = T.exp(array[workgroup * 4 + thread_id])
"""
    (f,) = emit_wgsl(functions(*from_source(source).prim_funcs), WEBGPU)
    declared = re.findall(r"(?:let|var(?:<[^>]*>)?|fn) (\w+)", f.text)
    assert not set(declared) & (WORDS - {"numbers"}) and declared.count("numbers") == 1
    Program([f])


@tk.script.ir_module
class Model:
    @R.function
    def main(x: R.Tensor((6, 8), "float32"), i: R.Tensor((4,), "int64")) -> R.Tensor(
        (6, 4), "float32"
    ):
        y = R.softmax(x, axis=1)
        z = R.take(y, i, axis=1)
        return z


def test_a_model_gives_wgsl_and_no_library(tmp_path: Path) -> None:
    """What has numbers of 64 bits stays on the host; and a tar file is no library."""
    exe = tk.compile(Model, "webgpu")
    assert [(p.kernel, p.device) for p in exe.placement()] == [
        ("softmax", "webgpu"),
        ("bounds_check", "host"),
        ("take", "host"),
    ]
    for run in (exe.jit, lambda: exe.export_library(tmp_path / "net.so")):
        with pytest.raises(UnsupportedError, match=r"no library can run webgpu/webgpu/softmax"):
            run()
    assert exe.export_library(tmp_path / "net.tar").exists()
    exe.artifacts.save(tmp_path / "net")
    shader_path = tmp_path / "net" / "webgpu" / "webgpu" / "softmax_device.wgsl"
    assert "fn softmax_device(" in shader_path.read_text()
