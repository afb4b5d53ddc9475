"""A file that comes to lie where a library was loaded from: what is opened is the file that lies
there now, and what was opened stays what it was."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import c
from tests.hosts.build import c_program
from tests.hosts.conftest import in_each, program
from tests.transform.graphs import graph

AGAIN = in_each("again")
CALLERS = ["Python", *AGAIN]


class Caller(ABC):
    """Opens one path again and again."""

    @abstractmethod
    def tell(self, word: str) -> list[float]:
        """`o` opens, `c` closes the eldest; what all that are open make of a 1."""

    @abstractmethod
    def end(self) -> None:
        """Close all."""


class InPython(Caller):
    def __init__(self, path: Path):
        self.path, self.all = path, list[tk.runtime.Module]()

    def tell(self, word: str) -> list[float]:
        if word == "o":
            self.all.append(tk.runtime.load_module(self.path))
        else:
            self.all.pop(0).close()
        return [answer(library) for library in self.all]

    def end(self) -> None:
        for library in self.all:
            library.close()


class Elsewhere(Caller):
    def __init__(self, host: Path, path: Path):
        pipe = subprocess.PIPE
        # Relative: a program may go to another folder in between.
        command = [str(host), path.name]
        self.run = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=path.parent)

    def tell(self, word: str) -> list[float]:
        assert self.run.stdin and self.run.stdout
        self.run.stdin.write(word)
        self.run.stdin.flush()
        return [float(number) for number in self.run.stdout.readline().split()]

    def end(self) -> None:
        assert self.run.communicate(timeout=60)[0] == "" and self.run.returncode == 0


def answer(library: tk.runtime.Module) -> float:
    x = np.ones((1, 1), np.float32)
    return float(tk.runtime.Executor(library, tk.cpu())["main"](x).numpy()[0, 0])


@pytest.fixture
def caller(programs: Path, tmp_path: Path) -> Iterator[Callable[[str, Path], Caller]]:
    callers: list[Caller] = []

    def make(name: str, path: Path) -> Caller:
        callers.append(
            InPython(path) if name == "Python" else Elsewhere(program(AGAIN, name, programs), path)
        )
        return callers[-1]

    yield make
    for opened_caller in callers:
        opened_caller.end()


@pytest.fixture(scope="module")
def versions() -> list[tk.Executable]:
    """Of the same code and metadata: they differ in weights alone."""
    weights = [c([[n]]) for n in (2, 3, 4)]
    return [tk.compile(graph(lambda g, x, w=w: g.matmul(x, w), x=(1, 1))) for w in weights]


Place = Callable[[tk.Executable, Path, str], None]


def export(version: tk.Executable, path: Path, weights: str) -> None:
    version.export_library(path, weights=weights)


def rename(version: tk.Executable, path: Path, weights: str) -> None:
    """As a build system would."""
    (path.parent / "new").mkdir(exist_ok=True)
    library = version.export_library(path.parent / "new" / path.name, weights=weights)
    if weights == "beside":
        library.with_suffix(".safetensors").replace(path.with_suffix(".safetensors"))
    library.replace(path)


def link(version: tk.Executable, path: Path, weights: str) -> None:
    """As releases are switched."""
    place = path.parent / f"release-{len(list(path.parent.iterdir()))}"
    place.mkdir()
    library = version.export_library(place / path.name, weights=weights)
    (place / "link").symlink_to(library)
    (place / "link").replace(path)


def hard_link(version: tk.Executable, path: Path, weights: str) -> None:
    place = path.parent / f"release-{len(list(path.parent.iterdir()))}"
    place.mkdir()
    library = version.export_library(place / path.name, weights=weights)
    for suffix in (".safetensors", ".so") if weights == "beside" else (".so",):
        path.with_suffix(suffix).unlink(missing_ok=True)
        os.link(library.with_suffix(suffix), path.with_suffix(suffix))


@pytest.mark.in_turn("name")
@pytest.mark.parametrize("weights", ["embedded", "beside"])
@pytest.mark.parametrize("place", [export, rename, link, hard_link])
@pytest.mark.parametrize("name", CALLERS)
def test_the_file_that_lies_there_now(
    name: str,
    place: Place,
    weights: str,
    caller: Callable[[str, Path], Caller],
    versions: list[tk.Executable],
    tmp_path: Path,
) -> None:
    path = tmp_path / "net.so"
    host = caller(name, path)
    place(versions[0], path, weights)
    assert host.tell("o") == [2]
    assert host.tell("o") == [2, 2]
    place(versions[1], path, weights)
    assert host.tell("o") == [2, 2, 3]
    assert host.tell("c") == [2, 3]
    place(versions[2], path, weights)
    assert host.tell("o") == [2, 3, 4]
    assert host.tell("c") == [3, 4]
    place(versions[0], path, weights)  # all former ones but two are closed
    assert host.tell("o") == [3, 4, 2]
    assert host.tell("o") == [3, 4, 2, 2]


def test_written_into_while_it_is_open(versions: list[tk.Executable], tmp_path: Path) -> None:
    """As `cp` does: the file that is mapped gets another content, and nothing of it can be run any
    more, so this needs a process of its own."""
    path, other_path = tmp_path / "net.so", tmp_path / "other.so"
    versions[0].export_library(path)
    versions[1].export_library(other_path)
    script = (
        "import os, shutil, sys, tensorkiln as tk\n"
        "from tensorkiln.base.errors import UserError\n"
        "first = tk.runtime.load_module(sys.argv[1])\n"
        "shutil.copyfile(sys.argv[2], sys.argv[1])\n"
        "try: tk.runtime.load_module(sys.argv[1])\n"
        "except UserError as error: print(error.code, error, flush=True)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, str(path), str(other_path)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.stdout.startswith(f"changed-file '{path}' is loaded, and was written into"), (
        process
    )
    library = tk.runtime.load_module(path)  # it was not loaded here
    assert answer(library) == 3
    library.close()
    shutil.copyfile(tmp_path / "other.so", path)
    library = tk.runtime.load_module(path)
    assert answer(library) == 3
    library.close()


@pytest.mark.parametrize("weights", ["embedded", "beside"])
def test_one_file_is_one_library(
    weights: str, versions: list[tk.Executable], tmp_path: Path
) -> None:
    """By whatever name, and what debuggers get to see leads to it."""
    path = versions[0].export_library(tmp_path / "net.so", weights=weights)
    (tmp_path / "link.so").symlink_to(path)
    names = [path, tmp_path / "link.so", tmp_path / "." / "net.so", Path(os.path.relpath(path))]
    all_of_it = [tk.runtime.load_module(name) for name in names]
    assert len({library.library.handle for library in all_of_it}) == 1
    assert Path(_named(all_of_it[0])).resolve() == path
    for library in all_of_it:
        assert answer(library) == 2
        library.close()
    assert str(path) not in Path("/proc/self/maps").read_text()


def _named(library: tk.runtime.Module) -> str:
    """What the system calls it: dladdr()."""

    class Info(ctypes.Structure):
        _fields_ = [("name", ctypes.c_char_p)] + [(k, ctypes.c_void_p) for k in "abc"]

    info = Info()
    address = ctypes.cast(library.library.dll.kiln_open, ctypes.c_void_p)
    assert ctypes.CDLL(None).dladdr(address, ctypes.byref(info))
    return (info.name or b"").decode()


def test_jit_twice(versions: list[tk.Executable]) -> None:
    assert [answer(version.jit()) for version in (*versions, versions[0])] == [2, 3, 4, 2]


@pytest.mark.parametrize("weights", ["embedded", "beside"])
def test_while_somebody_exports(
    weights: str, versions: list[tk.Executable], tmp_path: Path
) -> None:
    """Each load gives one of the versions whole, metadata, code and weights; with weights beside,
    of two files of which one is there already, an error that says so."""
    path = versions[0].export_library(tmp_path / "net.so", weights=weights)
    stop = threading.Event()

    def again() -> None:
        while not stop.is_set():
            for version in versions:
                version.export_library(path, weights=weights)

    thread = threading.Thread(target=again)
    thread.start()
    answers = set()
    try:
        for _ in range(60):
            try:
                library = tk.runtime.load_module(path)
            except UserError as error:
                assert (weights, error.code) == ("beside", "bad-weights")
                continue
            answers.add(answer(library))
            library.close()
    finally:
        stop.set()
        thread.join()
    assert answers <= {2, 3, 4} and answers


IDENTIFIES = """
#include "kiln_library_file.h"
#include <stdio.h>

int main(int count, char **values)
{
    struct stat status;
    uint64_t identity[4];
    if (count != 2 || stat(values[1], &status) != 0)
        return 1;
    kiln_host_identify(&status, identity);
    printf("%llu", (unsigned long long)identity[3]);
    return 0;
}
"""


def test_changes_within_a_second_are_told_apart(tmp_path: Path) -> None:
    source, file = tmp_path / "identifies.c", tmp_path / "file"
    source.write_text(IDENTIFIES)
    file.write_bytes(b"")
    program_path = c_program(source, tmp_path / "identifies", "-D_GNU_SOURCE")
    for time_ns in (1_000_000_000_000_000_001, 1_000_000_000_000_000_002, 5):
        os.utime(file, ns=(time_ns, time_ns))
        process = subprocess.run([program_path, file], capture_output=True, text=True, check=True)
        assert int(process.stdout) == time_ns
