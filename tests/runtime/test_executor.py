from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Device, Executor, Module, Tensor, cpu, load_module, nd
from tests.link import sample


@pytest.fixture(scope="module")
def module(library: Path) -> Module:
    return load_module(library)


@pytest.fixture(scope="module")
def executor(module: Module) -> Executor:
    return Executor(module, cpu())


def batch(n: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, 8)).astype(np.float32)


def close(result: object, want: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(result), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 5, 64, 1000, 3])
def test_symbolic_batch(executor: Executor, n: int) -> None:
    x = batch(n)
    out = executor["main"](x)
    assert isinstance(out, Tensor) and out.shape == (n, 4) and out.dtype == "float32"
    close(out, sample.expected(x))


def test_empty_batch(executor: Executor) -> None:
    assert executor["main"](batch(0)).shape == (0, 4)


def test_fixed_shape_and_names(executor: Executor) -> None:
    x = batch(1)
    close(executor["fixed"](x=x), sample.expected(x))
    a, b = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    close(executor["pair"](a, b=b), a + 2)
    close(executor["pair"](b=a, a=b), b + 2 * a[::-1])


def test_several_outputs_and_computed_sizes(executor: Executor) -> None:
    x = batch(3)
    left_half, right = executor["split"](x)
    close(left_half, 2 * x[:, :4])
    assert right.shape == (12,)
    close(right, 2 * x[:, 4:].ravel())
    first, second = np.zeros((3, 4), np.float32), nd.zeros((12,))
    assert executor["split"](x, out=(first, second)) == (first, second)
    close(first, left_half.numpy())
    close(second, right.numpy())


def test_out_is_filled_in_place(executor: Executor) -> None:
    x, out = batch(2), np.zeros((2, 4), np.float32)
    assert executor["main"](x, out=out) is out
    close(out, sample.expected(x))
    wide = np.zeros((4, 8), np.float32)
    executor["main"](x, out=wide[::2, 1::2])
    close(wide[::2, 1::2], sample.expected(x))
    assert not wide[1::2].any() and not wide[:, ::2].any()


@given(st.data())
@settings(max_examples=60)
def test_any_strides_and_any_address_give_the_same(library: Path, data: st.DataObject) -> None:
    run = _executor(library)["main"]
    n = data.draw(st.integers(1, 6))
    step = [data.draw(st.sampled_from([-3, -2, -1, 1, 2])) for _ in range(2)]
    swap, shift = data.draw(st.booleans()), data.draw(st.integers(0, 7))
    sizes = (8, n) if swap else (n, 8)
    room = [abs(s) * size for s, size in zip(step, sizes, strict=True)]
    raw = np.zeros(room[0] * room[1] * 4 + 8, np.uint8)
    x = np.ndarray(tuple(room), np.float32, raw, shift)[:: step[0], :: step[1]]
    x = x.T if swap else x
    assert x.shape == (n, 8)
    x[:] = values = batch(n)
    np.testing.assert_array_equal(run(x).numpy(), run(values).numpy())


_EXECUTORS: dict[Path, Executor] = {}


def _executor(library: Path) -> Executor:
    return _EXECUTORS.setdefault(library, Executor(load_module(library)))


def test_inputs_that_kernels_need_aligned_are_copied(executor: Executor) -> None:
    raw = np.zeros(4 * 8 * 4 + 128, np.uint8)
    start = -raw.ctypes.data % 64
    for shift in (0, 4, 32, 1):
        x = np.ndarray((4, 8), np.float32, raw, start + shift)
        x[:] = batch(4)
        close(executor["split"](x)[0], 2 * batch(4)[:, :4])


def test_output_may_share_memory_with_an_input(executor: Executor) -> None:
    a, b = np.arange(5, dtype=np.float32), np.arange(5, dtype=np.float32) + 10
    want = a + 2 * b[::-1]
    shared = b.copy()
    executor["pair"](a, shared, out=shared)
    close(shared, want)
    room = np.concatenate([b, np.zeros(2, np.float32)])
    executor["pair"](a, room[:5], out=room[2:])
    close(room[2:], want)


def test_read_only_input_is_legal_and_output_is_not(executor: Executor) -> None:
    x = batch(2)
    x.flags.writeable = False
    close(executor["main"](x), sample.expected(x))
    out = np.zeros((2, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="output 'out' is read-only"):
        executor["main"](x, out=out)


def test_torch_goes_in_and_comes_out_without_a_copy(executor: Executor, module: Module) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(3, 8)
    out = torch.zeros(3, 4)
    assert executor["main"](x, out=out) is out
    close(out, sample.expected(x.numpy()))
    tensor = torch.from_dlpack(executor["main"](x.t().contiguous().t()))
    close(tensor, sample.expected(x.numpy()))
    z = torch.zeros(4)
    module["add_one"](z, z)
    assert z.tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueError, match=r"input 'x' \(Tensor\) cannot be exported by DLPack"):
        executor["main"](torch.randn(3, 8, requires_grad=True))


def test_an_object_with_dlpack_and_nothing_else(executor: Executor) -> None:
    class Bare:
        def __dlpack__(self) -> object:
            return batch(3).__dlpack__()

    close(executor["main"](Bare()), sample.expected(batch(3)))


def test_tensor_functions(module: Module) -> None:
    x, y = nd.array([1.0, 2.0], dtype="float32"), nd.empty((2,))
    assert module["add_one"](x, y) is None
    assert y.numpy().tolist() == [2, 3]
    module["scale"](x, 2.5, -1)
    assert x.numpy().tolist() == [1.5, 4]
    module["scale"](x, np.float32(2), np.int64(3))
    assert x.numpy().tolist() == [6, 11]
    gaps = np.zeros((3, 2), np.float32)
    module["scale"](gaps[:, 1], 1, 7)
    assert gaps.tolist() == [[0, 7]] * 3


def test_module_says_what_it_is(module: Module, library: Path) -> None:
    assert module.kind == module.type_key == "library"
    assert module.imports == module.imported_modules == []
    assert set(module.functions) == {"main", "fixed", "split", "pair", "add_one", "scale"}
    assert module.metadata["compiler"]["version"] == "tests" and module.path == library
    assert "main" in module and "nothing" not in module
    assert "x: float32 [n, 8]" in repr(Executor(module)["main"])


def test_memory_grows_and_is_given_back(module: Module) -> None:
    executor = Executor(module)
    assert executor.workspace_bytes == 0
    executor["main"](batch(2))
    small = executor.workspace_bytes
    assert 64 + 2 * 64 <= small <= 65536
    executor["main"](batch(100_000))
    large = executor.workspace_bytes
    assert large == 64 + 100_000 * 64
    executor["main"](batch(2))
    assert executor.workspace_bytes == large
    run = executor["main"]
    del executor
    gc.collect()
    close(run(batch(3)), sample.expected(batch(3)))


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_executors_free_their_memory(module: Module) -> None:
    x = batch(100_000)
    Executor(module)["main"](x)
    before = _resident()
    for _ in range(20):
        Executor(module)["main"](x)
    assert _resident() - before < 40 << 20


def test_out_of_memory_is_an_error(module: Module) -> None:
    stretched = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (1 << 50, 8), (0, 4))
    out = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (1 << 50, 4), (0, 4))
    with pytest.raises(MemoryError, match="out of memory"):
        Executor(module)["main"](stretched, out=out)


def test_many_threads_each_with_an_executor_or_sharing_one(module: Module) -> None:
    shared = Executor(module)
    faults: list[str] = []

    def work(seed: int) -> None:
        own_executor = Executor(module)
        for i in range(60):
            x = batch(1 + (seed * 31 + i * 7) % 90)
            for run in (own_executor["main"], shared["main"]):
                if not np.allclose(run(x).numpy(), sample.expected(x), rtol=1e-4, atol=1e-4):
                    faults.append(f"{seed} {i}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_bytes_do_not_depend_on_threads(module: Module) -> None:
    executor, x = Executor(module), batch(777)
    results = []
    for threads in (1, 2, 3, 4, 16):
        executor.set_num_threads(threads)
        results.append(executor["main"](x).numpy().tobytes())
    assert len(set(results)) == 1


def test_anything_with_jit(module: Module) -> None:
    class Compiled:
        def jit(self) -> Module:
            return module

    close(Executor(Compiled(), [cpu()])["main"](batch(2)), sample.expected(batch(2)))
    with pytest.raises(TypeError, match="received int"):
        Executor(3)  # type: ignore[arg-type]


def test_devices_that_are_not_there(module: Module) -> None:
    with pytest.raises(UserError, match="has no code for cuda:0"):
        Executor(module, Device("cuda", 0, 2))
    for no_devices in ([], (), {}):
        with pytest.raises(UserError, match="at least one device"):
            Executor(module, no_devices)


@pytest.mark.parametrize(
    "devices",
    [
        0,
        1.5,
        True,
        "cpu",
        "",
        b"cpu",
        object(),
        Device,
        {cpu()},
        {"": 1},
        iter([cpu()]),
        np.array([cpu()]),
        ["cpu"],
        [None],
        (cpu(), 0),
        [[cpu()]],
    ],
    ids=lambda devices: type(devices).__name__,
)
def test_what_is_no_device(module: Module, devices: Any) -> None:
    with pytest.raises(TypeError, match=r"devices are made by tk\.cpu\(\), .*, received \w+"):
        Executor(module, devices)


def test_two_libraries_side_by_side(library: Path, tmp_path: Path) -> None:
    kernels = sample.KERNELS.replace("y[i] = x[i] + 1", "y[i] = x[i] + 100")
    other_library = load_module(sample.build(tmp_path / "other.so", name="other", kernels=kernels))
    first = load_module(library)
    y = np.zeros(2, np.float32)
    other_library["add_one"](np.zeros(2, np.float32), y)
    assert y.tolist() == [100, 100]
    first["add_one"](np.zeros(2, np.float32), y)
    assert y.tolist() == [1, 1]
    with pytest.raises(ValueError):
        Executor(first)["main"](batch(2)[0])
    close(Executor(other_library)["main"](batch(50)), sample.expected(batch(50)))
