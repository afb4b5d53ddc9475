"""`Option`: one typed attribute of a kind, and how a value for it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target.memory import MemoryPool, read_pools

Value = str | int | bool | tuple[str, ...] | tuple[MemoryPool, ...]
Values = dict[str, Value]

TYPE_NAMES: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    list: "a list of text",
    MemoryPool: "a list of pools",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One attribute of a kind: `type` is str, int, bool, list (of strings) or MemoryPool (a list of
    them); ints have a range.

    `choices` are the values that text, or each text of a list, may have, or whole numbers within
    the range. Text of an option that is `repeatable` may also be a list of two or more. An option
    without a `default` is left out of a target that does not give it. Options added to a kind later
    should therefore have no default: the JSON and the hash of existing targets then stay the same.
    """

    name: str
    type: type
    doc: str
    low: int = 0
    high: int = 0
    default: Value | None = None
    choices: tuple[str | int, ...] = ()
    repeatable: bool = False

    def check(self, value: object, place: str) -> Value:
        """Return `value` in canonical form (lists as tuples). Raises UserError, with the option's
        description as hint: code `wrong-type`, `out-of-range` or `unknown-value`."""
        if self.type is MemoryPool:
            return read_pools(value, place, self.doc)
        if self.type is list:
            entries = names(value, place, self.doc)
            for name in entries if self.choices else ():
                self._require_choice(name, place)
            return entries
        if self.repeatable:
            value = _one_or_several(value, place, self.doc)
            if isinstance(value, tuple):
                return value
        # bool is a subclass of int, but `l2_bytes=True` is a mistake; so is empty text
        wrong = not isinstance(value, self.type) or isinstance(value, bool) != (self.type is bool)
        if wrong or value == "" != self.default:
            message = f"expected {TYPE_NAMES[self.type]}, got {value!r}"
            raise UserError(message, code="wrong-type", where=place, hint=self.doc)
        if isinstance(value, int) and self.type is int and not self.low <= value <= self.high:
            message = f"{value} is out of range {self.low}..{self.high}"
            raise UserError(message, code="out-of-range", where=place, hint=self.doc)
        assert isinstance(value, str | int)
        if self.choices:
            self._require_choice(value, place)
        return value

    def _require_choice(self, value: str | int, place: str) -> None:
        if value not in self.choices:
            near = nearest(value, map(str, self.choices)) if isinstance(value, str) else ""
            choices_text = f"{self.doc}; known: {', '.join(map(str, self.choices))}"
            hint = _with_doc(near, self) or choices_text
            raise UserError(
                f"unknown value {value!r}", code="unknown-value", where=place, hint=hint
            )


def _one_or_several(value: object, place: str, doc: str) -> object:
    """A list of two or more texts, of another list its only entry, if it has one."""
    if not isinstance(value, list | tuple) and "," not in str(value):
        return value
    entries = names(value, place, doc)
    return entries if len(entries) > 1 else next(iter(entries), list(entries))


def to_json(value: Value) -> object:
    """A value as JSON values: tuples become lists."""
    if not isinstance(value, tuple):
        return value
    return [v.to_json() if isinstance(v, MemoryPool) else v for v in value]


def names(value: object, place: str, doc: str = "") -> tuple[str, ...]:
    """Return names given as a list, or as text with commas; order kept, repeats dropped. UserError
    (code `wrong-type`) for anything but text and lists of non-empty text."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if value is None:
        value = ()
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise UserError(
            f"expected a list of text, got {value!r}", code="wrong-type", where=place, hint=doc
        )
    return tuple(dict.fromkeys(value))


def contradiction(message: str, place: str, hint: str) -> UserError:
    """Return the error for values that do not fit together."""
    return UserError(f"contradiction: {message}", code="contradiction", where=place, hint=hint)


def unknown_key(
    name: str, kind: str, options: Mapping[str, Option], fields: tuple[str, ...], place: str
) -> UserError:
    """Return the error for a field that is neither an option of the kind nor a field of all
    targets."""
    hint = ELSEWHERE.get(name) or nearest(name, (*options, *fields, *FIELD_ALIASES))
    for option in options.values():
        if hint.startswith(f"did you mean {option.name!r}"):
            hint = _with_doc(hint, option)
    return UserError(
        f"unknown key {name!r} for kind {kind!r}",
        code="unknown-key",
        where=place,
        hint=hint or f"known: {', '.join(options) or 'no options'}",
    )


def _with_doc(hint: str, option: Option) -> str:
    return f"{hint} {option.name}: {option.doc}" if hint else ""


# Aliases of the fields; below, hints for options that are not part of a Target.
FIELD_ALIASES: dict[str, str] = {"id": "kind", "target_host": "host", "targets": "devices"}

_SCOPE = "would this change the generated module? A Target holds only what does. This does not: "
_LINK = _SCOPE + "link options belong to export_library(fcompile=...)"
_LOAD = _SCOPE + "where code is placed and how it is flashed is the board project's linker script"
_RUN = _SCOPE + "it is chosen when the library runs"
ELSEWHERE: dict[str, str] = {
    "system_lib": _SCOPE + "pass system_lib_prefix= to compile()",
    "system_lib_prefix": _SCOPE + "it is an argument of compile()",
    "runtime": _SCOPE + "every exported library brings its own runtime",
    "executor": _SCOPE + "every exported library brings its own runtime",
    **dict.fromkeys(("lto", "linker", "linker_flags", "ldflags", "link_params", "strip"), _LINK),
    **dict.fromkeys(
        ("flash", "flash_tool", "linker_script", "code_location", "section", "upload_port", "port"),
        _LOAD,
    ),
    **dict.fromkeys(("num_threads", "device_id", "devices_count", "workspace", "stream"), _RUN),
}
