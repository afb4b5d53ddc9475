"""Sources of dependencies in an archive: their files, their hashes, and what is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from release.archives import unpack
from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.dependency import DEPENDENCIES, dependencies_of
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tests.external.test_dependencies import ONE, external, network


@pytest.fixture(scope="module")
def executable() -> tk.Executable:
    other_dependency = ExternalDependency("other", "https://example.org/other", sha256=OTHER_HASH)
    return tk.compile(network(), externals=[external(dependencies=(ONE, other_dependency))])


OTHER = b"a tar, as far as anybody knows"
OTHER_HASH = hashlib.sha256(OTHER).hexdigest()
FILES = {"src/one.c": b"int one;\n", "README": b"", "a b/é.h": b"/* */", "Z": b"Z"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "one-1.0"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("not of the source")
    return folder


def unpacked(path: Path) -> ArtifactSet:
    folder = path.with_suffix("")
    with tarfile.open(path) as archive:
        unpack(archive, folder)
    return ArtifactSet.load(folder)


def test_a_folder_is_bundled_with_its_hash(
    executable: tk.Executable, source: Path, tmp_path: Path
) -> None:
    path = executable.export_library(tmp_path / "net.tar", bundle={"one": source})
    artifact_set = unpacked(path)
    names = {a.name for a in artifact_set.plain if a.codegen_id == "external"}
    assert names == {f"external/one/{name}" for name in FILES}
    for name, content in FILES.items():
        assert bytes(artifact_set[f"external/one/{name}"].view) == content
    other_row, bundled_row = sorted(json.loads(artifact_set[DEPENDENCIES].text()), key=len)
    assert "bundled" not in other_row and bundled_row["bundled"]["path"] == "external/one"
    # As anybody computes it, without us.
    if shutil.which("sha256sum"):
        command = "find * -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
        process = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path / "net" / "external" / "one",
            capture_output=True,
            check=True,
        )
        assert process.stdout.decode().split()[0] == bundled_row["bundled"]["sha256"]
    # What is in the archive still links, loads and says what it needs.
    assert dependencies_of(artifact_set) == executable.external_dependencies
    run = tk.runtime.Executor(tk.load_artifacts(artifact_set), tk.cpu())["main"]
    x = np.arange(4, dtype=np.float32)
    np.testing.assert_allclose(run(x).numpy(), -np.tanh(x + 1), rtol=1e-5)


def test_a_file_is_bundled_if_its_hash_is_right(executable: tk.Executable, tmp_path: Path) -> None:
    good, bad = tmp_path / "other.tar", tmp_path / "bad.tar"
    good.write_bytes(OTHER)
    bad.write_bytes(OTHER + b" else")
    artifact_set = unpacked(executable.export_library(tmp_path / "net.tar", bundle={"other": good}))
    assert bytes(artifact_set["external/other/other.tar"].view) == OTHER
    rows = {row["short_name"]: row for row in json.loads(artifact_set[DEPENDENCIES].text())}
    assert rows["other"]["bundled"] == {"path": "external/other/other.tar", "sha256": OTHER_HASH}
    with pytest.raises(UserError, match=f"dependency 'other' is {OTHER_HASH}") as caught:
        executable.export_library(tmp_path / "wrong.tar", bundle={"other": bad})
    assert caught.value.code == "wrong-hash" and not (tmp_path / "wrong.tar").exists()


def test_equal_sources_give_equal_bytes(
    executable: tk.Executable, source: Path, tmp_path: Path
) -> None:
    again = shutil.copytree(source, tmp_path / "copy")
    first = executable.export_library(tmp_path / "1.tar", bundle={"one": source})
    second = executable.export_library(tmp_path / "2.tar", bundle={"one": str(again)})
    assert first.read_bytes() == second.read_bytes()
    (again / "Z").write_bytes(b"z")
    third = executable.export_library(tmp_path / "3.tar", bundle={"one": again})
    assert third.read_bytes() != first.read_bytes()


@pytest.mark.parametrize(
    ("bundle", "code", "says"),
    [
        ({"on": "."}, "unknown-dependency", "did you mean 'one'?"),
        ({"xyzzy": "."}, "unknown-dependency", "there are one, other"),
        (["one"], "bad-bundle", "expected a path by name"),
        ("one", "bad-bundle", "expected a path by name"),
        ({"one": "no/such/place"}, "missing-file", "No such file"),
        ({"one": "empty"}, "bad-bundle", "has no files"),
        ({"one": "linked"}, "bad-bundle", "neither a plain file nor a folder"),
        ({"one": 3}, "bad-path", "3"),
        ({"other": "empty"}, "wrong-hash", "is a file with SHA-256"),
    ],
)
def test_what_is_refused(
    executable: tk.Executable,
    bundle: Any,
    code: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "x").symlink_to("/etc/passwd")
    with pytest.raises(UserError) as caught:
        executable.export_library("net.tar", bundle=bundle)
    assert caught.value.code == code and says in str(caught.value)
    assert not (tmp_path / "net.tar").exists()


@pytest.mark.parametrize("suffix", [".so", ".a", ".o"])
def test_linked_code_has_no_place_for_sources(
    executable: tk.Executable, source: Path, suffix: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="has no place for sources") as caught:
        executable.export_library(tmp_path / f"net{suffix}", bundle={"one": source})
    assert "'net.tar'" in caught.value.hint


def test_a_model_without_dependencies_has_none_to_bundle(source: Path, tmp_path: Path) -> None:
    exe = tk.compile(network())
    with pytest.raises(UserError, match="nothing here needs a dependency 'one'") as caught:
        exe.export_library(tmp_path / "net.tar", bundle={"one": source})
    assert "there are none" in caught.value.hint
