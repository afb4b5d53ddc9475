"""A file that is exchanged after it was read, and before the dynamic loader opens it: what was
compared with its digest is what runs, and no code of the other file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.build import WARN
from tests.hosts.conftest import REFUSALS, program

# In the place of dlopen(): the first call of a process exchanges the library before.
EXCHANGE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *dlopen(const char *name, int flags)
{
    static int done;
    void *(*next)(const char *, int);
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    if (name != NULL && getenv("EXCHANGE_TO") != NULL && !done++ &&
        rename(getenv("EXCHANGE_FROM"), getenv("EXCHANGE_TO")) != 0)
        abort();
    return next(name, flags);
}
"""
EVIL = """
#include <stdlib.h>
__attribute__((constructor)) static void ran(void) { abort(); }
"""
IN_PYTHON = """
import os, sys
import tensorkiln as tk
path, original = sys.argv[1:]
tk.runtime.load_module(original).close()  # what this imports is loaded before
os.environ["EXCHANGE_TO"] = path
print(sorted(tk.runtime.load_module(path).functions))
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`exchange.so` and `evil.so`."""
    folder = tmp_path_factory.mktemp("exchange")
    for name, text in (("exchange", EXCHANGE), ("evil", EVIL)):
        (folder / f"{name}.c").write_text(text)
        command = ["gcc", *WARN, "-shared", "-fPIC", "-o", f"{name}.so", f"{name}.c", "-ldl"]
        subprocess.run(command, cwd=folder, check=True)
    return folder


def exchanging(files: Path, library: Path, folder: Path) -> tuple[Path, dict[str, str]]:
    """A copy of the library, and the environment in which it is exchanged."""
    path, evil = folder / "net.so", folder / "evil.so"
    shutil.copy(library, path)
    shutil.copy(files / "evil.so", evil)
    return path, {
        "LD_PRELOAD": str(files / "exchange.so"),
        "EXCHANGE_FROM": str(evil),
        "EXCHANGE_TO": str(path),
    }


@pytest.mark.parametrize("language", REFUSALS)
def test_programs(
    library: Path, programs: Path, files: Path, language: str, tmp_path: Path
) -> None:
    host = program(REFUSALS, language, programs)
    path, environment = exchanging(files, library, tmp_path)
    environment["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0"
    process = subprocess.run(
        [host, path, "mian"], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert process.returncode == 0, process
    assert process.stdout.startswith("10\nlibrary mlp has no function 'mian'"), process
    assert path.read_bytes() == (files / "evil.so").read_bytes()  # it was exchanged


def test_python(library: Path, files: Path, tmp_path: Path) -> None:
    path, environment = exchanging(files, library, tmp_path)
    del environment["EXCHANGE_TO"]  # set when all else is loaded
    process = subprocess.run(
        [sys.executable, "-c", IN_PYTHON, str(path), str(library)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process
    assert process.stdout == "['add_one', 'fixed', 'main', 'pair', 'scale', 'split']\n"
    assert path.read_bytes() == (files / "evil.so").read_bytes()
