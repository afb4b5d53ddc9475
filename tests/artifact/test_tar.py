"""Tar archives of others: what their headers claim is bounded before it is read."""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from tensorkiln.artifact.mlf.archive import archive_files
from tensorkiln.artifact.tar import read_tar
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.archive import tar_members

LARGE = 6 << 30
# A sparse file of version 1.0, whose map is read line by line, and a file.
SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x"}


def header(kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def written(path: Path, start: bytes, size: int = 0) -> Path:
    """A file of these bytes and then of holes."""
    with path.open("wb") as stream:
        stream.write(start)
        stream.truncate(max(size, len(start)) + 1024)
    return path


def sparse_map(path: Path) -> Path:
    """A map of many rows, of which none ends."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.pax_headers, info.size = SPARSE, 1 << 20
        archive.addfile(info, io.BytesIO(b"9999999\n" + b"1" * (1 << 20)))
    return path


ARCHIVES = {
    "a long name": lambda p: written(p, header(tarfile.GNUTYPE_LONGNAME, LARGE), LARGE),
    "a long link": lambda p: written(p, header(tarfile.GNUTYPE_LONGLINK, LARGE), LARGE),
    "records": lambda p: written(p, header(tarfile.XHDTYPE, LARGE), LARGE),
    "records for all": lambda p: written(p, header(tarfile.XGLTYPE, LARGE), LARGE),
    "records of digits": lambda p: written(p, header(tarfile.XHDTYPE, 60_000) + b"1" * 60_000),
    "many digits": lambda p: written(p, header(tarfile.XHDTYPE, 1 << 22) + b"1" * (1 << 22)),
    "a map": sparse_map,
}


@pytest.mark.parametrize("archive", ARCHIVES)
@pytest.mark.parametrize("read", [archive_files, lambda path: list(tar_members(path))])
def test_headers_that_claim_much(archive: str, read: object, tmp_path: Path) -> None:
    path = ARCHIVES[archive](tmp_path / "net.tar")
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            read(path)  # type: ignore[operator]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.code == "bad-archive"


def test_archives_of_all_forms(tmp_path: Path) -> None:
    """Long names, names with digits, empty files by the hundred, in each format."""
    names = ["a" * 3000, "1" * 90, "d/é", *(f"empty{i}" for i in range(300))]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"{form}.tar"
        with tarfile.open(path, "w", format=form) as archive:
            for name in names:
                info = tarfile.TarInfo(name)
                info.size = 0 if name.startswith("empty") else 5
                archive.addfile(info, io.BytesIO(b"bytes"[: info.size]))
        with path.open("rb") as stream, read_tar(stream) as tar:
            assert [m.name for m in tar] == names
        assert [name for name, _, _ in tar_members(path)] == names
        (_, offset, size), *_ = tar_members(path)
        assert path.read_bytes()[offset : offset + size] == b"bytes"
