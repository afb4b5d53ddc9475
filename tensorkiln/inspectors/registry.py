"""Inspectors: functions that turn artifacts into text for people, and how one is found.

An inspector of one artifact is keyed by the suffix of its file name, alone or with the code
generator that made it; an inspector of several artifacts by their common code generator or loader.
The full name contains the keys:

    artifact.inspect_json_prettyprint        every artifact whose name ends in .json
    artifact.inspect_npu_bin_default         those that code generator `npu` made ending in .bin
    artifact.inspect_any_hexdump             every artifact
    codegen.inspect_llvm_list-functions      all artifacts that `llvm` made, together
    loader.inspect_native_print-signatures   all artifacts that loader `native` gets, together

An inspector of any loader (`loader="*"`) is listed once per loader, with the loader's name in its
own. It is given all artifacts, and the loader's name as keyword argument `loader`.

For an artifact, the most specific inspector is the default: suffix with code generator before
suffix alone before `*`; a longer suffix before a shorter one; then the first one registered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tensorkiln.artifact import Artifact, InMemoryArtifact
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.plugin import bad_answer, plugin

# Text, or pieces of it in order, so that a text larger than memory can be shown.
Shown = str | Iterable[str]
ANY = "*"
_FOR_PEOPLE = ("text", "header")  # loaders that load nothing
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\Z")
_SUFFIX = re.compile(r"\.[a-z0-9][a-z0-9.+-]*\Z")
_KEY = re.compile(r"\w[\w.+-]*\Z")


@dataclass(frozen=True, slots=True)
class Inspector:
    """One row of the table. `language` is the text's language, for its colours; `writes` is the
    suffix of the file that `--extract` writes the text to, empty for no file. `owner` is who
    registered it, for messages. With `in_memory`, it is for artifacts that have no bytes
    (`InMemoryArtifact`), and only for those."""

    name: str
    show: Callable[..., Shown]
    suffix: str = ""
    codegen_id: str = ""
    loader: str = ""
    language: str = ""
    writes: str = ""
    owner: str = ""
    in_memory: bool = False

    @property
    def of_group(self) -> bool:
        """Whether `show` takes a sequence of artifacts; else it takes one artifact."""
        return not self.suffix

    @property
    def short_name(self) -> str:
        """`inspect_<codegen or loader>_<suffix>_<name>`, without the parts it is not keyed by."""
        suffix = "any" if self.suffix == ANY else self.suffix.removeprefix(".")
        owner = "any" if self.loader == ANY else self.loader or self.codegen_id
        parts = ("inspect", owner, suffix, self.name)
        return "_".join(part for part in parts if part)

    @property
    def full_name(self) -> str:
        """The short name after `artifact.`, `codegen.` or `loader.`; unique in a table."""
        table = "artifact" if self.suffix else "loader" if self.loader else "codegen"
        return f"{table}.{self.short_name}"

    def is_called(self, text: str) -> bool:
        """Whether `text` is its name, short name or full name."""
        return text in (self.name, self.short_name, self.full_name)

    def takes(self, artifact: Artifact | InMemoryArtifact) -> bool:
        """Whether the artifact has the keys of this inspector."""
        return (
            isinstance(artifact, InMemoryArtifact) == self.in_memory
            and self.codegen_id in ("", artifact.codegen_id)
            and self.loader in ("", ANY, artifact.loader)
            and (self.suffix in ("", ANY) or artifact.file_name.lower().endswith(self.suffix))
        )

    def pieces(self, source: object) -> Iterator[str]:
        """Yield the text of `source`, an artifact or a sequence of them, piece by piece. Raises
        UserError if `show` raises, or returns no text (code `bad-inspector`)."""
        names = [source] if isinstance(source, Artifact | InMemoryArtifact) else source
        shown_of = ", ".join(a.name for a in list(names)[:3])  # type: ignore[call-overload]
        label = f"inspector {self.full_name} of {self.owner}, for {shown_of}"
        with plugin(label):
            text: object = self.show(source)
        if isinstance(text, str):
            yield text
            return
        if not isinstance(text, Iterable) or isinstance(text, bytes):
            raise bad_answer(label, text, "text, or pieces of it", "bad-inspector")
        pieces = iter(text)
        while True:
            with plugin(label):
                piece: object = next(pieces, None)
            if piece is None:
                return
            if not isinstance(piece, str):
                raise bad_answer(label, piece, "pieces of text", "bad-inspector")
            yield piece

    @property
    def _rank(self) -> tuple[bool, int]:
        """A sort key: the most specific inspector is least."""
        return not self.codegen_id, 0 if self.suffix == ANY else -len(self.suffix)


class Inspectors:
    """A table of inspectors in the order they were registered."""

    def __init__(self, rows: Iterable[Inspector] = ()):
        self._rows: list[Inspector] = []
        self.add(rows)

    def __iter__(self) -> Iterator[Inspector]:
        return iter(self._rows)

    def add(self, rows: Iterable[Inspector]) -> None:
        """Add all inspectors, or none if one is refused. Raises UserError: `bad-inspector` for
        missing, contradictory or malformed keys, `inspector-clash`, which names both owners, for a
        full name that is taken."""
        row_of_name = {row.full_name: row for row in self._rows}
        for row in rows:
            _check(row)
            former = row_of_name.setdefault(row.full_name, row)
            if former is not row:
                raise UserError(
                    f"{row.full_name} is registered already, by {former.owner}; now by {row.owner}",
                    code="inspector-clash",
                    hint="another name, or a code generator beside the suffix: that comes first",
                )
        self._rows = list(row_of_name.values())

    def of(self, artifact: Artifact | InMemoryArtifact) -> tuple[Inspector, ...]:
        """The inspectors of one artifact, its default first."""
        rows = [row for row in self._rows if not row.of_group and row.takes(artifact)]
        return tuple(sorted(rows, key=lambda row: row._rank))

    def groups(
        self, artifacts: Iterable[Artifact]
    ) -> tuple[tuple[Inspector, tuple[Artifact, ...]], ...]:
        """The inspectors of several artifacts, each with those of `artifacts` that it takes; those
        that take none are left out."""
        artifacts = tuple(artifacts)
        loaders = dict.fromkeys(a.loader for a in artifacts if a.loader not in _FOR_PEOPLE)
        rows = [pair for row in self._rows if row.of_group for pair in _for_each(row, loaders)]
        pairs = [
            (inspector, tuple(a for a in artifacts if row.takes(a))) for row, inspector in rows
        ]
        return tuple((row, group) for row, group in pairs if group)

    def choose(self, artifact: Artifact | InMemoryArtifact, name: str = "") -> Inspector:
        """The inspector of an artifact by any of its names; without a name, the default one. Raises
        UserError (code `unknown-inspector`) with the nearest name as a hint."""
        rows = self.of(artifact)
        candidates = [row for row in rows if not name or row.is_called(name)]
        if not candidates:
            raise unknown_inspector(name, rows, f"artifact {artifact.name}")
        return candidates[0]

    def text(self, artifact: Artifact | InMemoryArtifact, name: str = "") -> str:
        """The whole text that an inspector makes of an artifact. Raises what `choose` and
        `Inspector.pieces` raise."""
        return "".join(self.choose(artifact, name).pieces(artifact))


def _for_each(row: Inspector, loaders: Iterable[str]) -> Iterator[tuple[Inspector, Inspector]]:
    """Yield (row, row); for a row of any loader, (row, its version for that loader) for each of
    `loaders`."""
    if row.loader != ANY:
        yield row, row
        return
    for loader in loaders:
        yield row, replace(row, loader=loader, show=partial(row.show, loader=loader))


def unknown_inspector(name: str, inspectors: Iterable[Inspector], place: str) -> UserError:
    """The error for a name that none of the `inspectors` has."""
    names = list(dict.fromkeys(n for row in inspectors for n in (row.name, row.short_name)))
    short = ", ".join(dict.fromkeys(row.name for row in inspectors))
    hint = nearest(name, names) or f"there is: {short or 'none'}"
    return UserError(f"no inspector {name!r}", code="unknown-inspector", where=place, hint=hint)


def make_inspector(
    name: str,
    show: Callable[..., Shown],
    *,
    suffix: str = "",
    codegen_id: str = "",
    loader: str = "",
    language: str = "",
    writes: str = "",
    owner: str = "",
    in_memory: bool = False,
) -> Inspector:
    """A row of the table, with its suffix normalised: lower case, with a leading dot. `owner` is by
    default the module that defines `show`."""
    owner = owner or f"module {getattr(show, '__module__', '?')}"
    suffix = suffix.lower()
    if suffix and suffix != ANY and not suffix.startswith("."):
        suffix = f".{suffix}"
    return Inspector(name, show, suffix, codegen_id, loader, language, writes, owner, in_memory)


def _check(row: Inspector) -> None:
    def bad(message: str, hint: str) -> UserError:
        place = f"inspector {row.name!r} of {row.owner}"
        return UserError(message, code="bad-inspector", where=place, hint=hint)

    if not _NAME.match(row.name):
        raise bad("its name is not valid", "small letters, digits and '-'")
    if not callable(row.show):
        raise bad(f"{row.show!r} cannot be called", "a function of artifacts that gives text")
    if row.loader and (row.suffix or row.codegen_id):
        raise bad("it has a loader and another key", "one inspector for each")
    if not (row.suffix or row.codegen_id or row.loader):
        raise bad("it has no key", f"suffix, codegen_id or loader; suffix={ANY!r} for all")
    for field_name, key in (("codegen_id", row.codegen_id), ("loader", row.loader)):
        if key and key != (ANY if field_name == "loader" else "") and not _KEY.match(key):
            raise bad(
                f"{field_name} {key!r} is not a plain name", "letters, digits, '_', '-', '.', '+'"
            )
    for field_name, key in (("suffix", row.suffix), ("writes", row.writes)):
        if key and key != ANY and not _SUFFIX.match(key):
            raise bad(f"{field_name} {key!r} is not a suffix", "such as '.json'")
