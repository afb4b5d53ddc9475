"""What is written appears whole or not at all: on a full disk, and when somebody interrupts."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.codegen.host import weights
from tensorkiln.kernels.case import rand
from tests.transform.graphs import graph

SIZE = 1500  # squared, in float32, twice: 18 MB, which are written in 9 blocks
OUTPUTS = ["net.so", "beside.so", "net.o", "net.a", "net.tar", "net", "archive", "archive.tar"]


@pytest.fixture(scope="module")
def executable() -> tk.Executable:
    layers = [rand(SIZE, SIZE, seed=i) for i in range(2)]
    net = graph(lambda g, x: g.matmul(g.relu(g.matmul(x, layers[0])), layers[1]), x=(1, SIZE))
    return tk.compile(net)


def write(executable: tk.Executable, path: Path) -> None:
    if path.name == "beside.so":
        executable.export_library(path, weights="beside")
    elif path.stem == "archive":
        executable.export_model_library_format(path)
    elif path.suffix:
        executable.export_library(path)
    else:
        executable.artifacts.save(path)


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def in_block(number: int, action: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Let something happen when that block of the weights is made, and others take long."""
    real, block_count = weights._filled, [0]

    def filled(*arguments: object) -> memoryview:
        block_count[0] += 1
        if block_count[0] == number:
            action()
        time.sleep(0.02)
        return real(*arguments)  # type: ignore[arg-type]

    patch.setattr(weights, "_filled", filled)


def tree(folder: Path) -> dict[str, bytes]:
    files = (p for p in folder.rglob("*") if not p.is_dir())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


@pytest.mark.in_turn("output")
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("number", [1, 5, 9])
@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("action", [full_disk, interrupt])
def test_nothing_is_left_and_the_former_stays(
    executable: tk.Executable,
    output: str,
    number: int,
    action: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected: type[BaseException] = UserError if action is full_disk else KeyboardInterrupt
    threads = threading.active_count()
    for is_there in (False, True):
        if is_there and Path(output).suffix:
            (tmp_path / output).write_bytes(b"former")
        elif is_there:  # a folder of anybody else is not replaced
            write(executable, tmp_path / output)
        before = tree(tmp_path)
        with monkeypatch.context() as patch:
            in_block(number, action, patch)
            with pytest.raises(expected) as caught:
                write(executable, tmp_path / output)
        if action is full_disk:
            message = str(caught.value)
            assert "the disk is full" in message and Path(output).stem in message
        assert tree(tmp_path) == before
        assert [p.name for p in tmp_path.iterdir()] == [output] * is_there
        deadline = time.monotonic() + 5  # one that was being started may still be on its way
        while threading.active_count() > threads and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threading.active_count() == threads


@pytest.mark.parametrize("is_there", [False, True])
def test_a_library_and_the_weights_beside_it_appear_together(
    executable: tk.Executable, is_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of one export with the code of another would be refused when they are loaded."""
    for name in ("beside.so", "beside.safetensors") if is_there else ():
        (tmp_path / name).write_bytes(b"former")
    before = tree(tmp_path)
    monkeypatch.setattr("tensorkiln.link.shared._write", lambda *_: full_disk())
    with pytest.raises(UserError, match="the disk is full"):
        write(executable, tmp_path / "beside.so")
    assert tree(tmp_path) == before


@pytest.mark.in_turn()
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_file_that_may_not_grow_so_large(output: str, tmp_path: Path) -> None:
    """The system's own refusal, in a process of its own."""
    script = (
        "import resource, sys\nfrom pathlib import Path\n"
        "from tensorkiln.base.errors import UserError\n"
        "from tests.artifact import test_written_whole as t\n"
        "made = t.executable.__wrapped__()\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, 12 << 20))\n"
        "try: t.write(made, Path(sys.argv[1]))\n"
        "except UserError as error: print(error.code, error)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / output)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout.startswith("cannot-write "), process.stdout + process.stderr
    assert list(tmp_path.iterdir()) == []


def test_they_are_written_after_all(executable: tk.Executable, tmp_path: Path) -> None:
    for output in OUTPUTS:
        write(executable, tmp_path / output)
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == sorted([*OUTPUTS, "beside.safetensors"])
    x = np.ones((1, SIZE), np.float32)
    library = tk.runtime.load_module(tmp_path / "net.so")
    y = tk.runtime.Executor(library, tk.cpu())["main"](x).numpy()
    saved = tk.load_artifacts(tk.ArtifactSet.load(tmp_path / "net"))
    again = tk.runtime.Executor(saved, tk.cpu())["main"](x).numpy()
    assert y.any() and np.array_equal(y, again)
