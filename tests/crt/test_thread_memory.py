"""Threads that have little: memory at their first call, stack, and nothing that tells how much."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.json_text import MAX_NAMES
from tensorkiln.script import from_source
from tests.artifact.damage_metadata import metadata_of, with_metadata

HERE = Path(__file__).parent
PACKAGE = Path(tk.__file__).parent
STACK = 32  # KiB, which docs/howto/call.md promises to suffice
MODULE = """
@I.ir_module
class M:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        a: R.Tensor(("n", 4), "float32") = R.mul(x, R.const(2.0, "float32"))
        return a

    @R.function
    def endless(o: R.Object) -> R.Object:
        y: R.Object = M.endless(o)
        return y
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA, /proc")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("threads") / "net.so"
    tk.compile(from_source(MODULE)).export_library(path)
    return path


def host(folder: Path, scenario: str, stack: int, *libraries: Path) -> list[str]:
    """Codes of a first and a second call in a thread of `stack` KiB, and of one with null tensors;
    bytes of the stack that were used; the sentence of the first."""
    program = folder / "host"
    flags = ["-std=gnu99", "-O1", f"-DSTACK=((size_t){stack} << 10)"]
    include = ["-I", str(PACKAGE / "hosts"), "-I", str(PACKAGE / "crt")]
    source = str(HERE / "thread_host.c")
    subprocess.run(
        ["gcc", *flags, *include, source, "-o", str(program), "-lpthread", "-ldl"], check=True
    )
    process = subprocess.run([program, scenario, *libraries], capture_output=True, text=True)
    assert process.returncode == 0, (process.returncode, process.stderr)
    return process.stdout.strip().split(" ", 4)


def test_no_memory_at_the_first_call_of_a_thread(library: Path, tmp_path: Path) -> None:
    """The call fails, not the process; with memory again, the next one succeeds."""
    first, second, null, _, sentence = host(tmp_path, "memory", 256, library)
    assert (first, second, null) == ("8", "0", "6")
    assert sentence == "out of memory for what the library knows of this thread"


def test_the_stack_of_a_call(library: Path, tmp_path: Path) -> None:
    *codes, used_bytes = host(tmp_path, "stack", STACK, library)
    assert codes == ["0", "0", "6"] and int(used_bytes) < STACK << 10
    *codes, _, sentence = host(tmp_path, "stack", 16, library)
    assert codes == ["14", "14", "14"]
    assert sentence.startswith("this thread has ") and "and a call takes up to" in sentence


def test_the_stack_of_opening(library: Path, tmp_path: Path) -> None:
    """Metadata that is as deep and as wide as readers allow takes no more of it."""
    data = library.read_bytes()
    names = "".join(f'"name{i}": 0, ' for i in range(MAX_NAMES - 1))
    deep = ("{" + names + '"deep": ') * 60 + "0" + "}" * 60
    text = metadata_of(data).decode().rstrip().removesuffix("}") + f', "deep": {deep}}}'
    path = tmp_path / "deep.so"
    path.write_bytes(with_metadata(data, text.encode()))
    *codes, used_bytes = host(tmp_path, "open", 64, library, path)
    assert codes == ["0", "0", "0"] and int(used_bytes) < 40 << 10


# No descriptor is left for the file in /proc that says how large the stack of the first thread is.
RECURSION = """
import resource, sys
import numpy as np
import tensorkiln as tk
run = tk.load(sys.argv[1])["endless"]
x = np.float32(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
try:
    run(x)
except RecursionError as error:
    sys.exit(error.code != "call-depth")
"""


@pytest.mark.parametrize("limit", [8 << 20, 1 << 20, resource.RLIM_INFINITY])
def test_recursion_without_proc(library: Path, limit: int) -> None:
    process = subprocess.run(
        [sys.executable, "-c", RECURSION, str(library)],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (limit, limit)),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, (process.returncode, process.stderr)
