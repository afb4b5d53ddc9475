"""kiln completion: what the shells complete, asked of the shells."""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tensorkiln.cli import main
from tensorkiln.cli.completion import SHELLS
from tensorkiln.external.plugins import known_externals
from tensorkiln.target.tags import TAGS
from tests.cli.test_options import commands

ESCAPE = re.compile(r"\x1b(\[[?\d;]*[A-Za-z]|\][^\x07]*\x07|[=>()][A-Z0-9]?)")


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of each shell, by its name, with the tags of this process: other
    tests may have added some."""
    folder = tmp_path_factory.mktemp("scripts")
    for shell in SHELLS:
        with redirect_stdout(io.StringIO()) as out:
            assert main(["completion", shell]) == 0
        (folder / shell).write_text(out.getvalue())
    return folder


def need(shell: str) -> str:
    tool = shutil.which(shell)
    if tool is None:
        pytest.skip(f"{shell} is not installed")
    return tool


# A folder that has `a-file` and `a-folder`: `<files>` is what offers both, `<folders>` the second.
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a-file").touch()
    (tmp_path / "a-folder").mkdir()
    return tmp_path


def kinds(words: list[str]) -> list[str]:
    if not {"a-folder", "a-folder/"} & {*words}:
        return words
    return ["<files>" if "a-file" in words else "<folders>"]


def in_bash(script: Path, lines: Sequence[Sequence[str]], folder: Path) -> list[list[str]]:
    """What bash offers for the last word of each line, whose words are given as bash has them."""
    calls = [f"source {shlex.quote(str(script))}", "compopt() { :; }"]
    for words in lines:
        calls.append(f"COMP_WORDS=({' '.join(map(shlex.quote, words))})")
        calls.append("COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _kiln")
        calls.append('printf "%s\\t" "${COMPREPLY[@]}"; echo')
    text = "\n".join(calls)
    process = subprocess.run(
        [need("bash"), "-c", text], capture_output=True, text=True, check=True, cwd=folder
    )
    assert process.stderr == ""
    return [kinds(line.split("\t")) for line in process.stdout.splitlines()]


def in_fish(script: Path, lines: Sequence[Sequence[str]], folder: Path) -> list[list[str]]:
    """What fish offers; the folder has `a-file` and `a-folder`, by which files are known."""
    calls = [f"source {shlex.quote(str(script))}"]
    for words in lines:
        line = " ".join(words)
        calls.append(f"complete -C {shlex.quote(line)}; echo =end=")
    process = subprocess.run(
        [need("fish"), "--no-config", "-c", "\n".join(calls)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
    )
    assert process.stderr == ""
    offers = []
    for text in process.stdout.split("=end=\n")[:-1]:
        words = [line.partition("\t")[0] for line in text.splitlines()]
        offers.append(kinds(words))
    return offers


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_everything_is_completed(shell: str, scripts: Path, folder: Path) -> None:
    """Each command, option and value that the parsers have."""
    lines: list[list[str]] = [["kiln", ""], ["kiln", "new"], ["kiln", "--color", ""]]
    expected: list[set[str]] = [set(commands()), {"new-project"}, set()]
    for name, parser in commands().items():
        for action in parser._actions:
            for option in action.option_strings:
                # of a whole short option, fish offers those that may follow it: -hq
                lines.append(["kiln", name, option if option.startswith("--") else "-"])
                expected.append({option})
                if action.nargs == 0:
                    continue
                lines.append(["kiln", name, option, ""])
                expected.append(values_of(action))
            if not action.option_strings:
                lines.append(["kiln", name, ""])
                expected.append(values_of(action))
    if shell == "bash":
        offers = in_bash(scripts / "bash", lines, folder)
    else:
        offers = in_fish(scripts / "fish", lines, folder)
    for line, words, want in zip(lines, offers, expected, strict=True):
        assert set(words) >= want, (line, words)
        if want & {"<files>", "<folders>"}:
            assert set(words) - {""} == want, (line, words)


def values_of(action: argparse.Action) -> set[str]:
    """What of the values of an argument a shell must offer."""
    if action.choices:
        return set(map(str, action.choices))
    if action.dest in ("target", "tag"):
        names = {"rpi4", "jetson-nano", "skylake", "cortex-m4", "avx2"}
        return {"native", "llvm", "help", *names, *(tag.name for tag in TAGS.all())}
    if action.dest == "external":
        return set(known_externals())
    if action.dest == "inspector":
        return {"weights", "hexdump", "disassemble"}
    kind = str(getattr(action.type, "__doc__", ""))
    if action.metavar == "DIR" or action.dest in ("folder", "output_dir"):
        return {"<folders>"}
    if action.dest == "output" and "folder" in str(action.help):
        return {"<folders>"}
    return {"<files>"} if "file" in kind or action.dest == "input" else set()


BASH = [
    # words as bash splits them, what is offered
    (["kiln", "compile", "--optimize", "=", ""], ["speed", "size"]),
    (["kiln", "compile", "--optimize", "=", "si"], ["size"]),
    (["kiln", "compile", "m.onnx", "--target", "=", "nvidia/t4"], ["nvidia/t4"]),
    (["kiln", "compile", "--output", "=", ""], ["<files>"]),
    (["kiln", "compile", "--freeze", "batch", "=", "1"], []),
    (["kiln", "compile", "--output", "="], ["<files>"]),
    (["kiln", "run", "--input", "image", "=", ""], ["<files>"]),
    (["kiln", "run", "--input", "=", "image", "=", "a-fo"], ["<folders>"]),
    (["kiln", "compile", "--debug", "--opt"], ["--optimize"]),
    (["kiln", "--ver"], ["--version"]),
]


def test_words_that_bash_splits(scripts: Path, folder: Path) -> None:
    offers = in_bash(scripts / "bash", [words for words, _ in BASH], folder)
    for (words, want), have in zip(BASH, offers, strict=True):
        assert [w for w in have if w] == want, words


def typed(argv: list[str], setup: str, keys: str, folder: Path) -> str:
    """The line that an interactive shell has after `keys`; `setup` binds Ctrl-T to print it."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        argv,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "PS1": "", "HOME": str(folder)},
        start_new_session=True,
    )
    os.close(terminal)
    try:
        os.write(controller, f"{setup}; printf '<<%s>>' ready\n".encode())
        assert shown(controller) == "ready"
        os.write(controller, f"{keys}\x14".encode())
        return shown(controller)
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def shown(terminal: int) -> str:
    """The next text that is printed between << and >>, the commands that print it aside."""
    text = ""
    while not (match := re.search(r"<<([^<>%$\x00-\x1f]*)>>", ESCAPE.sub("", text))):
        assert select.select([terminal], [], [], 60)[0], text
        text += os.read(terminal, 1 << 16).decode(errors="replace")
    return match[1]


KEYS = [
    ("kiln ins\t", "kiln inspect "),
    ("kiln inspect ml\t", "kiln inspect mlp.onnx "),
    ("kiln compile mlp.onnx --opt\tsi\t", "kiln compile mlp.onnx --optimize size "),
    ("kiln compile --target=nvidia/tes\tv\t", "kiln compile --target=nvidia/tesla-v100 "),
    ("kiln compile --target nvidia/tes\tv\t", "kiln compile --target nvidia/tesla-v100 "),
    ("kiln compile --keep a-fo\t", "kiln compile --keep a-folder/"),
    ("kiln compile --output=a-folder/n\t", "kiln compile --output=a-folder/net.so "),
    ("kiln run --input image=a-folder/n\t", "kiln run --input image=a-folder/net.so "),
    ("kiln new-project mlp.onnx --template=z\t", "kiln new-project mlp.onnx --template=zephyr "),
]


@pytest.mark.parametrize(("keys", "line"), KEYS, ids=[line for _, line in KEYS])
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_keys(shell: str, keys: str, line: str, scripts: Path, tmp_path: Path) -> None:
    """The line as it is after a key for completion."""
    (tmp_path / "mlp.onnx").touch()
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-folder" / "net.so").touch()
    script = shlex.quote(str(scripts / shell))
    if shell == "zsh" and re.search(r"--\w+=\S*\t", keys):
        return  # what shtab writes for zsh completes values that are words of their own
    if shell == "bash":
        argv = [need("bash"), "--norc", "--noprofile", "-i"]
        setup = f'source {script}; bind -x \'"\\C-t": printf "<<%s>>" "$READLINE_LINE"\''
    else:
        argv = [need("zsh"), "-f", "-i"]
        (tmp_path / "fpath").mkdir()
        shutil.copy(scripts / "zsh", tmp_path / "fpath" / "_kiln")
        setup = (
            "fpath=($PWD/fpath $fpath); autoload -Uz compinit; compinit -u -D; "
            'show() { print -rn -- "<""<$BUFFER>"">" }; zle -N show; bindkey "^T" show'
        )
    completed_line = typed(argv, setup, keys, tmp_path).rstrip()
    assert completed_line in (line.rstrip(), line.rstrip().replace("--optimize ", "--optimize="))


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_correct(shell: str, scripts: Path) -> None:
    process = subprocess.run([need(shell), "-n", str(scripts / shell)], capture_output=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, b"", b"")


def test_as_a_document(scripts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["shell"] == "bash" and document["script"] == (scripts / "bash").read_text()
