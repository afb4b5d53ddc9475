"""What every test may ask for."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from _pytest import runner

from tensorkiln.base.frames import with_frame_room
from tensorkiln.codegen.llvm.compile import Workers
from tests.capabilities import Skips
from tests.durations import DurationRecorder, sort_by_duration
from tests.link import sample
from tests.rotation import (
    Rotation,
    begin,
    commit,
    rotation_of,
    without_other_levels,
    without_other_rows,
)

# Proofs that take minutes to hours: they run when `-m` names them, as the targets of make do.
FULL = {
    "conformance": "a full-size network against its oracles",
    "roundtrip": "text and back, all networks and 500 generated modules",
    "fuzz": "thousands of random schedules, programs and calls",
    "fuzz_artifacts": "360,000 damaged containers, folders, libraries and descriptions",
    "forks": "30,000 children of fork() that use what other threads were using",
    "large": "a model of five gigabytes",
    "firmware": "what `make test` leaves out of the tests on emulated microcontrollers",
    "scale": "clusters of several processes, of which one is killed",
    "aarch64": "what `make test` leaves out of the tests under an emulator of AArch64",
}


# How long an example takes says nothing on a machine that others use, too.
hypothesis.settings.register_profile("tensorkiln", deadline=None)
hypothesis.settings.load_profile("tensorkiln")


_ROTATION = pytest.StashKey[Rotation]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ROTATION] = rotation_of(str(config.getoption("rotation")), commit())
    begin(config.stash[_ROTATION])
    config.pluginmanager.register(Skips())
    if config.getoption("record_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DurationRecorder())
    config.addinivalue_line(
        "markers",
        "in_turn(*parameters): of the rows of each family, which these parameters tell apart, each "
        "run of `make test` takes a part",
    )
    for name, description in FULL.items():
        config.addinivalue_line(
            "markers",
            f"{name}: {description}; runs when `-m` names it (`make {name.replace('_', '-')}`)",
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Nothing of what collecting makes is garbage: looking for some took a third of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """As pytest's own, with room for frames: tests call much that is not called by `compile`."""
    return _run_protocol(item, nextitem)


_run_protocol = with_frame_room(runner.pytest_runtest_protocol)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark_expression = str(config.getoption("markexpr"))
    unnamed_marks = [name for name in FULL if name not in mark_expression]
    out = [item for item in items if any(map(item.get_closest_marker, unnamed_marks))]
    deselected = set(out)
    rotation = config.stash[_ROTATION]
    in_turn, later = without_other_rows([i for i in items if i not in deselected], rotation)
    items[:], waits = without_other_levels(in_turn, rotation.levels)
    if out or later or waits:
        config.hook.pytest_deselected(items=[*out, *later, *waits])
    sort_by_duration(items)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bless", action="store_true", help="rewrite golden texts instead of failing")
    parser.addoption(
        "--record-durations", action="store_true", help="write how long each file of tests took"
    )
    parser.addoption(
        "--rotation",
        default="all",
        help="of levels and rows: all (default), a number, or commit, which chooses a number",
    )


def pytest_report_header(config: pytest.Config) -> str:
    rotation = config.stash[_ROTATION]
    return f"rotation: {rotation.label} (levels {', '.join(['native', *sorted(rotation.levels)])})"


@pytest.fixture(scope="session")
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """`fresh_cache(folder)`: a cache of its own that holds what every link needs, the C runtime and
    the stubs of the C library, and nothing else. An empty one takes the first link 4 seconds."""
    place = tmp_path_factory.mktemp("runtime")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILN_CACHE_DIR", str(place / "cache"))
        sample.build(place / "mlp.so")
    for entry in (place / "cache/objects").glob("??/*"):
        raw = entry.read_bytes()
        components = json.loads(raw[12 : 12 + int.from_bytes(raw[8:12], "little")])
        if components["kind"] not in ("crt", "libc stub"):
            entry.unlink()

    def copy(folder: Path) -> Path:
        shutil.copytree(place / "cache/objects", folder / "objects")
        folder.chmod(0o700)
        return folder

    return copy


@pytest.fixture(scope="module", autouse=True)
def earlier_objects() -> None:
    """What is there when a file of tests begins is not looked through for garbage again: with all
    tests and what they import, that took most of a second each time, and children of a fork copied
    what was looked through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def compiler_processes() -> Iterator[None]:
    """The processes in which LLVM runs serve all compiles of a run: to start Python and load LLVM
    takes a tenth of a second, which is longer than the kernels of a small model."""
    idle: dict[int, list[Any]] = {}  # by process: children of a fork start their own
    with pytest.MonkeyPatch.context() as patch:
        for name, method in {
            "__init__": lambda self: setattr(self, "_idle", idle.setdefault(os.getpid(), [])),
            "__exit__": lambda *_: None,
        }.items():
            patch.setattr(Workers, name, method)
        yield
    for worker in idle.get(os.getpid(), ()):
        worker.close()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, as where a person could press it: a shell lets what it runs
    in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)`: the file holds exactly this text; with --bless, it does from now on."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--bless"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"{path.name} differs: pytest --bless"

    return check
