"""The options of the manifest: how a model is compiled and exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tensorkiln.base.element_types import PRECISIONS
from tensorkiln.base.record import JsonRecord, one_of
from tensorkiln.base.schema import MOST, Reader
from tensorkiln.codegen.c_text.names import library_name

# By form of output: what its file ends in.
SUFFIXES = {"so": ".so", "a": ".a", "o": ".o", "tar": ".tar", "mlf": ".mlf.tar"}

# Options that may have several values, with those there are: the first is the default.
AXES = {
    "precision": PRECISIONS,
    "optimize": ("speed", "size"),
    "format": tuple(SUFFIXES),
}


@dataclass(frozen=True, slots=True)
class Options(JsonRecord):
    """How one row is compiled, besides its target: arguments of `tk.compile` and of the export.
    `name` is the prefix of C names. All values are JSON values, so that a job can carry them."""

    name: str
    format: str = "so"
    weights: str = "embedded"
    freeze: Mapping[str, int] | None = None
    shapes: Mapping[str, Sequence[int | str]] | None = None  # of inputs that declare none
    externals: tuple[str, ...] = ()
    max_workspace: int | str | Mapping[str, int | str] | None = None
    allow_licenses: tuple[str, ...] = ()
    deny_licenses: tuple[str, ...] = ()
    debug: bool = False
    records: str = ""  # measured choices of schedules, as the text of their file

    _omits_defaults = True

    @staticmethod
    def of(settings: Mapping[str, Any]) -> Options:
        """The options in `settings`, without those that belong to the target."""
        names = {f.name for f in fields(Options)}
        return Options(**{k: v for k, v in settings.items() if k in names and v is not None})


def _axis(values: Sequence[str]) -> Callable[[Reader, str], tuple[str, ...]]:
    def read(reader: Reader, key: str) -> tuple[str, ...]:
        value = reader.get(key, object)
        choices = (value,) if isinstance(value, str) else reader.texts(key)
        for choice in choices:
            if choice not in values:
                raise reader.unknown(choice, values, key)
        if not choices:
            raise reader.wrong("expected a value at least", key)
        if len(set(choices)) < len(choices):
            raise reader.wrong("a value stands there twice", key)
        return choices

    return read


def _sizes(reader: Reader, key: str) -> dict[str, int]:
    sizes = reader.child(key)
    dims = {}
    for name, _ in reader.items(key):
        dims[name] = sizes.number(name)
        if not dims[name]:
            raise sizes.wrong("expected a size of at least 1", name)
    if not dims:
        raise reader.wrong("expected sizes by dimension, such as { batch = 1 }", key)
    return dims


def _shapes(reader: Reader, key: str) -> dict[str, list[int | str]]:
    shapes = reader.child(key)
    dims = {name: list(shapes.dims(name) or ()) for name, _ in reader.items(key)}
    for name, shape in dims.items():
        if any(d == "" or (isinstance(d, int) and d < 0) for d in shape):
            raise shapes.wrong("expected sizes from 0, and names of dimensions", name)
    if not dims:
        raise reader.wrong('expected shapes by input, such as { x = ["batch", 3] }', key)
    return dims


def _names(reader: Reader, key: str) -> tuple[str, ...]:
    names = reader.texts(key)
    if not all(names):
        raise reader.wrong("a name in it is empty", key)
    return names


def _paths(reader: Reader, key: str) -> tuple[str, ...]:
    value = reader.get(key, object)
    return (value,) if isinstance(value, str) and value else _names(reader, key)


def _workspace(reader: Reader, key: str) -> object:
    """The limit of the workspace in bytes, a number or text, or one limit for each memory pool.
    `compile` parses the text."""
    value = reader.get(key, object)
    pools = value if isinstance(value, dict) else {"": value}
    for pool, size in pools.items():
        place = f"{key}.{pool}" if pool else key
        if isinstance(size, bool) or not isinstance(size, int | str):
            raise reader.wrong("expected bytes, such as 262144 or '256K'", place)
        if isinstance(size, int) and not 0 <= size <= MOST:
            raise reader.wrong(f"expected 0 to {MOST} bytes", place)
    return value


def _name(reader: Reader, key: str) -> str:
    name = reader.get(key, str)
    if name != library_name(name):
        hint = f"did you mean {library_name(name)!r}?"
        raise reader.wrong(f"{name!r} is no name in C", key, hint)
    return name


_READERS: dict[str, Callable[[Reader, str], Any]] = {
    **{axis: _axis(values) for axis, values in AXES.items()},
    "weights": one_of(("embedded", "beside")).read,
    "freeze": _sizes,
    "shapes": _shapes,
    "externals": _names,
    "max_workspace": _workspace,
    "allow_licenses": _names,
    "deny_licenses": _names,
    "debug": lambda reader, key: reader.flag(key),
    "records": _paths,
}
_OF_MODELS = {"name": _name}  # which are of one model alone
KEYS = tuple(_READERS)


def read_options(
    reader: Reader, extra_keys: Sequence[str], *, model: bool = False
) -> dict[str, Any]:
    """The options in a table; those in AXES are tuples of values. `extra_keys` are the other keys
    that the table may have; with `model`, it may have a name. UserError for an unknown key or an
    invalid value."""
    readers = _READERS | (_OF_MODELS if model else {})
    reader.only([*extra_keys, *readers])
    return {key: read(reader, key) for key, read in readers.items() if not reader.is_null(key)}
