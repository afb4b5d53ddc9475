from __future__ import annotations

import pytest

from tensorkiln.base.span import UNKNOWN, Span


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (Span(), ""),
        (Span("model.onnx", "conv1", "Conv"), "model.onnx: node 'conv1' (Conv)"),
        (Span("model.onnx", "conv1"), "model.onnx: node 'conv1'"),
        (Span("model.onnx", op="Conv"), "model.onnx: Conv"),
        (Span("script.py", line=12, column=5), "script.py:12:5"),
        (Span(line=3), "<unknown>:3"),
    ],
)
def test_text(span: Span, text: str) -> None:
    assert str(span) == text
    assert bool(span) == bool(text)


def test_unknown_is_empty() -> None:
    assert Span() == UNKNOWN
