"""The real road through the commands, on a model that takes a second."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.make_mlp import make_mlp
from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, the library and its artifacts."""
    folder = tmp_path_factory.mktemp("cli")
    model = folder / "mlp.onnx"
    model.write_bytes(make_mlp().SerializeToString())
    argv = ["compile", str(model), "-o", str(folder / "mlp.so"), "--keep", str(folder / "kept")]
    assert main([*argv, "--headers", str(folder / "include"), "-q"]) == 0
    return folder


def kiln(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorkiln.cli", *argv]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def test_artifacts_are_kept(folder: Path) -> None:
    artifacts = ArtifactSet.load(folder / "kept")
    assert {"native", "header"} <= {artifact.loader for artifact in artifacts}
    assert artifacts["weights.bin"].size > 900_000


def test_headers_are_written(folder: Path) -> None:
    names = {path.name for path in (folder / "include").iterdir()}
    assert {"kiln.h", "kiln_host.h", "kiln.hpp", "mlp.h"} <= names
    assert "int mlp_main(" in (folder / "include" / "mlp.h").read_text()


def test_run_matches_numpy_and_onnxruntime(folder: Path, capsys: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    image = np.random.default_rng(3).standard_normal((5, 784)).astype(np.float32)
    np.save(folder / "image.npy", image)
    out = folder / "out"
    argv = ["run", str(folder / "mlp.so"), "--input", str(folder / "image.npy")]
    assert main([*argv, "--output-dir", str(out)]) == 0
    session = onnxruntime.InferenceSession(str(folder / "mlp.onnx"))
    (want,) = session.run(None, {"image": image})
    np.testing.assert_allclose(np.load(out / "logits.npy"), want, rtol=1e-4, atol=1e-4)
    assert "5 x 10" in capsys.readouterr().out


def test_inspect_reads_the_real_library(folder: Path, capsys: Any) -> None:
    assert main(["inspect", str(folder / "mlp.so"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    function = report["metadata"]["functions"][0]
    assert function["inputs"] == [{"name": "image", "dtype": "float32", "shape": ["batch", 784]}]
    assert report["weights_bytes"] > 900_000
    assert report["kernel_code_bytes"] > 0
    assert all(size > 0 for size in report["kernel_code"].values())
    assert report["metadata"]["target"]["kind"] == "llvm"
    names = {kernel["symbol"]: kernel["nodes"] for kernel in report["metadata"]["kernels"]}
    assert any("layer1" in nodes for nodes in names.values())
    assert all("llvm" not in name for name in report["needed"])


def test_inspect_loads_no_code(folder: Path) -> None:
    script = (
        "import sys\n"
        "from tensorkiln.cli import main\n"
        "assert main(['inspect', sys.argv[1]]) == 0\n"
        "maps = [line for line in open('/proc/self/maps') if sys.argv[1] in line]\n"
        "assert not [line for line in maps if 'x' in line.split()[1]], maps\n"
        "heavy = {'llvmlite', 'onnx', 'ziglang', 'tensorkiln.pipeline'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    library = str(folder / "mlp.so")
    process = subprocess.run(
        [sys.executable, "-c", script, library], capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


def test_bench_beside_onnxruntime(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    argv = ["bench", str(folder / "mlp.so"), "--model", str(folder / "mlp.onnx")]
    process = kiln(*argv, "--dim", "batch=2", "--threads", "1", "--seconds", "0.1", "--json")
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["agrees"] is True
    assert report["difference"]["trials"] == 3
    assert report["threads"] == 1
    assert report["peer"]["count"] > 0
    assert 0 < report["ours"]["min_ms"] <= report["ours"]["median_ms"]


def test_bench_says_which_dimension_is_missing(folder: Path) -> None:
    process = kiln("bench", str(folder / "mlp.so"), "--seconds", "0.1")
    assert process.returncode == 2
    assert "--dim batch=1" in process.stderr
    assert "Traceback" not in process.stderr


def test_bench_of_a_wrong_model_differs(folder: Path) -> None:
    pytest.importorskip("onnxruntime")
    other_model = folder / "other.onnx"
    other_model.write_bytes(make_mlp(seed=1).SerializeToString())
    argv = ["bench", str(folder / "mlp.so"), "--model", str(other_model), "--dim", "batch=1"]
    process = kiln(*argv, "--seconds", "0.05")
    assert process.returncode == 1
    assert "DIFFER" in process.stdout


def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    process = kiln("demo", "--folder", str(tmp_path / "demo"), "--seconds", "0.2")
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1] == "PASS"
    for word in ("ONNX Runtime", "results agree", "resnet18.so", "kiln inspect"):
        assert word in process.stdout
    _look_around(tmp_path / "demo" / "artifacts")


def _look_around(folder: Path) -> None:
    """A person finds the plan by its name, and in it the source, the assembly and the weights of
    each convolution of ResNet-18, by names."""
    plan = (folder / "host" / "plan.txt").read_text()
    table = plan[plan.index("step ") :].splitlines()
    column_starts = [m.start() for m in re.finditer(r"(?<=  )\S|^\S", table[0])]
    rows = [
        [row[a:b].strip() for a, b in zip(column_starts, [*column_starts[1:], None], strict=True)]
        for row in table
    ]
    assert rows[0] == ["step", "kernel", "node of the model", "reads", "writes", "bytes"]
    assert [int(row[0]) for row in rows[1:]] == list(range(1, len(rows)))
    source = (folder / "ir" / "module.py").read_text()
    weights = json.loads((folder / "host" / "weights.json").read_text())
    named = {w["name"]: w for w in weights} | {f"{w['name']}@{w['offset']}": w for w in weights}
    convolutions = [row for row in rows if re.match(r"llvm/.*conv2d", row[1])]
    assert len(convolutions) == 20 and len({row[2] for row in convolutions}) == 20
    for _, kernel, node, reads, writes, size in convolutions:
        code, name = folder / kernel, kernel.rpartition("/")[2]
        assert node and int(size) > 0 and writes.startswith("+")
        assert source.count(f"    def {name}(") == 1
        assert f"define void @{name}(" in code.with_suffix(".ll").read_text()
        assert f"\n{name}:\n" in code.with_suffix(".s").read_text()
        assert code.with_suffix(".o").read_bytes().startswith(b"\x7fELF")
        read = [named[r] for r in reads.split(", ") if not r.startswith("+") and r != "x"]
        assert [len(w["shape"]) for w in read] == [4, 1], reads
    assert rows[-1][4] == "logits"
    largest_moment = max(int(row[4]) + int(row[5]) for row in rows[1:-1])
    assert (
        largest_moment
        <= int(re.findall(r"(\d+) bytes of workspace", plan)[0])
        < largest_moment + 4096
    )


def test_baseline_target_says_so(folder: Path) -> None:
    out = str(folder / "base.so")
    process = kiln("compile", str(folder / "mlp.onnx"), "-o", out, "--target", "llvm")
    assert process.returncode == 0, process.stderr
    assert "baseline" in process.stderr
    assert kiln("run", out, "--random", "--dim", "batch=1").returncode == 0


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x08\x08\x12\x00\xff\xff\xff"])
def test_garbage_models(folder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    for command in ("check", "compile"):
        process = kiln(command, str(tmp_path / "bad.onnx"))
        assert process.returncode in (1, 2, 3), process.stderr
        assert "Traceback" not in process.stderr
        assert "bad.onnx" in process.stderr + process.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["bad.onnx"]


def test_truncated_model(folder: Path, tmp_path: Path) -> None:
    data = (folder / "mlp.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    process = kiln("compile", str(tmp_path / "cut.onnx"), "-o", str(tmp_path / "cut.so"))
    assert process.returncode == 2, process.stderr
    assert "cut.onnx" in process.stderr
    assert not (tmp_path / "cut.so").exists()


def test_an_archive_instead_of_a_library(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["compile", str(folder / "mlp.onnx"), "--format", "mlf", "-q"]
    for options in (["--weights", "beside"], ["--headers", "include"], ["-o", "mlp.so"]):
        assert main([*argv, *options]) == 2
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 0 and [p.name for p in tmp_path.iterdir()] == ["mlp.tar"]
    assert main([*argv, "-o", "net.tar"]) == 0  # its name is its file's
    assert main([*argv, "-o", "files", "--name", "kws"]) == 0
    assert (tmp_path / "files/codegen/host/include/kiln_kws.h").is_file()
    for name, models in (("mlp", ["mlp"]), ("net", ["net"])):
        library = open_model_library(tmp_path / f"{name}.tar")
        assert [*library.models()] == models


def test_small_libraries(folder: Path) -> None:
    """The option of this name is the target's; a library has been made for one."""
    model, small = str(folder / "mlp.onnx"), folder / "small.so"
    assert kiln("compile", model, "-q", "-o", str(small), "--optimize", "size").returncode == 0
    assert small.stat().st_size <= (folder / "mlp.so").stat().st_size
    document = json.loads(kiln("inspect", str(small), "--json").stdout)
    assert document["metadata"]["target"]["optimize"] == "size"
    wrong = kiln("compile", model, "--optimize", "sice")
    assert wrong.returncode == 2 and "did you mean 'size'?" in wrong.stderr
    again = kiln("bench", str(small), "--optimize", "size")
    assert again.returncode == 2 and "--optimize do not go together" in again.stderr
    target = json.dumps({"kind": "native", "winograd": 4})
    contradiction = kiln("compile", model, "--target", target, "--optimize", "size")
    assert contradiction.returncode == 2 and "contradiction" in contradiction.stderr
    options = ("--optimize", "size", "--seconds", "0.1", "--dim", "batch=1", "--compare")
    timed = kiln("bench", model, *options)
    assert timed.returncode == 0 and "results agree" in timed.stdout


def test_a_limit_of_the_workspace(folder: Path) -> None:
    """One digit less than it needs is an error, which leaves no library; pools are by name."""
    model = ["compile", str(folder / "mlp.onnx"), "-q", "-o", str(folder / "limited.so")]
    model += ["--freeze", "batch=3"]
    assert kiln(*model, "--max-workspace", "1M").returncode == 0
    document = json.loads(kiln("inspect", str(folder / "limited.so"), "--json").stdout)
    (function,) = document["metadata"]["functions"]
    need = function["workspace_bytes"]
    (folder / "limited.so").unlink()
    failed = kiln(*model, "--max-workspace", str(need - 1))
    assert failed.returncode == 2 and not (folder / "limited.so").exists()
    assert f"needs {need:,} bytes, has {need - 1:,}, 1 too many" in failed.stderr
    assert "float32 3 x 256" in failed.stderr
    pools = json.dumps({"memory": [{"name": "dtcm", "size": need, "align": 8}, {"name": "sram"}]})
    assert kiln(*model, "--target", pools, "--max-workspace", "dtcm=1M,sram=4K").returncode == 0
    text = kiln("inspect", str(folder / "limited.so")).stdout
    assert re.search(r"pool +dtcm +[\d.]+ kB +of [\d.]+ kB", text)
    wrong = kiln(*model, "--max-workspace", "dtcm=many")
    assert wrong.returncode == 2 and "expected bytes, such as 256K" in wrong.stderr
    unknown = kiln(*model, "--max-workspace", "dtcm=4K")
    assert unknown.returncode == 2 and "no pool 'dtcm'" in unknown.stderr
