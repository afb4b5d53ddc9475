"""The exception by which an importer says that a node cannot be imported."""

from __future__ import annotations


class NodeProblem(Exception):
    """Raised while a node or an input is imported; `Importer` turns it into an `Issue` of the same
    `kind` that names the node or input."""

    def __init__(self, kind: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.kind, self.message, self.hint = kind, message, hint


class RanksDiffer(NodeProblem):
    """Two branches give results of different ranks: what reads them is imported into both."""


def unsupported(message: str, hint: str = "", kind: str = "attribute") -> NodeProblem:
    """A NodeProblem for a valid node that is not imported."""
    return NodeProblem(kind, message, hint)


def malformed(message: str, hint: str = "") -> NodeProblem:
    """A NodeProblem for a node that its model's format does not allow."""
    return NodeProblem("malformed", message, hint)


class BodyRefused(Exception):
    """A body has nodes that cannot be imported, of which there are issues already."""
