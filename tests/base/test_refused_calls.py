"""System calls that a sandbox refuses (seccomp): what they would tell is not known, and all goes
on."""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
AFFINITY, UNAME, SYSINFO = 204, 63, 99  # numbers of calls on x86-64
# A filter of the Berkeley packet language, then a compile and a call.
PROGRAM = """
import ctypes, os, sys
import numpy as np
import tensorkiln as tk
from tensorkiln.cli.entry import main
from tensorkiln.script import from_source

code = ctypes.create_string_buffer(bytes.fromhex(sys.argv[1]))
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]
refused = Filter(len(code) // 8, ctypes.addressof(code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
if libc.prctl(22, 2, ctypes.byref(refused), 0, 0) != 0:  # PR_SET_SECCOMP
    sys.exit(77)
try:
    os.sched_getaffinity(0)
    sys.exit("not refused")
except PermissionError:
    pass
text = '''
@R.function
def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
    y: R.Tensor((2, 4), "float32") = R.neg(x)
    return y
'''
tk.compile(from_source(text), target="llvm").export_library("net.so")
x = np.ones((2, 4), np.float32)
assert (tk.load("net.so")(x) == -x).all()
sys.exit(max(main(line.split()) for line in sys.argv[2:]))
"""


def refusing(numbers: tuple[int, ...]) -> bytes:
    """A filter under which these calls fail with EPERM."""
    rows = [(0x20, 0, 0, 0)]  # load the number of the call
    rows += [(0x15, len(numbers) - i, 0, n) for i, n in enumerate(numbers)]
    rows += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
    return b"".join(struct.pack("<HBBI", *row) for row in rows)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="targets of x86-64: its calls")
@pytest.mark.parametrize(
    ("calls", "lines"),
    [
        ((AFFINITY, SYSINFO), ["run net.so --random", "bench net.so --seconds 0.01"]),
        # NumPy cannot be imported without uname, so fresh processes, as of bench, end there.
        ((AFFINITY, UNAME, SYSINFO), ["run net.so --random", "targets native"]),
    ],
    ids=["all but uname", "all"],
)
def test_a_sandbox_that_tells_nothing(
    calls: tuple[int, ...], lines: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, refusing(calls).hex(), *lines],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if done.returncode == 77:
        pytest.skip("no seccomp")
    assert done.returncode == 0, done.stderr
