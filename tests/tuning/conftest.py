"""A family with faults, installed as another package is, also for processes that are started."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorkiln.kernels import table

PLANTED = Path(__file__).with_name("planted.py")


def leave_package(site: Path) -> None:
    """What pip leaves of a package with one entry point: its module and its dist-info."""
    (site / "planted.py").write_text(PLANTED.read_text())
    info = site / "planted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tensorkiln.kernel_families]\nplanted = planted:FAMILY\n"
    )


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    site.mkdir()
    leave_package(site)
    monkeypatch.syspath_prepend(site)
    table._families.cache_clear()
    yield site
    table._families.cache_clear()
    sys.modules.pop("planted", None)
