"""Sessions that fail on purpose without a test that does, for test_campaign.py: which one the seed
says. The name of the file keeps it out of other runs."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator

import pytest

SEED = int(os.environ.get("FUZZ_SEED", "0"))
UNKNOWN = "planted: a reason that nobody knows"

if SEED == 1:
    raise ImportError("planted: it cannot be imported")
if SEED == 2:
    atexit.register(os._exit, 9)


@pytest.fixture(scope="module", autouse=True)
def module() -> Iterator[None]:
    yield
    if SEED == 3:
        raise ValueError("planted: it cannot be torn down")


def test_a() -> None:
    if SEED == 4:
        pytest.skip(UNKNOWN)
    if SEED == 5:
        os.write(1, b"x" * 100_000)
        os.abort()


def test_b() -> None:
    pass
