"""docs/formats/mlf.md and the JSON schema are written from the records: `pytest --bless` renews
them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from tensorkiln.artifact.mlf import metadata
from tensorkiln.artifact.mlf.metadata import LibraryMetadata, metadata_schema
from tensorkiln.base.record import keys_of, records_below

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/formats/mlf.md"
SCHEMA = Path(metadata.__file__).with_name("metadata.schema.json")
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"
NAMES = {"LibraryMetadata": "metadata.json", "Model": "modules[...]"}


def tables() -> str:
    parts = []
    for name, record in records_below(LibraryMetadata).items():
        about = " ".join((record.__doc__ or "").split())
        parts.append(f"### {NAMES.get(name, name)}\n\n{about}\n\n")
        parts.append("| key | what it says | from |\n|---|---|---|\n")
        parts += [
            f"| `{f.name}` | {key.meaning} | {key.origin or 'version 8'} |\n"
            for f, key in keys_of(record)
        ]
        parts.append("\n")
    return "".join(parts)


def test_the_page(golden: Callable[[Path, str], None]) -> None:
    """What lies between the marks is the records'."""
    text = PAGE.read_text(encoding="utf-8")
    before, remainder = text.split(BEGIN)
    golden(PAGE, before + BEGIN + "\n" + tables() + END + remainder.split(END)[1])


def test_the_schema(golden: Callable[[Path, str], None]) -> None:
    golden(SCHEMA, json.dumps(metadata_schema(), indent=1) + "\n")


def test_every_key_is_described() -> None:
    for record in records_below(LibraryMetadata).values():
        for f, key in keys_of(record):
            assert key.meaning, (record, f.name)
            assert not re.search(r"[.!]$", key.meaning), (record, f.name)
