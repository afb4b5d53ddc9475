"""Tar archives with nothing in them but names and bytes: equal files give equal archives."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import BinaryIO

from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.base.files import atomic_open, folder_beside, plain_path


def write_tar(artifacts: ArtifactSet, path: str | Path) -> Path:
    """Write the files of `ArtifactSet.save` as an uncompressed archive; return its path.

    Equal sets give equal bytes. Raises the UserErrors of `save`.
    """
    target = plain_path(path)
    with (
        atomic_open(target) as stream,  # first, for its error message if the folder is missing
        folder_beside(target) as folder,
    ):
        artifacts.save(folder / "set")
        write_folder(folder / "set", stream)
    return target


def write_folder(root: Path, stream: BinaryIO) -> None:
    """Write all files below a folder as an uncompressed archive. Entries are sorted and have no
    owner and time."""
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(file.relative_to(root).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                archive.addfile(entry, content)
