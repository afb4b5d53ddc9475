"""Where farms of tests are made, and the library that the tests of scoring share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.scale import score_library
from tests.scale.networks import SMALL, write_networks


@pytest.fixture(scope="session")
def scored_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return score_library.build(tmp_path_factory.mktemp("scored") / "scored.so")


@pytest.fixture(scope="module")
def cache(
    tmp_path_factory: pytest.TempPathFactory, fresh_cache: Callable[[Path], Path]
) -> Iterator[Path]:
    """The cache of all farms here: it has nothing that a single compile has made."""
    with pytest.MonkeyPatch.context() as patch:
        place = fresh_cache(tmp_path_factory.mktemp("cache") / "kiln")
        patch.setenv("KILN_CACHE_DIR", str(place))
        yield place


@pytest.fixture
def small(cache: Path, tmp_path: Path) -> Path:
    """The manifest of a few rows in a folder of its own."""
    return write_networks(tmp_path / "small", SMALL)
