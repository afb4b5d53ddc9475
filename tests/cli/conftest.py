"""What a call of the command line leaves in its process, which other tests do not expect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensorkiln.target.tags import TAGS


@pytest.fixture(autouse=True)
def forget_loaded() -> Iterator[None]:
    yield
    TAGS.loaded = {}
