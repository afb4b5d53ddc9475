"""The digest of a library's file: damage is found before the dynamic loader reads the file."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import digest
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.artifact.sections import WEIGHTS
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.script import from_source
from tests.artifact.damage_files import without_digest
from tests.golden_artifacts.make import HERE
from tests.hosts.build import run
from tests.hosts.conftest import REFUSALS, program

W = np.arange(12, dtype=np.float32).reshape(4, 3)
X = np.ones((2, 4), np.float32)
MODULE = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 3), "float32"):
    y: R.Tensor(("n", 3), "float32") = R.matmul(x, R.const("w", "float32", (4, 3)))
    return y
"""
PLAIN = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    y: R.Tensor(("n", 4), "float32") = R.add(x, x)
    return y
"""
KINDS = ("inside", "beside", "none")  # where the weights are


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("libraries")
    exe = tk.compile(from_source(MODULE, constants={"w": W}))
    exe.export_library(place / "inside.so")
    exe.export_library(place / "beside.so", weights="beside")
    tk.compile(from_source(PLAIN)).export_library(place / "none.so")
    return place


def covered(data: bytes) -> int:
    """The end of what the digest covers, itself included."""
    place = digest.digest_place(data)
    assert place is not None
    return place + digest.SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_the_weights_is_outside(folder: Path, kind: str) -> None:
    """Each byte before the weights' pages, changed, is noticed; between are zeros."""
    path = folder / f"{kind}.so"
    data, end = path.read_bytes(), covered(path.read_bytes())
    assert digest.damage(data, len(data)) == ""
    section = read_binary(path).section(WEIGHTS)
    if kind == "inside":
        assert section is not None and section.offset + section.size == len(data)
        assert not any(data[end : section.offset]) and section.offset - end < 4096
    else:
        assert end == len(data)
    for position in [*range(0, end - 256, 5), *range(end - 256, end)]:
        changed = bytearray(data[:end])
        changed[position] ^= 1 << position % 8
        # What the header refers to may then be elsewhere; readers refuse such tables.
        if digest.damage(changed, len(data)) is None:
            assert position in (4, 5, *range(40, 48), *range(58, 62)) or position < 4, position


def damages(data: bytes, count: int) -> Iterator[tuple[str, bytes]]:
    """What happens to files on disks and on the way, outside the weights."""
    end, rng = covered(data), random.Random(5)
    for size in (512, 4096):
        for start in range(0, end, size):
            stop = min(start + size, end)
            yield f"zeros from {start} to {stop}", data[:start] + bytes(stop - start) + data[stop:]
    for start in range(0, end, 1024):
        position = rng.randrange(start, min(start + 1024, end))
        bit = bytes([data[position] ^ 1 << rng.randrange(8)])
        yield f"a bit of {position}", data[:position] + bit + data[position + 1 :]
    for _ in range(count):
        start = rng.randrange(end)
        size = min(rng.choice((1, 16, 512, 5000)), end - start)
        yield f"{size} at {start}", data[:start] + rng.randbytes(size) + data[start + size :]
        other_start = rng.randrange(end - size + 1)
        copied = data[other_start : other_start + size]
        yield f"{other_start} at {start}", data[:start] + copied + data[start + size :]
        if start < end - digest.SIZE:
            yield f"the first {start}", data[:start]
        yield f"{size} more", data + rng.randbytes(size)
        yield f"without {start} to {start + size}", data[:start] + data[start + size :]
    for position in (end, *((end + 100, len(data) - 1) if len(data) > end else ())):
        if position < len(data):
            yield f"the first {position}", data[:position]


def outcomes(path: Path, cases: Sequence[tuple[str, bytes]]) -> list[tuple[str, str]]:
    """What becomes of a child that loads and calls each of these files, where it is another thing
    than the error. A child that ends is followed by one that goes on after the file."""
    wrong, position = list[tuple[str, str]](), 0
    while position < len(cases):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(600)
            for _, content in cases[position:]:
                path.unlink(missing_ok=True)
                path.write_bytes(content)
                os.write(write, f"{outcome(path)}\n".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as stream:
            lines = stream.read().splitlines()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        wrong += [
            (cases[position + i][0], line) for i, line in enumerate(lines) if line != "refused"
        ]
        position += len(lines)
        if code != 0:
            wrong.append((cases[position][0], f"exit code {code}"))
            position += 1
    return wrong


def outcome(path: Path) -> str:
    """What comes of a load and a call, in a word or a few."""
    try:
        tk.load(path)(X)
    except UserError as error:
        is_right = error.code == "not-a-library" and str(path) in str(error)
        return "refused" if is_right else f"{error!r}".partition("\n")[0]
    except BaseException as error:
        return f"{error!r}".partition("\n")[0]
    return "loaded"


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_refused(folder: Path, kind: str, tmp_path: Path) -> None:
    data = (folder / f"{kind}.so").read_bytes()
    shutil.copy(folder / "beside.safetensors", tmp_path / "net.safetensors")
    cases = [(name, content) for name, content in damages(data, 25) if content != data]
    assert len(cases) > 200
    assert outcomes(tmp_path / "net.so", cases) == []


@pytest.mark.parametrize("language", REFUSALS)
def test_other_hosts_refuse_the_same(
    folder: Path, programs: Path, language: str, tmp_path: Path
) -> None:
    """With the sentence of Python."""
    data, path = (folder / "inside.so").read_bytes(), tmp_path / "net.so"
    host = program(REFUSALS, language, programs)
    for name, content in [*damages(data, 8)][::3]:
        if content == data:
            continue
        path.unlink(missing_ok=True)
        path.write_bytes(content)
        process = run(host, path, "main")
        code, _, sentence = process.stdout.partition("\n")
        with pytest.raises(UserError) as caught:
            tk.load(path)
        assert (process.returncode, code) == (0, "101"), (name, process)
        assert sentence.rstrip("\n") == caught.value.message, name


@pytest.mark.parametrize("kind", KINDS)
def test_libraries_without_a_digest_are_loaded(folder: Path, kind: str, tmp_path: Path) -> None:
    """Those of earlier versions, and those that a tool has written anew."""
    shutil.copy(folder / "beside.safetensors", tmp_path / "net.safetensors")
    path = tmp_path / "net.so"
    path.write_bytes(without_digest((folder / f"{kind}.so").read_bytes()))
    assert inspect_library(path).digest == "none"
    want = X + X if kind == "none" else X @ W
    f = tk.load(path)
    np.testing.assert_array_equal(f(X), want)
    f.close()
    old = HERE / "library-1.so"
    assert digest.damage(old.read_bytes(), old.stat().st_size) is None
    if shutil.which("strip") is not None:
        path.unlink()
        subprocess.run(["strip", "-o", path, folder / f"{kind}.so"], check=True)
        assert inspect_library(path).digest == "none"
        np.testing.assert_array_equal(tk.load(path)(X), want)


def test_what_inspect_says(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.so"
    data = bytearray((folder / "inside.so").read_bytes())
    path.write_bytes(data)
    assert inspect_library(path).digest == "right"
    data[data.index(b"libc.so.6")] ^= 1
    path.write_bytes(data)
    assert inspect_library(path).digest == "wrong: its bytes are not those that were written"
    with pytest.raises(UserError, match="is damaged: its bytes are not those"):
        tk.load(path)
    assert tk.runtime.read_metadata(path)["weights_bytes"] > 0


def test_what_changed_its_place() -> None:
    """The sum of a file with two parts exchanged is another one."""
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 63, 1 << 15, np.uint64)
    sums = {digest._sum(words.tobytes())}
    for size in (1, 64, 255, 256, 512):
        for first, second in ((0, 512), (512, 1024), (255, 255 * 9), (256, 256 * 9), (0, 1 << 14)):
            changed = words.copy()
            changed[first : first + size] = words[second : second + size]
            changed[second : second + size] = words[first : first + size]
            sums.add(digest._sum(changed.tobytes()))
    for first, second in ((0, 1), (0, 255), (0, 256), (7, 7 + 2560), (7, 7 + 2550)):
        changed = words.copy()
        changed[[first, second]] ^= np.uint64(1 << 63)  # what sums of products would not notice
        sums.add(digest._sum(changed.tobytes()))
    assert len(sums) == 1 + 25 + 5
