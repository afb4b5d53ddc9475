"""Artifacts as a tar archive: the folder form in one file."""

from __future__ import annotations

import tarfile
import tempfile
from pathlib import Path

from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.base.files import atomic_open


def write_tar(artifacts: ArtifactSet, path: str | Path) -> Path:
    """Write what `ArtifactSet.save` would, as an uncompressed archive; equal sets are equal bytes.

    Raises what `save` raises.
    """
    target = Path(path)
    name = f".{target.name[:80]}."
    with (
        atomic_open(target) as stream,  # first: it says where a folder is missing
        tempfile.TemporaryDirectory(dir=target.parent, prefix=name) as folder,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        root = Path(folder) / "set"
        artifacts.save(root)
        for file in sorted(p for p in root.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(file.relative_to(root).as_posix())
            entry.size, entry.mode = file.stat().st_size, 0o644
            with file.open("rb") as content:
                archive.addfile(entry, content)
    return target
