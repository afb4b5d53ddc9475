"""Tensors in the memory of a device: copies, and DLPack without one."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import DeviceTensor
from tensorkiln.runtime.device import Device
from tensorkiln.runtime.device_drivers import driver_of
from tensorkiln.runtime.failures import DeviceError, DeviceMemoryError
from tensorkiln.runtime.tensor import DLTensor, capsule_pointer
from tests.capabilities import opencl_devices
from tests.cuda.lookalike import require_cuda

DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 bfloat16"
SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (3, 4), (2, 0, 3), (1, 2, 3, 4, 5)]


HERE: list[Device] = [tk.opencl(0)]  # the device of the running test


def here() -> Device:
    return HERE[0]


@pytest.fixture(autouse=True, params=["opencl", "cuda"])
def _device(request: pytest.FixtureRequest) -> None:
    if request.param == "opencl" and not opencl_devices():
        pytest.skip("no device of OpenCL")
    if request.param == "cuda":
        require_cuda()
    HERE[0] = getattr(tk, request.param)(0)


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    from tensorkiln.runtime.tensor import dtype_named

    numbers = np.random.default_rng(len(shape)).integers(0, 100, shape)
    return np.asarray(numbers).astype(dtype_named(dtype))


def there(array: Any) -> DeviceTensor:
    tensor = tk.nd.array(array, here())
    assert isinstance(tensor, DeviceTensor)
    return tensor


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_every_type_and_shape_goes_there_and_back(dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    for shape in SHAPES:
        array = sample(shape, dtype)
        x = there(array)
        assert (x.shape, x.dtype, x.ndim, x.nbytes) == (
            shape,
            array.dtype,
            array.ndim,
            array.nbytes,
        )
        for y in (x, tk.nd.from_dlpack(x), x.copyto(here())):
            assert np.array_equal(y.numpy(), array)


def test_numbers_lists_and_other_tensors() -> None:
    assert there([[1, 2], [3, 4]]).numpy().tolist() == [[1, 2], [3, 4]]
    assert tk.nd.array(3, here(), "float32").numpy() == np.float32(3)
    x = tk.nd.array(tk.nd.array([1.5]), here())
    assert tk.nd.array(x).numpy().tolist() == [1.5]  # and back to the host
    strided = np.arange(20.0).reshape(4, 5)[::-1, ::2]
    assert np.array_equal(there(strided).numpy(), strided)
    assert tk.nd.zeros((2, 3), device=here()).numpy().tolist() == [[0, 0, 0]] * 2


def test_copies() -> None:
    array = sample((3, 4), "float32")
    x, y = there(array), tk.nd.empty((3, 4), device=here())
    assert x.copyto(y) is y and np.array_equal(y.numpy(), array)
    host, strided = np.zeros((3, 4), np.float32), np.zeros((4, 3), np.float32).T
    for target in (host, strided, tk.nd.zeros((3, 4))):
        assert x.copyto(target) is target and np.array_equal(np.asarray(target), array)
    again = tk.nd.array(array + 1)
    assert again.copyto(x) is x and np.array_equal(x.numpy(), array + 1)
    assert np.array_equal(x.copyto(tk.cpu()), array + 1)
    assert np.array_equal(again.copyto(np.zeros((3, 4), np.float32)), array + 1)


def test_what_cannot_be_copied() -> None:
    x, host = there(np.zeros(3, np.float32)), tk.nd.zeros(3)
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    for source in (x, host):
        for target in (
            np.zeros(4, np.float32),
            np.zeros(3),
            frozen,
            there(np.zeros(2, np.float32)),
        ):
            with pytest.raises(UserError):
                source.copyto(target)
        for thing in (None, 3, [1, 2, 3]):
            with pytest.raises(TypeError, match="expected a tensor"):
                source.copyto(thing)
    with pytest.raises(TypeError, match="expected a tensor, received list"):
        x.copyfrom([1, 2, 3])
    for dtype in ("complex64", "datetime64[s]", ">f4"):
        with pytest.raises(TypeError, match="cannot be passed"):
            tk.nd.zeros(3, dtype, here())


def test_numpy_never_copies_it_by_itself() -> None:
    x = there(np.zeros(3, np.float32))
    for use in (lambda: np.asarray(x), lambda: np.sin(x), lambda: np.add(x, 1), lambda: x + 1):
        with pytest.raises(TypeError):
            use()  # type: ignore[no-untyped-call]
    with pytest.raises(TypeError, match=rf"on {here()} is no array; \.numpy\(\) copies it"):
        np.asarray(x)
    assert repr(x) == f"DeviceTensor(3 float32 on {here()})" and len(x) == 3


# ---- DLPack ------------------------------------------------------------------------------------


def test_a_capsule_shares_the_memory() -> None:
    x = there(np.arange(6, dtype=np.int16).reshape(2, 3))
    assert x.__dlpack_device__() == (here().dlpack_type, 0)
    capsule = x.__dlpack__()
    view = DLTensor.from_address(capsule_pointer(capsule, b"dltensor"))
    assert view.data == x._memory.handle and not view.strides and view.byte_offset == 0
    assert (view.device_type, view.device_id, view.ndim) == (here().dlpack_type, 0, 2)
    assert (view.code, view.bits, view.lanes, view.shape[:2]) == (0, 16, 1, [2, 3])
    y = tk.nd.from_dlpack(x)
    there(np.full((2, 3), 7, np.int16)).copyto(x)
    assert y.numpy().tolist() == [[7] * 3] * 2 and y._memory.handle == x._memory.handle


def test_who_frees_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capsule that nobody takes, also while an exception is raised; one that somebody does; the
    tensor first, or its importer."""
    freed: list[int] = []
    driver = driver_of(here())
    real = driver.new_memory

    def counted(context: Any, nbytes: int) -> Any:
        buffer = real(context, nbytes)
        handle = buffer.handle
        weakref.finalize(buffer, lambda: freed.append(handle))
        return buffer

    monkeypatch.setattr(driver, "new_memory", counted)

    def untaken() -> None:
        there(np.zeros(3)).__dlpack__()

    def raising() -> None:
        capsule = there(np.zeros(3)).__dlpack__()
        try:
            assert capsule is None
        except AssertionError:
            del capsule
            raise
        raise AssertionError

    def taken() -> None:
        x = there(np.arange(3.0))
        y = tk.nd.from_dlpack(x)
        del x
        gc.collect()
        assert not freed and y.numpy().tolist() == [0, 1, 2]

    for use in (untaken, raising, taken):
        freed.clear()
        try:
            use()
        except AssertionError:
            assert use is raising
        gc.collect()
        assert len(freed) == 1, use


def test_what_dlpack_asks_for() -> None:
    x = there(np.zeros(3))
    place = x.__dlpack_device__()
    assert x.__dlpack__(stream=None, max_version=(1, 0), dl_device=place, copy=False) is not None
    streams: tuple[Any, ...] = (1,) if here().kind == "opencl" else (0, -2, "1", 1.0)
    for options in (*({"stream": s} for s in streams), {"dl_device": (1, 0)}, {"copy": True}):
        with pytest.raises(BufferError):
            x.__dlpack__(**options)  # type: ignore[arg-type]


class Foreign:
    """A tensor of another library, whose description is changed."""

    def __init__(self, tensor: DeviceTensor, **fields: Any):
        self.tensor = tensor
        self.fields = fields

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> object:
        assert options == ({"stream": 1} if here().kind == "cuda" else {})
        capsule = self.tensor.__dlpack__()
        view = DLTensor.from_address(capsule_pointer(capsule, b"dltensor"))
        for name, value in self.fields.items():
            setattr(view, name, value)
        return capsule


def test_tensors_of_others() -> None:
    x = there(np.arange(12, dtype=np.float32).reshape(3, 4))
    fortran, row = (ctypes.c_int64 * 2)(1, 3), (ctypes.c_int64 * 2)(4, 1)
    assert np.array_equal(tk.nd.from_dlpack(Foreign(x, strides=row)).numpy(), x.numpy())
    for fields, words in (
        ({"strides": fortran}, "must be row-major"),
        ({"lanes": 4}, "unknown element type of DLPack"),
        ({"code": 5}, "unknown element type of DLPack"),
        ({"bits": 4, "code": 0}, "unknown element type"),
        ({"device_type": 7}, "device type 7 of DLPack is unknown"),
    ):
        with pytest.raises(UserError, match=words):
            tk.nd.from_dlpack(Foreign(x, **fields))


# ---- trouble -----------------------------------------------------------------------------------


def test_more_memory_than_there_is() -> None:
    with pytest.raises(
        DeviceMemoryError, match="(clCreateBuffer|cuMemAlloc) of 4611686018427387904 bytes"
    ) as e:
        tk.nd.empty(1 << 62, "uint8", here())
    assert e.value.code == "device-memory" and isinstance(e.value, MemoryError)


def test_threads_share_a_device() -> None:
    wrong = []

    def work(seed: int) -> None:
        for i in range(30):
            array = np.random.default_rng(seed * 100 + i).standard_normal(500)
            if not np.array_equal(there(array).copyto(here()).numpy(), array):
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_child_of_fork_says_so() -> None:
    there(np.zeros(3))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            there(np.zeros(3))
            os.write(write, b"no error")
        except DeviceError as error:
            os.write(write, f"{error.code}: {error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        output = stream.read()
    os.waitpid(child, 0)
    api = driver_of(here()).api
    assert output.startswith(f"no-driver: {api} was in use before this process was forked")
