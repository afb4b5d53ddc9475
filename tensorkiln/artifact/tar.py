"""Artifacts as a tar archive: the folder of `ArtifactSet.save` in one file."""

from __future__ import annotations

import tarfile
from pathlib import Path

from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.base.files import atomic_open, folder_beside, plain_path


def write_tar(artifacts: ArtifactSet, path: str | Path) -> Path:
    """Write the files of `ArtifactSet.save` as an uncompressed archive; return its path.

    Equal sets give equal bytes: entries are sorted and have no owner and time. Raises the
    UserErrors of `save`.
    """
    target = plain_path(path)
    with (
        atomic_open(target) as stream,  # first, for its error message if the folder is missing
        folder_beside(target) as folder,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        root = folder / "set"
        artifacts.save(root)
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(file.relative_to(root).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                archive.addfile(entry, content)
    return target
