"""Tags: short names for exact targets, kept in TOML files with the hash of the target's content."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import read_plain

_WORD = r"[a-z0-9]+(?:[._+-][a-z0-9]+)*\+*"
_NAME = re.compile(rf"{_WORD}/{_WORD}")
_REFERENCE = re.compile(rf"({_WORD}(?:/{_WORD})?)(?::(v?\d+(?:\.\d+)*))?")
_LONG_WORD = 4  # letters of a name that is clear without its vendor: not `m4`, `cm4` or `t4`
_FIELDS = ("name", "version", "aliases", "about", "source", "hash", "target")


@dataclass(frozen=True, slots=True)
class Tag:
    """One version of a tag: the target it stands for, as written in the file, and the content hash
    of that target. `about` describes it, `source` says where its data are from, and `file` is the
    file it was read from."""

    name: str
    version: str
    target: Mapping[str, object]
    hash: str
    about: str = ""
    source: str = ""
    aliases: tuple[str, ...] = ()
    file: str = ""

    @property
    def reference(self) -> str:
        """The canonical spelling, `vendor/name:version`."""
        return f"{self.name}:{self.version}"

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)

    @property
    def words(self) -> tuple[str, ...]:
        """What follows the vendor in its names, where that is long enough to be clear alone:
        `jetson-nano`."""
        words = (name.partition("/")[2] for name in self.names)
        return tuple(w for w in words if len(w) >= _LONG_WORD and w[0].isalpha())

    @property
    def spellings(self) -> tuple[str, ...]:
        """All that it is called: `nvidia/jetson-nano`, `nvidia-jetson-nano`, `jetson-nano`."""
        return (*self.names, *(name.replace("/", "-") for name in self.names), *self.words)


@dataclass
class TagTable:
    """All tags of this process: those shipped with the compiler, and those of files that the user
    loaded. The shipped files are read lazily, on the first look-up."""

    loaded: dict[str, Tag] = field(default_factory=dict)
    _index: tuple[object, Mapping[str, Sequence[Tag]]] | None = None  # of which `loaded`

    @cached_property
    def shipped(self) -> dict[str, Tag]:
        """The tags of the package's own files, by reference."""
        folder = resources.files("tensorkiln.target") / "tag_data"
        rows: dict[str, Tag] = {}
        for file in sorted(folder.iterdir(), key=lambda file: file.name):
            if file.name.endswith(".toml"):
                for tag in read_tags(file.read_text(encoding="utf-8"), file.name):
                    rows[tag.reference] = tag
        return rows

    def least(self, cpu: str, option: str) -> int:
        """The least number that a shipped tag of processor `cpu` has for an option; 0 without
        any."""
        rows = [t.target for t in self.shipped.values() if t.target.get("mcpu") == cpu]
        return min((n for row in rows if isinstance(n := row.get(option), int)), default=0)

    def all(self) -> tuple[Tag, ...]:
        """Return every version of every tag, sorted by name and version."""
        rows = (self.shipped | self.loaded).values()
        return tuple(sorted(rows, key=lambda tag: (tag.name, _order(tag.version))))

    def names(self) -> list[str]:
        """Return canonical names and aliases, without versions, each once."""
        rows = self.all()
        return list(dict.fromkeys([*(t.name for t in rows), *(a for t in rows for a in t.aliases)]))

    def words(self) -> list[str]:
        """Return the words that name one tag without its vendor, each once."""
        words = dict.fromkeys(word for tag in self.all() for word in tag.words)
        return [word for word in words if len(self.called(word)) == 1]

    def by_spelling(self) -> Mapping[str, Sequence[Tag]]:
        """Return the versions of tags by all that they are called (`Tag.spellings`), in order."""
        if self._index is None or self._index[0] is not self.loaded:
            rows: dict[str, list[Tag]] = {}
            for tag in self.all():
                for name in dict.fromkeys(tag.spellings):
                    rows.setdefault(name, []).append(tag)
            self._index = (self.loaded, rows)
        return self._index[1]

    def find(self, reference: str) -> Tag | None:
        """Return the tag of `vendor/name[:version]`, where the name may be an alias, and may lack
        its slash or its vendor (`Tag.spellings`); without a version the latest one. None if no tag
        or several are called so."""
        tags = self.called(reference)
        return tags[0] if len(tags) == 1 else None

    def called(self, reference: str) -> list[Tag]:
        """Return the tags that `find` chooses from, each in its latest version or the given one:
        several where vendors have a word in common."""
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            return []
        name, version = match.groups()
        rows = self.by_spelling().get(name, ())
        if version is not None:
            rows = [t for t in rows if _order(t.version) == _order(version)]
        return list({t.name: t for t in rows}.values())

    def unknown(self, reference: str, place: str, kinds: Collection[str] = ()) -> UserError:
        """Return the error for an unknown tag, or for a word of several. Its hint gives the known
        versions, the tags with that word or the nearest names, or says that the name is one of
        `kinds`."""
        name, _, version = reference.partition(":")
        versions = [t.version for t in self.by_spelling().get(name, ())]
        if version and versions:
            hint = f"versions of {name!r}: {', '.join(versions)}"
        elif len(several := self.called(reference)) > 1:
            hint = f"one of {', '.join(t.name for t in several)}"
        else:
            aliases = {a for t in self.all() for a in t.aliases}
            hint = nearest(name, self.names(), aliases)
            hint = hint or (f"write the target {name!r}" if name in kinds else "")
        return UserError(
            f"unknown tag {reference!r}",
            code="unknown-tag",
            where=place,
            hint=hint or "`kiln targets` lists them; Target.load_tags(path) reads a file of yours",
        )

    def add(self, tags: Iterable[Tag]) -> None:
        """Register checked tags, all or none. Registering an equal tag again is allowed.

        Raises UserError if a version is registered with other content (code `tag-hash`), or a name
        or alias belongs to another tag (code `bad-tag`).
        """
        new = dict(self.loaded)
        for tag in tags:
            old = new.get(tag.reference) or self.shipped.get(tag.reference)
            if old is not None and old.hash != tag.hash:
                raise bad_hash(tag.reference, old.hash, tag.hash, tag.file)
            new[tag.reference] = tag
        _check_aliases((self.shipped | new).values())
        self.loaded = new


def read_tags(text: str, file: str) -> tuple[Tag, ...]:
    """Parse the text of a TOML file of `[[tag]]` tables, with keys name, version, aliases, about,
    source, hash and target; `hash` may be missing.

    Raises UserError (code `bad-tag`) saying which entry is wrong.
    """
    import tomllib  # imported lazily: most targets have no tag

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"not valid TOML: {error}", code="bad-tag", where=file) from None
    rows = data.get("tag")
    if set(data) != {"tag"} or not isinstance(rows, list):
        raise UserError("expected [[tag]] entries only", code="bad-tag", where=file)
    tags = tuple(_read_tag(row, f"{file}: tag {i + 1}", file) for i, row in enumerate(rows))
    _check_aliases(tags)
    return tags


def _read_tag(row: object, place: str, file: str) -> Tag:
    if not isinstance(row, Mapping):
        raise UserError("expected a table", code="bad-tag", where=place)
    for key in row:
        if key not in _FIELDS:
            raise UserError(
                f"unknown key {key!r}", code="bad-tag", where=place, hint=nearest(key, _FIELDS)
            )
    texts = {k: row.get(k, "") for k in ("name", "about", "source", "hash")}
    texts["version"] = row.get("version", "1")
    aliases, target = row.get("aliases", []), row.get("target")
    named = [*texts.values(), *(aliases if isinstance(aliases, list) else [None])]
    if not all(isinstance(value, str) for value in named) or not isinstance(target, Mapping):
        raise UserError(
            "expected strings, a list of aliases and a target", code="bad-tag", where=place
        )
    if "tag" in target:
        raise UserError("a tag's target cannot name another tag", code="bad-tag", where=place)
    for name in (texts["name"], *aliases):
        check_name(name, place)
    check_reference(f"{texts['name']}:{texts['version']}", place)
    return Tag(target=dict(target), aliases=tuple(aliases), file=file, **texts)


def check_name(name: str, place: str) -> None:
    """Raise UserError (code `bad-tag`) unless `name` is `vendor/name`."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a tag name",
            code="bad-tag",
            where=place,
            hint="vendor/name, lower-case letters and digits joined by - . _ or +",
        )


def check_reference(reference: str, place: str) -> None:
    """Raise UserError (code `bad-tag`) unless `reference` is `vendor/name:version`."""
    if not _REFERENCE.fullmatch(reference) or not {"/", ":"} <= set(reference):
        raise UserError(
            f"{reference!r} is not a tag with a version",
            code="bad-tag",
            where=place,
            hint="vendor/name:version, where a version is digits joined by points",
        )


def bad_hash(reference: str, expected: str, actual: str, place: str) -> UserError:
    """Return the error for a tag whose content does not match its hash."""
    return UserError(
        f"tag {reference!r} is {expected}, but its contents are {actual}",
        code="tag-hash",
        where=place,
        hint="a version of a tag never changes: give the new contents a new version",
    )


def _check_aliases(tags: Iterable[Tag]) -> None:
    """Raise UserError if a name or alias belongs to two tags, or a version occurs twice."""
    owner: dict[str, str] = {}
    references: set[str] = set()
    for tag in tags:
        if tag.reference in references:
            raise UserError(f"{tag.reference!r} occurs twice", code="bad-tag", where=tag.file)
        references.add(tag.reference)
        for name in tag.names:
            if owner.setdefault(name, tag.name) != tag.name:
                raise UserError(
                    f"{name!r} names both {owner[name]!r} and {tag.name!r}",
                    code="bad-tag",
                    where=tag.file,
                )


def _order(version: str) -> tuple[int, ...]:
    """Return the sort key of a version, which compares by numbers: 1.10 follows 1.9, v1 equals
    1."""
    return tuple(int(part) for part in version.removeprefix("v").split("."))


TAGS = TagTable()
_MAX_BYTES = 1 << 24  # largest file of tags


def read_file(path: str | Path) -> tuple[Tag, ...]:
    """Return the tags of a TOML file; UserError (code `bad-tag`) if it cannot be read or is
    invalid."""
    try:
        text = read_plain(path, _MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read tags: {error}", code="bad-tag", where=str(path)) from None
    return read_tags(text, str(path))
