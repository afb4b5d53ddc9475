"""docs/target-options.md is written from the registry of kinds: `pytest --bless` renews it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tensorkiln.target import Option
from tensorkiln.target.kinds import KINDS, Kind
from tensorkiln.target.options import ELSEWHERE, TYPE_NAMES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "target-options.md"
HEAD = """# Options of each kind of target

Written from the registry of kinds by `pytest tests/target/test_options_page.py --bless`. An option
without a default is left out of a target that does not give it. What targets are for and how they
are written: [targets](targets.md).
"""


def page() -> str:
    parts = [HEAD, *(section(kind) for kind in KINDS.values()), elsewhere()]
    return "\n".join(parts)


def section(kind: Kind) -> str:
    lines = [f"## `{kind.name}`: {kind.doc}", ""]
    if kind.keys:
        lines += [f"Keys: {', '.join(f'`{key}`' for key in kind.keys)}.", ""]
    if not kind.has_codegen and not kind.composite:
        lines += ["No code generator yet: targets of this kind describe, and do not compile.", ""]
    if kind.options:
        lines += ["| option | values | default | meaning |", "|---|---|---|---|"]
        lines += [row(option) for option in kind.options]
        lines.append("")
    return "\n".join(lines)


def row(option: Option) -> str:
    default = "" if option.default is None else f"`{str(option.default).lower()}`"
    if isinstance(option.default, str):
        default = f"`{option.default}`"
    values = f"{option.low} to {option.high}" if option.type is int else TYPE_NAMES[option.type]
    if option.choices:
        values = ", ".join(map(str, option.choices))
    return f"| `{option.name}` | {values} | {default} | {option.doc} |"


def elsewhere() -> str:
    lines = [
        "## What is no option of a target",
        "",
        "A target holds what changes the generated module, nothing else. These are refused with",
        "a word on where they belong:",
        "",
    ]
    names_by_text: dict[str, list[str]] = {}
    for name, text in ELSEWHERE.items():
        names_by_text.setdefault(text.partition("This does not: ")[2], []).append(f"`{name}`")
    lines += [f"- {', '.join(names)}: {text}" for text, names in names_by_text.items()]
    return "\n".join([*lines, ""])


def test_page_is_current(golden: Callable[[Path, str], None]) -> None:
    golden(PAGE, page())


def test_page_names_every_option() -> None:
    text = page()
    for kind in KINDS.values():
        for option in kind.options:
            assert f"`{option.name}`" in text
            assert option.doc in text
