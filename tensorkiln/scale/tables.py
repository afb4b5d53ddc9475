"""The rows to score and the results: Parquet files in parts, and streams of batches.

Imported only where tables are scored, since it needs pyarrow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tensorkiln.base.errors import UserError
from tensorkiln.base.files import atomic_path, cannot_write
from tensorkiln.base.folders import Listed

# Bytes of a column chunk that are read at a time, so that a large row group need not fit in memory.
_BUFFER = 1 << 20
# Uncompressed bytes of a part, all of which is lost with a worker; and of a row group that is
# written.
PART_BYTES = 128 << 20
_GROUP_BYTES = 16 << 20
_KEY = b"tensorkiln.scores"


@dataclass(frozen=True, slots=True)
class TablePart:
    """Some row groups of a Parquet file, whose results become one file, `name`; `first` is the
    number of their first row."""

    name: str
    file: str
    groups: tuple[int, ...]
    first: int
    rows: int


@dataclass(frozen=True, slots=True)
class Files:
    """Parquet files of one schema, in order."""

    paths: tuple[str, ...]
    schema: Any

    def parts(self, part_bytes: int) -> list[TablePart]:
        """Consecutive row groups, in parts of about `part_bytes` uncompressed bytes; each file has
        at least one part."""
        pieces: list[TablePart] = []
        for path in self.paths:
            metadata = _opened(path).metadata
            groups: list[int] = []
            first = rows = size = 0
            for g in range(metadata.num_row_groups):
                group = metadata.row_group(g)
                if groups and size + group.total_byte_size > part_bytes:
                    pieces.append(
                        TablePart(part_name(len(pieces)), path, tuple(groups), first, rows)
                    )
                    groups, first, rows, size = [], first + rows, 0, 0
                groups.append(g)
                rows += group.num_rows
                size += group.total_byte_size
            pieces.append(TablePart(part_name(len(pieces)), path, tuple(groups), first, rows))
        return pieces

    def state(self) -> list[list[Any]]:
        """Paths, sizes and times of the files, by which a later run knows that they are the
        same."""
        return [[p, s.st_size, s.st_mtime_ns] for p in self.paths for s in [Path(p).stat()]]


@dataclass(frozen=True, slots=True)
class Stream:
    """Batches that can be read once, in order; `rows` is the number of rows, 0 if unknown."""

    schema: Any
    source: Any
    rows: int = 0

    def batches(self, columns: Sequence[str], size: int) -> Iterator[Any]:
        """Batches of `size` rows with these columns; the last may have fewer."""
        if isinstance(self.source, ds.Dataset):
            options = {"batch_size": size, "batch_readahead": 2, "fragment_readahead": 1}
            scanned = self.source.scanner(columns=list(columns), use_threads=False, **options)
            return _of_size(scanned.to_batches(), size)
        if isinstance(self.source, pa.Table):
            return _of_size(self.source.select(list(columns)).to_batches(size), size)
        return _of_size((_chosen(batch, columns) for batch in self.source), size)


def part_name(number: int) -> str:
    """The file name of a part; names sort in the order of the rows."""
    return f"part-{number:06d}.parquet"


def _chosen(batch: Any, columns: Sequence[str]) -> Any:
    names = list(columns)
    return pa.RecordBatch.from_arrays(
        [batch.column(batch.schema.get_field_index(name)) for name in names],
        schema=pa.schema([batch.schema.field(name) for name in names]),
    )


def _of_size(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """The same rows in batches of `size`. Rows are copied only where a batch has to be joined from
    several."""
    pieces: list[Any] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, size - count)
            start += piece.num_rows
            count += piece.num_rows
            pieces.append(piece)
            if count == size:
                yield whole(pieces)
                pieces, count = [], 0
    if pieces:
        yield whole(pieces)


def whole(batches: Sequence[Any]) -> Any:
    """Several batches as one."""
    if len(batches) == 1:
        return batches[0]
    return whole_table(pa.Table.from_batches(batches))


def whole_table(table: Any) -> Any:
    """A table as one batch."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_pylist([], schema=table.schema)
    return batches[0]


def source_of(data: Any) -> Files | Stream:
    """The `data` argument of `map_batches` as Files or a Stream. Raises UserError (codes `no-rows`,
    `bad-data`)."""
    if isinstance(data, str | os.PathLike):
        return _files([data])
    if isinstance(data, list | tuple) and data:
        if all(isinstance(d, str | os.PathLike) for d in data):
            return _files(data)
        if all(isinstance(d, pa.RecordBatch) for d in data):
            data = pa.Table.from_batches(data)
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return Stream(data.schema, data, data.num_rows)
    if isinstance(data, pa.RecordBatchReader | ds.Dataset):
        return Stream(data.schema, data)
    raise UserError(
        f"data is {type(data).__name__}, from which no rows are read",
        code="bad-data",
        where="data",
        hint="files or folders of Parquet; a Table, RecordBatch, RecordBatchReader or Dataset of "
        "pyarrow; a Dataset of Ray",
    )


def _files(data: Sequence[str | os.PathLike[str]]) -> Files:
    paths = [path for entry in data for path in _files_of(os.fspath(entry))]
    schema = None
    for path in paths:
        file_schema = _opened(path).schema_arrow
        schema = schema or file_schema
        if not file_schema.equals(schema):
            differs = next(
                (
                    f
                    for f in schema
                    if f.name not in file_schema.names or file_schema.field(f.name) != f
                ),
                schema[0] if len(schema) else None,
            )
            raise UserError(
                f"its columns are not those of {paths[0]!r}; the first that differs is {differs}",
                code="bad-data",
                where=path,
                hint="score files of one schema together",
            )
    return Files(tuple(paths), schema)


def _files_of(entry: str) -> list[str]:
    if "://" in entry:
        raise UserError(
            f"{entry!r} is a URL, and only files are opened by their names",
            code="bad-data",
            where="data",
            hint="pyarrow.dataset.dataset(url) reads it",
        )
    path = Path(entry)
    if path.is_dir():
        paths = [
            str(p)
            for p in sorted(path.rglob("*.parquet"))
            if not any(part[0] in "._" for part in p.relative_to(path).parts) and p.is_file()
        ]
    elif path.exists():
        paths = [entry]
    else:
        root = Path(path.anchor or ".")
        pattern = str(path.relative_to(path.anchor)) if path.anchor else entry
        paths = sorted(str(p) for p in root.glob(pattern) if p.is_file()) if pattern else []
    if not paths:
        raise UserError(
            f"{entry!r} is no file, no folder with files *.parquet, and no pattern of any",
            code="no-rows",
            where="data",
        )
    return [str(Path(p).absolute()) for p in paths]


def _opened(path: str) -> Any:
    try:
        return pq.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{path!r} cannot be read as Parquet: {error}", code="bad-data") from error


def schema_of(path: str) -> Any:
    """The schema of a file."""
    return _opened(path).schema_arrow


def read_part(part: TablePart, columns: Sequence[str], size: int) -> Iterator[Any]:
    """The part's rows with these columns, in batches of `size`, one at a time."""
    try:
        with _opened(part.file) as file:
            read = file.iter_batches(
                batch_size=size,
                row_groups=list(part.groups),
                columns=list(columns),
                use_threads=False,  # all cores are busy with calls of the library
            )
            yield from _of_size(read if part.groups else (), size)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{part.file!r} cannot be read: {error}", code="bad-data") from error


# ---- parts that are written ----------------------------------------------------------------------


class PartWriter:
    """Writes a Parquet file that appears when the `with` block has ended without an exception. Its
    metadata has the `key` of the call, and the source file and number of its first row."""

    def __init__(self, path: Path, schema: Any, key: str, file: str, first: int):
        self._schema = schema
        self._about: dict[str, Any] = {
            "key": key,
            "file": file,
            "first": first,
            "rows": 0,
            "failed": 0,
        }
        self._held: list[Any] = []
        self._held_bytes = 0
        self.bytes = 0
        self._place = atomic_path(path)

    def __enter__(self) -> PartWriter:
        path = self._place.__enter__()
        # The codec that decodes fastest; others hardly make scores smaller.
        self._writer = pq.ParquetWriter(path, self._schema, compression="snappy")
        return self

    def write(self, batch: Any, failed: int) -> None:
        """Append a batch, of which `failed` rows failed. Row groups are written as they become
        large enough."""
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        self.bytes += batch.nbytes
        self._about["rows"] += batch.num_rows
        self._about["failed"] += failed
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, schema=self._schema))
        self._held, self._held_bytes = [], 0

    def __exit__(self, *raised: Any) -> None:
        try:
            if raised[0] is None:
                self._flush()
                self._writer.add_key_value_metadata({_KEY: json.dumps(self._about).encode()})
            self._writer.close()
        except BaseException as error:
            self._place.__exit__(type(error), error, error.__traceback__)
            raise
        self._place.__exit__(*raised)


def about(path: Path) -> Mapping[str, Any] | None:
    """The metadata that PartWriter wrote; None for any other file."""
    with suppress(OSError, ValueError, pa.ArrowException):
        summary = (pq.read_metadata(path).metadata or {}).get(_KEY)
        parsed = json.loads(summary) if summary else None
        return parsed if isinstance(parsed, dict) else None
    return None


def parts_in(folder: Path) -> Listed:
    """The files in a folder that PartWriter wrote. A later run may replace these, and leaves all
    others alone."""
    return {p.name: None for p in sorted(folder.glob("part-*.parquet")) if about(p) is not None}


def require_ours(folder: Path, parts: Sequence[TablePart], key: str) -> set[str]:
    """The names of the parts that a former run of the same call finished. Raises UserError (code
    `cannot-write`) if the folder contains anything else."""
    names = {part.name for part in parts}
    finished = set()
    try:
        entries = sorted(p for p in folder.iterdir() if p.name[0] not in "._")
    except OSError as error:
        raise cannot_write(folder, error) from error
    for path in entries:
        summary = about(path) if path.name in names else None
        if summary is None or summary.get("key") != key:
            raise UserError(
                f"{str(path)!r} is no result of this call",
                code="cannot-write",
                where="out=",
                hint="another library, table or argument needs a folder of its own",
            )
        finished.add(path.name)
    return finished


def remove_remains(folder: Path, parts: Sequence[TablePart]) -> None:
    """Remove temporary files that killed workers left, once all these parts are written."""
    for part in parts:
        for remnant in folder.glob(f".{part.name}.*.tmp"):
            remnant.unlink(missing_ok=True)


def reasons_in(path: Path, column: str) -> Iterator[tuple[int, str]]:
    """The rows that failed in a part: their numbers in the part, and the reasons."""
    row = 0
    for batch in _opened(str(path)).iter_batches(columns=[column]):
        for k, reason in enumerate(batch.column(0)):
            if reason.is_valid:
                yield row + k, reason.as_py()
        row += batch.num_rows
