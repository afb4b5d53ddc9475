"""Tables of element types in C, C++ and Rust, from the rows of `base/element_types.py`:

    python -m tests.base.element_headers [--write]

prints the files that say something else; `--write` writes them. In a file, a table is what stands
between two texts that occur once.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.element_types import (
    CODE_NAMES,
    NARROW_TYPES,
    PARAMETER_TYPES,
    PROGRAM_TYPES,
    ElementType,
)

ROOT = Path(__file__).resolve().parents[2]
_TENSORS = [row for row in PARAMETER_TYPES.values() if row.kind != "handle"]
_FLOAT8 = [row for row in NARROW_TYPES.values() if row.bits == 8]
_RUST = {"float16": "F16", "bfloat16": "BF16", "bool": "Bool"}


@dataclass(frozen=True, slots=True)
class Table:
    """What stands in a file between `begin` and `end`."""

    file: str
    begin: str
    text: str
    end: str

    def in_place(self, whole: str) -> str:
        """The file's text with the table as the rows say."""
        assert whole.count(self.begin) == 1, (self.file, self.begin)
        head, _, tail = whole.partition(self.begin)
        assert self.end in tail, (self.file, self.end)
        return f"{head}{self.begin}{self.text}{tail[tail.index(self.end) :]}"


def _wrapped(items: Iterable[str], first: str, indent: int) -> str:
    """Items joined by commas, in lines of at most 100 characters; the first begins with `first`."""
    text = ", ".join(item.replace(" ", "\0") for item in items)
    lines = textwrap.wrap(first.replace(" ", "\0") + text, 100, subsequent_indent=" " * indent)
    return "\n".join(lines).replace("\0", " ").removeprefix(first)


def _c_name(row: ElementType) -> str:
    return f'{{"{row.name}", {row.dlpack[0]}, {row.dlpack[1]}}}'


def _rust_name(row: ElementType) -> str:
    """The type of Rust of such an element."""
    if row in _FLOAT8:
        return row.name.replace("float", "F").replace("_", "").upper()
    return _RUST.get(row.name) or row.argument.short


def _rust_arms() -> str:
    arms = "".join(
        f'            "{row.name}" => {_rust_name(row)}::DTYPE,\n'
        for row in _TENSORS
        if row.bits >= 8
    )
    arms += "            // A byte for each element: DLPack packs those of fewer bits.\n"
    for kind in dict.fromkeys(map(_rust_name, (r for r in _TENSORS if r.bits < 8))):
        names = [f'"{r.name}"' for r in _TENSORS if r.bits < 8 and _rust_name(r) == kind]
        arms += f"            {' | '.join(names)} => {kind}::DTYPE,\n"
    return arms


def _rust_elements() -> str:
    """The types of programs, one line for each of DLPack's codes."""
    rows = [row for row in _TENSORS if row.name in PROGRAM_TYPES]
    codes = dict.fromkeys(row.code for row in rows)
    lines = (
        " ".join(f"{_rust_name(row)}: {row.code}, {row.bits};" for row in rows if row.code == code)
        for code in codes
    )
    return "".join(f"    {line}\n" for line in lines)


TABLES = (
    Table(
        "tensorkiln/crt/element.h",
        "enum { ",
        _wrapped(
            (f"KILN_CODE_{name.upper()} = {code}" for code, name in CODE_NAMES.items()),
            "enum { ",
            7,
        ),
        " };",
    ),
    Table(
        "tensorkiln/crt/error.c",
        "    static const char *const narrow[] = {",
        _wrapped(
            (f'"{row.name.removeprefix("float")}"' for row in _FLOAT8),
            "    static const char *const narrow[] = {",
            41,
        ),
        "}; /* codes from 10 on */",
    ),
    Table(
        "tensorkiln/hosts/kiln_library_file.h",
        "    } known[] = {",
        _wrapped(map(_c_name, _TENSORS), "    } known[] = {", 17),
        "};\n",
    ),
    Table(
        "tensorkiln/hosts/kiln_tensor.hpp",
        "    std::uint8_t bits;\n};\n",
        "".join(f"using {row.name} = float8<{row.code}>;\n" for row in _FLOAT8),
        "\nnamespace",
    ),
    Table(
        "tensorkiln/hosts/rust/src/tensor.rs",
        "        Some(match name {\n",
        _rust_arms(),
        "            _ => return None,",
    ),
    Table(
        "tensorkiln/hosts/rust/src/tensor.rs",
        "pub struct F8<const CODE: u8>(pub u8);\n",
        "".join(f"pub type {_rust_name(row)} = F8<{row.code}>;\n" for row in _FLOAT8),
        "///",
    ),
    Table("tensorkiln/hosts/rust/src/tensor.rs", "elements! {\n", _rust_elements(), "}"),
)


def written() -> dict[str, str]:
    """The text of each file with tables as the rows say."""
    texts: dict[str, str] = {}
    for table in TABLES:
        text = texts.get(table.file) or (ROOT / table.file).read_text(encoding="utf-8")
        texts[table.file] = table.in_place(text)
    return texts


def main() -> int:
    """Print the files that differ; with `--write`, write them."""
    parser = argparse.ArgumentParser(prog="python -m tests.base.element_headers")
    parser.add_argument("--write", action="store_true", help="write the tables")
    options = parser.parse_args()
    texts = {f: t for f, t in written().items() if (ROOT / f).read_text(encoding="utf-8") != t}
    for file, text in texts.items():
        print(file)
        if options.write:
            (ROOT / file).write_text(text, encoding="utf-8")
    return int(bool(texts) and not options.write)


if __name__ == "__main__":
    raise SystemExit(main())
