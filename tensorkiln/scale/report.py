"""What became of each row of a farm, and `farm.json`, which the next run reads."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.base.schema import Reader
from tensorkiln.scale.jobs import Failure
from tensorkiln.scale.manifest import Row
from tensorkiln.scale.results import File
from tensorkiln.scale.storage import MOST_TEXT, Storage

REPORT = "farm.json"
_VERSION = 1


class State(enum.Enum):
    """What became of a row: compiled now; taken from the output or a cache; no result, and why; or
    not reached."""

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
class Made:
    """A row and what became of it. `key` names what it is made from, empty where the model could
    not be read. `seconds` is what its worker took, 0 where none was asked."""

    name: str
    model: str
    target_name: str
    target: Mapping[str, object]
    options: Mapping[str, object]
    names: tuple[str, ...]
    key: str = ""
    state: State = State.WAITING
    files: tuple[File, ...] = ()
    stamps: tuple[str, ...] = field(default=(), repr=False)
    failure: Failure | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    tries: int = 0

    @staticmethod
    def of(row: Row) -> Made:
        """A row that is not reached yet."""
        options = row.options.to_json()
        target = row.target.to_json()
        return Made(row.name, row.model.name, row.target_name, target, options, row.names)

    def keyed(self, key: str) -> Made:
        """This row, of which it is known what it is made from."""
        return replace(self, key=key)

    def timed(self, seconds: float, tries: int) -> Made:
        """This row after a worker was asked."""
        return replace(self, seconds=seconds, tries=tries)

    def noted(self, notes: Sequence[str]) -> Made:
        """This row, of whose compile there is something to know."""
        return replace(self, notes=tuple(notes))

    def done(self, state: State, files: Sequence[File], stamps: Sequence[str]) -> Made:
        """This row, whose files are there."""
        return replace(self, state=state, files=tuple(files), stamps=tuple(stamps))

    def failed(self, failure: Failure) -> Made:
        """This row, which has no result."""
        return replace(self, state=State.FAILED, failure=failure)

    @property
    def is_ours(self) -> bool:
        """Whether its files are, or may be by now, what a farm has written: not those of a row that
        failed before a worker was asked."""
        return self.state is not State.FAILED or self.tries > 0

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, object]:
        """The row as JSON values."""
        error = self.failure
        return {
            "name": self.name,
            "state": self.state.value,
            "model": self.model,
            "target_name": self.target_name,
            "target": dict(self.target),
            "options": dict(self.options),
            "key": self.key,
            "files": [asdict(file) for file in self.files],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "tries": self.tries,
            "error": None if error is None else asdict(error),
        }


@dataclass(frozen=True, slots=True)
class FarmReport:
    """What became of each row, in the manifest's order."""

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
        """The rows that have no result."""
        return self.of(State.FAILED)

    @property
    def waiting(self) -> tuple[Made, ...]:
        """The rows that were not reached."""
        return self.of(State.WAITING)

    def is_good(self, policy: str = "all") -> bool:
        """Whether this is a success: `all`: every row is there; `supported`: every row but those
        whose models are not supported; `any`: one row is there; `none`: always."""
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
        """`farm.json`: these rows, and those of former runs that this one was not asked for; all
        files that a farm wrote, or was about to write, are its `names`."""
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
class Former:
    """What a report says of a row whose files are there."""

    key: str
    files: tuple[File, ...]
    stamps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormerReport:
    """The report of former runs: rows that are there, all rows as they stand there, and the files
    that a farm wrote."""

    rows: Mapping[str, Former] = field(default_factory=dict)
    raw: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


def read_report(out: Storage) -> FormerReport:
    """The report in an output; an empty one if there is none. UserError (code `bad-report`) if it
    is damaged, since it says which files may be replaced."""
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
            name = row.get("name", str)
            raw[name] = value
            files = tuple(File.read(file) for file in row.rows("files"))
            stamps = row.texts("stamps")
            if files and len(stamps) == len(files):
                rows[name] = Former(row.get("key", str), files, stamps)
        return FormerReport(rows, raw, frozenset(reader.texts("names")))
    except UserError as error:
        hint = "move or remove it, and what is beside it"
        raise UserError(error.message, code=error.code, where=error.where, hint=hint) from None


def _parsed(text: bytes) -> object:
    """A report may be larger than other JSON: it has a row for each of thousands of files."""
    try:
        if len(text) > MOST_TEXT:
            raise ValueError(f"it has more than {MOST_TEXT} bytes")
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", code="bad-report", where=REPORT) from None
