from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorkiln.base.errors import InternalError, Issue, UnsupportedError, UserError
from tensorkiln.cli import main
from tensorkiln.cli.entry import COMMANDS
from tensorkiln.target import Target
from tests.cli import fakes


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> fakes.FakeCompiler:
    monkeypatch.chdir(tmp_path)
    for name in ("KILN_DEBUG", "KILN_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "net.onnx").write_bytes(b"model")
    (tmp_path / "net.so").write_bytes(b"library")
    return fakes.install(monkeypatch)


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Any:
    return lambda: capsys.readouterr()


@pytest.mark.parametrize("suffix", [".dll", ".dylib", ".wasm", ".sso", ""])
def test_a_name_that_no_library_has_is_refused_before_the_model_is_read(
    suffix: str, compiler: fakes.FakeCompiler, output: Any
) -> None:
    assert main(["compile", "net.onnx", "-o", f"net{suffix}"]) != 0
    assert "cannot export" in output().err
    assert compiler.calls == []


# -- the command line itself -----------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["run"], ["compile", "--nonsense"]])
def test_wrong_usage_is_code_2(argv: list[str], output: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: kiln" in output().err


def test_version_and_help(output: Any) -> None:
    for option in ("--version", "--help"):
        with pytest.raises(SystemExit) as caught:
            main([option])
        assert caught.value.code == 0
    text = output().out
    assert text.startswith("kiln ")
    for name in ("demo", "compile", "run", "inspect", "check", "verify", "bench", "targets"):
        assert f"    {name} " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_the_module_says(command: str) -> None:
    module = importlib.import_module(f"tensorkiln.cli.{command.replace('-', '_')}")
    assert (module.__doc__ or "").splitlines()[0] == f"kiln {command}: {COMMANDS[command]}"


def test_help_is_fast() -> None:
    """`kiln --help` and `--version` import nothing large, nor the modules of commands."""
    for option in ("--help", "--version"):
        script = (
            "import sys\n"
            "from tensorkiln.cli import main\n"
            f"try: main([{option!r}])\n"
            "except SystemExit: pass\n"
            "print(*sorted(sys.modules), file=sys.stderr)\n"
        )
        process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        modules = set(process.stderr.split())
        assert not modules & {"numpy", "llvmlite", "onnx", "tensorkiln.target", "tensorkiln.ir"}
        assert {name for name in modules if name.startswith("tensorkiln.cli.")} <= {
            f"tensorkiln.cli.{name}" for name in ("entry", "fold", "options", "screen", "stdin")
        }


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UserError("bad model", hint="try again"), 2, "kiln: error: bad model\n  hint: try again"),
        (UnsupportedError([Issue("operator", "n1", "Loop", "no Loop")]), 3, "n1 (Loop): no Loop"),
        (InternalError("kernel k1"), 4, "kiln: internal error: kernel k1"),
        (ZeroDivisionError("oops"), 4, "kiln: internal error: ZeroDivisionError: oops"),
        (KeyboardInterrupt(), 130, "kiln: interrupted"),
    ],
)
def test_errors_are_one_message_and_a_code(
    compiler: fakes.FakeCompiler, output: Any, error: BaseException, code: int, says: str
) -> None:
    compiler.fail = error
    assert main(["compile", "net.onnx", "-o", "new.so", "--target", "llvm"]) == code
    text = output().err
    assert says in text
    assert "Traceback" not in text
    assert not Path("new.so").exists()


def test_debug_shows_the_traceback(
    compiler: fakes.FakeCompiler, output: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_DEBUG", "1")
    compiler.fail = UserError("bad model")
    assert main(["compile", "net.onnx", "--target", "llvm"]) == 2
    assert "Traceback" in output().err


def test_bad_and_mistyped_variables(
    compiler: fakes.FakeCompiler, output: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_DEBGU", "1")
    assert main(["targets", "llvm"]) == 0
    assert "KILN_DEBGU is not a variable" in output().err
    monkeypatch.setenv("KILN_DEBUG", "loud")
    assert main(["targets", "llvm"]) == 2
    assert "KILN_DEBUG='loud'" in output().err


# -- compile and check -----------------------------------------------------------------------------


def test_compile(compiler: fakes.FakeCompiler, output: Any) -> None:
    argv = ["compile", "net.onnx", "-o", "out.so", "--freeze", "batch=1,seq=128", "--keep", "kept"]
    assert main([*argv, "--target", '{"kind":"llvm","mcpu":"haswell"}']) == 0
    assert Path("out.so").read_bytes() == b"library"
    assert Path("kept/llvm/k0.o").read_bytes() == b"code"
    assert compiler.calls == [
        ("from_onnx", (Path("net.onnx"), {"batch": 1, "seq": 128})),
        ("compile", ("module", Target({"mcpu": "haswell"}))),
    ]
    text = output()
    assert text.out == ""
    for word in ("read model", "kernels", "1/1", "link", "total", "out.so: 7 B, haswell"):
        assert word in text.err


def test_compile_quiet_and_default_output(compiler: fakes.FakeCompiler, output: Any) -> None:
    Path("net.so").unlink()
    assert main(["compile", "net.onnx", "-q", "--target", "llvm"]) == 0
    assert Path("net.so").exists()
    assert output().err == ""


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["compile", "none.onnx"], "no such file: 'none.onnx'"),
        (["compile", "."], "is a folder"),
        (["compile", "net.onnx", "-o", "no/such/x.so"], "no folder 'no/such'"),
        (["compile", "net.onnx", "-o", "."], "it is a folder"),
        (["compile", "net.onnx", "--target", "lvm"], "did you mean 'llvm'"),
        (["compile", "net.onnx", "--freeze", "b=1,b=2"], "two sizes"),
        (["compile", "net.onnx", "--shape", "x=n,2", "--shape", "x=n"], "two shapes"),
        (["check", "none.onnx"], "no such file"),
        (["inspect", "none.so"], "no such file"),
        (["run", "none.so"], "no such file"),
        (["bench", "none.so"], "no such file"),
    ],
)
def test_wrong_arguments_fail_before_compiling(
    compiler: fakes.FakeCompiler, output: Any, argv: list[str], says: str
) -> None:
    assert main(argv) == 2
    assert says in output().err
    assert not [name for name, _ in compiler.calls if name == "compile"]


def test_check_lists_all(compiler: fakes.FakeCompiler, output: Any) -> None:
    compiler.issues = fakes.ISSUES
    assert main(["check", "net.onnx", "--target", "llvm"]) == 1
    lines = output().out.splitlines()
    assert [line.split()[0] for line in lines] == ["NODE", "loop1", "-", "net.onnx:"]
    assert "[unroll it]" in lines[1]
    assert "2 node(s)" in lines[-1]


def test_check_json(compiler: fakes.FakeCompiler, output: Any) -> None:
    compiler.issues = fakes.ISSUES
    assert main(["check", "net.onnx", "--json", "--target", "llvm"]) == 1
    report = json.loads(output().out)
    assert report["ok"] is False
    assert [issue["op"] for issue in report["issues"]] == ["Loop", "Cast"]
    assert Target(report["target"]) == Target("llvm")


def test_check_of_a_good_model(compiler: fakes.FakeCompiler, output: Any) -> None:
    assert main(["check", "net.onnx", "--target", "llvm"]) == 0
    assert "every node can be compiled" in output().out


# -- inspect and targets ---------------------------------------------------------------------------


def test_inspect(compiler: fakes.FakeCompiler, output: Any) -> None:
    assert main(["inspect", "net.so"]) == 0
    text = output().out
    for word in (
        "tensorkiln 9.9.9",
        "llvm x86_64-unknown-linux-gnu x86-64",
        "avx2",
        "2.00 MB",
        "1.50 MB",
        "batch x 3",
        "y/out.0",
        "batch * 12 bytes",
        " k0 ",
        "and 2 more",
    ):
        assert word in text
    assert " k11 " not in text  # the last; --all lists it
    assert main(["inspect", "net.so", "--all"]) == 0
    assert " k11 " in output().out


def test_inspect_json(compiler: fakes.FakeCompiler, output: Any) -> None:
    assert main(["inspect", "net.so", "--json"]) == 0
    answer, expected = json.loads(output().out), json.loads(json.dumps(fakes.REPORT.to_json()))
    assert {key: answer[key] for key in expected} == expected


def test_targets(output: Any) -> None:
    assert main(["targets", "--all"]) == 0
    text = output().out
    assert "l2_bytes" in text
    assert "neoverse-n1" in text
    assert main(["targets", '{"mcpu":"haswell"}']) == 0
    text = output().out
    assert str(Target({"mcpu": "haswell"})) in text
    assert "16 of 32 bytes" in text
    assert main(["targets", "--json"]) == 0
    assert "avx2" in json.loads(output().out)["features"]["x86_64"]
    assert main(["targets", "llvm", "--json"]) == 0
    assert json.loads(output().out)["baseline"] is True
    assert main(["targets", "lvm"]) == 2


# -- run -------------------------------------------------------------------------------------------


def test_run_with_files(compiler: fakes.FakeCompiler, output: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.save("x.npy", x)
    np.save("ids.npy", np.array([3, 4]))
    argv = ["run", "net.so", "--input", "ids=ids.npy", "--input", "x.npy", "--output-dir", "out"]
    assert main(argv) == 0
    assert np.array_equal(np.load("out/y_out_0.npy"), x * 2)
    assert np.load("out/count.npy") == 7
    assert "2 x 3" in output().out


def test_run_random_is_repeatable(compiler: fakes.FakeCompiler, output: Any) -> None:
    for folder, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        argv = ["run", "net.so", "--random", "--dim", "batch=4", "--seed", seed]
        assert main([*argv, "--output-dir", folder]) == 0
    first, second, third = (np.load(f"{name}/y_out_0.npy") for name in "abc")
    assert first.shape == (4, 3)
    assert np.array_equal(first, second)
    assert not np.array_equal(first, third)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "no value for input(s): x, ids"),
        (["--input", "x.npy"], "no value for input(s): ids"),
        (["--random"], "symbolic dimension 'batch'"),
        (["--random", "--dim", "bacth=2"], "did you mean 'batch'"),
        (["--input", "ix=x.npy"], "no input named 'ix'"),
        (["--input", "x=x.npy", "--input", "x=x.npy"], "given twice"),
        (["--input", "x.npy"] * 1 + ["--input", "x.npy"] * 2, "3 inputs given"),
        (["--input", "none.npy"], "no such file"),
        (["--input", "net.so"], "cannot read array"),
        (["--input", "two.npz"], "several arrays"),
        (["--input", "pickle.npy"], "cannot read array"),
        (["--function", "mian"], "did you mean 'main'"),
        (["--function", "scale"], "no graph function 'scale'"),
    ],
)
def test_run_refuses(compiler: fakes.FakeCompiler, output: Any, argv: list[str], says: str) -> None:
    np.save("x.npy", np.zeros((1, 3), np.float32))
    np.savez("two.npz", a=np.zeros(1), b=np.zeros(1))
    np.save("pickle.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert main(["run", "net.so", *argv]) == 2
    assert says in output().err


def test_closed_pipe_is_quiet() -> None:
    import subprocess

    script = f"{sys.executable} -m tensorkiln.cli targets --json | head -1; echo ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert process.stdout.splitlines()[0] == "{"
    assert "Traceback" not in process.stderr
