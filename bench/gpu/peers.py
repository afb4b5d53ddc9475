"""torch on the same GPU: cuBLAS behind its products, torch.compile for everything else, in strict
float32. Where it is not there, a row says so."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - registers bfloat16 with NumPy
import numpy as np

from bench.gpu.device import Array, Contender, Gpu, failure
from tensorkiln.frontend import from_onnx
from tensorkiln.ir.module import IRModule


class Absent(Exception):
    """Why a peer is not there."""


def torch_with_cuda(gpu: Gpu) -> Any:
    """torch, told to compute float32 as such. Raises Absent."""
    if gpu.dry:
        raise Absent("a dry run has no peers")
    try:
        import torch
    except ImportError:
        raise Absent("torch is not installed") from None
    if torch.version.cuda is None:
        raise Absent(f"torch {torch.__version__} is built without CUDA")
    if not torch.cuda.is_available():
        raise Absent(f"torch {torch.__version__} finds no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch


def _to_torch(torch: Any, a: Array) -> Any:
    if a.dtype.name == "bfloat16":
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16).to("cuda")
    return torch.from_numpy(a).to("cuda")


@dataclass(frozen=True)
class Peer:
    """`make` gets torch and returns a function of tensors on the GPU, which are the inputs."""

    label: str
    make: Callable[[Any], Callable[..., Any]]
    gpu: Gpu
    inputs: Sequence[Array]

    def contender(self) -> Contender:
        """Compiled, and run once; its status is the reason where that fails."""
        try:
            return self._ready(torch_with_cuda(self.gpu))
        except Absent as reason:
            return Contender(self.label, status=f"absent: {reason}")
        except Exception as error:  # the table reports it, whatever it is
            return Contender(self.label, status=failure(error))

    def _ready(self, torch: Any) -> Contender:
        run, tensors = self.make(torch), [_to_torch(torch, a) for a in self.inputs]
        results: list[Any] = []

        def queue() -> None:
            with torch.no_grad():
                results[:] = [run(*tensors)]

        def outputs() -> list[Array]:
            (output,) = results
            fields = output if isinstance(output, tuple | list) else (output,)
            return [t.float().cpu().numpy() for t in fields]

        queue()
        torch.cuda.synchronize()
        return Contender(
            f"{self.label} {torch.__version__}", queue, torch.cuda.synchronize, outputs
        )


def torch_programs(kind: str) -> Callable[[Any], Callable[..., Any]]:
    """The operators of `cases.MEMORY`, by torch.compile."""

    def make(torch: Any) -> Callable[..., Any]:
        def program(x: Any) -> Any:
            if kind == "softmax":
                return torch.softmax(x, dim=1)
            if kind == "layer norm":
                columns = x.shape[1]
                scales, zeros = (torch.full((columns,), v, device=x.device) for v in (1.0, 0.0))
                return torch.nn.functional.layer_norm(x, (columns,), scales, zeros, 1e-5)
            return torch.relu(x * 2 + 1)

        return torch.compile(program)  # type: ignore[no-any-return]

    return make


def zoo_network(name: str, batch: int, small: bool) -> tuple[Any, list[Array]]:
    """A torch module of the zoo and inputs; `small`: of few layers, for a tiny image or few tokens.
    Raises Absent."""
    try:
        from tests.zoo import bert, resnet
        from tests.zoo.initialise import randomise
        from tests.zoo.registry import NETWORKS, inputs
    except ImportError as error:
        raise Absent(f"no model can be made: {error.name} is not installed") from None
    if name == "bert":
        module = bert.Bert(layers=1 if small else 12)
        tokens = 4 if small else 128
        return randomise(module), [
            *inputs(NETWORKS[name], 0, batch=batch, sequence=tokens).values()
        ]
    if small:
        module = resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1))
        return randomise(module), [np.full((1, 3, 16, 16), 0.5, np.float32)]
    images = np.random.default_rng(batch).standard_normal((batch, 3, 224, 224), dtype=np.float32)
    return randomise(resnet.ResNet(resnet.Bottleneck, (3, 4, 6, 3))), [images]


def imported(module: Any, inputs: Sequence[Any]) -> IRModule:
    """A torch module as the compiler's, by torch's older exporter: it takes a tenth of the time."""
    import torch

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "network.onnx"
        torch.onnx.export(module, tuple(inputs), str(path), dynamo=False, opset_version=17)
        return from_onnx(path)
