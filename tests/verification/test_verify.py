"""tk.verify: what it takes, what it says, what it writes, and kiln verify."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.base.errors import UserError
from tensorkiln.cli.entry import main as kiln
from tensorkiln.ir.module import IRModule
from tensorkiln.kernels.case import rand
from tensorkiln.target import Target
from tests.cuda.networks import let_run
from tests.transform.graphs import graph
from tests.verification.faults import (
    SpoiledConstant,
    SpoiledKernel,
    SpoiledOperator,
    passes_with,
    tir_with,
)

TARGET = Target({"kind": "llvm", "mcpu": "x86-64-v3"})


def mlp() -> bytes:
    return make_mlp().SerializeToString()


def net() -> IRModule:
    def build(g: Any, x: Any) -> Any:
        y = g.relu(g.linear(x, rand(6, 8), rand(8)))
        z = g.softmax(g.linear(y, rand(8, 5)))
        return g.add(g.relu(g.linear(y, rand(8, 5, seed=1))), z)

    return graph(build, x=(4, 6))


def spoiled(op: str = "softmax") -> tk.Executable:
    """With a wrong kernel."""
    spoil = SpoiledKernel(lambda f: op in f.name)
    return tk.compile(net(), TARGET, tir_pipeline=tir_with(spoil, TARGET), debug=True)


# ---- what it takes ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["bytes", "path", "proto", "module"])
def test_models(form: str, tmp_path: Path) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(mlp())
    mod = tk.frontend.from_onnx(path)
    model = {"bytes": mlp(), "path": path, "proto": make_mlp(), "module": mod}[form]
    verification = tk.verify(tk.compile(mod, TARGET, debug=True), model, dims={"batch": 2})
    assert verification and verification.compared == 3 and verification.outputs[0].shape == (2, 10)


def test_a_chain_of_more_values_than_a_call_usually_has() -> None:
    def chain(g: Any, x: Any) -> Any:
        for k in range(300):
            x = g.softmax(g.mul(x, 1.5 + k % 2), axis=-1)
        return x

    mod = graph(chain, x=(2, 4))
    exe = tk.compile(mod, TARGET, debug=True)
    assert len(exe.functions[0].params) > 256
    verification = tk.verify(exe, mod)
    assert verification and verification.compared == 300


def test_a_program_of_torch() -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3))
    program = torch.export.export(module, (torch.ones(2, 5),))
    exe = tk.compile(tk.frontend.from_torch(program), TARGET, debug=True)
    assert tk.verify(exe, program).compared == 2


@pytest.mark.parametrize("form", ["list", "dict", "array", "random"])
def test_inputs(form: str) -> None:
    exe = tk.compile(net(), TARGET, debug=True)
    x = np.random.default_rng(5).normal(size=(4, 6)).astype("float32")
    inputs = {"list": [x], "dict": {"x": x}, "array": x, "random": None}[form]
    assert tk.verify(exe, net(), inputs).ok


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"inputs": []}, "operand-count", "expected 1 input"),
        ({"inputs": {"y": 1}}, "unknown-input", "no input 'y'"),
        ({"inputs": {}}, "missing-input", "no value for input"),
        ({"inputs": [np.ones((4, 6))]}, "dtype-mismatch", "'x' is float64, expected float32"),
        ({"inputs": [np.ones((4, 6), "float32")], "dims": {"n": 1}}, "conflict", "dims"),
        ({"dims": {"n": 1}}, "unknown-dim", "no symbolic dimension 'n'"),
        ({"inputs": 5}, "wrong-type", "inputs is an int"),
        ({"reference": "float32"}, "bad-value", "no reference 'float32'"),
        ({"rtol": -1.0}, "bad-value", "rtol is -1.0"),
        ({"atol": float("nan")}, "bad-value", "atol is nan"),
        ({"rtol": "1"}, "wrong-type", "rtol is a str"),
        ({"function": "other"}, "no-function", "no graph function 'other'"),
        ({"freeze": {"n": 1}}, "conflict", "freeze is for ONNX"),
        ({"reference": "onnxruntime"}, "unsupported", "ONNX Runtime runs ONNX models"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], code: str, words: str) -> None:
    exe = tk.compile(net(), TARGET, debug=True)
    with pytest.raises(UserError, match=words) as e:
        tk.verify(exe, net(), **options)
    assert e.value.code == code


def test_another_model() -> None:
    exe = tk.compile(net(), TARGET, debug=True)
    other_models = [
        graph(lambda g, x, y: g.add(x, y), x=(4, 6), y=(4, 6)),  # more inputs
        graph(lambda g, x: g.relu(x), x=(4, 6, 1)),  # another rank
        graph(lambda g, x: g.relu(x), x=(4, 7)),  # another size
    ]
    for other_model in other_models:
        with pytest.raises(UserError) as e:
            tk.verify(exe, other_model)
        assert e.value.code == "other-model"
    with pytest.raises(UserError, match="takes an Executable or the path"):
        tk.verify(5, net())  # type: ignore[arg-type]


def test_a_torch_module_without_inputs() -> None:
    torch = pytest.importorskip("torch")

    class Twice(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x + x

    exe = tk.compile(Twice(), TARGET, example_inputs=torch.ones(3))
    for module in (Twice(), torch.nn.ReLU()):
        with pytest.raises(UserError, match=f"module such as {type(module).__name__}") as e:
            tk.verify(exe, module)
        assert "torch.export.export(module, example_inputs)" in e.value.hint
    assert tk.verify(exe, torch.export.export(Twice(), (torch.ones(3),))).ok


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    mod = tk.frontend.from_onnx(mlp())
    exe = tk.compile(mod, TARGET, debug=True)
    with pytest.raises(UserError, match="'onnxruntime', which is not installed") as e:
        tk.verify(exe, mlp(), dims={"batch": 1}, reference="onnxruntime")
    assert (e.value.code, e.value.hint) == ("missing-package", "pip install onnxruntime onnx")


# ---- what it says -------------------------------------------------------------------------------


def test_a_library_without_inner_values(tmp_path: Path) -> None:
    plain = tk.compile(net(), TARGET).export_library(tmp_path / "plain.so")
    verification = tk.verify(plain, net())
    assert verification.ok and verification.compared == 0 and verification.worst is None
    assert any("compile(debug=True)" in note for note in verification.notes)
    assert (verification.outputs[0].difference.times or 9) < 1
    spoil = SpoiledConstant()
    passes = passes_with(spoil, "infer_types", TARGET)
    wrong = tk.compile(net(), TARGET, relax_pipeline=passes).export_library(tmp_path / "wrong.so")
    verification = tk.verify(wrong, net())
    assert not verification.ok and verification.first is None and verification.exit_code == 1


def test_an_executable_is_compiled_again() -> None:
    verification = tk.verify(tk.compile(net(), TARGET), net())
    assert verification.ok and verification.compared == 4
    assert any("compiled again" in note for note in verification.notes)


def test_an_executable_of_other_passes_is_not_compiled_again() -> None:
    """Or it is, and its outputs differ, which is said."""
    passes = passes_with(SpoiledOperator("relu", "tanh", 0), "infer_types", TARGET)
    verification = tk.verify(tk.compile(net(), TARGET, relax_pipeline=passes), net())
    assert not verification.ok and verification.first is None
    assert any("other passes" in note for note in verification.notes)
    passes = passes_with(SpoiledConstant(), "infer_types", TARGET)
    verification = tk.verify(tk.compile(net(), TARGET, relax_pipeline=passes), net())
    assert not verification.ok and verification.first is None
    assert any("it was compiled otherwise" in note for note in verification.notes)


def test_errors_do_not_add_up() -> None:
    """The kernels after a wrong one are right of what they are given."""
    verification = tk.verify(spoiled("linear_relu"), net())
    first = verification.first
    assert first is not None and first.kernel == "linear_relu" and first.fault == "kernel"
    assert first.nodes == ("node linear", "node relu")
    assert first.operator == "relu" and first.dtype == "float32" and first.shape == (4, 8)
    want = abs(first.local.want) * 0.25
    assert abs(abs(first.local.have) - abs(first.local.want)) == pytest.approx(want, rel=1e-3)


def test_text_and_json() -> None:
    verification = tk.verify(spoiled(), net())
    text = str(verification)
    assert "main for llvm x86-64-v3 diverges from the model (float64)" in text
    assert "first node that diverges, of 4 values compared:" in text
    assert "at fault     the kernel" in text and "class softmax_rows" in text
    plain = json.loads(json.dumps(verification.to_json()))
    assert plain["ok"] is False and plain["first"]["kernel"] == "softmax"
    assert plain["first"]["local"]["times"] > 1000 and "schedule" in plain["first"]
    assert plain["outputs"][0]["name"]


def test_given_tolerances() -> None:
    exe = tk.compile(net(), TARGET, debug=True)
    assert not tk.verify(exe, net(), atol=0.0, rtol=0.0)
    assert tk.verify(exe, net(), rtol=1e-3, atol=1e-5)
    assert tk.verify(spoiled(), net(), rtol=1.0).ok
    assert "atol=0.5 + rtol=0 x |reference|" in str(tk.verify(exe, net(), atol=0.5))


def test_no_numbers() -> None:
    """NaN and infinity agree with themselves, and with what is too large for the type."""
    mod = graph(lambda g, x: g.add(g.exp(x), g.sqrt(x)), x=(5,))
    exe = tk.compile(mod, TARGET, debug=True)
    x = np.array([np.nan, np.inf, -np.inf, 200.0, -1.0], "float32")
    assert tk.verify(exe, mod, [x]).ok


@pytest.mark.parametrize("shape", [(0, 6), (1, 6)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    mod = tk.frontend.from_onnx(mlp())
    exe = tk.compile(mod, TARGET, debug=True)
    x = np.ones((shape[0], 784), "float32")
    assert tk.verify(exe, mod, [x]).ok


def test_jumps_near_a_tie() -> None:
    """Rounding to integers, comparisons and argmax of what was computed in the same kernel."""

    def build(g: Any, x: Any) -> Any:
        y = g.mul(g.add(x, rand(64)), rand(64, seed=2))
        up = g.cast(g.round(g.mul(y, rand(1, seed=3, low=50, high=60))), dtype="int32")
        comparison = g.cast(g.greater(g.mul(y, y), rand(64, seed=4)), dtype="int32")
        return g.add(
            g.add(up, comparison), g.cast(g.argmax(y, axis=1, keepdims=True), dtype="int32")
        )

    mod = graph(build, x=(200, 64))
    for seed in range(3):
        verification = tk.verify(tk.compile(mod, TARGET, debug=True), mod, seed=seed)
        assert verification.ok, str(verification)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precisions(precision: str) -> None:
    exe = tk.compile(net(), TARGET, precision=precision, debug=True)
    verification = tk.verify(exe, net())
    assert verification.ok and "in products" in verification.tolerance, str(verification)
    assert not tk.verify(exe, net(), rtol=1e-6, atol=1e-6)


def test_outputs_that_are_inputs_or_constants() -> None:
    def build(g: Any, x: Any) -> Any:
        g.also = x
        return g.relu(x)

    mod = graph(build, x=(3,))
    assert tk.verify(tk.compile(mod, TARGET, debug=True), mod).ok


# ---- ONNX Runtime -------------------------------------------------------------------------------


def test_onnxruntime() -> None:
    pytest.importorskip("onnxruntime")
    mod = tk.frontend.from_onnx(mlp())
    exe = tk.compile(mod, TARGET, debug=True)
    verification = tk.verify(exe, mlp(), dims={"batch": 3}, reference="onnxruntime")
    assert (
        verification.ok and verification.compared == 3 and verification.reference == "onnxruntime"
    )
    spoil = SpoiledOperator("relu", "tanh", 1)
    passes = passes_with(spoil, "infer_types", TARGET)
    wrong = tk.compile(mod, TARGET, relax_pipeline=passes, debug=True)
    verification = tk.verify(wrong, mlp(), dims={"batch": 3}, reference="onnxruntime")
    assert verification.first is not None and verification.first.node == "relu2"
    assert (verification.first.fault, verification.first.passed) == ("passes", "spoiled_operator")


def test_a_wrong_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's operators as they were imported agree: ONNX Runtime alone knows."""
    pytest.importorskip("onnxruntime")
    from tensorkiln.frontend.onnx.table import IMPORTERS

    monkeypatch.setitem(IMPORTERS, "Relu", IMPORTERS["Abs"])  # type: ignore[index]
    mod = tk.frontend.from_onnx(mlp())
    exe = tk.compile(mod, TARGET, debug=True)
    assert tk.verify(exe, mlp(), dims={"batch": 3}).ok
    verification = tk.verify(exe, mlp(), dims={"batch": 3}, reference="onnxruntime")
    assert verification.first is not None and verification.first.node == "relu1"
    assert verification.first.fault == "import" and "the model's import" in str(verification)


# ---- devices ------------------------------------------------------------------------------------


def test_cuda_beside_a_cpu() -> None:
    target = Target({"devices": [{"kind": "cuda", "operators": ["linear"]}, TARGET.to_json()]})
    exe = tk.compile(net(), target, debug=True)
    let_run(exe, watch=False)
    kinds = {k.target_key for k in exe.kernels}
    assert len(kinds) > 1
    verification = tk.verify(exe, net())
    assert verification.ok and verification.compared >= 4, str(verification)


# ---- what it writes, and the command ------------------------------------------------------------


def repeated(folder: Path) -> str:
    """What the script prints, from a process of its own; it ends with 1."""
    command = [sys.executable, str(folder / "fault" / "repeat.py")]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert process.returncode == 1, process.stderr
    return process.stdout


@pytest.mark.parametrize("form", ["executable", "library"])
def test_the_script_repeats_the_fault(form: str, tmp_path: Path) -> None:
    exe: Any = spoiled()
    if form == "library":
        exe = exe.export_library(tmp_path / "net.so")
    verification = tk.verify(exe, net(), output=tmp_path / "fault")
    assert verification.saved == str(tmp_path / "fault") and "repeat.py" in str(verification)
    files = {p.name for p in (tmp_path / "fault").iterdir()}
    names = {"inputs.npz", "library.so", "node.npz", "node.py", "repeat.py"}
    assert names | {"report.txt", "report.json"} <= files
    text = repeated(tmp_path)
    assert "in the library:" in text and "expected" in text
    assert "the node compiled by itself: within the tolerance" in text
    assert json.loads((tmp_path / "fault" / "report.json").read_text())["ok"] is False
    assert tk.verify(exe, net(), output=tmp_path / "fault").first is not None  # written again


def test_a_script_of_other_types(tmp_path: Path) -> None:
    """bfloat16, which NumPy's files do not know."""

    def build(g: Any, x: Any) -> Any:
        y = g.exp(g.cast(x, dtype="bfloat16"))
        return g.cast(g.softmax(y), dtype="float32")

    mod = graph(build, x=(5, 7))
    exe = tk.compile(mod, TARGET, relax_pipeline="minimal", debug=True)
    verification = tk.verify(exe, mod, rtol=0.0, atol=0.0, output=tmp_path / "fault")
    assert verification.first is not None and verification.first.dtype == "bfloat16"
    assert tk.verify(exe, mod).ok
    assert "in the library:" in repeated(tmp_path)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, library = tmp_path / "mlp.onnx", tmp_path / "mlp.so"
    model.write_bytes(mlp())
    assert kiln(["verify", str(model), "--dim", "batch=2", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["ok"] and report["compared"] == 3
    assert kiln(["compile", str(model), "-o", str(library), "--debug", "-q"]) == 0
    x = tmp_path / "x.npy"
    np.save(x, np.ones((2, 784), "float32"))
    arguments = ["verify", str(library), "--model", str(model), "--input", str(x)]
    assert kiln(arguments) == 0
    assert "agrees with the model" in capfd.readouterr().out
    assert kiln([*arguments, "--atol", "0", "--output", str(tmp_path / "out")]) == 1
    assert "first node that diverges" in capfd.readouterr().out
    assert (tmp_path / "out" / "repeat.py").is_file()
    for extra_arguments, words in (
        (["--seed", "1"], "--seed is only for random values"),
        (["--target", "llvm"], "do not go together"),
    ):
        assert kiln([*arguments, *extra_arguments]) == 2
        assert words in capfd.readouterr().err
    assert kiln(["verify", str(library)]) == 2
    assert "compared with the model" in capfd.readouterr().err
