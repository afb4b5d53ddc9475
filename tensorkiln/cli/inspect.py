"""kiln inspect: what a library, a model, a container or a folder holds; nothing of it is run.

Without further options: a report. Inspectors (`tensorkiln.inspectors`) look into single artifacts.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.components import Component
from tensorkiln.artifact.metadata import ConstantInfo
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.weights_check import verify_library
from tensorkiln.base.config import read_config
from tensorkiln.base.errors import UserError
from tensorkiln.base.text import size_text
from tensorkiln.cli.archive_report import archive_text
from tensorkiln.cli.library_report import SHOWN, report_text, some
from tensorkiln.cli.model_report import model_text
from tensorkiln.cli.options import (
    STDIO,
    folder_or_stdout,
    inspector,
    is_folder,
    plain_file,
    refuse_together,
    source,
    word,
)
from tensorkiln.cli.screen import Screen
from tensorkiln.cli.tables import columns
from tensorkiln.frontend.onnx.summary import is_model, summary_of
from tensorkiln.inspectors import Inspector, Inspectors, Subject, known_inspectors, open_subject
from tensorkiln.inspectors.components import contents_of
from tensorkiln.inspectors.extract import extract
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.inspectors.registry import unknown_inspector
from tensorkiln.inspectors.subject import files_of
from tensorkiln.inspectors.table import table_lines
from tensorkiln.inspectors.weights import Weights, show_weight

_EXAMPLES = """
examples:
  kiln inspect net.so                               what it is, and what is inside
  kiln inspect net.onnx                             a model's operators, opsets and weights
  kiln inspect net.so --list                        every artifact, and what can show it
  kiln inspect net.so --as weights                  all weights with statistics
  kiln inspect net.so --weight conv1.weight         one of them with its histogram
  kiln inspect artifacts --artifact conv2d_relu.s   one kernel's assembly
  kiln inspect net.so --spdx                        software in it and that it needs, licenses
  kiln inspect net.so --extract inside              everything as files
"""
# Ending of an artifact's name -> what the file is for.
_MEANINGS = {
    "host/plan.txt": "the plan: every kernel call, in order",
    "host/entry.c": "the plan in C, and how to call it",
    "host/external_dependencies.json": "the other software that is needed, with its licenses",
    "host/imports.c": "calls of kernels that loaders provide",
    "host/link.json": "what the linker is told",
    "host/metadata.json": "functions, kernels, target",
    "host/weights.bin": "the weights, end to end",
    "host/weights.json": "which weight is where in them",
    "/kernels.fmap.json": "device functions: what they take, their blocks",
    "/kernels.cl": "device functions in OpenCL C",
    ".ptx": "device functions in PTX",
    ".cubin": "device functions as code of a chip",
    "ir/module.py": "the graph and every kernel as loops",
    ".h": "the C header",
}
_SUFFIXES = {
    ".ll": "LLVM IR",
    ".s": "assembly",
    ".o": "object",
    ".code": "linked code",
    ".bc": "bitcode",
    ".c": "C",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kiln inspect`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "file",
        type=source,
        metavar="FILE",
        help="a library, an ONNX model, a container, a folder of --keep, an archive in Model "
        "Library Format, .a, .tar, or any one file; - for standard input",
    )
    parser.add_argument(
        "--list", action="store_true", help="name every artifact, and the inspectors of each"
    )
    parser.add_argument(
        "--artifact",
        type=word,
        metavar="NAME",
        help="show this one: its name as listed, or what follows the last /",
    )
    parser.add_argument(
        "--as",
        dest="inspector",
        type=inspector,
        metavar="INSPECTOR",
        help="show it this way: disassemble, hexdump, weights, ...; --list names them",
    )
    parser.add_argument(
        "--weight",
        type=word,
        metavar="NAME",
        help="show one weight, with its histogram",
    )
    parser.add_argument(
        "--extract",
        type=folder_or_stdout,
        metavar="DIR",
        help="write all artifacts, and what inspectors say of them, into a folder; - writes the "
        "bytes of the one that --artifact names to standard output",
    )
    parser.add_argument(
        "--verify", action="store_true", help="read all weights and artifacts, and check every hash"
    )
    parser.add_argument(
        "--spdx",
        action="store_true",
        help="print what it embeds and needs, with licenses, as a document of SPDX 2.3",
    )
    parser.add_argument("--all", action="store_true", help="leave nothing out of tables")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Print what the options ask for."""
    modes = {"--list": args.list, "--weight": args.weight, "--verify": args.verify}
    modes["--spdx"] = args.spdx
    refuse_together({**modes, "--extract": args.extract})
    to_stdout = args.extract == STDIO
    for name, value in {**modes, "--json": args.json, "--extract -": to_stdout}.items():
        refuse_together({"--as": args.inspector, name: value})
    refuse_together({"--json": args.json, "--extract -": to_stdout})
    refuse_together({"--json": args.json, "--spdx": args.spdx})
    if _is_plain_model(args):
        return _show_model(args, screen)
    subject = open_subject(args.file if is_folder(args.file) else plain_file(args.file))
    inspectors = known_inspectors(_warn)
    chosen = _chosen(subject, args.artifact)
    if args.verify:
        sentence = _verified(subject)
        screen.answer(
            lambda: {"path": subject.path, "kind": subject.kind, "verified": sentence},
            lambda: f"{subject.path}: {sentence}",
        )
    elif to_stdout:
        screen.raw(_only(subject, chosen))
    elif args.extract is not None:
        texts = extract(chosen, inspectors, args.extract, only=args.inspector, warn=_warn)
        screen.answer(
            lambda: {
                "path": subject.path,
                "kind": subject.kind,
                "folder": args.extract,
                "artifacts": [a.name for a in files_of(chosen)],
                "texts": texts,
            },
            lambda: f"{args.extract}: {len(chosen)} artifact(s), {texts} text(s)",
        )
    elif args.spdx:
        print(json.dumps(contents_of(subject).spdx(read_config().source_date), indent=1))
    elif args.weight:
        weights = Weights(files_of(chosen))
        rows = weights.called(args.weight)
        if args.json:
            screen.document(
                {
                    "path": subject.path,
                    "kind": subject.kind,
                    "weights": [_weight(weights, r) for r in rows],
                }
            )
        for row in () if args.json else rows:
            screen.shown(show_weight(weights, row), "report")
    elif args.json:
        screen.document(_json(subject, chosen, inspectors))
    elif args.list:
        screen.report(_list_text(chosen, inspectors))
    elif args.artifact or args.inspector:
        _show(subject, chosen, inspectors, args, screen)
    elif subject.kind == "library":
        text = report_text(inspect_library(args.file), args.all, _software(subject))
        screen.report(f"{text}\n{_inside_text(subject, inspectors, args.all)}")
    elif subject.kind == "model":
        text = archive_text(open_model_library(args.file))
        screen.report(f"{text}\n{_inside_text(subject, inspectors, args.all)}")
    elif subject.kind == "file" and subject.itself is not None:
        _print(inspectors.choose(subject.itself), subject.itself, screen)
    else:
        screen.report(_inside_text(subject, inspectors, args.all))
    return 0


def _is_plain_model(args: argparse.Namespace) -> bool:
    """Whether the file is an ONNX model, and no inspector of its bytes is asked for."""
    byte_options = (
        args.list and not args.json,
        args.weight,
        args.extract,
        args.artifact,
        args.inspector,
        args.verify,
    )
    return is_model(args.file) and args.file.is_file() and not any(byte_options)


def _show_model(args: argparse.Namespace, screen: Screen) -> int:
    model = summary_of(plain_file(args.file))
    screen.answer(lambda: {"kind": "onnx", **model.to_json()}, lambda: model_text(model, args.all))
    return 0


def _only(subject: Subject, chosen: ArtifactSet) -> Iterable[bytes | memoryview]:
    """The bytes of the only artifact. UserError (code `conflict`) if there are several."""
    files = files_of(chosen)
    if len(files) != 1:
        raise UserError(
            f"{len(files)} artifacts cannot be written to standard output",
            code="conflict",
            where=subject.path,
            hint="--artifact NAME chooses one; --list names them",
        )
    return [files[0].view]


def _weight(weights: Weights, row: ConstantInfo) -> dict[str, object]:
    """A constant and its statistics as plain values."""
    return {**asdict(row), "bytes": weights.packed(row).size, **asdict(weights.statistics(row))}


def _verified(subject: Subject) -> str:
    """Check all hashes; a sentence on what matches. UserError if something does not match, or the
    subject has no hashes (code `no-hash`)."""
    if subject.kind == "library":
        carried = [a for a in subject.files if a.codegen_id not in ("host", "code")]
        weights = verify_library(subject.path)
        sentence = f"{size_text(weights.size)} of weights in {weights.path} match their hash"
        return f"{sentence}, and so do the artifacts it carries" if carried else sentence
    if subject.kind == "model":
        library = open_model_library(subject.path)
        for name in library.models() and library.files:
            library.content(name)
        return f"{len(library.files)} file(s) match their hashes"
    if subject.kind in ("folder", "container", "tar"):  # `open_subject` has checked them
        return f"{len(subject.files)} artifact(s) match their hashes"
    raise UserError(
        f"{subject.path!r} has no hashes: nothing can be checked",
        code="no-hash",
        hint="libraries, containers, folders of --keep and .tar have",
    )


def _warn(sentence: str) -> None:
    print(f"kiln: warning: {sentence}", file=sys.stderr)


def _chosen(subject: Subject, name: str) -> ArtifactSet:
    """The artifact of that name, or whose name ends in `/<name>`; all artifacts without a name.
    UserError if its bytes are not in the library, or it does not exist."""
    if not name:
        return subject.artifacts
    ends = [a.name for a in subject.files if a.name.endswith(f"/{name}")]
    name = ends[0] if len(ends) == 1 else name
    absent = [a for a in subject.absent if name in (a.name, a.name.rpartition("/")[2])]
    if absent:
        raise UserError(
            f"the bytes of {absent[0].name!r} are not in the library: {absent[0].reason}",
            code="unknown-artifact",
            where=subject.path,
            hint="`kiln compile --keep` keeps every artifact",
        )
    return ArtifactSet((subject.artifacts[name],))


# -- inspectors --------------------------------------------------------------------------------


def _show(
    subject: Subject,
    chosen: ArtifactSet,
    inspectors: Inspectors,
    args: argparse.Namespace,
    screen: Screen,
) -> None:
    """Print the text of the inspector asked for: of the artifact that `--artifact` names; else the
    first of these that it takes: a group of artifacts, the whole file, each artifact."""
    files = files_of(chosen)
    name, groups = args.inspector, inspectors.groups(files)
    if args.artifact:
        (artifact,) = files
        _print(inspectors.choose(artifact, name), artifact, screen)
        return
    pairs: list[tuple[Inspector, object]] = [(r, f) for r, f in groups if r.is_called(name)]
    if not pairs and subject.itself is not None:
        pairs = [(r, subject.itself) for r in inspectors.of(subject.itself) if r.is_called(name)]
    if not pairs:
        pairs = [(r, a) for a in files for r in inspectors.of(a) if r.is_called(name)]
    if not pairs:
        inspector_rows = [r for r, _ in groups] + [r for a in files for r in inspectors.of(a)]
        raise unknown_inspector(name, inspector_rows, subject.path)
    if len(pairs) == 1:
        _print(*pairs[0], screen)
        return
    refused: UserError | None = None
    count = 0
    for row, content in pairs:
        title = content.name if isinstance(content, Artifact) else row.full_name
        pieces = row.pieces(content)
        try:
            first = next(pieces, "")
        except UserError as error:  # the other artifacts are still printed
            refused = refused or error
            _warn(f"{title} is left out: {error}")
            continue
        count += 1
        screen.report(f"# {title}")
        screen.shown(itertools.chain([first], pieces), row.language)
    if refused is not None and not count:
        raise refused


def _print(row: Inspector, source: object, screen: Screen) -> None:
    try:
        screen.shown(row.pieces(source), row.language)
    except UserError as error:
        # The name of a file's artifact is `file/<name>`: messages are to have the file's own name.
        if isinstance(source, Artifact) and error.where == source.name:
            place = source.name.removeprefix("file/")
            raise UserError(error.message, code=error.code, where=place, hint=error.hint) from None
        raise


# -- tables ------------------------------------------------------------------------------------


def _inside_text(subject: Subject, inspectors: Inspectors, everything: bool) -> str:
    """A list of the artifacts in a subject, each with its default inspector."""
    files = subject.files
    total = f"{len(files)} artifact(s), {size_text(sum(a.size for a in files))}"
    singles, families = _families(files)
    rows = [
        (a.name, size_text(a.size), a.loader, inspectors.choose(a).name, _meaning(a.name))
        for a in singles
    ]
    parts = [f"inside {subject.path} ({subject.kind}): {total}"]
    parts += [some(rows, everything) or ("" if families else "  nothing")]
    parts += [_family_text(family, everything) for family in families]
    if subject.absent:
        parts.append(f"linked into it: {len(subject.absent)} artifact(s) (--keep keeps the files)")
        if everything:
            parts.append(columns([(a.name, size_text(a.size), a.reason) for a in subject.absent]))
    together = _names(row for row, _ in inspectors.groups(files))
    if together:
        parts += ["together", columns([("--as", together)])]
    imports = subject.artifacts.imports
    if imports:
        pairs = [(_group_text(above), _group_text(below)) for above, below in imports]
        parts += ["imports", columns(pairs)]
    return "\n".join(filter(None, parts))


def _meaning(name: str) -> str:
    return next((text for end, text in _MEANINGS.items() if name.endswith(end)), "")


# Files of one folder with the same set of suffixes, as those of kernels:
# stem -> suffix -> size as text.
_Family = dict[str, dict[str, str]]


def _families(files: Sequence[Artifact]) -> tuple[list[Artifact], list[_Family]]:
    """(files to be listed one by one, families: groups of several stems with the same suffixes)."""
    by_stem: dict[str, dict[str, Artifact]] = {}
    for a in files:
        stem, dot, suffix = a.name.rpartition(".")
        if not _meaning(a.name) and "/" not in suffix:
            by_stem.setdefault(stem, {})[dot + suffix] = a
    alike: dict[tuple[str, ...], list[str]] = {}
    for stem, by_suffix in by_stem.items():
        alike.setdefault((stem.rpartition("/")[0], *sorted(by_suffix)), []).append(stem)
    stem_groups = [stems for stems in alike.values() if len(stems) > 1]
    families = [
        {stem: {suffix: size_text(a.size) for suffix, a in by_stem[stem].items()} for stem in stems}
        for stems in stem_groups
    ]
    inside = {stem for stems in stem_groups for stem in stems}
    singles = [a for a in files if _meaning(a.name) or a.name.rpartition(".")[0] not in inside]
    return singles, families


def _family_text(family: _Family, everything: bool) -> str:
    """A family as a table: a line for each stem, a column for each suffix."""
    suffixes = sorted(next(iter(family.values())), key=lambda s: ([*_SUFFIXES, s].index(s), s))
    folder = next(iter(family)).rpartition("/")[0]
    head = [f"{folder}/", *(f"{s} {_SUFFIXES.get(s, '')}".rstrip() for s in suffixes)]
    rows = [[f"  {stem}", *(sizes[s] for s in suffixes)] for stem, sizes in family.items()]
    head_rows = rows if everything else rows[:SHOWN]
    text = "".join(table_lines(head, head_rows, "l" + "r" * len(suffixes)))
    tail = (
        f"  ... and {len(rows) - len(head_rows)} more (--all)\n"
        if len(rows) > len(head_rows)
        else ""
    )
    return (text + tail).rstrip("\n")


def _group_text(group: tuple[str, str]) -> str:
    loader, target_key = group
    return f"{loader} ({target_key})" if target_key else loader


def _list_text(chosen: ArtifactSet, inspectors: Inspectors) -> str:
    """Every artifact with its inspectors, the default first; for a single artifact, a line for each
    inspector."""
    files = files_of(chosen)
    groups = inspectors.groups(files)
    if len(files) == 1:
        (artifact,) = files
        rows = [(r.name, r.full_name, r.owner) for r in inspectors.of(artifact)]
        parts = [artifact.name, columns(rows)]
    else:
        parts = ["artifacts"]
        parts += [columns([(a.name, _names(inspectors.of(a))) for a in files]) or "  none"]
    if groups:
        parts += ["together", columns([(r.name, r.full_name, r.owner) for r, _ in groups])]
    return "\n".join(parts)


def _names(rows: Iterable[Inspector]) -> str:
    return ", ".join(dict.fromkeys(row.name for row in rows))


def _software(subject: Subject) -> tuple[Component, ...]:
    """What a subject embeds and needs; nothing if it does not say so."""
    try:
        return contents_of(subject).components
    except UserError as error:
        if error.code not in ("no-components", "bad-artifact"):
            raise
        return ()


def _json(subject: Subject, chosen: ArtifactSet, inspectors: Inspectors) -> dict[str, object]:
    """The output of `--json` as plain values; for a library with the fields of its report."""
    report = inspect_library(subject.path).to_json() if subject.kind == "library" else {}
    software = _software(subject)
    return {
        **report,
        **({"components": [c.to_json() for c in software]} if software else {}),
        "path": subject.path,
        "kind": subject.kind,
        "artifacts": [
            {
                "name": a.name,
                "codegen_id": a.codegen_id,
                "loader": a.loader,
                "target_key": a.target_key,
                "bytes": a.size,
                "inspectors": [row.full_name for row in inspectors.of(a)],
            }
            for a in files_of(chosen)
        ],
        "imports": subject.artifacts.imports,
        "together": [row.full_name for row, _ in inspectors.groups(files_of(chosen))],
        "absent": {a.name: a.reason for a in subject.absent},
    }
