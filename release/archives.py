"""Unpacking archives of our own."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path | str) -> None:
    """Unpack an archive into a folder, by the filter for data where this Python has one: 3.11 has
    it from 3.11.4 on."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
    else:
        archive.extractall(folder)
