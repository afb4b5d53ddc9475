"""What all rows need. The process that theirs are forked from imports it, once."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from tests.gallery.case import quiet
from tests.gallery.torchvision_alone import torchvision_alone

quiet()
for _name in ("torch", "torch._dynamo", "torch.onnx", "onnx", "onnxscript", "tensorkiln.pipeline"):
    import_module(_name)
torchvision_alone()
for _name in ("timm", "transformers"):
    with suppress(ImportError):  # rows that need it say so
        import_module(_name)
