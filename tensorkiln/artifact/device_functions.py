"""Tables of device functions, `kernels.fmap.json`, read from artifacts that may be anyone's."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorkiln.base.errors import UserError
from tensorkiln.base.json_text import parse_json
from tensorkiln.base.schema import Reader

_CODE = "bad-metadata"


@dataclass(frozen=True, slots=True)
class DeviceFunctionInfo:
    """What a function takes ("buffer", the dtype of a number, or `name: dtype`), the threads of a
    block along x, y and z, bytes that a block shares."""

    name: str
    params: tuple[str, ...]
    block: tuple[int, int, int]
    shared_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return math.prod(self.block)


def device_functions_from(
    data: bytes | memoryview, where: str
) -> tuple[DeviceFunctionInfo, ...] | None:
    """The device functions that a JSON file lists under `functions`, by name; None if it has no
    such key, or lists functions in another form. Raises UserError (code `bad-metadata`)."""
    try:
        parsed = parse_json(data, unique=True)
    except ValueError as error:
        raise UserError(f"not valid JSON: {error}", code=_CODE, where=where) from None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("functions"), dict):
        return None
    table = Reader(parsed, where, _CODE).table("functions")
    return tuple(_function(name, row) for name, row in table)


def _function(name: str, row: Reader) -> DeviceFunctionInfo:
    block = [n for n in row.dims("block") or () if isinstance(n, int) and n > 0]
    if len(block) != 3:
        raise row.wrong("expected the threads along x, y and z", "block")
    named = [*row.rows("buffers"), *row.rows("numbers")]
    params = [f"{p.get('name', str)}: {p.get('dtype', str)}" for p in named]
    x, y, z = block
    return DeviceFunctionInfo(
        name, (*row.texts("params", ()), *params), (x, y, z), row.number("shared_bytes")
    )
