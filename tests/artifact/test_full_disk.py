"""Everything that writes, on a disk that is really full after some bytes: one sentence that says
so, nothing is left, and with room again it works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tests.base.small_disk import REFUSED, grow, on_small_disk
from tests.transform.graphs import graph

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="namespaces, tmpfs")
WRITERS: dict[str, Callable[[tk.Executable, Path], object]] = {
    "net.so": lambda e, p: e.export_library(p),
    "beside.so": lambda e, p: e.export_library(p, weights="beside"),
    "net.a": lambda e, p: e.export_library(p),
    "net.o": lambda e, p: e.export_library(p),
    "net.tar": lambda e, p: e.export_library(p),
    "set": lambda e, p: e.artifacts.save(p),
    "archive": lambda e, p: e.export_model_library_format(p),
    "archive.tar": lambda e, p: e.export_model_library_format(p),
}
ROOT = Path(__file__).resolve().parents[2]
COMPILES = """
import sys
import numpy as np
import tensorkiln as tk
from tests.transform.graphs import graph
exe = tk.compile(graph(lambda g, x: g.sin(x), x=(1, 7)), tk.Target("native"))
exe.export_library(sys.argv[1])
x = np.ones((1, 7), np.float32)
np.testing.assert_allclose(tk.load(sys.argv[1])(x), np.sin(x), rtol=1e-6)
"""
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
ENOUGH = 64 << 20
ROOMS = (PAGE, 4 * PAGE, 12 * PAGE, 40 * PAGE)  # some parts fit, and others do not


@pytest.fixture(scope="module")
def small_executable() -> tk.Executable:
    w = rand(128, 384)  # more than any of the rooms
    return tk.compile(graph(lambda g, x: g.matmul(x, w), x=(1, 128)), tk.Target("native"))


@pytest.mark.in_turn("output")
@pytest.mark.parametrize("everything", [False, True], ids=["output", "temporary files too"])
@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("output", WRITERS)
def test_a_disk_that_is_full(
    small_executable: tk.Executable, tmp_path: Path, output: str, room: int, everything: bool
) -> None:
    def write() -> int:
        if everything:
            tempfile.tempdir = str(tmp_path / "tmp")
            Path(tempfile.tempdir).mkdir(mode=0o700)
        before = sorted(tmp_path.rglob("*"))
        try:
            WRITERS[output](small_executable, tmp_path / output)
            return 1
        except UserError as error:
            assert "the disk is full" in str(error), error
        assert sorted(tmp_path.rglob("*")) == before
        grow(tmp_path, ENOUGH)
        WRITERS[output](small_executable, tmp_path / output)
        if output == "net.so":
            library = tk.runtime.load_module(tmp_path / output)
            library.create_executor()["main"](np.ones((1, 128), np.float32))
        return 0

    def work() -> int:
        try:
            return write()
        except BaseException:
            said_by.write_text(traceback.format_exc())
            return 2

    with tempfile.TemporaryDirectory() as beside:
        said_by = Path(beside) / "said"
        status = on_small_disk(tmp_path, room, work)
        report = said_by.read_text() if said_by.exists() else ""
    if status == REFUSED:
        pytest.skip("no user namespaces here: no disk of its own was tried")
    assert status == 0, report or "it was written, and there was no room"


def test_a_cache_on_a_full_disk(tmp_path: Path) -> None:
    """A cache never fails a compile: the tools' own caches go elsewhere, too."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def work() -> int:
        process = subprocess.run(
            [sys.executable, "-c", COMPILES, str(tmp_path / "net.so")],
            env={**os.environ, "KILN_CACHE_DIR": str(disk / "cache"), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        (tmp_path / "said").write_text(process.stderr)
        return process.returncode

    status = on_small_disk(disk, 16 * PAGE, work)
    if status == REFUSED:
        pytest.skip("no user namespaces here")
    assert status == 0, (tmp_path / "said").read_text()
