"""Classes of `tensorkiln.base.dataclass` beside those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field
from typing import Any, ClassVar

import pytest

from tensorkiln.base import dataclass as slotted

Decorator = Callable[..., Any]
SLOTTED: Decorator = slotted.dataclass
STANDARD: Decorator = dataclasses.dataclass


def declared(dataclass: Decorator) -> dict[str, Any]:
    """Classes with every option that the package uses, by name."""

    @dataclass(frozen=True, slots=True)
    class Plain:
        """A name and a size."""

        name: str
        size: int = 1
        kind: ClassVar[str] = "plain"

    @dataclass(frozen=True, slots=True)
    class Below(Plain):
        tail: tuple[int, ...] = ()
        note: str = field(default="", compare=False, repr=False)

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("below 0")

    @dataclass(slots=True)
    class Open:
        rows: list[int] = field(default_factory=list)
        count: int = field(default=3, init=False)
        later: int = field(init=False)
        memo: dict[str, int] = field(default_factory=dict, init=False)

        def __post_init__(self) -> None:
            self.later = len(self.rows)

    @dataclass(frozen=True, slots=True, eq=False)
    class ByIdentity:
        name: str

    @dataclass(frozen=True, slots=True, repr=False)
    class OwnText:
        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

    @dataclass(frozen=True, slots=True)
    class OwnEquality:
        name: str

        def __eq__(self, value: object) -> bool:
            return isinstance(value, OwnEquality)

    @dataclass(frozen=True, slots=True)
    class OwnHash:
        name: str

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        first: int
        second: int = 2

    @dataclass(frozen=True, slots=True)
    class Nothing:
        pass

    classes = [Plain, Below, Open, ByIdentity, OwnText, OwnEquality, OwnHash, Named, Nothing]
    return {cls.__name__: cls for cls in classes}


A, B = declared(SLOTTED), declared(STANDARD)
ARGUMENTS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Plain": [
        (("a",), {}),
        (("a", 2), {}),
        ((), {"name": "a", "size": 2}),
        ((), {}),
        ((1, 2, 3), {}),
    ],
    "Below": [(("a",), {}), (("a", 1, (2,), "n"), {}), (("a", 1, (2,), "m"), {}), (("a", -1), {})],
    "Open": [((), {}), (([1],), {}), (([1], 2), {})],
    "ByIdentity": [(("a",), {})],
    "OwnText": [(("a",), {})],
    "OwnEquality": [(("a",), {}), (("b",), {})],
    "OwnHash": [(("a",), {})],
    "Named": [((), {"first": 1}), ((), {"first": 1, "second": 3}), ((1,), {}), ((), {})],
    "Nothing": [((), {}), ((1,), {})],
}


def outcome(action: Callable[[], object]) -> object:
    """What an action returns, or the class and text of what it raises."""
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def properties(values: list[Any], cls: Any) -> list[object]:
    """Everything that can be asked of instances, as text or plain values."""
    rows: list[object] = [
        [(f.name, f.type, f.init, f.repr, f.compare, f.kw_only) for f in dataclasses.fields(cls)],
        cls.__match_args__,
        cls.__slots__,
        str(inspect.signature(cls)),
        [hasattr(cls, name) for name in ("__dict__", "__weakref__")],
        cls.__hash__ is None,
        (cls.__doc__ or "").startswith("A name"),
    ]
    names = [f.name for f in dataclasses.fields(cls)]
    for value in values:
        hashed = cls.__hash__ not in (None, object.__hash__)
        rows += [
            outcome(lambda value=value: repr(value)),  # type: ignore[misc]
            [outcome(lambda v=value, o=second: v == o) for second in values],  # type: ignore[misc]
            hash(value) if hashed else None,
            [outcome(lambda v=value, n=name: setattr(v, n, getattr(v, n))) for name in names],  # type: ignore[misc]
            # type: ignore[misc]
            outcome(lambda v=value: dataclasses.asdict(v)),  # type: ignore[misc]
            repr(outcome(lambda v=value: dataclasses.replace(v))),  # type: ignore[misc]
            repr(outcome(lambda v=value: copy.deepcopy(v))),  # type: ignore[misc]
        ]
    return rows


@pytest.mark.parametrize("name", A)
def test_as_the_standard_librarys(name: str) -> None:
    answers = []
    for cls in (A[name], B[name]):
        values = [outcome(lambda: cls(*args, **named)) for args, named in ARGUMENTS[name]]  # noqa: B023
        errors = [value for value in values if isinstance(value, tuple)]
        answers.append((errors, properties([v for v in values if not isinstance(v, tuple)], cls)))
    (slotted_errors, slotted_rows), (standard_errors, standard_rows) = answers
    assert slotted_errors == standard_errors
    for row, expected in zip(slotted_rows, standard_rows, strict=True):
        assert row == expected


def test_each_kind_inherits_from_the_other() -> None:
    for upper, lower in ((SLOTTED, STANDARD), (STANDARD, SLOTTED)):
        plain = declared(lower)["Plain"]

        @upper(frozen=True, slots=True)
        class Sub(plain):  # type: ignore[misc,valid-type]
            depth: int = 5

        value = Sub("a", depth=6)
        assert (value.name, value.size, value.depth) == ("a", 1, 6)
        assert [f.name for f in dataclasses.fields(Sub)] == ["name", "size", "depth"]
        assert dataclasses.replace(value, size=4) == Sub("a", 4, 6)
        with pytest.raises(FrozenInstanceError):
            value.size = 3


def test_an_authors_subclass_has_attributes_of_its_own() -> None:
    class Counting(A["Plain"]):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("counting")
            self.calls = 0

    value = Counting()
    value.calls += 1
    assert (value.name, value.calls) == ("counting", 1)
    with pytest.raises(FrozenInstanceError):
        value.name = "other"


@slotted.dataclass(frozen=True, slots=True)
class Kept:
    name: str
    rows: tuple[int, ...] = ()


def test_pickled() -> None:
    value = Kept("a", (1, 2))
    assert pickle.loads(pickle.dumps(value)) == value == copy.copy(value)


def test_a_mutable_default_and_a_class_without_slots_are_refused() -> None:
    with pytest.raises(ValueError, match="default_factory"):

        @SLOTTED(slots=True)
        class Wrong:
            rows: list[int] = []  # noqa: RUF012

    with pytest.raises(TypeError, match="slots"):
        SLOTTED(slots=False)


def test_a_method_is_compiled_when_it_is_first_used() -> None:
    plain = declared(SLOTTED)["Plain"]
    methods = ("__init__", "__eq__", "__hash__")
    assert not any(inspect.isfunction(plain.__dict__[name]) for name in methods)
    assert plain("a") == plain("a")
    compiled = [inspect.isfunction(plain.__dict__[name]) for name in methods]
    assert compiled == [True, True, False]
    assert plain.__init__.__qualname__.endswith("Plain.__init__")
