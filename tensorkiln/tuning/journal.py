"""The journal of a search: all measurements so far, so that a search that was killed can be
resumed.

The first line identifies the search (`HEADER`); each further line is one measurement, in the order
in which they were made. Each line is appended by one write. If a kill cuts the last line short, it
is dropped and that measurement is made again.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import cannot_write, plain_path, read_plain
from tensorkiln.base.json_text import parse_json
from tensorkiln.base.record import ClosedRecord
from tensorkiln.base.schema import Reader
from tensorkiln.kernels.knobs import NamedValues

VERSION = 1
_HEADER = "kiln_tuning"
_COSTS = "costs"
_CODE = "bad-journal"
_LIMIT = 1 << 30
# The keys of the header, and what an error message calls a value that differs.
HEADER = {
    "compiler": "another version of the compiler",
    "target": "another target",
    "model": "another model",
    "measure": "another way to measure",
    "sizes": "other sizes",
    "threads": "another number of threads",
}


@dataclass(frozen=True, slots=True)
class Entry(ClosedRecord):
    """One measured candidate: the workload's key, the values of the knobs that differ from the
    untuned ones, the number of the run (0: the search itself; further numbers are confirming
    measurements), and the outcome: see `runtime.timing.Verdict`. Unless the state is "ok", the
    numbers are absent and `ratio` is infinity. The ratio of the untuned kernel is 1."""

    workload: str
    knobs: NamedValues
    run: int
    state: str
    reason: str = ""
    value: float | None = None
    median: float | None = None
    untuned: float | None = None
    ratio: float = math.inf
    unit: str = ""
    machine: str = ""
    library: str = ""

    _omits_defaults = True

    @property
    def key(self) -> tuple[str, tuple[tuple[str, int], ...], int]:
        """What identifies the measurement: workload, knobs and run."""
        return self.workload, self.knobs, self.run

    def to_json(self) -> dict[str, Any]:
        """The fields by name, without those that have their defaults."""
        return ClosedRecord.to_json(self) | {"knobs": dict(self.knobs)}


class Journal:
    """Measurements of one search, in a file or, without a path, in memory. A context, which closes
    the file.

    `header` has the keys of `HEADER`; `costs` are those of workloads, by their keys: a resumed
    search takes those that it began with. Raises UserError: code `bad-journal` for a file that is
    damaged or not a journal, `other-journal` for one with another header, `in-use`, `cannot-write`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        header: Mapping[str, str],
        costs: Mapping[str, float],
    ):
        self.costs = dict(costs)
        self._entries: dict[tuple[Any, ...], Entry] = {}
        self._file: int | None = None
        if path is not None:
            self._path = plain_path(path)
            self._open(header)

    def get(self, workload: str, knobs: tuple[tuple[str, int], ...], run: int) -> Entry | None:
        """The measurement of a candidate; None if there is none yet."""
        return self._entries.get((workload, knobs, run))

    def add(self, entry: Entry) -> None:
        """Append a measurement."""
        self._entries[entry.key] = entry
        if self._file is not None:
            self._append(entry.to_json())

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _open(self, header: Mapping[str, str]) -> None:
        """Read the file if it exists, drop an incomplete last line, and keep the file open for
        appending."""
        path = self._path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file", os.fspath(path))
            self._lock()
            content = read_plain(path, _LIMIT)
            whole = content[: content.rfind(b"\n") + 1]
            if whole:
                self._read(whole, header)
            elif content and not _is_torn_header(content):
                raise UserError("no journal of kiln tune", code=_CODE, where=f"{path}:1")
            os.ftruncate(self._file, len(whole))
        except OSError as error:
            self._close()
            raise cannot_write(path, error) from None
        except UserError:
            self._close()
            raise
        if not whole:
            self._append({_HEADER: VERSION, **header, _COSTS: self.costs})

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _lock(self) -> None:
        """Lock the file while it is open. UserError (code `in-use`) if another search has locked
        it."""
        import fcntl

        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{str(self._path)!r} is the journal of a search that runs now",
                code="in-use",
                where="journal",
                hint="name another file, or wait for it",
            ) from None

    def _append(self, row: Mapping[str, object]) -> None:
        assert self._file is not None
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"
        try:
            os.write(self._file, line.encode())
        except OSError as error:
            raise UserError(
                f"cannot write {str(self._path)!r}: {error.strerror}",
                code="cannot-write",
                where="journal",
            ) from None

    def _read(self, content: bytes, header: Mapping[str, str]) -> None:
        for number, line in enumerate(content.splitlines(), 1):
            place = f"{self._path}:{number}"
            try:
                row = Reader(parse_json(line), place, _CODE)
            except ValueError:
                problem = "no journal of kiln tune" if number == 1 else "a damaged line"
                raise UserError(problem, code=_CODE, where=place) from None
            if number > 1:
                entry = Entry.read(row)
                self._entries[entry.key] = entry
            else:
                self._require_same(row, header, place)

    def _require_same(self, row: Reader, header: Mapping[str, str], place: str) -> None:
        """Raise UserError unless a journal is of this search: code `bad-journal` for a file that is
        not a journal, `other-journal`, which names what differs, for that of another search."""
        row.require(_HEADER)
        version = row.number(_HEADER)
        hint = "name another file, or remove this one"
        if version != VERSION:
            message = f"a journal of version {version}; this Tensorkiln reads version {VERSION}"
            raise UserError(message, code=_CODE, where=place, hint=hint)
        row.only((_HEADER, *HEADER, _COSTS))
        costs = row.child(_COSTS)
        self.costs = {key: costs.real(key) for key, _ in row.items(_COSTS)}
        for key, description in HEADER.items():
            have, want = row.get(key, str), header[key]
            if have != want:
                raise UserError(
                    f"it is the journal of {description}: {_short(have)}, expected {_short(want)}",
                    code="other-journal",
                    where=place,
                    hint=hint,
                )


def _is_torn_header(content: bytes) -> bool:
    start = f'{{"{_HEADER}":{VERSION},'.encode()
    return content[: len(start)] == start[: len(content)]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
