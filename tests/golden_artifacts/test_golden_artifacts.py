"""Artifacts that former versions wrote, down to the first: they load, and give what they gave.

The files are made by make.py, once for each version of a format.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.weights_file import verify_weights
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors.library import inspect_library
from tests.golden_artifacts.make import HERE, NEEDED, WEIGHTS, kept_module
from tests.golden_artifacts.model_library import listing
from tests.link import sample

VERSIONS = sorted(int(p.stem.partition("-")[2]) for p in HERE.glob("recorded-*.json"))
runs_here = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux",
    reason="the golden libraries are for Linux on x86-64",
)


def recorded(version: int) -> Any:
    return json.loads((HERE / f"recorded-{version}.json").read_text(encoding="utf-8"))


def check(lib: tk.runtime.Module, version: int) -> None:
    main = tk.runtime.Executor(lib, tk.cpu())["main"]
    found = main(np.array(recorded(version)["input"], np.float32)).numpy()
    assert np.allclose(found, np.array(recorded(version)["result"]), rtol=1e-5)


def test_the_first_version_is_there() -> None:
    assert VERSIONS[0] == 1
    files = [p for p in HERE.rglob("*") if p.suffix in (".so", ".kilnset", ".o", ".c")]
    assert all(p.stat().st_size < 150_000 for p in files)


@runs_here
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["library", "loaders"])
def test_libraries_load_and_run(name: str, version: int) -> None:
    path = HERE / f"{name}-{version}.so"
    lib = tk.runtime.load_module(path)
    check(lib, version)
    groups = [module.group for module in lib.imports]
    assert groups == ([("teststream", "npu0")] if name == "loaders" else [])
    lib.close()
    report = inspect_library(path)
    assert report.metadata.functions[0].name == "main"
    assert report.metadata.cpu_features in ((), ("sse2",))


@runs_here
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["library", "loaders", "beside"])
def test_dependencies_of_libraries(name: str, version: int) -> None:
    """Those before metadata 2 say nothing of licenses, and these need nothing."""
    needed = NEEDED if version >= 3 and name != "beside" else ()
    path = HERE / f"{name}-{version}.so"
    assert inspect_library(path).metadata.dependencies == needed
    lib = tk.runtime.load_module(path)
    assert lib.get_external_dependencies() == needed
    assert lib.metadata["format"] == {3: 2, 4: 4}.get(version, 1)
    lib.close()


@runs_here
def test_a_library_with_kept_values() -> None:
    path = HERE / "kept-3.so"
    metadata = inspect_library(path).metadata
    assert metadata.to_json()["format"] == 3
    (f,) = metadata.functions
    assert [(k.output, k.names) for k in f.kept] == [(1, ("n0_y",)), (0, ("n1_z",))]
    found = tk.verify(path, kept_module())
    assert found.ok and found.compared == 2


@runs_here
def test_a_library_of_narrow_types() -> None:
    path = HERE / "narrow-5.so"
    (f,) = inspect_library(path).metadata.functions
    assert [p.dtype for p in f.inputs] == ["uint4", "float8_e4m3fn"]
    assert [p.dtype for p in f.outputs] == ["float8_e4m3fn", "float32"]
    x = np.array([15, 7, 0, 1], ml_dtypes.uint4)
    w = np.array([1.5, -2, 448, 0], ml_dtypes.float8_e4m3fn)
    y, z = tk.load(path)(x, w)
    assert y.dtype == w.dtype and y.tobytes() == w.tobytes()
    assert z.tolist() == [15.0, 7.0, 0.0, 1.0]


@runs_here
def test_a_library_for_several_processors() -> None:
    path = HERE / "levels-6.so"
    metadata = inspect_library(path).metadata
    names = ["x86-64", "x86-64-v3", "x86-64-v4"]
    assert [level.mcpu for level in metadata.levels] == names
    assert {k.level for k in metadata.kernels} == set(names) and metadata.cpu_features == ()
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert tk.load(path)(x).tolist() == (x @ WEIGHTS).tolist()


@runs_here
@pytest.mark.parametrize("order", [("old", "new"), ("new", "old")])
def test_the_first_threads_beside_todays(tmp_path: Path, order: tuple[str, str]) -> None:
    """The old one stays, as those of its time do whose threads are used; today's have another pool,
    and go. In a process that may keep it."""
    new = sample.build(tmp_path / "new.so")
    script = """
import os, sys
from pathlib import Path
import numpy as np
from tensorkiln import runtime
def load(path, threads):
    module = runtime.load_module(path)
    executor = runtime.Executor(module)
    executor.set_num_threads(threads)
    return module, executor["main"]
def mapped(module): return str(module.path) in Path("/proc/self/maps").read_text()
def threads(): return len(os.listdir("/proc/self/task"))
rows, x = np.ones((64, 4096), np.float32), np.ones((500, 8), np.float32)
before = threads()
for which in sys.argv[1:3]:
    if which == "old":
        old, run_old = load(sys.argv[3], 3)
        assert np.allclose(run_old(rows).numpy(), np.e)
    else:
        new, run_new = load(sys.argv[4], 3)
        want = run_new(x).numpy()
assert threads() == before + 4
for _ in range(50):
    assert np.allclose(run_old(rows).numpy(), np.e) and (run_new(x).numpy() == want).all()
if sys.argv[1] == "old":
    old.close()
    assert (run_new(x).numpy() == want).all()
    new.close()
else:
    new.close()
    assert np.allclose(run_old(rows).numpy(), np.e)
    old.close()
print(mapped(old), mapped(new))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, *order, str(HERE / "parallel-1.so"), str(new)],
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr


@runs_here
@pytest.mark.parametrize("version", VERSIONS)
def test_weights_beside_a_library(version: int) -> None:
    lib = tk.runtime.load_module(HERE / f"beside-{version}.so")
    x = np.array(recorded(version)["input"], np.float32)
    found = tk.runtime.Executor(lib, tk.cpu())["main"](x).numpy()
    assert np.allclose(found, x.astype(np.float64) @ WEIGHTS, rtol=1e-5)
    lib.close()
    verify_weights(HERE / f"beside-{version}.safetensors", lib.metadata["weights_bytes"])


@runs_here
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["folder", "container"])
def test_whole_compiles_link_and_run(form: str, version: int) -> None:
    artifacts = read(form, version)
    assert listing(artifacts) == recorded(version)["compile"]
    check(tk.load_artifacts(artifacts), version)


def read(form: str, version: int) -> ArtifactSet:
    if form == "folder":
        return ArtifactSet.load(HERE / f"compile-{version}")
    return ArtifactSet.from_bytes((HERE / f"compile-{version}.kilnset").read_bytes())


@pytest.mark.parametrize("version", VERSIONS)
def test_containers_read_as_they_were_written(version: int) -> None:
    artifacts = ArtifactSet.from_bytes((HERE / f"nested-{version}.kilnset").read_bytes())
    assert listing(artifacts) == recorded(version)["nested"]
    assert json.loads(json.dumps(artifacts.imports)) == recorded(version)["nested_imports"]
    assert read("folder", version) == read("container", version)


def test_what_is_written_now_is_the_newest_version(tmp_path: Path) -> None:
    """A change of a format that does not count its version up is seen here."""
    newest = VERSIONS[-1]
    for name in ("compile", "nested"):
        data = (HERE / f"{name}-{newest}.kilnset").read_bytes()
        assert ArtifactSet.from_bytes(data).to_bytes() == data
    ArtifactSet.load(HERE / f"compile-{newest}").save(tmp_path / "set")
    written = (tmp_path / "set" / "manifest.json").read_text()
    assert written == (HERE / f"compile-{newest}" / "manifest.json").read_text()


# ---- newer ones are refused, by both versions -------------------------------------------------


def test_a_newer_container(tmp_path: Path) -> None:
    data = bytearray((HERE / "nested-1.kilnset").read_bytes())
    struct.pack_into("<H", data, 8, 9)
    with pytest.raises(UserError, match=r"container version 9\.0; this Tensorkiln reads 1\.x"):
        ArtifactSet.from_bytes(bytes(data))


def test_a_newer_manifest(tmp_path: Path) -> None:
    shutil.copytree(HERE / "compile-2", tmp_path / "set")
    changed(tmp_path / "set" / "manifest.json", '"version": 2', '"version": 9')
    with pytest.raises(UserError, match="manifest version 9; this version reads 1 and 2"):
        ArtifactSet.load(tmp_path / "set")


def test_a_newer_link_plan(tmp_path: Path) -> None:
    artifacts = read("folder", 1)
    plan = artifacts["link.json"].text().replace('"version": 1', '"version": 9').encode()
    with pytest.raises(UserError, match="version 9, expected 1"):
        tk.load_artifacts(artifacts.replace("link.json", plan))


def test_newer_metadata(tmp_path: Path) -> None:
    data = (HERE / "library-1.so").read_bytes()
    assert data.count(b'"format": 1,') == 1
    path = tmp_path / "newer.so"
    path.write_bytes(data.replace(b'"format": 1,', b'"format": 9,'))
    with pytest.raises(
        UserError, match="metadata version 9, this Tensorkiln reads versions 1 to 6"
    ):
        tk.runtime.load_module(path)
    with pytest.raises(UserError, match="format 9; this version reads 1 to 6"):
        inspect_library(path)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@runs_here
def test_a_newer_library_interface(tmp_path: Path) -> None:
    """A library says in code which calls it understands."""
    meta = (
        '{"format":1,"library":"x","prefix":"x","cpu_features":[],"weights_bytes":0,"functions":[]}'
    )
    names = ("kiln_abi_version", *tk.runtime.native._PROTOTYPES)
    source = f'__attribute__((section(".kiln.meta"), used)) const char m[] = {json.dumps(meta)};\n'
    source += "".join(f"int {n}(void) {{ return 99; }}\n" for n in names)
    (tmp_path / "x.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "x.so"), str(tmp_path / "x.c")]
    subprocess.run(command, check=True)
    with pytest.raises(UserError, match="library interface 99, this Tensorkiln knows 2"):
        tk.runtime.load_module(tmp_path / "x.so")


def changed(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
