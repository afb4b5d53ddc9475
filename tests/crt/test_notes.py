"""Other files of the process may have notes of any form: a library that looks for the pool of
others reads none that is not there."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.build import build, require
from tests.link import sample

HEAD = struct.pack("<III", 11, 16, 2) + b"tensorkiln\0\0"
OURS = HEAD + struct.pack("<qq", 1, 1 << 40)
# name -> bytes of the note's section, then what the segment's address and size become
NOTES: dict[str, tuple[bytes, int | None, int | None]] = {
    "outside of all segments": (OURS, 0x7000_0000, None),
    "far outside": (OURS, (1 << 64) - 64, None),
    "longer than its segment": (OURS, None, 1 << 30),
    "as long as all memory": (OURS, None, (1 << 64) - 1),
    "a long name": (struct.pack("<III", 0xFFFF_FFFF, 16, 2), None, None),
    "a long content": (struct.pack("<III", 11, 0xFFFF_FFFD, 2) + b"tensorkiln\0\0", None, None),
    "cut off": (HEAD + bytes(8), None, None),
    "only a head": (HEAD[:12], None, None),
    **{
        f"a place elsewhere, protocol {p}": (HEAD + struct.pack("<qq", p, 1 << 40), None, None)
        for p in range(3)
    },
    "a place before": (HEAD + struct.pack("<qq", 1, -(1 << 62)), None, None),
}
RUN = """
import ctypes, sys
import numpy as np
from tensorkiln.runtime import Executor, load_module
others = [ctypes.CDLL(path) for path in sys.argv[2:]]
executor = Executor(load_module(sys.argv[1]))
executor.set_num_threads(4)
assert executor["main"](np.ones((64, 8), np.float32)).shape == (64, 4)
"""


def strange(folder: Path, number: int, name: str) -> Path:
    """A library with that note."""
    content, address, size = NOTES[name]
    row = ", ".join(map(str, content))
    (folder / "note.s").write_text(
        f'.section .note.kiln.pool,"a",%note\n.balign 4\n.byte {row}\n.balign 4\n'
        '.section .note.GNU-stack,"",%progbits\n'
    )
    path = folder / f"{number}.so"
    command = (require("gcc"), "-shared", "-nostdlib", "-Wl,--build-id=none", "-Wl,-z,norelro")
    build(*command, folder / "note.s", "-o", path)
    data = bytearray(path.read_bytes())
    (table,) = struct.unpack_from("<Q", data, 32)
    (count,) = struct.unpack_from("<H", data, 56)
    changed = 0
    for header_offset in range(table, table + 56 * count, 56):
        if struct.unpack_from("<I", data, header_offset)[0] == 4:  # PT_NOTE
            changed += 1
            if address is not None:
                struct.pack_into("<Q", data, header_offset + 16, address)
            if size is not None:
                struct.pack_into("<Q", data, header_offset + 40, size)
    assert changed
    path.write_bytes(data)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="notes of ELF")
def test_notes_of_others(tmp_path: Path) -> None:
    library = sample.build(tmp_path / "mlp.so")
    paths = [strange(tmp_path, i, name) for i, name in enumerate(NOTES)]
    for name, path in [*zip(NOTES, paths, strict=True), ("all", None)]:
        files = [str(p) for p in (paths if path is None else [path])]
        process = subprocess.run(
            [sys.executable, "-c", RUN, str(library), *files],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert process.returncode == 0, f"{name}: {process.returncode} {process.stderr[-2000:]}"
