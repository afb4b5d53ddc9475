"""Tensor programs whose bodies are made lazily, because caches know the kernel without them.

A kernel is determined by its fused group, the target and this compiler. A `Derived` function
records these as its `Origin`, from which the keys of cached objects and texts are computed. When
the cache has the object of a kernel, its body is never made, unless something reads `body`, which
makes it on first access. Otherwise a Derived behaves like any other PrimFunc.
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
    """Everything of a derived function but its name and body, small enough to be cached.

    `params` has for each parameter the index of its form among those that the scheduler offers
    (`Forms`: the buffer with its shape, or a flat one). The other fields are those of PrimFunc. A
    function with attributes, assertions or calls of C functions, or a public one, has no Head.
    """

    params: tuple[int, ...]
    outputs: int
    inplace: tuple[int, ...]
    op_class: str

    def to_bytes(self) -> bytes:
        """The JSON text that is stored in the cache."""
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
    """Everything that determines a derived function.

    `source` is the target and the canonical text of the fused group, which has no names; `names`
    are the names left out of it; `steps` are the qualified names of the rewrites applied since,
    all functions of this package.
    """

    source: str
    head: Head
    names: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    @property
    def body_key(self) -> dict[str, str]:
        """Components of the cache key of anything computed from the body, such as an object."""
        return {**head_key(self.source), "kind": "body", "steps": " ".join(self.steps)}

    def text_key(self, name: str) -> dict[str, str]:
        """Components of the cache key of the function's text, which has all names, `name` too."""
        names = json.dumps([name, *self.names])
        return {**self.body_key, "kind": "tir text", "names": names}


def head_key(source: str) -> dict[str, str]:
    """Components of the cache key of the Head of the function derived from `source`."""
    return {"kind": "head", "source": source, "compiler": source_digest()}


class Derived(PrimFunc):
    """A tensor program with its origin; `pending` until its body is read for the first time."""

    __slots__ = ("_made", "_make", "origin")

    origin: Origin
    _made: PrimFunc | None
    _make: Make | None

    def __init__(self, like: PrimFunc, origin: Origin, make: Make | None = None):
        """A copy of `like`. With `make`, the body is instead that of `make()`, called lazily."""
        put = object.__setattr__  # frozen, as all nodes are
        for field in fields(PrimFunc):
            if field.name != "body":
                put(self, field.name, getattr(like, field.name))
        put(self, "origin", origin)
        put(self, "_made", like if make is None else None)
        put(self, "_make", make)

    @property  # type: ignore[misc]
    def __class__(self) -> type[PrimFunc]:  # type: ignore[override]
        """PrimFunc, so that dataclasses.replace makes one and `==` compares with one."""
        return PrimFunc

    def __reduce__(self) -> tuple[Any, ...]:
        return PrimFunc, tuple(getattr(self, field.name) for field in fields(PrimFunc))

    @property
    def pending(self) -> bool:
        """Whether the body has not been made yet."""
        return self._made is None

    @property
    def body(self) -> Stmt:
        """The body; the first access makes it."""
        return self.settle().body

    def settle(self) -> PrimFunc:
        """The same function as a plain PrimFunc, without origin; makes the body if pending."""
        if self._made is None:
            assert self._make is not None
            made = self._make()
            assert made.params == self.params, f"{self.name}: made with other parameters"
            object.__setattr__(self, "_made", made)
            return made
        return self._made

    def then(self, rewrite: Rewrite) -> PrimFunc:
        """This function rewritten; deferred until the body is made if this one is pending.

        The result of a `rewrite` from outside this package, or of a local function or lambda, has
        no origin: what such a rewrite depends on is unknown, so it cannot be part of a cache key.
        """
        if rewrite.__module__.split(".")[0] != _PACKAGE or "<" in rewrite.__qualname__:
            return rewrite(self)
        name = f"{rewrite.__module__}.{rewrite.__qualname__}"
        origin = replace(self.origin, steps=(*self.origin.steps, name))
        if self._made is None:
            return Derived(self, origin, lambda: rewrite(self))
        return Derived(rewrite(self._made), origin)


def is_pending(f: object) -> bool:
    """Whether `f` is a derived function whose body was not made yet.

    Checks may skip such a function: an earlier compile verified it before it cached its head.
    """
    return isinstance(f, Derived) and f.pending


def derived(f: PrimFunc, source: str, names: tuple[str, ...], forms: Forms) -> PrimFunc:
    """`f`, made from `source` and `names`, as a Derived; `f` itself when a Head cannot describe it.

    `forms` lists for each parameter the objects that it may be.
    """
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
    """A pending function with this origin; `make` is called when its body is first read."""
    return Derived(_headed(name, origin.head, forms, Stmt()), origin, make)


def _headed(name: str, head: Head, forms: Forms, body: Stmt) -> PrimFunc:
    params = tuple(each[k] for each, k in zip(forms, head.params, strict=True))
    return PrimFunc(name, params, body, head.outputs, head.inplace, head.op_class)
