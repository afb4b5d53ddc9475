"""Records of JSON whose fields say what they hold: reading, writing, and the JSON schema follow.

@dataclass(frozen=True, slots=True)
class Pool(Record):
    name: str = key(Text(), "the member of the struct of pools")
    size_bytes: Dim = key(Size(), "bytes of memory that the caller provides")
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Self

from tensorkiln.base.schema import MOST, Reader

Schema = dict[str, Any]


class Kind(ABC):
    """What a field holds: how it is read, its JSON values, and its JSON schema."""

    records: tuple[type[Record], ...] = ()  # whose schemas `schema` refers to

    @abstractmethod
    def read(self, reader: Reader, key: str) -> object:
        """The value of `key`; the reader's UserError if it is missing or not of this kind."""

    @abstractmethod
    def schema(self) -> Schema:
        """The JSON schema of its values."""

    def plain(self, value: Any) -> object:
        """The value as JSON values."""
        return value


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text; where `form` is given, it matches that entirely, and messages call it `noun`."""

    form: str = ""
    noun: str = ""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        if self.form:
            return reader.word(key, re.compile(self.form), self.noun)
        return reader.get(key, str)

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"type": "string", **({"pattern": f"^{self.form}$"} if self.form else {})}


@dataclass(frozen=True, slots=True)
class Count(Kind):
    """A number from 0 on."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        return reader.number(key)

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"type": "integer", "minimum": 0, "maximum": MOST}


@dataclass(frozen=True, slots=True)
class Known(Kind):
    """A number from 0 on; null where it is not known."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        return None if reader.is_null(key) else reader.number(key)

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"anyOf": [Count().schema(), {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """A number from 0 on, or an expression of symbolic sizes as text."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        size = reader.size(key)
        if isinstance(size, int) and size < 0:
            raise reader.wrong(f"expected a size, got {size}", key)
        return size

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"anyOf": [Count().schema(), {"type": "string"}]}


@dataclass(frozen=True, slots=True)
class Shape(Kind):
    """A list of sizes; null for a number, which has no shape."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        dims = reader.dims(key)
        if any(isinstance(dim, int) and dim < 0 for dim in dims or ()):
            raise reader.wrong("expected sizes", key)
        return dims

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return None if value is None else list(value)

    def schema(self) -> Schema:
        """See `Kind`."""
        sizes = {"type": "array", "items": Size().schema()}
        return {"anyOf": [sizes, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class Texts(Kind):
    """A list of text."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        return reader.texts(key)

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return list(value)

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"type": "array", "items": {"type": "string"}}


@dataclass(frozen=True, slots=True)
class Counts(Kind):
    """An object of numbers from 0 on, with arbitrary names."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        values = {}
        for name, value in reader.items(key):
            if type(value) is not int or not 0 <= value <= MOST:
                raise reader.wrong(f"{name!r:.200}: expected a size, got {value!r:.200}", key)
            values[name] = value
        return values

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return dict(value)

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"type": "object", "additionalProperties": Count().schema()}


@dataclass(frozen=True, slots=True)
class Values(Kind):
    """An object of arbitrary names, each with an object that somebody else describes."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        values = {}
        for name, value in reader.items(key):
            if not isinstance(value, dict):
                raise reader.wrong(f"{name!r:.200}: expected an object", key)
            values[name] = value
        return values

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return dict(value)

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"type": "object", "additionalProperties": {"type": "object"}}


@dataclass(frozen=True, slots=True)
class One(Kind):
    """One record."""

    of: type[Record]

    @property
    def records(self) -> tuple[type[Record], ...]:  # type: ignore[override]
        """The record."""
        return (self.of,)

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        return self.of.read(reader.child(key))

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return value.to_json()

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"$ref": f"#/$defs/{self.of.__name__}"}


@dataclass(frozen=True, slots=True)
class Rows(One):
    """A list of records."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        return tuple(self.of.read(row) for row in reader.rows(key))

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return [row.to_json() for row in value]

    def schema(self) -> Schema:
        """See `Kind`."""
        return {"type": "array", "items": {"$ref": f"#/$defs/{self.of.__name__}"}}


@dataclass(frozen=True, slots=True)
class Table(One):
    """An object of records, with arbitrary names."""

    def read(self, reader: Reader, key: str) -> object:
        """See `Kind`."""
        reader.require(key)
        return {name: self.of.read(row) for name, row in reader.table(key)}

    def plain(self, value: Any) -> object:
        """See `Kind`."""
        return {name: row.to_json() for name, row in value.items()}

    def schema(self) -> Schema:
        """See `Kind`."""
        record = {"$ref": f"#/$defs/{self.of.__name__}"}
        return {"type": "object", "additionalProperties": record}


def key(kind: Kind, meaning: str, origin: str = "") -> Any:
    """A field of a record. `origin` says where the key is from, if it is older than version 8."""
    return field(metadata={"kind": kind, "meaning": meaning, "origin": origin})


class Record:
    """Base of dataclasses whose fields are made by `key`; every key is always there."""

    __slots__ = ()

    @classmethod
    def described(cls) -> Iterator[tuple[str, Kind, Mapping[str, str]]]:
        """(name, kind, `meaning` and `origin`) of each field."""
        for f in _fields(cls):
            yield f.name, f.metadata["kind"], f.metadata

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """Read it from parsed JSON; the reader's UserError for anything else than every key with a
        value of its kind."""
        reader.only([name for name, _, _ in cls.described()])
        return cls(**{name: kind.read(reader, name) for name, kind, _ in cls.described()})

    def to_json(self) -> dict[str, object]:
        """The record as JSON values, in the order of its fields."""
        return {name: kind.plain(getattr(self, name)) for name, kind, _ in self.described()}


def _fields(cls: type) -> tuple[Field[Any], ...]:
    make: Callable[[Any], tuple[Field[Any], ...]] = fields
    return make(cls)


def records_below(root: type[Record]) -> dict[str, type[Record]]:
    """`root` and all records that its fields hold, by name, each before those that it holds."""
    record_of_name: dict[str, type[Record]] = {}
    queue = [root]
    while queue:
        record = queue.pop(0)
        if record_of_name.setdefault(record.__name__, record) is record:
            below = [r for _, kind, _ in record.described() for r in kind.records]
            queue += [r for r in below if r.__name__ not in record_of_name]
    return record_of_name


def json_schema(root: type[Record], title: str) -> Schema:
    """The JSON schema (draft 2020-12) of a record."""
    definitions = {name: _object(record) for name, record in records_below(root).items()}
    top = definitions.pop(root.__name__)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **top, "$defs": definitions}


def _object(record: type[Record]) -> Schema:
    properties = {
        name: {"description": text["meaning"], **kind.schema()}
        for name, kind, text in record.described()
    }
    return {
        "description": " ".join((record.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
