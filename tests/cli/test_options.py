"""Every option of every command, found by walking the parsers: what it takes is honoured, all else
is refused by name with what is expected."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base.config import KNOBS, available_cpus, read_config
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.cli.entry import make_parser

TEXTS = {
    "negative": "-3",
    "zero": "0",
    "one": "1",
    "huge": "9" * 30,
    "half": "0.5",
    "nan": "nan",
    "infinity": "inf",
    "exponent": "1e3",
    "underscore": "1_0",
    "space": " 1",
    "other digits": "١",
    "superscript": "²",
    "text": "many",
    "zero byte": "a\0b",
    "long": "x" * 5000,
    "surrogate": "a\udce9",
    "half a pair": "\ud800",
    "empty": "",
    "dash": "-",
}


def commands() -> dict[str, argparse.ArgumentParser]:
    for action in make_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError


def arguments() -> Iterator[tuple[str, argparse.Action]]:
    for name, parser in commands().items():
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                yield name, action


def kind_of(action: argparse.Action) -> str:
    """What an argument takes: nothing, one of its choices, or what its type says."""
    if action.nargs == 0:
        return "flag"
    return "choice" if action.choices else str(getattr(action.type, "__doc__", None))


def accepted(kind: str, text: str) -> bool:
    """Whether a kind of argument takes a text, said here once more and otherwise."""
    if kind == "choice":
        return False  # no text above is one
    if kind.startswith("a number of bytes"):
        return re.fullmatch(r"[0-9]{1,40}[KMGTkmgt]?", text) is not None
    if kind.startswith(("a whole number", "a number")):
        low, high = (float(word) for word in kind.rpartition("from ")[2].split(" to "))
        plain = text.isascii() and text.strip() == text and "_" not in text
        try:
            return plain and low <= (float if kind.startswith("a number") else int)(text) <= high
        except ValueError:
            return False
    if kind.startswith("NAME=N"):
        return False
    if kind.startswith("bytes"):
        return re.fullmatch(r"[0-9]{1,40}[KMGTkmgt]?", text) is not None
    names = ("empty", "zero byte", "long", "half a pair")
    bad = {
        "a name": ("empty", "zero byte"),
        "the name of a file or folder": (*names, "dash"),
        "the name of a file": (*names, "dash"),
        "the name of a folder, or a URL": (*names, "dash"),
        "the name of a file, or - for standard input": names,
        "the name of a folder, or - for standard output": names,
    }
    return text not in [TEXTS[name] for name in bad[kind]]


LEAST = {
    name: ["x"]
    for name in ("compile", "run", "inspect", "check", "bench", "explain", "verify", "farm")
}
LEAST["completion"] = ["bash"]
LEAST["tune"] = ["x", "--records=y"]
LEAST["new-project"] = ["x", "--output=y"]


def call(command: str, action: argparse.Action, *texts: str) -> list[str]:
    """A command line with `texts` for one argument, and for others that it needs."""
    needed_words = LEAST.get(command, [])
    if not action.option_strings:
        return [command, *texts, *needed_words[1:]]
    option = max(action.option_strings, key=len)
    other_words = [word for word in needed_words if not word.startswith(f"{option}=")]
    return [command, *other_words, *(f"{option}={text}" for text in texts)]


def name_of(action: argparse.Action) -> str:
    return argparse._get_action_name(action) or ""


def refusal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of a wrong command line; nothing of one that is right."""
    try:
        make_parser().parse_args(argv)
    except SystemExit as exit_error:
        assert exit_error.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"usage: kiln {argv[0]} ")
        return err.partition(": error: ")[2]
    return ""


@pytest.mark.in_turn("command")
@pytest.mark.parametrize(
    ("command", "action"), list(arguments()), ids=lambda x: x if isinstance(x, str) else name_of(x)
)
def test_values(command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]) -> None:
    kind = kind_of(action)
    if kind == "flag":
        return
    assert kind != "None", f"{command} {name_of(action)}: say what it takes, by type= or choices="
    for label, text in TEXTS.items():
        if not action.option_strings and text.startswith("-") and text != "-":
            continue  # an option
        message = refusal(call(command, action, text), capsys)
        assert bool(message) != accepted(kind, text), (label, message)
        if message:
            assert message.startswith(f"argument {name_of(action)}: ")
            assert ("is not one of" if action.choices else f"expected {kind}, got") in message


@pytest.mark.parametrize(
    ("command", "action"),
    [(c, a) for c, a in arguments() if a.option_strings and kind_of(a) != "flag"],
    ids=lambda x: x if isinstance(x, str) else name_of(x),
)
def test_said_twice(
    command: str, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same twice is once; two values are one too many, but for options that may be repeated."""
    first, second = ("0.5", "1.0") if kind_of(action).startswith("a number") else ("a", "b")
    if kind_of(action).startswith(("a whole", "a number of bytes")):
        first, second = "1", "2"
    if kind_of(action).startswith("NAME"):
        first, second = "a=1", "b=2"
    if kind_of(action).startswith("bytes"):
        first, second = "1K", "b=2"
    if action.choices:
        first, second = list(action.choices)[:2]
    assert refusal(call(command, action, first, first), capsys) == ""
    message = refusal(call(command, action, first, second), capsys)
    if isinstance(action, argparse._AppendAction):
        assert message == ""
    else:
        assert f"argument {name_of(action)}: given twice: {first!r} and {second!r}" in message


@pytest.mark.parametrize("command", commands())
def test_names(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An option is not guessed from its beginning, and a slip of it finds it."""
    for action in commands()[command]._actions:
        option = max(action.option_strings, key=len, default="")
        if len(option) > 5:
            argv = [command, *LEAST.get(command, []), option[:-1]]
            message = refusal(argv, capsys)
            assert f"unknown argument(s): {option[:-1]}" in message
            assert repr(option) in message


def test_commands_are_found_by_a_slip(capsys: pytest.CaptureFixture[str]) -> None:
    for name in commands():
        with pytest.raises(SystemExit):
            main([name + "s" if name != "targets" else "target"])
        assert f"did you mean {name!r}?" in capsys.readouterr().err


def test_the_range_of_threads_is_that_of_this_process() -> None:
    (threads,) = (a for c, a in arguments() if (c, a.dest) == ("bench", "threads"))
    assert kind_of(threads) == f"a whole number from 0 to {available_cpus()}"


# -- the environment -------------------------------------------------------------------------------

# What each knob takes of the texts above.
TAKEN = {
    "KILN_DEBUG": ("zero", "one"),
    "KILN_DUMP": ("text", "one", "zero", "half"),
    "KILN_CACHE": ("zero", "one"),
    "KILN_CACHE_LIMIT": ("zero", "one", "huge"),
    "KILN_NUM_THREADS": ("zero", "one"),
    "KILN_COMPILE_JOBS": ("zero", "one"),
    "KILN_PROGRESS": (),
    "KILN_VERIFY_WEIGHTS": ("zero", "one"),
    "SOURCE_DATE_EPOCH": ("zero", "one"),
}


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.variable)
def test_knobs(knob: Any, tmp_path: Path) -> None:
    for label, text in TEXTS.items():
        if "\0" in text or not text:
            continue  # no variable holds the one, and the other is as if it were not set
        try:
            read_config({knob.variable: text})
            is_accepted = True
        except UserError as error:
            is_accepted = False
            assert error.message.startswith(f"{knob.variable}={text!r}: expected ")
            assert error.code == "bad-knob"
        if knob.variable in ("KILN_DUMP", "KILN_CACHE_DIR", "CC"):
            assert is_accepted or label in ("long", "half a pair")
        else:
            assert is_accepted == (label in TAKEN[knob.variable]), label


@pytest.mark.parametrize("variable", ["KILN_DUMP", "KILN_CACHE_DIR"])
def test_folders_that_cannot_be(variable: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for text in (str(tmp_path / "file"), "~nobody-of-that-name/x"):
        with pytest.raises(UserError, match=f"{variable}=.*: expected a folder"):
            read_config({variable: text})
