"""Attributes: small immutable mappings that operators, functions and loops carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.ir.expr import Expr

AttrValue: TypeAlias = (
    "bool | int | float | str | tuple[AttrValue, ...] | Expr | ExternalDependency | None"
)


@dataclass(frozen=True, slots=True)
class Attrs(Mapping[str, Any]):
    """Attributes sorted by name, read as `attrs["strides"]` or `attrs.strides`.

    Each value is an AttrValue. Which type an attribute has is defined by its owner: the operator
    (`ops/attribute.py`), or the kind of function, loop or block (`ir/known_attrs.py`).
    """

    items_: tuple[tuple[str, AttrValue], ...] = ()

    @staticmethod
    def of(**values: AttrValue) -> Attrs:
        def freeze(v: object) -> object:
            return tuple(freeze(x) for x in v) if isinstance(v, (list, tuple)) else v

        return Attrs(tuple(sorted((k, freeze(v)) for k, v in values.items())))  # type: ignore[misc]

    def __getitem__(self, key: str) -> Any:
        for k, v in self.items_:
            if k == key:
                return v
        raise KeyError(key)

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None

    def __iter__(self) -> Iterator[str]:
        return (k for k, _ in self.items_)

    def __len__(self) -> int:
        return len(self.items_)

    def exprs(self) -> Iterator[Expr]:
        """Yield every expression among the values, also inside nested tuples."""
        return (e for _, v in self.items_ for e in _exprs(v))


def _exprs(v: AttrValue) -> Iterator[Expr]:
    if isinstance(v, tuple):
        for x in v:
            yield from _exprs(x)
    elif isinstance(v, Expr):
        yield v


NO_ATTRS = Attrs()
