"""allocate_shared: shared buffers have one place for the whole run of a block, within a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.verify import verify
from tensorkiln.transform.tir.allocate_shared import AllocateShared, with_allocations_first
from tensorkiln.transform.tir.check_races import races_of
from tensorkiln.transform.tir.insert_barriers import with_barriers
from tests.transform.device_programs import (
    ADDED,
    IN,
    KEPT,
    NEXT,
    REVERSED,
    SYNC,
    ZERO,
    device,
    loop,
    shared,
    text_of,
)
from tests.transform.graphs import check_text

# name: (before, after)
TEXTS = {
    "in a loop": (
        (ZERO, loop("for k in range(3):", shared(), NEXT, ADDED)),
        (shared(), ZERO, loop("for k in range(3):", NEXT, ADDED)),
    ),
    "between nests": ((ZERO, shared(), IN, KEPT), (shared(), ZERO, IN, KEPT)),
    "in branches": (
        (
            loop("if b == 0:", shared(), IN, REVERSED),
            loop("else:", shared("r", "4"), ZERO, loop("for k in range(2):", ZERO)),
        ),
        (
            shared(),
            shared("r", "4"),
            loop("if b == 0:", IN, REVERSED),
            loop("else:", ZERO, loop("for k in range(2):", ZERO)),
        ),
    ),
    "first already": ((shared(), shared("r"), IN, KEPT), (shared(), shared("r"), IN, KEPT)),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str) -> None:
    before, after = TEXTS[name]
    check_text(
        AllocateShared(),
        text_of(*before),
        text_of(*after),
    )


def test_a_buffer_of_a_round_has_one_memory_in_all() -> None:
    """Its rounds need a barrier in between, like those of a buffer outside of the loop."""
    f = with_allocations_first(device(*TEXTS["in a loop"][0]))
    whole = with_barriers(f)
    expected = (shared(), ZERO, loop("for k in range(3):", NEXT, SYNC, ADDED, SYNC))
    assert whole.script() == device(*expected).script()
    assert races_of(whole).proved


def test_nothing_changes_where_allocations_are_first() -> None:
    mod = IRModule((device(*TEXTS["first already"][0]),))
    assert AllocateShared(96)(mod) is mod


# (parts, bytes)
BYTES = [
    ((shared(),), 32),
    ((shared(), shared("r", "8", "float64")), 128),  # the second begins at a multiple of 64
    ((shared("s", "3", "int8"), shared("r", "1", "int8")), 65),
    (('s = T.alloc_buffer((4, 8), "float32", scope="shared", strides=(9, 1))',), (3 * 9 + 8) * 4),
    ((shared("s", "0"),), 0),
]


@pytest.mark.parametrize(("parts", "need"), BYTES)
def test_bytes(parts: tuple[str, ...], need: int) -> None:
    f = device(*parts, ZERO)
    assert launch_of(f).shared_bytes == need
    mod = IRModule((f,))
    verify(AllocateShared(need)(mod))
    if not need:
        return
    with pytest.raises(UnsupportedError) as info:
        AllocateShared(need - 1)(mod)
    (issue,) = info.value.issues
    assert issue.node == "f" and f"a block of f shares {need} bytes (s: " in issue.message
    assert issue.message.endswith(f"the device has {need - 1}")
    assert "max_shared_memory_per_block" in issue.hint


def test_all_that_need_too_much_are_named() -> None:
    f = device(shared(), IN, KEPT)
    with pytest.raises(UnsupportedError) as info:
        AllocateShared(8)(IRModule((f, replace(f, name="g"))))
    assert [issue.node for issue in info.value.issues] == ["f", "g"]
