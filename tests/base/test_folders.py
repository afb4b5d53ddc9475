"""What writes a folder, or files into one: nothing is touched but what a former run wrote."""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base import folders
from tensorkiln.base.errors import UserError
from tensorkiln.base.folders import atomic_dir, write_files
from tensorkiln.cli.run import _write as write_outputs
from tensorkiln.inspectors import Inspectors
from tensorkiln.inspectors.extract import extract
from tensorkiln.link.headers import write_headers
from tensorkiln.passes.instruments import Dump
from tests.transform.graphs import graph

SET = tk.ArtifactSet((tk.Artifact("llvm", "text", "a/b.txt", b"ours"),))
MODULE = graph(lambda g, x: g.relu(x), x=(2, 3))


def archive(path: Path) -> None:
    compiled().export_model_library_format(path, name="net")


@cache
def compiled() -> tk.Executable:
    return tk.compile(MODULE)


def outputs(path: Path) -> None:
    write_outputs(path, ["y"], [np.zeros(3, np.float32)])


def dump(path: Path) -> None:
    Dump(path)._write("00-input", MODULE)


def made(path: Path) -> None:
    with atomic_dir(path) as folder:
        write_files(folder, {"one.txt": "ours"})


# How each writes, and a file that it leaves.
WHOLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "save": (SET.save, "llvm/a/b.txt"),
    "extract": (lambda p: extract(SET, Inspectors(()), p, warn=print), "llvm/a/b.txt"),
    "archive": (archive, "codegen/host/include/kiln_net.h"),
    "atomic_dir": (made, "one.txt"),
}
AMONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "headers": (lambda p: write_headers(p, {"net.h": "/* net */"}), "kiln.h"),
    "outputs": (outputs, "y.npy"),
    "dump": (dump, "00-input.py"),
    "files": (lambda p: write_files(p, {"one.txt": "ours"}), "one.txt"),
    "files in folders": (lambda p: write_files(p, {"a/b/one.txt": "ours"}), "a/b/one.txt"),
}
WRITERS = {**WHOLE, **AMONG}


def tree(folder: Path) -> dict[str, object]:
    """Everything below a folder; links as what they say."""
    return {
        str(p.relative_to(folder)): str(p.readlink())
        if p.is_symlink()
        else p.read_bytes()
        if p.is_file()
        else p.stat().st_ino
        for p in sorted(folder.rglob("*"))
    }


def refuses(writer: Callable[[Path], object], path: Path | str, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        writer(path)  # type: ignore[arg-type]
    assert caught.value.code in ("cannot-write", "bad-path"), caught.value
    for word in words:
        assert word in str(caught.value), str(caught.value)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_ours_is_replaced(name: str, tmp_path: Path) -> None:
    writer, left = WRITERS[name]
    for path in (tmp_path / "out", f"{tmp_path}/slash/", tmp_path / "." / "dot"):
        writer(path)  # type: ignore[arg-type]
        before = (Path(path) / left).read_bytes()
        writer(path)  # type: ignore[arg-type]
        assert (Path(path) / left).read_bytes() == before
    (tmp_path / "empty").mkdir()
    writer(tmp_path / "empty")
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"out", "slash", "dot", "empty"}


def foreign_file(path: Path, left: str) -> str:
    path.mkdir()
    (path / "thesis.txt").write_text("dear")
    return "thesis.txt"


def foreign_in_its_place(path: Path, left: str) -> str:
    (path / left).parent.mkdir(parents=True)
    (path / left).write_text("dear")
    return left.split("/")[0]


def foreign_manifest(path: Path, left: str) -> str:
    """What older versions took for a sign that all is theirs."""
    foreign_in_its_place(path, left)
    (path / "manifest.json").write_text('{"version": 1, "artifacts": [], "imports": []}')
    (path / ".kiln-files.json").write_text('{"version": 1, "files": {}}')
    return "in it was not written by a former run"


def foreign_folder(path: Path, left: str) -> str:
    (path / left).mkdir(parents=True)
    return left.split("/")[0]


def link_in_its_place(path: Path, left: str) -> str:
    (path.parent / "elsewhere").write_text("dear")
    (path / left).parent.mkdir(parents=True)
    (path / left).symlink_to(path.parent / "elsewhere")
    return left.split("/")[0]


def file_in_place_of_the_folder(path: Path, left: str) -> str:
    path.write_text("dear")
    return "a file has that name"


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "there",
    [
        foreign_file,
        foreign_in_its_place,
        foreign_manifest,
        foreign_folder,
        link_in_its_place,
        file_in_place_of_the_folder,
    ],
)
def test_what_is_not_ours(name: str, there: Callable[[Path, str], str], tmp_path: Path) -> None:
    writer, left = WRITERS[name]
    word = there(tmp_path / "out", left)
    before = tree(tmp_path)
    if name in AMONG and there is foreign_file:
        writer(tmp_path / "out")
        assert (tmp_path / "out" / "thesis.txt").read_text() == "dear"
        return
    refuses(writer, tmp_path / "out", str(tmp_path / "out"), word)
    after = tree(tmp_path)
    assert {k: v for k, v in after.items() if k in before} == before


def edit(path: Path, left: str) -> str:
    (path / left).write_text("mine now")
    return left


def add(path: Path, left: str) -> str:
    (path / left).with_name("mine.txt").write_text("mine")
    return "mine.txt"


def add_folder(path: Path, left: str) -> str:
    (path / "mine").mkdir()
    return "mine"


def add_link(path: Path, left: str) -> str:
    (path / "mine").symlink_to("/etc")
    return "mine"


def replace_by_link(path: Path, left: str) -> str:
    content = (path / left).read_bytes()
    (path / left).unlink()
    (path.parent / "mine").write_bytes(content)
    (path / left).symlink_to(path.parent / "mine")
    return left


def edit_manifest(path: Path, left: str) -> str:
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace('"text"', '"mine"'))
    return ""


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(
    "change", [edit, add, add_folder, add_link, replace_by_link, edit_manifest]
)
def test_what_was_ours_and_was_changed(
    name: str, change: Callable[[Path, str], str], tmp_path: Path
) -> None:
    writer, left = WRITERS[name]
    writer(tmp_path / "out")
    if change is edit_manifest and not (tmp_path / "out" / "manifest.json").exists():
        return
    word = change(tmp_path / "out", left)
    before = tree(tmp_path)
    if name in AMONG and change in (add, add_folder, add_link):
        writer(tmp_path / "out")
    else:
        refuses(writer, tmp_path / "out", str(tmp_path / "out"), word)
    assert tree(tmp_path) == before


PATHS = {
    "empty": "",
    "zero": "a\0b",
    "half": "a\ud800b",
    "long": "x" * 300,
    "below a file": "file/out",
    "in /proc": "/proc/kiln/out",
}


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("path", [*PATHS, ".", "..", "/", "folder/..", "link", "newline"])
def test_paths(name: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, left = WRITERS[name]
    (tmp_path / "here" / "folder").mkdir(parents=True)
    (tmp_path / "here" / "file").write_text("dear")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "here")
    before = tree(tmp_path)
    if path == "newline":
        writer(Path("a\nb"))
        assert (tmp_path / "here" / "a\nb" / left).exists()
        return
    if name in AMONG and path in (".", "..", "folder/..", "link"):
        writer(Path(path))  # beside what is there
        after = tree(tmp_path)
        assert {k: after[k] for k in before} == before
        return
    if name in AMONG and path == "/":
        return  # it would
    given = PATHS.get(path, path)
    refuses(writer, given, repr(given)[1:-1][:200])
    assert tree(tmp_path) == before


FILES: dict[str, Callable[[str], object]] = {
    f"net{suffix}": lambda path: tk.compile(MODULE).export_library(path)
    for suffix in (".so", ".a", ".o", ".tar")
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"folder{name}").mkdir()
    (tmp_path / "file").write_text("")
    before = tree(tmp_path)
    for path in ("missing/", "a\0", "a\ud800", "x" * 300, "file/", "folder", "/proc/"):
        with pytest.raises(UserError) as caught:
            FILES[name](f"{path}{name}")
        assert caught.value.code in ("cannot-write", "bad-path")
        assert path[:5].strip("\0\ud800") in str(caught.value)
        assert tree(tmp_path) == before


AS_NOBODY = """
import os, sys, tempfile
from pathlib import Path
from tests.base.test_folders import WRITERS, refuses
with tempfile.TemporaryDirectory() as place:  # imports what nobody may be unable to read
    for name, (writer, left) in WRITERS.items():
        writer(Path(place) / name)
os.setgid(65534), os.setuid(65534)
for name, (writer, left) in WRITERS.items():
    for path in (Path(sys.argv[1]), Path(sys.argv[1]) / "new"):
        refuses(writer, path, "permission denied", str(path), "a place that you may write to")
print("fine")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_without_permission() -> None:
    """In a folder that others may look into."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o755)
        command = [sys.executable, "-c", AS_NOBODY, place]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )
        assert done.stdout.endswith("fine\n"), done.stderr
        assert not list(Path(place).iterdir())


# -- several at once, and Ctrl-C -------------------------------------------------------------------

SETS = [
    tk.ArtifactSet(tuple(tk.Artifact("c", "text", f"{i}.txt", b"%d" % n) for i in range(4)))
    for n in range(6)
]
AGAIN = """
import sys
from tests.base.test_folders import SETS
for _ in range(15):
    SETS[int(sys.argv[1])].save(sys.argv[2])
"""


def test_six_threads_and_two_processes_save_to_one_folder(tmp_path: Path) -> None:
    place, failed = tmp_path / "set", list[BaseException]()

    def again(artifacts: tk.ArtifactSet) -> None:
        try:
            for _ in range(25):
                artifacts.save(place)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=again, args=(s,)) for s in SETS]
    root = Path(__file__).parents[2]
    others = [
        subprocess.Popen([sys.executable, "-c", AGAIN, str(n), str(place)], cwd=root)
        for n in range(2)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [other.wait() for other in others] == [0, 0] and not failed, failed
    assert [p.name for p in tmp_path.iterdir()] == ["set"]
    assert tk.ArtifactSet.load(place) in SETS


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("name", [*WRITERS, "net.tar"])
def test_interrupted_at_any_moment(name: str, tmp_path: Path) -> None:
    """What is there is of one run, whole, and nothing lies beside it."""
    writer = FILES[name] if name in FILES else WRITERS[name][0]
    path = tmp_path / ("net.tar" if name in FILES else "out")
    writer(path)  # type: ignore[arg-type]
    before = {k: v for k, v in tree(tmp_path).items() if isinstance(v, bytes)}
    rng, interrupted = random.Random(name), 0
    main = threading.get_ident()
    started = time.perf_counter()
    writer(path)  # type: ignore[arg-type]
    takes = time.perf_counter() - started
    for _ in range(40):
        timer = threading.Timer(
            rng.random() * takes, lambda: signal.pthread_kill(main, signal.SIGINT)
        )
        try:
            timer.start()
            writer(path)  # type: ignore[arg-type]
            timer.join()
            time.sleep(0.001)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        after = {k: v for k, v in tree(tmp_path).items() if isinstance(v, bytes)}
        assert {k: v for k, v in after.items() if not k.endswith(".kiln-files.json")} == {
            k: v for k, v in before.items() if not k.endswith(".kiln-files.json")
        }
    assert interrupted


def test_interrupted_between_any_two_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a save, and of the context managers that it goes through, in turn."""
    # 400 saves wait for a disk as long as others write to it, which took a minute.
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    SETS[0].save(tmp_path / "set")
    expected = sorted(tree(tmp_path))
    for number in itertools.count(random.randrange(20), 20):
        left = number

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:  # as the interpreter does between two lines
                signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)  # type: ignore[operator, misc]
            return trace

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            sys.settrace(trace)  # type: ignore[arg-type]
            SETS[number % 6].save(tmp_path / "set")
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
        assert sorted(tree(tmp_path)) == expected, number
        tk.ArtifactSet.load(tmp_path / "set")
        if left > 0:
            break
    assert number > 200


def test_a_folder_of_which_a_file_has_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the user's")
    before = tree(tmp_path)
    with pytest.raises(UserError, match="cannot write") as caught:
        write_files(tmp_path, {"one.txt": "ours", "a/one.txt": "ours"})
    assert caught.value.code == "cannot-write" and "a" in caught.value.message
    assert tree(tmp_path) == before


def test_a_folder_that_another_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may lock a folder that he may read: a write fails in the end, and leaves nothing."""
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.1)
    locked = tmp_path / "shared"
    locked.mkdir()
    handle = os.open(locked, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    for write in (
        lambda: write_files(locked, {"a": b"x"}),
        lambda: SET.save(locked / "set"),
    ):
        with pytest.raises(UserError, match="another process has locked it") as caught:
            write()
        assert caught.value.code == "cannot-write"
    assert list(locked.iterdir()) == []
    os.close(handle)
    write_files(locked, {"a": b"x"})
