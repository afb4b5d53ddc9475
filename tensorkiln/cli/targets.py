"""kiln targets: what can be compiled for, or what one target means.

Without an argument: kinds with their options, processors, tags. With the name of a kind, a tag,
JSON text or "native": its canonical form and what follows from it. Other words search the tags.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.base.text import size_text
from tensorkiln.cli.options import path, plain_file, refuse_together, word
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns
from tensorkiln.target import Target, require_codegen
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import KINDS
from tensorkiln.target.tags import TAGS, Tag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln targets`."""
    parser.add_argument(
        "target", nargs="?", type=word, help="native, a kind, a tag, JSON text, or a word"
    )
    parser.add_argument("--tag", type=word, help="explain one tag")
    parser.add_argument("--tags-file", type=path, help="a TOML file of tags to read first")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print the list of targets, the tags that were found, or the facts of one target."""
    refuse_together({"--tag": args.tag, "TARGET": args.target})
    if args.tags_file:
        Target.load_tags(plain_file(args.tags_file))
    text = args.tag or args.target
    found = [] if args.tag or text is None else _search(text)
    if text is None:
        data, lines = _listing(), _listing_text
    elif found:
        data, lines = {"tags": _rows(found)}, lambda: _tags_text(found)
    else:
        target = Target({"tag": args.tag}) if args.tag else Target(text)
        data, lines = _facts(target), lambda: _facts_text(target)
    if args.json:
        print(json.dumps(data, indent=1))
    else:
        Screen(args.color).report(lines())
    return 0


# -- everything --------------------------------------------------------------------------


def _listing() -> dict[str, object]:
    return {
        "kinds": {
            kind.name: {option.name: option.doc for option in kind.options}
            for kind in KINDS.values()
        },
        "processors": {isa.arch: list(isa.cpus) for isa in ISAS.values()},
        "features": {isa.arch: list(isa.implied) for isa in ISAS.values()},
        "tags": _rows(TAGS.all()),
    }


def _listing_text() -> str:
    parts = []
    for kind in KINDS.values():
        rows = [(option.name, option.doc) for option in kind.options]
        without = "" if kind.has_codegen or kind.composite else " (no code generator yet)"
        parts.append(f"{kind.name}: {kind.doc}{without}\n{columns(rows)}".rstrip())
    for isa in ISAS.values():
        parts.append(f"{isa.arch} processors\n{_wrapped(isa.cpus)}")
    vendors: dict[str, list[str]] = {}
    for tag in TAGS.all():
        vendor, _, name = tag.name.partition("/")
        vendors.setdefault(vendor, []).append(name)
    for vendor, names in vendors.items():
        parts.append(f"tags {vendor}/\n{_wrapped(dict.fromkeys(names))}")
    parts.append("kiln targets native       explains this machine, or any tag or kind")
    parts.append("kiln targets WORD         searches the tags")
    return "\n".join(parts)


# -- tags --------------------------------------------------------------------------------


def _search(text: str) -> list[Tag]:
    """Tags with `text` in their name, aliases, description, processor or keys; empty if the text
    itself is a target."""
    word = text.strip().lower()
    if word.startswith("{") or word in KINDS or word == "native" or TAGS.find(text) or not word:
        return []
    return [tag for tag in TAGS.all() if any(word in part for part in _words(tag))]


def _words(tag: Tag) -> Iterable[str]:
    keys = tag.target.get("keys", ())
    yield from (tag.name, tag.about.lower(), *tag.aliases, str(tag.target.get("mcpu", "")))
    yield from keys if isinstance(keys, list) else ()


def _rows(tags: Iterable[Tag]) -> dict[str, object]:
    return {
        tag.reference: {
            "about": tag.about,
            "aliases": list(tag.aliases),
            "source": tag.source,
            "hash": tag.hash,
        }
        for tag in tags
    }


def _tags_text(tags: list[Tag]) -> str:
    return columns([(tag.reference, tag.about) for tag in tags])


# -- one target --------------------------------------------------------------------------


def _facts(target: Target) -> dict[str, object]:
    facts: dict[str, object] = {
        "target": target.to_json(),
        "content_hash": target.content_hash,
        "code_generator": _unsupported(target) is None,
    }
    tag = TAGS.find(target.tag) if target.tag else None
    if tag is not None:
        facts["tag"] = _rows([tag])[tag.reference]
    if target.arch not in ISAS:
        return facts
    return facts | {
        "baseline": target.is_baseline,
        "features": sorted(target.features),
        "vector_bytes": target.vector_bytes,
        "vector_registers": target.num_vector_registers,
        "required_features": list(target.required_features),
    }


def _facts_text(target: Target) -> str:
    rows = [("target", str(target)), ("hash", target.content_hash)]
    tag = TAGS.find(target.tag) if target.tag else None
    if tag is not None:
        rows += [("tag", f"{tag.reference}, {tag.about}"), ("source", tag.source)]
        rows += [("aliases", ", ".join(tag.aliases))] if tag.aliases else []
    missing = _unsupported(target)
    rows += [("compiles", "yes" if missing is None else f"no: {missing}")]
    if target.arch not in ISAS:
        return columns(rows)
    rows += [
        ("machine", f"{target.mtriple}, {target.mcpu}"),
        ("vectors", f"{target.num_vector_registers} of {target.vector_bytes} bytes"),
        ("caches", f"{size_text(target.l1d_bytes)} level 1, {size_text(target.l2_bytes)} level 2"),
    ]
    plain = Target({"mtriple": target.mtriple, "mcpu": ISAS[target.arch].baseline_cpu})
    if target.vector_bytes != plain.vector_bytes:
        rows.append(("baseline", f"vectors of {plain.vector_bytes} bytes in its place"))
    needs = target.required_features
    if not needs:
        rows.append(("needs", "nothing beyond the architecture's baseline"))
        return columns(rows)
    return f"{columns(rows)}\n  needs, beyond the architecture's baseline\n{_wrapped(needs)}"


def _unsupported(target: Target) -> str | None:
    """Why no code generator supports `target`; None if one does."""
    try:
        require_codegen(target)
    except UnsupportedError as error:
        issue = error.issues[0]
        return f"{issue.message} ({issue.hint})"
    return None


def _wrapped(names: Iterable[str]) -> str:
    return textwrap.fill(
        " ".join(names),
        96,
        initial_indent="    ",
        subsequent_indent="    ",
        break_on_hyphens=False,
        break_long_words=False,
    )
