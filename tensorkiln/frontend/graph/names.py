"""Names of values and dimensions in a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable


def identifier(name: str, reserved: Iterable[str] = ()) -> str:
    """A valid Python identifier made from `name` that is not in `reserved`.

    `input.1` gives `input_1`, `0` gives `_0`; a second `x` gives `x_1`.
    """
    base = re.sub(r"\W", "_", name, flags=re.ASCII) or "value"
    base = f"_{base}" if base[0].isdigit() else base
    names, candidate, k = set(reserved), base, 1
    while candidate in names:
        candidate, k = f"{base}_{k}", k + 1
    return candidate
