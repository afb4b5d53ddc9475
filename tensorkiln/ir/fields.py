"""The parts of nodes, read once per class from the annotations of its fields.

A node says its fields once, in its dataclass. From `a: Expr`, `indices: tuple[Expr, ...]`,
`orelse: Stmt | None` or `ranges: tuple[tuple[Expr, Expr], ...]` follows which expressions and
statements a node has, and how it is rebuilt with others. All walks and rewrites use these tables:

    Readers(Expr)[For]      lambda node: (node.lo, node.extent)
    Rewriters(Stmt)[For]    lambda node, f: For(..., f(node.body), ...), or `node` if that is equal

Variables and buffers are parts too. A field of type `Var` is a variable that the node binds (a use
of one is an `Expr`). `bound_in` says in which fields a bound name is visible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from operator import attrgetter, is_
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

Read = Callable[[Any], Sequence[Any]]
Map = Callable[[Any], Any]
Rewrite = Callable[[Any, Map], Any]

# Metadata of a field that runs, and is therefore visited, before the other fields.
RUNS_FIRST = {"runs_first": True}


def bound_in(*scope: str) -> dict[str, tuple[str, ...]]:
    """Metadata of a field with the variables or the buffer that a node binds: their scope."""
    return {"scope": scope}


class Inner:
    """Base of parts of nodes that are not nodes themselves, such as the regions of a block. Their
    parts are parts of the node."""

    __slots__ = ()


class Readers(dict[type, Read]):
    """By class of node, the function that returns the node's parts of one kind, a class or a union
    of classes, in the order in which they run."""

    def __init__(self, part: Any):
        self._part = part

    def __missing__(self, cls: type) -> Read:
        reader = self[cls] = _reader(cls, self._part)
        return reader


class Rewriters(dict[type, Rewrite]):
    """By class of node, the function that applies another to the node's parts of one kind. It
    returns the node itself if none changed; else a new one, made by `cls.folded` if there is that,
    which takes the same arguments and folds constants."""

    def __init__(self, part: Any):
        self._part = part

    def __missing__(self, cls: type) -> Rewrite:
        rewriter = self[cls] = _rewriter(cls, self._part)
        return rewriter


@dataclass(frozen=True, slots=True)
class _Place:
    """How the parts in a value are read and replaced. Replacing returns the same value if all parts
    stay the same."""

    read: Callable[[Any], Iterable[Any]]
    rewrite: Rewrite


def _each(v: tuple[Any, ...], f: Map) -> tuple[Any, ...]:
    if len(v) == 1:  # as often as not
        only = f(v[0])
        return v if only is v[0] else (only,)
    new = tuple(map(f, v))
    return v if all(map(is_, new, v)) else new


_ONE = _Place(lambda v: (v,), lambda v, f: f(v))
_MANY = _Place(lambda v: v, _each)


def _place(hint: Any, part: Any) -> _Place | None:
    """Where the parts are in a value of the type `hint`; None if it has none."""
    args = get_args(hint)
    if hint is part:
        return _ONE
    if isinstance(hint, type) and issubclass(hint, Inner):
        return _Place(_reader(hint, part), _rewriter(hint, part)) if _places(hint, part) else None
    if isinstance(hint, UnionType):
        return _some(hint, part)
    if get_origin(hint) is tuple and args[1:] == (...,):
        return _repeated(_place(args[0], part))
    if get_origin(hint) is tuple:
        return _row([_place(t, part) for t in args])
    return None


def _some(hint: UnionType, part: Any) -> _Place | None:
    """A value that is a part, or something else, such as None."""
    members = tuple(set(hint.__args__) & set(get_args(part) or (part,)))
    if not members and any(_place(t, part) for t in hint.__args__):
        raise TypeError(f"no rule for the parts of a field of type {hint}")
    if not members:
        return None
    return _Place(
        lambda v: (v,) if isinstance(v, members) else (),
        lambda v, f: f(v) if isinstance(v, members) else v,
    )


def _repeated(inner: _Place | None) -> _Place | None:
    if inner is None or inner is _ONE:
        return inner and _MANY
    return _Place(
        lambda v: chain.from_iterable(map(inner.read, v)),
        lambda v, f: _each(v, lambda x: inner.rewrite(x, f)),
    )


def _row(places: list[_Place | None]) -> _Place | None:
    """A tuple of fixed length."""
    if not any(places):
        return None

    def rewrite(v: tuple[Any, ...], f: Map) -> tuple[Any, ...]:
        new = tuple([x if p is None else p.rewrite(x, f) for p, x in zip(places, v, strict=True)])
        return v if all(map(is_, new, v)) else new

    return _Place(
        lambda v: [x for p, item in zip(places, v, strict=True) if p for x in p.read(item)], rewrite
    )


def _places(cls: type, part: Any) -> dict[str, _Place]:
    """The fields of a class that hold parts, in the order in which they run."""
    if not is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a node")
    hints = get_type_hints(cls)
    ordered = sorted(fields(cls), key=lambda f: "runs_first" not in f.metadata)
    places = {f.name: _place(hints[f.name], part) for f in ordered}
    return {name: place for name, place in places.items() if place is not None}


# The functions of a class are compiled from text, as dataclasses make `__init__`: traversals take
# most of the compile time, and loops over lists of fields would make them three times slower.


def _reader(cls: type, part: Any) -> Read:
    places = _places(cls, part)
    if list(places.values()) == [_MANY]:
        return attrgetter(*places)
    namespace = {f"read_{name}": place.read for name, place in places.items()}
    items = [
        f"node.{name}, "
        if place is _ONE
        else f"*node.{name}, "
        if place is _MANY
        else f"*read_{name}(node.{name}), "
        for name, place in places.items()
    ]
    return _compiled(f"def made(node):\n return ({''.join(items)})", namespace)


def _rewriter(cls: type, part: Any) -> Rewrite:
    places = _places(cls, part)
    if not places:
        return lambda node, f: node
    namespace = {f"rewrite_{name}": place.rewrite for name, place in places.items()}
    namespace["build"] = getattr(cls, "folded", cls)
    lines = ["def made(node, f):"]
    for name, place in places.items():
        call = f"f({name}_)" if place is _ONE else f"rewrite_{name}({name}_, f)"
        lines += [f" {name}_ = node.{name}", f" {name} = {call}"]
    unchanged = " and ".join(f"{name} is {name}_" for name in places)
    values = ", ".join(f.name if f.name in places else f"node.{f.name}" for f in fields(cls))
    lines.append(f" return node if {unchanged} else build({values})")
    return _compiled("\n".join(lines), namespace)


def _compiled(text: str, namespace: dict[str, Any]) -> Callable[..., Any]:
    exec(text, namespace)
    function: Callable[..., Any] = namespace["made"]
    return function
