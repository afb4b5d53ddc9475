"""The harness for some seconds; `make safety SEED=n MINUTES=m SANITIZER=address|undefined|thread`
runs it for longer. Each finding is printed with the line that shows it again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.safety.__main__ import OPTIONS, ROOT, c_cases, python_cases
from tests.safety.build import build_libraries
from tests.safety.loop import run_once

NEVER = float("inf")
# Those of surroundings.py compile, which takes seconds each.
QUICK = "call,objects,results,callbacks,states,closing,lifetimes"


# With it nobody is told of a fork.
NOBODY_IS_TOLD = """
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
int __register_atfork(void (*a)(void), void (*b)(void), void (*c)(void), void *d)
{
    (void)a, (void)b, (void)c, (void)d;
    return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the libraries of Python callers are."""
    library_folder = tmp_path_factory.mktemp("safety")
    build_libraries(library_folder)
    return library_folder


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the driver."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    return tmp_path_factory.mktemp("checked")


def test_some_cases_of_c_programs(checked: Path) -> None:
    tally = c_cases(checked, "quick", 0, 0, 120, NEVER)
    assert tally.cases == 120
    assert not tally.findings, tally.text("--seed 0 --part c --case {}".format)


@pytest.mark.forks
def test_a_lock_that_a_child_does_not_open_is_found(
    checked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c_cases(checked, "quick", 0, 0, 0, NEVER)  # builds it
    (checked / "told.c").write_text(NOBODY_IS_TOLD)
    command = ["gcc", "-shared", "-fPIC", "told.c", "-o", "told.so"]
    subprocess.run(command, cwd=checked, check=True)
    monkeypatch.setitem(OPTIONS, "LD_PRELOAD", str(checked / "told.so"))
    options = OPTIONS["ASAN_OPTIONS"] + ":verify_asan_link_order=0"
    monkeypatch.setitem(OPTIONS, "ASAN_OPTIONS", options)
    tally = c_cases(checked, "quick", 0, 0, 1, NEVER, "fork")
    assert any("the child ended with status" in description for description in tally.findings), (
        tally.findings
    )


def test_some_cases_of_python_callers(folder: Path) -> None:
    tally = python_cases(folder, 0, 0, 120, NEVER, QUICK)
    assert tally.cases == 120
    assert not tally.findings, tally.text("--seed 0 --part python --case {}".format)


def test_a_seed_makes_the_same_cases(folder: Path) -> None:
    """Numbers, kinds and arguments, whoever runs them and when."""
    child = (sys.executable, "-m", "tests.safety.child", str(folder), "3", "0", "30", QUICK)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    case_lists = [
        [
            line
            for line in run_once(child, ROOT, environ, NEVER)[0].splitlines()
            if line[:1] in b"@:" and b"closing" not in line
        ]
        for _ in range(2)
    ]
    assert case_lists[0] == case_lists[1] and len(case_lists[0]) > 30
