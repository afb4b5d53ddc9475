"""Tensor programs that know what they follow from, so that their bodies can wait.

A kernel follows from its group, the target and this compiler. A `Derived` function keeps that as
its `Origin`, by which a cache of objects answers without the body; a body that nobody looks at is
then never made. Looking at `body` makes it: to everyone else it is a PrimFunc like any other.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tensorkiln.base.sources import source_digest
from tensorkiln.ir.stmt import Assert, Param, PrimFunc, Stmt
from tensorkiln.ir.visit import extern_names, walk_stmt

Rewrite = Callable[[PrimFunc], PrimFunc]
Make = Callable[[], PrimFunc]
Forms = tuple[tuple[Param, ...], ...]

_PACKAGE = __name__.split(".")[0]


@dataclass(frozen=True, slots=True)
class Head:
    """What there is to a derived function beside its name and its body: for each parameter, which
    of its maker's forms it has, and PrimFunc's fields. Such functions have no attributes, are not
    public, assert nothing and call no C functions."""

    params: tuple[int, ...]
    outputs: int
    inplace: tuple[int, ...]
    op_class: str

    def to_bytes(self) -> bytes:
        """As caches keep it."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Head:
        """Inverse of `to_bytes`."""
        row = json.loads(data)
        return Head(
            tuple(row["params"]), row["outputs"], tuple(row["inplace"]), str(row["op_class"])
        )


@dataclass(frozen=True, slots=True)
class Origin:
    """All that a function follows from: `source`, a text without names, the `names` that are not in
    it, and the `steps` taken from there, which are functions of this package."""

    source: str
    head: Head
    names: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def body_key(self) -> dict[str, str]:
        """Components of the key of what follows from the body."""
        return {**head_key(self.source), "kind": "body", "steps": " ".join(self.steps)}

    def text_key(self, name: str) -> dict[str, str]:
        """Components of the key of the text, with all names, of the function called `name`."""
        names = json.dumps([name, *self.names])
        return {**self.body_key, "kind": "tir text", "names": names}


def head_key(source: str) -> dict[str, str]:
    """Components of the key under which the head of what follows from `source` is kept."""
    return {"kind": "head", "source": source, "compiler": source_digest()}


class Derived(PrimFunc):
    """A tensor program with its origin; `pending` until somebody looks at its body."""

    __slots__ = ("_made", "_make", "origin")

    origin: Origin
    _made: PrimFunc | None
    _make: Make | None

    def __init__(self, like: PrimFunc, origin: Origin, make: Make | None = None):
        """`like` but for the body, which `make` gives; without it `like` all over."""
        put = object.__setattr__  # frozen, as all nodes are
        for field in fields(PrimFunc):
            if field.name != "body":
                put(self, field.name, getattr(like, field.name))
        put(self, "origin", origin)
        put(self, "_made", like if make is None else None)
        put(self, "_make", make)

    @property  # type: ignore[misc]
    def __class__(self) -> type[PrimFunc]:  # type: ignore[override]
        """PrimFunc: what `replace` makes, and `==` takes for its like."""
        return PrimFunc

    def __reduce__(self) -> tuple[Any, ...]:
        return PrimFunc, tuple(getattr(self, field.name) for field in fields(PrimFunc))

    @property
    def pending(self) -> bool:
        """Whether the body has still to be made."""
        return self._made is None

    @property
    def body(self) -> Stmt:
        """The body, made now if it was not."""
        return self.settle().body

    def settle(self) -> PrimFunc:
        """The same function without an origin; its body is made now if it was not."""
        if self._made is None:
            assert self._make is not None
            made = self._make()
            assert made.params == self.params, f"{self.name}: made with other parameters"
            object.__setattr__(self, "_made", made)
            return made
        return self._made

    def then(self, rewrite: Rewrite) -> PrimFunc:
        """The function after one more step, which waits if this one's body does. What a step that
        is not of this package depends on nobody knows: its result has no origin."""
        if rewrite.__module__.split(".")[0] != _PACKAGE or "<" in rewrite.__qualname__:
            return rewrite(self)
        name = f"{rewrite.__module__}.{rewrite.__qualname__}"
        origin = replace(self.origin, steps=(*self.origin.steps, name))
        if self._made is None:
            return Derived(self, origin, lambda: rewrite(self))
        return Derived(rewrite(self._made), origin)


def is_pending(f: object) -> bool:
    """Whether looking at the body of `f` would make it; it was found right and compiled before."""
    return isinstance(f, Derived) and f.pending


def derived(f: PrimFunc, source: str, names: tuple[str, ...], forms: Forms) -> PrimFunc:
    """`f`, which follows from `source` and `names`, with its origin; `f` itself when a Head cannot
    describe it. `forms` are what each parameter may be."""
    if len(f.params) != len(forms) or extern_names(f):
        return f
    if any(isinstance(s, Assert) for s in walk_stmt(f.body)):
        return f
    chosen = [
        next((k for k, form in enumerate(each) if form is p), None)
        for p, each in zip(f.params, forms, strict=True)
    ]
    head = Head(tuple(k or 0 for k in chosen), f.outputs, f.inplace, f.op_class)
    described = None not in chosen and f == _headed(f.name, head, forms, f.body)
    return Derived(f, Origin(source, head, names)) if described else f


def promised(name: str, origin: Origin, forms: Forms, make: Make) -> PrimFunc:
    """The function of that origin, whose body `make` will give."""
    return Derived(_headed(name, origin.head, forms, Stmt()), origin, make)


def _headed(name: str, head: Head, forms: Forms, body: Stmt) -> PrimFunc:
    params = tuple(each[k] for each, k in zip(forms, head.params, strict=True))
    return PrimFunc(name, params, body, head.outputs, head.inplace, head.op_class)
