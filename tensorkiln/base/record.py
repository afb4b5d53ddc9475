"""Records of JSON: dataclasses whose fields say how they are read, written and described.

    @dataclass(frozen=True, slots=True)
    class Pool(JsonRecord):
        name: Annotated[str, word("[a-z]+", "a name of C")]
        size_bytes: Dim
        align: int = 64

A field's type says what its JSON is (`kind_of`); `Annotated` narrows it. A field with a default may
be missing. What differs from that is in `json_key`: `field(default=(), metadata=OMITTED)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum
from os import PathLike
from types import NoneType, UnionType
from typing import Annotated, Any, Self, Union, get_args, get_origin, get_type_hints

from tensorkiln.base.schema import MOST, Dim, Reader

Schema = dict[str, Any]
REQUIRED = object()  # in place of a value for a key that is missing


@dataclass(frozen=True, slots=True)
class JsonKind:
    """How the value of a key is read, its JSON schema, and the records to which that refers.
    `read` raises the reader's UserError for anything else."""

    read: Callable[[Reader, str], object]
    schema: Schema = field(default_factory=dict)
    records: tuple[type[JsonRecord], ...] = ()


@dataclass(frozen=True, slots=True)
class JsonKey:
    """What a field is in JSON: the `name` of the key, if it has another; whether it is `omitted`
    where it has its default, and `hidden`, neither written nor read; `absent`, the value where the
    key is missing, if the field has no such default; and for its documentation the `meaning`, and
    its `origin`, if the key is older than this format."""

    name: str = ""
    omitted: bool = False
    hidden: bool = False
    absent: object = REQUIRED
    meaning: str = ""
    origin: str = ""


_PLAIN = JsonKey()


def json_key(
    name: str = "", *, omitted: bool = False, hidden: bool = False, absent: object = REQUIRED
) -> Mapping[str, JsonKey]:
    """The `metadata` of a dataclass field, with what a `JsonKey` says."""
    return {"json": JsonKey(name, omitted, hidden, absent)}


OMITTED = json_key(omitted=True)


class JsonRecord:
    """Base of dataclasses that are objects of JSON. A reader passes over keys that it does not
    know, so that a later version may add some. With `_omits_defaults`, every key is left out where
    the field has its default."""

    __slots__ = ()
    _is_closed = False
    _omits_defaults = False

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """The record that parsed JSON describes; the reader's UserError for anything else."""
        entries = _entries(cls)
        if cls._is_closed:
            reader.only([entry.key for entry in entries])
        values: dict[str, Any] = {}
        for entry in entries:
            if entry.key in reader:
                values[entry.field] = entry.kind.read(reader, entry.key)
            elif entry.absent is REQUIRED:
                raise reader.wrong("it is missing", entry.key)
            else:
                values[entry.field] = entry.absent
        record = cls(**values)
        record.validate(reader)
        return record

    def validate(self, reader: Reader) -> None:
        """Raise the reader's UserError if fields that were read contradict each other."""

    def to_json(self) -> dict[str, Any]:
        """The record as JSON values, in the order of its fields."""
        out = {}
        for f, json in keys_of(type(self)):
            value = getattr(self, f.name)
            default = _default(f, json)
            is_default = value == default or value is default
            if not (is_default and (json.omitted or self._omits_defaults)):
                out[json.name or f.name] = plain(value)
        return out


class ClosedRecord(JsonRecord):
    """A record whose readers refuse keys that they do not know."""

    __slots__ = ()
    _is_closed = True


def plain(value: object) -> Any:
    """Records, dataclasses, tuples and mappings as JSON values; paths as text, and infinities and
    NaN, for which JSON has no numbers, as `"inf"`, `"-inf"` and `"nan"`."""
    if isinstance(value, JsonRecord):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [plain(element) for element in value]
    if isinstance(value, Mapping):
        return {str(name): plain(element) for name, element in value.items()}
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, PathLike):
        return str(value)
    return value


def keys_of(record: type) -> Iterator[tuple[Field[Any], JsonKey]]:
    """The fields of a record that are in its JSON."""
    for f in fields(record):
        json = f.metadata.get("json", _PLAIN)
        if not json.hidden:
            yield f, json


def _default(f: Field[Any], json: JsonKey) -> object:
    if json.absent is not REQUIRED:
        return json.absent
    if f.default_factory is not MISSING:
        return f.default_factory()
    return REQUIRED if f.default is MISSING else f.default


@dataclass(frozen=True, slots=True)
class KeyReader:
    """How one field is read: its name, key and kind, and the value where the key is missing;
    REQUIRED if it may not be."""

    field: str
    key: str
    kind: JsonKind
    absent: object


_ENTRIES: dict[type[JsonRecord], tuple[KeyReader, ...]] = {}


def _entries(record: type[JsonRecord]) -> tuple[KeyReader, ...]:
    if record in _ENTRIES:
        return _ENTRIES[record]
    hints = get_type_hints(record, include_extras=True)
    _ENTRIES[record] = tuple(
        KeyReader(f.name, json.name or f.name, kind_of(hints[f.name]), _default(f, json))
        for f, json in keys_of(record)
    )
    return _ENTRIES[record]


# -- kinds -----------------------------------------------------------------------------------------


def word(form: str, noun: str) -> JsonKind:
    """Text that matches `form` entirely, which messages call `noun`."""
    pattern = re.compile(form)
    return JsonKind(
        lambda reader, key: reader.word(key, pattern, noun),
        {"type": "string", "pattern": f"^{form}$"},
    )


def words(form: str, noun: str) -> JsonKind:
    """A list of text, each of which matches `form` entirely."""
    pattern, row = re.compile(form), word(form, noun)
    return JsonKind(
        lambda reader, key: reader.words(key, pattern, noun),
        {"type": "array", "items": row.schema},
    )


def one_of(choices: Mapping[str, object] | tuple[str, ...]) -> JsonKind:
    """Text that is one of `choices`."""

    def read(reader: Reader, key: str) -> str:
        value = reader.get(key, str)
        if value not in choices:
            raise reader.unknown(value, choices, key)
        return value

    return JsonKind(read, {"enum": list(choices)})


def _size(reader: Reader, key: str) -> Dim:
    size = reader.size(key)
    if isinstance(size, int) and size < 0:
        raise reader.wrong(f"expected a size, got {size}", key)
    return size


def _shape(reader: Reader, key: str) -> tuple[Dim, ...]:
    dims = reader.dims(key) or ()
    if any(isinstance(dim, int) and dim < 0 for dim in dims):
        raise reader.wrong("expected sizes", key)
    return dims


def _sizes(reader: Reader, key: str) -> tuple[int, ...]:
    sizes = reader.get(key, list)
    if not all(type(size) is int and 0 <= size <= MOST for size in sizes):
        raise reader.wrong("expected a list of sizes", key)
    return tuple(sizes)


def _counts(reader: Reader, key: str) -> dict[str, int]:
    counts = {}
    for name, count in reader.items(key):
        if type(count) is not int or not 0 <= count <= MOST:
            raise reader.wrong(f"{name!r:.200}: expected a size, got {count!r:.200}", key)
        counts[name] = count
    return counts


def _objects(reader: Reader, key: str) -> dict[str, object]:
    for name, value in reader.items(key):
        if not isinstance(value, dict):
            raise reader.wrong(f"{name!r:.200}: expected an object", key)
    return dict(reader.items(key))


_COUNT = JsonKind(Reader.number, {"type": "integer", "minimum": 0, "maximum": MOST})
_TEXT = JsonKind(lambda reader, key: reader.get(key, str), {"type": "string"})
_SIZE = JsonKind(_size, {"anyOf": [_COUNT.schema, _TEXT.schema]})
# Objects of arbitrary names, each with an object that somebody else describes.
OBJECTS = JsonKind(_objects, {"type": "object", "additionalProperties": {"type": "object"}})
_KINDS: Mapping[Any, JsonKind] = {
    str: _TEXT,
    bool: JsonKind(Reader.flag, {"type": "boolean"}),
    int: _COUNT,
    float: JsonKind(Reader.real, {"type": "number", "minimum": 0}),
    Dim: _SIZE,
    tuple[str, ...]: JsonKind(Reader.texts, {"type": "array", "items": _TEXT.schema}),
    tuple[int, ...]: JsonKind(_sizes, {"type": "array", "items": _COUNT.schema}),
    tuple[Dim, ...]: JsonKind(_shape, {"type": "array", "items": _SIZE.schema}),
    Mapping[str, int]: JsonKind(_counts, {"type": "object", "additionalProperties": _COUNT.schema}),
    Mapping[str, object]: JsonKind(lambda reader, key: reader.get(key, dict), {"type": "object"}),
}


def kind_of(hint: Any) -> JsonKind:
    """The kind of a field by its type: text, flags, counts from 0 on, finite measurements from 0
    on, sizes (a number or the text of an expression), lists and objects of these and of records,
    and each of them or null."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(a for a in arguments if isinstance(a, JsonKind))
    if hint in _KINDS:
        return _KINDS[hint]
    if isinstance(hint, type) and issubclass(hint, JsonRecord):
        return JsonKind(lambda reader, key: hint.read(reader.child(key)), _reference(hint), (hint,))
    if origin in (Union, UnionType) and NoneType in arguments:
        (value_hint,) = (argument for argument in arguments if argument is not NoneType)
        return _or_null(kind_of(value_hint))
    record = arguments[-1] if origin is Mapping else arguments[0]
    return _table(record) if origin is Mapping else _rows(record)


def _or_null(kind: JsonKind) -> JsonKind:
    return JsonKind(
        lambda reader, key: None if reader.is_null(key) else kind.read(reader, key),
        {"anyOf": [kind.schema, {"type": "null"}]},
        kind.records,
    )


def _rows(record: type[JsonRecord]) -> JsonKind:
    return JsonKind(
        lambda reader, key: tuple(record.read(row) for row in reader.rows(key)),
        {"type": "array", "items": _reference(record)},
        (record,),
    )


def _table(record: type[JsonRecord]) -> JsonKind:
    return JsonKind(
        lambda reader, key: {name: record.read(row) for name, row in reader.table(key)},
        {"type": "object", "additionalProperties": _reference(record)},
        (record,),
    )


def _reference(record: type[JsonRecord]) -> Schema:
    return {"$ref": f"#/$defs/{record.__name__}"}


# -- JSON schema -----------------------------------------------------------------------------------


def records_below(root: type[JsonRecord]) -> dict[str, type[JsonRecord]]:
    """`root` and all records that its fields hold, by name, each before those that it holds."""
    record_of_name: dict[str, type[JsonRecord]] = {}
    queue = [root]
    while queue:
        record = queue.pop(0)
        if record_of_name.setdefault(record.__name__, record) is record:
            below = [r for entry in _entries(record) for r in entry.kind.records]
            queue += [r for r in below if r.__name__ not in record_of_name]
    return record_of_name


def json_schema(root: type[JsonRecord], title: str) -> Schema:
    """The JSON schema (draft 2020-12) of a record without defaults."""
    definitions = {name: _object(record) for name, record in records_below(root).items()}
    top = definitions.pop(root.__name__)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    return {**head, **top, "$defs": definitions}


def _object(record: type[JsonRecord]) -> Schema:
    meaning = {f.name: json.meaning for f, json in keys_of(record)}
    properties = {
        entry.key: {"description": meaning[entry.field], **entry.kind.schema}
        for entry in _entries(record)
    }
    return {
        "description": " ".join((record.__doc__ or "").split()),
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
