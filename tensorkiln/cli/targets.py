"""kiln targets: what can be compiled for, or what one target means.

Without an argument: kinds and tags, a line each; with --all also options of kinds and processors.
With the name of a kind, a tag, a product, a processor or a feature, JSON text or "native": its
canonical form and what follows from it. Other words search the tags.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.base.text import size_text
from tensorkiln.cli.options import plain_file, refuse_together, source, target
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns
from tensorkiln.target import Target, require_codegen
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import KINDS, Kind
from tensorkiln.target.lookup import choices_of
from tensorkiln.target.tags import TAGS, Tag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln targets`."""
    parser.add_argument(
        "target",
        nargs="?",
        type=target,
        help="native, a kind, tag, product or processor, JSON text, or a word",
    )
    parser.add_argument("--tag", type=target, help="explain one tag")
    parser.add_argument(
        "--all", action="store_true", help="also list the options of kinds, and all processors"
    )
    parser.add_argument("--tags-file", type=source, help="a TOML file of tags to read first")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Print the list of targets, the tags that were found, or the facts of one target."""
    refuse_together({"--tag": args.tag, "TARGET": args.target})
    if args.tags_file:
        Target.load_tags(plain_file(args.tags_file))
    text = args.tag or args.target
    text = None if text == "help" else text  # as for --target
    refuse_together({"--all": args.all, "a target": text})
    tags = [] if args.tag or text is None else _search(text)
    if text is None:
        screen.answer(_listing, lambda: _listing_text(args.all))
    elif tags:
        screen.answer(
            lambda: {"tags": _rows(tags), "choices": choices_of(text)},
            lambda: _search_text(tags, choices_of(text)),
        )
    else:
        target = Target({"tag": args.tag}) if args.tag else Target(text)
        screen.answer(lambda: _facts(target), lambda: _facts_text(target))
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


def _listing_text(everything: bool) -> str:
    kinds = [("native", "this machine's CPU"), *((k.name, _about(k)) for k in KINDS.values())]
    parts = ["kinds", columns(kinds)]
    for kind in KINDS.values() if everything else ():
        rows = [(option.name, option.doc) for option in kind.options]
        parts += [f"options of {kind.name}", columns(rows)] if rows else []
    for isa in ISAS.values() if everything else ():
        parts += [f"processors of {isa.arch}", f"    {' '.join(isa.cpus)}"]
    parts += ["tags", _tags_text(TAGS.all())]
    usages = [
        ("kiln targets NAME", "explains native, a kind, a tag, JSON text, rpi4, skylake, avx2"),
        ("kiln targets WORD", "searches the tags: graviton, cortex-a72"),
        ("kiln targets --all", "also lists options of kinds, and processors"),
    ]
    return "\n".join([*parts, "more", columns(usages)])


def _about(kind: Kind) -> str:
    without = "" if kind.has_codegen or kind.composite else " (no code generator yet)"
    return f"{kind.doc}{without}"


# -- tags --------------------------------------------------------------------------------


def _search(text: str) -> list[Tag]:
    """Tags with `text` in their name, aliases, description, processor or keys; empty if the text
    itself is a target."""
    word = text.strip().lower()
    if word.startswith("{") or word in KINDS or word == "native" or TAGS.find(text) or not word:
        return []
    if len(choices_of(text)) == 1:
        return []
    return [tag for tag in TAGS.all() if any(word in part for part in _words(tag))]


def _search_text(tags: Sequence[Tag], choices: Sequence[Mapping[str, object]]) -> str:
    """The tags that were found and, for a word that names several targets, these."""
    if not choices:
        return _tags_text(tags)
    rows = [(str(Target(choice)),) for choice in choices]
    return "\n".join(["tags", _tags_text(tags), "targets with this name", columns(rows)])


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
            **_compiles(Target(tag.reference)),
        }
        for tag in tags
    }


def _tags_text(tags: Sequence[Tag]) -> str:
    return columns([(tag.reference, _about_tag(tag)) for tag in tags])


def _about_tag(tag: Tag) -> str:
    unsupported = _unsupported(Target(tag.reference)) is not None
    return f"{tag.about} (cannot be compiled yet)" if unsupported else tag.about


# -- one target --------------------------------------------------------------------------


def _facts(target: Target) -> dict[str, object]:
    facts: dict[str, object] = {
        "target": target.to_json(),
        "content_hash": target.content_hash,
        **_compiles(target),
    }
    tag = TAGS.find(target.tag) if target.tag else None
    if tag is not None:
        facts["tag"] = _rows([tag])[tag.reference]
    if target.arch not in ISAS:
        return facts
    if target.levels:
        return facts | {"levels": [_facts(level) for level in target.levels]}
    return facts | {
        "tags": [t.reference for t in _with_processor(target)],
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
    if target.levels:
        rows.append(("machine", target.mtriple))
        rows += [(level.mcpu, f"vectors: {_vectors(level)}") for level in target.levels]
        return columns(rows)
    rows += [
        ("machine", f"{target.mtriple}, {target.mcpu}"),
        ("vectors", _vectors(target)),
        ("caches", f"{size_text(target.l1d_bytes)} level 1, {size_text(target.l2_bytes)} level 2"),
    ]
    machines = [] if target.tag else _with_processor(target)
    rows += [("tags", ", ".join(t.reference for t in machines))] if machines else []
    plain = Target({"mtriple": target.mtriple, "mcpu": ISAS[target.arch].baseline_cpu})
    if target.vector_bytes != plain.vector_bytes:
        rows.append(("baseline", f"vectors of {plain.vector_bytes} bytes in its place"))
    needs = target.required_features
    if not needs:
        rows.append(("needs", "nothing beyond the architecture's baseline"))
        return columns(rows)
    rows.append(("needs", f"at most, beyond the architecture's baseline: {' '.join(needs)}"))
    return columns(rows)


def _vectors(target: Target) -> str:
    return f"{target.num_vector_registers} of {target.vector_bytes} bytes"


def _with_processor(target: Target) -> list[Tag]:
    """The tags of machines whose CPU is that of the target."""
    return [tag for tag in TAGS.all() if tag.target.get("mcpu") == target.mcpu]


def _compiles(target: Target) -> dict[str, object]:
    """Whether a target can be compiled, and if not, why."""
    unsupported = _unsupported(target)
    return {"code_generator": unsupported is None, "unsupported": unsupported}


def _unsupported(target: Target) -> str | None:
    """Why no code generator supports `target`; None if one does."""
    try:
        require_codegen(target)
    except UnsupportedError as error:
        issue = error.issues[0]
        return f"{issue.message} ({issue.hint})"
    return None
