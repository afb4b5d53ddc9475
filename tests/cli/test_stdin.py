"""`-` in the place of a file: read where a file is read, and refused where one is written."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tensorkiln.cli import main
from tensorkiln.cli.stdin import NAME
from tests.cli.calls import make_files
from tests.cli.test_options import LEAST, arguments, call, kind_of, name_of, refusal
from tests.rotation import rows_in_turn

ROOT = Path(__file__).parents[2]


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


def give(content: bytes, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = False) -> None:
    stream = SimpleNamespace(buffer=io.BytesIO(content), isatty=lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stream)


# A call that reads a file as {}, and the file.
READ = [
    ("compile {} -o new.so -q", "mlp.onnx"),
    ("compile {} -o new.tar --format mlf --freeze batch=1 -q", "mlp.onnx"),
    ("run {} --random --dim batch=1", "mlp.so"),
    ("run mlp.so --input {}", "image.npy"),
    ("run mlp.so --input image={}", "image.npy"),
    ("inspect {}", "mlp.onnx"),
    ("inspect {}", "mlp.so"),
    ("inspect {}", "mlp.tar"),
    ("inspect {} --list", "mlp.so"),
    ("inspect {} --weight layer1.bias", "mlp.so"),
    ("inspect {} --verify", "mlp.so"),
    ("inspect {} --artifact host/weights.json", "mlp.so"),
    ("inspect {}", "notes.txt"),
    ("inspect {}", "image.npy"),
    ("new-project {} -o project", "mlp.tar"),
    ("check {}", "mlp.onnx"),
    ("check {}", "unsupported.onnx"),
    ("check {} --table", "mlp.onnx"),
    ("check {} --dims", "mlp.onnx"),
    ("verify {} --dim batch=1", "mlp.onnx"),
    ("verify {} --model mlp.onnx --dim batch=1", "mlp.so"),
    ("verify mlp.so --model {} --dim batch=1", "mlp.onnx"),
    ("verify mlp.so --model mlp.onnx --input {}", "image.npy"),
    ("bench {} --dim batch=1 --seconds 0.001", "mlp.so"),
    ("bench {} --dim batch=1 --seconds 0.001", "mlp.onnx"),
    ("explain {} -o page --no-times", "mlp.onnx"),
    (
        "tune {} --records r --dim batch=1 --trials 1 --kernels 1 --executor local:1",
        "mlp.onnx",
    ),
    ("targets acme/board --tags-file {}", "tags.toml"),
]


@pytest.mark.parametrize(("words", "file"), rows_in_turn(READ, str, lambda row: row[0].split()[0]))
def test_as_from_a_file(
    words: str,
    file: str,
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same answer, but for the name and for times, and the same files."""
    (work_folder / "notes.txt").write_text("a n\u00f6te\n" * 300)
    (work_folder / "tags.toml").write_text(
        '[[tag]]\nname = "acme/board"\ntarget = { mcpu = "haswell" }\n'
    )
    results = []
    for name in (file, "-"):
        give((work_folder / file).read_bytes(), monkeypatch)
        code = main(words.format(name).split())
        out, err = capsys.readouterr()
        assert "kiln-stdin" not in out + err
        outputs = {
            p: p.read_bytes()
            for p in (work_folder / "new.so", work_folder / "new.tar")
            if p.exists()
        }
        results.append((code, out, outputs))
    if "{} --artifact" not in words:  # which shows text
        shutil.rmtree(work_folder / "project", ignore_errors=True)
        give((work_folder / file).read_bytes(), monkeypatch)
        assert main([*words.format("-").split(), "--json"]) == results[0][0]
        out, _ = capsys.readouterr()
        assert "kiln-stdin" not in out and set(json.loads(out)) > {"command", "version"}
    (code, out, outputs), (code_too, out_too, made_too) = results
    assert code == code_too == (1 if file == "unsupported.onnx" else 0)
    assert outputs == made_too
    if words.split()[0] in ("check", "inspect", "verify"):
        assert out.replace(file, NAME) == out_too


def test_every_argument_that_reads_a_file_is_here() -> None:
    reads = {(c, a.dest) for c, a in arguments() if "- for standard input" in kind_of(a)}
    reads |= {(c, a.dest) for c, a in arguments() if a.dest == "input"}
    tested = set()
    for words, _ in READ:
        command, *operands = words.split()
        index = next(i for i, word in enumerate(operands) if "{}" in word)
        option = operands[index - 1].lstrip("-").replace("-", "_") if index else ""
        positional = [a.dest for c, a in arguments() if c == command and not a.option_strings]
        tested.add((command, option or positional[0]))
    assert reads - {("bench", "model")} == tested


@pytest.mark.parametrize(
    ("command", "action"),
    [(c, a) for c, a in arguments() if kind_of(a) == "the name of a file or folder"],
    ids=lambda x: x if isinstance(x, str) else name_of(x),
)
def test_what_is_written_is_a_file(
    command: str, action: object, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refusal(call(command, action, "-"), capsys)  # type: ignore[arg-type]
    assert "got '-': not written to standard output; ./- is a file of that name" in message
    assert refusal(call(command, action, "./-"), capsys) == ""  # type: ignore[arg-type]


REFUSED = [
    ("compile -", "mlp.onnx", f"a model from {NAME} has no name"),
    ("verify - --model -", "mlp.so", "can be read only once"),
    ("run - --input -", "mlp.so", "can be read only once"),
    ("run mlp.so --input - --input -", "image.npy", "can be read only once"),
    ("run mlp.so --input -", "notes.txt", "cannot read array '-'"),
    ("run -", "mlp.onnx", NAME),
    ("check -", "notes.txt", f"{NAME}: not an ONNX model"),
    ("compile - -o new.so", "notes.txt", f"{NAME}: not an ONNX model"),
    ("compile - -o new.so", "unsupported.onnx", "Mystery"),
    ("new-project - -o project", "mlp.so", NAME),
    ("inspect - --artifact none", "mlp.so", "none"),
    ("inspect mlp.so --extract -", "notes.txt", "cannot be written to standard output"),
    ("inspect mlp.so --artifact host/weights.json --extract - --json", "notes.txt", "together"),
    ("inspect mlp.so --artifact host/weights.json --extract - --as hexdump", "notes.txt", "toget"),
]


@pytest.mark.parametrize(("words", "file", "says"), REFUSED)
def test_refused(
    words: str,
    file: str,
    says: str,
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (work_folder / "notes.txt").write_text("a note\n")
    give((work_folder / file).read_bytes(), monkeypatch)
    assert main(words.split()) == (3 if "unsupported" in file else 2)
    err = capsys.readouterr().err
    assert says in err and err.count("kiln: error: ") == 1
    assert "kiln-stdin" not in err and "Traceback" not in err
    assert not (work_folder / "new.so").exists() and not (work_folder / "project").exists()


# What reads no file, or one whose paths are relative to it.
_NAMED = ("completion", "farm")


@pytest.mark.parametrize("command", [c for c in LEAST if c not in _NAMED])
def test_a_terminal_is_not_read(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give(b"", monkeypatch, terminal=True)
    operands = LEAST[command][1:]
    assert main([command, "-", *operands]) == 2
    assert "standard input is a terminal" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", ["compile - -o new.so", "explain - -o page", "verify -", "bench -"]
)
def test_weights_beside_the_model(
    command: str,
    work_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They cannot be found, and the message says how they are; `check` does without."""
    w = numpy_helper.from_array(np.ones((4, 300), np.float32), "w")
    ends = [
        helper.make_tensor_value_info("x", 1, [2, 4]),
        helper.make_tensor_value_info("y", 1, [2, 300]),
    ]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", *zip(ends), [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, work_folder / "big.onnx", save_as_external_data=True, location="big.bin")
    give((work_folder / "big.onnx").read_bytes(), monkeypatch)
    assert main(command.split()) == 2
    err = capsys.readouterr().err
    assert "'big.bin'" in err and "name the model's file instead of -" in err
    assert "kiln-stdin" not in err
    give((work_folder / "big.onnx").read_bytes(), monkeypatch)
    assert main(["check", "-"]) == 0
    assert "without the weights in 'big.bin'" in capsys.readouterr().out


def test_through_pipes(work_folder: Path) -> None:
    """What a shell does: bytes to standard output, and from there."""
    kiln = f"'{sys.executable}' -m tensorkiln"
    line = (
        f"{kiln} inspect - --artifact host/weights.json --extract - < mlp.so > weights.json && "
        f"cat mlp.onnx | {kiln} check - --json"
    )
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=variables)
    assert (process.returncode, process.stderr) == (0, "")
    report = json.loads(process.stdout)
    assert report["model"] == NAME and report["ok"]
    weights_json = (work_folder / "kept" / "host" / "weights.json").read_bytes()
    assert (work_folder / "weights.json").read_bytes() == weights_json
