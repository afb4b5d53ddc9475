"""A library with kernels for several processors runs those of the last one that it can, with the
results of a library for that one alone, and names what the least one lacks."""

from __future__ import annotations

import ctypes
import json
import pickle
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.cli import main
from tensorkiln.codegen.host.entry_c import Level
from tensorkiln.kernels.case import rand
from tensorkiln.library.export import export_library
from tensorkiln.pipeline import plan_for, relax_passes
from tensorkiln.runtime.library_file import read_metadata
from tensorkiln.script import from_source
from tensorkiln.target import Target, runnable_level
from tests.emulated.machine import AARCH64, Emulated
from tests.transform.graphs import graph

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
FAT: dict[str, object] = {"kind": "llvm", "mcpu": list(LEVELS)}
# What a processor of the level below lacks: the word of cpuid, by leaf and register, and the bit.
LACKS = {"below": "1 2 19", "v2": "7 1 5", "v3": "7 1 16", "all": "0 0 0"}

pytestmark = pytest.mark.filterwarnings("ignore:.*is the baseline")


def network(g: Any, x: Any) -> Any:
    """Convolutions, a residual, pooling, a classifier, a softmax."""
    y = g.relu(g.conv2d(x, rand(20, 3, 3, 3), rand(20), padding=(1, 1, 1, 1)))
    z = g.add(g.conv2d(y, rand(20, 20, 3, 3, seed=1), padding=(1, 1, 1, 1)), y)
    p = g.mean(g.max_pool2d(z, kernel=(2, 2), strides=(2, 2)), axes=(2, 3))
    return g.softmax(g.linear(p, rand(20, 10), rand(10)), axis=1)


NETWORK = graph(network, x=(2, 3, 8, 8))
X = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)


def branches() -> onnx.ModelProto:
    """A product in one branch of an If, its negative in the other: host code with control flow."""
    w = numpy_helper.from_array(np.asarray(rand(40, 24).data, np.float32), "w")

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, [3, 24])
        return helper.make_graph(nodes, name, [], [out])

    product = helper.make_node("MatMul", ["x", "w"], ["p"])
    negative = [
        helper.make_node("MatMul", ["x", "w"], ["q"]),
        helper.make_node("Neg", ["q"], ["n"]),
    ]
    choice = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("then", product),
        else_branch=branch("else", *negative),
    )
    info = helper.make_tensor_value_info
    inputs = [info("c", TensorProto.BOOL, []), info("x", TensorProto.FLOAT, [3, 40])]
    result = [info("y", TensorProto.FLOAT, [3, 24])]
    whole = helper.make_graph([choice], "branches", inputs, result, [w])
    return helper.make_model(whole, opset_imports=[helper.make_opsetid("", 17)])


def level_of(path: Path) -> str:
    """The level that a library runs, which must be there."""
    function = ctypes.CDLL(str(path)).kiln_processor_level
    function.restype = ctypes.c_char_p
    text = function()
    assert isinstance(text, bytes)
    return text.decode()


def last_here() -> int:
    """The number of the last level that this machine can run."""
    number = runnable_level([Target({"mcpu": x}).required_features for x in LEVELS], "x86_64")
    if number is None:
        pytest.skip(f"this machine lacks what {LEVELS[0]} has")
    return number


@pytest.fixture(scope="module")
def fat() -> tk.Executable:
    return tk.compile(NETWORK, FAT, name="net")


@pytest.fixture(scope="module")
def pretending(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, whose runtime clears a bit of cpuid that the environment names."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("pretending")
    header = folder / "pretend.h"
    header.write_text("""#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static inline void pretend(uint32_t leaf, uint32_t sub, uint32_t r[4])
{
    unsigned lacks[3] = {0, 0, 0};
    const char *text = getenv("LACKS");
    __asm__ volatile("cpuid"
                     : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(sub));
    if (text != NULL && sscanf(text, "%u %u %u", &lacks[0], &lacks[1], &lacks[2]) == 3 &&
        lacks[0] != 0 && lacks[0] == leaf && sub == 0)
        r[lacks[1]] &= ~((uint32_t)1 << lacks[2]);
}
#define CPUID(leaf, sub, r) pretend(leaf, sub, r)
#define XGETBV(low, high) __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0))
""")
    path = folder / "net.so"
    exe = tk.compile(NETWORK, FAT, name="net")
    return exe.export_library(path, fcompile=f"gcc -include {header}")


@pytest.mark.parametrize(("lacks", "number"), [("v2", 0), ("v3", 1), ("all", 2)])
def test_each_level_is_chosen_and_gives_the_bits_of_its_own_library(
    lacks: str, number: int, pretending: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACKS", LACKS[lacks])
    path = Path(shutil.copy(pretending, tmp_path / f"{lacks}.so"))
    expected = LEVELS[min(number, last_here())]
    y = np.asarray(tk.load(path)(X))
    assert level_of(path) == expected
    single = tk.compile(NETWORK, {"kind": "llvm", "mcpu": expected}, name="net")
    assert y.tobytes() == np.asarray(single(X)).tobytes()


def test_what_the_least_level_lacks_is_named(
    pretending: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LACKS", LACKS["below"])
    path = Path(shutil.copy(pretending, tmp_path / "below.so"))
    with pytest.raises(UserError, match=r"this processor lacks 'sse4\.1', which library net"):
        tk.load(path)
    assert level_of(path) == LEVELS[0]


EMULATED = {"Nehalem": 0, "Westmere": 0, "Haswell": 1, "EPYC": 1, "Conroe": None}


@pytest.mark.parametrize("cpu", EMULATED)
def test_on_emulated_processors(cpu: str, fat: tk.Executable, tmp_path: Path) -> None:
    """A program in C, as qemu's user mode shows processors to it."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None or shutil.which("gcc") is None:
        pytest.skip("qemu-x86_64 is not installed" if emulator is None else "gcc is not installed")
    library, number = fat.export_library(tmp_path / "net.so"), EMULATED[cpu]
    (tmp_path / "host.c").write_text("""#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
    void *library = dlopen(words[count - 1], RTLD_NOW);
    static float x[2 * 3 * 8 * 8], y[2 * 10];
    if (library == NULL || fread(x, sizeof x, 1, stdin) != 1)
        return 2;
    const char *(*level)(void) = (const char *(*)(void))dlsym(library, "kiln_processor_level");
    const char *(*error)(void) = (const char *(*)(void))dlsym(library, "net_last_error");
    typedef int function(const float *, float *);
    function *run = (function *)dlsym(library, "net_main");
    const int code = run(x, y);
    fprintf(stderr, "%s %s", level(), code == 0 ? "" : error());
    return fwrite(y, sizeof y, 1, stdout) == 1 && code == 0 ? 0 : 1;
}
""")
    subprocess.run(["gcc", "host.c", "-o", "host", "-ldl"], cwd=tmp_path, check=True)
    process = subprocess.run(
        [emulator, "-cpu", cpu, tmp_path / "host", library], input=X.tobytes(), capture_output=True
    )
    words = process.stderr.decode()
    if number is None:
        assert process.returncode == 1 and "this processor lacks 'popcnt'" in words, words
        return
    assert process.returncode == 0 and words.split()[-1] == LEVELS[number], words
    if number <= last_here():
        single = tk.compile(NETWORK, {"kind": "llvm", "mcpu": LEVELS[number]}, name="net")
        assert process.stdout == np.asarray(single(X)).tobytes()


@pytest.mark.parametrize("condition", [True, False])
def test_control_flow(condition: bool, tmp_path: Path) -> None:
    model, x = branches(), np.random.default_rng(1).normal(size=(3, 40)).astype(np.float32)
    path = tk.compile(model, FAT, name="net").export_library(tmp_path / "net.so")
    single = tk.compile(model, {"kind": "llvm", "mcpu": LEVELS[last_here()]}, name="net")
    y = np.asarray(tk.load(path)(np.array(condition), x))
    assert y.tobytes() == np.asarray(single(np.array(condition), x)).tobytes()
    assert level_of(path) == LEVELS[last_here()]


def _reference() -> bytes:
    single = tk.compile(NETWORK, {"kind": "llvm", "mcpu": LEVELS[last_here()]}, name="net")
    return np.asarray(single(X)).tobytes()


def _beside(exe: tk.Executable, folder: Path) -> Path:
    return exe.export_library(folder / "net.so", weights="beside")


def _saved(exe: tk.Executable, folder: Path) -> Path:
    exe.artifacts.save(folder / "saved")
    artifacts = tk.ArtifactSet.load(folder / "saved")
    path = export_library(artifacts, folder / "net.so", None, None, (), (), "embedded", {})
    assert path.read_bytes() == exe.export_library(folder / "same.so").read_bytes()
    return path


def _pickled(exe: tk.Executable, folder: Path) -> Path:
    again = pickle.loads(pickle.dumps(exe))
    assert isinstance(again, tk.Executable)
    return again.export_library(folder / "net.so")


def _as_archive(exe: tk.Executable, folder: Path) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    archive = exe.export_library(folder / "net.a")
    words = ["-shared", "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-o", "net.so"]
    subprocess.run(["gcc", *words, "-lpthread", "-ldl", "-lm"], cwd=folder, check=True)
    function = ctypes.CDLL(str(folder / "net.so")).net_main
    y = np.zeros((2, 10), np.float32)
    assert function(X.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p)) == 0
    assert y.tobytes() == _reference()
    return exe.export_library(folder / "shared.so")


@pytest.mark.parametrize("form", [_beside, _saved, _pickled, _as_archive])
def test_every_form_of_a_library(
    form: Callable[[tk.Executable, Path], Path], fat: tk.Executable, tmp_path: Path
) -> None:
    path = form(fat, tmp_path)
    assert np.asarray(tk.load(path)(X)).tobytes() == _reference()
    assert level_of(path) == LEVELS[last_here()]


def test_equal_weights_are_stored_once(fat: tk.Executable) -> None:
    """Two levels with one layout, such as v4 and a processor with more instructions, share all."""
    singles = [tk.compile(NETWORK, {"kind": "llvm", "mcpu": x}, name="net") for x in LEVELS]
    sizes = [exe.weights_bytes for exe in singles]
    assert max(sizes) < fat.weights_bytes <= sum(sizes)
    pair = tk.compile(NETWORK, {"kind": "llvm", "mcpu": ["x86-64-v4", "cascadelake"]}, name="net")
    assert pair.weights_bytes == sizes[2]


def test_what_a_library_says_of_itself(
    fat: tk.Executable, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = fat.export_library(tmp_path / "net.so")
    metadata = read_metadata(path)
    assert metadata["format"] == 6 and metadata["target"]["mcpu"] == list(LEVELS)
    assert [row["mcpu"] for row in metadata["levels"]] == list(LEVELS)
    assert metadata["cpu_features"] == metadata["levels"][0]["cpu_features"]
    assert {k["level"] for k in metadata["kernels"]} == set(LEVELS)
    level = LEVELS[last_here()]
    assert main(["inspect", str(path)]) == 0
    report = capsys.readouterr().out
    assert f"{level} (here)" in report and all(x in report for x in LEVELS)
    assert main(["inspect", "--json", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["metadata"]["levels"] == metadata["levels"]
    single = tk.compile(NETWORK, {"kind": "llvm", "mcpu": level}, name="net")
    assert fat.placement() == single.placement()
    causes = {c.cause: c.more for c in fat.memory().weights.causes}  # type: ignore[union-attr]
    assert causes["packed for other processors"] == fat.weights_bytes - single.weights_bytes
    assert repr(tk.load(path)).startswith("<LoadedModel")
    assert any(c.name == "tensorkiln-runtime" for c in fat.components())


def test_it_is_verified_as_what_runs_here(fat: tk.Executable) -> None:
    last_here()
    result = tk.verify(fat, NETWORK, {"x": X})
    assert result.ok, result


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(branches(), tmp_path / "b.onnx")
    target = json.dumps(FAT)
    words = ["compile", str(tmp_path / "b.onnx"), "--target", target, "-o", str(tmp_path / "b.so")]
    assert main(words) == 0
    assert level_of(tmp_path / "b.so") == LEVELS[last_here()]
    capsys.readouterr()
    assert main(["targets", target]) == 0
    text = capsys.readouterr().out
    assert all(x in text for x in LEVELS)
    assert main(["targets", "--json", target]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["target"]["mcpu"] for row in facts["levels"]] == list(LEVELS)


BAD: list[tuple[Mapping[str, object], str]] = [
    ({"kind": "c", "mcpu": list(LEVELS)}, "kind 'llvm' makes libraries for several"),
    ({"kind": "llvmjit", "mcpu": list(LEVELS)}, "kind 'llvm' makes libraries for several"),
    ({"mcpu": ["znver3", "x86-64-v4"]}, "'x86-64-v4' lacks 'sse4a', which 'znver3' has"),
    ({"mcpu": ["icelake-client", "rocketlake"]}, "needs the same features"),
    ({"mcpu": ["x86-64-v3", "x86-64-v9"]}, "unknown processor 'x86-64-v9'"),
    ({"mcpu": ["x86-64-v3", 7]}, "expected a list of text"),
    ({"mcpu": []}, "expected text"),
    ({"mcpu": list(LEVELS), "optimize": "size", "winograd": 4}, "its weights are larger"),
]


@pytest.mark.parametrize(("spec", "words"), BAD, ids=range(len(BAD)))
def test_levels_that_contradict_each_other(spec: Mapping[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Target(spec)


def test_one_spelling() -> None:
    """The least level first, whatever the order, and a list of one is that one."""
    assert Target({"mcpu": list(reversed(LEVELS))}) == Target(FAT)
    assert Target({"mcpu": ",".join(LEVELS)}) == Target(FAT)
    assert Target({"mcpu": [LEVELS[1], LEVELS[1]]}) == Target({"mcpu": LEVELS[1]})
    t = Target({"mcpu": list(LEVELS), "mattr": ["+gfni"], "winograd": 2, "l2_bytes": 1 << 20})
    assert Target(str(t)) == t and t.mcpu == LEVELS[0]
    assert Target(FAT).l2_bytes == Target({"mcpu": LEVELS[0]}).l2_bytes
    for level, name in zip(t.levels, LEVELS, strict=True):
        spec = {"mcpu": name, "mattr": ["+gfni"], "winograd": 2, "l2_bytes": 1 << 20}
        assert level == Target(spec)
    assert Target({"mcpu": LEVELS[0]}).levels == ()
    names = ["x86-64-v2", "x86-64-v3", "cascadelake", "sapphirerapids"]
    assert [level.mcpu for level in Target("x86-64").levels] == names


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "archive": (
        lambda: tk.compile(NETWORK, FAT).export_model_library_format("x.tar"),
        "has the code of one processor",
    ),
    "debug": (lambda: tk.compile(NETWORK, FAT, debug=True), "several processors cannot have debug"),
    "plan": (lambda: plan_for(Target(FAT)), "expected one processor"),
    "passes": (lambda: relax_passes(Target(FAT)), "expected one processor"),
    "host": (
        lambda: tk.compile(NETWORK, {"kind": "opencl", "host": FAT}),
        r"target\.host\.mcpu: expected one processor",
    ),
    "device": (
        lambda: tk.compile(NETWORK, {"devices": [{**FAT, "target_key": "a"}]}),
        "expected one processor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_made_for_several(case: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    action, words = REFUSED[case]
    with pytest.raises(UnsupportedError, match=words):
        action()
    assert list(tmp_path.iterdir()) == []


def test_the_module_after_every_pass_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_DUMP", str(tmp_path / "stages"))
    tk.compile(NETWORK, FAT)
    assert sorted(p.name for p in (tmp_path / "stages").iterdir()) == sorted(LEVELS)
    assert all((tmp_path / "stages" / x / "00-input.py").is_file() for x in LEVELS)


def test_a_library_of_a_program_names_its_level() -> None:
    exe = tk.compile(NETWORK, FAT, system_lib_prefix="net_")
    assert '"kiln_processor_level"' in exe.artifacts["system_lib.c"].text()
    single = tk.compile(NETWORK, "native", system_lib_prefix="net_")
    assert "kiln_processor_level" not in single.artifacts["system_lib.c"].text()


@pytest.mark.parametrize("cpu", ["cortex-a72", "neoverse-n1"])
def test_levels_of_aarch64(cpu: str, tmp_path: Path) -> None:
    AARCH64.require()
    levels, triple = ["cortex-a72", "neoverse-n1"], {"mtriple": "aarch64-linux-gnu"}
    path = tk.compile(NETWORK, {**triple, "mcpu": levels}).export_library(tmp_path / "net.so")
    rows = read_metadata(path)["levels"]
    assert [r["mcpu"] for r in rows] == levels and rows[0]["cpu_features"] == []
    single = tk.compile(NETWORK, {**triple, "mcpu": cpu}).export_library(tmp_path / "one.so")
    y, expected = (Emulated(AARCH64, p, cpu)["main"](X) for p in (path, single))
    assert y.tobytes() == expected.tobytes()


def test_names_in_c() -> None:
    assert Level("x86-64-v3", 2).tables == "kiln_library_x86_64_v3"


def test_a_kernel_with_the_name_of_another_one_for_a_level() -> None:
    """A module of the caller's may have any names; a clash is refused, not linked."""
    texts = [
        f"""@T.prim_func
def {name}(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")) -> None:
    T.func_attr({{"global_symbol": "{name}"}})
    for i in range(4):
        Y[i] = X[i] + T.float32(1)
"""
        for name in ("plus", "x86_64_v3_plus")
    ]
    with pytest.raises(UserError, match="'x86_64_v3_plus' is the name of a kernel for 'x86-64-v3'"):
        tk.compile(from_source("\n".join(texts)), FAT)
