"""Damaged containers, folders and libraries: a typed error, or what two readers agree about.

`make fuzz-artifacts` makes 360,000 of them and prints their seed; `make test` a few thousand.
"""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet, container
from tensorkiln.base.errors import UserError
from tensorkiln.base.json_text import MAX_VALUES
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.link.artifacts import LinkPlan
from tensorkiln.runtime.library_file import read_library_file
from tensorkiln.runtime.native import functions_of
from tensorkiln.script import from_source
from tests.artifact import damage_metadata
from tests.artifact.damage import (
    CReader,
    Watch,
    container_of,
    damaged_container,
    python_summary,
    text,
    tree_of,
)
from tests.artifact.damage_files import (
    DamagedFolder,
    DamagedLibrary,
    folder_contents,
    outcome,
    section,
)
from tests.golden_artifacts.make import HERE, NESTED

SETS = [NESTED, ArtifactSet.load(HERE / "compile-1")]
SEEDS = [NESTED.to_bytes()] * 3 + [SETS[1].to_bytes(), ArtifactSet().to_bytes()]
CONTAINER = ("bad-container", "container-version")
FOLDER = (*CONTAINER, "missing-file", "unsafe-path", "bad-artifact", "bad-imports", "name-clash")
LIBRARY = ("not-a-library", "library-version", "bad-library", "bad-metadata", *CONTAINER)
BATCH = 1000
ALL_KINDS = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    a: R.Tensor(("n", 4), "float32") = R.mul(x, R.const(2.0, "float32"))
    return a

@R.function
def outer(x: R.Object) -> R.Object:
    return x

@T.prim_func
def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32"), s: T.int32):
    for i in range(4):
        y[i] = 2.0 * x[i]
"""


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    before = signal.getsignal(signal.SIGVTALRM)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    signal.signal(signal.SIGVTALRM, before)


def seed() -> int:
    """A new one each time, or that of an environment variable; pytest shows it after a failure."""
    chosen = int(os.environ.get("FUZZ_SEED", random.randrange(1 << 32)))
    print(f"FUZZ_SEED={chosen}")
    return chosen


def test_containers(c_reader: CReader) -> None:
    containers(c_reader, 1500, seed())


def test_folders(tmp_path: Path) -> None:
    folders(tmp_path, 400, seed())


def test_libraries(tmp_path: Path, c_reader: CReader) -> None:
    libraries(tmp_path, c_reader, 400, seed())


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Libraries of earlier versions, and one of today with functions of all kinds."""
    path = tmp_path_factory.mktemp("described") / "today.so"
    tk.compile(from_source(ALL_KINDS)).export_library(path)
    names = ("library-1.so", "library-4.so", "kept-3.so", "loaders-4.so")
    return [path.read_bytes()] * 3 + [(HERE / name).read_bytes() for name in names]


def test_metadata_that_the_code_contradicts(tmp_path: Path, described: list[bytes]) -> None:
    """Loaded and called, no such library ends the process."""
    assert damage_metadata.run(tmp_path, described, 500, seed()) == []


@pytest.mark.fuzz_artifacts
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_thousand_descriptions(tmp_path: Path, described: list[bytes], part: int) -> None:
    assert damage_metadata.run(tmp_path, described, 25_000, seed() + part * 25_000) == []


@pytest.mark.parametrize("today", [True, False])
def test_what_is_compared_at_load(tmp_path: Path, described: list[bytes], today: bool) -> None:
    """Each count and name that a call in C relies on, changed in turn."""
    library = described[0] if today else (HERE / "library-1.so").read_bytes()
    parsed = json.loads(damage_metadata.metadata_of(library))
    main = next(f for f in parsed["functions"] if f["name"] == "main")
    extra_inputs = [{**main["inputs"][0], "name": f"more{i}"} for i in range(300)]
    changes = {
        "a name": {"name": "mein"},
        "an output too many": {"outputs": [*main["outputs"], {**main["outputs"][0], "name": "z"}]},
        "300 inputs too many": {"inputs": [*main["inputs"], *extra_inputs]},
        "a kind": {"kind": "kernel"},
    }
    if today:  # earlier ones do not tell; their calls compare these
        changes |= {
            "an input too many": {"inputs": [*main["inputs"], extra_inputs[0]]},
            "no output": {"outputs": []},
            "another kind": {"kind": "tensor"},
            "a name of an input": {"inputs": [{**main["inputs"][0], "name": "y"}]},
        }
    for change_name, change in changes.items():
        functions = [{**f, **change} if f is main else f for f in parsed["functions"]]
        text = json.dumps({**parsed, "functions": functions}).encode()
        path = tmp_path / f"{change_name}.so"
        path.write_bytes(damage_metadata.with_metadata(library, text))
        with pytest.raises(UserError, match="its metadata is damaged") as caught:
            tk.load(path)
        assert caught.value.code == "not-a-library", change_name


@pytest.mark.fuzz_artifacts
@pytest.mark.parametrize("part", range(4))
def test_many_damaged_artifacts(tmp_path: Path, c_reader: CReader, part: int) -> None:
    start = seed() + part
    counts = [
        containers(c_reader, 30_000, start),
        folders(tmp_path, 10_000, start),
        libraries(tmp_path, c_reader, 25_000, start),
    ]
    print(f"\npart {part}: {counts} containers, folders and libraries were read")


def containers(c_reader: CReader, count: int, start: int) -> int:
    """Both readers refuse it, or read the same. Returns how many were read."""
    rng, accepted = random.Random(start), 0
    for first in range(0, count, BATCH):
        batch = [damaged_container(rng, SEEDS) for _ in range(min(BATCH, count - first))]
        summaries = []
        for data in batch:
            with Watch(len(data)):
                summaries.append(outcome(lambda data=data: python_summary(data), *CONTAINER))  # type: ignore[misc]
            with Watch(len(data)):
                artifacts = outcome(lambda data=data: ArtifactSet.from_bytes(data), *CONTAINER)  # type: ignore[misc]
            if artifacts is not None:
                accepted += 1
                assert summaries[-1] is not None
                assert ArtifactSet.from_bytes(artifacts.to_bytes()) == artifacts
        for data, python_side, c_side in zip(batch, summaries, c_reader.read(batch), strict=True):
            assert python_side == c_side, data.hex()
    return accepted


def folders(tmp_path: Path, count: int, start: int) -> int:
    """It is refused, or what is read is what the files hold."""
    rng, accepted, saved_folders = random.Random(start), 0, []
    for i, artifacts in enumerate(SETS):
        artifacts.save(tmp_path / f"saved{i}")
        saved_folders.append(DamagedFolder(tmp_path / f"saved{i}", tmp_path / f"damaged{i}"))
    for _ in range(count):
        broken = rng.choice(saved_folders)
        broken.damage(rng)
        size = 1 << 16
        with Watch(size):
            artifact_set = outcome(lambda: ArtifactSet.load(broken.folder), *FOLDER)  # noqa: B023
        if artifact_set is not None:
            accepted += 1
            rows = [
                [a.loader, a.codegen_id, a.target_key, a.file_name, a.sha256]
                for a in artifact_set.plain
            ]
            assert rows == folder_contents(broken.folder)
            outcome(lambda: LinkPlan.of(artifact_set), "bad-artifact")  # noqa: B023
        broken.mend()
    return accepted


def libraries(tmp_path: Path, c_reader: CReader, count: int, start: int) -> int:
    """It is refused, or its metadata and artifacts are those that its sections hold."""
    rng, accepted = random.Random(start), 0
    seeds = [(HERE / f"{name}-1.so").read_bytes() for name in ("library", "loaders", "loaders")]
    broken, path = DamagedLibrary(seeds), tmp_path / "damaged.so"
    batch: list[tuple[object, bytes]] = []
    for _ in range(count):
        data = broken.damage(rng)
        path.write_bytes(data)
        with Watch(len(data)):
            outcome(lambda: inspect_library(path), *LIBRARY)
        with Watch(len(data)):
            file = outcome(lambda: read_library_file(path), *LIBRARY)
        if file is None:
            continue
        assert file.metadata == json.loads((section(data, b".kiln.meta") or b"").rstrip(b"\0"))
        with Watch(len(data)):
            outcome(lambda: functions_of(file), *LIBRARY)  # noqa: B023
            artifacts = outcome(lambda: file.artifacts(), *LIBRARY)  # noqa: B023
        if artifacts is None:
            continue
        accepted += 1
        carried = section(data, b".kiln.artifacts")
        assert (carried is not None) == file.carries
        if carried is not None:
            inner = carried[64 : 64 + int.from_bytes(carried[:8], "little")]
            batch.append((python_summary(inner), inner))
    for (python_side, _), c_side in zip(batch, c_reader.read([b for _, b in batch]), strict=True):
        assert python_side == c_side is not None
    return accepted


# ---- much in little: what is small as bytes and large in memory -------------------------------

LIB = text("_lib")
MANY = 36_000


def _file(place: int, name: str) -> bytes:
    head = struct.pack("<I", place) + text("c") + text(name) + text("") + bytes(8)
    return head + bytes(-len(head) % 64)


def _tiny_files(count: int, name: str) -> bytes:
    """A node of artifacts without content, all at multiples of 64 bytes."""
    head = text("x" * 52) + struct.pack("<I", count)  # with its length: 68 bytes
    first = struct.pack("<I", 0) + text("c") + text("0") + text("") + bytes(8)
    head += first + bytes(-(8 + len(head) + len(first)) % 64)
    return head + b"".join(_file(i, f"{name}{i}") for i in range(1, count))


BOMBS = {
    "artifacts": lambda: container_of([LIB, _tiny_files(MANY, "a")], tree_of([0, 1, 1], [1])),
    "names": lambda: container_of(
        [LIB, _tiny_files(600, "😀" + "a" * 4000)], tree_of([0, 1, 1], [1])
    ),
    "nodes": lambda: container_of(
        [LIB, *(text(f"l{i}") + bytes(4) for i in range(MANY))],
        tree_of([0] + [MANY] * (MANY + 1), range(1, MANY + 1)),
    ),
    "imports": lambda: container_of(
        [LIB, *(text(f"l{i}") + bytes(4) for i in range(1000))],
        tree_of(
            [sum(range(1000, 1000 - i, -1)) for i in range(1002)],
            [c for i in range(1001) for c in range(i + 1, 1001)],
        ),
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_much_in_little_containers(bomb: str, c_reader: CReader) -> None:
    data = BOMBS[bomb]()
    with Watch(len(data)), pytest.raises(UserError, match="at most|more than") as caught:
        ArtifactSet.from_bytes(data)
    assert caught.value.code == "bad-container"
    assert c_reader.read([data]) == [None]


def test_as_much_as_is_allowed(c_reader: CReader) -> None:
    """Just below the bound: the memory is, too."""
    for name, count in (("a", 32_000), ("é" * 60 + "😀", 10_500)):
        data = container_of([LIB, _tiny_files(count, name)], tree_of([0, 1, 1], [1]))
        assert container.MAX_HEADS * 0.8 < len(data) < container.MAX_HEADS
        with Watch(len(data)):
            assert len(ArtifactSet.from_bytes(data)) == count
        (in_c,) = c_reader.read([data])
        assert in_c is not None
    below = 400
    rows = [sum(range(below, below - i, -1)) for i in range(below + 2)]
    children = [c for i in range(below + 1) for c in range(i + 1, below + 1)]
    files = [text(f"l{i}") + struct.pack("<I", 0) for i in range(below)]
    data = container_of([LIB, *files], tree_of(rows, children))
    with Watch(len(data)):
        ArtifactSet.from_bytes(data)
    assert c_reader.read([data]) != [None]


def test_a_set_that_no_reader_would_take_is_not_written() -> None:
    many = ArtifactSet(tuple(Artifact("c", "x", f"{i}" + "n" * 190, b"") for i in range(9000)))
    with pytest.raises(UserError, match="has room for") as caught:
        many.to_bytes()
    assert caught.value.code == "too-large"


@pytest.mark.parametrize(
    "content",
    [b"[" + b"{}," * MAX_VALUES + b"{}]", b'"' + b"a" * (9 << 20) + b'"', b"[" * 100_000],
    ids=["values", "text", "depth"],
)
def test_much_in_little_texts(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with Watch(len(content)), pytest.raises(UserError) as caught:
        ArtifactSet.load(tmp_path)
    assert caught.value.code == "bad-container"
    plan = ArtifactSet((Artifact("host", "native", "link.json", content),))
    with Watch(len(content)), pytest.raises(UserError, match="link.json: not valid JSON"):
        LinkPlan.of(plan)


def test_names_over_one_another(tmp_path: Path) -> None:
    """A symbol table whose names are all of one long text, each from another byte on."""
    data = bytearray((HERE / "library-1.so").read_bytes())
    names, count = b"n" * 4000 + b"\0", 60_000
    symbols = b"".join(struct.pack("<IBBHQQ", i % 4000, 18, 0, 1, 0, 0) for i in range(count))
    (table,) = struct.unpack_from("<Q", data, 40)
    (sections,) = struct.unpack_from("<H", data, 60)
    for i in range(sections):
        section_header = table + 64 * i
        (kind,) = struct.unpack_from("<I", data, section_header + 4)
        if kind in (2, 11):  # both symbol tables, and their strings behind them
            (link,) = struct.unpack_from("<I", data, section_header + 40)
            struct.pack_into("<QQ", data, section_header + 24, len(data), len(symbols))
            struct.pack_into("<QQ", data, table + 64 * link + 24, len(data) + len(symbols), 4001)
    path = tmp_path / "names.so"
    path.write_bytes(data + symbols + names)
    with Watch(path.stat().st_size), pytest.raises(UserError) as caught:
        inspect_library(path)
    assert caught.value.code == "bad-library"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    NESTED.save(tmp_path / "set")
    (tmp_path / "set" / "manifest.json").unlink()
    os.mkfifo(tmp_path / "set" / "manifest.json")
    with pytest.raises(UserError, match="not a plain file"):
        ArtifactSet.load(tmp_path / "set")
