"""Cases about what surrounds a library: files, folders, the environment, the disk, other users."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import numpy as np

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, load_module
from tensorkiln.script import from_source
from tests.base.small_disk import on_small_disk
from tests.safety.libraries import NAMES

if TYPE_CHECKING:
    from tests.safety.cases import Place

SECONDS = 10
_SMALL = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    return R.mul(x, R.const(%s, "float32"))
"""


def _python(code: str, *words: object, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(
        command,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def environment(place: Place, rng: Random) -> str:
    """KILN_NUM_THREADS as anybody may set it: an error, or no more threads than processors."""
    value = rng.choice(
        (
            "0",
            "-1",
            "1",
            "",
            "2x",
            "1e9",
            "4294967295",
            "4294967297",
            "9223372036854775808",
            " 7",
            "-4294967295",
            "99999999999999999999",
            "\t1",
        )
    )
    place.say(f"KILN_NUM_THREADS={value!r}")
    code = (
        "import sys; from tensorkiln.runtime import load_module as load\n"
        "try: print(load(sys.argv[1]).library.dll.kiln_get_num_threads())\n"
        "except Exception as error: print(int(error.code == 'bad-knob'))"
    )
    process = _python(code, place.folder / "graphs.so", KILN_NUM_THREADS=value)
    if process.returncode:
        return process.stderr[-600:]
    processor_count, thread_count = len(os.sched_getaffinity(0)), int(process.stdout)
    return (
        ""
        if 1 <= thread_count <= processor_count
        else f"{thread_count} threads, of {processor_count} processors"
    )


def _open_files() -> set[str]:
    return {p.name for p in Path("/proc/self/fd").iterdir()}


def odd_files(place: Place, rng: Random) -> str:
    """What is no library in the place of one: a typed error in no time and little memory, and no
    open file left."""
    kind = rng.choice(("fifo", "folder", "zeros", "device", "empty", "cut", "loop", "rights"))
    place.say(f"load_module of {kind}")
    before = _open_files()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "net.so"
        whole = (place.folder / f"{rng.choice(NAMES)}.so").read_bytes()
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "zeros":
                path.write_bytes(bytes(100))
                os.truncate(path, 1 << 40)
            case "device":
                path = Path(rng.choice(("/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem")))
            case "empty":
                path.touch()
            case "cut":
                path.write_bytes(whole[: rng.randrange(len(whole))])
            case "loop":
                path.symlink_to(path)
            case "rights":
                path.write_bytes(whole)
                path.chmod(0)
        code = (
            "import sys; from tensorkiln.runtime import load_module as load; "
            "from tensorkiln.base.errors import UserError\n"
            "try: load(sys.argv[1])\nexcept (UserError, OSError): pass"
        )
        try:
            process = subprocess.run(
                [sys.executable, "-c", code, str(path)],
                timeout=4 * SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"has not ended after {4 * SECONDS} s"
    if process.returncode:
        return f"ended with {process.returncode}: {process.stderr[-600:]}"
    return "" if _open_files() == before else "a file is left open"


@contextlib.contextmanager
def _cache() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "cache"


def others_cache(place: Place, rng: Random) -> str:
    """A cache that another user owns, or may write to, is not believed: what is in it would run."""
    weakness = rng.choice(("entry owned", "folder owned", "entry writable", "folder writable"))
    if "owned" in weakness and os.geteuid() != 0:
        return ""
    place.say(f"a cache whose {weakness}")
    number = rng.randrange(2, 9)
    code = (
        "import sys, numpy as np, tensorkiln as tk; from tensorkiln.script import from_source\n"
        f"e = tk.compile(from_source({_SMALL % number!r}), tk.Target('native'))\n"
        "print(tk.runtime.Executor(e.jit())['main'](np.ones(4, np.float32)).numpy()[0])"
    )
    with _cache() as cache:
        environ = {"KILN_CACHE_DIR": str(cache), "KILN_CACHE": "1", "XDG_CACHE_HOME": str(cache)}
        first = _python(code, **environ)
        if first.returncode:
            return first.stderr[-600:]
        # The C compiler's own files lie in a folder that nobody else can enter.
        owned_folder = cache / "objects" if "entry" in weakness else cache
        files = [p for p in owned_folder.rglob("*") if p.is_file()]
        folders = [cache, *(p for p in cache.rglob("*") if p.is_dir())]
        for path in files if "entry" in weakness else folders:
            if "owned" in weakness:
                os.chown(path, 12345, 12345)
            else:
                path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o022)
        numbers = {p: p.stat().st_ino for p in files}
        for path in files:  # so that a look is seen, whatever the file system's habits
            os.utime(path, ns=(0, path.stat().st_mtime_ns))
        second = _python(code, **environ)
        old = [p for p in files if p.exists() and p.stat().st_ino == numbers[p]]
        entries_read = [p for p in old if p.stat().st_atime_ns != 0]
    if second.returncode == 0 and entries_read:
        return f"{len(entries_read)} of {len(files)} entries were read from it, and believed"
    return ""


def private_cache(place: Place, rng: Random) -> str:
    """What becomes code lies where nobody else can write, whatever the process's mask is."""
    mask = rng.choice((0, 0o002, 0o022, 0o077))
    place.say(f"a cache made under umask {mask:03o}")
    code = (
        f"import os, sys; os.umask({mask}); import tensorkiln as tk; "
        "from tensorkiln.script import from_source\n"
        f"tk.compile(from_source({_SMALL % 3!r}), tk.Target('native')).jit()"
    )
    with _cache() as cache:
        process = _python(
            code, KILN_CACHE_DIR=str(cache), KILN_CACHE="1", XDG_CACHE_HOME=str(cache)
        )
        if process.returncode:
            return process.stderr[-600:]
        wide = [p for p in (cache, *cache.rglob("*")) if p.stat().st_mode & 0o022]
    return f"others may write {wide[0].name!r} and {len(wide) - 1} more" if wide else ""


def masks(place: Place, rng: Random) -> str:
    """The mask of the process is that of all its threads: nobody changes it, not for a moment."""
    place.say("umask during export_library")
    executable = tk.compile(from_source(_SMALL % rng.randrange(2, 9)), tk.Target("native"))
    calls: list[int] = []
    umask = os.umask
    os.umask = lambda mask: calls.append(mask) or umask(mask)  # type: ignore[func-returns-value]
    try:
        with tempfile.TemporaryDirectory() as name:
            executable.export_library(Path(name) / "net.so").chmod(0o600)
    finally:
        os.umask = umask
    return f"os.umask({calls[0]}) of all threads was called" if calls else ""


def full_disk(place: Place, rng: Random) -> str:
    """No room, at any byte of an export: an error, nothing left of the file, and then it works."""
    limit, is_disk = rng.choice((0, 1, 4096, 20000, 60000, 100000)), rng.random() < 0.5
    place.say(f"export_library with room for {limit} bytes{' of a disk' if is_disk else ''}")
    executable = tk.compile(from_source(_SMALL % 2), tk.Target("native"))
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "net.so"

        def export() -> int:
            try:
                executable.export_library(path)
                load_module(path).close()
                return 0
            except (UserError, OSError):
                leftovers = [p.name for p in path.parent.iterdir()]
                return 9 if leftovers else 7
            except BaseException as error:
                os.write(1, f"! {type(error).__name__}: {error}\n".encode())
                return 8

        if is_disk:
            status = on_small_disk(path.parent, max(limit, 4096), export)
            return "something is left of a file" if status == 9 else ""
        child = os.fork()
        if child == 0:
            import resource
            import signal

            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            os._exit(export())
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            return f"ended by signal {os.WTERMSIG(status)}"
        return "something is left of a file" if os.WEXITSTATUS(status) == 9 else ""


def newer_container(place: Place, rng: Random) -> str:
    """A container of a minor version to come is read by Python and by C alike."""
    data = bytearray((place.folder / "loaders.so").read_bytes())
    container_offset = data.find(b"KILNSET\0")
    minor = rng.choice((1, 2, 255))
    place.say(f"container of version 1.{minor}")
    data[container_offset + 10 : container_offset + 12] = minor.to_bytes(2, "little")
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "net.so"
        path.write_bytes(data)
        module = load_module(path)
        ways = {}
        for who, call in {
            "Python": lambda: module.library.path and tk.runtime.load_module(path).imports,
            "C": lambda: Executor(module)["main"](np.ones((1, 4), np.float32)),
        }.items():
            try:
                call()
                ways[who] = "read"
            except UserError as error:
                ways[who] = "refused" if error.code == "bad-container" else "read"
        module.close()
    return f"Python and C differ: {ways}" if len(set(ways.values())) > 1 else ""


KINDS: dict[str, tuple[int, Callable[[Place, Random], str]]] = {
    "environment": (1, environment),
    "odd_files": (1, odd_files),
    "others_cache": (1, others_cache),
    "private_cache": (1, private_cache),
    "masks": (1, masks),
    "full_disk": (1, full_disk),
    "newer_container": (1, newer_container),
}
