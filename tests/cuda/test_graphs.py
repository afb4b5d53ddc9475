"""Runs as CUDA graphs: their results are those of runs without, to the bit, whatever has moved;
what was made, updated and launched is counted."""

from __future__ import annotations

import ctypes
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.external import External
from tensorkiln.ir.expr import IntImm, Var
from tensorkiln.ir.relax import tensor
from tensorkiln.kernels.case import Build, rand
from tensorkiln.runtime import Executor, Module, load_module
from tests.cuda.emulator.build import build_all
from tests.cuda.lookalike import require_cuda
from tests.cuda.test_streams import Driver, there
from tests.devices.test_opencl import NETWORKS, _block
from tests.devices.test_opencl import _emit as emit_norms
from tests.runtime import device_library
from tests.runtime.device_library import PTX, expected
from tests.runtime.device_stand import Stand, build_kernels, numbers
from tests.transform.graphs import graph

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")
HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    require_cuda()
    path = tmp_path_factory.mktemp("graphs") / "gpu.so"
    return load_module(device_library.build(path, kind="cuda"))


def counts(executor: Executor, before: Mapping[str, int] | None = None) -> dict[str, int]:
    """The counts that are not zero, from `before` on."""
    old = before or {}
    differences = {name: n - old.get(name, 0) for name, n in executor.graph_counts.items()}
    return {name: n for name, n in differences.items() if n}


# ---- compiled models -----------------------------------------------------------------------------


def _mlp(g: Any, x: Any) -> Any:
    for inner, outer in ((20, 33), (33, 17), (17, 5)):
        x = g.relu(g.linear(x, rand(inner, outer), rand(outer)))
    return g.softmax(x, axis=1)


def _every_class(g: Any, x: Any) -> Any:
    """Convolutions, pooling, movement, sums, norms, attention, products."""
    y = g.relu(g.conv2d(x, rand(8, 3, 3, 3), rand(8), padding=(1, 1, 1, 1)))
    y = g.conv2d(y, rand(8, 1, 3, 3), rand(8), groups=8)
    y = g.max_pool2d(y, kernel=(2, 2), strides=(2, 2))
    y = g.concat(y, g.exp(y), axis=1)
    y = g.transpose(y, axes=(0, 2, 3, 1))
    y = g.layer_norm(g.reshape(y, shape=(x.type.shape[0], 9, 16)), rand(16), rand(16))
    y = g.reshape(y, shape=(x.type.shape[0], 1, 9, 16))
    y = g.attention(y, y, y, scale=0.25, causal=True)
    return g.softmax(g.linear(g.mean(y, axes=(1, 2)), rand(16, 6), rand(6)), axis=1)


MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "mlp": (_mlp, (20,)),
    "every_class": (_every_class, (3, 8, 8)),
}


def compiled(build: Build, shape: tuple[int, ...], target: Any = "cuda") -> tk.Executable:
    """A model with a symbolic batch, and what the stand-in runs of it."""
    exe = tk.compile(graph(build, x=tensor((Var("n"), *shape), "float32")), target)
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    return exe


@pytest.mark.parametrize("name", MODELS)
def test_batches_of_models(name: str) -> None:
    """The first run of a batch makes its graph; storages that have moved are updates."""
    build, shape = MODELS[name]
    exe = compiled(build, shape)
    plain, graphs = exe.create_executor(), exe.create_executor(graphs=True)
    for turn, n in enumerate((1, 5, 2, 1, 5, 2, 2)):
        x = np.random.default_rng(turn).normal(size=(n, *shape)).astype(np.float32)
        before = graphs.graph_counts
        have, want = graphs["main"](x).numpy(), plain["main"](x).numpy()
        assert have.tobytes() == want.tobytes()
        count_changes = counts(graphs, before)
        assert count_changes.pop("launched") == 1 and count_changes.pop("made", 0) == (turn < 3)
        assert set(count_changes) <= {"updated"} and (turn == 3 or not count_changes)
        assert (
            require_cuda() or turn != 3 or count_changes["updated"] >= 3
        )  # grown for 5, elsewhere
    assert not counts(plain)


def test_the_host_in_between() -> None:
    """What the device launches before and after it are graphs of their own."""

    def build(g: Any, x: Any) -> Any:
        y = g.softmax(g.linear(x, rand(12, 9)), axis=1)
        return g.softmax(g.linear(g.exp(y), rand(9, 7)), axis=1)

    gpu = {"kind": "cuda", "operators": ["linear", "softmax"]}
    exe = compiled(build, (12,), {"devices": [gpu, "llvm"]})
    assert {p.device for p in exe.placement()} == {"cuda", "llvm"}
    plain, graphs = exe.create_executor(), exe.create_executor(graphs=True)
    for turn in range(3):
        x = np.random.default_rng(turn).normal(size=(4, 12)).astype(np.float32)
        assert graphs["main"](x).numpy().tobytes() == plain["main"](x).numpy().tobytes()
    assert counts(graphs) == {"launched": 6, "made": 2, "host": 3}


def test_an_external_in_between() -> None:
    """Its function runs on the host, between the device's products."""
    norms = External("norms", lambda call, target: call.op == "layer_norm", emit_norms)
    gpu = {"kind": "cuda", "operators": ["linear", "gelu", "softmax"]}
    exe = tk.compile(
        graph(_block, x=(10, 24)), {"devices": [gpu, "llvm"]}, externals=[norms], name="net"
    )
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    assert {"gpu_contraction", "external:norms"} <= {p.kernel_class for p in exe.placement()}
    plain, graphs = exe.create_executor(), exe.create_executor(graphs=True)
    for turn in range(2):
        x = np.random.default_rng(turn).normal(size=(10, 24)).astype(np.float32)
        before = graphs.graph_counts
        assert graphs["main"](x).numpy().tobytes() == plain["main"](x).numpy().tobytes()
        count_changes = counts(graphs, before)
        assert count_changes["host"] >= 1 and (turn == 0 or "made" not in count_changes)


@pytest.mark.conformance
@pytest.mark.parametrize("name", NETWORKS)
def test_every_kernel_before_others(name: str) -> None:
    """Each network of OpenCL's tests, then sums and a product."""
    build, shape = NETWORKS[name]

    def longer(g: Any, x: Any) -> Any:
        y = build(g, x)
        size = math.prod(cast("IntImm", n).value for n in y.type.shape)
        return g.linear(g.softmax(g.reshape(y, shape=(1, size)), axis=1), rand(size, 3))

    exe = tk.compile(graph(longer, x=shape), "cuda")
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    plain, graphs = exe.create_executor(), exe.create_executor(graphs=True)
    for turn in range(2):
        x = np.random.default_rng(turn).normal(size=shape).astype(np.float32)
        assert graphs["main"](x).numpy().tobytes() == plain["main"](x).numpy().tobytes()
    assert counts(graphs) == {"launched": 2, "made": 1}


# ---- the library written by hand -----------------------------------------------------------------


def test_only_what_has_changed_is_updated(module: Module) -> None:
    """`there` adds x and weights into y, then scales y: two nodes."""
    executor = Executor(module, graphs=True)
    run, x = executor["there"], there(numbers(100))
    y, z = there(np.zeros(100, np.float32)), there(np.zeros(100, np.float32))
    steps = [
        (x, y, {"launched": 1, "made": 1}),
        (x, y, {"launched": 1}),
        (x, z, {"launched": 1, "updated": 2}),
        (y, z, {"launched": 1, "updated": 1}),
        (y, z, {"launched": 1}),
    ]
    for source, target, expected_counts in steps:
        before = executor.graph_counts
        values = source.numpy()
        run(source, out=target)
        assert counts(executor, before) == expected_counts
        assert np.array_equal(target.numpy(), expected(values))


def test_sixteen_runs_are_kept(module: Module) -> None:
    executor = Executor(module, graphs=True)

    def run(n: int) -> dict[str, int]:
        before = executor.graph_counts
        assert np.array_equal(executor["main"](numbers(n)), expected(numbers(n)))
        return counts(executor, before)

    executor["main"](numbers(1000))  # so that the memory does not move
    for n in range(1, 16):
        assert run(n) == {"launched": 1, "made": 1}
    for n in (1000, *range(1, 16)):
        assert run(n) == {"launched": 1}
    assert run(16) == {"launched": 1, "made": 1, "dropped": 1}  # that of 1000
    assert run(2) == {"launched": 1}
    assert run(1000) == {"launched": 1, "made": 1, "dropped": 1}  # that of 1
    assert run(2) == {"launched": 1} and run(1)["made"] == 1


def test_a_launch_by_itself_and_other_devices(module: Module) -> None:
    """`across`: a copy and a launch on device 1, a launch on device 2."""
    executor = Executor(module, graphs=True)
    for turn in range(3):
        assert np.array_equal(executor["across"](numbers(50)), expected(numbers(50)))
        assert counts(executor) == {"launched": turn + 1, "made": 1, "single": turn + 1}
    assert np.array_equal(executor["host_only"](numbers(3)), numbers(3) + 1)
    with pytest.raises(TypeError, match="scale: argument 0 is not an address of device 1"):
        executor["stray"](numbers(3))
    assert np.array_equal(executor["across"](numbers(50)), expected(numbers(50)))


def test_another_device_with_weights_elsewhere(module: Module) -> None:
    if tk.runtime.cuda_memory.CUDA_DRIVER.count_devices() < 2:
        return  # a machine with one GPU
    executor = Executor(module, graphs=True)
    choose = module.library.dll.kiln_executor_set_device
    for index in (0, 1, 1, 0):
        assert choose(executor._memory.handle, 1, index, None) == 0
        assert np.array_equal(executor["main"](numbers(70)), expected(numbers(70)))
    assert counts(executor) == {"launched": 4, "made": 3}  # a device's graphs end with its queue


def test_graphs_are_switched_on_and_off(module: Module) -> None:
    executor = Executor(module)
    for turn, on in enumerate((False, True, False, True)):
        executor.set_graphs(on)
        assert np.array_equal(executor["main"](numbers(30)), expected(numbers(30)))
        assert executor.graph_counts["launched"] == (turn + 1) // 2
    assert executor.graph_counts["made"] == 1  # kept meanwhile


def test_a_run_in_the_callers_graph(module: Module) -> None:
    """Its launches become the caller's, and ours are there again afterwards."""
    driver = Driver()
    stream = driver.make("cuStreamCreate", 1).value or 0
    executor = Executor(module, graphs=True)
    executor.set_stream(stream)
    x, y = there(numbers(100)), there(np.zeros(100, np.float32))
    executor["there"](x, out=y)
    assert np.array_equal(y.numpy(), expected(numbers(100)))
    there(np.zeros(100, np.float32)).copyto(y)
    assert driver("cuStreamBeginCapture", ctypes.c_void_p(stream), 0) == 0
    executor["there"](x, out=y)
    captured = ctypes.c_void_p()
    assert driver("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(captured)) == 0
    assert counts(executor) == {"launched": 1, "made": 1, "captured": 1}
    assert not y.numpy().any()
    ready = driver.make("cuGraphInstantiateWithFlags", captured, ctypes.c_ulonglong(0))
    for scale in (1, 3):
        there(numbers(100) * scale).copyto(x)
        assert driver("cuGraphLaunch", ready, ctypes.c_void_p(stream)) == 0
        y.queued_in(stream)
        assert np.array_equal(y.numpy(), expected(numbers(100) * np.float32(scale)))
    executor["there"](x, out=y)
    y.wait()
    assert counts(executor) == {"launched": 2, "made": 1, "captured": 1}
    for name, handle in (("cuGraphExecDestroy", ready), ("cuGraphDestroy", captured)):
        assert driver(name, handle) == 0
    executor.set_stream(None)
    assert driver("cuStreamDestroy", ctypes.c_void_p(stream)) == 0


def test_threads(module: Module) -> None:
    """Some share an executor, so that calls borrow workspaces, whose graphs are their own."""
    executors = [Executor(module, graphs=True) for _ in range(2)]
    wrong = list[int]()

    def work(seed: int) -> None:
        run = executors[seed % 2]["main"]
        for i in range(60):
            x = numbers(1 + (7 * seed + i) % 23)
            if not np.array_equal(run(x), expected(x)):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and sum(e.graph_counts["launched"] for e in executors) == 240


def test_values_of_many_bytes(tmp_path: Path) -> None:
    """A kernel's parameter of 128 bytes, as a descriptor of memory is; the last four change in
    every other call."""
    code = PTX.replace(".param .f32 scale_factor", ".param .align 64 .b8 scale_factor[128]")
    code = code.replace("[scale_factor]", "[scale_factor+124]")
    if not require_cuda():
        folder = Path(os.environ["LOOKALIKE_DIR"])
        build_kernels(folder, code, HERE / "kernels.c", "-DFACTOR_AT=31")
    library = device_library.build(
        tmp_path / "gpu.so",
        {"kernels.sm_80.ptx": code},
        "cuda",
        MORE="static int turn;",
        FACTOR_BYTES="128",
        FACTOR=".bytes = (const float[32]){[31] = factor + (float)(turn++ / 2 % 2)}",
    )
    executor = Executor(load_module(library), graphs=True)
    x = numbers(40)
    for factor, updated in ((2, 0), (2, 0), (3, 1), (3, 0), (2, 1)):
        before = executor.graph_counts
        have = executor["main"](x)
        assert np.array_equal(have, (expected(x) / np.float32(2)) * np.float32(factor))
        assert counts(executor, before).get("updated", 0) == updated


def test_closed_while_graphs_are_kept(tmp_path: Path) -> None:
    require_cuda()
    module = load_module(device_library.build(tmp_path / "gpu.so", kind="cuda"))
    executor = Executor(module, graphs=True)
    for n in (3, 5):
        executor["main"](numbers(n))
    module.close()
    with pytest.raises(UserError, match="is closed"):
        executor["main"](numbers(3))


# ---- refusals and failures -----------------------------------------------------------------------


def test_who_has_graphs(module: Module, tmp_path: Path) -> None:
    on_host = tk.compile(graph(lambda g, x: g.exp(x), x=(3,)))
    with pytest.raises(UserError, match="graphs are of CUDA devices; this executor uses cpu:0"):
        on_host.create_executor(graphs=True)
    assert not any(on_host.create_executor().graph_counts.values())
    executor = Executor(module)
    for bad in (1, "yes", None):
        with pytest.raises(TypeError, match="graphs: expected True or False, received "):
            executor.set_graphs(bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="graphs: expected True or False, received "):
            Executor(module, graphs=bad)  # type: ignore[arg-type]
    opencl_library = ctypes.CDLL(str(device_library.build(tmp_path / "opencl.so")))
    opencl_library.kiln_last_error.restype = ctypes.c_char_p
    executor_handle = ctypes.c_void_p()
    assert opencl_library.kiln_executor_create(ctypes.byref(executor_handle)) == 0
    assert opencl_library.kiln_executor_set_graphs(executor_handle, 1) == 7
    assert opencl_library.kiln_last_error() == (
        b"library gpu has no device whose runs can be graphs: graphs are of cuda, its devices are "
        b"opencl, opencl"
    )
    assert opencl_library.kiln_executor_set_graphs(executor_handle, 0) == 0
    assert opencl_library.kiln_executor_set_graphs(None, 1) == 6
    count = opencl_library.kiln_executor_graph_count
    count.restype = ctypes.c_int64
    assert [count(executor_handle, i) for i in (-1, 0, 6, 7)] == [-1, 0, 0, -1] and count(
        None, 0
    ) == -1
    opencl_library.kiln_executor_destroy(executor_handle)


PROGRAM = """
import ctypes, json, sys
import numpy as np
from tensorkiln.runtime import load_module, Executor
lib = load_module(sys.argv[1])
said = []
try:
    executor = Executor(lib, graphs=True)
except RuntimeError as error:
    print(json.dumps([[error.code, str(error)]]))
    sys.exit()
x = np.ones(9, "float32")
want = Executor(lib)["main"](x).numpy()
for size in [int(n) for n in sys.argv[3:]]:
    try:
        y = executor[sys.argv[2]](np.ones(size, "float32")).numpy()
        said.append(["ok", bool(np.array_equal(y[:9], want[:size]))])
    except RuntimeError as error:
        said.append([error.code, str(error)])
    said[-1].append(executor.graph_counts["made"])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    return Stand(tmp_path_factory.mktemp("plain"), "cuda", "none")


def said(stand: Stand, *sizes: int, function: str = "main", **environment: str) -> list[list[Any]]:
    """What the stand-in's failures look like to a program that runs with graphs, size by size."""
    place = {"PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": str(stand.folder)}
    place["LOOKALIKE_DIR"] = str(stand.folder)
    settings = {f"LOOKALIKE_{k}": v for k, v in environment.items()}
    command = [sys.executable, "-c", PROGRAM, str(stand.library), function, *map(str, sizes)]
    process = subprocess.run(
        command, env={**os.environ, **place, **settings}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    rows: list[list[Any]] = json.loads(process.stdout)
    return rows


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("cuGraphCreate", "cuGraphCreate for main failed with"),
        ("cuGraphAddKernelNode", "a graph's node for add failed with"),
        ("cuGraphInstantiateWithFlags", "cuGraphInstantiate for main failed with"),
        ("cuGraphLaunch", "the launch of a graph for main failed with"),
    ],
)
def test_a_graph_that_fails_is_made_anew(stand: Stand, call: str, words: str) -> None:
    failed, second, third = said(stand, 9, 9, 9, FAIL=f"{call}:1:1")
    assert failed[0] == "device-launch" and f"cuda:0 (Look-alike): {words}" in failed[1]
    graphs_made = 2 if call == "cuGraphLaunch" else 1
    assert second == ["ok", True, graphs_made] and third == ["ok", True, graphs_made]


def test_an_update_that_fails(stand: Stand) -> None:
    """9, then more, so that memory moves, then 9 again."""
    first, larger, failed, again = said(
        stand, 9, 20000, 9, 9, FAIL="cuGraphExecKernelNodeSetParams:1:1"
    )
    assert first == ["ok", True, 1] and larger == ["ok", True, 2]
    assert failed[0] == "device-launch" and failed[2] == 2
    assert "an update of a graph's node for add failed with CUDA_ERROR_INVALID_VALUE" in failed[1]
    assert again == ["ok", True, 3]


def test_a_copy_of_other_memory_that_is_refused(stand: Stand) -> None:
    """As between memory of two kinds: the run makes its graph anew. `across` copies in its
    workspace."""
    fail = "cuGraphExecMemcpyNodeSetParams:1:1"
    steps = said(stand, 9, 20000, 9, 9, function="across", FAIL=fail)
    assert steps == [["ok", True, graphs_made] for graphs_made in (1, 2, 3, 3)]


def test_drivers_that_have_no_graphs(stand: Stand) -> None:
    for name in ("cuGraphCreate", "cuGraphAddKernelNode", "cuGraphLaunch"):
        ((code, words),) = said(stand, 9, LACKS=name)
        assert code == "no-driver"
        assert f"has no function {name}: graphs need the driver of CUDA 11.4 or newer" in words
    ((code, words),) = said(stand, 9, VERSION="11030")
    assert code == "no-driver" and "has no function cuGraphInstantiateWithFlags" in words
    assert said(stand, 9, 9, VERSION="11040") == [["ok", True, 1], ["ok", True, 1]]
