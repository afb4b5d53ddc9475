"""Every JSON that is read of a set or a library: whatever it says, a typed error or no harm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact
from tensorkiln.artifact.metadata import Metadata, constants_from
from tensorkiln.artifact.weights_check import hash_of_pieces, verify_library
from tensorkiln.base.errors import TensorkilnError, UserError
from tensorkiln.inspectors.subject import open_subject
from tensorkiln.kernels.case import rand
from tensorkiln.link.artifacts import LinkPlan
from tests.artifact.damage_files import without_digest
from tests.transform.graphs import graph

W = rand(40, 24)
X = np.linspace(-1, 1, 80, dtype=np.float32).reshape(2, 40)


@pytest.fixture(scope="module")
def executable() -> tk.Executable:
    return tk.compile(graph(lambda g, x: g.relu(g.matmul(x, W)), x=(2, 40)))


MISSING = object()


def values(place: Path) -> dict[str, object]:
    """What a field may hold instead."""
    return {
        "missing": MISSING,
        "null": None,
        "true": True,
        "number": 5,
        "negative": -1,
        "huge": 1 << 70,
        "real": 1.5,
        "list": [],
        "list of numbers": [1],
        "object": {},
        "list of lists": [[]],
        "empty": "",
        "absolute": str(place / "bad"),
        "above": f"../../{place.name}/bad",
        "option": f"-o{place}/bad",
        "file of options": "@x",
        "linker": f"-Wl,-o,{place}/bad",
        "map": f"-Wl,-Map={place}/bad",
        "zero": "x\0y",
        "newline": "x;\n};",
        "half": "\ud800",
        "long": "x" * 1200,
        "dot": ".",
        "dots": "..",
        "quote": 'x";',
        "options": [f"-Wl,-o,{place}/bad"],
        "more": ["-o", f"{place}/bad"],
    }


def fields(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The places in a JSON value, of lists the first item."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from fields(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield (*path, 0)
        yield from fields(value[0], (*path, 0))


def with_value(parsed: Any, path: tuple[object, ...], value: object) -> bytes:
    changed = json.loads(json.dumps(parsed))
    inner = changed
    for step in path[:-1]:
        inner = inner[step]
    if value is MISSING:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(changed).encode()


def twice(parsed: dict[str, object]) -> bytes:
    """Each name twice."""
    body = json.dumps(parsed)[1:-1]
    return f"{{{body}, {body}}}".encode()


def tree(folder: Path) -> set[str]:
    return {str(p) for p in folder.rglob("*")}


def harmless(
    read: Callable[[], object],
    place: Path,
    label: object,
    kind: type[TensorkilnError] = UserError,
) -> bool:
    """Whether it was read. Nothing is left in `place`, and what is raised is typed."""
    before = tree(place)
    try:
        read()
        return True
    except TensorkilnError as error:
        assert isinstance(error, kind), (label, error)
        assert error.message and len(str(error)) < 5000, (label, error)
        return False
    finally:
        assert tree(place) == before, label


def test_the_plan_of_the_link(executable: tk.Executable, tmp_path: Path) -> None:
    """What is taken is linked, too."""
    parsed = {**json.loads(bytes(executable.artifacts["link.json"].view)), "compact": False}
    artifacts_by_edit: dict[object, ArtifactsOf] = {}
    for path in [*fields(parsed), ("libraries", "+"), ("exports", "+")]:
        for name, value in values(tmp_path).items():
            if path[-1] == "+":
                data = json.dumps({**parsed, str(path[0]): [value if value is not MISSING else 0]})
                content = data.encode()
            else:
                content = with_value(parsed, path, value)
            artifacts = executable.artifacts.replace("host/link.json", content)
            if harmless(lambda: LinkPlan.of(artifacts), tmp_path, (path, name)):  # noqa: B023
                artifacts_by_edit[path, name] = artifacts
    assert not harmless(
        lambda: LinkPlan.of(executable.artifacts.replace("host/link.json", twice(parsed))),
        tmp_path,
        "twice",
    )
    assert 5 < len(artifacts_by_edit) < 40, list(artifacts_by_edit)
    for edit, artifacts in artifacts_by_edit.items():
        (tmp_path / "out").mkdir(exist_ok=True)
        link = lambda: tk.load_artifacts(artifacts).close()  # noqa: E731, B023
        harmless(link, tmp_path, edit, TensorkilnError)  # what is not there, the tool says
    assert {p.name for p in tmp_path.rglob("*")} == {"out"}


ArtifactsOf = tk.ArtifactSet


def test_the_manifest(executable: tk.Executable, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    executable.artifacts.save(folder)
    (tmp_path / "bad").write_text("of somebody")
    parsed = json.loads((folder / "manifest.json").read_text())
    parsed["imports"] = [[["a", ""], ["b", ""]]]
    del parsed["sha256"]
    for edited in (False, True):
        for path in fields(parsed):
            for name, value in values(tmp_path).items():
                (folder / "manifest.json").write_bytes(with_value(parsed, path, value))
                read = lambda: tk.ArtifactSet.load(folder, edited=edited)  # noqa: E731, B023
                harmless(read, tmp_path, (path, name))
                harmless(lambda: open_subject(folder), tmp_path, (path, name))
    parsed["imports"] = []
    (folder / "manifest.json").write_bytes(twice(parsed))
    assert not harmless(lambda: tk.ArtifactSet.load(folder), tmp_path, "twice")


@pytest.mark.parametrize("part", ["metadata", "weights"])
def test_what_a_library_says(part: str, executable: tk.Executable, tmp_path: Path) -> None:
    library = executable.export_library(tmp_path / "net.so")
    metadata = tk.runtime.read_metadata(library)
    parsed: Any = metadata if part == "metadata" else {"rows": metadata["constants"]}
    for path in fields(parsed):
        for name, value in values(tmp_path).items():
            data = with_value(parsed, path, value)
            if part == "metadata":
                harmless(lambda: Metadata.from_bytes(data), tmp_path, (path, name))  # noqa: B023
            else:
                rows = json.dumps(json.loads(data).get("rows")).encode()
                harmless(lambda: constants_from(rows, "x"), tmp_path, (path, name))  # noqa: B023
    if part == "metadata":
        assert not harmless(lambda: Metadata.from_bytes(twice(parsed)), tmp_path, "twice")


SOURCES = ["-o..c", "@x.c", "a/b.c", "runtime.c", "kernel_0000.c", "merged.c", "weights.c"]


@pytest.mark.parametrize("name", SOURCES)
def test_names_of_sources(name: str, executable: tk.Executable, tmp_path: Path) -> None:
    """They are arguments of a compiler, and files beside those of the link."""
    more_artifacts = executable.artifacts.add([Artifact("host", "native", name, b"int extra;")])
    with pytest.raises(UserError) as caught:
        tk.export_library(more_artifacts, tmp_path / "net.so")
    assert caught.value.code == "bad-artifact" and name in caught.value.message
    assert not list(tmp_path.iterdir())


def test_two_sources_of_one_name(executable: tk.Executable, tmp_path: Path) -> None:
    more_artifacts = executable.artifacts.add(
        [Artifact("a", "native", "b_c.c", b"int i;"), Artifact("a_b", "native", "c.c", b"int j;")]
    )
    with pytest.raises(UserError, match="a/b_c.c and a_b/c.c are compiled under one name"):
        tk.export_library(more_artifacts, tmp_path / "net.so")


@pytest.mark.parametrize("suffix", [".so", ".a", ".o"])
@pytest.mark.parametrize("size", [0, 64, -64])
def test_weights_of_another_size(
    suffix: str, size: int, executable: tk.Executable, tmp_path: Path
) -> None:
    executable.artifacts.save(tmp_path / "set")
    file = tmp_path / "set" / "host" / "weights.bin"
    data = file.read_bytes()
    file.write_bytes({0: b"", 64: data + bytes(64), -64: data[:-64]}[size])
    edited = tk.ArtifactSet.load(tmp_path / "set", edited=True)
    with pytest.raises(UserError, match="bytes of weights, and the code expects") as caught:
        tk.export_library(edited, tmp_path / f"net{suffix}")
    assert caught.value.code == "bad-artifact"
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_what_was_checked_is_what_is_used(tmp_path: Path) -> None:
    """A file that is changed between the look at its hash and the use."""
    small, large = b"small", os.urandom(3 << 20)
    saved = tk.ArtifactSet(
        (Artifact("c", "text", "s", small), Artifact("c", "native", "weights.bin", large))
    )
    saved.save(tmp_path / "set")
    loaded = tk.ArtifactSet.load(tmp_path / "set")
    for name in ("s", "weights.bin"):
        path = tmp_path / "set" / "c" / name
        info = path.stat()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert loaded["s"].view == small
    for use in (lambda a: a.view, lambda a: list(a.chunks()), lambda a: a.sha256):
        with pytest.raises(UserError, match="was changed since it was checked") as caught:
            use(loaded["weights.bin"])
        assert caught.value.code == "changed-file"
    with pytest.raises(UserError, match="was changed since"):
        loaded.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


# -- weights ----------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("place", ["embedded", "beside"])
def test_a_changed_byte(place: str, executable: tk.Executable, tmp_path: Path) -> None:
    path = executable.export_library(tmp_path / "net.so", weights=place)
    data = path if place == "embedded" else path.with_suffix(".safetensors")
    size = executable.artifacts["weights.bin"].size
    assert (
        verify_library(path) == (verification := verify_library(path)) and verification.size == size
    )
    tk.runtime.load_module(path, verify=True).close()
    kiln = ["kiln", "inspect", str(path), "--verify"]
    import sys

    command = [sys.executable, "-m", "tensorkiln.cli", *kiln[1:]]
    assert "match their hash" in subprocess.run(command, capture_output=True, text=True).stdout
    raw = data.read_bytes()
    start = raw.find(np.ascontiguousarray(executable.artifacts["weights.bin"].view)[:64].tobytes())
    for offset in (0, size // 2, size - 1):
        flip(data, start + offset)
        tk.runtime.load_module(path).close()  # not looked at
        with pytest.raises(UserError, match="hash") as caught:
            tk.runtime.load_module(path, verify=True)
        assert caught.value.code == "bad-weights" and str(data) in caught.value.message
        script = (
            "import sys, tensorkiln as tk\nfrom tensorkiln.base.errors import UserError\n"
            "try: tk.runtime.load_module(sys.argv[1])\n"
            "except UserError as error: print(error.code)\n"
        )
        if offset == 0:
            process = subprocess.run(command, capture_output=True, text=True)
            assert process.returncode == 2 and "hash" in process.stderr
            environment = {**os.environ, "KILN_VERIFY_WEIGHTS": "1"}  # what hosts in C ask by
            run = [sys.executable, "-c", script, str(path)]
            process = subprocess.run(run, capture_output=True, text=True, env=environment)
            assert process.stdout == "bad-weights\n", process.stderr
        flip(data, start + offset)
    tk.runtime.load_module(path, verify=True).close()


def test_a_library_without_a_hash(executable: tk.Executable, tmp_path: Path) -> None:
    """Of an older version."""
    path = executable.export_library(tmp_path / "net.so")
    size = executable.artifacts["weights.bin"].size
    start = path.read_bytes().find(bytes(executable.artifacts["weights.bin"].view))
    with path.open("rb") as stream:
        digest = hash_of_pieces(stream.fileno(), start, size)
    assert path.read_bytes().count(digest) == 1
    path.write_bytes(without_digest(path.read_bytes()).replace(digest, bytes(32)))
    with pytest.raises(UserError, match="has no hash of its weights") as caught:
        tk.runtime.load_module(path, verify=True)
    assert caught.value.code == "no-hash" and "export it again" in caught.value.hint
    golden = Path(__file__).parents[1] / "golden_artifacts"
    verify_library(golden / "beside-1.so")
    assert verify_library(golden / "library-1.so").size == 0
