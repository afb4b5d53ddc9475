from __future__ import annotations

import contextlib
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorkiln.artifact import Artifact
from tensorkiln.artifact.metadata import (
    DeviceInfo,
    FunctionInfo,
    KeptInfo,
    KernelInfo,
    Metadata,
    ParamInfo,
    PoolInfo,
    artifact_infos,
    read_devices,
)
from tensorkiln.artifact.read_binary import read_binary
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.library import inspect_library

METADATA = Metadata(
    library="net",
    prefix="net",
    compiler_version="0.1.0",
    target={"kind": "llvm", "mcpu": "haswell"},
    cpu_features=("avx2", "fma"),
    weights_bytes=1024,
    functions=(
        FunctionInfo(
            "main",
            "graph",
            (ParamInfo("x", "float32", ("batch", 3, 224, 224)),),
            (ParamInfo("y", "float32", ("batch", 1000), "out"),),
            {"batch": 1},
            "batch * 4096",
            2,
        ),
        FunctionInfo("scale", "tensor", (ParamInfo("n", "int64", None, "scalar"),), ()),
    ),
    kernels=(KernelInfo("k_conv", ("conv1", "relu1"), "conv_direct", 64), KernelInfo("k_pool")),
    artifacts=artifact_infos([Artifact("llvm", "native", "conv.o", b"123")]),
)


def test_round_trip() -> None:
    assert Metadata.from_bytes(METADATA.to_bytes()) == METADATA
    assert Metadata.from_bytes(METADATA.to_bytes() + b"\0\0\0") == METADATA
    assert METADATA.to_bytes().isascii()


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name != key}


def test_library_linked_by_hand_has_less() -> None:
    plain: dict[str, Any] = METADATA.to_json()
    for key in ("compiler", "target", "kernels", "artifacts"):
        plain = without(plain, key)
    metadata = Metadata.from_json(plain)
    assert metadata.functions == METADATA.functions
    assert (metadata.compiler_version, metadata.kernels, metadata.artifacts) == ("", (), ())


def test_pools_of_a_function() -> None:
    (f, *other_functions) = METADATA.functions
    pools = (PoolInfo("dtcm", 4096, 8), PoolInfo("sram", "n * 4", 32))
    pooled = replace(METADATA, functions=(replace(f, pools=pools), *other_functions))
    assert Metadata.from_bytes(pooled.to_bytes()) == pooled
    assert b'"pools"' in pooled.to_bytes() and b'"pools"' not in METADATA.to_bytes()


def test_kept_outputs_of_a_function() -> None:
    (f, *other_functions) = METADATA.functions
    kept_outputs = (KeptInfo(0, "k_conv", ("n1_relu", "n2_reshape")),)
    metadata = replace(METADATA, functions=(replace(f, kept=kept_outputs), *other_functions))
    assert Metadata.from_bytes(metadata.to_bytes()) == metadata
    assert metadata.to_json()["format"] == 3 and METADATA.to_json()["format"] == 2
    assert b'"kept"' in metadata.to_bytes() and b'"kept"' not in METADATA.to_bytes()


def test_devices_of_a_library() -> None:
    (f, *other_functions) = METADATA.functions
    x = replace(f.inputs[0], device=1)
    devices = (DeviceInfo("host", "cpu", 0), DeviceInfo("gpu", "opencl", 1))
    functions = (replace(f, inputs=(x, *f.inputs[1:])), *other_functions)
    metadata = replace(METADATA, functions=functions, devices=devices)
    assert Metadata.from_bytes(metadata.to_bytes()) == metadata
    assert read_devices(metadata.to_json(), "it") == devices
    assert read_devices(METADATA.to_json(), "it") == ()
    assert b'"device' in metadata.to_bytes() and b'"device' not in METADATA.to_bytes()


@pytest.mark.parametrize(
    ("path", "value", "location"),
    [
        (["format"], 7, "metadata"),
        (["format"], 0, "metadata"),
        (["format"], None, "metadata.format"),
        (["library"], 5, "metadata.library"),
        (["weights_bytes"], True, "metadata.weights_bytes"),
        (["functions"], {}, "metadata.functions"),
        (["functions", 0], 5, "metadata.functions[0]"),
        (["functions", 0, "inputs", 0, "shape"], [1.5], "metadata.functions[0].inputs[0].shape"),
        (["functions", 0, "workspace_bytes"], [], "metadata.functions[0].workspace_bytes"),
        (["functions", 0, "kept"], {}, "metadata.functions[0].kept"),
        (["functions", 0, "kept"], [5], "metadata.functions[0].kept[0]"),
        *(
            (["functions", 0, "kept"], [row], f"metadata.functions[0].kept[0].{key}")
            for row, key in (
                ({"output": "0", "kernel": "k", "names": ["v"]}, "output"),
                ({"output": -1, "kernel": "k", "names": ["v"]}, "output"),
                ({"output": 1, "kernel": "k", "names": ["v"]}, "output"),
                ({"output": 0, "kernel": 1, "names": ["v"]}, "kernel"),
                ({"output": 0, "kernel": "k", "names": [1]}, "names"),
                ({"output": 0, "kernel": "k", "names": []}, "names"),
            )
        ),
        (["functions", 0, "pools"], {}, "metadata.functions[0].pools"),
        (["functions", 0, "pools"], [5], "metadata.functions[0].pools[0]"),
        (["functions", 0, "pools"], [{"name": 3}], "metadata.functions[0].pools[0].name"),
        (
            ["functions", 0, "pools"],
            [{"name": "a", "bytes": [], "align": 8}],
            "metadata.functions[0].pools[0].bytes",
        ),
        (
            ["functions", 0, "pools"],
            [{"name": "a", "bytes": "n * 4", "align": "8"}],
            "metadata.functions[0].pools[0].align",
        ),
        (["functions", 0, "inputs", 0, "device"], -1, "metadata.functions[0].inputs[0].device"),
        (["system"], {}, "metadata.system.name"),
        (["system"], {"name": "muls", "version": "1.1"}, "metadata.system.name"),
        (["system"], {"name": "musl", "version": "1.1b"}, "metadata.system.version"),
        (["system"], {"name": "musl", "version": 1}, "metadata.system.version"),
        (["devices"], {}, "metadata.devices"),
        (["devices"], [{}], "metadata.devices[0].target_key"),
        (["devices"], [{"target_key": "", "kind": 1}], "metadata.devices[0].kind"),
        *(
            (
                ["devices"],
                [{"target_key": "", "kind": k, "number": n}],
                "metadata.devices[0].number",
            )
            for k, n in (("cpu", 1), ("opencl", 0), ("ext_dev", 1), ("opencl", "1"), ("opencl", -1))
        ),
        (["cpu_features"], [1], "metadata.cpu_features"),
        (["artifacts", 0, "size"], "3", "metadata.artifacts[0].size"),
        (["compiler"], "x", "metadata.compiler"),
    ],
)
def test_malformed(path: list[Any], value: Any, location: str) -> None:
    data: Any = json.loads(METADATA.to_bytes())
    parent = data
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    with pytest.raises(UserError) as caught:
        Metadata.from_json(data)
    assert caught.value.code == "bad-metadata"
    assert caught.value.where == location


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_no_metadata_at_all(data: bytes) -> None:
    with pytest.raises(UserError) as caught:
        Metadata.from_bytes(data)
    assert caught.value.code == "bad-metadata"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library like an exported one, linked by the packaged tools."""
    import sys

    folder = tmp_path_factory.mktemp("library")
    text = METADATA.to_bytes().decode().replace("\\", "\\\\").replace('"', '\\"')
    source = (
        f'const char meta[] __attribute__((section(".kiln.meta"), used)) = "{text}";\n'
        "float k_conv(float x) { return x * x + 1; }\n"
        '__attribute__((visibility("hidden"))) float k_pool(float x) { return x; }\n'
        "static int helper(int x) { return x * 7; }\n"
        "int entry(int x) { return helper(x); }\n"
        "double cos(double);\n"
        "double use(double x) { return cos(x); }\n"
    )
    (folder / "net.c").write_text(source)
    zig = [sys.executable, "-m", "ziglang"]
    compile_c = [*zig, "cc", "-c", "-O1", "-fPIC", "-fno-sanitize=undefined", "net.c", "-o", "n.o"]
    link = [*zig, "ld.lld", "-shared", "-soname", "net.so", "-o", "net.so", "n.o"]
    for command in (compile_c, link):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "net.so"


def test_report(library: Path) -> None:
    report = inspect_library(library)
    assert report.metadata == METADATA
    assert report.machine == "x86_64"
    assert report.file_bytes == library.stat().st_size
    assert report.needed == ()
    assert report.exports == ("entry", "k_conv", "meta", "use")
    sizes = {kernel.symbol: kernel.code_bytes for kernel in report.kernels}
    assert list(sizes) == ["k_conv", "k_pool"]
    assert all(0 < size < 64 for size in sizes.values())
    assert report.kernel_code_bytes == sum(sizes.values())
    assert report.kernel_code_bytes < dict(report.sections)[".text"]
    assert report.runtime_code_bytes == dict(report.sections)[".text"] - report.kernel_code_bytes
    assert report.weights_bytes == 1024
    assert json.loads(json.dumps(report.to_json()))["metadata"] == METADATA.to_json()


def test_reader_agrees_with_readelf(library: Path) -> None:
    import shutil

    binary = read_binary(library)
    assert binary.soname() == "net.so"
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    lines = subprocess.run(
        ["readelf", "-SW", str(library)], capture_output=True, text=True, check=True
    ).stdout
    for section in binary.sections[1:]:
        assert f" {section.name} " in lines
    symbols = subprocess.run(
        ["readelf", "-sW", "--dyn-syms", str(library)], capture_output=True, text=True, check=True
    ).stdout
    undefined = {s.name for s in binary.symbols(dynamic=True) if not s.is_defined and s.name}
    assert undefined == {"cos"}
    for symbol in binary.symbols(dynamic=True):
        assert symbol.name in symbols


def test_no_cut_is_read_past_its_end(library: Path, tmp_path: Path) -> None:
    """Section headers lie at the end of the file, so every truncation must be noticed."""
    data = library.read_bytes()
    for size in [0, 1, 4, 8, 15, 63, 64, 100, len(data) // 2, len(data) - 1]:
        (tmp_path / "cut.so").write_bytes(data[:size])
        with pytest.raises(UserError) as caught:
            inspect_library(tmp_path / "cut.so")
        assert caught.value.code == "bad-library"


def test_damaged_headers_never_escape(library: Path, tmp_path: Path) -> None:
    import random

    data = library.read_bytes()
    table = int.from_bytes(data[0x28:0x30], "little")
    places = [*range(64), *range(table, len(data))]
    rng = random.Random(1)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(3):
            damaged[rng.choice(places)] = rng.randrange(256)
        (tmp_path / "bad.so").write_bytes(damaged)
        with contextlib.suppress(UserError):
            inspect_library(tmp_path / "bad.so")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello", "not an ELF"),
        (b"MZ" + b"\0" * 100, "Windows"),
        (b"\xcf\xfa\xed\xfe" + b"\0" * 100, "macOS"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=says):
        inspect_library(tmp_path / "x")


def test_library_of_somebody_else() -> None:
    import numpy

    foreign_library = next(Path(numpy.__file__).parent.rglob("*.so"))
    with pytest.raises(UserError, match="not a library made by kiln"):
        inspect_library(foreign_library)
