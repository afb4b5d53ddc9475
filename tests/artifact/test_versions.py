"""Containers of other versions through every reader: Python's, the runtime's, the page's. They
agree on what is read and on what is in it."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from tensorkiln.artifact import ArtifactSet
from tensorkiln.base.errors import UserError
from tests.artifact.damage import CReader, container_of, python_summary, text, tree_of

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "container.md"
LIB = text("_lib")
LOADER = text("front") + struct.pack("<I", 0)
NEW = text("_signature")
# name -> the node that only a later version knows, or none
NODES = {
    "nothing new": None,
    "an empty node": NEW,
    "a node with content": NEW + b"\1\2\3" * 50,
    "content up to the end": NEW + b"\xff" * (128 - 8 - len(NEW)),
    "a large node": NEW + b"\x55" * (3 << 20),
    "a node like a loader's": NEW + struct.pack("<I", 1 << 31),
    "a short name": text("_"),
    "another library": text("_lib"),
}
VERSIONS = ((1, 0), (1, 1), (1, 7), (1, 0xFFFF), (0, 0), (0, 9), (2, 0), (0xFFFF, 1))


def container(version: tuple[int, int], new: bytes | None) -> bytes:
    """A loader and perhaps a new node, both below the library."""
    nodes = [LIB, LOADER, *([new] if new is not None else [])]
    below = list(range(1, len(nodes)))
    container_bytes = bytearray(
        container_of(nodes, tree_of([0] + [len(below)] * len(nodes), below))
    )
    struct.pack_into("<HH", container_bytes, 8, *version)
    return bytes(container_bytes)


def page_reads(data: bytes) -> bool:
    match = re.search(r"<!-- reader: .*? -->\n```python\n(.*?)```", PAGE.read_text(), re.S)
    assert match is not None
    names: dict[str, object] = {"__name__": "reader"}
    exec(match[1], names)
    try:
        names["read_container"](data)  # type: ignore[operator]
    except Exception as error:
        assert type(error).__name__ == "Damaged", error
        return False
    return True


@pytest.mark.parametrize("node", NODES)
def test_each_version_in_each_reader(node: str, c_reader: CReader) -> None:
    data = [container(version, NODES[node]) for version in VERSIONS]
    new = NODES[node] is not None and NODES[node] != text("_lib")
    expected = [major == 1 and (minor > 0 or not new) for major, minor in VERSIONS]
    summaries = [python_summary(d) for d in data]
    assert [summary is not None for summary in summaries] == expected
    assert c_reader.read(data) == summaries
    assert [page_reads(d) for d in data] == expected
    for d, read in zip(data, expected, strict=True):
        try:
            assert ArtifactSet.from_bytes(d) == ArtifactSet()
        except UserError as error:
            assert node == "another library" or not read
            assert error.code in ("bad-container", "container-version")
