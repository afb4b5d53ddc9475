"""The attribute `auto_pad` of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.windows import Same


def padding(auto_pad: str, pads: Sequence[int] | None) -> tuple[Sequence[int] | None, Same | None]:
    """The padding that a node asks for, as `pads` and `same` of `graph/windows.py`."""
    match auto_pad:
        case "NOTSET" | "":
            return pads, None
        case "VALID":
            return None, None
        case "SAME_UPPER":
            return None, Same.UPPER
        case "SAME_LOWER":
            return None, Same.LOWER
    raise malformed(f"auto_pad={auto_pad!r}")
