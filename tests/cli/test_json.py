"""`--json`: one document on standard output, of every command, with the fields of docs/cli.md."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base.errors import InternalError, Issue, UnsupportedError, UserError
from tensorkiln.base.version import VERSION
from tensorkiln.cli import main, targets
from tests.cli.calls import CALLS, LINES, make_files, skip_without_its_packages
from tests.cli.test_options import LEAST, commands
from tests.rotation import rows_in_turn

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    make_files(folder)
    return folder


@pytest.fixture
def work_folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fields() -> dict[str, tuple[set[str], set[str]]]:
    """By command the fields that docs/cli.md says a document always has, and the others."""
    table = PAGE.partition("| command | always |")[2].partition("\n\n")[0]
    fields_by_command = {}
    for line in table.splitlines()[2:]:
        command, always, optional = (cell.strip() for cell in line.strip("|").split("|"))
        always = re.sub(r"\(.*?\)", "", always)  # what is within a field
        fields_by_command[command.strip("`")] = (names(always), names(optional))
    fields_by_command["demo"] = (
        fields_by_command["demo"][0] - {"bench", "subject"}
        | fields_by_command["bench"][0] - {"subject"},
        set(),
    )
    return fields_by_command


def names(cell: str) -> set[str]:
    return {name for name in re.findall(r"`([^`]+)`", cell) if not name.startswith("-")}


def document(text: str) -> dict[str, Any]:
    """The only document in a text, of strict JSON."""

    def refuse(word: str) -> object:
        raise AssertionError(f"{word} is not JSON")

    parsed = json.loads(text, parse_constant=refuse)
    assert list(parsed)[:2] == ["command", "version"] and parsed["version"] == VERSION
    return dict(parsed)


def test_all_commands_are_here() -> None:
    assert set(CALLS) == set(commands()) == set(fields())


@pytest.mark.parametrize("line", rows_in_turn(LINES, " ".join, itemgetter(0)), ids=" ".join)
def test_documents(work_folder: Path, line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_its_packages(line)
    code = main([*line, "--json"])
    out, err = capsys.readouterr()
    assert code == (1 if line[1:] and line[1].startswith("unsupported") else 0), err
    answer = document(out)
    assert answer["command"] == line[0] and "error" not in answer
    always, optional = fields()[line[0]]
    have = set(answer) - {"command", "version"}
    assert always <= have <= always | optional
    assert "{" not in err
    if "--quiet" in line:
        assert err == ""


@pytest.mark.parametrize("command", commands())
def test_wrong_usage(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [command, *LEAST.get(command, []), "--jsom", "--json"]
    with pytest.raises(SystemExit) as exit_error:
        main(line)
    out, err = capsys.readouterr()
    answer = document(out)
    assert (exit_error.value.code, answer["command"]) == (2, command)
    assert answer["error"] == {
        "code": "usage",
        "message": "unknown argument(s): --jsom",
        "where": "",
        "hint": "did you mean '--json'?",
    }
    assert "usage: kiln" in err and "--jsom" in err


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (["--json"], ["inspekt", "--json"], ["run", "--json", "--", "--json", "-x"]):
        with pytest.raises(SystemExit):
            main(line)
        assert document(capsys.readouterr().out)["error"]["code"] == "usage"
    assert main(["run", "--", "--json"]) == 2  # the name of a file
    assert capsys.readouterr() == ("", "kiln: error: no such file: '--json'\n")


# A call of each command that ends in an error of its own.
WRONG = {
    "demo": "--folder mlp.onnx",
    "compile": "none.onnx",
    "run": "none.so --random",
    "inspect": "none.so",
    "new-project": "none.tar -o project",
    "check": "none.onnx",
    "farm": "none.toml",
    "verify": "none.onnx",
    "bench": "none.onnx",
    "tune": "none.onnx --records new.records",
    "explain": "none.onnx",
    "targets": "--tag none/none",
}


@pytest.mark.parametrize("command", WRONG)
def test_errors(work_folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = [command, *WRONG[command].split()]
    if command == "demo":
        pytest.importorskip("onnxruntime")
    plain = main(line)
    error_text = capsys.readouterr().err
    assert main([*line, "--json"]) == plain == 2
    out, err = capsys.readouterr()
    error = document(out)["error"]
    assert err == error_text
    place = f"{error['where']}: " if error["where"] else ""
    hint = f"\n  hint: {error['hint']}" if error["hint"] else ""
    assert err == f"kiln: error: {place}{error['message']}{hint}\n"
    assert error["code"] not in ("error", "internal-error")


RAISED: list[tuple[Callable[[], BaseException], int, str]] = [
    (lambda: UserError("bad", code="bad-thing", where="x.onnx", hint="try"), 2, "bad-thing"),
    (lambda: UnsupportedError([Issue("operator", "n1", "Loop", "no Loop")]), 3, "unsupported"),
    (lambda: InternalError("kernel k1"), 4, "internal-error"),
    (lambda: ZeroDivisionError("oops"), 4, "internal-error"),
    (lambda: MemoryError(), 2, "out-of-memory"),
    (lambda: KeyboardInterrupt(), 130, "interrupted"),
]


@pytest.mark.parametrize(("make", "code", "name"), RAISED)
@pytest.mark.parametrize("late", [False, True])
def test_what_commands_raise(
    make: Callable[[], BaseException],
    code: int,
    name: str,
    late: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error after the answer takes its place: there is one document."""

    def run(args: Any, screen: Any) -> int:
        print("a plugin says something")
        if late:
            screen.document({"ok": True})
        raise make()

    monkeypatch.setattr(targets, "run", run)
    assert main(["targets", "--json"]) == code
    out, err = capsys.readouterr()
    answer = document(out)
    assert set(answer) == {"command", "version", "error"}
    assert answer["error"]["code"] == name
    assert ("issues" in answer["error"]) == (code == 3)
    assert "a plugin says something" in err and "kiln: " in err


def test_what_is_not_finite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {"x": [float("inf"), -float("inf"), float("nan"), 1.5], "path": Path("a"), "t": (1, 2)}

    def run(args: Any, screen: Any) -> int:
        screen.document(values)
        return 0

    monkeypatch.setattr(targets, "run", run)
    assert main(["targets", "--json"]) == 0
    answer = document(capsys.readouterr().out)
    assert answer["x"] == ["inf", "-inf", "nan", 1.5]
    assert (answer["path"], answer["t"]) == ("a", [1, 2])


def test_a_command_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets, "run", lambda args, screen: 0)
    assert main(["targets", "--json"]) == 4
    assert document(capsys.readouterr().out)["error"]["code"] == "internal-error"
