"""Networks that find and outline things, of the package ultralytics."""

from __future__ import annotations

from functools import partial

from tests.gallery.case import Made, Row

NETWORKS = (
    "yolov3-tiny",
    "yolov5n",
    "yolov6n",
    "yolov8n",
    "yolov8n-seg",
    "yolov8n-pose",
    "yolov8n-obb",
    "yolov8n-cls",
    "yolov8n-worldv2",
    "yolov9t",
    "yolov10n",
    "yolo11n",
    "yolo11n-seg",
    "yolo12n",
    "yolo26n",
    "rtdetr-l",
)


def make(name: str) -> Made:
    import torch
    from ultralytics import RTDETR, YOLO

    build = RTDETR if "detr" in name else YOLO
    model = build(f"{name}.yaml").model
    for module in model.modules():
        if hasattr(module, "export"):
            module.export = True
            module.format = "onnx"
    return model.float(), (torch.rand(1, 3, 96, 96),)


ROWS = [
    Row(name, "ultralytics", partial(make, name), ("torch", "script"))
    if name in ("yolov8n", "yolo11n")
    else Row(name, "ultralytics", partial(make, name))
    for name in NETWORKS
]
