"""The engines that are measured. Each one turns a case and a thread count into a callable.

Third parties are imported when a contender is prepared, never before, so that one that is missing
becomes a row that says so.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Array = np.ndarray
Runner = Callable[[], tuple[Array, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """One model and the inputs that every contender gets."""

    network: str
    path: Path
    inputs: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Contender:
    """`package` is what has to be importable; `prepare` compiles and returns one inference."""

    name: str
    label: str
    package: str
    distribution: str
    prepare: Callable[[Case, int], Runner]

    def missing(self) -> str:
        """Empty when the package can be imported, else the sentence for the table."""
        return "" if importlib.util.find_spec(self.package) else "not installed"

    def version(self) -> str:
        """Version of the installed distribution, empty when it has none."""
        try:
            return importlib.metadata.version(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            return ""


def _ours(case: Case, threads: int) -> Runner:
    """Compile, export, load, run: the road a user takes. Threads come from KILN_NUM_THREADS."""
    import tempfile

    import tensorkiln as tk

    module = tk.frontend.from_onnx(case.path)
    executable = tk.compile(module, target=None)
    with tempfile.TemporaryDirectory() as folder:
        library_path = Path(folder) / f"{case.network}.so"
        executable.export_library(library_path)
        library = tk.runtime.load_module(library_path)
    main = tk.runtime.Executor(library, tk.cpu())["main"]
    arrays = tuple(case.inputs.values())

    def run() -> tuple[Array, ...]:
        result = main(*arrays)
        outputs = result if isinstance(result, tuple | list) else (result,)
        return tuple(output.numpy() for output in outputs)

    return run


def _onnxruntime(case: Case, threads: int) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(case.path), options, providers=["CPUExecutionProvider"]
    )
    feeds = dict(case.inputs)
    return lambda: tuple(session.run(None, feeds))


def _openvino(case: Case, threads: int) -> Runner:
    import openvino

    core = openvino.Core()
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": True,
        "INFERENCE_PRECISION_HINT": "f32",
    }
    compiled = core.compile_model(str(case.path), "CPU", options)
    request = compiled.create_infer_request()
    feeds = {compiled.input(name): values for name, values in case.inputs.items()}

    def run() -> tuple[Array, ...]:
        found = request.infer(feeds, share_inputs=True, share_outputs=True)
        return tuple(found[port] for port in compiled.outputs)

    return run


def _torch(case: Case, threads: int) -> Runner:
    import torch
    import torch._dynamo
    import torch._inductor.config

    from tests.zoo.export import build

    torch.set_num_threads(threads)
    torch._dynamo.reset()
    torch._inductor.config.freezing = True
    compiled = torch.compile(build(case.network))
    tensors = [torch.from_numpy(values) for values in case.inputs.values()]

    def run() -> tuple[Array, ...]:
        with torch.no_grad():
            result = compiled(*tensors)
        outputs = result if isinstance(result, tuple) else (result,)
        return tuple(output.numpy() for output in outputs)

    run()  # Compiles here, so that what it raises belongs to preparation.
    return run


OURS = Contender("ours", "Tensorkiln", "tensorkiln", "tensorkiln", _ours)
PEERS: dict[str, Contender] = {
    peer.name: peer
    for peer in (
        Contender("ort", "ONNX Runtime", "onnxruntime", "onnxruntime", _onnxruntime),
        Contender("openvino", "OpenVINO", "openvino", "openvino", _openvino),
        Contender("torch", "torch.compile", "torch", "torch", _torch),
    )
}
