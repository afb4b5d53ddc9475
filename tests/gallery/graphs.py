"""Graphs of ONNX that no exporter makes whole: a detector with the choice of its boxes, generation
of text with its loop, recognition of speech by an LSTM of any length, segmentation whose edges are
sampled again."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.gallery.case import Made, Row, scatter


def exported(model: Any, args: tuple[Any, ...], **options: Any) -> Any:
    """A module as ONNX, by torch's exporter of scripts."""
    import onnx
    import torch

    scatter(model)
    data = io.BytesIO()
    torch.onnx.export(model.eval(), args, data, dynamo=False, **options)
    return onnx.load_from_string(data.getvalue())


def detector() -> Made:
    """YOLOv8 with NonMaxSuppression, and the chosen boxes."""
    import torch
    from onnx import TensorProto, helper, numpy_helper

    from tests.gallery.yolo import make

    model, args = make("yolov8n")
    proto = exported(model, args, input_names=["picture"], output_names=["found"])
    # Scores of a network that nobody trained all but tie, which leaves the choice to rounding.
    apart = np.random.default_rng(0).uniform(0, 0.5, (1, 80, 189)).astype(np.float32)
    constants = {
        "apart": apart,
        "most": np.array(7, np.int64),
        "overlap": np.array(0.5, np.float32),
        "least": np.array(1e-6, np.float32),
        "cut": np.array([4, 80], np.int64),
        "place": np.array([2], np.int64),
        "rows": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Split", ["found", "cut"], ["corners", "classes"], axis=1),
        helper.make_node("Add", ["classes", "apart"], ["scores"]),
        helper.make_node("Transpose", ["corners"], ["boxes"], perm=[0, 2, 1]),
        helper.make_node(
            "NonMaxSuppression",
            ["boxes", "scores", "most", "overlap", "least"],
            ["chosen"],
            center_point_box=1,
        ),
        helper.make_node("Gather", ["chosen", "place"], ["which"], axis=1),
        helper.make_node("Squeeze", ["which", "rows"], ["kept"]),
        helper.make_node("Gather", ["boxes", "kept"], ["best"], axis=1),
    ]
    graph = proto.graph
    graph.node.extend(nodes)
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    del graph.output[:]
    graph.output.extend(
        [
            helper.make_tensor_value_info("chosen", TensorProto.INT64, ["n", 3]),
            helper.make_tensor_value_info("best", TensorProto.FLOAT, [1, "n", 4]),
        ]
    )
    return proto, {"picture": torch.rand(1, 3, 96, 96)}


def generation() -> Made:
    """GPT-2 in a Loop: the word with the greatest score is appended until a word ends the text."""
    import torch
    from onnx import TensorProto, helper, numpy_helper
    from transformers import AutoModelForCausalLM

    from tests.gallery.configurations import configured, words

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForCausalLM.from_config(configured("gpt2", {}))
            self.model.config._attn_implementation = "eager"

        def forward(self, ids: Any) -> Any:
            places = torch.arange(ids.shape[1]).unsqueeze(0)
            n = ids.shape[1]
            mask = torch.full((n, n), -1e9).triu(1)[None, None]
            return self.model(ids, attention_mask=mask, position_ids=places).logits[:, -1]

    torch.manual_seed(3)
    model = Scores()
    scatter(model)
    program = torch.onnx.export(
        model.eval(),
        (words(1, 5),),
        dynamo=True,
        verbose=False,
        dynamic_shapes=({1: torch.export.Dim("n", min=2, max=60)},),
        input_names=["ids"],
        output_names=["scores"],
    )
    proto = program.model_proto
    body = [
        helper.make_node("ArgMax", ["scores"], ["word"], axis=-1, keepdims=1),
        helper.make_node("Concat", ["ids", "word"], ["longer"], axis=1),
        helper.make_node("Equal", ["word", "end"], ["ended"]),
        helper.make_node("Not", ["ended"], ["goes"]),
        helper.make_node("Squeeze", ["goes"], ["on"]),
        helper.make_node("Identity", ["scores"], ["seen"]),
    ]
    info = helper.make_tensor_value_info
    inner = helper.make_graph(
        [*proto.graph.node, *body],
        "step",
        [
            info("i", TensorProto.INT64, []),
            info("cond", TensorProto.BOOL, []),
            info("ids", TensorProto.INT64, [1, None]),
        ],
        [
            info("on", TensorProto.BOOL, []),
            info("longer", TensorProto.INT64, [1, None]),
            info("seen", TensorProto.FLOAT, [1, 99]),
        ],
    )
    outer = helper.make_graph(
        [helper.make_node("Loop", ["trips", "", "start"], ["text", "all"], body=inner)],
        "generation",
        [info("start", TensorProto.INT64, [1, "n"]), info("trips", TensorProto.INT64, [])],
        [
            info("text", TensorProto.INT64, [1, "m"]),
            info("all", TensorProto.FLOAT, ["steps", 1, 99]),
        ],
        [*proto.graph.initializer, numpy_helper.from_array(np.array([[2]]), "end")],
    )
    model_proto = helper.make_model(
        outer, opset_imports=proto.opset_import, ir_version=proto.ir_version
    )
    model_proto.functions.extend(proto.functions)
    return model_proto, {"start": words(1, 4), "trips": torch.tensor(9)}


def speech(lengths: Sequence[int] = (40,)) -> Made:
    """Deep Speech 2: convolutions over a spectrum, then LSTMs in both directions."""
    import torch
    from torch import nn

    class DeepSpeech(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Sequential(
                nn.Conv2d(1, 8, (11, 5), (2, 1), (5, 2)), nn.BatchNorm2d(8), nn.Hardtanh(0, 20)
            )
            self.lstm = nn.LSTM(8 * 20, 48, 2, bidirectional=True)
            self.out = nn.Linear(96, 29)

        def forward(self, x: Any) -> Any:
            y = self.front(x)
            n, c, h, t = y.shape
            y, _ = self.lstm(y.reshape(n, c * h, t).permute(2, 0, 1))
            return self.out(y).log_softmax(-1)

    proto = exported(
        DeepSpeech(),
        (torch.randn(1, 1, 40, 30),),
        input_names=["spectrum"],
        output_names=["letters"],
        dynamic_axes={"spectrum": {3: "length"}, "letters": {0: "length"}},
    )
    return proto, {"spectrum": torch.randn(1, 1, 40, lengths[0])}


def segmentation() -> Made:
    """PointRend: a coarse segmentation is sampled at points and decided again there."""
    import torch
    from torch import nn
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    class PointRend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.coarse = lraspp_mobilenet_v3_large(
                weights=None, weights_backbone=None, num_classes=5
            )
            self.head = nn.Sequential(nn.Conv1d(8, 16, 1), nn.ReLU(), nn.Conv1d(16, 5, 1))

        def forward(self, x: Any, points: Any) -> Any:
            coarse = self.coarse(x)["out"]
            parts = [
                nn.functional.grid_sample(t, points[:, :, None] * 2 - 1, align_corners=False)
                for t in (coarse, x)
            ]
            fine = torch.cat(parts, 1)[..., 0]
            return coarse, self.head(fine)

    args = (torch.rand(1, 3, 64, 64), torch.rand(1, 50, 2))
    names = ["picture", "points"]
    proto = exported(PointRend(), args, opset_version=18, input_names=names)
    return proto, dict(zip(names, args, strict=True))


ROWS = [
    Row("detector-with-nms", "ultralytics", detector, ("onnx",)),
    Row("generation-with-a-loop", "transformers", generation, ("onnx",)),
    Row("deep-speech-of-any-length", "torch", speech, ("onnx",)),
    Row("point-rend", "torchvision", segmentation, ("onnx",)),
]
