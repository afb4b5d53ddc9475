"""Every command as a stranger would call it: wrong files, closed streams, full disks, no home, odd
names. Each time: a code of docs/cli.md, one message, no traceback, nothing half-written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from json import loads
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from examples.make_mlp import make_mlp
from tensorkiln.base.interrupts import Terminated
from tensorkiln.cli import entry, main
from tensorkiln.cli.entry import COMMANDS
from tests.cli.test_options import arguments, kind_of
from tests.fork_server import fork_server
from tests.rotation import rows_in_turn

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and its library."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "good.onnx").write_bytes(make_mlp().SerializeToString())
    argv = ["compile", str(folder / "good.onnx"), "-q"]
    assert main([*argv, "-o", str(folder / "good.so")]) == 0
    archive = ["--format", "mlf", "--freeze", "batch=1", "--target", "c"]
    assert main([*argv, "-o", str(folder / "good.tar"), *archive]) == 0
    (folder / "good.toml").write_text('models.good = "good.onnx"\ntargets.old = "llvm"\n')
    return folder


@pytest.fixture
def work_folder(made_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, with links to what was made."""
    for name in ("good.onnx", "good.so", "good.tar", "good.toml"):
        (tmp_path / name).symlink_to(made_folder / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TUNE = ["-q", "--dim=batch=1", "--trials=1", "--kernels=1", "--search=random", "--executor=local:1"]
# Each command with a file of its own as {}.
CALLS: dict[str, list[list[str]]] = {
    "demo": [],
    "compile": [["compile", "{}", "-o", "new.so", "--target", "llvm", "-q"]],
    "run": [["run", "{}", "--random", "--dim", "batch=1"], ["run", "good.so", "--input", "{}"]],
    "inspect": [["inspect", "{}"], ["inspect", "{}", "--json"], ["inspect", "{}", "--list"]],
    "check": [["check", "{}", "--target", "llvm"]],
    "bench": [["bench", "{}", "--seconds", "0.001", "--dim", "batch=1"]],
    "verify": [
        ["verify", "{}", "--dim", "batch=1"],
        ["verify", "good.so", "--model", "{}", "--dim", "batch=1"],
    ],
    "farm": [["farm", "{}", "-o", "libraries", "-q"]],
    "tune": [["tune", "{}", "--records", "new.records", *TUNE]],
    "explain": [["explain", "{}", "-o", "page", "--no-times", "--target", "llvm"]],
    "new-project": [["new-project", "{}", "-o", "project"]],
    "targets": [["targets", "--tags-file", "{}"]],
    "cache": [],
    "completion": [],
}
LINES = [line for lines in CALLS.values() for line in lines]


def damaged(source: Path, path: Path) -> None:
    content = source.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def unreadable(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


# name -> what makes the file
FILES: dict[str, Callable[[Path, Path], Any]] = {
    "missing": lambda folder, path: None,
    "folder": lambda folder, path: path.mkdir(),
    "empty": lambda folder, path: path.touch(),
    "text": lambda folder, path: path.write_text("Dear sir or madam,\n"),
    "cut model": lambda folder, path: damaged(folder / "good.onnx", path),
    "cut library": lambda folder, path: damaged(folder / "good.so", path),
    "model": lambda folder, path: shutil.copy(folder / "good.onnx", path),
    "library": lambda folder, path: shutil.copy(folder / "good.so", path),
    "not a Tensorkiln library": lambda folder, path: shutil.copy(sys.executable, path),
    "device": lambda folder, path: path.symlink_to("/dev/zero"),
    "pipe": lambda folder, path: os.mkfifo(path),
    "circle": lambda folder, path: path.symlink_to(path.name),
    "dangling": lambda folder, path: path.symlink_to("nowhere"),
    "below a file": lambda folder, path: None,
}
GOOD = {  # the calls that a file of these is right for
    "model": ("compile", "inspect", "check", "bench", "explain", "verify", "tune"),
    "library": ("run", "inspect", "bench"),
    "text": ("inspect",),
    "empty": ("inspect", "targets"),
    "cut model": ("inspect",),
    "not a Tensorkiln library": ("inspect",),
}


def one_message(err: str) -> None:
    """One error, and no other words but a hint."""
    assert "Traceback" not in err
    assert "internal error" not in err
    assert err.count("kiln: error: ") == 1, err


def test_all_commands_are_here() -> None:
    assert set(CALLS) == set(COMMANDS)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    rows_in_turn(product(FILES, (".onnx", ".so", "")), family=lambda row: row[0]),
)
def test_files(
    made_folder: Path, work_folder: Path, kind: str, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"given{suffix}" if kind != "below a file" else f"good.so/given{suffix}"
    FILES[kind](made_folder, work_folder / name)
    before = sorted(work_folder.iterdir())
    for line in LINES:
        if line[0] == "bench" and (kind == "model") != (suffix == ".onnx"):
            continue  # its suffix says what a file is
        code = main([word.format(name) for word in line])
        out, err = capsys.readouterr()
        if line[0] in GOOD.get(kind, ()) and "--input" not in line:
            assert code in (0, 1, 2), (line, err)
        else:
            assert code in ((1, 2) if line[0] == "check" else (2,)), (line, out, err)
        if code == 2:
            one_message(err)
            assert name in err or line[0] == "targets", (line, err)
        else:
            assert "error" not in err
        for made_now in set(work_folder.iterdir()) - set(before):
            assert code == 0 and made_now.name in ("new.so", "new.records", "page", "project"), (
                line,
                made_now,
            )
            shutil.rmtree(made_now) if made_now.is_dir() else made_now.unlink()


# -- the surroundings ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forked() -> Iterator[str]:
    """`kiln` as a process that has imported everything."""
    with fork_server() as folder:
        yield str(folder / "kiln")


def kiln(
    *argv: str,
    shell: str = "",
    command: str = "",
    preexec: Callable[[], None] | None = None,
    **variables: Any,
) -> subprocess.CompletedProcess[str]:
    """`kiln` as a fresh process, or as `command`; `shell` follows it on a line of bash. None unsets
    a variable."""
    environment: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    plain = {name: value for name, value in environment.items() if value is not None}
    words = [*([command] if command else [sys.executable, "-m", "tensorkiln.cli"]), *argv]
    if shell:
        words = ["bash", "-c", f'"$@" {shell}', "bash", *words]
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=plain,
        check=False,
        preexec_fn=preexec,
        timeout=120,
    )


# What each command prints; those that write files say with --json what they have written.
PRINTS = [
    ["targets"],
    ["run", "good.so", "--random", "--dim", "batch=1"],
    ["inspect", "good.so"],
    ["inspect", "good.so", "--artifact", "weights.json", "--extract", "-"],
    ["check", "good.onnx", "--target", "llvm"],
    ["verify", "good.onnx", "--dim", "batch=1", "-q"],
    ["bench", "good.so", "--seconds", "0.001", "--dim", "batch=1"],
    ["compile", "good.onnx", "-o", "new.so", "-q", "--json"],
    ["explain", "good.onnx", "-o", "page", "-q", "--no-times", "--json"],
    ["new-project", "good.tar", "-o", "project", "-q", "--json"],
    ["farm", "good.toml", "-q", "--dry-run"],
    ["tune", "good.onnx", "--records", "new.records", *TUNE],
    ["cache"],
    ["completion", "bash"],
    ["--help"],
]


def test_all_that_print_are_here() -> None:
    assert {line[0] for line in PRINTS} == {*COMMANDS, "--help"} - {"demo"}  # which takes too long


@pytest.mark.in_turn()
@pytest.mark.parametrize("line", PRINTS, ids=" ".join)
def test_streams(work_folder: Path, line: list[str], forked: str) -> None:
    full = kiln(*line, shell="> /dev/full", command=forked)
    assert full.returncode == 2, full.stderr
    assert full.stderr == (
        "kiln: error: cannot write to standard output: No space left on device\n"
    )
    closed = kiln(*line, shell=">&-")
    assert (closed.returncode, closed.stderr.count("standard output")) == (2, 1), closed.stderr
    nobody = kiln(*line, shell="| true; exit ${PIPESTATUS[0]}", command=forked)
    assert (nobody.returncode in (0, 141), nobody.stderr) == (True, "")
    for redirections in ("<&- 2>&-", "2> /dev/full") if line in PRINTS[:2] else ():
        fine = kiln(*line, shell=redirections)
        assert (fine.returncode, fine.stderr) == (0, ""), fine.stderr
        assert fine.stdout


# What each argument that names a file to be written follows, by command and argument.
WRITES = {
    ("demo", "--folder"): "demo --seconds 0.001",
    ("compile", "--output"): "compile good.onnx -q",
    ("compile", "--keep"): "compile good.onnx -q -o new.so",
    ("compile", "--headers"): "compile good.onnx -q -o new.so",
    ("run", "--output-dir"): "run good.so --random --dim batch=1",
    ("inspect", "--extract"): "inspect good.so",
    ("new-project", "--output"): "new-project good.tar -q",
    ("verify", "--output"): "verify good.onnx -q --dim batch=1",
    ("bench", "--profile"): "bench good.onnx -q --dim batch=1 --seconds 0.001",
    ("tune", "--records"): " ".join(["tune good.onnx", *TUNE]),
    ("tune", "--journal"): " ".join(["tune good.onnx --records new.records", *TUNE]),
    ("explain", "--output"): "explain good.onnx -q --no-times",
    ("farm", "--output"): "farm good.toml -q",
    ("farm", "--cache"): "farm good.toml -q -o libraries",
}


def test_all_that_write_are_here() -> None:
    kinds = (
        "the name of a file or folder",
        "the name of a folder, or - for standard output",
        "the name of a folder, or a URL",
    )
    writes = {(c, max(a.option_strings, key=len)) for c, a in arguments() if kind_of(a) in kinds}
    assert writes == set(WRITES)


PLACES = ("good.so/x", "/proc/none", "/dev/null/x", "good.so", "folder")


@pytest.mark.parametrize(
    ("command", "option", "place"),
    rows_in_turn(
        [(*write, place) for write in WRITES for place in PLACES], family=lambda row: row[:2]
    ),
)
def test_where_nothing_can_be_written(
    command: str, option: str, place: str, work_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work_folder / "folder").mkdir()
    (work_folder / "folder" / "mine").touch()
    action = next(a for c, a in arguments() if c == command and option in a.option_strings)
    is_file = command in ("compile", "bench") and action.metavar != "DIR"
    if (place == "folder" and not is_file) or (place == "good.so" and is_file):
        return  # may be fine
    if option == "--output" and is_file and place.startswith("/"):
        place += ".so"  # other suffixes are refused by name
    if command == "demo":
        pytest.importorskip("onnxruntime")
    before = (work_folder / "good.so").read_bytes()
    for json in ([], ["--json"]):
        line = [*WRITES[command, option].split(), option, place, *json]
        assert main(line) == 2, line
        out, err = capsys.readouterr()
        one_message(err)
        assert place in err
        assert out == "" or json
    assert (work_folder / "good.so").read_bytes() == before
    assert [p.name for p in (work_folder / "folder").iterdir()] == ["mine"]


def test_work_goes_on_when_nobody_reads_of_it(work_folder: Path) -> None:
    for stream in ("2>&-", "2> /dev/full", "2>&1 >&- | true; exit ${PIPESTATUS[0]}"):
        process = kiln("compile", "good.onnx", "-o", "new.so", shell=stream)
        assert process.returncode == 0, process.stderr
        (work_folder / "new.so").unlink()


SURROUNDINGS: dict[str, dict[str, Any]] = {
    "no home": {"HOME": None, "XDG_CACHE_HOME": None},
    "home is no folder": {"HOME": "/dev/null", "XDG_CACHE_HOME": None},
    "home for reading": {"HOME": "/proc", "XDG_CACHE_HOME": None},
    "plain locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "nothing": {name: None for name in os.environ if name not in ("PATH", "LD_LIBRARY_PATH")},
}


@pytest.mark.in_turn()
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_surroundings(work_folder: Path, surroundings: str, forked: str) -> None:
    """A locale is what Python starts with: a fresh process."""
    command = "" if "locale" in surroundings else forked
    for line in (
        ["compile", "good.onnx", "-o", "new.so", "-q", "--target", "llvm"],
        ["run", "new.so", "--random", "--dim", "batch=1", "--output-dir", "out"],
        ["inspect", "new.so"],
        ["explain", "good.onnx", "-o", "page", "--no-times"],
    ):
        process = kiln(*line, command=command, **SURROUNDINGS[surroundings])
        assert (process.returncode, "Traceback" in process.stderr) == (0, False), process.stderr
        assert "error" not in process.stderr
    assert (work_folder / "out" / "logits.npy").exists() and (
        work_folder / "page" / "index.html"
    ).exists()


ODD = [
    "ü.onnx",
    "名.onnx",
    "a b.onnx",
    "a'b\".onnx",
    "a\nb.onnx",
    "a\udce9b.onnx",
    "$a.onnx",
    "a%s.onnx",
    "{}.onnx",
    "x" * 200 + ".onnx",
    "a;b.onnx",
]


@pytest.mark.parametrize("name", rows_in_turn(ODD, ascii, str.isascii), ids=ascii)
def test_odd_names(
    made_folder: Path, work_folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(made_folder / "good.onnx", work_folder / name)
    model, library = f"./{name}", f"./{name}".replace(".onnx", "") + ".so"
    for line in (
        ["compile", model, "-o", library, "-q"],
        ["run", library, "--random", "--dim", "batch=1"],
        ["inspect", library],
        ["check", model],
        ["check", f"./no{name}"],
    ):
        assert main(line) == (2 if "no" + name in line[1] else 0), capsys.readouterr().err
        assert "Traceback" not in capsys.readouterr().err
    for word in (f"{name}=x.npy", f"{name}=1"):
        option = "--input" if word.endswith("npy") else "--dim"
        assert main(["run", library, "--random", option, word]) == 2
        err = capsys.readouterr().err
        assert err.startswith("kiln: error: no ") and err.count("\n") < 5
    assert kiln("inspect", library, PYTHONIOENCODING="ascii").returncode == 0


def test_sizes_that_are_too_large(work_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (10**9, 10**12, 2**62, 2**63 - 1):
        for line in (
            ["run", "good.so", "--random", "--dim", f"batch={size}"],
            ["bench", "good.so", "--seconds", "0.001", "--dim", f"batch={size}"],
            ["explain", "good.onnx", "-o", "page", "--dim", f"batch={size}", "--target", "llvm"],
        ):
            assert main(line) == 2, (line, capsys.readouterr())
            one_message(capsys.readouterr().err)
        line = ["compile", "good.onnx", "-o", "new.so", "--target", "llvm", "-q"]
        code = main([*line, "--freeze", f"batch={size}"])
        err = capsys.readouterr().err
        assert code == (2 if size > 10**9 else 0), err  # the smallest fits a process's addresses
        assert (work_folder / "new.so").exists() == (code == 0)
        if code:
            one_message(err)
        (work_folder / "new.so").unlink(missing_ok=True)


def test_too_little_memory(work_folder: Path) -> None:
    process = kiln(
        "run", "good.so", "--random", "--dim", "batch=1000000", shell="", preexec=limited
    )
    assert process.returncode == 2, process.stderr
    one_message(process.stderr)
    assert "memory" in process.stderr


def limited() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))


@pytest.fixture
def slow_model(work_folder: Path) -> Iterator[Path]:
    """What takes long enough to compile to be interrupted: its cache is a new one."""
    import onnx
    from onnx import helper

    nodes, last = [], "x"
    for i in range(40):
        nodes.append(helper.make_node(("Sin", "Tanh", "Erf")[i % 3], [last], [f"y{i}"]))
        nodes.append(helper.make_node("ReduceSum", [f"y{i}"], [f"z{i}"], keepdims=0))
        last = f"y{i}"
    info = helper.make_tensor_value_info
    ends = [info(f"z{i}", 1, []) for i in range(40)]
    graph = helper.make_graph(nodes, "g", [info("x", 1, [3, 65])], ends)
    path = work_folder / "slow.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    yield path


@pytest.mark.parametrize("after", [0.0, 0.5])
def test_interrupted(slow_model: Path, work_folder: Path, after: float) -> None:
    """At any moment: one word, code 130 (or done by then), and no file of half a library."""
    before = set(work_folder.iterdir())
    command = [sys.executable, "-m", "tensorkiln.cli", "compile", "slow.onnx", "--keep", "kept"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KILN_CACHE": "0"}
    process = subprocess.Popen(
        [*command, "-o", "new.so"],
        cwd=work_folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started = time.monotonic()
    while time.monotonic() - started < 20:  # Python itself is up
        if Path(f"/proc/{process.pid}/maps").read_text().count("_ctypes"):
            break
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    if process.returncode == 130:
        assert err.splitlines()[-1].endswith("kiln: interrupted")
        assert set(work_folder.iterdir()) <= {*before, work_folder / "kept"}


# Says when the command line begins: before that, and after it, an interrupt is Python's.
WITHIN = """
import os, signal, sys
from tensorkiln.cli import main
os.write(2, b"up ")
code = main()
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("json", "line"),
    rows_in_turn(product((False, True), PRINTS[:-1]), family=lambda row: row[1][0]),
    ids=lambda value: value if isinstance(value, bool) else " ".join(value),
)
def test_every_command_can_be_interrupted(
    line: list[str], json: bool, work_folder: Path, fresh_cache: Callable[[Path], Path]
) -> None:
    """One word, or done by then; with --json a document in either case."""
    cache = fresh_cache(work_folder / "cache")
    argv = [*line, *(["--json"] if json and "--json" not in line and line[-1] != "-" else ())]
    process = subprocess.Popen(
        [sys.executable, "-c", WITHIN, *argv],
        env={**os.environ, "PYTHONPATH": str(ROOT), "KILN_CACHE_DIR": str(cache)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert os.read(process.stderr.fileno(), 3) == b"up "
    time.sleep(0.1)  # at any moment
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    if process.returncode == 130:
        assert err.splitlines()[-1].endswith("kiln: interrupted")
        if "--json" in argv and out.endswith("}\n"):  # else it came while this was written
            assert loads(out)["error"]["code"] == "interrupted"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), Terminated(signal.SIGTERM)])
def test_an_interrupt_at_any_line_of_the_entry_is_reported(interrupt: KeyboardInterrupt) -> None:
    """Where `entry.main` has handlers, and at its first and last lines, where it has none."""

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        nonlocal lines
        lines += event == "line"
        if lines == len(codes) and event == "line":
            raise interrupt
        return trace if frame.f_code.co_filename == entry.__file__ else None

    before, codes, lines = sys.gettrace(), [0], 0
    while lines + 1 >= len(codes):
        lines = 0
        sys.settrace(trace)
        codes.append(main(["targets", "--json"]))
        sys.settrace(before)
    assert set(codes[1:-1]) == {128 + next(iter(interrupt.args), 2)} and len(codes) > 15


# Another process ends this one while a tool runs, which is when there are temporary files.
ENDED = """
import os, signal, subprocess, sys
from tensorkiln.cli import main
signal.signal(getattr(signal, sys.argv[1]), signal.SIG_DFL)  # nohup lets it ignore SIGHUP
run = subprocess.run
def ended(*arguments, **named):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    return run(*arguments, **named)
subprocess.run = ended
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_process_that_is_ended_leaves_nothing(name: str, work_folder: Path) -> None:
    (work_folder / "temporary").mkdir()
    before = set(work_folder.iterdir())
    process = subprocess.run(
        [sys.executable, "-c", ENDED, name, "compile", "good.onnx", "-o", "new.so", "-q"],
        cwd=work_folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "KILN_CACHE": "0",
            "TMPDIR": str(work_folder / "temporary"),
        },
        capture_output=True,
        text=True,
    )
    assert process.returncode == 128 + getattr(signal, name), process.stderr
    assert process.stderr.splitlines()[-1] == f"kiln: ended by {name}"
    assert (
        set(work_folder.iterdir()) == before and list((work_folder / "temporary").iterdir()) == []
    )
