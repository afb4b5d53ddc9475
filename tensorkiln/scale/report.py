"""The report on a farm: the outcome of each row, and `farm.json`, from which the next run
continues.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.base.schema import Reader
from tensorkiln.scale.jobs import Failure
from tensorkiln.scale.manifest import ManifestRow
from tensorkiln.scale.results import BuiltFile
from tensorkiln.scale.storage import MOST_TEXT, Storage

REPORT = "farm.json"
_VERSION = 1


class State(enum.Enum):
    """The outcome of a row: compiled in this run; taken from the output or a cache; failed; or not
    reached yet."""

    MADE = "made"
    CACHED = "cached"
    FAILED = "failed"
    WAITING = "waiting"


POLICIES = {
    "all": "every row is there",
    "supported": "every row is there but those of models that are not supported",
    "any": "a row is there",
    "none": "whatever fails",
}


@dataclass(frozen=True, slots=True)
class Made(JsonRecord):
    """A row and its outcome. `key` is the hash of what it is made from, empty if the model could
    not be read. `seconds` is the time that its worker took, 0 if no worker was asked."""

    name: str
    state: State
    model: str
    target_name: str
    target: Mapping[str, object]
    options: Mapping[str, object]
    names: tuple[str, ...] = field(metadata=json_key(hidden=True))
    key: str = ""
    files: tuple[BuiltFile, ...] = ()
    stamps: tuple[str, ...] = field(default=(), repr=False, metadata=json_key(hidden=True))
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    tries: int = 0
    failure: Failure | None = field(default=None, metadata=json_key("error"))

    @staticmethod
    def of(row: ManifestRow) -> Made:
        """The row before any work on it."""
        return Made(
            row.name,
            State.WAITING,
            row.model.name,
            row.target_name,
            row.target.to_json(),
            row.options.to_json(),
            row.names,
        )

    def keyed(self, key: str) -> Made:
        """A copy with the key."""
        return replace(self, key=key)

    def timed(self, seconds: float, tries: int) -> Made:
        """A copy with the time that its worker took and the number of submissions."""
        return replace(self, seconds=seconds, tries=tries)

    def noted(self, notes: Sequence[str]) -> Made:
        """A copy with the notes of its compile."""
        return replace(self, notes=tuple(notes))

    def done(self, state: State, files: Sequence[BuiltFile], stamps: Sequence[str]) -> Made:
        """A copy whose files exist now."""
        return replace(self, state=state, files=tuple(files), stamps=tuple(stamps))

    def failed(self, failure: Failure) -> Made:
        """A copy that has failed."""
        return replace(self, state=State.FAILED, failure=failure)

    @property
    def is_ours(self) -> bool:
        """Whether files of its names in the output are, or may be, a farm's own. They are not if
        the row failed before a worker was asked."""
        return self.state is not State.FAILED or self.tries > 0

    @property
    def bytes(self) -> int:
        """The total size of its files."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """The row as JSON values."""
        return JsonRecord.to_json(self) | {"seconds": round(self.seconds, 3)}


@dataclass(frozen=True, slots=True)
class FarmReport:
    """The outcome of each row, in the manifest's order."""

    output: str
    compiler: Mapping[str, str]
    rows: tuple[Made, ...]

    def of(self, state: State) -> tuple[Made, ...]:
        """The rows in a state."""
        return tuple(row for row in self.rows if row.state is state)

    @property
    def made(self) -> tuple[Made, ...]:
        """The rows that were compiled."""
        return self.of(State.MADE)

    @property
    def cached(self) -> tuple[Made, ...]:
        """The rows that were in the output already, or in a cache."""
        return self.of(State.CACHED)

    @property
    def failed(self) -> tuple[Made, ...]:
        """The rows that failed."""
        return self.of(State.FAILED)

    @property
    def waiting(self) -> tuple[Made, ...]:
        """The rows that were not reached."""
        return self.of(State.WAITING)

    def is_good(self, policy: str = "all") -> bool:
        """Whether the run is a success. With policy `all`, if every row was built; `supported`, if
        every row was built except those whose models are not supported; `any`, if at least one was;
        `none`: always."""
        successes = len(self.made) + len(self.cached)
        if policy == "any":
            return successes > 0
        refused = sum(
            row.failure is not None and row.failure.kind == "UnsupportedError"
            for row in self.failed
        )
        missing = len(self.rows) - successes - (refused if policy == "supported" else 0)
        return policy == "none" or missing == 0

    def to_bytes(self, former: FormerReport) -> bytes:
        """`farm.json`: these rows, and the rows of former runs that this run was not asked for. Its
        `names` are all files that a farm wrote or was about to write."""
        row_names = {row.name for row in self.rows}
        names = former.names.union(n for row in self.rows if row.is_ours for n in row.names)
        rows = [{**row.to_json(), "stamps": list(row.stamps)} for row in self.rows]
        rows += [dict(raw) for name, raw in former.raw.items() if name not in row_names]
        whole = {
            "version": _VERSION,
            "compiler": dict(self.compiler),
            "rows": rows,
            "names": sorted(names),
        }
        return (json.dumps(whole, indent=1) + "\n").encode()


@dataclass(frozen=True, slots=True)
class Former(JsonRecord):
    """What the former report says of a row."""

    name: str
    key: str
    files: tuple[BuiltFile, ...]
    stamps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormerReport:
    """The report of former runs: the rows that were built, the JSON of all rows, and the names of
    files that a farm wrote."""

    rows: Mapping[str, Former] = field(default_factory=dict)
    raw: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


def read_report(out: Storage) -> FormerReport:
    """The report in an output; an empty one if there is no report. UserError (code `bad-report`) if
    it is damaged: it decides which files may be replaced, so it is not ignored."""
    text = out.read(REPORT)
    if text is None:
        return FormerReport()
    place = f"{out.url}/{REPORT}"
    try:
        reader = Reader(_parsed(text), place, "bad-report")
        if (version := reader.get("version", int)) != _VERSION:
            raise reader.wrong(f"version {version} of another Tensorkiln, expected {_VERSION}")
        rows, raw = {}, {}
        for row, value in zip(reader.rows("rows"), reader.get("rows", list), strict=True):
            former = Former.read(row)
            raw[former.name] = value
            if former.files and len(former.stamps) == len(former.files):
                rows[former.name] = former
        return FormerReport(rows, raw, frozenset(reader.texts("names")))
    except UserError as error:
        hint = "move or remove it, and what is beside it"
        raise UserError(error.message, code=error.code, where=error.where, hint=hint) from None


def _parsed(text: bytes) -> object:
    """The JSON of a report. It may be longer than other JSON, since it has a row for each of
    thousands of files."""
    try:
        if len(text) > MOST_TEXT:
            raise ValueError(f"it has more than {MOST_TEXT} bytes")
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", code="bad-report", where=REPORT) from None
