"""Weights in a file beside the library: mapped when it is opened, and nothing but its own."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest
import safetensors.numpy

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.artifact.weights_file import verify_weights, weights_beside, write_weights
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.subject import open_subject
from tensorkiln.kernels.case import rand
from tests.transform.graphs import graph

W, V = rand(40, 24), rand(24, 7, seed=1)
X = np.linspace(-1, 1, 80, dtype=np.float32).reshape(2, 40)


@pytest.fixture(scope="module")
def compiled() -> tk.Executable:
    return tk.compile(graph(lambda g, x: g.matmul(g.relu(g.matmul(x, W)), V), x=(2, 40)))


@pytest.fixture
def exported(compiled: tk.Executable, tmp_path: Path) -> Path:
    return compiled.export_library(tmp_path / "net.so", weights="beside")


def right(lib: tk.runtime.Module) -> bool:
    found = np.asarray(tk.runtime.Executor(lib, tk.cpu())["main"](X).numpy())
    lib.close()
    wanted = np.maximum(X.astype(np.float64) @ W.array, 0) @ V.array
    return bool(np.allclose(found, wanted, rtol=1e-4, atol=1e-5))


def test_two_files_are_one_library(compiled: tk.Executable, exported: Path) -> None:
    beside = weights_beside(exported)
    assert {p.name for p in exported.parent.iterdir()} == {"net.so", "net.safetensors"}
    embedded = compiled.export_library(exported.parent / "embedded.so")
    size = compiled.artifacts["weights.bin"].size
    assert exported.stat().st_size <= embedded.stat().st_size - size
    assert right(tk.runtime.load_module(exported))
    verify_weights(beside, size)
    # The pair moves together, and may be reached by a link.
    moved = exported.parent / "other"
    moved.mkdir()
    shutil.move(beside, moved / "model.v2.safetensors")
    shutil.move(exported, moved / "model.v2.so")
    (exported.parent / "link.so").symlink_to(moved / "model.v2.so")
    assert right(tk.runtime.load_module(exported.parent / "link.so"))


def test_others_read_the_file(compiled: tk.Executable, exported: Path) -> None:
    tensors = safetensors.numpy.load_file(weights_beside(exported))
    data = compiled.artifacts["weights.bin"].view
    assert sum(t.nbytes for t in tensors.values()) == len(data)
    for row in tk.runtime.read_metadata(exported)["constants"]:
        name, offset = row["name"], row["offset"]
        found = tensors.get(f"{name}#{offset}", tensors[name])  # two may be called alike
        assert found.tobytes() == bytes(data[offset : offset + found.nbytes])


def test_row_major_tensors_keep_their_shape(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    data = values.tobytes() + bytes(40) + bytes(range(64))
    constants = [
        ConstantInfo("beyond the end", "float32", (1,), "", 4096),
        ConstantInfo("first", "float32", (2, 3), "", 0),
        ConstantInfo("the same", "float32", (3, 2), "", 0),
        ConstantInfo("packed", "int8", (5, 5), "O I -> I O", 64),
    ]
    write_weights(tmp_path / "w.safetensors", data, constants)
    found = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    assert np.array_equal(found.pop("first"), values)
    assert np.array_equal(found.pop("packed"), np.arange(64, dtype=np.int8))
    assert {name: t.tolist() for name, t in found.items()} == {"__bytes__.24": [0] * 40}
    # Somebody has edited the table: all bytes are in the file, whatever it says.
    wide = [ConstantInfo("wide", "float32", (99, 99), "", 0)]
    write_weights(tmp_path / "w.safetensors", data, wide)
    found = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    assert [(n, t.tobytes()) for n, t in found.items()] == [("wide", data)]


def test_nothing_of_it_is_copied_or_left(exported: Path) -> None:
    lib = tk.runtime.load_module(exported)
    beside = str(weights_beside(exported))
    lines = [m for m in Path("/proc/self/maps").read_text().splitlines() if m.endswith(beside)]
    assert lines and all(" r--p " in m for m in lines)
    lib.close()
    assert beside not in Path("/proc/self/maps").read_text()


def spoil(change: Callable[[bytearray], object]) -> Callable[[Path], None]:
    def do(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return do


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Path.unlink, "cannot be opened: No such file"),
        (spoil(lambda d: d.clear()), "is not an exported file of weights"),
        (spoil(lambda d: d.__delitem__(slice(50, None))), "is not an exported file of weights"),
        (spoil(lambda d: d.__setitem__(slice(0, 8), b"\xff" * 8)), "is cut off, or was changed"),
        (spoil(lambda d: d.__setitem__(0, 1)), "is cut off, or was changed"),
        (spoil(lambda d: d.__delitem__(slice(-64, None))), "is cut off, or was changed"),
        (spoil(lambda d: d.extend(b"\0")), "is cut off, or was changed"),
        (spoil(lambda d: d.__setitem__(40, ord("g"))), "are not those that library"),
        (spoil(lambda d: d.__setitem__(10, ord("x"))), "is not an exported file of weights"),
    ],
)
def test_another_file_is_refused(
    exported: Path, change: Callable[[Path], object], says: str
) -> None:
    change(weights_beside(exported))
    with pytest.raises(UserError, match=says) as caught:
        tk.runtime.load_module(exported)
    assert caught.value.code == "bad-weights"
    assert str(weights_beside(exported)) in str(caught.value)


def test_damage_of_the_head_is_an_error_or_harmless(exported: Path) -> None:
    """The hash of the data is not computed at each load, what leads to the data is checked."""
    path, rng = weights_beside(exported), Random(0)
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    loaded = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            data[rng.randrange(rng.choice((8, 100, start)))] ^= 1 << rng.randrange(8)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        try:
            lib = tk.runtime.load_module(exported)
        except UserError as error:
            assert error.code == "bad-weights"
        else:
            loaded += 1
            assert right(lib)
    assert 20 < loaded < 300  # names of tensors are not looked at


def test_damaged_data_is_found_when_asked(compiled: tk.Executable, exported: Path) -> None:
    path, size = weights_beside(exported), compiled.artifacts["weights.bin"].size
    spoil(lambda d: d.__setitem__(-70, d[-70] ^ 1))(path)
    with pytest.raises(UserError, match="its hash does not match"):
        verify_weights(path, size)


def test_a_program_in_c_finds_them(exported: Path, tmp_path: Path) -> None:
    """By a relative name, from another folder than it ends up in."""
    script = (
        "import ctypes, os, sys\n"
        "lib = ctypes.CDLL('./net.so')\n"
        "lib.kiln_last_error.restype = ctypes.c_char_p\n"
        "code = lib.kiln_open()\n"
        "sys.exit(lib.kiln_last_error().decode() if code else 0)\n"
    )
    command = [sys.executable, "-I", "-c", script]
    subprocess.run(command, cwd=exported.parent, check=True)
    weights_beside(exported).unlink()
    done = subprocess.run(command, cwd=exported.parent, capture_output=True, text=True)
    assert done.returncode == 1 and "cannot be opened" in done.stderr


def test_eight_threads_open_one_library(exported: Path) -> None:
    dll = ctypes.CDLL(str(exported))
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(dll.kiln_open())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 8
    assert Path("/proc/self/maps").read_text().count(str(weights_beside(exported))) == 1


@pytest.mark.skipif(shutil.which("strip") is None, reason="strip is not installed")
@pytest.mark.parametrize("options", [[], ["--strip-unneeded"], ["-g"]])
def test_a_stripped_library_still_finds_them(exported: Path, options: list[str]) -> None:
    subprocess.run(["strip", *options, exported], check=True)
    assert right(tk.runtime.load_module(exported))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("linker", [n for n in ("bfd", "gold", "lld") if shutil.which(f"ld.{n}")])
def test_other_linkers(compiled: tk.Executable, tmp_path: Path, linker: str) -> None:
    command = f"gcc -fuse-ld={linker}"
    path = compiled.export_library(tmp_path / "net.so", command, weights="beside")
    assert right(tk.runtime.load_module(path))


def test_inspectors_read_them(exported: Path) -> None:
    subject = open_subject(exported)
    assert isinstance(subject.artifacts["weights.bin"], Artifact)
    weights_beside(exported).unlink()
    lost = open_subject(exported)
    assert [a.name for a in lost.absent if a.name == "host/weights.bin"] == ["host/weights.bin"]
    assert "net.safetensors" in lost.absent[0].reason


def test_only_shared_libraries_have_files_beside(compiled: tk.Executable, tmp_path: Path) -> None:
    for name in ("net.a", "net.o", "net.tar"):
        with pytest.raises(UserError, match="weights lie beside shared libraries"):
            compiled.export_library(tmp_path / name, weights="beside")
    with pytest.raises(UserError, match="weights='besides'") as caught:
        compiled.export_library(tmp_path / "net.so", weights="besides")
    assert "'beside'" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_library_without_weights_has_no_second_file(tmp_path: Path) -> None:
    plain = tk.compile(graph(lambda g, x: g.relu(x), x=(2, 3)))
    tk.runtime.load_module(plain.export_library(tmp_path / "net.so", weights="beside")).close()
    assert [p.name for p in tmp_path.iterdir()] == ["net.so"]
