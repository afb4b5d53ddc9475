"""Damaged folders and libraries, and what an independent reader sees in them."""

from __future__ import annotations

import hashlib
import json
import os
import random as random_module
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorkiln.artifact import digest
from tests.artifact.damage import damaged, sealed

# ---- folders ------------------------------------------------------------------------------------

_WORDS: tuple[object, ...] = (
    "",
    ".",
    "..",
    "../x",
    "/etc/passwd",
    "a" * 300,
    "native",
    "npu0",
    "x\0y",
    "\ud800",
    "é",
    "loop",
    "pipe",
    "host",
    5,
    None,
    True,
    [],
    {},
    -1,
    1.5,
    1 << 70,
    ["x"],
    "0" * 64,
)


class DamagedFolder:
    """A copy of a saved set in which one thing after the other is broken and mended again."""

    def __init__(self, saved: Path, place: Path):
        self.folder = place
        self._saved = saved
        shutil.copytree(saved, place)
        (place / "loop").symlink_to("loop")
        os.mkfifo(place / "pipe")
        self._manifest = (saved / "manifest.json").read_bytes()
        self._files = [str(p.relative_to(saved)) for p in saved.rglob("*") if p.is_file()]
        self._touched: list[str] = []

    def mend(self) -> None:
        """As it was."""
        for name in self._touched:
            _remove(self.folder / name)
            shutil.copyfile(self._saved / name, self.folder / name)
        self._touched = []

    def damage(self, random: random_module.Random) -> None:
        """Break the manifest, or a file, or both."""
        if random.random() < 0.8:
            self._touched.append("manifest.json")
            (self.folder / "manifest.json").write_bytes(self._damaged_manifest(random))
        if random.random() < 0.3:
            name = random.choice(self._files)
            self._touched.append(name)
            self._damage_file(random, self.folder / name)

    def _damaged_manifest(self, random: random_module.Random) -> bytes:
        if random.random() < 0.3:
            return bytes(damaged(random, bytearray(self._manifest)))
        parsed: Any = json.loads(self._manifest)
        for _ in range(random.randint(1, 3)):
            self._damage_value(random, parsed)
        return json.dumps(parsed).encode()

    def _damage_value(self, random: random_module.Random, parsed: dict[str, Any]) -> None:
        rows = parsed.get("artifacts")
        fault = random.randrange(8)
        if fault == 0 or not isinstance(rows, list) or not rows:
            parsed[random.choice(("version", "artifacts", "imports"))] = random.choice(_WORDS)
            return
        row = random.choice(rows)
        if fault == 1:
            rows.append(dict(row) if isinstance(row, dict) else row)
        elif fault == 2:
            rows.remove(row)
        elif fault == 3:
            random.shuffle(rows)
        elif fault == 4:
            groups = [[random.choice(("stream", "native", "a", "front")), ""] for _ in range(4)]
            groups += [
                [str(r["loader"]), str(r["target_key"])]
                for r in rows
                if isinstance(r, dict) and "loader" in r and "target_key" in r
            ]
            pairs = [[random.choice(groups), random.choice(groups)] for _ in range(3)]
            parsed["imports"] = pairs
        elif isinstance(row, dict) and row:
            key = random.choice(list(row))
            row[key] = random.choice((*_WORDS, *row.values()))
            if fault == 7:
                del row[key]

    def _damage_file(self, random: random_module.Random, path: Path) -> None:
        fault = random.randrange(6)
        if fault == 0:
            path.unlink()
        elif fault == 1:
            path.write_bytes(bytes(damaged(random, bytearray(path.read_bytes()))))
        else:
            _remove(path)
            (
                path.mkdir,
                lambda: os.mkfifo(path),
                lambda: path.symlink_to(path.name),
                lambda: path.symlink_to("/etc/passwd"),
            )[fault - 2]()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def folder_contents(folder: Path) -> list[list[str]]:
    """What the manifest names, read without this package: loader, maker, key, name, hash."""
    parsed = json.loads((folder / "manifest.json").read_bytes())
    rows = []
    for row in parsed["artifacts"]:
        parts = [p for p in (row["codegen_id"], row["target_key"], row["file_name"]) if p]
        digest = hashlib.sha256((folder / "/".join(parts)).read_bytes()).hexdigest()
        assert digest == row["sha256"]
        loader = "native" if row["loader"] == "dso" else row["loader"]
        rows.append([loader, row["codegen_id"], row["target_key"], row["file_name"], digest])
    return rows


# ---- libraries ----------------------------------------------------------------------------------


def elf_sections(data: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Name, kind, offset and size of each section; nothing is checked."""
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    rows = [struct.unpack_from("<IIQQQQ", data, table + 64 * i) for i in range(count)]
    for name, kind, _, _, offset, size in rows:
        position = rows[names][4] + name
        yield data[position : data.find(b"\0", position)], kind, offset, size


def section(data: bytes, section_name: bytes) -> bytes | None:
    """The first section of that name which takes room in the file."""
    for name, kind, offset, size in elf_sections(data):
        if name == section_name and kind != 8:
            return data[offset : offset + size]
    return None


def without_digest(data: bytes) -> bytes:
    """The library with no digest: what is behind that check is read."""
    return data.replace(digest.NAME, bytes(len(digest.NAME)))


def small_library(metadata: bytes, container: bytes) -> bytes:
    """What is read of a library, with no code: sections for metadata and a container."""
    carried = len(container).to_bytes(8, "little") + bytes(56) + container
    names = b"\0.kiln.meta\0.kiln.artifacts\0.shstrtab\0.strtab\0.symtab\0"
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 18, 0, 1, 0, 40)
    parts = (
        (b".kiln.meta", 1, metadata, 0),
        (b".kiln.artifacts", 1, carried, 0),
        (b".shstrtab", 3, names, 0),
        (b".symtab", 2, symbols, 3),
    )
    body, rows = b"", bytes(64)
    for name, kind, content, link in parts:
        body += bytes(-len(body) % 64)
        name_offset = names.index(name + b"\0")
        rows += struct.pack(
            "<IIQQQQIIQQ", name_offset, kind, 2, 0, 64 + len(body), len(content), link, 0, 64, 24
        )
        body += content
    head = b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHIQQQ", 3, 62, 1, 0, 0, 64 + len(body))
    return head + struct.pack("<IHHHHHH", 0, 64, 0, 0, 64, 5, 3) + body + rows


class DamagedLibrary:
    """Libraries with faults where they are looked at: headers, our two sections, symbols."""

    def __init__(self, libraries: Sequence[bytes]):
        self._seeds = [(data, list(self._places(data))) for data in libraries]

    @staticmethod
    def _places(data: bytes) -> Iterator[range]:
        (table,) = struct.unpack_from("<Q", data, 40)
        yield range(64)
        yield range(table, len(data))
        for name, _, offset, size in elf_sections(data):
            if name in (b".kiln.meta", b".kiln.artifacts"):
                yield range(offset, offset + size)
                yield range(offset, offset + size)
            elif name in (b".dynsym", b".symtab", b".dynamic", b".shstrtab", b".dynstr"):
                yield range(offset, offset + size)

    def damage(self, random: random_module.Random) -> bytes:
        """One of them, its container often sealed again."""
        original, places = random.choice(self._seeds)
        data = damaged(random, bytearray(original), places)
        if random.random() < 0.5 and len(data) == len(original):
            for name, _, offset, size in elf_sections(original):
                if name == b".kiln.artifacts":
                    length = int.from_bytes(data[offset : offset + 8], "little")
                    inner = data[offset + 64 : offset + 64 + min(length, size)]
                    if len(inner) > 56:
                        data[offset + 64 : offset + 64 + len(inner)] = sealed(inner)
        return bytes(data)


def outcome(call: Callable[[], Any], *codes: str) -> Any:
    """What a call gives, or None for a UserError of one of `codes`."""
    from tensorkiln.base.errors import UserError

    try:
        return call()
    except UserError as error:
        assert error.code in codes, (error.code, error.message)
        assert error.message
        return None
