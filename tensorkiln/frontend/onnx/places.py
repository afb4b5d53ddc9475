"""The line of a program that a node was exported from, as exporters write it down."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorkiln.frontend.onnx.proto import ENTRY, NodeProto
from tensorkiln.frontend.onnx.wire import WireError, decode

# Frames of Python in `doc_string` (torch.onnx before 2.5) and in the metadata
# `pkg.torch.onnx.stack_trace` (since then): `File "/home/a/net.py", line 12, in forward`, or
# `/home/a/net.py(12): forward`.
_FRAMES = (
    re.compile(r'File "([^"\n]+)", line (\d+)'),
    re.compile(r"^\s*([^\s()]+\.py)\((\d+)\)", re.MULTILINE),
)
_LIBRARIES = ("/site-packages/", "/dist-packages/")


def place_of(node: NodeProto) -> str:
    """`net.py:12`, the innermost frame that is not a library's; empty if nothing was written."""
    for text in _texts(node):
        for pattern in _FRAMES:
            frames = pattern.findall(text)
            model_frames = [
                f for f in frames if not any(part in f[0] for part in _LIBRARIES)
            ] or frames
            if model_frames:
                # Frames of the first form are listed from the outermost on.
                file, line = model_frames[-1 if pattern is _FRAMES[0] else 0]
                name = re.split(r"[/\\]", file)[-1]
                return f"{name}:{line}"
    return ""


def _texts(node: NodeProto) -> Iterator[str]:
    for data in node.metadata:
        try:
            entry = decode(ENTRY, data)
        except WireError:
            continue
        if "stack_trace" in entry.key:
            yield entry.value
    if node.doc is not None:
        yield bytes(node.doc).decode(errors="replace")
