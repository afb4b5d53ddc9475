"""Calls in the caller's stream: nothing is waited for, what has to come after it waits on the
device, and a call can be captured."""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import DeviceTensor, Executor, Module, load_module
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
from tensorkiln.script import from_source
from tests.cuda.driver_calls import Driver
from tests.cuda.emulator.build import build_all
from tests.cuda.lookalike import require_cuda
from tests.hosts.build import ROOT
from tests.runtime import device_library
from tests.runtime.device_library import expected
from tests.runtime.device_stand import build_driver, numbers
from tests.runtime.test_hosts import needs_ffi


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    require_cuda()
    path = tmp_path_factory.mktemp("streams") / "gpu.so"
    return load_module(device_library.build(path, kind="cuda"))


@pytest.fixture
def stream() -> Iterator[int]:
    driver = Driver()
    stream_handle = driver.make("cuStreamCreate", 1)  # waits for no other
    yield stream_handle.value or 0
    assert driver("cuStreamDestroy", stream_handle) == 0


def there(array: np.ndarray, index: int = 0) -> DeviceTensor:
    tensor = tk.nd.array(array, tk.cuda(index))
    assert isinstance(tensor, DeviceTensor)
    return tensor


class TorchStream:
    def __init__(self, cuda_stream: int):
        self.cuda_stream = cuda_stream


@pytest.mark.parametrize(
    "make", [int, TorchStream, lambda stream: 1, lambda stream: TorchStream(0)]
)
def test_results_wait_when_they_are_read(module: Module, stream: int, make: Any) -> None:
    executor = Executor(module)
    executor.set_stream(make(stream))
    x = there(numbers(1000))
    y = executor["there"](x)
    assert y._stream == (stream if make in (int, TorchStream) else 1)
    z = executor["there"](y)  # in the same stream: it need not wait
    assert y._stream and z._stream
    assert np.array_equal(z.numpy(), expected(expected(numbers(1000)))) and not z._stream
    assert executor["there"](x, out=y) is y and y._stream
    default_stream_tensor = tk.nd.from_dlpack(
        y
    )  # for the default stream, which waits on the device
    assert np.array_equal(default_stream_tensor.numpy(), expected(numbers(1000)))
    host = executor["main"](numbers(9))  # copies from and to the host are waited for
    assert np.array_equal(host, expected(numbers(9)))
    executor.set_stream(None)
    assert not executor["there"](x)._stream


def test_a_captured_call(module: Module, stream: int) -> None:
    """Once with these sizes before; then it runs whenever the graph is launched, on what its
    tensors hold then."""
    driver = Driver()
    executor = Executor(module)
    executor.set_stream(stream)
    x, y = there(numbers(100)), there(np.zeros(100, np.float32))
    run = executor["there"]
    run(x, out=y)
    y.wait()
    there(np.zeros(100, np.float32)).copyto(y)
    driver.begin_capture(stream)
    run(x, out=y)
    graph = driver.end_capture(stream)
    assert graph
    assert np.array_equal(y.numpy(), np.zeros(100, np.float32))
    ready = driver.instantiate(graph)
    for values in (numbers(100), numbers(100) * 3):
        there(values).copyto(x)
        driver.launch(ready, stream)
        y.queued_in(stream)
        assert np.array_equal(y.numpy(), expected(values))
    assert driver("cuGraphExecDestroy", ready) == 0
    assert driver("cuGraphDestroy", graph) == 0


def test_what_cannot_be_captured(module: Module, stream: int) -> None:
    """Memory for results between kernels, and copies from the host: by name."""
    driver = Driver()
    executor = Executor(module)
    executor.set_stream(stream)
    for words in ("run once with these sizes before", "copies from and to the host cannot be"):
        driver.begin_capture(stream)
        with pytest.raises((UserError, RuntimeError), match=words):
            executor["main"](numbers(4))
        if graph := driver.end_capture(stream):
            driver("cuGraphDestroy", graph)
        executor["main"](numbers(4))  # from now on it has the memory


def test_who_takes_a_stream(module: Module, stream: int) -> None:
    executor = Executor(module)
    for bad in ("1", 1.5, True, -1, object(), [stream]):
        with pytest.raises(TypeError, match="a stream is an address or has `cuda_stream`"):
            executor.set_stream(bad)
    keys = device_library.keys("cuda")
    two = Executor(module, {keys[1]: tk.cuda(1)}) if CUDA_DRIVER.count_devices() > 1 else None
    if two is not None:
        with pytest.raises(UserError, match="this executor uses cuda:0, cuda:1"):
            two.set_stream(stream)


# `main`: four kernels, with memory for what lies between them; `one`: a kernel. All parameters are
# on the device.
CHAIN = """
@tk.script.ir_module
class Module:
    @R.function
    def main(x: T("n"), w: T(8)) -> T("n"):
        y = R.softmax(R.linear(x, w), axis=1)
        z = R.softmax(R.linear(y, w), axis=1)
        return z

    @R.function
    def one(x: T("n")) -> T("n"):
        y = R.exp(x)
        return y
"""
CHAIN = re.sub(r"T\((.*?)\)", r'R.Tensor((\1, 8), "float32", device="gpu")', CHAIN)
W = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)


def rows(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)


def chain_of(x: np.ndarray) -> np.ndarray:
    """What CHAIN computes, in float64."""
    y: np.ndarray = x.astype(np.float64)
    for _ in range(2):
        y = np.exp(y @ W)
        y /= y.sum(axis=1, keepdims=True)
    return y


@pytest.fixture(scope="module")
def chain() -> tk.Executable:
    with pytest.warns(UserWarning, match="is the baseline"):
        target = {"devices": [{"kind": "cuda", "target_key": "gpu"}, "llvm"]}
        exe = tk.compile(from_source(CHAIN), target)
    if not require_cuda():
        build_all(exe.artifacts, Path(os.environ["LOOKALIKE_DIR"]))
    return exe


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The stand-in runs what is queued in streams late, and in turns."""
    monkeypatch.setenv("LOOKALIKE_LATE", "2")
    yield
    for index in range(CUDA_DRIVER.count_devices()):
        there(np.ones(1, np.float32), index)  # is freed, for which all that is queued has run
    monkeypatch.delenv("LOOKALIKE_LATE")


@pytest.fixture
def streams() -> Iterator[list[int]]:
    driver = Driver()
    handles = [driver.make("cuStreamCreate", 1) for _ in range(3)]
    yield [stream.value or 0 for stream in handles]
    for stream in handles:
        assert driver("cuStreamDestroy", stream) == 0


@pytest.mark.parametrize("graphs", [False, True])
def test_calls_in_several_streams_share_memory(
    chain: tk.Executable, streams: list[int], graphs: bool, in_turns: None
) -> None:
    """The workspace of an executor goes from stream to stream: each waits for the one before."""
    executor = chain.create_executor(graphs=graphs)
    w = there(W)
    sizes = (7, 5, 5, 3, 5, 7, 5)
    inputs = [there(rows(n)) for n in sizes]  # kept: memory that is freed is waited for
    outputs = [there(np.zeros((n, 8), np.float32)) for n in sizes]
    for turn, (x, y) in enumerate(zip(inputs, outputs, strict=True)):
        stream = [*streams, None][turn % 4]
        executor.set_stream(stream)
        executor["main"](x, w, out=y)
        assert y._stream == (stream or 0)
    for n, y in reversed([*zip(sizes, outputs, strict=True)]):
        np.testing.assert_allclose(y.numpy(), chain_of(rows(n)), rtol=1e-5)


def test_threads_with_streams_of_their_own(
    module: Module, streams: list[int], in_turns: None
) -> None:
    """Calls at once borrow workspaces, which other streams have used before."""
    executor = Executor(module)
    wrong = list[int]()

    def work(seed: int) -> None:
        own_executor = Executor(module)
        own_executor.set_stream(streams[seed])
        for i in range(40):
            n = 100 * seed + i + 1
            x = there(numbers(n))
            y = (own_executor if i % 2 else executor)["there"](x)
            z = executor["main"](numbers(n))
            if not (
                np.array_equal(y.numpy(), expected(numbers(n))) and np.array_equal(z, y.numpy())
            ):
                wrong.append(n)

    executor.set_stream(streams[0])
    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_from_stream_to_stream(module: Module, streams: list[int], in_turns: None) -> None:
    """A tensor that is still computed is used in another stream, also by DLPack's protocol."""
    first, second = Executor(module), Executor(module)
    first.set_stream(streams[0])
    second.set_stream(streams[1])
    x = numbers(300)
    start = there(x)  # kept, as all others: memory that is freed is waited for
    y, again, last = (first["there"](start) for _ in range(3))
    z = second["there"](y)
    assert np.array_equal(z.numpy(), expected(expected(x)))
    third = Executor(module)["there"](again)  # in the library's stream
    assert np.array_equal(third.numpy(), expected(expected(x)))
    assert np.array_equal(tk.nd.from_dlpack(last).numpy(), expected(x))  # in the default stream
    y = first["there"](start, out=y)
    for stream in (streams[2], 1, 2, -1, None):
        assert y.__dlpack__(stream=stream)


def test_an_input_from_another_stream_in_a_capture(
    module: Module, streams: list[int], in_turns: None
) -> None:
    """It cannot wait for an event outside, so the host waits."""
    driver = Driver()
    first, second = Executor(module), Executor(module)
    first.set_stream(streams[0])
    second.set_stream(streams[1])
    start, out = there(numbers(80)), there(np.zeros(80, np.float32))
    x = first["there"](start)
    driver.begin_capture(streams[1])
    second["there"](x, out=out)
    graph = ctypes.c_void_p()
    assert driver("cuStreamEndCapture", ctypes.c_void_p(streams[1]), ctypes.byref(graph)) == 0
    ready = driver.make("cuGraphInstantiateWithFlags", graph, ctypes.c_ulonglong(0))
    assert driver("cuGraphLaunch", ready, ctypes.c_void_p(streams[1])) == 0
    assert np.array_equal(out.numpy(), expected(expected(numbers(80))))
    assert driver("cuGraphExecDestroy", ready) == driver("cuGraphDestroy", graph) == 0


def test_a_first_run_while_another_stream_is_captured(module: Module, streams: list[int]) -> None:
    """With memory, copies from and to the host, and waits, none of which break the capture."""
    driver = Driver()
    first = Executor(module)
    first.set_stream(streams[0])
    x, out = there(numbers(80)), there(np.zeros(80, np.float32))
    first["there"](x, out=out)
    out.wait()
    there(np.zeros(80, np.float32)).copyto(out)
    inputs = numbers(50), numbers(70)
    want = [Executor(module)["main"](values).numpy() for values in inputs]
    driver.begin_capture(streams[0])
    first["there"](x, out=out)
    second = Executor(module)
    for k, values in enumerate(inputs):
        assert np.array_equal(second["main"](values).numpy(), want[k])
    del second
    graph = driver.end_capture(streams[0])
    assert graph
    ready = driver.instantiate(graph)
    driver.launch(ready, streams[0])
    out.queued_in(streams[0])
    assert np.array_equal(out.numpy(), expected(numbers(80)))
    assert driver("cuGraphExecDestroy", ready) == driver("cuGraphDestroy", graph) == 0


class Elsewhere:
    """A tensor of a library like torch, whose table of functions says what its stream is."""

    current = 0
    stream_requests: list[int]

    def __init__(self, tensor: DeviceTensor):
        self.tensor, self.stream_requests = tensor, []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, *, stream: int) -> object:
        self.stream_requests.append(stream)
        return self.tensor.__dlpack__(stream=stream)


_WorkStream = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p)


@_WorkStream
def _current(kind: int, index: int, place: int) -> int:
    assert (kind, index) == (2, 0)
    ctypes.c_void_p.from_address(place).value = Elsewhere.current
    return 0


_TABLES = (ctypes.c_uint64 * 14)()  # version 2.0, older: the second; version 1.3
_TABLES[0], _TABLES[1] = 2, ctypes.addressof(_TABLES) + 7 * 8
_TABLES[7], _TABLES[13] = 1 | 3 << 32, ctypes.cast(_current, ctypes.c_void_p).value or 0
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p] * 3
_NAME = ctypes.create_string_buffer(b"dlpack_exchange_api")


def test_the_stream_of_whose_tensors_come_in(
    module: Module, streams: list[int], in_turns: None
) -> None:
    """As torch's own functions would: queued in its current stream, and not waited for."""
    capsule = _new_capsule(ctypes.addressof(_TABLES), ctypes.addressof(_NAME), None)
    Elsewhere.__dlpack_c_exchange_api__ = capsule  # type: ignore[attr-defined]
    executor = Executor(module)
    for current, expected_stream in ((streams[0], streams[0]), (streams[1], streams[1]), (0, 1)):
        Elsewhere.current = current
        x = Elsewhere(there(numbers(60)))
        y = executor["there"](x)
        assert x.stream_requests == [expected_stream] and y._stream == expected_stream
        assert np.array_equal(y.numpy(), expected(numbers(60)))
        out = Elsewhere(there(np.zeros(60, np.float32)))
        assert executor["there"](
            x, out=out
        ) is out and x.stream_requests == out.stream_requests * 2 == [
            expected_stream,
            expected_stream,
        ]
        out.tensor.queued_in(expected_stream)
        assert np.array_equal(out.tensor.numpy(), expected(numbers(60)))
    executor.set_stream(streams[2])  # which goes first
    assert executor["there"](x)._stream == streams[2] and x.stream_requests[-1] == streams[2]
    executor.set_stream(None)
    assert not executor["there"](there(numbers(60)))._stream


def test_torch_says_what_its_stream_is() -> None:
    """Its table is read; built without CUDA it has no stream but the default one, or refuses."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from tensorkiln.runtime.streams import _work_stream

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return  # an older one, whose calls are waited for
    try:
        assert _work_stream(capsule, tk.cuda(0)) >= 1
    except RuntimeError as error:
        assert not torch.cuda.is_available() and str(error)


def test_a_stream_for_one_call(module: Module, stream: int) -> None:
    """kiln_executor_run_in_stream refuses functions that have no use for one."""
    executor, dll = Executor(module), module.library.dll
    executor["across"](numbers(4))
    tensors = (ctypes.c_void_p * 2)()
    views = [tk.nd.array(numbers(4)), tk.nd.empty((4,), "float32")]
    tensor_views = [tk.runtime.tensor.view_of(view, "x") for view in views]
    tensors[:] = [address for address, _ in tensor_views]

    def said(name: str) -> str:
        index, handle = module.library.index(name), executor._memory.handle
        code = dll.kiln_executor_run_in_stream(handle, index, tensors, 2, stream)
        return f"{code} {dll.kiln_last_error().decode()}" if code else "0"

    assert said("main") == said("across") == "0"
    assert np.array_equal(views[1].numpy(), expected(numbers(4)))
    assert said("host_only") == "7 host_only runs on no device that has streams of the host"
    if CUDA_DRIVER.count_devices() > 1:
        two = Executor(module, {device_library.keys("cuda")[1]: tk.cuda(1)})
        executor = two
        assert said("across") == (
            "7 across: the stream of a call is of one device, and it runs on cuda:0 and cuda:1"
        )


def test_streams_of_two_devices(module: Module, stream: int) -> None:
    if CUDA_DRIVER.count_devices() < 2:
        return  # a machine with one GPU
    executor = Executor(module, {device_library.keys("cuda")[1]: tk.cuda(1)})
    for bad in (tk.cuda(7), tk.cpu(), tk.opencl(0)):
        with pytest.raises(UserError, match="which uses cuda:0, cuda:1, received "):
            executor.set_stream(stream, bad)
    with pytest.raises(TypeError, match=r"a stream's device is tk.cuda\(i\), received int"):
        executor.set_stream(stream, 0)  # type: ignore[arg-type]
    executor.set_stream(stream, tk.cuda(0))
    executor.set_stream(1, tk.cuda(1))
    assert executor._memory.streams == {1: stream, 2: 1}
    assert np.array_equal(executor["across"](numbers(9)), expected(numbers(9)))
    assert executor["there"](there(numbers(9)))._stream == stream
    executor.set_stream(None)
    assert executor._memory.streams == {1: 0, 2: 0}


PROGRAM = """
import ctypes, json, os, sys
import numpy as np, tvm_ffi
import tensorkiln as tk
from tensorkiln.runtime import load_module, Executor
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
library, weights = sys.argv[1:]
cu = ctypes.CDLL("libcuda.so.1")
with CUDA_DRIVER.context_of(0).current():
    streams = [ctypes.c_void_p() for _ in range(2)]
    for stream in streams:
        assert cu.cuStreamCreate(ctypes.byref(stream), 1) == 0
    device = tvm_ffi.device("cuda:0")
    own = tvm_ffi.load_module(library)
    main, one = own["main"], own["one"]
    w = tk.nd.array(np.array(json.load(open(weights)), "float32"), tk.cuda(0))
    first = np.arange(48, dtype="float32").reshape(6, 8) / 48
    x = [tk.nd.array(first + i, tk.cuda(0)) for i in range(4)]
    y = [tk.nd.array(np.zeros((6, 8), "float32"), tk.cuda(0)) for i in range(4)]
    f = tvm_ffi.from_dlpack
    given = [(f(a), f(w), f(b)) for a, b in zip(x, y)]
    before = []
    for i, stream in enumerate((streams[0], streams[1], streams[0])):
        with tvm_ffi.use_raw_stream(device, stream.value):
            main(*given[i])
        before.append(not y[i].numpy().any())  # nothing has run in the stream yet
    main(*given[3])                            # waits
    found = [y[3].numpy().tolist()]
    for stream in streams:
        assert cu.cuStreamSynchronize(stream) == 0
    executor = Executor(load_module(library))
    with tvm_ffi.use_raw_stream(device, streams[1].value):
        z = executor["main"](x[0], w)
        in_stream = z._stream == streams[1].value
    found += [t.numpy().tolist() for t in (*y[:3], z)]
    with tvm_ffi.use_raw_stream(device, streams[0].value):
        assert cu.cuStreamBeginCapture(streams[0], 0) == 0
        one(f(x[0]), f(y[0]))                  # has no memory between kernels
        try:
            main(*given[0])
            said = ""
        except Exception as error:
            said = str(error)
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        assert cu.cuStreamEndCapture(streams[0], ctypes.byref(graph)) == 0
        assert cu.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_uint64(0)) == 0
        assert cu.cuGraphLaunch(ready, streams[0]) == cu.cuStreamSynchronize(streams[0]) == 0
        found.append(y[0].numpy().tolist())
print(json.dumps([before, in_stream, found, said]))
"""


@needs_ffi
def test_the_stream_of_tvm_ffi(chain: tk.Executable, tmp_path: Path) -> None:
    """For its own calls and for executors, in this thread; always by the stand-in."""
    build_driver(tmp_path, "cuda")
    build_all(chain.artifacts, tmp_path)
    library = chain.export_library(tmp_path / "chain.so")
    (tmp_path / "weights.json").write_text(json.dumps(W.tolist()))
    places = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    place = {"PYTHONPATH": places, "LD_LIBRARY_PATH": str(tmp_path)}
    place |= {"LOOKALIKE_DIR": str(tmp_path), "LOOKALIKE_LATE": "2"}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, library, tmp_path / "weights.json"],
        env={**os.environ, **place},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    before, in_stream, results, message = json.loads(process.stdout)
    assert before == [True] * 3 and in_stream
    x = [np.arange(48).reshape(6, 8) / 48 + i for i in range(4)]
    expected_rows = [*(chain_of(x[i]) for i in (3, 0, 1, 2, 0)), np.exp(x[0])]
    for have, want in zip(results, expected_rows, strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5)
    assert "a graph of the host's would keep memory for intermediate results" in message
