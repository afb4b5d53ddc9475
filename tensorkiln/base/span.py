"""Where something came from: a node of a model, or a line of a script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the user's own source. Every IR node carries one, and equality ignores it.

    `source` is a file name or the name of a graph; `name` is the node's name there and `op` its
    operator; `line` and `column` count from 1, and 0 means unknown.
    """

    source: str = ""
    name: str = ""
    op: str = ""
    line: int = 0
    column: int = 0

    def __bool__(self) -> bool:
        """False for a span without source, name, operator and line."""
        return bool(self.source or self.name or self.op or self.line)

    def __str__(self) -> str:
        """`model.onnx: node 'conv1' (Conv)` or `script.py:12:5`; empty when nothing is known."""
        place = self.source
        if self.line:
            place = f"{place or '<unknown>'}:{self.line}"
            if self.column:
                place = f"{place}:{self.column}"
        node = f"node {self.name!r}" if self.name else ""
        if self.op:
            node = f"{node} ({self.op})" if node else self.op
        return ": ".join(part for part in (place, node) if part)


UNKNOWN = Span()
