"""What is written: names, equal bytes, what is refused, and what metadata says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.mlf.metadata import LibraryMetadata
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import TensorkilnError, UnsupportedError, UserError
from tensorkiln.codegen.host.function import host_function, tensor_param
from tensorkiln.codegen.host.interface import model_interface
from tensorkiln.external.example import C_REFERENCE
from tensorkiln.ir.expr import Var
from tensorkiln.kernels.case import rand
from tensorkiln.mlf.weights_c import write_weights_c
from tensorkiln.script import from_source
from tests.audit.process import ROOT, python
from tests.mlf.build import needs_gcc, run
from tests.transform.graphs import graph


def net(**params: object) -> tk.Executable:
    shapes = params or {"x": (1, 8)}
    return tk.compile(graph(lambda g, x, *weights: g.relu(g.linear(x, rand(8, 8))), **shapes))


@pytest.fixture(scope="module")
def executable() -> tk.Executable:
    return net()


# -- names ------------------------------------------------------------------------------------


def test_the_callers_name(executable: tk.Executable, tmp_path: Path) -> None:
    """That of the call, of `compile`, or of the file; never the graph's."""
    named = tk.compile(graph(lambda g, x: g.relu(x), x=(1,)), name="asked")
    for exe, name, file, expected in (
        (executable, None, "kws.tar", "kws"),
        (executable, None, "key word.tar", "key_word"),
        (executable, "vad", "kws.tar", "vad"),
        (named, None, "kws.tar", "asked"),
        (named, "vad", "kws.tar", "vad"),
    ):
        path = exe.export_model_library_format(tmp_path / file, name)
        (model,) = open_model_library(path).models().values()
        assert (model.model_name, model.prefix) == (expected, f"kiln_{expected}")
        text = "".join(
            bytes(f.view).decode()
            for n, f in open_model_library(path).files.items()
            if n.startswith("codegen") and n.endswith((".c", ".h"))
        )
        assert "main_graph" not in text and "kiln_model" not in text


def test_models_need_names(executable: tk.Executable, tmp_path: Path) -> None:
    path = tmp_path / "m.tar"
    named = tk.compile(graph(lambda g, x: g.relu(x), x=(1,)), name="a")
    cases: list[tuple[object, str, str]] = [
        ([named, executable], "no-name", "model 1 has no name but its graph's, 'model'"),
        ([named, named], "name-clash", "models 0 and 1 are both named 'a'"),
        ({"a b": named}, "bad-name", "'a b'"),
        ({"": named}, "bad-name", "''"),
        ([], "nothing-to-export", "at least one"),
        ({"x": 5}, "wrong-type", "model 'x'"),
        ({3: named}, "wrong-type", "a model's name"),
        (5, "wrong-type", "models"),
    ]
    for models, code, words in cases:
        with pytest.raises(UserError) as caught:
            tk.export_model_library_format(models, path)  # type: ignore[arg-type]
        assert caught.value.code == code and words in caught.value.message, caught.value
    assert not list(tmp_path.iterdir())


TWO_FUNCTIONS = """
@R.function
def a_b(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
    y: R.Tensor((1,), "float32") = R.relu(x)
    return y

@R.function
def main(x: R.Tensor((1,), "float32")) -> R.Tensor((1,), "float32"):
    y: R.Tensor((1,), "float32") = R.relu(x)
    return y
"""


def test_clashes_name_both(tmp_path: Path) -> None:
    two = tk.compile(from_source(TWO_FUNCTIONS))
    cases = (
        ({"m": net(x=(1, 8), X=(1, 8))}, "'x' (parameter 0)", "'X' (parameter 1)"),
        ({"net": two, "net_a_b": net()}, "'a_b' of model 'net'", "'main' of model 'net_a_b'"),
        ({"m": net(), "m_kernel": net()}, "", ""),  # one name begins with the other: no clash
    )
    for models, first, second in cases:
        path = tmp_path / "m.tar"
        if not first:
            tk.export_model_library_format(models, path)
            continue
        with pytest.raises(UserError) as caught:
            tk.export_model_library_format(models, path)
        assert caught.value.code == "name-clash" and not path.exists()
        assert first in caught.value.message and second in caught.value.message


def test_tensors_of_one_name_in_c() -> None:
    tensors = [tensor_param(name, "float32", (4,), {}) for name in ("a.b", "a_b", "c")]
    for inputs in (tensors, tensors[::-1]):
        with pytest.raises(UserError, match=r"'a[._]b' \(parameter \d\) and 'a[._]b'") as caught:
            model_interface("m", [host_function("main", "graph", inputs=inputs)])
        assert caught.value.code == "name-clash"
    result = tensor_param("a_b", "float32", (4,), {}, role="out")
    function = host_function("main", "graph", inputs=tensors[:1], outputs=[result])
    model_interface("m", [function])  # an input and an output are members of two structs


# -- equal bytes ------------------------------------------------------------------------------

SCRIPT = """
import sys
import tensorkiln as tk
from tests.mlf.test_programs import CASES
from tensorkiln.codegen.host.function import host_function, tensor_param
from tensorkiln.codegen.host.interface import model_interface
from tensorkiln.external.example import C_REFERENCE

first = tk.compile(CASES["cnn of any batch"][0], "llvm")
second = tk.compile(CASES["linear"][0], "llvm", externals=[C_REFERENCE])
tk.export_model_library_format({"a": first, "b": second}, sys.argv[1])
"""


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    """Whatever the process, the folder, the seed of hashes, and the cache."""
    archives = []
    for i, cache in enumerate(("1", "0")):
        folder = tmp_path / f"folder{i}"
        folder.mkdir()
        environment = {"PYTHONHASHSEED": str(i + 1), "KILN_CACHE": cache, "TZ": f"UTC+{i}"}
        python(SCRIPT, (folder / "m.tar",), folder=folder, environment=environment)
        archives.append((folder / "m.tar").read_bytes())
    assert archives[0] == archives[1]
    assert str(ROOT).encode() not in archives[0] and str(tmp_path).encode() not in archives[0]


# -- what is refused --------------------------------------------------------------------------

OUTER = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Object:
    y: R.Object = R.call_packed("f", x)
    return y
"""
ASSERTS = """
@T.prim_func
def main(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
    for i in range(4):
        assert x[i] > T.float32(0), "positive"
        y[i] = x[i]
"""


def test_what_needs_a_runtime_is_refused(tmp_path: Path) -> None:
    extra = tk.Artifact("npu", "npu", "blob.bin", b"1")
    loaded = net()
    loaded.artifacts = loaded.artifacts.add([extra])
    cases = (
        (tk.compile(from_source(OUTER)), "main: host steps"),
        (tk.compile(from_source(ASSERTS)), "has assertions"),
        (tk.compile(graph(lambda g, x: g.relu(x), x=(1,)), "llvmjit"), "target llvmjit"),
        (loaded, "npu/blob.bin"),
    )
    for exe, words in cases:
        with pytest.raises(UnsupportedError) as caught:
            exe.export_model_library_format(tmp_path / "m.tar")
        assert words in caught.value.message, caught.value
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["net.zip", "net.tar.gz", "net.so"])
def test_other_suffixes(name: str, executable: tk.Executable, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        executable.export_model_library_format(tmp_path / name)
    assert caught.value.code == "unknown-suffix" and "net" in caught.value.hint


# -- what metadata says -----------------------------------------------------------------------


def test_the_figures(tmp_path: Path) -> None:
    mod = graph(
        lambda g, x: g.softmax(g.linear(g.relu(g.linear(x, rand(8, 16))), rand(16, 4))), x=(2, 8)
    )
    exe = tk.compile(mod)
    library = open_model_library(exe.export_model_library_format(tmp_path / "net.tar"))
    model = library.model()
    f = model.functions["main"]
    assert f.io_size_bytes == 2 * 8 * 4 + 2 * 4 * 4
    assert f.workspace_size_bytes == exe.functions[0].workspace_bytes
    assert [p.size_bytes for p in f.pools] == [f.workspace_size_bytes]
    weights = exe.artifacts["weights.bin"]
    assert f.constants_size_bytes == model.constants.size_bytes == weights.size
    place = model.placed["host/weights.bin"]
    data = library.files[place.path].part(place.offset, place.size_bytes)
    assert bytes(data) == bytes(weights.view)
    assert model.target == {"host": exe.target.to_json()}
    assert set(f.kernels) == {k.symbol for k in model.kernels}
    for kernel in model.kernels:
        binary = binary_of(library.files[kernel.path].view, kernel.path)
        assert kernel.symbol in {s.name for s in binary.symbols() if s.is_defined}


def test_stack_buffers(tmp_path: Path) -> None:
    text = """
@T.prim_func
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    a = T.alloc_buffer((64,), "float32")
    b = T.alloc_buffer((16,), "float32")
    for i in range(64):
        a[i] = x[i]
    for i in range(16):
        b[i] = T.float32(1)
    for i in range(64):
        y[i] = a[63 - i] + b[i // 4]
"""
    exe = tk.compile(from_source(text), tir_pipeline=None)
    model = open_model_library(exe.export_model_library_format(tmp_path / "net.tar")).model()
    assert model.functions["main"].stack_buffers_bytes == 64 * 4 + 16 * 4
    external = tk.compile(graph(lambda g, x: g.relu(x), x=(8,)), externals=[C_REFERENCE])
    model = open_model_library(external.export_model_library_format(tmp_path / "e.tar")).model()
    assert model.functions["main"].stack_buffers_bytes is None


def test_sizes_that_are_symbolic(tmp_path: Path) -> None:
    library = open_model_library(
        net(x=(Var("n"), 8)).export_model_library_format(tmp_path / "m.tar")
    )
    f = library.model().functions["main"]
    assert f.symbols == {"n": 0} and f.inputs[0].size_bytes == "n * 8 * 4"
    assert f.io_size_bytes == "n * 8 * 4 + n * 8 * 4"
    assert eval(str(f.io_size_bytes), {}, {"n": 3}) == 2 * 3 * 8 * 4


def test_the_json_is_what_was_read(executable: tk.Executable, tmp_path: Path) -> None:
    library = open_model_library(executable.export_model_library_format(tmp_path / "m.tar"))
    data = bytes(library.files["metadata.json"].view)
    assert library.metadata is not None and library.metadata.to_bytes() == data
    assert LibraryMetadata.from_bytes(data, "") == library.metadata
    assert json.loads(data)["version"] == 8


@needs_gcc
def test_constants_in_c(tmp_path: Path) -> None:
    """Of every length, as the bytes that they are."""
    for size in (1, 3, 4, 31, 32, 33, 64, 1000):
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
        with (tmp_path / "w.c").open("w") as stream:
            write_weights_c(stream, "w", data, ())
        (tmp_path / "m.c").write_text(
            "#include <stdint.h>\n#include <stdio.h>\nextern const uint32_t w[];\n"
            f"int main(void) {{ fwrite(w, 1, {size}, stdout); return (int)((uintptr_t)w & 63); }}\n"
        )
        flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
        run(["gcc", *flags, tmp_path / "w.c", tmp_path / "m.c", "-o", tmp_path / "m"])
        process = subprocess.run([tmp_path / "m"], capture_output=True, check=True)
        assert process.stdout == data


def test_errors_are_typed_whatever_is_given(executable: tk.Executable, tmp_path: Path) -> None:
    for value in (None, 5, b"x", "", "a\0b", [], {}, object()):
        with pytest.raises(TensorkilnError):
            executable.export_model_library_format(value)  # type: ignore[arg-type]
        if value is not None:
            with pytest.raises(TensorkilnError):
                executable.export_model_library_format(tmp_path / "m.tar", value)  # type: ignore[arg-type]
    assert sys.modules and not list(tmp_path.iterdir())
