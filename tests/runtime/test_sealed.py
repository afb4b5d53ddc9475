"""`sha256=`: what was hashed is what runs, whatever is done to the files meanwhile."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base import sealed
from tensorkiln.base.errors import UserError
from tensorkiln.base.sealed import SealedCopy
from tensorkiln.runtime import dlopen, native
from tensorkiln.script import from_source

W = np.arange(12, dtype=np.float32).reshape(4, 3)
X = np.ones((2, 4), np.float32)
MODULE = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 3), "float32"):
    y: R.Tensor(("n", 3), "float32") = R.matmul(x, R.const("w", "float32", (4, 3)))
    return y
"""
EVIL = """
#include <stdlib.h>
__attribute__((constructor)) static void ran(void) { abort(); }
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with weights beside it, one with weights inside, and one that is neither."""
    folder = tmp_path_factory.mktemp("files")
    exe = tk.compile(from_source(MODULE, constants={"w": W}))
    exe.export_library(folder / "beside.so", weights="beside")
    exe.export_library(folder / "inside.so")
    (folder / "evil.c").write_text(EVIL)
    build = ["gcc", "-shared", "-fPIC", "-o", str(folder / "evil.so"), str(folder / "evil.c")]
    subprocess.run(build, check=True)
    return folder


@pytest.fixture
def place(files: Path, tmp_path: Path) -> Path:
    for name in ("beside.so", "beside.safetensors", "inside.so"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    return tmp_path


def replace(path: Path, content: bytes) -> None:
    (path.parent / "new").write_bytes(content)
    (path.parent / "new").replace(path)


CHANGES = {"exchanged": replace, "written into": Path.write_bytes}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def then(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], None]]:
    """Does something between the check of a library and its use."""

    def arrange(change: Callable[[], object]) -> None:
        def late(*arguments: object) -> object:
            change()
            return dlopen.load_file(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(native, "load_file", late)

    yield arrange


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["beside", "inside"])
@pytest.mark.parametrize("memory", [True, False], ids=["memory", "no memory"])
def test_what_is_changed_after_the_check(
    place: Path,
    files: Path,
    name: str,
    change: str,
    memory: bool,
    then: Callable[[Callable[[], object]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not memory:
        monkeypatch.setattr(sealed.os, "memfd_create", _refused)
    library, weights = place / f"{name}.so", place / f"{name}.safetensors"
    evil, original_digest = (files / "evil.so").read_bytes(), digest(library)

    def attack() -> None:
        CHANGES[change](library, evil)
        if weights.exists():
            CHANGES[change](weights, bytes(weights.stat().st_size))

    then(attack)
    before = len([*Path("/proc/self/fd").iterdir()])
    f = tk.load(library, sha256=original_digest)
    np.testing.assert_array_equal(f(X), X @ W)
    f.close()
    assert len([*Path("/proc/self/fd").iterdir()]) == before
    assert digest(library) != original_digest
    with pytest.raises(UserError, match="has the SHA-256"):
        tk.load(library, sha256=original_digest)


def _refused(*arguments: object) -> int:
    raise PermissionError(1, "Operation not permitted")


def test_weights_of_another_library_are_refused(place: Path) -> None:
    original_digest, weights = digest(place / "beside.so"), place / "beside.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(UserError, match=r"beside.safetensors' is damaged: its hash") as caught:
        tk.load(place / "beside.so", sha256=original_digest)
    assert caught.value.code == "bad-weights"
    weights.unlink()
    with pytest.raises(UserError, match=r"no such file: .*beside.safetensors"):
        tk.load(place / "beside.so", sha256=original_digest)


def test_verified_weights_are_those_that_run(
    place: Path, then: Callable[[Callable[[], object]], None]
) -> None:
    """`verify=` reads the weights through the open file that the library then maps."""
    weights = place / "beside.safetensors"
    then(lambda: replace(weights, bytes(weights.stat().st_size)))
    f = tk.load(place / "beside.so", verify=True)
    np.testing.assert_array_equal(f(X), X @ W)
    with pytest.raises(UserError, match="not an exported file"):
        tk.load(place / "beside.so", verify=True)
    f.close()


def test_libraries_beside_are_found(place: Path) -> None:
    """`$ORIGIN` is the folder of the original."""
    (place / "libneeded.c").write_text("int needed(void) { return 3; }\n")
    build = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libneeded.so", "-o", "libneeded.so"]
    subprocess.run([*build, "libneeded.c"], cwd=place, check=True)
    exe = tk.compile(from_source(MODULE, constants={"w": W}))

    def link(output: str, inputs: list[str], options: list[str]) -> None:
        link_options = [f"-L{place}", "-Wl,--no-as-needed", "-lneeded", "-Wl,-rpath,$ORIGIN"]
        subprocess.run(["gcc", "-o", output, *inputs, *options, *link_options], check=True)

    exe.export_library(place / "needs.so", link)
    for sha256 in (digest(place / "needs.so"), None):
        f = tk.load(place / "needs.so", sha256=sha256)
        np.testing.assert_array_equal(f(X), X @ W)
        f.close()


def test_a_copy_cannot_be_written_to(place: Path) -> None:
    copy = SealedCopy(place / "inside.so")
    assert copy.sha256 == digest(place / "inside.so")
    for call in (lambda: os.pwrite(copy.file, b"x", 0), lambda: os.ftruncate(copy.file, 0)):
        with pytest.raises(PermissionError):
            call()
    copy.close()
    copy.close()
