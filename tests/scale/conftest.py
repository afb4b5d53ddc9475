"""The library that the tests of scoring share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scale import score_library


@pytest.fixture(scope="session")
def scored_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return score_library.build(tmp_path_factory.mktemp("scored") / "scored.so")
