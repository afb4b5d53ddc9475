"""Libraries come and go while others work: of each that was closed nothing is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorkiln.codegen.host.entry_c import exported_symbols
from tensorkiln.link.shared import link_shared
from tests.emulated.machine import AARCH64
from tests.hosts.build import HERE, WARN, build, require, run
from tests.link import sample

# In each piece of a loop, kernels call what the program hangs in, and some the loader.
HEAD = """
#include <dlfcn.h>
__attribute__((visibility("default"))) void (*piece_hook)(void);
"""
PIECE = "static void dense_rows(void *closure, int64_t begin, int64_t end)\n{\n"
HOOK = "    if (piece_hook)\n        piece_hook();\n"
LOOK = '    dlclose(dlopen("libm.so.6", RTLD_NOW));\n'
SANITIZERS = {
    "none": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
ENVIRONMENT = {
    "none": {},
    "address": {},
    "thread": {  # which has a thread of its own
        "TSAN_OPTIONS": "halt_on_error=1:report_thread_leaks=0",
        "HELPER_THREADS": "1",
    },
}


class Maker:
    """The program and libraries for it, each made once, under one sanitizer."""

    def __init__(self, sanitizer: str, folder: Path):
        self.sanitizer, self.folder = sanitizer, folder
        self.flags = SANITIZERS[sanitizer]
        command = (require("gcc"), "-std=c99", *WARN, *self.flags, "-O1", "-g")
        self.program = folder / "unload"
        build(*command, HERE / "unload.c", "-o", self.program, "-ldl", "-lpthread")

    def library(self, name: str, extra_code: str = "") -> str:
        """A library as the program takes it, with more to do in each piece of its loops."""
        output = self.folder / f"{name}.so"
        if not output.exists():
            assert PIECE in sample.KERNELS
            kernels = HEAD + sample.KERNELS.replace(PIECE, PIECE + HOOK + extra_code)
            link_shared(
                [],
                {"entry.c": sample.entry(name), "kernels.c": kernels},
                sample.DATA,
                output,
                triple=sample.TRIPLE,
                exports=[*exported_symbols(sample.FUNCTIONS, prefix=name), "piece_hook"],
                fcompile=" ".join([require("gcc"), *self.flags]) if self.flags else None,
            )
        return f"{name}={output}"

    def run(self, scenario: str, rounds: int, *libraries: str) -> tuple[int, str]:
        """Status and words of the program."""
        environment = ENVIRONMENT[self.sanitizer]
        process = run(self.program, scenario, str(rounds), *libraries, **environment)
        return process.returncode, process.stdout + process.stderr[-6000:]


@pytest.fixture(scope="module", params=list(SANITIZERS))
def maker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Maker:
    return Maker(request.param, tmp_path_factory.mktemp(f"unload-{request.param}"))


@pytest.mark.in_turn()
@pytest.mark.parametrize("scenario", ["owner", "exit", "late"])
def test_two_libraries(maker: Maker, scenario: str) -> None:
    """The first to start threads goes first, and the other one works on with as many; at exit, and
    while exit() is at work."""
    libraries = maker.library("one"), maker.library("two")
    for _ in range(
        10 if scenario == "exit" else 1
    ):  # where it stands when the process ends is chance
        status, output = maker.run(scenario, 0, *libraries)
        assert (status, output) == (0, ""), output


def test_two_libraries_in_a_child(tmp_path: Path) -> None:
    """Without a sanitizer: that of threads ends a child that starts some, and in a child the lock
    of the address sanitizer's allocator stays as another thread of the parent held it."""
    maker = Maker("none", tmp_path)
    assert maker.run("fork", 0, maker.library("one"), maker.library("two")) == (0, "")


def test_a_thousand_lives(maker: Maker) -> None:
    rounds = 1000 if maker.sanitizer == "none" else 100
    status, output = maker.run("cycles", rounds, maker.library("one"), maker.library("two"))
    assert status == 0, output
    if maker.sanitizer == "none":  # the others keep what is freed
        memory, maps = (int(word) for word in output.split() if word.lstrip("-").isdigit())
        assert memory < 512 and maps <= 2, output


def test_eight_threads_load_call_and_drop(maker: Maker) -> None:
    libraries = [maker.library(name) for name in ("one", "two", "three", "four")]
    rounds = 100 if maker.sanitizer == "none" else 20
    status, output = maker.run("many", rounds, *libraries)
    assert (status, output) == (0, ""), output


def test_kernels_that_want_the_loaders_lock(maker: Maker) -> None:
    """To unload waits for threads that hold nothing and want nothing: not for kernels, which here
    want what dlclose() holds."""
    libraries = maker.library("one"), maker.library("looks", LOOK)
    rounds = 300 if maker.sanitizer == "none" else 50
    status, output = maker.run("lock", rounds, *libraries)
    assert (status, output) == (0, ""), output


def test_a_library_that_unloads_itself(maker: Maker) -> None:
    """Its code would be gone when the kernel returns: the process ends with a sentence instead."""
    status, output = maker.run("inside", 0, maker.library("one"))
    assert status == -6 or (maker.sanitizer != "none" and status != 0)
    assert "tensorkiln: a library was unloaded while one of its functions was running" in output


@pytest.mark.emulated
def test_another_machines_threads_move(tmp_path: Path) -> None:
    """The jump from library to library is assembly. No fork(): qemu does not survive it."""
    AARCH64.require()
    program = AARCH64.build(tmp_path / "unload", HERE / "unload.c")
    libraries = [
        f"{name}={sample.build(tmp_path / f'{name}.so', name=name, triple='aarch64-linux-gnu')}"
        for name in ("one", "two", "three")
    ]
    for scenario, rounds in (("owner", 0), ("cycles", 20), ("many", 5), ("exit", 0), ("late", 0)):
        command = AARCH64.command("cortex-a72", program, scenario, str(rounds), *libraries)
        process = run(*command, HELPER_THREADS="1")  # qemu's own
        assert process.returncode == 0, f"{scenario}: {process.stdout}{process.stderr}"
