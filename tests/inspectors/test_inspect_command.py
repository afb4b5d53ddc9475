"""`kiln inspect` on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.cli import main
from tensorkiln.external import External
from tensorkiln.inspectors.text import show_json
from tensorkiln.script import from_source
from tests.inspectors.conftest import Forms


def inspect(capsys: Any, *argv: object) -> str:
    assert main(["inspect", *map(str, argv)]) == 0
    out: str = capsys.readouterr().out
    return out


def refused(capsys: Any, *argv: object) -> str:
    assert main(["inspect", *map(str, argv)]) == 2
    err: str = capsys.readouterr().err
    return err


@pytest.mark.parametrize("form", ["library", "folder", "container", "model_folder", "model_tar"])
def test_the_report_names_what_is_inside(forms: Forms, form: str, capsys: Any) -> None:
    path = getattr(forms, form)
    out = inspect(capsys, path, "--all")
    kind = form.partition("_")[0]
    assert f"inside {path} ({kind})" in out
    listed = json.loads(inspect(capsys, path, "--json"))
    assert listed["kind"] == kind
    table = inspect(capsys, path, "--list")
    for row in listed["artifacts"]:
        # Kernels are a line each, whose columns are the files there are of them.
        stem, _, suffix = row["name"].rpartition(".")
        assert f"  {row['name']} " in out or (f"\n  {stem} " in out and f" .{suffix} " in out)
        assert f"\n  {row['name']} " in table
        assert row["inspectors"][-1] == "artifact.inspect_any_hexdump"
    assert "together" in table and "loader.inspect_native_print-signatures" in table


def test_an_artifact_in_each_way(forms: Forms, capsys: Any) -> None:
    artifacts = forms.executable.artifacts
    header = inspect(capsys, forms.folder, "--artifact", "mlp.h")
    assert header == artifacts["mlp.h"].text()
    output = inspect(capsys, forms.library, "--artifact", "host/metadata.json")
    assert output.startswith('{\n  "format": 4,\n')
    assert json.loads(output)["library"] == "mlp"
    dump = inspect(capsys, forms.library, "--artifact", "weights.json", "--as", "hexdump")
    assert dump.startswith("00000000  5b 0a 7b")
    long = "artifact.inspect_any_hexdump"
    assert dump == inspect(capsys, forms.library, "--artifact", "weights.json", "--as", long)
    lines = inspect(capsys, forms.library, "--artifact", "llvm/linear.code", "--list")
    assert "artifact.inspect_code_disassemble" in lines


def test_several_together_and_each(forms: Forms, capsys: Any) -> None:
    assert inspect(capsys, forms.library, "--as", "print-signatures").splitlines() == [
        "graph main(image: float32[batch, 784]) -> logits: float32[batch, 10]",
        "kernel linear_relu  (linear_packed)",
        "kernel linear_relu_2  (linear_packed)",
        "kernel linear  (linear_packed)",
    ]
    # The entry file among the artifacts says the same.
    for form in (forms.folder, forms.container):
        name = "loader.inspect_native_print-signatures"
        assert inspect(capsys, form, "--as", name) == inspect(
            capsys, forms.library, "--as", "inspect_native_print-signatures"
        )
    assert "linear_relu.body0" in inspect(
        capsys, forms.library, "--as", "inspect_llvm_list-functions"
    )
    output = inspect(capsys, forms.folder, "--as", "symbols")
    assert [line for line in output.splitlines() if line.startswith("# ")] == [
        "# llvm/linear_relu.o",
        "# llvm/linear_relu_2.o",
        "# llvm/linear.o",
    ]
    whole = inspect(capsys, forms.library, "--as", "symbols")
    assert "kiln_executor_run" in whole and not whole.startswith("# ")


def test_weights_are_the_same_in_every_form(forms: Forms, capsys: Any) -> None:
    outputs = {
        inspect(capsys, form, "--as", "weights")
        for form in (
            forms.library,
            forms.folder,
            forms.container,
            forms.model_folder,
            forms.model_tar,
        )
    }
    assert len(outputs) == 1 and "layer3.bias" in outputs.pop()


def test_single_files(forms: Forms, capsys: Any) -> None:
    for name in ("llvm/linear.o", "host/entry.c", "ir/module.py", "host/weights.json"):
        path = forms.folder / name
        out = inspect(capsys, path)
        artifact = forms.executable.artifacts[name]
        if name.endswith((".c", ".py")):
            assert out == artifact.text()
        if name.endswith(".json"):
            assert out == show_json(artifact)
        assert "# " in out or out[0] in "[/i"


def test_names_that_are_not_there(forms: Forms, capsys: Any) -> None:
    err = refused(capsys, forms.library, "--artifact", "linear.o")
    assert "llvm/linear.code" in err and "--keep" in err
    assert "'host/weights.bin'" in refused(capsys, forms.library, "--artifact", "host/weight.bin")
    assert "did you mean 'weights'" in refused(capsys, forms.library, "--as", "weight")
    single = forms.folder / "host" / "entry.c"
    assert "no inspector 'weights'" in refused(capsys, single, "--as", "weights")
    assert "'hexdump'" in refused(capsys, forms.library, "--artifact", "weights.bin", "--as", "hex")


def test_extract_everything(forms: Forms, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    output = inspect(capsys, forms.library, "--extract", out)
    assert output == f"{out}: 6 artifact(s), 7 text(s)\n"
    assert (out / "host/weights.bin").read_bytes() == (
        forms.folder / "host/weights.bin"
    ).read_bytes()
    assert (
        "vmov" in (out / "llvm/linear.code.dis").read_text()
        or "mov" in (out / "llvm/linear.code.dis").read_text()
    )
    assert "layer1.bias" in (out / "inspect_host_weights.txt").read_text()
    ElementTree.parse(out / "inspect_host_histograms.svg")
    assert "main(image" in (out / "inspect_native_print-signatures.txt").read_text()
    # A folder of artifacts gives itself back, and can be extracted over what was extracted before.
    inspect(capsys, forms.folder, "--extract", out)
    assert ArtifactSet.load(out) == forms.executable.artifacts
    assert not (out / "llvm/linear.code.dis").exists() and (out / "llvm/linear.o.dis").exists()


def test_extract_one(forms: Forms, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    inspect(
        capsys, forms.folder, "--artifact", "llvm/linear.o", "--as", "symbols", "--extract", out
    )
    files = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}
    assert files == {
        "manifest.json",
        ".kiln-files.json",
        "llvm/linear.o",
        "llvm/linear.o.symbols.txt",
    }
    assert "linear" in (out / "llvm/linear.o.symbols.txt").read_text()


def test_extract_leaves_other_files_alone(forms: Forms, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "was not written by a former run" in refused(
        capsys, forms.library, "--extract", tmp_path
    )
    assert "no inspector 'wieghts'" in refused(
        capsys, forms.library, "--as", "wieghts", "--extract", tmp_path / "new"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_extract_says_what_it_leaves_out(
    forms: Forms, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "capstone", None)
    assert main(["inspect", str(forms.library), "--extract", str(tmp_path / "out")]) == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("6 artifact(s), 4 text(s)\n")
    assert (
        captured.err.count("capstone") == 3 and "llvm/linear.code.dis is left out" in captured.err
    )
    assert not list((tmp_path / "out").rglob("*.dis"))


def test_colours_only_where_they_are_wanted(forms: Forms, capsys: Any) -> None:
    for argv in ([], ["--as", "weights"], ["--list"], ["--artifact", "metadata.json"]):
        plain = inspect(capsys, forms.library, *argv)
        painted = inspect(capsys, forms.library, *argv, "--color", "always")
        assert "\x1b" not in plain and "\x1b[" in painted
        from tests.inspectors.screenshot import letters

        assert letters(painted) == plain


def test_without_pygments_sources_are_plain(
    forms: Forms, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pygments", None)
    output = inspect(capsys, forms.folder, "--artifact", "entry.c", "--color", "always")
    assert output == forms.executable.artifacts["entry.c"].text()


def test_no_code_of_a_library_runs(tmp_path: Path) -> None:
    """Its constructor would leave a file, whatever is asked."""
    mark, source = tmp_path / "ran", tmp_path / "x.c"
    meta = json.dumps(
        {
            "format": 1,
            "library": "x",
            "prefix": "x",
            "cpu_features": [],
            "weights_bytes": 0,
            "functions": [],
            "kernels": [{"symbol": "work", "nodes": []}],
        }
    )
    quoted = meta.replace('"', '\\"')
    source.write_text(
        f'const char meta[] __attribute__((section(".kiln.meta"), used)) = "{quoted}";\n'
        "#include <stdio.h>\n"
        "__attribute__((constructor)) static void start(void)"
        f'{{ FILE *f = fopen("{mark}", "w"); if (f) fclose(f); }}\n'
        "int work(int x) { return x * 7; }\n"
    )
    library = tmp_path / "x.so"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        str(source),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True, capture_output=True)
    for argv in (
        [],
        ["--list"],
        ["--json"],
        ["--as", "print-signatures"],
        ["--as", "disassemble"],
        ["--artifact", "work.code"],
        ["--extract", str(tmp_path / "out")],
    ):
        kiln = [sys.executable, "-m", "tensorkiln.cli", "inspect", str(library), *argv]
        process = subprocess.run(kiln, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
    assert not mark.exists()
    import ctypes

    ctypes.CDLL(str(library))  # the test can fail
    assert mark.exists()


# -- signatures of other loaders -------------------------------------------------------------------

PROVIDED = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
    n = T.int64()
    a: R.Tensor((n, 4), "float32") = R.mul(x, R.const(2.0, "float32"))
    b: R.Tensor((n, 4), "float32") = R.tanh(a)
    return b
"""


def test_signatures_of_a_loader_that_provides_kernels(tmp_path: Path, capsys: Any) -> None:
    """The compile knows them; the library, the folder and the container say them."""

    def emit(function: object, symbol: str) -> list[Artifact]:
        return [Artifact("doubler", "doubler", f"{symbol}.txt", b"2.0", "npu0")]

    external = External("doubler", lambda call, target: call.op == "mul", emit)
    executable = tk.compile(from_source(PROVIDED), "llvm", externals=[external])
    executable.export_library(tmp_path / "net.so")
    executable.artifacts.save(tmp_path / "folder")
    (tmp_path / "net.set").write_bytes(executable.artifacts.to_bytes())
    for form in ("net.so", "folder", "net.set"):
        output = inspect(capsys, tmp_path / form, "--as", "inspect_doubler_print-signatures")
        assert output == (
            "kernel doubler_mul(p0: float32[n, 4]) -> a: float32[n, 4] on npu0"
            "  (external:doubler)\n"
        )
        native = inspect(capsys, tmp_path / form, "--as", "inspect_native_print-signatures")
        assert "graph main(x: float32[n, 4])" in native and "doubler" not in native
        all_signatures = inspect(capsys, tmp_path / form, "--as", "print-signatures")
        assert output in all_signatures and native in all_signatures
    kernels = json.loads(inspect(capsys, tmp_path / "net.so", "--json"))["metadata"]["kernels"]
    (kernel,) = [k for k in kernels if "loader" in k]
    assert (kernel["loader"], kernel["target_key"]) == ("doubler", "npu0")
    inspect(capsys, tmp_path / "net.so", "--extract", tmp_path / "out")
    assert (tmp_path / "out" / "inspect_doubler_print-signatures.txt").read_text() == output


def test_signatures_that_a_loaders_own_files_carry(tmp_path: Path, capsys: Any) -> None:
    table = {
        "functions": [
            {
                "name": "add",
                "inputs": [{"name": "x", "dtype": "float16", "shape": [2, "n"]}],
                "outputs": [{"name": "y", "dtype": "int8", "shape": []}],
            }
        ]
    }
    rows = [
        Artifact("gpu", "cuda", "code.ptx", b""),
        Artifact("gpu", "cuda", "table.json", json.dumps(table).encode()),
        Artifact("npu", "npu", "stream.bin", b"1"),
        Artifact("npu", "npu", "sizes.json", b"[3]"),
    ]
    ArtifactSet(tuple(rows)).save(tmp_path / "set")
    name = "loader.inspect_cuda_print-signatures"
    signature = "kernel add(x: float16[2, n]) -> y: int8[]\n"
    assert inspect(capsys, tmp_path / "set", "--as", name) == signature
    err = refused(capsys, tmp_path / "set", "--as", "inspect_npu_print-signatures")
    assert "what functions loader 'npu' has" in err and "known: those of cuda" in err
    # Of all, those that are known; the others are named.
    assert main(["inspect", str(tmp_path / "set"), "--as", "print-signatures"]) == 0
    captured = capsys.readouterr()
    assert signature in captured.out and "npu_print-signatures is left out" in captured.err
    err = refused(capsys, tmp_path / "set", "--as", "inspect_cudda_print-signatures")
    assert "did you mean 'inspect_cuda_print-signatures'" in err
    rows[1] = Artifact("gpu", "cuda", "table.json", b'{"functions": [{"name": 3}]}')
    ArtifactSet(tuple(rows)).save(tmp_path / "bad")
    err = refused(capsys, tmp_path / "bad", "--as", name)
    assert "gpu/table.json.functions[0].name: expected str, got int" in err


def test_the_end_of_a_name_is_enough(tmp_path: Path, capsys: Any) -> None:
    rows = [
        Artifact("a", "b", "deep/one.txt", b"one"),
        Artifact("a", "b", "deep/two.txt", b"2"),
        Artifact("a", "b", "two.txt", b"two"),
    ]
    ArtifactSet(tuple(rows)).save(tmp_path / "set")
    assert inspect(capsys, tmp_path / "set", "--artifact", "one.txt") == "one\n"
    assert inspect(capsys, tmp_path / "set", "--artifact", "two.txt") == "two\n"
    assert "did you mean 'a/deep/one.txt'" in refused(
        capsys, tmp_path / "set", "--artifact", "a/deep/on.txt"
    )


@pytest.mark.parametrize("content", [b"", b"junk" * 99, b"\x7fELF", b"KILNSET\0", b"!<arch>\nx"])
def test_damaged_files_are_named(content: bytes, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "net.so"
    path.write_bytes(content)
    err = refused(capsys, path, *(["--as", "symbols"] if content[:4] == b"junk" else []))
    assert err.startswith("kiln: error: ") and "net.so: " in err and "file/net.so" not in err
