"""Manifests: what they say, and every kind of wrong one, with the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.scale.manifest import read_manifest
from tensorkiln.scale.options import AXES, KEYS
from tests.scale.networks import write_networks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "compile-many.md"


@pytest.fixture
def manifest_folder(tmp_path: Path) -> Path:
    write_networks(tmp_path)
    (tmp_path / "pi.json").write_text('{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    return tmp_path


def names(folder: Path, text: str) -> list[str]:
    (folder / "given.toml").write_text(text)
    return [row.name for row in read_manifest(folder / "given.toml").rows]


BASE = 'models.net = "nets/mlp.onnx"\ntargets.old = "llvm"\n'


def test_models(manifest_folder: Path) -> None:
    text = 'models = { a = "nets/mlp.onnx", "b-1" = { path = "~/x.onnx" }, n = "nets/*.onnx" }'
    rows = read_manifest(
        {"models": {"n": f"{manifest_folder}/nets/*.onnx"}, "targets": {"t": "llvm"}}
    ).rows
    assert [row.model.name for row in rows] == ["conv", "elementwise", "mlp", "softmax"]
    (manifest_folder / "given.toml").write_text(f'{text}\ntargets.t = "llvm"')
    rows = read_manifest(manifest_folder / "given.toml").rows
    assert [row.model.name for row in rows][:2] == ["a", "b-1"] and len(rows) == 6
    assert rows[0].model.path == str(manifest_folder / "nets/mlp.onnx"), "relative to the manifest"
    assert rows[1].model.path == str(Path("~/x.onnx").expanduser())
    assert rows[1].options.name == "b_1"
    url = {"models": {"m": "s3://bucket/a.onnx"}, "targets": {"t": "llvm"}}
    assert read_manifest(url).rows[0].model.path == "s3://bucket/a.onnx"
    local = {"models": {"m": (manifest_folder / "a b.onnx").as_uri()}, "targets": {"t": "llvm"}}
    assert read_manifest(local).rows[0].model.path == str(manifest_folder / "a b.onnx")


def test_targets(manifest_folder: Path) -> None:
    text = """
models.net = "nets/mlp.onnx"
[targets]
tag = "raspberrypi/4b"
file = "pi.json"
table = { target = { kind = "llvm", mcpu = "x86-64-v3" } }
json = '{"kind":"c"}'
here = "native"
"""
    (manifest_folder / "given.toml").write_text(text)
    rows = {
        row.target_name: row.target for row in read_manifest(manifest_folder / "given.toml").rows
    }
    assert rows["tag"].mcpu == "cortex-a72" and rows["table"].mcpu == "x86-64-v3"
    assert (rows["file"].arch, rows["json"].kind) == ("aarch64", "c")
    assert rows["here"].kind == "llvm", "of this machine, whatever those of the workers are"


def test_names_say_what_is_not_the_default(manifest_folder: Path) -> None:
    text = """
models.net = "nets/mlp.onnx"
targets.v3 = { target = '{"kind":"llvm","mcpu":"x86-64-v3"}' }
[defaults]
precision = ["float32", "bfloat16", "float16"]
optimize = ["speed", "size"]
format = ["so", "a", "o", "tar", "mlf"]
"""
    row_names = names(manifest_folder, text)
    assert len(row_names) == len(set(row_names)) == 30
    assert row_names[:5] == [f"v3/net{s}" for s in (".so", ".a", ".o", ".tar", ".mlf.tar")]
    assert "v3/net-bfloat16-size.mlf.tar" in row_names


def test_what_is_said_last_holds(manifest_folder: Path) -> None:
    text = """
[models]
a = { path = "nets/mlp.onnx", freeze = { batch = 2, seq = 8 }, debug = true, shapes.x = ["n", 3] }
b = "nets/conv.onnx"
[targets]
x = { target = "llvm", freeze = { batch = 3 }, allow_licenses = ["MIT"] }
y = "llvm"
[defaults]
freeze = { batch = 1 }
shapes = { x = [], y = [0, "n"] }
debug = false
max_workspace = "256K"
[[override]]
target = "x"
allow_licenses = ["Apache-2.0"]
[[override]]
model = "a"
target = ["x", "z*", "y"]
max_workspace = { sram = 1000 }
"""
    (manifest_folder / "given.toml").write_text(text)
    options_by_row = {
        row.name: row.options for row in read_manifest(manifest_folder / "given.toml").rows
    }
    assert options_by_row["x/a.so"].freeze == {"batch": 3, "seq": 8}
    assert options_by_row["y/a.so"].freeze == {"batch": 2, "seq": 8}
    assert options_by_row["x/b.so"].freeze == {"batch": 3} and options_by_row["y/b.so"].freeze == {
        "batch": 1
    }
    assert options_by_row["x/a.so"].shapes == {"x": ["n", 3], "y": [0, "n"]}
    assert options_by_row["x/b.so"].shapes == {"x": [], "y": [0, "n"]}
    assert options_by_row["x/a.so"].debug and not options_by_row["x/b.so"].debug
    assert (
        options_by_row["x/a.so"].allow_licenses == ("Apache-2.0",)
        and not options_by_row["y/a.so"].allow_licenses
    )
    assert options_by_row["x/a.so"].max_workspace == {"sram": 1000}
    assert options_by_row["x/b.so"].max_workspace == "256K"


def test_exclusions(manifest_folder: Path) -> None:
    text = """
models.nets = "nets/*.onnx"
targets = { x = "llvm", y = "llvm" }
defaults.optimize = ["speed", "size"]
exclude = [
  { model = "conv" },
  { model = ["mlp", "soft*"], target = "y" },
  { target = "x", optimize = "size" },
]
"""
    assert names(manifest_folder, text) == [
        "x/elementwise.so",
        "y/elementwise.so",
        "y/elementwise-size.so",
        "x/mlp.so",
        "x/softmax.so",
    ]


# What is wrong: the manifest (BASE goes before text that begins with +), the place, the message.
WRONG: list[tuple[str, str, str]] = [
    ("", "manifest", "it has no models"),
    ('models.a = "x.onnx"', "manifest", "it has no targets"),
    ('targets.a = "llvm"', "manifest", "it has no models"),
    ("models = 5", "manifest.models", "expected dict, got int"),
    ('[models]\n[targets]\nx = "llvm"', "manifest", "it has no models"),
    ("not toml", "given.toml", "not TOML"),
    ("+models = 1", "given.toml", "not TOML"),
    ('+modles.a = "x"', "manifest", "did you mean 'models'?"),
    ("+defaults = 1", "manifest.defaults", "expected an object"),
    ("+default = {}", "manifest", "did you mean 'defaults'?"),
    # models
    ("+models.a = 1", "manifest.models.a", "expected an object, got int"),
    ("+models.a = {}", "manifest.models.a.path", "expected str"),
    ('+models.a = ""', "manifest.models.a.path", "is not a path"),
    ("+models.a = { path = 1 }", "manifest.models.a.path", "expected str, got int"),
    ('+models.a = { path = "x", pth = 1 }', "manifest.models.a", "did you mean 'path'?"),
    ('+models.a = { path = "x", precison = "float16" }', "manifest.models.a", "'precision'"),
    ('+models."a/b" = "x.onnx"', "manifest.models.a/b", "is not a name of letters"),
    ('+models."" = "x.onnx"', "manifest.models.", "is not a name of letters"),
    ('+models."-a" = "x.onnx"', "manifest.models.-a", "is not a name of letters"),
    ('+models."ü" = "x.onnx"', "manifest.models.ü", "is not a name of letters"),
    ('+models.mlp = "a.onnx"\nmodels.all = "nets/*.onnx"', "models.all", "two models are called"),
    ('+models.a = "none/*.onnx"', "manifest.models.a.path", "no file matches"),
    ('+models.a = { path = "nets/*", name = "x" }', "models.a.name", "cannot have one name"),
    ('+models.a = { path = "x", name = "a b" }', "models.a.name", "did you mean 'a_b'?"),
    # targets
    ("+targets.a = 1", "manifest.targets.a", "expected an object, got int"),
    ("+targets.a = {}", "manifest.targets.a.target", "it is missing"),
    ('+targets.a = { kind = "llvm" }', "manifest.targets.a", "unknown key 'kind'"),
    ("+targets.a = { target = 1 }", "targets.a.target", "expected text or a table, got int"),
    ("+targets.a = { target = [] }", "targets.a.target", "expected text or a table, got list"),
    ('+targets.a = "lvm"', "manifest.targets.a.target", "did you mean 'llvm'"),
    ('+targets.a = { target = { kind = "llvm", mcpu = "skylak" } }', "targets.a", "skylake"),
    ('+targets.a = "none.json"', "targets.a.target", "no such file"),
    ('+targets.a = "pj.json"', "targets.a.target", "did you mean 'pi.json'?"),
    ('+targets.a = "broken.json"', "targets.a.target", "cannot be read"),
    ('+targets.a = "list.json"', "targets.a.target", "expected text or a table, got list"),
    ('+targets."a b" = "llvm"', "manifest.targets.a b", "is not a name of letters"),
    ('+targets.a = "opencl"\ndefaults.precision = "float16"', "targets.a", "precision"),
    # options
    ('+defaults.precision = "bf16"', "manifest.defaults.precision", "is not one of float32"),
    ('+defaults.precision = "bfloat"', "defaults.precision", "did you mean 'bfloat16'?"),
    ("+defaults.precision = []", "defaults.precision", "expected a value at least"),
    ("+defaults.precision = [1]", "defaults.precision", "expected a list of text"),
    ("+defaults.precision = 16", "defaults.precision", "expected list, got int"),
    ('+defaults.optimize = ["size", "size"]', "defaults.optimize", "stands there twice"),
    ('+defaults.optimize = "sise"', "defaults.optimize", "did you mean 'size'?"),
    ('+defaults.format = "dll"', "defaults.format", "is not one of so, a, o, tar, mlf"),
    ('+defaults.weights = "besides"', "defaults.weights", "did you mean 'beside'?"),
    ("+defaults.weights = true", "defaults.weights", "expected str, got bool"),
    ('+defaults = { weights = "beside", format = "a" }', "models.net", "beside shared libraries"),
    ("+defaults.freeze = 1", "defaults.freeze", "expected an object, got int"),
    ("+defaults.freeze = {}", "defaults.freeze", "expected sizes by dimension"),
    ("+defaults.freeze = { batch = 0 }", "defaults.freeze.batch", "at least 1"),
    ("+defaults.freeze = { batch = -1 }", "defaults.freeze.batch", "expected a size"),
    ("+defaults.freeze = { batch = true }", "defaults.freeze.batch", "expected int, got bool"),
    ("+defaults.freeze = { batch = 1.5 }", "defaults.freeze.batch", "expected int, got float"),
    ("+defaults.freeze = { batch = 10000000000000000000 }", "freeze.batch", "too large"),
    ("+defaults.shapes = {}", "defaults.shapes", "expected shapes by input"),
    ("+defaults.shapes = { x = 3 }", "defaults.shapes.x", "expected list, got int"),
    ("+defaults.shapes = { x = [1.5] }", "defaults.shapes.x", "expected a list of numbers"),
    ("+defaults.shapes = { x = [-1] }", "defaults.shapes.x", "expected sizes from 0"),
    ('+defaults.shapes = { x = [""] }', "defaults.shapes.x", "expected sizes from 0"),
    ("+defaults.externals = [1]", "defaults.externals", "expected a list of text"),
    ('+defaults.externals = "cblas"', "defaults.externals", "expected list, got str"),
    ('+defaults.externals = [""]', "defaults.externals", "a name in it is empty"),
    ("+defaults.max_workspace = -1", "defaults.max_workspace", "expected 0 to"),
    ("+defaults.max_workspace = []", "defaults.max_workspace", "expected bytes"),
    ("+defaults.max_workspace = { sram = 1.5 }", "max_workspace.sram", "expected bytes"),
    ("+defaults.allow_licenses = [[]]", "defaults.allow_licenses", "expected a list of text"),
    ("+defaults.deny_licenses = {}", "defaults.deny_licenses", "expected list, got dict"),
    ("+defaults.records = 1", "defaults.records", "expected list, got int"),
    ('+defaults.records = ""', "defaults.records", "expected list, got str"),
    ('+defaults.records = [""]', "defaults.records", "a name in it is empty"),
    ('+defaults.records = "none.records"', "targets.old", "cannot read records"),
    ('+defaults.records = "nets/mlp.onnx"', "targets.old", "no file of records"),
    ("+defaults.debug = 1", "defaults.debug", "expected true or false"),
    ("+defaults.debug = 2020-01-01", "defaults.debug", "expected true or false"),
    ('+defaults.name = "net"', "manifest.defaults", "unknown key 'name'"),
    ('+targets.a = { target = "c", name = "net" }', "manifest.targets.a", "unknown key 'name'"),
    ('+targets.a = { target = "c", path = "x" }', "manifest.targets.a", "unknown key 'path'"),
    # overrides and exclusions
    ("+override = {}", "manifest.override", "expected list, got dict"),
    ("+override = [1]", "manifest.override[0]", "expected an object, got int"),
    ("+[[override]]", "manifest.override[0]", "it says nothing"),
    ('+[[override]]\nmodel = "net"', "manifest.override[0]", "it says nothing"),
    ("+[[override]]\ndebug = true", "manifest.override[0]", "it matches everything"),
    ('+[[override]]\nmodel = "nte"\ndebug = true', "override[0].model", "did you mean 'net'?"),
    ('+[[override]]\ntarget = "x*"\ndebug = true', "override[0].target", "no target is called"),
    ("+[[override]]\nmodel = 1\ndebug = true", "override[0].model", "expected list, got int"),
    ("+[[override]]\nmodel = []\ndebug = true", "override[0].model", "or a pattern"),
    ('+[[override]]\nmodel = ""\ndebug = true', "override[0].model", "or a pattern"),
    ('+[[override]]\nmodl = "net"', "manifest.override[0]", "did you mean 'model'?"),
    ("+[[exclude]]", "manifest.exclude[0]", "it matches everything"),
    ('+[[exclude]]\nmodel = "net"\nweights = "beside"', "manifest.exclude[0]", "unknown key"),
    ('+[[exclude]]\nmodel = "old"', "manifest.exclude[0].model", "no model is called 'old'"),
    ('+[[exclude]]\nmodel = "net"', "manifest.exclude", "everything is excluded"),
    ('+[[exclude]]\nprecision = "float16"', "manifest.exclude[0]", "no row matches it"),
    # names that are taken
    (
        'models = { a = "x", a-size = "y" }\ntargets.t = "llvm"\n'
        'defaults.optimize = ["speed", "size"]',
        "manifest.models.a-size",
        "would be the file of two rows",
    ),
]


@pytest.mark.parametrize(("text", "place", "message"), WRONG)
def test_wrong(manifest_folder: Path, text: str, place: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        names(manifest_folder, BASE + text[1:] if text.startswith("+") else text)
    error = caught.value
    assert error.code == "bad-manifest"
    assert error.where.startswith(str(manifest_folder / "given.toml")) and place in error.where, (
        error.where
    )
    assert message in str(error), error


def test_every_option_has_a_wrong_value() -> None:
    """A new option is a row above."""
    wrong_texts = "\n".join(text for text, _, _ in WRONG)
    for key in (*KEYS, "name"):
        assert re.search(rf"\b{key} = ", wrong_texts), key


def test_files_that_cannot_be_read(manifest_folder: Path) -> None:
    (manifest_folder / "bytes.toml").write_bytes(b"\xff\xfe")
    (manifest_folder / "deep.toml").write_text("a = " + "[" * 5000)
    for name, code in {
        "none.toml": "missing-file",
        "nets": "missing-file",
        "bytes.toml": "bad-manifest",
        "deep.toml": "bad-manifest",
    }.items():
        with pytest.raises(UserError) as caught:
            read_manifest(manifest_folder / name)
        assert caught.value.code == code and name in caught.value.where
    with pytest.raises(UserError, match="did you mean 'farm.toml'?"):
        read_manifest(manifest_folder / "fram.toml")
    kinds: list[Any] = [None, 5, b"farm.toml", []]
    for wrong in kinds:
        with pytest.raises(UserError):
            read_manifest(wrong)
    with pytest.raises(UserError, match="manifest: manifest"):
        read_manifest({})


def test_the_page_has_every_key() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for key in ("models", "targets", "defaults", "override", "exclude", "path", "name", *KEYS):
        assert f"`{key}`" in text or f"`[[{key}]]`" in text, key
    for values in AXES.values():
        for value in values:
            assert f"`{value}`" in text, value
