"""The wheels where nothing else is: no compiler on PATH, no network, a home that cannot be written
to or is not there, no cache. What the README begins with works, or says what it lacks."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.make_mlp import make_mlp
from tests.release.conftest import ROOT, Make, Release
from tests.release.environments import COMPILER, Environment

UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")
# Two homes that even root cannot write to: the given one, and root's, which is where a command that
# knows of no HOME looks.
READ_ONLY = """
for home in "$1" ~root; do MOUNT --bind "$home" "$home"; MOUNT -o remount,bind,ro "$home"; done
if TOUCH "$1/x" 2>/dev/null; then exit 9; fi
shift
cd "$PWD"
exec "$@"
"""


PACKAGES = ("numpy", *COMPILER, "onnx", "onnxruntime")


@pytest.fixture(scope="module")
def everything(release: Release, environment: Make) -> Environment:
    return environment([release.runtime_wheel, release.wheel], PACKAGES)


@pytest.fixture
def sealed(tmp_path: Path) -> tuple[str, ...]:
    """How a command begins that has no network, and a home (`tmp_path / "home"`) to read only."""
    home = tmp_path / "home"
    home.mkdir()
    probe = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no user namespace can be made here: {probe.stderr.strip()[:80]}")
    unshare, sh, mount, touch = (str(shutil.which(n)) for n in ("unshare", "sh", "mount", "touch"))
    script = READ_ONLY.replace("MOUNT", mount).replace("TOUCH", touch)
    return (unshare, *UNSHARE[1:], sh, "-euc", script, "sh", str(home))


def _page(page: Path, count: int) -> list[tuple[str, str]]:
    """The first blocks of a page that are run: (language, text)."""
    blocks = re.findall(
        r"(<!-- not run: .*? -->\n)?```(\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.S
    )
    return [(kind, text) for skipped, kind, text in blocks if not skipped][:count]


HOMES = ("read-only", "missing", "unset")


@pytest.mark.in_turn()
@pytest.mark.parametrize("home", HOMES)
def test_how_the_readme_begins(
    home: str, everything: Environment, sealed: tuple[str, ...], tmp_path: Path
) -> None:
    """Its first two blocks, as a reader types them, in turn with each kind of home."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    homes = {"read-only": str(tmp_path / "home"), "missing": "/nonexistent/home"}
    variables = {"HOME": homes[home]} if home in homes else {}
    (_, shell), (_, script) = _page(ROOT / "README.md", 2)
    assert "make_mlp.py" in shell and "export_library" in script
    (tmp_path / "first.py").write_text(script)
    for words in (*map(str.split, shell.splitlines()), ["python", "first.py"]):
        process = everything.run(*words, cwd=tmp_path, before=sealed, **variables)
        assert (process.returncode, process.stderr) == (0, ""), process.stdout
    assert process.stdout.endswith("(3, 10)\n")
    assert not list((tmp_path / "home").iterdir())


@pytest.mark.slow
def test_the_demo(everything: Environment, sealed: tuple[str, ...], tmp_path: Path) -> None:
    process = everything.run(
        *("kiln", "demo", "--seconds", "0.2"),
        cwd=tmp_path,
        before=sealed,
        HOME=str(tmp_path / "home"),
        KILN_PROGRESS="off",
    )
    assert (process.returncode, process.stderr) == (0, ""), process.stdout
    assert process.stdout.endswith("PASS\n")


def test_where_nothing_can_be_written(
    everything: Environment, sealed: tuple[str, ...], tmp_path: Path
) -> None:
    """A folder to work in that is read-only too: one sentence, and no traceback."""
    shutil.copy(_model(everything, tmp_path), tmp_path / "home" / "mlp.onnx")
    compiled = ("kiln", "compile", "mlp.onnx", "-o", "mlp.so")
    demo = ("kiln", "demo")
    for words in (compiled, demo):
        process = everything.run(*words, cwd=tmp_path / "home", before=sealed)
        assert process.returncode == 2, process.stdout
        assert "Traceback" not in process.stderr
        assert re.match(r"kiln: error: cannot (write|make folder) '", process.stderr), (
            process.stderr
        )


def test_without_a_linker(
    release: Release, environment: Make, sealed: tuple[str, ...], tmp_path: Path
) -> None:
    """Where ziglang has no wheel, and no CC is named: what to install, or to set."""
    without_linker = environment([release.runtime_wheel, release.wheel], PACKAGES)
    model = _model(without_linker, tmp_path)
    (without_linker.site / "ziglang").unlink()
    process = without_linker.run(
        "kiln", "compile", model, "-o", "x.so", cwd=tmp_path, before=sealed
    )
    assert process.returncode == 2
    assert "linking needs a C compiler and linker" in process.stderr
    assert "pip install 'ziglang==0.17.*', or set CC=gcc" in process.stderr
    process = without_linker.run(
        *("kiln", "compile", model, "-o", "x.tar", "--format", "mlf", "--target", "c"),
        cwd=tmp_path,
        before=sealed,
    )
    assert process.returncode == 0, process.stderr


def _model(environment: Environment, folder: Path) -> Path:
    script = str(ROOT / "examples" / "make_mlp.py")
    process = environment.run("python", script, "mlp.onnx", cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder / "mlp.onnx"


def test_what_no_tool_is_needed_for(
    release: Release, environment: Make, sealed: tuple[str, ...], tmp_path: Path
) -> None:
    """Where llvmlite, islpy and ziglang have no wheels: plain C, and else what is missing."""
    little = environment([release.runtime_wheel, release.wheel], ("numpy", "ml_dtypes"))
    (tmp_path / "mlp.onnx").write_bytes(make_mlp().SerializeToString())
    words = ("kiln", "compile", "mlp.onnx", "-o")
    plain = ("mlp.tar", "--format", "mlf", "--target", "c", "--freeze", "batch=1")
    process = little.run(*words, *plain, cwd=tmp_path, before=sealed)
    assert process.returncode == 0, process.stderr
    process = little.run("kiln", "inspect", "mlp.tar", cwd=tmp_path, before=sealed)
    assert process.returncode == 0, process.stderr
    for target in ("native", "llvm", "cuda"):
        command = (*words, "mlp.so", "--target", target)
        process = little.run(*command, cwd=tmp_path, before=sealed, KILN_CACHE="0")
        assert process.returncode == 2
        assert "needs the package 'llvmlite', which is not installed" in process.stderr
        assert "hint: pip install 'llvmlite==0.50.*', or " in process.stderr
