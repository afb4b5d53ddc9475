"""Tags: short names for exact targets, kept as data with the hash of what they stand for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import read_plain

_WORD = r"[a-z0-9]+(?:[._+-][a-z0-9]+)*\+*"
_NAME = re.compile(rf"{_WORD}/{_WORD}")
_REFERENCE = re.compile(rf"({_WORD}/{_WORD})(?::(v?\d+(?:\.\d+)*))?")
_FIELDS = ("name", "version", "aliases", "about", "source", "hash", "target")


@dataclass(frozen=True, slots=True)
class Tag:
    """One version of a tag: the target it stands for, as written, and the hash of its content."""

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


@dataclass
class TagTable:
    """All tags of this process: those that come with the compiler, and files that were loaded.

    The shipped files are read when the first tag is asked for, never on import.
    """

    loaded: dict[str, Tag] = field(default_factory=dict)

    @cached_property
    def shipped(self) -> dict[str, Tag]:
        """The tags of the package's own files, by reference."""
        folder = resources.files("tensorkiln.target") / "tag_data"
        files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=_file_name)
        rows: dict[str, Tag] = {}
        for file in files:
            for tag in read_tags(file.read_text(encoding="utf-8"), file.name):
                rows[tag.reference] = tag
        return rows

    def all(self) -> tuple[Tag, ...]:
        """Every version of every tag, sorted by name and version."""
        rows = (self.shipped | self.loaded).values()
        return tuple(sorted(rows, key=lambda tag: (tag.name, _order(tag.version))))

    def names(self) -> list[str]:
        """Canonical names and aliases, each once."""
        rows = self.all()
        return list(dict.fromkeys([*(t.name for t in rows), *(a for t in rows for a in t.aliases)]))

    def find(self, reference: str) -> Tag | None:
        """The tag of a name or alias, the latest version unless one is said."""
        match = _REFERENCE.fullmatch(reference)
        if match is None:
            return None
        name, version = match.groups()
        rows = [t for t in self.all() if t.name == name or name in t.aliases]
        if version is not None:
            rows = [t for t in rows if _order(t.version) == _order(version)]
        return rows[-1] if rows else None

    def unknown(self, reference: str, where: str, kinds: Collection[str] = ()) -> UserError:
        """The error for a tag that is not there: its versions, the nearest names, or that it is
        one of `kinds`, which are targets without a tag."""
        name, _, version = reference.partition(":")
        versions = [t.version for t in self.all() if t.name == name or name in t.aliases]
        if version and versions:
            hint = f"versions of {name!r}: {', '.join(versions)}"
        else:
            aliases = {a for t in self.all() for a in t.aliases}
            hint = nearest(name, self.names(), aliases)
            hint = hint or (f"write the target {name!r}" if name in kinds else "")
        return UserError(
            f"unknown tag {reference!r}",
            code="unknown-tag",
            where=where,
            hint=hint or "`kiln targets` lists them; Target.load_tags(path) reads a file of yours",
        )

    def add(self, tags: Iterable[Tag]) -> None:
        """Take in checked tags, all or none. The same tag again is nothing new.

        Raises UserError when a version is there with other contents (code `tag-hash`), or a name
        is another tag's (code `bad-tag`).
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
    """The tags of a TOML file: `[[tag]]` with name, target, and what is known about it.

    Raises UserError (code `bad-tag`) saying which entry is wrong. `hash` may be empty here.
    """
    import tomllib  # most targets have no tag

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


def _read_tag(row: object, where: str, file: str) -> Tag:
    if not isinstance(row, Mapping):
        raise UserError("expected a table", code="bad-tag", where=where)
    for key in row:
        if key not in _FIELDS:
            raise UserError(
                f"unknown key {key!r}", code="bad-tag", where=where, hint=nearest(key, _FIELDS)
            )
    texts = {k: row.get(k, "") for k in ("name", "about", "source", "hash")}
    texts["version"] = row.get("version", "1")
    aliases, target = row.get("aliases", []), row.get("target")
    named = [*texts.values(), *(aliases if isinstance(aliases, list) else [None])]
    if not all(isinstance(value, str) for value in named) or not isinstance(target, Mapping):
        raise UserError(
            "expected texts, a list of aliases and a target", code="bad-tag", where=where
        )
    if "tag" in target:
        raise UserError("a tag's target names no other tag", code="bad-tag", where=where)
    for name in (texts["name"], *aliases):
        check_name(name, where)
    check_reference(f"{texts['name']}:{texts['version']}", where)
    return Tag(target=dict(target), aliases=tuple(aliases), file=file, **texts)


def check_name(name: str, where: str) -> None:
    """Raise UserError (code `bad-tag`) unless `name` is `vendor/name`."""
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is no tag name",
            code="bad-tag",
            where=where,
            hint="vendor/name, lower-case letters and digits joined by - . _ or +",
        )


def check_reference(reference: str, where: str) -> None:
    """Raise UserError (code `bad-tag`) unless `reference` is `vendor/name:version`."""
    if not _REFERENCE.fullmatch(reference) or ":" not in reference:
        raise UserError(
            f"{reference!r} is no tag with a version",
            code="bad-tag",
            where=where,
            hint="vendor/name:version, where a version is digits joined by points",
        )


def bad_hash(reference: str, expected: str, found: str, where: str) -> UserError:
    """The error for contents that are not those the tag's hash was made of."""
    return UserError(
        f"tag {reference!r} is {expected}, but its contents are {found}",
        code="tag-hash",
        where=where,
        hint="a version of a tag never changes: give the new contents a new version",
    )


def _check_aliases(tags: Iterable[Tag]) -> None:
    """A name means one tag: no alias is another's name or alias, no version is there twice."""
    owner: dict[str, str] = {}
    seen: set[str] = set()
    for tag in tags:
        if tag.reference in seen:
            raise UserError(f"{tag.reference!r} is there twice", code="bad-tag", where=tag.file)
        seen.add(tag.reference)
        for name in (tag.name, *tag.aliases):
            if owner.setdefault(name, tag.name) != tag.name:
                raise UserError(
                    f"{name!r} names both {owner[name]!r} and {tag.name!r}",
                    code="bad-tag",
                    where=tag.file,
                )


def _order(version: str) -> tuple[int, ...]:
    """Versions compare as numbers: 1.10 comes after 1.9, and v1 is 1."""
    return tuple(int(part) for part in version.removeprefix("v").split("."))


def _file_name(file: object) -> str:
    return str(getattr(file, "name", file))


TAGS = TagTable()
_MAX_BYTES = 1 << 24  # of a file of tags


def read_file(path: str | Path) -> tuple[Tag, ...]:
    """The tags of a file; UserError (code `bad-tag`) when it cannot be read."""
    try:
        text = read_plain(path, _MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read tags: {error}", code="bad-tag", where=str(path)) from None
    return read_tags(text, str(path))
