"""Compile an ONNX model, export it as a library, load the library and run it.

    python examples/first_compile.py [model.onnx]

Without a model it builds ResNet-18 with random weights.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import tensorkiln as tk


def main(arguments: list[str]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="kiln-"))
    path = Path(arguments[0]) if arguments else folder / "resnet18.onnx"
    if not arguments:
        from tensorkiln.cli.demo_model import resnet18

        onnx.save(resnet18(), path)

    module = tk.frontend.from_onnx(str(path))  # freeze={"batch": 1} makes a symbol a number
    executable = tk.compile(module, target=None)  # None: this machine's CPU
    library = folder / f"{path.stem}.so"
    executable.export_library(str(library))

    # From here on the compiler is not needed; this could be another process.
    loaded = tk.runtime.load_module(str(library))
    main_function = tk.runtime.Executor(loaded, tk.cpu())["main"]
    outputs = main_function(*(random_input(entry) for entry in inputs_of(path)))
    for output in outputs if isinstance(outputs, tuple) else (outputs,):
        values = output.numpy()
        print(f"output {values.shape} {values.dtype}: {values.ravel()[:4]} ...")
    print(library)


def inputs_of(path: Path) -> list[onnx.ValueInfoProto]:
    graph = onnx.load(path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return [entry for entry in graph.input if entry.name not in weights]


def random_input(entry: onnx.ValueInfoProto) -> np.ndarray:
    """Random numbers, or ones for an integer input; symbolic dimensions have size 1."""
    tensor = entry.type.tensor_type
    shape = [d.dim_value or 1 for d in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if np.issubdtype(dtype, np.floating):
        return np.random.default_rng(0).standard_normal(shape).astype(dtype)
    return np.ones(shape, dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
