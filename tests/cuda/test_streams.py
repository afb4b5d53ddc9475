"""An executor in the caller's stream: nothing is waited for, and a call can be captured."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import DeviceTensor, Executor, Module, load_module
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
from tests.cuda.driver_calls import Driver
from tests.cuda.lookalike import require_cuda
from tests.runtime import device_library
from tests.runtime.device_library import expected
from tests.runtime.device_stand import numbers


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Module:
    require_cuda()
    path = tmp_path_factory.mktemp("streams") / "gpu.so"
    return load_module(device_library.build(path, kind="cuda"))


@pytest.fixture
def stream() -> Iterator[int]:
    driver = Driver()
    made = driver.make("cuStreamCreate", 1)  # waits for no other
    yield made.value or 0
    assert driver("cuStreamDestroy", made) == 0


def there(array: np.ndarray) -> DeviceTensor:
    made = tk.nd.array(array, tk.cuda(0))
    assert isinstance(made, DeviceTensor)
    return made


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
    other = tk.nd.from_dlpack(y)  # for the default stream: only there it need not wait
    assert np.array_equal(other.numpy(), expected(numbers(1000))) and y._stream in (0, 1)
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


def test_one_call_at_a_time(module: Module, stream: int) -> None:
    """Two threads in one executor: each call is right, or is refused."""
    executor = Executor(module)
    executor.set_stream(stream)
    wrong, refused, done = list[int](), list[str](), list[int]()

    def work(seed: int) -> None:
        for i in range(200):
            try:
                y = executor["main"](numbers(500))
            except UserError as error:
                refused.append(error.message)
                continue
            done.append(i)
            if not np.array_equal(y, expected(numbers(500))):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and done and all("one call at a time" in words for words in refused)
