"""A child of fork() can use what its parent loaded, whatever other threads were doing."""

# ruff: noqa: ANN201 - the types of scripts are not Python's

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.external import External
from tensorkiln.script import R, T
from tests.hosts.build import HERE, c_program, run


@tk.script.ir_module
class Module:
    """A function for each lock of crt: tests/hosts/forks.c."""

    @R.function
    def plain(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y: R.Tensor((4,), "float32") = R.mul(x, R.const(3.0, "float32"))
        return y

    @R.function
    def loaded(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y: R.Tensor((4,), "float32") = R.add(x, x)
        return y

    @R.function
    def loop(x: R.Tensor((64, 64), "float32")) -> R.Tensor((64, 64), "float32"):
        y: R.Tensor((64, 64), "float32") = R.exp(x)
        return y

    @R.function
    def named(x: R.Tensor((4,), "float32")) -> R.Object:
        y: R.Object = R.call_packed("tests.forks", x)
        return y

    @T.prim_func(private=True)
    def twice(x: T.Buffer((4,), "float32", align=4), y: T.Buffer((4,), "float32", align=4)):
        for i in range(4):
            y[i] = x[i] + x[i]

    @R.function
    def storages():
        v = R.alloc_storage(16)
        return (v,)

    @T.prim_func(private=True, outputs=1)
    def run(
        x: T.Buffer((4,), "float32", align=4),
        storages: T.Buffer((1,), "handle", align=8),
        y: T.Buffer((4,), "float32", align=4),
    ):
        T.call(Module.twice, x, storages[0])
        T.call(Module.twice, storages[0], y)

    @R.function
    def kept(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        s: R.Tuple(R.Object) = R.call_packed(
            "alloc_cached_storage_set", Module.storages, key="kept"
        )
        y: R.Tensor((4,), "float32") = Module.run(x, s)
        return y


def emit(function: Any, symbol: str) -> list[tk.Artifact]:
    return [tk.Artifact("doubler", "tests_forks", f"{symbol}.txt", b"2")]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three that are one to nobody but us."""
    folder = tmp_path_factory.mktemp("forks")
    external = External("doubler", lambda call, target: call.op == "add", emit)
    first_library = tk.compile(Module, externals=[external]).export_library(folder / "1.so")
    return [first_library, *(Path(shutil.copy(first_library, folder / f"{i}.so")) for i in (2, 3))]


def forks(libraries: list[Path], programs: Path, times: int, *mode: str) -> None:
    program = programs / "forks"
    if not program.exists():
        # Without sanitizers: in a child, the lock of their allocator stays as it was.
        c_program(HERE / "forks.c", program, "-O1", "-lpthread")
    process = run(program, str(times), *mode, *libraries, seconds=600)
    assert (process.returncode, process.stdout + process.stderr) == (0, "")


CASES = {"one": (1, ()), "several": (3, ()), "come and go": (3, ("come-and-go",))}


@pytest.mark.parametrize("case", CASES)
def test_children_use_every_lock(libraries: list[Path], programs: Path, case: str) -> None:
    count, mode = CASES[case]
    forks(libraries[:count], programs, 300, *mode)


@pytest.mark.forks
@pytest.mark.parametrize("case", CASES)
def test_ten_thousand_children(libraries: list[Path], programs: Path, case: str) -> None:
    count, mode = CASES[case]
    forks(libraries[:count], programs, 10_000, *mode)
