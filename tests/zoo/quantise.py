"""Networks of the zoo as ONNX Runtime's tool quantises them: static, per channel, QDQ."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tensorkiln.target import Target
from tensorkiln.target.dots import saturates_byte_pairs
from tests.zoo.export import model_path
from tests.zoo.registry import NETWORKS, inputs

# Of transformers only products are quantised, as is usual.
PRODUCTS = ("MatMul", "Gemm")


class _Data(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, network: str):
        self.left: Iterator[dict[str, np.ndarray]] = iter(
            [inputs(NETWORKS[network], seed) for seed in (5, 6)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def quantise(
    network: str,
    path: Path,
    activations: str = "QUInt8",
    operators: Sequence[str] | None = None,
    small: bool = False,
) -> Path:
    """Write the QDQ file of a network to `path`. `operators` None: all that the tool knows;
    `small`: weights of at most 64 in magnitude, which the tool calls a reduced range."""
    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(model_path(network)), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(path),
        _Data(network),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType[activations],
        weight_type=QuantType.QInt8,
        reduce_range=small,
        op_types_to_quantize=operators and list(operators),
    )
    prepared.unlink()
    return path


def compared_path(network: str) -> Path:
    """The QDQ file on which engines are compared on this processor: with small weights where its
    sums of two products of bytes saturate. ONNX Runtime and OpenVINO sum up so there, and of larger
    weights their results are wrong: 101 for 200 where all 256 terms are 255 times 127."""
    return quantised_path(network, saturates_byte_pairs(Target("native")))


def quantised_path(network: str, small: bool = False) -> Path:
    """The QDQ file of a network, kept beside its float32 model; `small` as for `quantise`."""
    model = model_path(network)
    path = model.with_suffix(f"{'.small' * small}.int8.onnx")
    if not path.exists():
        folder = path.with_suffix(f".{os.getpid()}")
        folder.mkdir()
        is_image = any(n.ndim == 4 for n in inputs(NETWORKS[network], 0).values())
        attends = network.startswith("vit")
        operators = PRODUCTS if attends or not is_image else None
        quantised = quantise(network, folder / "model.onnx", operators=operators, small=small)
        quantised.replace(path)
        folder.rmdir()
    return path
