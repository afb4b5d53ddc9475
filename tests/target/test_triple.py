"""Every way to write a machine: a library for that very one, or an error that names the triple and
what is supported; and `check` says what `compile` says, for every kind and tag."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.artifact.c_library import C_LIBRARIES
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import TensorkilnError, UnsupportedError, UserError
from tensorkiln.base.progress import Progress
from tensorkiln.cli.library_report import report_text
from tensorkiln.inspectors.library import inspect_library
from tensorkiln.ir.module import IRModule
from tensorkiln.link.object_format import FORMATS, format_of, library_arch, system_need
from tensorkiln.options import target_of
from tensorkiln.pipeline import plan_for
from tensorkiln.target import Target
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import KINDS
from tensorkiln.target.tags import TAGS
from tensorkiln.target.triple import LIBRARIES, LIBRARY_SYSTEMS, library_system
from tests.transform.graphs import graph

VENDORS = ("", "unknown-", "pc-", "none-", "w64-", "apple-")
SYSTEMS = (
    "linux",
    "linux5.4",
    "macos",
    "macos13.0",
    "darwin",
    "ios17.0",
    "windows",
    "none",
    "",
    "freebsd",
    "freebsd13.2",
    "wasi",
    "emscripten",
    "unknown",
    "android",
    "uclinux",
)
ENVIRONMENTS = (
    "",
    "-gnu",
    "-gnu.2.28",
    "-gnueabihf",
    "-gnux32",
    "-musl",
    "-musleabihf",
    "-android",
    "-android21",
    "-androideabi",
    "-uclibc",
    "-msvc",
    "-mingw32",
    "-elf",
    "-eabi",
    "-macabi",
    "-simulator",
    "-ohos",
)
ARCHS = (
    "x86_64",
    "amd64",
    "aarch64",
    "arm64",
    "i686",
    "armv7",
    "thumbv7em",
    "riscv64",
    "wasm32",
    "powerpc64le",
    "nvptx64",
    "arm64ec",
    "aarch64_be",
)
# What we make is for these alone, however the vendor is written.
MADE = {
    f"{arch}-{vendor}linux{environment}"
    for arch in ("x86_64", "amd64", "aarch64", "arm64", "riscv64")
    for vendor in ("", "unknown-", "pc-", "none-", "apple-")
    for environment in ("", "-gnu", "-musl", "-android")
    if (arch, environment) != ("riscv64", "-android")
}
MODULE = graph(lambda g, x: g.relu(x), x=(4,))


def refusal(spec: Any) -> TensorkilnError | None:
    """What `compile` says of a target, before it compiles anything."""
    try:
        plan_for(target_of(spec))
    except TensorkilnError as error:
        return error
    return None


@pytest.mark.parametrize("arch", ARCHS)
def test_every_triple_is_one_of_ours_or_refused_by_name(arch: str) -> None:
    for vendor, system, environment in itertools.product(VENDORS, SYSTEMS, ENVIRONMENTS):
        triple = f"{arch}-{vendor}{system}{environment}"
        error = refusal({"mtriple": triple})
        try:
            linked: TensorkilnError | str = library_arch(triple)
        except TensorkilnError as link_error:
            linked = link_error
        if triple in MADE:
            assert error is None and linked in LIBRARIES, triple
            continue
        assert type(error) is type(linked) and type(error) in (UserError, UnsupportedError), triple
        if isinstance(error, UserError):
            assert repr(triple) in error.message
            assert error.where == "target.mtriple" and error.hint
        else:
            assert error is not None
            # What is linked may have been made by kind `c`, which makes code for any machine.
            assert "no library is " in str(linked)
            (issue,) = error.issues
            assert issue.node == "target.mtriple"
            canonical = Target({"mtriple": triple}).mtriple
            assert repr(canonical) in issue.message
            assert "x86_64-linux-gnu" in issue.hint or "x86_64, aarch64" in issue.hint


def test_every_system_of_libraries_has_a_format() -> None:
    systems = {f"{s}-{e}": v for s, names in LIBRARY_SYSTEMS.items() for e, v in names.items()}
    assert FORMATS.keys() == systems.keys()
    for system, row in FORMATS.items():
        assert library_system(f"x86_64-unknown-{system}") == system
        assert system.endswith(f"-{row.c_library.environment}")
        assert C_LIBRARIES[row.c_library.name] is row.c_library
        for arch in systems[system].architectures:
            assert systems[system].oldest in ("", row.c_library.need(arch).version)


@pytest.mark.parametrize(
    "triple",
    [
        *("x86_64-linux", "amd64-pc-linux-gnu", "arm64-linux-gnu", "riscv64-linux-gnu"),
        *("amd64-linux-musl", "arm64-linux-musl", "riscv64-linux-musl", "arm64-linux-android"),
    ],
)
def test_what_is_made_is_for_that_machine(triple: str, tmp_path: Path) -> None:
    arch = library_arch(triple)
    baseline = list(ISAS[arch].default_mattr)
    exe = tk.compile(MODULE, {"mtriple": triple, "mattr": baseline}, progress=Progress())
    path = exe.export_library(tmp_path / "a.so")
    binary = binary_of(path.read_bytes(), str(path))
    assert binary is not None and binary.machine == arch
    c_library = format_of(triple).c_library
    assert next(iter(c_library.files)) in binary.needed()
    assert set(binary.needed()) <= c_library.file_names
    report = inspect_library(path)
    need = c_library.need(arch)
    assert report.system == need == report.metadata.system
    assert f"{need}: " in report_text(report)


# -- check and compile agree ---------------------------------------------------------------------

TAG_TARGETS = [tag.reference for tag in TAGS.all()]
KIND_TARGETS: list[Any] = [
    *(name for name in KINDS if name != "composite"),
    "native",
    {"devices": ["llvm", "cuda"]},
    *(
        {"mtriple": f"{arch}-{end}"}
        for arch in ISAS
        for end in (
            "linux-gnu",
            "linux-musl",
            "linux-gnueabihf",
            "none-eabi",
            "unknown-none-elf",
            "unknown-unknown",
            "apple-macos",
            "pc-windows-msvc",
        )
    ),
    {"kind": "llvmjit", "mtriple": "aarch64-linux-gnu"},
    {"kind": "llvmjit", "mtriple": "x86_64-linux-musl", "mcpu": "haswell"},
    {"kind": "llvm", "host": "raspberrypi/4b"},
    {"kind": "llvmjit", "host": "raspberrypi/4b"},
    {"kind": "cuda", "host": "llvm"},
    {"mcpu": "oryon-1"},
    {"mcpu": "oryon-1", "mtriple": "aarch64-linux-gnu"},
]


@pytest.fixture(scope="module")
def model() -> bytes:
    onnx = pytest.importorskip("onnx")
    x, y = (onnx.helper.make_tensor_value_info(n, 1, [4]) for n in "xy")
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    model_proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y]))
    model_proto.ir_version = 8
    data: bytes = model_proto.SerializeToString()
    return data


@pytest.mark.parametrize("spec", [*KIND_TARGETS, *TAG_TARGETS], ids=str)
def test_check_says_what_compile_says(spec: Any, model: bytes) -> None:
    error = refusal(spec)
    if isinstance(error, UnsupportedError):
        assert tk.check(model, spec) == error.issues
        with pytest.raises(UnsupportedError) as caught:
            tk.compile(IRModule(), spec)
        assert caught.value.issues == error.issues
    elif error is not None:
        with pytest.raises(UserError) as refused:
            tk.check(model, spec)
        assert (refused.value.message, refused.value.hint) == (error.message, error.hint)
    else:
        assert tk.check(model, spec) == ()


def test_targets_without_code_are_many() -> None:
    refused = [spec for spec in TAG_TARGETS if refusal(spec) is not None]
    assert len(refused) > 30 and len(TAG_TARGETS) - len(refused) > 100


def test_the_command_says_so(model: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(model)
    command = [sys.executable, "-m", "tensorkiln.cli", "check", str(tmp_path / "m.onnx")]
    process = subprocess.run([*command, "--target", "metal"], capture_output=True, text=True)
    assert process.returncode == 1
    assert "no code generator for kind 'metal'" in process.stdout
    assert "every node can be compiled" not in process.stdout
    process = subprocess.run(
        [*command, "--target", "metal", "--json"], capture_output=True, text=True
    )
    report = json.loads(process.stdout)
    assert report["ok"] is False and report["issues"][0]["node"] == "target.kind"


def test_levels_of_android() -> None:
    """The least one is meant where a triple names none, and an older one is refused."""
    for text, level in (("arm64-linux-android", "24"), ("aarch64-linux-android35", "35")):
        assert Target({"mtriple": text}).mtriple == f"aarch64-unknown-linux-android{level}"
        assert system_need(Target({"mtriple": text}).mtriple).version == level
    error = refusal({"mtriple": "x86_64-linux-android23"})
    assert isinstance(error, UnsupportedError)
    assert "no library is made for linux-android23" in error.issues[0].message
    assert "x86_64-linux-android24" in error.issues[0].hint
    for text in ("x86_64-linux-android-24", "x86_64-linux-android2400", "x86_64-linux-androidx"):
        assert isinstance(refusal({"mtriple": text}), UserError)


def test_llvmjit_is_for_this_system() -> None:
    error = refusal({"kind": "llvmjit", "mtriple": "x86_64-linux-musl"})
    assert isinstance(error, UnsupportedError)
    assert "makes code for this machine" in error.issues[0].message


def test_llvmjit_keeps_what_was_said() -> None:
    plain = target_of("llvmjit")
    assert plain.features == Target("native").features
    jit_target = target_of({"kind": "llvmjit", "winograd": 0, "l2_bytes": 1 << 22})
    assert (jit_target.winograd, jit_target.l2_bytes, jit_target.mcpu) == (0, 1 << 22, plain.mcpu)
