"""Externals by name: those of this package, those of others, and entry points that are wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main as kiln
from tensorkiln.external import External
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.external.plugins import BUILT_IN, external_called, known_externals
from tensorkiln.runtime import read_metadata
from tests.transform.graphs import graph

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "external_package"
Install = Callable[..., None]
MODULE = graph(lambda g, x, y: g.maximum(g.tanh(x), y), x=(2, 3), y=(2, 3))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Leave what pip leaves of a package with one entry point: its module and its dist-info."""
    modules: list[str] = []

    def write(module: str, text: str, name: str = "", value: str = "EXTERNAL") -> None:
        site = tmp_path / f"site{len(modules)}"
        site.mkdir()
        monkeypatch.syspath_prepend(site)
        (site / f"{module}.py").write_text(text)
        modules.append(module)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        package = module.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        points = f"[tensorkiln.externals]\n{name or module} = {module}:{value}\n"
        (info / "entry_points.txt").write_text(points)

    yield write
    for module in modules:
        sys.modules.pop(module, None)


def test_the_example_of_a_package(install: Install) -> None:
    """As its pyproject.toml says: the same entry point, and the same module."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    assert '"tensorkiln.externals"]\nmaximum_in_c = "maximum_in_c:EXTERNAL"' in text
    install("maximum_in_c", (EXAMPLE / "maximum_in_c.py").read_text())
    assert known_externals()["maximum_in_c"] == "maximum-in-c"
    assert "maximum_in_c" not in {p.kernel_class for p in tk.compile(MODULE).placement()}
    exe = tk.compile(MODULE, externals=["maximum_in_c"])
    assert [f.external for f in exe.module.externals] == ["maximum_in_c"]
    (needed,) = exe.external_dependencies
    assert (needed.short_name, needed.build_time) == ("maximum-headers", True)
    x, y = np.array([[1, 2, np.nan]] * 2, np.float32), np.array([[3, np.nan, 0]] * 2, np.float32)
    result = tk.runtime.Executor(exe, tk.cpu())["main"](x, y).numpy()
    np.testing.assert_allclose(result, np.maximum(np.tanh(x), y), rtol=1e-5)


def test_every_one_of_this_package_has_its_name() -> None:
    assert external_called("c_reference") is C_REFERENCE
    for point in BUILT_IN:
        assert known_externals()[point.name] == "tensorkiln"
        try:
            assert external_called(point.name).name == point.name
        except UserError as error:  # its library is not installed
            assert error.code == "missing-library"


def test_the_command_line(install: Install, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    x, y, z = (helper.make_tensor_value_info(n, floats, [2, 3]) for n in "xyz")
    node = helper.make_node("Max", ["x", "y"], ["z"], name="the_max")
    model = helper.make_model(
        helper.make_graph([node], "g", [x, y], [z]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, tmp_path / "max.onnx")
    install("maximum_in_c", (EXAMPLE / "maximum_in_c.py").read_text())
    command = ["compile", str(tmp_path / "max.onnx"), "-q", "--external", "maximum_in_c"]
    out = tmp_path / "max.so"
    allowed = ["--allow-license", "MIT", "--allow-license", "Apache-2.0"]  # that of the runtime
    assert kiln([*command, "-o", str(out), *allowed]) == 0
    assert read_metadata(out)["dependencies"][0]["short_name"] == "maximum-headers"
    out.unlink()
    assert kiln([*command, "-o", str(out), "--deny-license", "MIT"]) != 0
    error_text = capsys.readouterr().err
    assert "dependency 'maximum-headers' has the license 'MIT', which is denied" in error_text
    assert "external 'maximum_in_c'" in error_text and "the_max" in error_text and not out.exists()
    assert kiln([*command, "-o", str(out), "--deny-license", "MTI"]) != 0
    assert "did you mean 'MIT'?" in capsys.readouterr().err
    source = tmp_path / "maximum-1.0.tar.gz"
    source.write_bytes(b"as if")
    bundle = ["--bundle", f"maximum-headers={source}"]
    assert kiln([*command, "-o", str(tmp_path / "max.tar"), *bundle]) == 0
    assert b"external/maximum-headers/maximum-1.0.tar.gz" in (tmp_path / "max.tar").read_bytes()
    for wrong in ("maximum-headers", "=x", "maximum-headers="):
        assert kiln([*command, "-o", str(tmp_path / "no.tar"), "--bundle", wrong]) != 0
        assert "expected NAME=PATH" in capsys.readouterr().err


WRONG = "from tensorkiln.external.example import C_REFERENCE\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("EXTERNAL = 3\n", "bad-external", "external 'mine' of package mine returned int"),
        ("def EXTERNAL():\n    return 3\n", "bad-external", "returned int, expected an External"),
        ("raise OSError('no device')\n", "plugin-failed", "raised OSError: no device"),
        ("def EXTERNAL():\n    raise KeyError(1)\n", "plugin-failed", "raised KeyError"),
        ("", "plugin-failed", "raised AttributeError"),
        (f"{WRONG}EXTERNAL = C_REFERENCE\n", "bad-external", "is named 'c_reference'"),
    ],
)
def test_wrong_entry_points(install: Install, text: str, code: str, says: str) -> None:
    install("mine", text)
    with pytest.raises(UserError) as caught:
        tk.compile(MODULE, externals=["mine"])
    assert caught.value.code == code and says in str(caught.value)
    assert "external 'mine' of package mine" in str(caught.value)
    tk.compile(MODULE)  # which does not ask for it


def test_unknown_names_and_clashes(install: Install) -> None:
    with pytest.raises(UserError, match="no external 'c_referense' is installed") as caught:
        tk.compile(MODULE, externals=["c_referense"])
    assert caught.value.code == "unknown-external" and "'c_reference'" in caught.value.hint
    install("mine", f"{WRONG}EXTERNAL = C_REFERENCE\n", name="c_reference")
    with pytest.raises(UserError, match="'c_reference' is of packages tensorkiln and mine"):
        tk.compile(MODULE, externals=["c_reference"])


def test_a_name_is_not_a_list_of_letters() -> None:
    with pytest.raises(UserError, match="externals are a list, not a text") as caught:
        tk.compile(MODULE, externals="c_reference")
    assert caught.value.hint == "externals=['c_reference']"


def test_names_and_objects_together() -> None:
    tanh_external = External("other", lambda call, target: call.op == "tanh", C_REFERENCE.emit)
    with pytest.raises(UserError, match="two externals are named 'c_reference'"):
        tk.compile(MODULE, externals=["c_reference", replace(C_REFERENCE, merge=False)])
    pipeline = tk.pipeline.relax_passes(tk.Target("native"), ["c_reference", tanh_external])
    assert any("c_reference" in repr(p) for p in pipeline)
