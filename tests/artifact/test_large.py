"""Weights that are never in memory, inside the model's file and beside it, in the library and
beside it: exported, loaded, run.

`make large` takes five gigabytes of them, and 11 GiB of disk; `KILN_LARGE_GIB` makes that smaller.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tensorkiln.artifact.weights_file import weights_beside

ROOT = Path(__file__).parents[2]
LAYERS = 10
BLOCK = 64  # rows of a layer that are made at once
GIB = float(os.environ.get("KILN_LARGE_GIB", "5"))
# Memory of a whole process that no file backs, Python and NumPy included. Reached are
# 43 MiB for an export (37 where kernels are cached), 17 for load and run, whatever the size.
MOST_EXPORT, MOST_RUN = 128 << 20, 64 << 20

COMPILE = """
import sys
import tensorkiln as tk
exe = tk.compile(tk.frontend.from_onnx(sys.argv[1]))
exe.export_library(sys.argv[2], weights=sys.argv[3])
"""
RUN = """
import sys
import numpy as np
import tensorkiln as tk
lib = tk.runtime.load_module(sys.argv[1])
y = tk.runtime.Executor(lib, tk.cpu())["main"](np.load(sys.argv[2])).numpy()
np.save(sys.argv[3], y)
"""


def size_of(gib: float) -> int:
    """Rows and columns of a layer, odd times 64: no multiple of the panels that kernels read, so
    that weights are padded."""
    return int((gib * 2**30 / 4 / LAYERS) ** 0.5) // 128 * 128 + 64


def rows_of(layer: int, size: int) -> Iterator[np.ndarray]:
    """The rows of a layer's weights, block by block: never all at once."""
    weights = np.random.default_rng(layer).standard_normal((BLOCK, size), np.float32)
    weights *= np.float32(size**-0.5)
    for first in range(0, size, BLOCK):
        yield np.roll(weights, first // BLOCK * 7, axis=1)


def wanted(x: np.ndarray) -> np.ndarray:
    value = x.astype(np.float64)
    for layer in range(LAYERS):
        total = np.zeros(value.shape)
        for i, rows in enumerate(rows_of(layer, value.size)):
            total += value[:, i * BLOCK : (i + 1) * BLOCK] @ rows.astype(np.float64)
        value = np.tanh(total)
    return value


def graph_without_weights(size: int) -> bytes:
    """The graph, to which weights are appended: fields of a message may come in any order."""
    nodes, value = [], "x"
    for layer in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
        value = "y" if layer == LAYERS - 1 else f"v{layer}"
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [value]))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, size])],
    )
    return bytes(graph.SerializeToString())


def weight(layer: int, size: int) -> TensorProto:
    tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT)
    tensor.dims.extend([size, size])
    return tensor


def varint(value: int) -> bytes:
    low = bytes([value & 127 | 128 * (value > 127)])
    return low if value < 128 else low + varint(value >> 7)


def field(number: int, size: int) -> bytes:
    """The head of a field of bytes."""
    return varint(number << 3 | 2) + varint(size)


def write_beside(folder: Path, size: int) -> None:
    """ONNX's external data: one file for all weights."""
    graph = graph_without_weights(size)
    nbytes = 4 * size * size
    with (folder / "weights.data").open("wb") as stream:
        for layer in range(LAYERS):
            tensor = weight(layer, size)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (
                ("location", "weights.data"),
                ("offset", str(layer * nbytes)),
                ("length", str(nbytes)),
            ):
                tensor.external_data.add(key=key, value=value)
            text = tensor.SerializeToString()
            graph += field(5, len(text)) + text
            for rows in rows_of(layer, size):
                stream.write(rows.data)
    (folder / "model.onnx").write_bytes(model_head() + field(7, len(graph)) + graph)


def write_inside(folder: Path, size: int) -> None:
    """All in one file. The protobuf library stops at two gigabytes; the format does not."""
    graph = graph_without_weights(size)
    nbytes = 4 * size * size
    heads = [weight(layer, size).SerializeToString() + field(9, nbytes) for layer in range(LAYERS)]
    tensors = [field(5, len(head) + nbytes) + head for head in heads]
    whole = len(graph) + sum(map(len, tensors)) + LAYERS * nbytes
    with (folder / "model.onnx").open("wb") as stream:
        stream.write(model_head() + field(7, whole) + graph)
        for layer in range(LAYERS):
            stream.write(tensors[layer])
            for rows in rows_of(layer, size):
                stream.write(rows.data)


def model_head() -> bytes:
    model = helper.make_model(
        helper.make_graph([], "", [], []), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ClearField("graph")
    return bytes(model.SerializeToString())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("gib", [0.2, pytest.param(GIB, marks=pytest.mark.large)])
@pytest.mark.parametrize(
    ("write", "place"),
    [(write_beside, "embedded"), (write_inside, "embedded"), (write_beside, "beside")],
)
def test_weights_are_never_in_memory(
    write: Callable[[Path, int], None], place: str, gib: float, tmp_path: Path
) -> None:
    size = size_of(gib)
    weights = 4 * LAYERS * size * size
    free = shutil.disk_usage(tmp_path).free
    if free < 2.2 * weights:
        pytest.fail(f"{free} bytes of disk are free, {int(2.2 * weights)} are needed")
    write(tmp_path, size)
    peak, mappings = python(
        MOST_EXPORT, COMPILE, tmp_path / "model.onnx", tmp_path / "net.so", place
    )
    assert peak < MOST_EXPORT, f"{peak} bytes of memory to export {weights}: {mappings}"
    library, beside = tmp_path / "net.so", weights_beside(tmp_path / "net.so")
    assert (library if place == "embedded" else beside).stat().st_size > weights
    assert place == "embedded" or library.stat().st_size < 1 << 20
    for name in ("model.onnx", "weights.data"):
        (tmp_path / name).unlink(missing_ok=True)
    x = np.random.default_rng(0).standard_normal((1, size), np.float32)
    np.save(tmp_path / "x.npy", x)
    held_bytes, mappings = python(
        MOST_RUN, RUN, tmp_path / "net.so", tmp_path / "x.npy", tmp_path / "y.npy"
    )
    assert held_bytes < MOST_RUN, f"{held_bytes} bytes beside {weights} mapped: {mappings}"
    y = np.load(tmp_path / "y.npy")
    assert np.allclose(y, wanted(x), rtol=1e-4, atol=1e-4)
    print(json.dumps({"weights": weights, "export_peak": peak, "run": held_bytes}))
    for file in (library, beside):
        file.unlink(missing_ok=True)


def python(limit: int, program: str, *arguments: Path | str) -> tuple[int, str]:
    """Run a program: as `memory_of`. Of more than `limit` a second run decides, and a warning shows
    the first: one run of hundreds had 380 MB for 224 of weights, whose mappings nobody saw."""
    first, mappings = memory_of(program, *arguments)
    if first < limit:
        return first, mappings
    warnings.warn(f"{first} bytes of memory: {mappings}", stacklevel=1)
    return memory_of(program, *arguments)


def memory_of(program: str, *arguments: Path | str) -> tuple[int, str]:
    """Run a program; the most memory that it had which no file backs, and in which mappings that
    was, if it was much."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    peak, mappings, process = 0, "", subprocess.Popen(command, cwd=ROOT)
    folder = Path(f"/proc/{process.pid}")
    while process.poll() is None:
        text = (folder / "status").read_text() if folder.exists() else ""
        if "RssAnon:" in text:
            memory = int(text.split("RssAnon:")[1].split()[0]) << 10
            if memory > max(peak, MOST_RUN):
                mappings = large_mappings((folder / "smaps").read_text())
            peak = max(peak, memory)
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    assert process.returncode == 0
    return peak, mappings


def large_mappings(smaps: str) -> str:
    """The heads of mappings with a MiB and more that no file backs, and how many KiB they have."""
    head, large = "", []
    for line in smaps.splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            head = line
        elif words[0] == "Anonymous:" and int(words[1]) >= 1 << 10:
            large.append(f"{head} {words[1]}")
    return "; ".join(large)
