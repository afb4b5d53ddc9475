"""A module for CUDA is inspected like all others: PTX as text, signatures, launch bounds, metrics;
in a library, a folder and a container, and in the report of a compile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.artifact.device_functions import device_functions_from
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main
from tensorkiln.inspectors.cuda import show_metrics
from tensorkiln.target import cuda_tools
from tests.artifact.test_untrusted_json import fields, harmless, values, with_value
from tests.cuda.test_metrics import require_tool
from tests.report.reading import read, rows
from tests.schedule.gpu.kernels import KERNELS

KINDS = ("library", "folder", "container")
TARGET = {"kind": "cuda", "arch": "sm_80", "also": ["sm_90a"]}


@pytest.fixture(scope="module")
def executable() -> tk.Executable:
    return tk.compile(KERNELS["softmax_symbolic"].module(), TARGET)


@pytest.fixture(scope="module")
def forms(executable: tk.Executable, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("inspect")
    executable.export_library(folder / "net.so")
    executable.artifacts.save(folder / "set")
    (folder / "container").write_bytes(executable.artifacts.to_bytes())
    return {
        "library": folder / "net.so",
        "folder": folder / "set",
        "container": folder / "container",
    }


def shown(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main(["inspect", *map(str, argv)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_three_artifacts_of_a_module(
    kind: str,
    forms: dict[str, Path],
    executable: tk.Executable,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = forms[kind]
    report = shown(capsys, path)
    for name, meaning in (
        ("kernels.sm_80.ptx", "device functions in PTX"),
        ("kernels.sm_90a.ptx", "device functions in PTX"),
        ("kernels.fmap.json", "device functions: what they take, their blocks"),
    ):
        assert re.search(rf"cuda/cuda/{re.escape(name)} .* {meaning}\n", report), name
        content = executable.artifacts[f"cuda/cuda/{name}"].text()
        assert shown(capsys, path, "--artifact", name, "--as", "source") == content
    if kind == "library":  # whose own code has none of it
        assert re.search(r"\n +kernels +- in 1\n", report)
        assert re.search(r"\n +softmax +gpu_softmax +- ", report)
    text = shown(capsys, path, "--artifact", "kernels.sm_90a.ptx")
    assert ".target sm_90a" in text and ".reqntid 256, 1, 1" in text
    table = json.loads(shown(capsys, path, "--artifact", "kernels.fmap.json"))
    assert table["functions"]["softmax_device"]["max_threads"] == 256
    signatures = shown(capsys, path, "--as", "inspect_cuda_print-signatures")
    assert signatures == (
        "device softmax_device(buffer, buffer, int64)  256 x 1 x 1 threads, 2244 bytes shared\n"
    )
    together = shown(capsys, path, "--as", "print-signatures")
    assert signatures in together and "graph main(" in together


@pytest.mark.parametrize("kind", KINDS)
def test_metrics(kind: str, forms: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    require_tool("nvdisasm")
    output = shown(capsys, forms[kind], "--as", "metrics")
    for arch in ("sm_80", "sm_90a"):
        line = rf"# cuda/cuda/kernels\.{arch}\.ptx, {arch}\nfunction +threads +shared +registers "
        row = r"spilled .* FFMA .*\nsoftmax_device +256 +2244 +\d+ +0 +8 +100%  threads +\d+ "
        assert re.search(line + " *" + row, output), output
    assert shown(capsys, forms[kind], "--as", "codegen.inspect_cuda_metrics") == output


@pytest.mark.parametrize(("tool", "lacks"), [("ptxas", "registers"), ("nvdisasm", "counts")])
def test_metrics_without_tools(
    tool: str,
    lacks: str,
    forms: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is known without them is shown, and what is not says why."""
    if tool == "nvdisasm":
        require_tool("ptxas")
    monkeypatch.setattr(cuda_tools, f"{tool}_path", lambda: None)
    output = shown(capsys, forms["library"], "--as", "metrics")
    assert re.search(r"softmax_device +256 +2244 ", output)
    assert f"no {lacks}" in output and f"{tool} is not installed" in output
    assert "pip install 'tensorkiln[cuda]'" in output
    assert bool(re.search(r"softmax_device +256 +2244 +- +- +- +- +-\n", output)) == (
        tool == "ptxas"
    )


def test_an_architecture_that_the_assembler_has_not(executable: tk.Executable) -> None:
    require_tool("ptxas")
    files = [a for a in executable.artifacts if a.codegen_id == "cuda"]
    old = [
        Artifact("cuda", "cuda", "k.ptx", a.text().replace("sm_80", "sm_52").encode(), a.target_key)
        for a in files
        if a.file_name == "kernels.sm_80.ptx"
    ]
    table = [a for a in files if a.file_name.endswith(".json")]
    output = "".join(show_metrics([*old, *table]))
    assert "# cuda/cuda/k.ptx, sm_52\n" in output and "has no code for sm_52" in output


def test_nothing_to_measure(executable: tk.Executable) -> None:
    ptx = [a for a in executable.artifacts if a.file_name.endswith(".ptx")]
    with pytest.raises(UserError, match="no PTX here has a table") as caught:
        list(show_metrics(ptx))
    assert caught.value.code == "no-kernels"


@pytest.mark.parametrize("text", ["", ".target sm_80", "\0", ".target sm_80\n.version 99.9\n"])
def test_ptx_that_is_none(text: str, executable: tk.Executable) -> None:
    """The assembler's word for it, and no more."""
    require_tool("ptxas")
    table = executable.artifacts["cuda/cuda/kernels.fmap.json"]
    bad = Artifact("cuda", "cuda", "k.ptx", text.encode(), table.target_key)
    output = "".join(show_metrics([bad, table]))
    assert re.search(r"softmax_device +256 +2244 +- ", output) and "\nno registers" in output


def test_a_table_that_says_anything(executable: tk.Executable, tmp_path: Path) -> None:
    """Of every field every kind of wrong value: a typed error, or text."""
    parsed = json.loads(executable.artifacts["cuda/cuda/kernels.fmap.json"].text())
    accepted_count = 0
    for place in fields(parsed):
        for name, value in values(tmp_path).items():
            data = with_value(parsed, place, value)
            accepted_count += harmless(
                lambda d=data: device_functions_from(d, "x"), tmp_path, (place, name)
            )
    assert accepted_count > 20
    for data in (b"", b"{", b"[]", b'{"functions": []}', b'{"functions": {"f": {}}}'):
        harmless(lambda d=data: device_functions_from(d, "x"), tmp_path, data)


def test_signatures_of_other_devices() -> None:
    """OpenCL's and WebGPU's tables too."""
    mod = KERNELS["softmax"].module()
    for kind, line in (
        ("opencl", r"device softmax_device\(buffer, buffer, int64\)  128 x 1 x 1 threads, 1220 "),
        ("webgpu", r"device softmax_device\(p0: float32, out: float32, N: int32\)  128 x 1 x 1 th"),
    ):
        artifacts = [a for a in tk.compile(mod, kind).artifacts if a.loader == kind]
        inspectors = tk.inspectors.known_inspectors(lambda text: None)
        texts = [
            "".join(row.pieces(files))
            for row, files in inspectors.groups(ArtifactSet(tuple(artifacts)))
            if row.short_name == f"inspect_{kind}_print-signatures"
        ]
        assert len(texts) == 1 and re.match(line, texts[0]), texts


def test_the_report_of_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """PTX under its name, and the same table."""
    mod = KERNELS["softmax_symbolic"].module()
    for has_tool in (True, False):
        if not has_tool:
            monkeypatch.setattr(cuda_tools, "ptxas_path", lambda: None)
        elif cuda_tools.ptxas_path() is None:
            continue
        page = tk.explain(mod, "cuda", seconds=0, sizes={"S": 4}).html()
        (kernel,) = rows(read(page), "kernels")
        assert list(kernel.texts("side")) == ["tensor program, as scheduled", "PTX"]
        table = kernel.texts("open")["metrics"]
        assert re.search(r"softmax_device +256 +2244 +(\d+|-) ", table)
        assert ("ptxas is not installed" in table) == (not has_tool)
