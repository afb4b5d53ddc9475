"""How an importer says that a node cannot be imported."""

from __future__ import annotations


class NodeProblem(Exception):
    """Raised inside importers only; becomes an `Issue` with the node's name. `kind` as there."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


def unsupported(message: str, hint: str = "", kind: str = "attribute") -> NodeProblem:
    """Valid ONNX that is not implemented."""
    return NodeProblem(kind, message, hint)


def malformed(message: str, hint: str = "") -> NodeProblem:
    """Something the ONNX standard does not allow."""
    return NodeProblem("malformed", message, hint)
