"""Pools of memory: what a target's option `memory` lists, fastest first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from tensorkiln.base.config import byte_count
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.record import JsonRecord, json_key
from tensorkiln.base.text import listed

T = TypeVar("T", str, int)
KINDS = ("ram", "flash")
# Elements have at most 8 bytes; a library aligns its workspace to 64 (`ir/relax.py`).
ALIGNS = (8, 16, 32, 64)
# What the compiler's texts call other memory than pools by.
_TAKEN = ("arg", "constant", "memory", "workspace")
_NAME = re.compile(r"[A-Za-z]\w{0,63}", re.ASCII)
_FIELDS = ("name", "size", "align", "kind")
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class MemoryPool(JsonRecord):
    """A part of a machine's memory: `size` bytes, or None if that is not stated.

    Addresses in it are multiples of `align` bytes. Intermediate results lie in pools of kind `ram`,
    weights in those of kind `flash`, which are only read.
    """

    name: str
    size: int | None = field(metadata=json_key(omitted=True, absent=None))
    align: int = 64
    kind: str = "ram"


def read_pools(value: object, place: str, doc: str) -> tuple[MemoryPool, ...]:
    """Check the list of pools of a target. UserError: `wrong-type`, `unknown-key`,
    `unknown-value`, `bad-name`, `given-twice`, `contradiction`."""
    if not isinstance(value, list | tuple) or not value:
        raise UserError(
            f"expected a list of pools, got {value!r}", code="wrong-type", where=place, hint=doc
        )
    pools = tuple(_pool(item, f"{place}[{i}]") for i, item in enumerate(value))
    names = [p.name for p in pools]
    for i, p in enumerate(pools):
        if p.name in names[:i]:
            raise UserError(
                f"there are two pools {p.name!r}",
                code="given-twice",
                where=f"{place}[{i}].name",
                hint="storages and limits name a pool: give each a name of its own",
            )
        later = next((q.name for q in pools[i + 1 :] if q.kind == p.kind), None)
        if p.size is None and later is not None:
            raise UserError(
                f"pool {p.name!r} has no size, so {later!r} behind it would stay empty",
                code="contradiction",
                where=f"{place}[{i}]",
                hint=f"state its size, or put {p.name!r} last",
            )
    if all(p.kind != "ram" for p in pools):
        raise UserError(
            "no pool is of kind 'ram': intermediate results have no place",
            code="contradiction",
            where=place,
            hint=doc,
        )
    return pools


def _pool(item: object, place: str) -> MemoryPool:
    if isinstance(item, MemoryPool):
        item = item.to_json()
    if not isinstance(item, Mapping):
        raise UserError(
            f"expected a dict, got {item!r}",
            code="wrong-type",
            where=place,
            hint='such as {"name": "sram", "size": 262144, "align": 8, "kind": "ram"}',
        )
    for key in item:
        if key not in _FIELDS:
            raise UserError(
                f"unknown key {key!r} of a pool",
                code="unknown-key",
                where=place,
                hint=nearest(str(key), _FIELDS) or f"known: {', '.join(_FIELDS)}",
            )
    name = item.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
        raise UserError(
            f"{name!r} cannot be the name of a pool",
            code="bad-name",
            where=f"{place}.name",
            hint=f"letters, digits and '_', but not {', '.join(_TAKEN)}",
        )
    kind = _choice(item.get("kind", "ram"), KINDS, f"{place}.kind")
    align = _choice(item.get("align", 64), ALIGNS, f"{place}.align")
    return MemoryPool(name, _size(item.get("size"), f"{place}.size"), align, kind)


def _choice(value: object, choices: tuple[T, ...], place: str) -> T:
    choice = next((c for c in choices if c == value and type(c) is type(value)), None)
    if choice is None:
        raise UserError(
            f"unknown value {value!r}",
            code="unknown-value",
            where=place,
            hint=nearest(str(value), map(str, choices)) or f"known: {listed(map(str, choices))}",
        )
    return choice


def _size(value: object, place: str) -> int | None:
    """Bytes of a pool, given as a number or as text such as "256K"; None if not given."""
    try:
        size = byte_count(value) if isinstance(value, str) else value
    except ValueError:
        size = -1
    if size is None or (isinstance(size, int) and type(size) is int and 0 < size <= _MOST):
        return size
    raise UserError(
        f"expected {byte_count.__doc__}, got {value!r}",
        code="wrong-type",
        where=place,
        hint="bytes, as a number or as text: 262144, '256K'",
    )
