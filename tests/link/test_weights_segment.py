"""Weights behind the linked code: mapped by every loader, kept by every tool."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tensorkiln.artifact import Later
from tensorkiln.artifact.artifact import write_at
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.artifact.sections import WEIGHTS, WEIGHTS_PAD
from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.codegen.host.weights import WeightArena, WeightsContent
from tensorkiln.frontend.onnx.tensors import map_path
from tensorkiln.link.elf.weights_segment import HUGE_PAGE, place_weights
from tests.link import sample
from tests.link.test_shared import _answers

needs_strip = pytest.mark.skipif(shutil.which("strip") is None, reason="strip is not installed")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
LINKERS = [name for name in ("bfd", "gold", "lld", "mold") if shutil.which(f"ld.{name}")]


def test_the_section_holds_the_weights_and_a_pad(library: Path) -> None:
    binary = read_binary(library)
    section = binary.section(WEIGHTS)
    assert section is not None and section.offset % 4096 == 0 and section.allocated
    assert bytes(binary.content(section)) == sample.DATA + bytes(WEIGHTS_PAD)


def test_large_weights_begin_at_a_huge_page(tmp_path: Path) -> None:
    data = sample.DATA + bytes(2 * HUGE_PAGE)
    path = sample.build(tmp_path / "large.so", weights=data)
    section = read_binary(path).section(WEIGHTS)
    assert section is not None and section.offset % HUGE_PAGE == 0
    assert bytes(read_binary(path).content(section)) == data + bytes(WEIGHTS_PAD)
    content = path.read_bytes()
    (table,), (count,) = (
        struct.unpack_from("<Q", content, 32),
        struct.unpack_from("<H", content, 56),
    )
    rows = [struct.unpack_from("<IIQQQQQQ", content, table + i * 56) for i in range(count)]
    (row,) = (row for row in rows if row[0] == 1 and row[2] == section.offset)
    assert row[3] % HUGE_PAGE == 0 and row[7] == HUGE_PAGE
    _answers(path)


@needs_strip
@pytest.mark.parametrize("options", [[], ["--strip-unneeded"], ["-g"]])
def test_a_stripped_library_still_computes(
    library: Path, tmp_path: Path, options: list[str]
) -> None:
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", *options, "-o", stripped, library], check=True)
    _answers(stripped)


@needs_gcc
@pytest.mark.parametrize("linker", LINKERS)
def test_other_linkers(linker: str, tmp_path: Path) -> None:
    def fcompile(output: str, files: list[str], options: list[str]) -> None:
        command = ["gcc", f"-fuse-ld={linker}", *options[:-3], "-o", output, *files, *options[-3:]]
        subprocess.run(command, check=True)

    _answers(sample.build(tmp_path / "mlp.so", fcompile=fcompile))


@needs_gcc
def test_a_linker_that_drops_the_note_is_named(tmp_path: Path) -> None:
    def fcompile(output: str, files: list[str], options: list[str]) -> None:
        command = ["gcc", *options[:-3], "-o", output, *files, *options[-3:]]
        subprocess.run(command, check=True)
        subprocess.run(["objcopy", "-R", ".note.kiln.weights", output], check=True)

    with pytest.raises(InternalError, match="no place for the weights"):
        sample.build(tmp_path / "mlp.so", fcompile=fcompile)
    assert list(tmp_path.iterdir()) == []


def test_more_than_four_gigabytes(tmp_path: Path) -> None:
    """The file is sparse: most of it is never written."""
    size, last = (4 << 30) + (1 << 20), b"the last bytes"

    class Sparse(Later):
        def __init__(self) -> None:
            self.size = size

        def chunks(self) -> Iterator[memoryview]:
            raise MemoryError("nobody asks for all of it")

        def write(self, file: int, at: int) -> None:
            write_at(file, memoryview(sample.DATA), at)
            write_at(file, memoryview(last), at + size - len(last))

    _answers(sample.build(tmp_path / "mlp.so", weights=Sparse()))


def test_weights_are_placed_once(library: Path) -> None:
    with pytest.raises(InternalError, match="no segment of notes"):
        place_weights(library.read_bytes(), 100)


def test_equal_arrays_are_one() -> None:
    rng = np.random.default_rng(1)
    a = rng.standard_normal((64, 64)).astype(np.float32)
    sparse = np.zeros((64, 64), np.float32)
    other = sparse.copy()
    other[13, 7] = 1  # between the elements that are looked at first
    arena = WeightArena()
    places = [arena.place(x) for x in (a, sparse, a.copy(), other, sparse.copy(), a, other.copy())]
    assert places == [0, 16384, 0, 32768, 16384, 0, 32768]
    assert arena.size == 3 * 16384 and len(arena.arrays) == 3
    content = bytes(WeightsContent(arena).view)
    assert content == a.tobytes() + sparse.tobytes() + other.tobytes()


def test_arrays_of_the_caller_are_those_of_the_compile() -> None:
    """What is written to after the compile is not exported; a frozen copy is not made twice."""
    a = np.arange(4096, dtype=np.float32)
    arena = WeightArena()
    arena.place(a.reshape(64, 64).T)
    content = WeightsContent(arena)
    want = np.arange(4096, dtype=np.float32).reshape(64, 64).T.tobytes()
    a[:] = 0
    assert bytes(content.view) == want == b"".join(content.chunks())


def test_a_model_file_that_was_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "w.bin"
    file.write_bytes(np.arange(100_000, dtype=np.float32).tobytes())
    arena = WeightArena()
    arena.place(np.frombuffer(map_path(file), np.float32))
    content = WeightsContent(arena)
    want = file.read_bytes()
    assert b"".join(content.chunks()) == want + bytes(-len(want) % 64)
    replaced = tmp_path / "new"
    replaced.write_bytes(bytes(8))
    replaced.replace(file)  # another file of that name: the one that was read lives on
    assert b"".join(content.chunks())[: len(want)] == want

    again = tmp_path / "again.bin"
    again.write_bytes(want)
    arena = WeightArena()
    arena.place(np.frombuffer(map_path(again), np.float32))
    content = WeightsContent(arena)
    with again.open("r+b") as stream:
        stream.truncate(10)
    with pytest.raises(UserError, match="written to after it was read") as caught:
        list(content.chunks())
    assert caught.value.code == "changed-file"
