"""torchvision without its library of operators, which is built for torch with CUDA."""

from __future__ import annotations


def torchvision_alone() -> None:
    """Declare the operators that torchvision's modules name while they are imported. A network that
    calls one cannot be run by torch then."""
    import torch

    for declared in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        name = declared.partition("(")[0]
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", declared.removeprefix(name))
