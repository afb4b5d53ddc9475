from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base import walk
from tensorkiln.base.errors import UserError
from tensorkiln.base.files import (
    atomic_open,
    atomic_path,
    atomic_write,
    open_inside,
    resolve_inside,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"abc", b"abc"),
        ("gr\u00fc\u00df", "gr\u00fc\u00df".encode()),
        (memoryview(b"xyz"), b"xyz"),
        ([b"a", memoryview(b"b"), b""], b"ab"),
    ],
)
def test_write(tmp_path: Path, content: bytes, expected: bytes) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"former, longer content")
    atomic_write(file, content)
    assert file.read_bytes() == expected
    assert names(tmp_path) == ["out"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path: Path) -> None:
    atomic_write(tmp_path / "ours", b"")
    (tmp_path / "plain").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_failure_keeps_the_former_content_and_no_remains(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"former")
    with pytest.raises(ZeroDivisionError), atomic_open(file) as stream:
        stream.write(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"former"
    assert names(tmp_path) == ["out"]


def test_tool_that_removes_and_rewrites_its_output(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "out") as temporary:
        assert temporary.parent == tmp_path
        temporary.unlink()
        temporary.write_bytes(b"linked")
    assert (tmp_path / "out").read_bytes() == b"linked"
    assert names(tmp_path) == ["out"]


def test_full_disk_is_a_user_error_without_remains(tmp_path: Path) -> None:
    """A file size limit fails a write as a full disk does, without one."""
    script = textwrap.dedent("""
        import resource, signal, sys
        from tensorkiln.base.errors import UserError
        from tensorkiln.base.files import atomic_write
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            atomic_write(sys.argv[1], [b"x" * (1 << 15)] * 4)
        except UserError as error:
            print(error.code, error)
    """)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("cannot-write cannot write")
    assert "larger than the limit" in done.stdout
    assert names(tmp_path) == []


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write .*no/out.*folder does not exist") as caught:
        atomic_write(tmp_path / "no" / "out", b"")
    assert caught.value.code == "cannot-write"


def test_path_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it is a folder"):
        atomic_write(tmp_path, b"")


def test_read_only_folder(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        # Permissions do not bind root; /proc refuses new files to everybody.
        with pytest.raises(UserError, match="cannot write"):
            atomic_write("/proc/kiln-test", b"")
        return
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="permission denied"):
        atomic_write(tmp_path / "out", b"")
    tmp_path.chmod(0o700)
    assert names(tmp_path) == []


def test_error_about_another_file_keeps_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="source"), atomic_open(tmp_path / "out") as stream:
        stream.write((tmp_path / "source").read_bytes())
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "relative", ["", "..", "a/../../b", "/etc/passwd", "\\x", "C:/x", "a\0b", "a\\..\\..\\b"]
)
def test_names_that_lead_out(tmp_path: Path, relative: str) -> None:
    with pytest.raises(UserError, match="refused path") as caught:
        resolve_inside(tmp_path, relative)
    assert caught.value.code == "unsafe-path"


def test_inside(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"weights")
    with open_inside(tmp_path, "./sub/w.bin") as stream:
        assert stream.read() == b"weights"
    (tmp_path / "link.bin").symlink_to("sub/w.bin")
    with open_inside(tmp_path, "link.bin") as stream:
        assert stream.read() == b"weights"


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read .*w.bin.*no such file") as caught:
        open_inside(tmp_path, "w.bin")
    assert caught.value.code == "missing-file"


def test_symlinks_that_lead_out(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (root / "file").symlink_to(outside / "secret")
    (root / "folder").symlink_to(outside)
    for name in ("file", "folder/secret"):
        with pytest.raises(UserError, match="leads out") as caught:
            open_inside(root, name)
        assert str(outside) in caught.value.hint
        with open_inside(root, name, granted=[outside]) as stream:
            assert stream.read() == b"secret"


class Exchange:
    """Does `change` before system call number `instant` of those that follow a path."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, instant: int, change: Callable[[], object]):
        self.calls = 0
        self._instant, self._change = instant, change
        for name in ("stat", "open", "readlink"):
            monkeypatch.setattr(walk.os, name, self._watched(getattr(os, name)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            if self.calls == self._instant:
                self.calls += 1
                self._change()
            self.calls += 1
            return call(*arguments, **named)

        return watched


@pytest.mark.parametrize("exchanged", ["sub", "sub/deep", "sub/deep/w.bin"])
def test_a_component_exchanged_for_a_link(
    exchanged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever instant another process does it, no byte of the outside is read."""
    outcomes = set()
    for instant in range(100):
        place = tmp_path / str(instant)
        outside = place / "outside" / "sub" / "deep"
        for folder, content in (
            (place / "root" / "sub" / "deep", b"weights"),
            (outside, b"secret"),
        ):
            folder.mkdir(parents=True)
            (folder / "w.bin").write_bytes(content)

        def change(place: Path = place) -> None:
            (place / "root" / exchanged).rename(place / "former")
            (place / "root" / exchanged).symlink_to(place / "outside" / exchanged)

        with monkeypatch.context() as patched:
            exchange = Exchange(patched, instant, change)
            try:
                with open_inside(place / "root", "sub/deep/w.bin") as stream:
                    outcomes.add(stream.read())
            except UserError as error:
                outcomes.add(error.code)
            if exchange.calls <= instant:
                break
    assert instant > 10 and exchange.calls == instant  # the last went on undisturbed
    assert outcomes <= {b"weights", "unsafe-path", "missing-file"} and len(outcomes) > 1


def test_hard_link(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    outside.write_bytes(b"secret")
    (root / "file").hardlink_to(outside)
    with pytest.raises(UserError, match="second hard link"):
        open_inside(root, "file")
    with open_inside(root, "file", granted=[root]) as stream:
        assert stream.read() == b"secret"


def test_what_is_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(UserError, match="not a plain file"):
            open_inside(tmp_path, name)
