"""Archives read back: the artifacts of a compile, and what archives of earlier versions say."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.mlf.metadata import LibraryMetadata
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.base.record import JsonRecord, keys_of
from tensorkiln.cli import main
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.kernels.case import rand
from tests.mlf.earlier import ARCHIVES, write
from tests.mlf.test_programs import CASES, numbers
from tests.transform.graphs import graph


@pytest.fixture(scope="module")
def cnn() -> tk.Executable:
    return tk.compile(CASES["cnn of any batch"][0])


def test_the_artifacts_come_back(cnn: tk.Executable, tmp_path: Path) -> None:
    """From a tar file, from the folder it unpacks to, and among other models; they run and link."""
    x = numbers(2, 3, 14, 14)
    expected = np.asarray(cnn(x)).tobytes()
    other_model = tk.compile(graph(lambda g, x: g.relu(x), x=(4,)))
    first_archive = cnn.export_model_library_format(tmp_path / "one.tar")
    two = tk.export_model_library_format({"cnn": cnn, "other": other_model}, tmp_path / "two.tar")
    (tmp_path / "folder").mkdir()
    subprocess.run(["tar", "-xf", first_archive, "-C", tmp_path / "folder"], check=True)
    (tmp_path / "folder/build.log").write_text("of a build")
    for path, name in (
        (first_archive, None),
        (first_archive, "one"),
        (tmp_path / "folder", None),
        (two, "cnn"),
    ):
        artifacts = tk.load_model_library_format(path, name)
        assert artifacts == cnn.artifacts
    assert tk.load_model_library_format(two, "other") == other_model.artifacts
    library = tk.load_artifacts(artifacts)
    assert np.asarray(library.create_executor()["main"](x)).tobytes() == expected
    linked = tk.export_library(artifacts, tmp_path / "net.so")
    run = tk.runtime.load_module(linked).create_executor()["main"]
    assert np.asarray(run(x)).tobytes() == expected


def test_a_model_that_is_not_there(cnn: tk.Executable, tmp_path: Path) -> None:
    two = tk.export_model_library_format({"cnn": cnn, "vad": cnn}, tmp_path / "two.tar")
    for name, words in ((None, "name one of its models: cnn, vad"), ("cnnn", "no model 'cnnn'")):
        with pytest.raises(UserError, match=words) as caught:
            tk.load_model_library_format(two, name)
        assert caught.value.code == "unknown-model"
    assert "'cnn'" in caught.value.hint


def test_large_constants_stay_on_disk(tmp_path: Path) -> None:
    exe = tk.compile(graph(lambda g, x: g.matmul(x, rand(600, 600)), x=(1, 600)))
    path = exe.export_model_library_format(tmp_path / "big.tar")
    assert tk.load_model_library_format(path) == exe.artifacts
    artifacts = tk.load_model_library_format(path)
    data = path.read_bytes()
    offset = data.rindex(bytes(exe.artifacts["weights.bin"].view[-512:]))
    path.write_bytes(data[:offset] + b"?" + data[offset + 1 :])
    with pytest.raises(UserError, match="was changed"):
        artifacts["weights.bin"].view  # noqa: B018
    with pytest.raises(UserError, match="is not the file that was saved"):
        tk.load_model_library_format(path)


# -- versions 5 to 7 --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHIVES)
def test_earlier_versions_say_what_they_say(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata, other_members = ARCHIVES[name]
    path = write(tmp_path / "tvm.tar", metadata, other_members)
    library = open_model_library(path)
    assert library.version == int(name[0]) and library.metadata is None
    earlier = library.earlier
    assert earlier is not None
    rows = metadata.get("modules", {metadata.get("model_name"): metadata})
    assert [m.name for m in earlier.models] == [*rows]
    for model, row in zip(earlier.models, rows.values(), strict=True):
        assert model.exported == "2022-07-01 12:30:00Z" and len(model.targets) == 1
        assert model.style == row["style"] and [*model.executors] == row["executors"]
        if model.style == "full-model":
            main_row, operator = model.functions
            assert (main_row.name, main_row.workspace_size_bytes) == ("main", 1312)
            assert (main_row.constants_size_bytes, main_row.io_size_bytes) == (640, 80)
            assert (operator.name[-6:], operator.workspace_size_bytes) == ("conv2d", 432)
        else:
            assert [(b.function, b.shape, b.size_bytes) for b in model.buffers] == [
                ("tvmgen_add", (1, 10), 40)
            ] * 2
        named = "inputs" in str(row)
        assert [name for f in model.functions for name in f.inputs] == (["x"] if named else [])
        assert (model.storages is not None) == ("sids" in row["memory"])
        assert [d.url_type for d in model.dependencies] == (
            ["path"] if "external_dependencies" in row else []
        )
    assert main_of("inspect", path) == 0
    output_text = capsys.readouterr().out
    assert (
        f"version {name[0]}" in output_text
        and "c -keys=cpu" in output_text
        and "RAM" in output_text
    )
    with pytest.raises(UnsupportedError, match=f"version {name[0]} .* inspected, not loaded"):
        tk.load_model_library_format(path)


def main_of(*arguments: object) -> int:
    return main([*map(str, arguments)])


@pytest.mark.parametrize("version", [0, 4, 9, 1000])
def test_other_versions(version: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.tar", {"version": version})
    with pytest.raises(UnsupportedError, match=f"version {version} .*reads 5 to 8"):
        tk.load_model_library_format(path)


def test_every_record_survives_json(cnn: tk.Executable, tmp_path: Path) -> None:
    library = open_model_library(cnn.export_model_library_format(tmp_path / "m.tar"))
    assert isinstance(library.metadata, LibraryMetadata)
    for record in (library.metadata, library.model(), *library.model().functions.values()):
        assert isinstance(record, JsonRecord)
        assert [*record.to_json()] == [f.name for f, _ in keys_of(type(record))]


# -- kiln inspect -----------------------------------------------------------------------------


def test_the_report(cnn: tk.Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tk.export_model_library_format({"cnn": cnn, "vad": cnn}, tmp_path / "two.tar")
    assert main_of("inspect", path) == 0
    output_text = capsys.readouterr().out
    for words in (
        "Model Library Format, version 8",
        "model cnn\n",
        "model vad\n",
        "function main: kiln_vad_run, ",
        "flash  constants",
        "RAM    workspace",
        "stack  local arrays of kernels",
        "N * 3 * 14 * 14 * 4 bytes",
        "Apache-2.0",
    ):
        assert words in output_text, (words, output_text)
    assert main_of("inspect", path, "--verify") == 0
    assert "match their hashes" in capsys.readouterr().out
    assert main_of("inspect", path, "--json") == 0
    assert '"kind": "model"' in capsys.readouterr().out


def test_two_versions_of_a_dependency_are_refused(tmp_path: Path) -> None:
    """In one model of an archive, in two of them, and where such an archive is made."""
    first_dependency = ExternalDependency("halve", "https://x.y/halve", "git", "1.2", "MIT")
    two = replace(first_dependency, version_spec="1.3")
    models = {}
    for name, dependency in (("a", first_dependency), ("b", two)):
        external = replace(C_REFERENCE, dependencies=(dependency,))
        mod = graph(lambda g, x: g.relu(x), x=(2, 8))
        models[name] = tk.compile(mod, "c", externals=[external])
    with pytest.raises(UserError, match="model 'a' and model 'b' ask for different") as caught:
        tk.export_model_library_format(models, tmp_path / "both.tar")
    assert caught.value.code == "dependency-clash"
    folder = tk.export_model_library_format({"a": models["a"]}, tmp_path / "net")
    file = folder / "metadata.json"
    parsed = json.loads(file.read_text())
    rows = parsed["modules"]["a"]["external_dependencies"]
    rows.append({**rows[0], "version_spec": "1.3"})
    file.write_text(json.dumps(parsed))
    with pytest.raises(UserError, match="version_spec '1.2' against '1.3'") as caught:
        open_model_library(folder)
    assert caught.value.code == "dependency-clash" and "metadata.json" in caught.value.where
