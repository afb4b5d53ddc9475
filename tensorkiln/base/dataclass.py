"""`dataclass`, as that of the standard library with `slots=True`, at a fifth of its price.

    @dataclass(frozen=True, slots=True)
    class Extent:
        size: int
        name: str = ""

`dataclasses.dataclass` writes the text of six methods of a class and compiles each of them when the
class is defined: more than half of the time in which the compiler's modules are imported. Here a
method is compiled when it is first used, which for most classes of a process is never; methods that
raise or print are the same function for all classes. Fields are those of the standard library, so
that `field`, `fields`, `replace`, `asdict` and `is_dataclass` have one meaning for both kinds, and
a class of either kind may inherit from the other.

Of the standard library's options there are `frozen`, `eq`, `repr` and `kw_only`, and `slots` must
be True; annotations are text (`from __future__ import annotations`), without `InitVar`, `KW_ONLY`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError, field, fields
from functools import cache
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

_set = object.__setattr__
_FIELDS, _PARAMETERS = "__dataclass_fields__", "__dataclass_params__"


def _with_slots(cls: type, frozen: bool, eq: bool, repr: bool, kw_only: bool) -> type:
    """The class that `cls` declares, as a new one with slots."""
    declared = _declared_fields(cls, kw_only)
    inherited: dict[str, Field[Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        inherited |= getattr(base, _FIELDS, {})
    field_of_name = inherited | declared
    row = [*field_of_name.values()]
    absent = {"__dict__", "__weakref__", *declared}
    body = {name: value for name, value in cls.__dict__.items() if name not in absent}
    if body.get("__hash__", MISSING) is None and "__eq__" in body:
        del body["__hash__"]  # Python's, not the author's
    inherited_slots = {slot for base in cls.__mro__[1:-1] for slot in _slots(base)}
    body["__slots__"] = tuple(name for name in field_of_name if name not in inherited_slots)
    body[_FIELDS], body[_PARAMETERS] = field_of_name, _parameters(frozen, eq, repr)
    methods = _methods(row, frozen, eq, repr, hasattr(cls, "__post_init__"))
    slotted = type(cls)(cls.__name__, cls.__bases__, methods | body)
    slotted.__qualname__ = cls.__qualname__
    if frozen:
        _freeze(slotted, frozenset(field_of_name))
    return slotted


def _declared_fields(cls: type, kw_only: bool) -> dict[str, Field[Any]]:
    """The fields that a class adds to those of its bases, by name."""
    fields: dict[str, Field[Any]] = {}
    for name, annotation in cls.__annotations__.items():
        if annotation.startswith(("ClassVar", "typing.ClassVar")):
            continue
        default = cls.__dict__.get(name, MISSING)
        f: Field[Any] = default if isinstance(default, Field) else field(default=default)
        if f.default.__class__.__hash__ is None:
            raise ValueError(f"{cls.__qualname__}.{name}: a mutable default needs default_factory")
        f.name, f.type, f._field_type = name, annotation, _KIND  # type: ignore[attr-defined]
        if f.kw_only is MISSING:
            f.kw_only = kw_only
        fields[name] = f
    return fields


def _slots(base: type) -> Iterable[str]:
    slots: str | Iterable[str] = base.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


# -- what the standard library keeps of a class ----------------------------------------------------


@dataclasses.dataclass
class _Example:
    only: int


_EXAMPLE = fields(_Example)[0]
_KIND = _EXAMPLE._field_type  # type: ignore[attr-defined]


@cache
def _parameters(frozen: bool, eq: bool, repr: bool) -> object:
    """What a class of these options says of itself, to the standard library's subclasses of it."""
    example: type = type("_Options", (), {})
    dataclasses.dataclass(frozen=frozen, eq=eq, repr=repr)(example)
    return getattr(example, _PARAMETERS)


# -- methods -------------------------------------------------------------------------------------


def _methods(
    row: list[Field[Any]], frozen: bool, eq: bool, repr: bool, goes_on: bool
) -> dict[str, object]:
    """What a class has that its author did not write; `goes_on`: to `__post_init__`."""
    methods: dict[str, object] = {
        "__match_args__": tuple(f.name for f in row if f.init and not f.kw_only),
        "__init__": _FirstUse(_init, row, frozen, goes_on),
    }
    if repr:
        methods["__repr__"] = _repr
    if eq:
        methods["__eq__"] = _FirstUse(_eq, row)
        methods["__hash__"] = _FirstUse(_hash, row) if frozen else None
    if frozen:
        methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
    return methods


class _FirstUse:
    """A method that is compiled when it is first looked up, and then takes this one's place."""

    def __init__(self, text: Callable[..., tuple[str, str, dict[str, Any]]], *arguments: Any):
        self.text, self.arguments = text, arguments

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        signature, body, names = self.text(*self.arguments)
        names["__name__"] = self.owner.__module__
        text = f"def {self.name}{signature}:\n {body}"
        exec(compile(text, "<method of a dataclass>", "exec", dont_inherit=True), names)
        function = names[self.name]
        function.__qualname__ = f"{self.owner.__qualname__}.{self.name}"
        setattr(self.owner, self.name, function)
        return function.__get__(instance, owner)


class _Factory:
    """The default of a parameter whose field has a `default_factory`."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
_Text = tuple[str, str, dict[str, Any]]  # signature, body, and what their names mean


def _init(row: list[Field[Any]], frozen: bool, goes_on: bool) -> _Text:
    parameters, named_parameters, body = "", "", []
    names: dict[str, Any] = {"_set": _set, "_FACTORY": _FACTORY}
    for f in row:
        value, default = f.name, ""
        if f.default_factory is not MISSING:
            names[f"_new_{f.name}"] = f.default_factory
            value, default = f"_new_{f.name}()", "=_FACTORY"
            if f.init:
                value += f" if {f.name} is _FACTORY else {f.name}"
        elif f.default is not MISSING:
            names[f"_default_{f.name}"] = f.default
            default = f"=_default_{f.name}"
            value = f.name if f.init else f"_default_{f.name}"
        if f.init or default:
            body.append(
                f"_set(self, '{f.name}', {value})" if frozen else f"self.{f.name} = {value}"
            )
        if f.init:
            names[f"_type_{f.name}"] = f.type
            parameter = f", {f.name}: _type_{f.name}{default}"
            parameters += "" if f.kw_only else parameter
            named_parameters += parameter if f.kw_only else ""
    body.append("self.__post_init__()" if goes_on else "pass")
    if named_parameters:
        parameters += f", *{named_parameters}"
    return f"(self{parameters}) -> None", "\n ".join(body), names


def _values(of: str, row: Iterable[Field[Any]]) -> str:
    return "(" + "".join(f"{of}.{f.name}, " for f in row) + ")"


def _eq(row: list[Field[Any]]) -> _Text:
    compared = [f for f in row if f.compare]
    equality = f"return {_values('self', compared)} == {_values('other', compared)}"
    body = f"if other.__class__ is self.__class__: {equality}\n return NotImplemented"
    return "(self, other)", body, {}


def _hash(row: list[Field[Any]]) -> _Text:
    hashed = _values("self", (f for f in row if (f.compare if f.hash is None else f.hash)))
    return "(self)", f"return hash({hashed})", {}


@recursive_repr()
def _repr(self: Any) -> str:
    names = (f.name for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _setstate(self: Any, state: Iterable[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        _set(self, f.name, value)


def _freeze(cls: Any, names: frozenset[str]) -> None:
    """Refuse assignments, but those of an author's subclass to attributes of its own."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__ = __setattr__
    cls.__delattr__ = __delattr__


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *,
        slots: bool,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,
        kw_only: bool = False,
    ) -> Callable[[type], type]:
        """The decorator of a class whose annotations are its fields."""
        if not slots:
            raise TypeError("a class without slots is made by dataclasses.dataclass")
        return lambda cls: _with_slots(cls, frozen, eq, repr, kw_only)
