"""An archive in Model Library Format as this version writes it, and how two archives differ.

Its two models are C, which no version of LLVM changes, and have what metadata has keys for: one of
any batch for the host, with dependencies and the source of one of them, and one for a
microcontroller, with two pools of memory.
"""

from __future__ import annotations

import difflib
import json
import lzma
import tarfile
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.artifact import ArtifactSet
from tensorkiln.artifact.mlf.load import open_model_library
from tensorkiln.artifact.mlf.metadata import VERSION
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.script import from_source

HERE = Path(__file__).parent
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
WEIGHTS = {
    "w": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8),
    "v": np.linspace(1, -1, 24, dtype=np.float32).reshape(8, 3),
}
WANTED = np.maximum(X.astype(np.float64) @ WEIGHTS["w"], 0) @ WEIGHTS["v"]
LAYERS = """
@R.function{attrs}
def main(x: R.Tensor(({n}, 4), "float32")) -> R.Tensor(({n}, 3), "float32"):
    a: R.Tensor(({n}, 8), "float32") = R.linear(x, R.const("w", "float32", (4, 8)))
    b: R.Tensor(({n}, 8), "float32") = R.relu(a)
    y: R.Tensor(({n}, 3), "float32") = R.linear(b, R.const("v", "float32", (8, 3)))
    return y
"""
NEEDS = '(attrs={"kExternalDependency": [tools, dsp]})'
TOOLS = ExternalDependency("tools", "/opt/tools", "path", "2.1", "LicenseRef-tools", "", (), True)
DSP = ExternalDependency("dsp", "https://example.org/dsp.git", "git", "v4.0.0", "Apache-2.0")
HOST = {"kind": "c", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64"}
MEMORY = [
    {"name": "fast", "size": 64, "align": 16, "kind": "ram"},
    {"name": "slow", "size": "4K", "align": 16, "kind": "ram"},
]
BOARD = {"kind": "c", "mtriple": "thumbv7em-none-eabi", "mcpu": "cortex-m4", "memory": MEMORY}


def models() -> dict[str, tk.Executable]:
    """What the archive holds, compiled now."""
    rows = {
        "any_batch": (LAYERS.format(n='"n"', attrs=NEEDS), HOST),
        "board": (LAYERS.format(n=3, attrs=""), BOARD),
    }
    names = {"tools": TOOLS, "dsp": DSP}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the baseline is meant
        return {
            name: tk.compile(from_source(text, constants=WEIGHTS, namespace=names), target)
            for name, (text, target) in rows.items()
        }


def write(path: Path) -> Path:
    """The archive as this version writes it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "dsp"
        source.mkdir()
        (source / "dsp.h").write_text("int dsp_version(void);\n", encoding="utf-8")
        return tk.export_model_library_format(models(), path, bundle={"dsp": source})


def members(path: Path) -> dict[str, bytes]:
    """The files of a tar archive, in order."""
    with tarfile.open(path) as archive:
        return {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]


def differences(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> str:
    """How files differ, as `diff -U0` prints it; empty if all bytes and their order are equal."""
    lines = []
    for name in sorted({*before, *now}):
        # A byte that is no text is a character too, and a line ends only where one is said to end.
        old, new = (f.get(name, b"").decode("latin-1").split("\n") for f in (before, now))
        there = [name if name in f else "/dev/null" for f in (before, now)]
        lines += difflib.unified_diff(old, new, *there, n=0, lineterm="")
        if (name in before) != (name in now) and old == new:
            lines.append(f"{name}: an empty file")
    if not lines and [*before] != [*now]:
        lines.append("the order of files")
    return "".join(f"{line}\n" for line in lines)


def listing(artifacts: ArtifactSet) -> list[list[str]]:
    """Names and hashes, as they are recorded."""
    return [[a.loader, a.name, a.sha256] for a in artifacts.plain]


def write_once() -> None:
    """Write the archive of this version of the format and what is in it, if it is not there yet."""
    place = HERE / f"mlf-{VERSION}.tar.xz"
    if place.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "m.tar")
        place.write_bytes(lzma.compress(path.read_bytes()))
        names = open_model_library(path).models()
        rows = {name: listing(tk.load_model_library_format(path, name)) for name in names}
    (HERE / f"mlf-{VERSION}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
