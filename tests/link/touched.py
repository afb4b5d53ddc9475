"""Run a model of an archive in memory that is watched: which bytes does it touch?

Every pool ends, but for its alignment, where a page begins that cannot be accessed, so that a read
or a write behind it ends the process. Two runs, over pools that are filled with different bytes,
tell what a run writes: only that is equal afterwards. Run as a program, in a process of its own:

    python -m tests.link.touched LIBRARY.so CASE.json INPUTS.npz OUTPUTS.npz

The case is JSON: the C name of the function, bytes and alignment of each pool, the sizes of
dimensions, and of each result shape and dtype. The outputs have results `y0`, ..., of both runs,
and for each pool a map `touched0`, ... of the bytes that were written, from 64 bytes in front of it
to the page that is not there.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tensorkiln.executable import Executable
from tests.audit.process import ROOT

PAGE = mmap.PAGESIZE
FRONT = 64


@dataclass(frozen=True)
class Touched:
    """Results, and per pool which bytes a run wrote: FRONT bytes before it, then its own."""

    outputs: tuple[np.ndarray, ...]
    maps: tuple[np.ndarray, ...]


class Guarded:
    """`size` bytes at an aligned address, at the end of which, but for that, nothing is mapped."""

    def __init__(self, size: int, align: int):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype, libc.munmap.argtypes = (
            ctypes.c_void_p,
            (ctypes.c_void_p, ctypes.c_size_t),
        )
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        rounded = -(-size // align) * align
        whole = -(-(rounded + FRONT) // PAGE) * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = libc.mmap(None, whole + PAGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value)
        assert libc.munmap(start + whole, PAGE) == 0
        self.address = start + whole - rounded
        everything = (ctypes.c_uint8 * whole).from_address(start)
        # From FRONT bytes before the pool to the page that is not there.
        self.bytes = np.frombuffer(everything, np.uint8)[whole - rounded - FRONT :]


def run(library: Path, case: Mapping[str, object], inputs: Mapping[str, np.ndarray]) -> Touched:
    """Run in a process of its own; AssertionError if it crashes."""
    folder = library.parent
    (folder / "case.json").write_text(json.dumps(case))
    np.savez(folder / "inputs.npz", **dict(inputs))
    files = [str(folder / name) for name in ("case.json", "inputs.npz", "outputs.npz")]
    command = [sys.executable, "-m", "tests.link.touched", str(library), *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
    with np.load(folder / "outputs.npz") as found:
        count = len([n for n in found.files if n.startswith("touched")])
        results = len(found.files) - count
        return Touched(
            tuple(found[f"y{i}"] for i in range(results)),
            tuple(found[f"touched{i}"] for i in range(count)),
        )


def _main(library: str, case_file: str, inputs_file: str, outputs_file: str) -> None:
    case = json.loads(Path(case_file).read_text())
    with np.load(inputs_file) as loaded:
        inputs = [np.ascontiguousarray(loaded[n]) for n in loaded.files]
    function = getattr(ctypes.CDLL(library), case["function"])
    pools = [Guarded(size, align) for size, align in case["pools"]]
    rng, after, results = np.random.default_rng(5), [], []
    fill = [rng.integers(0, 256, s.bytes.size, np.uint8) for s in pools]
    for flip in (0x00, 0xFF):  # every byte differs between the two
        for s, noise in zip(pools, fill, strict=True):
            s.bytes[:] = noise ^ flip
        outputs = [np.empty(shape, dtype) for shape, dtype in case["results"]]
        addresses = ([a.ctypes.data for a in inputs], [a.ctypes.data for a in outputs])
        structs = [_struct(*x) for x in (*addresses, [s.address for s in pools])]
        sizes = [ctypes.c_int64(n) for n in case["sizes"]]
        assert function(*structs, *sizes) == 0
        after.append([s.bytes.copy() for s in pools])
        results.append(outputs)
    for a, b in zip(*results, strict=True):
        assert a.tobytes() == b.tobytes(), "a result depends on what was in a pool before"
    maps = {f"touched{i}": a == b for i, (a, b) in enumerate(zip(*after, strict=True))}
    np.savez(outputs_file, **maps, **{f"y{i}": y for i, y in enumerate(results[0])})


def _struct(*addresses: int) -> ctypes.Array[ctypes.c_void_p]:
    """A struct of pointers."""
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


def shared_library(exe: Executable, folder: Path) -> Path:
    """The model as a shared library, built by gcc from an archive in `folder`."""
    archive = exe.export_model_library_format(folder / exe.name)
    library = folder / f"{exe.name}.so"
    files = [*archive.glob("codegen/*/src/*.c"), *archive.glob("codegen/*/lib/*.o")]
    include = [f"-I{p}" for p in (*archive.glob("codegen/*/include"), archive / "runtime")]
    command = ["gcc", "-shared", "-fPIC", "-O1", *include, "-o", str(library)]
    command += [*map(str, sorted(files)), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


if __name__ == "__main__":
    _main(*sys.argv[1:])
