"""What a library says of the model that it was made from, and of the options."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.artifact.metadata import Metadata
from tensorkiln.base.errors import UserError
from tensorkiln.base.origin import ModelSource, Origin, Use
from tensorkiln.cli.entry import main
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.script import from_source
from tensorkiln.transform.relax.canonicalize import canonicalize

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")
SCRIPT = """
@R.function
def main(x: R.Tensor((4,), "float32")):
    return R.relu(x)
"""


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def origin(exe: tk.Executable | Path, folder: Path) -> Origin:
    path = exe if isinstance(exe, Path) else exe.export_library(folder / "net.so")
    return Metadata.from_json(dict(tk.runtime.read_metadata(path))).origin


def external(folder: Path, seed: int = 0) -> Path:
    """A model whose weights lie in two files."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    weights = {}
    for name in ("a", "b"):
        data = rng.standard_normal((16, 16)).astype(np.float32)
        t = numpy_helper.from_array(data, name)
        (folder / f"{name}.bin").write_bytes(t.raw_data)
        t.ClearField("raw_data")
        t.data_location = TensorProto.EXTERNAL
        entry = t.external_data.add()
        entry.key, entry.value = "location", f"{name}.bin"
        weights[name] = t
    g = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "a"], ["h"]),
            helper.make_node("MatMul", ["h", "b"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])],
        list(weights.values()),
    )
    model = helper.make_model(g, opset_imports=[helper.make_opsetid("", 17)])
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    return folder / "net.onnx"


def test_an_onnx_file_and_its_weights(tmp_path: Path) -> None:
    here, there = external(tmp_path / "here"), external(tmp_path / "there")
    found = origin(tk.compile(here), tmp_path)
    assert found.model == ModelSource(
        "onnx",
        sha256(here),
        tuple((f"{n}.bin", sha256(here.parent / f"{n}.bin")) for n in "ab"),
    )
    # Equal inputs give equal bytes in every folder, which has no place in them.
    first = tk.compile(here).export_library(tmp_path / "1.so").read_bytes()
    second = tk.compile(there).export_library(tmp_path / "2.so").read_bytes()
    assert first == second and str(tmp_path).encode() not in first
    assert origin(tk.compile(tk.frontend.from_onnx(there)), tmp_path) == found
    other = origin(tk.compile(external(tmp_path / "other", seed=1)), tmp_path)
    assert other.model is not None and found.model is not None
    assert other.model.sha256 == found.model.sha256  # the graph is the same
    assert other.model.weights != found.model.weights


def test_models_in_memory(tmp_path: Path) -> None:
    model = make_mlp()
    data = model.SerializeToString()
    wanted = ModelSource("onnx", hashlib.sha256(data).hexdigest())
    assert origin(tk.compile(data), tmp_path).model == wanted
    assert origin(tk.compile(onnx.load_from_string(data)), tmp_path).model == wanted


def test_scripts_and_modules(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text("from tensorkiln.script import R, T\n" + SCRIPT)
    assert origin(tk.compile(path), tmp_path).model == ModelSource("script", sha256(path))
    module = from_source(SCRIPT)
    assert origin(tk.compile(module), tmp_path).model is None
    again = tk.compile(from_source(module.script()))
    assert (
        again.export_library(tmp_path / "1.so").read_bytes()
        == tk.compile(module).export_library(tmp_path / "2.so").read_bytes()
    )


def test_a_module_that_was_changed_is_no_longer_the_file(tmp_path: Path) -> None:
    module = tk.frontend.from_onnx(make_mlp().SerializeToString())
    assert module.source is not None and module.source.kind == "onnx"
    changed = canonicalize(module)
    found = origin(tk.compile(changed), tmp_path).model
    if changed is not module:
        assert found is None


def test_modules_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def found(seed: int) -> Origin:
        torch.manual_seed(seed)
        net = torch.nn.Linear(16, 4).eval()
        return origin(tk.compile(net, example_inputs=torch.zeros(2, 16)), tmp_path)

    first = found(0)
    assert first.model is not None and first.model.kind == "torch"
    assert first == found(0) != found(1)


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "freeze": ({"freeze": {"batch": 3}}, {"freeze": {"batch": 3}}),
    # The target says these.
    "precision": ({"precision": "bfloat16"}, {}),
    "optimize": ({"optimize": "size"}, {}),
    "denormals": ({"denormals": "flush"}, {}),
    "externals": ({"externals": [C_REFERENCE]}, {"externals": [C_REFERENCE.name]}),
    "pipeline": ({"relax_pipeline": "minimal"}, {"relax_pipeline": "minimal"}),
    "debug": ({"debug": True}, {"debug": True}),
    "prefix": ({"system_lib_prefix": "net_"}, {"system_lib_prefix": "net_"}),
    # These decide whether something is compiled, not what.
    "checks": ({"max_workspace": "1G", "deny_licenses": ["MIT"], "name": "other"}, {}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, tmp_path: Path) -> None:
    given, said = OPTIONS[name]
    if name == "checks":
        given = {**given, "freeze": {"batch": 1}}
        said = {"freeze": {"batch": 1}}
    exe = tk.compile(make_mlp().SerializeToString(), **given)
    assert dict(origin(exe, tmp_path).options) == said


def test_the_command_line_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(make_mlp().SerializeToString())
    command = ["compile", str(path), "-q", "-o", str(tmp_path / "mlp.so"), "--freeze", "batch=2"]
    assert main(command) == 0
    found = origin(tmp_path / "mlp.so", tmp_path)
    assert found.model == ModelSource("onnx", sha256(path))
    assert dict(found.options) == {"freeze": {"batch": 2}}
    assert main(["inspect", str(tmp_path / "mlp.so")]) == 0
    shown = capsys.readouterr().out
    assert sha256(path) in shown and 'freeze={"batch": 2}' in shown
    assert main(["inspect", str(tmp_path / "mlp.so"), "--json"]) == 0
    metadata = json.loads(capsys.readouterr().out)["metadata"]
    assert metadata["model"]["sha256"] == sha256(path) and metadata["format"] == 4
    assert metadata["compiler"]["version"] and metadata["target"]["kind"] == "llvm"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", []),
        ("model", {"kind": "onnx"}),
        ("model", {"kind": 5, "sha256": "x"}),
        ("model", {"kind": "onnx", "sha256": "x", "weights": [{"name": "a"}]}),
        ("options", []),
        ("uses", {}),
        ("uses", [{"short_name": "a", "how": "somehow", "why": ""}]),
        ("uses", [{"short_name": "a", "how": "linked"}]),
    ],
)
def test_damaged_metadata(key: str, value: object, tmp_path: Path) -> None:
    exe = tk.compile(from_source(SCRIPT))
    plain = dict(tk.runtime.read_metadata(exe.export_library(tmp_path / "net.so")))
    with pytest.raises(UserError, match=key) as caught:
        Metadata.from_json({**plain, key: value})
    assert caught.value.code == "bad-metadata"


def test_round_trip(tmp_path: Path) -> None:
    exe = tk.compile(from_source(SCRIPT))
    plain = dict(tk.runtime.read_metadata(exe.export_library(tmp_path / "net.so")))
    found = Metadata.from_json({**plain, "uses": [{"short_name": "a", "how": "host", "why": "b"}]})
    assert found.origin.uses == (Use("a", "host", "b"),)
    assert Metadata.from_bytes(found.to_bytes()) == found


def test_a_hash_is_compared_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tk.compile(from_source(SCRIPT)).export_library(tmp_path / "net.so")
    digest = sha256(path)
    assert main(["run", str(path), "--random", "--sha256", digest]) == 0
    opened = []
    monkeypatch.setattr("tensorkiln.runtime.native.load_file", opened.append)
    wrong = digest.translate(str.maketrans("0123456789abcdef", "123456789abcdef0"))
    for text, code in ((wrong, "bad-hash"), ("00", "bad-text"), ("x" * 64, "bad-text")):
        assert main(["run", str(path), "--random", "--sha256", text]) != 0
        with pytest.raises(Exception, match="SHA-256|hexadecimal") as caught:
            tk.load(path, sha256=text)
        assert getattr(caught.value, "code", "") == code
    assert "SHA-256" in capsys.readouterr().err
    assert not opened
