"""What "did you mean" offers, and that an error says each thing once."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import Issue, UnsupportedError, UserError, nearest

NAMES = ("softmax", "conv2d", "relu", "layer1.weight", "layer1.bias", "hexdump", "x", "i_0")


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("softmx", "softmax"),  # a letter less
        ("sofftmax", "softmax"),  # more
        ("siftmax", "softmax"),  # other
        ("sfotmax", "softmax"),  # swapped
        ("SoftMax", "softmax"),
        ("rleu", "relu"),
        ("weight", "layer1.weight"),
        ("layer1.weight.packed", "layer1.weight"),
        ("hex", "hexdump"),
        ("hexdumper", "hexdump"),
        ("relu6_grad_of_it", "relu"),
        ("i", "i_0"),
    ],
)
def test_a_slip_finds_its_name(name: str, offered: str) -> None:
    assert nearest(name, NAMES) == f"did you mean {offered!r}?"


@pytest.mark.parametrize("name", ["", "y", "tanh", "maxpool", "attention", "?", "\ud800", "("])
def test_what_is_far_is_not_offered(name: str) -> None:
    assert nearest(name, NAMES) == ""


def test_the_nearest_is_first_and_aliases_are_last() -> None:
    assert (
        nearest("main1", ["main3", "main", "main2"]) == "did you mean 'main' or 'main2' or 'main3'?"
    )
    assert nearest("main1", ["main2", "main3"], ["main2"]) == "did you mean 'main3' or 'main2'?"
    assert nearest("main1", ["main2", "main2"]) == "did you mean 'main2'?"


def test_a_hint_is_said_once() -> None:
    """Errors that quote another one, or hand on its hint, do not repeat it."""
    first = UserError("unknown kind 'nativ'", hint=nearest("nativ", ["native"]))
    again = UserError(f"no target: {first}", hint=first.hint)
    issue = Issue("target", "t", "", str(first), first.hint)
    for text in (str(first), str(again), str(UnsupportedError([issue]))):
        assert text.count("did you mean") == 1
