from __future__ import annotations

import itertools
import json
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet, FileContent
from tensorkiln.base.errors import UserError
from tensorkiln.script import from_source

NAMES = st.text("abcXYZ_019-\u00fc", min_size=1, max_size=8)
ARTIFACTS = st.builds(
    Artifact,
    codegen_id=st.sampled_from(["llvm", "c", "host"]),
    loader=st.sampled_from(["native", "metadata"]),
    file_name=st.lists(NAMES, min_size=1, max_size=2).map("/".join),
    content=st.binary(max_size=40),
    target_key=st.sampled_from(["", "fpga0"]),
)
SETS = st.lists(ARTIFACTS, max_size=6, unique_by=lambda a: a.name.lower()).filter(
    lambda artifacts: (
        not any(
            a.name.lower().startswith(b.name.lower() + "/")
            for a, b in itertools.permutations(artifacts, 2)
        )
    )
)


def small_set() -> ArtifactSet:
    return ArtifactSet(
        (
            Artifact("llvm", "native", "conv.o", b"\x7fELF", producer="conv1"),
            Artifact("host", "native", "entry.c", b"int main;"),
            Artifact("llvm", "native", "conv.o", b"other", "fpga0"),
            Artifact("weights", "data", "w.bin", memoryview(b"0123456789")[2:8]),
        )
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors])
@given(SETS)
def test_both_forms_give_the_set_back(artifacts_list: list[Artifact]) -> None:
    import tempfile

    artifacts = ArtifactSet(tuple(artifacts_list))
    again = ArtifactSet.from_bytes(artifacts.to_bytes())
    assert again == artifacts
    assert again.to_bytes() == artifacts.to_bytes()
    with tempfile.TemporaryDirectory() as folder:
        artifacts.save(Path(folder) / "set")
        loaded = ArtifactSet.load(Path(folder) / "set")
        assert loaded == artifacts
        assert loaded.content_hash == artifacts.content_hash
        loaded.save(Path(folder) / "again")
        for name in ("manifest.json", *(artifact.name for artifact in artifacts)):
            first, second = (Path(folder) / folder_name / name for folder_name in ("set", "again"))
            assert first.read_bytes() == second.read_bytes()


@settings(max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
@given(SETS.filter(bool), st.data())
def test_an_edited_folder_is_the_set_with_other_content(
    artifacts_list: list[Artifact], data: st.DataObject
) -> None:
    """Refused, by name, unless it is said to be edited; then nothing but the content differs."""
    import tempfile

    artifacts, changed = (
        ArtifactSet(tuple(artifacts_list)),
        data.draw(st.sampled_from(artifacts_list)),
    )
    content = data.draw(st.binary(max_size=40).filter(lambda b: b != bytes(changed.view)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "set"
        artifacts.save(folder)
        assert ArtifactSet.load(folder, edited=True) == artifacts
        (folder / changed.name).write_bytes(content)
        with pytest.raises(UserError, match="not the file that was saved") as caught:
            ArtifactSet.load(folder)
        assert repr(changed.name) in caught.value.message and "edited=True" in caught.value.hint
        edited = ArtifactSet.load(folder, edited=True)
        assert edited == artifacts.replace(changed.name, content)
        edited.save(Path(name) / "again")
        assert ArtifactSet.load(Path(name) / "again") == edited


def test_equality_and_hash_see_every_field_but_the_producer() -> None:
    base = Artifact("llvm", "native", "a.o", b"x", "k", "conv1")
    assert base == Artifact("llvm", "native", "a.o", memoryview(b"x"), "k", "pool7")
    assert hash(base) == hash(Artifact("llvm", "native", "a.o", b"x", "k"))
    variants = [
        Artifact("c", "native", "a.o", b"x", "k"),
        Artifact("llvm", "other", "a.o", b"x", "k"),
        Artifact("llvm", "native", "b.o", b"x", "k"),
        Artifact("llvm", "native", "a.o", b"y", "k"),
        Artifact("llvm", "native", "a.o", b"x"),
    ]
    hashes = {ArtifactSet((artifact,)).content_hash for artifact in [base, *variants]}
    assert all(artifact != base for artifact in variants)
    assert len(hashes) == len(variants) + 1
    assert base != "llvm/k/a.o"


def test_order_counts() -> None:
    artifacts = small_set()
    turned = ArtifactSet(artifacts.artifacts[::-1])
    assert turned != artifacts
    assert turned.content_hash != artifacts.content_hash


def test_questions() -> None:
    artifacts = small_set()
    assert len(artifacts) == 4
    assert artifacts.nbytes == 4 + 9 + 5 + 6
    assert [a.name for a in artifacts] == [
        "llvm/conv.o",
        "host/entry.c",
        "llvm/fpga0/conv.o",
        "weights/w.bin",
    ]
    assert artifacts["entry.c"].text() == "int main;"
    assert artifacts["llvm/conv.o"].view == b"\x7fELF"
    assert len(artifacts.add([Artifact("x", "y", "z", b"")])) == 5


def test_unknown_and_ambiguous_names() -> None:
    with pytest.raises(UserError, match="no artifact 'host/entri.c'") as caught:
        small_set()["host/entri.c"]
    assert "'host/entry.c'" in caught.value.hint
    with pytest.raises(UserError, match="no artifact 'conv.o'"):
        small_set()["conv.o"]


@pytest.mark.parametrize("second", ["conv.o", "CONV.o"])
def test_clash_names_both_producers(second: str) -> None:
    first = Artifact("llvm", "native", "conv.o", b"1", producer="layer1/Conv")
    clashing_artifact = Artifact("llvm", "native", second, b"2", producer="layer2/Conv")
    with pytest.raises(UserError, match="'layer1/Conv'.*'layer2/Conv'") as caught:
        ArtifactSet((first, clashing_artifact))
    assert caught.value.code == "name-clash"
    assert "llvm" in caught.value.where
    ArtifactSet((first, Artifact("c", "native", second, b"2")))


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../b", "/abs", "a\\b", "a:b", "a\nb", "a/", "a. ", "x" * 300]
)
def test_names_that_are_no_plain_paths(name: str) -> None:
    with pytest.raises(UserError, match="file_name .* is not a plain relative path"):
        Artifact("llvm", "native", name, b"")
    with pytest.raises(UserError, match="codegen_id"):
        Artifact(name + "/y", "native", "x", b"")


def test_not_text() -> None:
    with pytest.raises(UserError, match="llvm/a.o is not text"):
        Artifact("llvm", "native", "a.o", b"\xff").text()


def test_views_of_arrays_are_not_copied(tmp_path: Path) -> None:
    weights = np.arange(1 << 20, dtype=np.float32)
    artifact = Artifact("weights", "data", "w.bin", memoryview(weights))
    assert artifact.size == weights.nbytes
    tracemalloc.start()
    artifacts = ArtifactSet((artifact,))
    artifacts.save(tmp_path / "set")
    digest = artifacts.content_hash
    chunks = sum(len(chunk) for chunk in artifacts.to_chunks())
    loaded = ArtifactSet.load(tmp_path / "set")
    assert loaded.content_hash == digest
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert chunks > weights.nbytes
    assert peak < weights.nbytes // 4
    assert np.array_equal(np.frombuffer(loaded["w.bin"].view, np.float32), weights)
    with pytest.raises(UserError, match="not contiguous"):
        Artifact("weights", "data", "w.bin", memoryview(weights)[::2])


def test_file_content_is_lazy_and_picklable(tmp_path: Path) -> None:
    file = tmp_path / "w.bin"
    file.write_bytes(b"0123456789")
    content = FileContent(file, offset=2, size=5)
    assert len(content) == 5
    assert "view" not in vars(content)
    assert content.view == b"23456"
    assert pickle.loads(pickle.dumps(content)).view == b"23456"
    assert FileContent(file, 10).view == b""
    for offset, size in ((0, 11), (11, None), (-1, 2), (4, -1)):
        with pytest.raises(UserError, match="outside the file"):
            FileContent(file, offset, size)
    with pytest.raises(UserError, match="No such file"):
        FileContent(tmp_path / "none")


def test_save_does_not_replace_a_folder_of_somebody(tmp_path: Path) -> None:
    (tmp_path / "diary.txt").write_text("dear")
    with pytest.raises(UserError, match="'diary.txt' in it was not written by a former run"):
        small_set().save(tmp_path)
    assert (tmp_path / "diary.txt").read_text() == "dear"
    small_set().save(tmp_path / "set")
    ArtifactSet().save(tmp_path / "set")
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["manifest.json"]


def change_manifest(folder: Path, **changes: Any) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["artifacts"][0].update(changes)
    del manifest["sha256"]  # which whoever changes it on purpose would leave out as well
    file.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"file_name": "../../secret"}, "unsafe-path"),
        ({"file_name": "entry.c"}, "missing-file"),
        ({"size": 3}, "bad-container"),
        ({"sha256": "0" * 64}, "bad-container"),
        ({"loader": 5}, "bad-container"),
        ({"codegen_id": None}, "bad-container"),
    ],
)
def test_load_refuses_a_changed_manifest(tmp_path: Path, changes: Any, code: str) -> None:
    small_set().save(tmp_path / "set")
    change_manifest(tmp_path / "set", **changes)
    with pytest.raises(UserError) as caught:
        ArtifactSet.load(tmp_path / "set")
    assert caught.value.code == code


def test_load_refuses_changed_content_and_odd_manifests(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    small_set().save(folder)
    (folder / "llvm" / "conv.o").write_bytes(b"\x7fELG")
    with pytest.raises(UserError, match="not the file that was saved"):
        ArtifactSet.load(folder)
    small_set().save(tmp_path / "other")
    manifest = tmp_path / "other" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"target_key": ""', '"target_key": "x"', 1))
    with pytest.raises(UserError, match="it was changed since it was saved"):
        ArtifactSet.load(tmp_path / "other")
    manifest = folder / "manifest.json"
    for text in ("{", "[]", '{"version": 2}', '{"version": 1}', '{"version":1,"artifacts":[1]}'):
        manifest.write_text(text)
        with pytest.raises(UserError) as caught:
            ArtifactSet.load(folder)
        assert caught.value.code == "bad-container"
    manifest.unlink()
    with pytest.raises(UserError, match="no artifacts here"):
        ArtifactSet.load(folder)


def test_every_truncation_and_every_flipped_byte_is_refused() -> None:
    data = small_set().to_bytes()
    for size in range(len(data)):
        with pytest.raises(UserError) as caught:
            ArtifactSet.from_bytes(data[:size])
        assert caught.value.code == "bad-container"
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x40
        if position in (10, 11):  # a later minor version: it may say more, and is read
            assert ArtifactSet.from_bytes(bytes(damaged)) == small_set()
            continue
        with pytest.raises(UserError) as caught:
            ArtifactSet.from_bytes(bytes(damaged))
        assert caught.value.code in ("bad-container", "container-version")
    with pytest.raises(UserError, match="trailing bytes"):
        ArtifactSet.from_bytes(data + b"\0")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two compiles of one form, saved."""
    folder = tmp_path_factory.mktemp("saved")
    for name in ("relu", "exp"):
        text = f"""
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    y: R.Tensor((4,), "float32") = R.{name}(x)
    return y
"""
        tk.compile(from_source(text), target="llvm").artifacts.save(folder / name)
    return folder


def _without(folder: Path, ending: str) -> None:
    parsed = json.loads((folder / "manifest.json").read_text())
    parsed["artifacts"] = [r for r in parsed["artifacts"] if not r["file_name"].endswith(ending)]
    (folder / "manifest.json").write_text(json.dumps(parsed))


def _of_another_machine(folder: Path) -> None:
    (kernel,) = folder.rglob("*.o")
    data = bytearray(kernel.read_bytes())
    data[18] = 183 if data[18] == 62 else 62  # e_machine: AArch64, or x86-64
    kernel.write_bytes(data)


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no kernels": (lambda f: _without(f, ".o"), r"no linked object defines relu \(needed by host"),
    "no entry": (lambda f: _without(f, "entry.c"), "which no linked object defines"),
    "another machine": (_of_another_machine, r"relu.o is for \w+, the library for"),
    "a sibling's entry": (
        lambda f: (f / "host/entry.c").write_bytes((f / "../exp/host/entry.c").read_bytes()),
        r"no linked object defines exp \(needed by host/entry.c\)",  # not that of libm
    ),
    "C that is none": (lambda f: (f / "host/entry.c").write_text("int x = ;"), "entry.c:1"),
    "an empty object": (lambda f: next(f.rglob("*.o")).write_bytes(b""), "the file is empty"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_sets_that_were_edited_by_hand(saved: Path, tmp_path: Path, edit: str) -> None:
    """What does not fit is the user's mistake, by whatever tool it is found."""
    shutil.copytree(saved, tmp_path / "sets")
    folder = tmp_path / "sets" / "relu"
    change, words = EDITS[edit]
    change(folder)
    artifacts = ArtifactSet.load(folder, edited=True)
    for use in (
        lambda: tk.load_artifacts(artifacts),
        lambda: tk.export_library(artifacts, tmp_path / "net.so"),
    ):
        with pytest.raises(UserError, match=words):
            use()
