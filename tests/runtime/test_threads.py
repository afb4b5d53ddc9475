"""Threads as Python sees them: of a process, of a library, of one call; pools of the caller's."""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.runtime.failures import ArgumentTypeError, ArgumentValueError
from tensorkiln.script import from_source

MODULE = """
@R.function
def main(x: R.Tensor(("n", 4096), "float32"), num_threads: R.Tensor((), "float32")):
    y = R.exp(x)
    return R.mul(y, num_threads)

@R.function
def twice(x: R.Tensor(("n", 4096), "float32")):
    return R.exp(R.add(x, x))

@T.prim_func
def program(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    T.func_attr({"global_symbol": "program"})
    for i in range(4):
        Y[i] = X[i]
"""
# Prints how many threads of its own each way to call has made: arguments are the library, and the
# number of threads of the library, of the model, and of one call; "-" leaves it alone.
COUNTING = """
import os, sys
import numpy as np, tensorkiln as tk
library, model, call = sys.argv[2:]
f = tk.load(sys.argv[1])
x, one = np.ones((512, 4096), np.float32), np.float32(1)
def threads(): return len(os.listdir("/proc/self/task"))
before = threads()
if library != "-": f.module.set_num_threads(int(library))
if model != "-": f.num_threads = int(model)
g = f if call == "-" else f.with_threads(int(call))
g(x, one), g["twice"](x)
print(threads() - before)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tk.compile(from_source(MODULE)).export_library(
        tmp_path_factory.mktemp("threads") / "net.so"
    )


@pytest.mark.parametrize(
    ("library", "model", "call", "thread_count"),
    [
        ("1", "-", "-", 0),
        ("-", "1", "-", 0),
        ("-", "-", "1", 0),
        ("5", "4", "1", 0),
        ("1", "1", "3", 2),
        ("1", "3", "-", 2),
        ("3", "-", "-", 2),
        ("3", "1", "0", 2),
        ("3", "5", "1", 0),
    ],
)
def test_the_number_that_is_set_closest_counts(
    path: Path, library: str, model: str, call: str, thread_count: int
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", COUNTING, str(path), library, model, call],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(process.stdout) == thread_count


def test_a_process_on_one_processor_makes_no_thread(path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    process = subprocess.run(
        [sys.executable, "-c", COUNTING, str(path), "-", "-", "-"],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),  # as `taskset` does
    )
    assert int(process.stdout) == 0


def test_one_call_leaves_others_alone(path: Path) -> None:
    f = tk.load(path, num_threads=2)
    single_threaded = f.with_threads(1)
    assert single_threaded is f.with_threads(1) and single_threaded is not f.with_threads(3)
    assert (f.num_threads, single_threaded.num_threads, f.with_threads(3).num_threads) == (2, 1, 3)
    assert f["twice"].with_threads(1) is f["twice"].with_threads(1)
    single_threaded.num_threads = 4  # its own, until the next request
    assert f.with_threads(1).num_threads == 1
    assert f.with_threads(0).num_threads == f.module.num_threads
    again = pickle.loads(pickle.dumps(single_threaded))
    assert again.num_threads == 1
    x = np.random.default_rng(0).standard_normal((6, 4096)).astype(np.float32)
    expected = np.exp(x.astype(np.float64)) * 3
    for g in (f, single_threaded, f["main"].with_threads(3), again):
        np.testing.assert_allclose(g(x, num_threads=3), expected, rtol=1e-5)  # an input's name
        np.testing.assert_array_equal(g({"x": x, "num_threads": 3}), f(x, 3))


def test_calls_with_other_numbers_at_once(path: Path) -> None:
    f = tk.load(path)
    x = np.random.default_rng(1).standard_normal((40, 4096)).astype(np.float32)
    expected = f(x, 2)

    def call(i: int) -> bool:
        return np.array_equal(f.with_threads(i % 4)(x, 2), expected)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(64)))


@pytest.mark.parametrize("wrong", [-1, 5000, "2", 1.5, None, True])
def test_no_number_of_threads(path: Path, wrong: object) -> None:
    f = tk.load(path)
    for refuse in (f.with_threads, f["main"].with_threads, f.executor.with_threads):
        with pytest.raises((ArgumentTypeError, ArgumentValueError)):
            refuse(wrong)  # type: ignore[arg-type]


def test_a_tensor_program_has_its_librarys_number(path: Path) -> None:
    f = tk.load(path)
    for refuse in (lambda: f["program"].with_threads(1), lambda: f.with_threads(1)["program"]):
        with pytest.raises(UnsupportedError, match="program is a tensor program"):
            refuse()
    y = np.zeros(4, np.float32)
    f["program"](np.arange(4, dtype=np.float32), y)
    assert y[3] == 3


def test_a_closed_library_has_no_numbers(path: Path, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "other.so")
    f = tk.load(tmp_path / "other.so")
    f.with_threads(1)(np.ones((1, 4096), np.float32), 1)
    f.close()
    with pytest.raises(UserError, match="closed"):
        f.with_threads(1)
    with pytest.raises(UserError, match="closed"):
        f.module.use_pool(None)


# ---- pools of the caller's -----------------------------------------------------------------------

POOL = """
#include <stdint.h>
int loops, most;
void rows(int (*body)(void *, int64_t, int64_t), void *closure, int64_t n, int threads)
{
    loops++;
    most = threads;
    body(closure, n / 2, n);
    body(closure, 0, n / 2);
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_a_pool_of_the_callers(path: Path, tmp_path: Path) -> None:
    (tmp_path / "pool.c").write_text(POOL)
    subprocess.run(["gcc", "-shared", "-fPIC", "pool.c", "-o", "pool.so"], cwd=tmp_path, check=True)
    pool = ctypes.CDLL(str(tmp_path / "pool.so"))
    loops, most_threads = (ctypes.c_int.in_dll(pool, name) for name in ("loops", "most"))
    f = tk.load(path)
    x = np.random.default_rng(2).standard_normal((64, 4096)).astype(np.float32)
    expected = f.with_threads(1)(x, 2)
    for pool_function in (pool.rows, ctypes.cast(pool.rows, ctypes.c_void_p).value):
        before = loops.value
        f.module.use_pool(pool_function)
        np.testing.assert_array_equal(f.with_threads(7)(x, 2), expected)
        assert loops.value > before and most_threads.value == 7
        before = loops.value
        f.with_threads(1)(x, 2)  # no loop is divided
        f.module.use_pool(None)
        f.with_threads(7)(x, 2)
        assert loops.value == before


@pytest.mark.parametrize("wrong", [lambda *a: None, "rows", 1.5, -4, 0, True, object()])
def test_no_pool(path: Path, wrong: object) -> None:
    f = tk.load(path)
    with pytest.raises(ArgumentTypeError, match="a pool is a C function"):
        f.module.use_pool(wrong)
