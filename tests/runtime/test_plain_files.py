"""What is no plain file is refused at once: a pipe would be waited for, some devices never end."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.artifact.artifact_set import MANIFEST
from tensorkiln.artifact.manifest import listed_artifacts
from tensorkiln.artifact.weights_check import verify_library
from tensorkiln.artifact.weights_file import verify_weights
from tensorkiln.base.cache import Cache, key_of
from tensorkiln.base.errors import UserError
from tensorkiln.base.folders import LIST, listed_files, write_files
from tensorkiln.frontend.onnx import from_onnx
from tensorkiln.inspectors.subject import open_subject
from tensorkiln.link.libraries import symbols_of_libraries
from tensorkiln.link.shared import link_shared
from tensorkiln.runtime import load_module, read_metadata
from tensorkiln.target.tags import read_file
from tests.hosts.build import build, require, run
from tests.hosts.conftest import HERE
from tests.link import sample


def _sparse(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


THINGS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "link to a pipe": lambda path: (os.mkfifo(f"{path}.x"), path.symlink_to(f"{path}.x")),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "socket": lambda path: os.mknod(path, stat.S_IFSOCK | 0o600),
    "folder": lambda path: path.mkdir(),
    "a terabyte of zeros": _sparse,
}
KEY = key_of({})


def _cached(path: Path) -> object:
    cache = Cache(path / "cache")
    cache.put(KEY, b"x")
    file = cache.root / "objects" / KEY[:2] / KEY[2:]
    file.unlink()
    (path / "thing").rename(file)
    assert cache.get(KEY) is None
    assert Cache(file).get(KEY) is None
    cache.explain({})
    return None


# Everything that reads a file by a name, called with a folder whose `thing` it is to read.
READERS: dict[str, Callable[[Path], object]] = {
    "load_module": lambda f: load_module(f / "thing"),
    "load_module, verified": lambda f: load_module(f / "thing", verify=True),
    "read_metadata": lambda f: read_metadata(f / "thing"),
    "from_onnx": lambda f: from_onnx(f / "thing"),
    "inspect": lambda f: open_subject(f / "thing").files[0].name,
    "tags": lambda f: read_file(f / "thing"),
    "verify_library": lambda f: verify_library(f / "thing"),
    "verify_weights": lambda f: verify_weights(f / "thing", 64),
    "libraries": lambda f: symbols_of_libraries([str(f / "thing")]),
    "an archive": lambda f: symbols_of_libraries([str((f / "thing").rename(f / "x.a"))]),
    "objects": lambda f: link_shared(
        [f / "thing"], {}, None, f / "net.so", triple=sample.TRIPLE, fcompile="false"
    ),
    "a set's list": lambda f: tk.ArtifactSet.load((f / "thing").rename(f / MANIFEST).parent),
    "a former list": lambda f: listed_files((f / "thing").rename(f / LIST).parent),
    "a former set": lambda f: listed_artifacts((f / "thing").rename(f / MANIFEST).parent),
    "where it writes": lambda f: write_files(f, {"thing": b"x"}),
    "the cache": _cached,
}
ANSWERS = {"libraries", "an archive", "a former list", "a former set", "the cache"}  # nothing found


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """Who waits for a pipe ends here, with a traceback that says where."""

    def late(number: int, frame: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings("ignore:.*cache.* is not used")
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("thing", THINGS)
def test_what_is_no_plain_file(tmp_path: Path, reader: str, thing: str) -> None:
    THINGS[thing](tmp_path / "thing")
    if reader in ANSWERS:
        assert not READERS[reader](tmp_path)
        return
    if thing == "a terabyte of zeros" and reader in ("inspect", "objects"):
        return  # any file can be looked at; what is linked is copied, however large
    with pytest.raises(UserError) as caught:
        READERS[reader](tmp_path)
    assert "/dev/" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


# -- in C ------------------------------------------------------------------------------------------

# Reports each descriptor that a program started meanwhile would inherit.
WATCH = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
static void check(const char *name, const char *what, int closes)
{
    fprintf(stderr, "%s %s %s\n", closes ? "closed:" : "inherited:", name, what);
}
#define OPEN(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list more; \
        va_start(more, flags); \
        const int mode = va_arg(more, int); \
        va_end(more); \
        check(#name, path, (flags & O_CLOEXEC) != 0); \
        return ((int (*)(const char *, int, int))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
FILE *fopen(const char *path, const char *mode)
{
    check("fopen", path, strchr(mode, 'e') != NULL);
    return ((FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen"))(path, mode);
}
#define ONE(name, type) \
    int name(type what) \
    { \
        check(#name, "", 0); \
        return ((int (*)(type))dlsym(RTLD_NEXT, #name))(what); \
    }
ONE(mkstemp, char *)
ONE(pipe, int *)
ONE(epoll_create, int)
int socket(int domain, int type, int protocol)
{
    check("socket", "", (type & SOCK_CLOEXEC) != 0);
    return ((int (*)(int, int, int))dlsym(RTLD_NEXT, "socket"))(domain, type, protocol);
}
int memfd_create(const char *name, unsigned flags)
{
    check("memfd_create", name, (flags & 1) != 0);
    return ((int (*)(const char *, unsigned))dlsym(RTLD_NEXT, "memfd_create"))(name, flags);
}
"""


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with its weights in a file beside it."""
    from tensorkiln.kernels.case import rand
    from tests.transform.graphs import graph

    folder = tmp_path_factory.mktemp("beside")
    compiled = tk.compile(graph(lambda g, x: g.matmul(x, rand(40, 24)), x=(2, 40)))
    return compiled.export_library(folder / "net.so", weights="beside")


def test_descriptors_are_not_inherited(beside: Path, tmp_path: Path) -> None:
    """A host in C loads a library, which reads /proc and its weights."""
    (tmp_path / "watch.c").write_text(WATCH)
    gcc, crt, hosts = require("gcc"), "tensorkiln/crt", "tensorkiln/hosts"
    watch, host = tmp_path / "watch.so", tmp_path / "host"
    build(gcc, "-shared", "-fPIC", tmp_path / "watch.c", "-o", watch, "-ldl")
    root = HERE.parents[1]
    # gnu99 as most are; c99 hides O_CLOEXEC from the header
    for std in ("-std=c99", "-std=gnu99"):
        include = ("-I", root / crt, "-I", root / hosts)
        build(gcc, std, *include, HERE / "refusals.c", "-o", host, "-ldl", "-lpthread")
        process = run(
            "env",
            f"LD_PRELOAD={watch}",
            host,
            beside,
            "main",
            "in:float32:2x40",
            "out:float32:2x24",
        )
        assert process.stdout.startswith("0"), process.stdout + process.stderr
        assert "inherited:" not in process.stderr
        closed = [line for line in process.stderr.splitlines() if line.startswith("closed:")]
        assert {Path(line).name for line in closed} >= {beside.name, "net.safetensors"}


def test_every_call_that_opens_says_so() -> None:
    """Also those that no test reaches. A new way to make a descriptor is a word more here."""
    opens = re.compile(
        r"(?<![.>\w])(?:open(?:at|64)?|fopen|freopen|mkos?temp|memfd_create|socket|accept4?|pipe2?|dup[23]?|"
        r"epoll_create1?|eventfd|inotify_init1?|opendir|shm_open|popen|system)\s*\("
    )
    package = Path(tk.__file__).parent
    is_closed = {}
    for file in sorted([*package.glob("crt/*.[ch]"), *package.glob("hosts/*.h*")]):
        for line in file.read_text().splitlines():
            if opens.search(line.partition("/*")[0]) and not line.lstrip().startswith("*"):
                is_closed[f"{file.name}: {line.strip()}"] = "CLOEXEC" in line
    assert len(is_closed) == 3, is_closed
    assert all(is_closed.values()), is_closed


@pytest.mark.parametrize("thing", sorted(set(THINGS) - {"a terabyte of zeros"}))
def test_weights_that_are_no_plain_file(beside: Path, tmp_path: Path, thing: str) -> None:
    """In C, where the library maps them."""
    library = tmp_path / "net.so"
    library.write_bytes(beside.read_bytes())
    THINGS[thing](tmp_path / "net.safetensors")
    with pytest.raises(UserError, match=r"net\.safetensors|opened|not an exported file of weights"):
        load_module(library)
