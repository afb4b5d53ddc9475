"""What inspectors say of ResNet-18, against binutils, and NumPy on the model itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tensorkiln.cli import main
from tensorkiln.inspectors import open_subject
from tensorkiln.inspectors.objects import functions_in, show_instructions
from tensorkiln.inspectors.signatures import list_functions
from tensorkiln.inspectors.weights import Weights
from tests.inspectors.conftest import ResNet

KERNELS = ("conv2d_relu", "winograd_conv2d_relu", "max_pool2d", "linear")
# objdump's names of conditions and the like -> LLVM's.
ALIKE = {"jae": "jnb", "cmovae": "cmovnb", "setae": "setnb", "movabs": "mov"}


def told(*command: object) -> str:
    if shutil.which(str(command[0])) is None:
        pytest.skip(f"no {command[0]}")
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=True
    ).stdout


def nm(path: Path) -> dict[str, int]:
    """Sizes of the functions."""
    rows = [line.split() for line in told("nm", "-S", "--defined-only", path).splitlines()]
    return {r[3]: int(r[1], 16) for r in rows if len(r) == 4 and r[2] in "tTwW"}


def test_sizes_are_those_of_nm(resnet: ResNet) -> None:
    itself = open_subject(resnet.library).itself
    assert itself is not None
    own_sizes = {f.name: f.size for f in functions_in(itself)}
    expected = nm(resnet.library)
    assert len(expected) > 100 and {n: own_sizes.get(n) for n in expected} == expected
    subject = open_subject(resnet.folder)
    llvm = [a for a in subject.files if a.codegen_id == "llvm"]
    rows = [line.split() for line in "".join(list_functions(llvm)).splitlines()[1:]]
    expected = {}
    for path in (resnet.folder / "llvm").glob("*.o"):
        expected |= nm(path)
    assert {name: int(size) for size, name, _ in rows} == expected and len(expected) > 60


def mnemonic(word: str) -> str:
    """Without the size of operands, which one writer adds where the other does not."""
    if word.startswith(("nop", "data16", "xchg", "cs")):
        return "nop"
    word = word.rstrip("qlwb")
    return ALIKE.get(word, word)


@pytest.mark.parametrize("name", KERNELS)
def test_instructions_are_those_of_objdump(resnet: ResNet, name: str) -> None:
    """The same addresses, and the same instruction at each, for all that is no padding."""
    path = resnet.folder / "llvm" / f"{name}.o"
    listed = told("objdump", "-d", "--no-show-raw-insn", path)
    expected = {
        int(address, 16): mnemonic(word)
        for address, word in re.findall(r"^ +([0-9a-f]+):\t(\S+)", listed, re.M)
    }
    artifact = open_subject(resnet.folder).artifacts[f"{name}.o"]
    listing = "".join(show_instructions(artifact))
    own_mnemonics = {
        int(address, 16): mnemonic(word)
        for address, word in re.findall(r"^ *([0-9a-f]+)  (\S+)", listing, re.M)
    }
    # Padding between functions belongs to none of them.
    for mnemonics in (own_mnemonics, expected):
        for address in [address for address, word in mnemonics.items() if word == "nop"]:
            del mnemonics[address]
    assert len(own_mnemonics) > 100 and own_mnemonics == expected


def folded(model: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Each convolution's weights and bias with the batch norm that follows in them, in float64."""
    out = {}
    for name in [n.removesuffix(".bn.bias") for n in model if n.endswith(".bn.bias")]:
        g, b, m, v = (model[f"{name}.bn.{k}"].astype(np.float64) for k in KEYS)
        scale = g / np.sqrt(v + 1e-5)
        out[f"{name}.conv.weight"] = model[f"{name}.conv.weight"] * scale[:, None, None, None]
        out[f"{name}.bn.bias"] = b - m * scale
    return out


KEYS = ("scale", "bias", "mean", "var")


def test_weights_are_those_of_the_model(resnet: ResNet) -> None:
    initializers = onnx.load(resnet.model).graph.initializer
    expected = folded({i.name: numpy_helper.to_array(i) for i in initializers})
    subject = open_subject(resnet.library)
    weights = Weights(subject.files)
    assert all(row.name for row in weights.rows)
    compared = 0
    for row in weights.rows:
        array = expected.get(row.name)
        if array is None or array.shape != row.shape:
            # Winograd's transformed ones, and the dense layer's, which has no batch norm.
            assert row.name.startswith(("head.", "logits")) or row.shape[2:] in ((4, 4), (6, 6))
            continue
        compared += 1
        s = weights.statistics(row)
        assert (s.count, s.nans, s.infinities) == (array.size, 0, 0)
        scale = np.abs(array).max()
        statistics, numpy_statistics = (
            (s.low, s.high, s.mean, s.std),
            (array.min(), array.max(), array.mean(), array.std()),
        )
        np.testing.assert_allclose(statistics, numpy_statistics, rtol=1e-6, atol=1e-7 * scale)
    assert compared >= 25


def test_one_weight(resnet: ResNet, capsys: Any) -> None:
    assert main(["inspect", str(resnet.library), "--weight", "stem.bn.bias"]) == 0
    output = capsys.readouterr().out
    weights = Weights(open_subject(resnet.library).files)
    (row,) = weights.called("stem.bn.bias")
    s = weights.statistics(row)
    assert output.startswith("stem.bn.bias: float32, 64, 64 values\n")
    assert f"  min, max    {s.low:.6g}, {s.high:.6g}\n" in output
    bars = re.findall(r"^    +\S+ +(\d+)(?:  )?([▏▎▍▌▋▊▉█]*)$", output, re.M)
    assert [int(n) for n, _ in bars] == list(s.histogram) and sum(s.histogram) == 64
    assert all(bool(int(n)) == bool(bar) for n, bar in bars)
    assert max(bars, key=lambda b: int(b[0]))[1] == "█" * 40
    assert main(["inspect", str(resnet.library), "--weight", "stem.bn.bais"]) == 2
    assert "did you mean 'stem.bn.bias'" in capsys.readouterr().err


SPARSE = """
import resource, sys
from tensorkiln.artifact import Artifact, FileContent
from tensorkiln.artifact.metadata import ConstantInfo, constants_text
from tensorkiln.inspectors.weights import Weights
size = int(sys.argv[2])
rows = [ConstantInfo("w", "float32", (size // 4096, 1021), "A/16 B+1 A%16", 0)]
weights = Weights([Artifact("host", "native", "weights.bin", FileContent(sys.argv[1])),
                   Artifact("host", "text", "weights.json", constants_text(rows).encode())])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
s = weights.statistics(weights.rows[0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, s.count, s.low, s.high)
"""


@pytest.mark.parametrize(
    "mib", [256, pytest.param(5120, marks=pytest.mark.large, id="five-gigabytes")]
)
def test_statistics_take_little_memory(mib: int, tmp_path: Path) -> None:
    """Of a sparse file, whose last value is the only one that is not zero."""
    path, size = tmp_path / "weights.bin", mib << 20
    with path.open("wb") as stream:
        stream.truncate(size)
        # 1023 columns with the border; before the last one, a vector of 16 rows, is the last value.
        stream.seek(size // 4096 * 1023 * 4 - 16 * 4 - 4)
        stream.write(np.float32(2.5).tobytes())
    script = [sys.executable, "-c", SPARSE, str(path), str(size)]
    process = subprocess.run(script, capture_output=True, text=True, check=True)
    grown, count, low, high = process.stdout.split()
    assert int(grown) < 120_000  # KiB
    assert int(count) == size // 4096 * 1021 and (float(low), float(high)) == (0, 2.5)
