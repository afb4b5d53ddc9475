"""The container format: the page that describes it, its two readers, and damaged bytes."""

from __future__ import annotations

import hashlib
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tensorkiln.artifact import Artifact, ArtifactSet, container
from tensorkiln.base.errors import UserError
from tests.artifact.damage import (
    CReader,
    container_of,
    python_summary,
    sealed,
    text,
    tree_of,
)
from tests.golden_artifacts.make import NESTED

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "container.md"
EXAMPLE = ArtifactSet(
    (
        Artifact("host", "native", "add.c", b"int add;"),
        Artifact("npu", "stream", "add.cmd", b"\1\2\3", target_key="npu0"),
    )
)


def hexdump(data: bytes) -> str:
    """Sixteen bytes a line, with what is text; lines of zeros are left out."""
    lines, left_out = [], False
    for offset in range(0, len(data), 16):
        row = data[offset : offset + 16]
        if not any(row):
            left_out = True
            continue
        if left_out:
            lines.append("*")
        left_out = False
        words = " ".join(f"{b:02x}" for b in row)
        text = "".join(chr(b) if 32 <= b < 127 else "." for b in row)
        lines.append(f"{offset:04x}  {words[:23]}  {words[24:]}  {text}".rstrip())
    return "".join(f"    {line}\n" for line in [*lines, f"{len(data):04x}"])


def test_the_page_shows_the_bytes(request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text()
    pattern = re.compile(r"(<!-- hexdump: .*? -->\n\n)(?:    .*\n)*")
    page_with_bytes = pattern.sub(lambda m: m[1] + hexdump(EXAMPLE.to_bytes()), page)
    if request.config.getoption("--bless"):
        PAGE.write_text(page_with_bytes)
        return
    assert page == page_with_bytes, "run pytest --bless"


def test_the_reader_on_the_page_reads_it(tmp_path: Path) -> None:
    match = re.search(r"<!-- reader: .*? -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    assert match is not None
    assert len(match[1].splitlines()) <= 100
    (tmp_path / "reader.py").write_text(match[1])
    (tmp_path / "set").write_bytes(NESTED.to_bytes())

    def read() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", str(tmp_path / "reader.py"), str(tmp_path / "set")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert read().stdout.splitlines() == [
        "0 _lib imports [3, 4]",
        "1 back imports []",
        "   2 a k0 b.txt 64",
        "2 back imports []",
        "   3 a k1 b.txt 0",
        "3 front imports [1, 2]",
        "   0 a - a.txt 5",
        "   4 a - c.txt 11",
        "4 native imports []",
        "   1 b - entry.c 9",
    ]
    data = bytearray(NESTED.to_bytes())
    data[200] ^= 1
    (tmp_path / "set").write_bytes(data)
    assert "Damaged: length or hash do not match" in read().stderr


def test_contents_lie_at_multiples_of_64() -> None:
    data = NESTED.to_bytes()
    assert data.find(b"front") % 64 != 0  # the loader's name
    assert data.find(b"front again") % 64 == 0
    assert data.find(b"int main;") % 64 == 0
    nodes = container.unpack(memoryview(data))
    assert [n.key for n in nodes] == ["_lib", "back", "back", "front", "native"]
    assert nodes[3].children == (1, 2)
    assert b"".join(container.pack(nodes)) == data


def test_a_newer_version_names_both() -> None:
    data = bytearray(EXAMPLE.to_bytes())
    struct.pack_into("<H", data, 8, 2)
    with pytest.raises(UserError, match=r"version 2\.0; this Tensorkiln reads 1\.x") as caught:
        ArtifactSet.from_bytes(bytes(data))
    assert caught.value.code == "container-version"


def test_a_newer_minor_version_may_have_more_nodes() -> None:
    nodes = container.unpack(memoryview(EXAMPLE.to_bytes()))
    nodes[0] = container.Node("_lib", children=(1, 2, 3))
    nodes.append(container.Node("_signature"))
    data = bytearray(b"".join(container.pack(nodes)))
    with pytest.raises(UserError, match="unknown node '_signature'"):
        ArtifactSet.from_bytes(bytes(data))
    struct.pack_into("<H", data, 10, 1)
    assert ArtifactSet.from_bytes(bytes(data)) == EXAMPLE


def body(*nodes: bytes, tree: bytes = b"") -> bytes:
    return container_of(nodes, tree)


tree = tree_of
LIB = text("_lib")
EMPTY = text("x") + struct.pack("<I", 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (sealed(bytes(56)), "truncated|node count"),
        (sealed(bytes(64)), "0 nodes"),
        (sealed(bytes(56) + b"\xff" * 8), "cannot fit"),
        (body(LIB), "1 nodes"),
        (body(LIB, tree=tree([0, 0], [])) + b"", None),
        (body(LIB, tree=text("_imports")), "'_imports'"),
        (body(LIB, EMPTY, tree=tree([0, 1, 1], [1])), None),
        (body(LIB, EMPTY, tree=tree([0, 0, 0], [])), "nobody imports"),
        (body(LIB, EMPTY, tree=tree([0, 1, 1], [2])), "does not exist"),
        (body(LIB, EMPTY, tree=tree([0, 1, 1], [0])), "or the root"),
        (body(LIB, EMPTY, tree=tree([0, 2, 2], [1, 1])), "ascending"),
        (body(LIB, EMPTY, tree=tree([0, 1], [1])), "row pointers for 2 nodes"),
        (body(LIB, EMPTY, tree=tree([0, 2, 1], [1])), "descend|row pointers"),
        (body(LIB, EMPTY, text("y") + b"\0" * 4, tree=tree([0, 1, 2, 3], [1, 2, 1])), "cycle"),
        (body(LIB, EMPTY, EMPTY, tree=tree([0, 2, 2, 2], [1, 2])), "two nodes of one loader"),
        (body(LIB, LIB, tree=tree([0, 1, 1], [1])), "two nodes of one loader"),
        (body(EMPTY, tree=tree([0, 0], [])), "its root is 'x'"),
        (body(LIB, text("x") + b"\xff" * 4, tree=tree([0, 1, 1], [1])), "cannot fit"),
        (body(LIB, b"\xff\xff\xff\x7f", tree=tree([0, 1, 1], [1])), "at most 4096"),
        (body(LIB, b"\1\0\0\0\xff", tree=tree([0, 1, 1], [1])), "not UTF-8"),
        (body(LIB + b"\1", tree=tree([0, 0], [])), "padding"),
        (
            body(
                LIB,
                text("x")
                + struct.pack("<II", 1, 0)
                + text("c")
                + text("../f")
                + text("")
                + b"\0" * 8,
                tree=tree([0, 1, 1], [1]),
            ),
            "not a plain relative path",
        ),
        (
            body(
                LIB,
                text("x")
                + struct.pack("<II", 1, 0)
                + text("c")
                + text("f")
                + text("")
                + b"\xff" * 7
                + b"\x7f",
                tree=tree([0, 1, 1], [1]),
            ),
            "content of 9223372036854775807 bytes|padding",
        ),
    ],
)
def test_hostile_containers(data: bytes, says: str | None, c_reader: CReader) -> None:
    (in_c,) = c_reader.read([data])
    if says is None:
        ArtifactSet.from_bytes(data)
        assert in_c == python_summary(data)
        return
    with pytest.raises(UserError, match=says) as caught:
        ArtifactSet.from_bytes(data)
    assert caught.value.code == "bad-container"
    assert in_c == python_summary(data)


def test_c_knows_sha256(c_reader: CReader) -> None:
    """Lengths around the block size: a container whose hash is right is read."""
    artifact_set = ArtifactSet((Artifact("c", "x", "f", b"", ""),))
    sizes = (*range(0, 70), 127, 128, 1000)
    containers = [artifact_set.replace("f", b"z" * size).to_bytes() for size in sizes]
    for data, in_c in zip(containers, c_reader.read(containers), strict=True):
        assert hashlib.sha256(data[56:]).digest() == data[24:56]
        assert in_c is not None
        assert in_c == python_summary(data)
