"""`Records`: what was measured of kernels with other values of their knobs, as versioned text.

A file of them is lines of JSON (docs/formats/records.md): a header with the version, then a record
a line, in one order, so equal records are equal bytes. They are an input of `compile(records=)`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

from tensorkiln.base.errors import UserError, require
from tensorkiln.base.files import atomic_write, open_plain, plain_path
from tensorkiln.base.json_text import MAX_BYTES, parse_json
from tensorkiln.base.record import ClosedRecord, word
from tensorkiln.base.schema import Reader
from tensorkiln.base.sources import modules_digest
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.relax import Function
from tensorkiln.ir.text.printer import nameless_text
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.knobs import ATTRIBUTE, NamedValues, text_of
from tensorkiln.target import Target, target_of_kernels

VERSION = 1
TIME = "ms"  # the unit of times; any other is a proxy, such as "instructions"

_CODE = "bad-records"
_HEADER = "kiln_records"
_HASH = word("[0-9a-f]{64}", "a SHA-256")
# Fields of targets that no kernel's code depends on.
_NOT_OF_CODE = frozenset({"tag", "base_tag", "target_key", "operators"})


@dataclass(frozen=True, slots=True)
class Record(ClosedRecord):
    """One measurement of a kernel with chosen knobs.

    `workload` is the hash of the fused group, with layouts and without names, whose text is `text`
    (`workload_of`); `target` is the part of a target that decides its code (`target_text`),
    `family` the kernel family, `schedule` the hash of the family's schedule when it was measured
    (`schedule_digest`). `knobs` are (name, value), by name; others are untuned. `least` and
    `median` are the times it took, and `untuned` the least time of the untuned kernel, measured
    beside it, in `unit`: "ms", or a proxy such as "instructions". `machine` describes the machine
    in words.
    """

    workload: Annotated[str, _HASH]
    target: str
    family: Annotated[str, word(r"[A-Za-z_]\w*", "the name of a kernel family")]
    schedule: Annotated[str, _HASH]
    knobs: NamedValues
    unit: Annotated[str, word(r"[A-Za-z][\w/ ]{0,31}", "a unit")]
    least: float
    median: float
    untuned: float
    machine: str = ""
    text: str = ""

    @property
    def is_better(self) -> bool:
        """Whether it took less than the untuned kernel beside it."""
        return bool(self.knobs) and self.least < self.untuned

    @property
    def gain(self) -> float:
        """How many times as fast as the untuned kernel."""
        return self.untuned / self.least if self.least else 1.0

    @property
    def choices(self) -> Mapping[str, int]:
        """The values of knobs by name."""
        return dict(self.knobs)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What was measured: `merge` keeps the best record of each key."""
        return self.target, self.family, self.workload, self.schedule

    @property
    def rank(self) -> tuple[object, ...]:
        """A sort key for the records of one `key`, the best first: times before proxies, which only
        stand for times; then the fraction of the untuned kernel's time, which can be compared
        across machines; then the time. The other fields make the order total."""
        part = self.least / self.untuned if self.untuned else 1.0
        measurement = (self.unit != TIME, part, self.least, self.median)
        return (*measurement, len(self.knobs), self.knobs, self.unit, self.machine, self.text)

    def to_json(self) -> dict[str, Any]:
        """Its values by name, in the order in which they are written."""
        return ClosedRecord.to_json(self) | {"knobs": dict(sorted(self.knobs))}

    def __str__(self) -> str:
        cost = f"{self.least:g} {self.unit}, untuned {self.untuned:g}"
        return f"{self.family} {text_of(self.choices) or 'untuned'}: {cost}"


@dataclass(frozen=True, slots=True, repr=False)
class Records:
    """Records in their order, the best one of each workload, target, family and schedule."""

    rows: tuple[Record, ...] = ()
    _of: dict[tuple[str, str], list[Record]] = field(
        default_factory=dict, init=False, compare=False
    )

    def __post_init__(self) -> None:
        best: dict[tuple[str, ...], Record] = {}
        for row in self.rows:
            require(row, Record, "a record")
            former = best.get(row.key)
            if former is None or row.rank < former.rank:
                best[row.key] = row
        object.__setattr__(self, "rows", tuple(best[key] for key in sorted(best)))
        for row in self.rows:
            self._of.setdefault((row.workload, row.target), []).append(row)

    def of(self, workload: str, target: str) -> tuple[Record, ...]:
        """The records of a workload for a target, the best first."""
        return tuple(sorted(self._of.get((workload, target), ()), key=lambda row: row.rank))

    def merge(self, *records: Records) -> Records:
        """These and others, the best one of each workload, target, family and schedule."""
        return Records((*self.rows, *(row for part in records for row in part.rows)))

    def text(self) -> str:
        """The text of their file."""
        rows = [{_HEADER: VERSION}, *(row.to_json() for row in self.rows)]
        lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
        return "".join(f"{line}\n" for line in lines)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write them to a file, whole or not at all; return its path."""
        atomic_write(plain_path(path), self.text())
        return Path(path)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<{len(self)} records>"


def read_records(path: str | os.PathLike[str]) -> Records:
    """The records of a file. UserError: code `bad-records`, if a line is damaged, which is named,
    or it is not a file of records, or of a later version; code `missing-file` if it cannot be
    opened."""
    file = plain_path(path)
    try:
        with open_plain(file) as stream:
            lines = iter(partial(stream.readline, MAX_BYTES + 1), b"")
            return Records(tuple(_rows(lines, str(path))))
    except OSError as error:
        raise UserError(
            f"cannot read records {str(path)!r}: {error.strerror or error}", code="missing-file"
        ) from None


def _rows(lines: Iterable[bytes], path: str) -> Iterator[Record]:
    number = 0
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        try:
            parsed = parse_json(line, unique=True)
        except ValueError as error:
            fault = "no file of records" if number == 1 else "a damaged record"
            raise UserError(f"{fault}: {error}", code=_CODE, where=place) from None
        if number == 1:
            _check_header(parsed, place)
        else:
            yield Record.read(Reader(parsed, place, _CODE))
    if not number:
        raise UserError("no file of records: it is empty", code=_CODE, where=path)


def _check_header(parsed: object, place: str) -> None:
    if not isinstance(parsed, dict) or _HEADER not in parsed:
        message = f"no file of records: the first line is not {{{_HEADER!r}: {VERSION}}}"
        raise UserError(message.replace("'", '"'), code=_CODE, where=place)
    row = Reader(parsed, place, _CODE)
    version = row.number(_HEADER)
    if version != VERSION:
        raise UserError(
            f"records of version {version}; this Tensorkiln reads version {VERSION}",
            code=_CODE,
            where=place,
            hint="tune again, or use the Tensorkiln that wrote them",
        )
    row.only((_HEADER,))


GivenRecords = Records | str | os.PathLike[str] | Iterable["Records | str | os.PathLike[str]"]


def records_of(argument: GivenRecords | None) -> Records:
    """The records that an argument `records=` stands for: Records, the path of a file, several of
    them merged, or None. Raises the errors of `read_records`; UserError for anything else."""
    if argument is None:
        return Records()
    if isinstance(argument, Records):
        return argument
    if isinstance(argument, str | os.PathLike):
        return read_records(argument)
    if not isinstance(argument, list | tuple):
        require(argument, (Records, str, list), "records")
    parts = []
    for part in argument:
        require(part, (Records, str, os.PathLike), "one of the records")
        parts.append(records_of(part))
    return Records().merge(*parts)


def workload_of(group: Function) -> tuple[str, str]:
    """(the hash by which records know a fused group, the text that is hashed): the group without
    names, knobs and the key of its device."""
    attributes = {k: v for k, v in group.attrs.items() if k not in (ATTRIBUTE, "target")}
    if len(attributes) < len(group.attrs):
        group = replace(group, attrs=Attrs.of(**attributes))
    text, _ = nameless_text(group)
    return hashlib.sha256(text.encode()).hexdigest(), text


def target_text(target: Target) -> str:
    """The fields of a target on which the code of kernels depends, as JSON text: without tags,
    without the key and operators of a composite's device, and without those that
    `target_of_kernels` removes."""
    whole = target_of_kernels(target)
    fields = {k: v for k, v in whole.to_json().items() if k not in _NOT_OF_CODE}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


@cache
def schedule_digest(family: Family) -> str:
    """SHA-256 (hex) over the sources that decide what the values of a family's knobs mean: the
    module of its schedule, that which declares the knobs, and what both import of families,
    schedules and kernels, or of their own package."""
    module = family.schedule.partition(":")[0]
    assert family.knobs is not None
    declaring = getattr(inspect.unwrap(family.knobs), "__module__", module)
    return modules_digest(module, declaring, rooms=("families", "schedule", "kernels"))
