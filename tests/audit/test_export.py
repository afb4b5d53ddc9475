"""The bytes of an export: the same everywhere, all of them or none, and linked to little."""

from __future__ import annotations

import ctypes
import os
import re
import resource
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from tests.audit.conftest import Exported
from tests.audit.process import ROOT, python

pytestmark = pytest.mark.slow

EXPORT = """
import sys
import tensorkiln as tk
module = tk.frontend.from_onnx(sys.argv[1])
tk.compile(module, target=None, name="model").export_library(sys.argv[2])
"""

FAILING_EXPORT = """
import sys
import tensorkiln as tk
executable = tk.compile(tk.frontend.from_onnx(sys.argv[1]), target=None)
{prepare}
try:
    executable.export_library(sys.argv[2])
except Exception as error:
    print(type(error).__mro__, error)
else:
    sys.exit("the export should have failed")
"""


def test_same_bytes_everywhere(resnet18: Exported, tmp_path: Path) -> None:
    """Other folder, other file, other hash seed; kernels from the cache and compiled afresh. A
    library is named after the model's file where nobody says its name: here somebody does."""
    for seed, cache in (("1", None), ("4242", tmp_path / "cache")):
        folder = tmp_path / f"seed{seed}"
        folder.mkdir()
        model = folder / f"other-name-{seed}.onnx"
        shutil.copy(resnet18.model, model)
        environment = {"PYTHONHASHSEED": seed}
        if cache is not None:
            environment["KILN_CACHE_DIR"] = str(cache)
        library = folder / f"{seed}.so"
        python(EXPORT, (model, library), folder=folder, environment=environment)
        assert library.read_bytes() == resnet18.library.read_bytes()


def drop_override() -> None:
    """Root may write anywhere; without this capability the folder's mode binds it too."""
    cap_dac_override, pr_capbset_drop = 1, 24
    if os.geteuid() == 0:
        ctypes.CDLL(None, use_errno=True).prctl(pr_capbset_drop, cap_dac_override, 0, 0, 0)


def test_read_only_folder(small: Exported, tmp_path: Path) -> None:
    """A clear error and no file."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(stat.S_IRUSR | stat.S_IXUSR)
    probe = "import os,sys; sys.exit(os.access(sys.argv[1], os.W_OK))"
    try:
        python(probe, (folder,), before=drop_override)
        script = FAILING_EXPORT.format(prepare="")
        output = python(script, (small.model, folder / "model.so"), before=drop_override)
        assert "UserError" in output and str(folder) in output
        assert list(folder.iterdir()) == []
    finally:
        folder.chmod(stat.S_IRWXU)


def test_full_disk_leaves_nothing_behind(small: Exported, tmp_path: Path) -> None:
    """Writing stops after 16 kB, as on a full disk: an error, and no half-written file."""
    limit = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (16384, {resource.RLIM_INFINITY}))\n"
    )
    folder = tmp_path / "full"
    folder.mkdir()
    existing = folder / "model.so"
    existing.write_bytes(b"what was there before")
    output = python(FAILING_EXPORT.format(prepare=limit), (small.model, existing))
    assert "TensorkilnError" in output
    assert [path.name for path in folder.iterdir()] == ["model.so"]
    assert existing.read_bytes() == b"what was there before"


def tool(*command: str | Path) -> str:
    """Output of a binary tool; skips by name when it is missing."""
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_needs_only_the_c_library(resnet18: Exported) -> None:
    """`ldd` lists libc, libm, libpthread, libdl and the loader, nothing else."""
    allowed = r"linux-vdso|libc\.|libm\.|libpthread\.|libdl\.|ld-linux|ld-musl"
    lines = [line for line in tool("ldd", resnet18.library).splitlines() if line.strip()]
    foreign = [line for line in lines if not re.search(allowed, line)]
    assert [line for line in foreign if "statically linked" not in line] == []


def test_needs_no_newer_glibc(resnet18: Exported) -> None:
    """No versioned symbol newer than GLIBC_2.17."""
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", tool("readelf", "--version-info", resnet18.library))
    assert all((int(major), int(minor)) <= (2, 17) for major, minor in found), found


def test_exports_only_documented_symbols(small: Exported, tmp_path: Path) -> None:
    """`kiln.h`, `__tvm_ffi_<function>` and what the library's generated header declares."""
    import tensorkiln as tk

    executable = tk.compile(tk.frontend.from_onnx(str(small.model)), target=None)
    executable.artifacts.save(tmp_path / "artifacts")
    headers = [*(tmp_path / "artifacts").rglob("*.h"), ROOT / "tensorkiln" / "crt" / "kiln.h"]
    assert len(headers) >= 2
    text = "\n".join(header.read_text(encoding="utf-8") for header in headers)
    declared = set(re.findall(r"\b(\w+)\(", text))
    output = tool("nm", "-D", "--defined-only", small.library)
    names = {line.split()[-1].split("@")[0] for line in output.splitlines()}
    assert {"__tvm_ffi_main", "kiln_executor_run"} <= names
    foreign = {name for name in names if not name.startswith("__tvm_ffi_")} - declared
    # The entry of our own Python runtime.
    assert foreign <= {"kiln_python_call", "kiln_python_calls", "kiln_python_open"}
