from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.runtime import Device, Tensor, cpu, nd
from tensorkiln.runtime.tensor import DLTensor, view_of


def test_array_copies_and_is_aligned() -> None:
    for source in ([[1, 2], [3, 4]], np.arange(6).reshape(2, 3)[:, ::2], 3.5, nd.zeros((2, 2))):
        array = nd.array(source)
        assert array.numpy().ctypes.data % 64 == 0
        np.testing.assert_array_equal(array.numpy(), np.asarray(source))
    source = np.ones(3, np.float32)
    array = nd.array(source, cpu(0))
    source[0] = 7
    assert array.numpy().tolist() == [1, 1, 1]
    assert nd.array([1, 2], dtype="float32").dtype == "float32"


def test_empty_and_zeros() -> None:
    array = nd.empty((3, 5), "int8", cpu())
    assert (array.shape, array.dtype, array.ndim, len(array)) == ((3, 5), "int8", 2, 3)
    assert array.numpy().ctypes.data % 64 == 0 and array.device == Device("cpu")
    assert not nd.zeros((0, 2)).numpy().any()
    with pytest.raises(TypeError, match="unknown element type 'float33'"):
        nd.empty((1,), "float33")
    with pytest.raises(UnsupportedError, match="rocm:1"):
        nd.array([1], Device("rocm", 1, 10))


def test_shares_memory_with_numpy_both_ways() -> None:
    array = np.arange(4, dtype=np.float32)
    tensor = nd.from_dlpack(array)
    array[0] = 9
    assert tensor.numpy()[0] == 9
    np.from_dlpack(tensor)[1] = 8
    np.asarray(tensor)[2] = 7
    assert array.tolist() == [9, 8, 7, 3]
    assert tensor.__dlpack_device__() == (1, 0)
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert "float32 on cpu:0" in repr(tensor)


def test_shares_memory_with_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = nd.zeros((2,))
    torch.from_dlpack(tensor)[0] = 5
    assert tensor.numpy().tolist() == [5, 0]
    assert nd.array(torch.ones(2)).numpy().tolist() == [1, 1]


def test_views_of_arrays_that_numpy_does_not_export() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.zeros((4, 6), ml_dtypes.bfloat16)[::2, ::-1]
    address, owner = view_of(array, "x")
    view = DLTensor.from_address(address)
    assert (view.code, view.bits, view.ndim) == (4, 16, 2)
    assert view.shape[:2] == [2, 3 * 2] and view.strides[:2] == [12, -1]
    assert view.data == array.ctypes.data
    assert owner is not None
    assert nd.empty((2,), "bfloat16").dtype == "bfloat16"
    assert isinstance(nd.empty((2,)), Tensor)
