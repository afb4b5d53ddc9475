"""Tables of device functions, `kernels.fmap.json`, read from artifacts that may be anyone's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorkiln.base.schema import Reader, parsed_text

_CODE = "bad-metadata"


@dataclass(frozen=True, slots=True)
class DeviceFunctionInfo:
    """What a function takes ("buffer", the dtype of a number, or `name: dtype`; "map of 0 (box 64 x
    64)" is a tensor map), the threads of a block along x, y and z, bytes that a block shares;
    `notes`: of which tensors it takes no map that it was asked to take, and why."""

    name: str
    params: tuple[str, ...]
    block: tuple[int, int, int]
    shared_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)


def device_functions_from(
    data: bytes | memoryview, place: str
) -> tuple[DeviceFunctionInfo, ...] | None:
    """The device functions that a JSON file lists under `functions`, by name; None if it has no
    such key, or lists functions in another form. Raises UserError (code `bad-metadata`)."""
    parsed = parsed_text(data, place, _CODE)
    if not isinstance(parsed, dict) or not isinstance(parsed.get("functions"), dict):
        return None
    table = Reader(parsed, place, _CODE).table("functions")
    return tuple(_function(name, row) for name, row in table)


def _function(name: str, row: Reader) -> DeviceFunctionInfo:
    block = [n for n in row.dims("block") or () if isinstance(n, int) and n > 0]
    if len(block) != 3:
        raise row.wrong("expected the threads along x, y and z", "block")
    named = [*row.rows("buffers"), *row.rows("numbers")]
    params = [f"{p.get('name', str)}: {p.get('dtype', str)}" for p in named]
    for m in row.rows("tensor_maps"):
        box = " x ".join(map(str, m.dims("box") or ()))
        params.append(f"map of {m.number('param')} (box {box})")
    x, y, z = block
    return DeviceFunctionInfo(
        name,
        (*row.texts("params", ()), *params),
        (x, y, z),
        row.number("shared_bytes"),
        tuple(f"{tensor}: {reason}" for tensor, reason in row.items("copied_by_threads")),
    )
