"""Networks of torchvision: pictures, segmentation, video and optical flow. Those that choose boxes
need its library of operators."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.gallery.case import Made, Row

# module of torchvision.models -> networks with the shape of their inputs and options
NETWORKS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "alexnet": ("", (1, 3, 64, 64), {}),
    "squeezenet1_1": ("", (1, 3, 64, 64), {}),
    "googlenet": ("", (1, 3, 64, 64), {"init_weights": False, "aux_logits": False}),
    "shufflenet_v2_x0_5": ("", (1, 3, 64, 64), {}),
    "wide_resnet50_2": ("", (1, 3, 64, 64), {}),
    "maxvit_t": ("", (1, 3, 224, 224), {}),
    "swin_v2_t": ("", (1, 3, 64, 64), {}),
    "deeplabv3_mobilenet_v3_large": ("segmentation", (1, 3, 64, 64), {"weights_backbone": None}),
    "fcn_resnet50": ("segmentation", (1, 3, 64, 64), {"weights_backbone": None}),
    "lraspp_mobilenet_v3_large": ("segmentation", (1, 3, 64, 64), {"weights_backbone": None}),
    "r3d_18": ("video", (1, 3, 8, 32, 32), {}),
    "mc3_18": ("video", (1, 3, 8, 32, 32), {}),
    "r2plus1d_18": ("video", (1, 3, 8, 32, 32), {}),
    "s3d": ("video", (1, 3, 16, 224, 224), {}),
    "mvit_v2_s": ("video", (1, 3, 16, 224, 224), {}),
    "swin3d_t": ("video", (1, 3, 4, 64, 64), {}),
}


def make(name: str, room: str, shape: tuple[int, ...], options: dict[str, Any]) -> Made:
    import torch
    import torchvision

    models = getattr(torchvision.models, room) if room else torchvision.models
    return getattr(models, name)(weights=None, **options), (torch.randn(shape),)


def raft() -> Made:
    """Optical flow; pictures are sampled at computed places."""
    import torch
    from torchvision.models.optical_flow import raft_small

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = raft_small(weights=None)

        def forward(self, before: Any, after: Any) -> Any:
            return self.model(before, after, num_flow_updates=2)

    return Flow(), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128))


ROWS = [
    *(Row(name, "torchvision", partial(make, name, *row)) for name, row in NETWORKS.items()),
    Row("raft_small", "torchvision", raft),
]
