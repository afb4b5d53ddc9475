"""The helper that runs the programs of host tests."""

from __future__ import annotations

import pytest

from tests.hosts.build import run


def test_a_program_that_hangs_says_what_it_said() -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        run("sh", "-c", "echo so far; echo trouble >&2; exec sleep 60", seconds=1)
    message = str(caught.value)
    assert (
        "sleep 60 has not ended after 1 s" in message
        and "so far" in message
        and "trouble" in message
    )
