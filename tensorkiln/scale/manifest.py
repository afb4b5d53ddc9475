"""The manifest of a compile farm: models x targets x options, read from TOML and checked by name.

    [defaults]
    freeze = { batch = 1 }

    [models]
    resnet = "models/resnet50.onnx"
    zoo = "zoo/*.onnx"                       # each is named after its file

    [targets]
    server = { target = { kind = "llvm", mcpu = "x86-64-v3" } }
    pi = { target = "raspberrypi/4b", optimize = "size" }

    [[override]]
    model = "bert*"
    precision = ["float32", "bfloat16"]      # a row for each

    [[exclude]]
    model = "bert*"
    target = "pi"

What holds for a row is what is said last of defaults, its model, its target, and the overrides that
match it. docs/howto/compile-many.md has all keys.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from tensorkiln.base.errors import TensorkilnError, UserError, nearest
from tensorkiln.base.files import names_beside, plain_path, read_plain
from tensorkiln.base.json_text import MAX_BYTES, parse_json
from tensorkiln.base.schema import Reader
from tensorkiln.codegen.c_text.names import library_name
from tensorkiln.kernels.records import records_of
from tensorkiln.options import target_of, with_options
from tensorkiln.scale.options import AXES, KEYS, SUFFIXES, Options, read_options
from tensorkiln.scale.storage import is_url, local_path, matches_of
from tensorkiln.target import Target

CODE = "bad-manifest"
MOST_ROWS = 1_000_000
_KEYS = ("defaults", "models", "targets", "override", "exclude")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_NAME_TEXT = "a name of letters, digits and . _ + - that begins with a letter or digit"


@dataclass(frozen=True, slots=True)
class ManifestModel:
    """A model of the manifest: an absolute path or a URL. `place` is its location in the manifest,
    for error messages."""

    name: str
    path: str
    place: str = field(compare=False)
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """One library to build: `name` is the name of its file below the output, with `/`."""

    name: str
    model: ManifestModel
    target_name: str
    target: Target  # with precision and optimize
    options: Options

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all files of the row, the library or archive first."""
        if self.options.weights != "beside":
            return (self.name,)
        return self.name, str(PurePosixPath(self.name).with_suffix(".safetensors"))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The rows in the order of the manifest: by model, target, and the lists of options."""

    source: str
    rows: tuple[ManifestRow, ...]


def read_manifest(source: str | Path | Mapping[str, Any]) -> Manifest:
    """The manifest of a TOML file, or of a mapping with the same keys, whose paths are relative to
    the current folder.

    Raises UserError (code `bad-manifest`, or `missing-file`) with the place in it: for unknown
    keys, values that are not as they should be, names that are taken, targets and options that do
    not go together, globs, overrides and exclusions that nothing matches, and rows whose files
    would have the same name.
    """
    if isinstance(source, Mapping):
        return _Reading("manifest", Path.cwd()).manifest(dict(source))
    path = plain_path(source)
    try:
        parsed = tomllib.loads(read_plain(path, MAX_BYTES).decode())
    except FileNotFoundError:
        hint = nearest(path.name, names_beside(path))
        raise UserError("no such file", code="missing-file", where=str(path), hint=hint) from None
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise UserError(message, code="missing-file", where=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"not TOML: {error}"
        raise UserError(message, code=CODE, where=str(path)) from None
    return _Reading(str(path), path.absolute().parent).manifest(parsed)


@dataclass(frozen=True, slots=True)
class _Rule:
    """An override or exclusion: patterns, by the property of a row that they match."""

    patterns: Mapping[str, tuple[str, ...]]
    place: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def holds(self, **values: str) -> bool:
        """Whether every pattern matches the row's property of that name."""
        return all(
            any(fnmatchcase(values[key], pattern) for pattern in patterns)
            for key, patterns in self.patterns.items()
        )


@dataclass(frozen=True, slots=True)
class _Reading:
    source: str
    folder: Path

    def wrong(self, message: str, place: str, hint: str = "") -> UserError:
        return UserError(message, code=CODE, where=f"{self.source}: {place}", hint=hint)

    def manifest(self, parsed: dict[str, Any]) -> Manifest:
        whole = Reader(parsed, f"{self.source}: manifest", CODE)
        whole.only(_KEYS)
        for key in ("models", "targets"):
            if not whole.get(key, dict, {}):
                raise self.wrong(f"it has no {key}", "manifest", f"[{key}]")
        defaults = read_options(whole.child("defaults"), ())
        models = list(self._models(whole))
        targets = list(self._targets(whole))
        overrides = [self._rule(r, i, "override") for i, r in enumerate(whole.rows("override"))]
        excludes = [self._rule(r, i, "exclude") for i, r in enumerate(whole.rows("exclude"))]
        rows: dict[str, ManifestRow] = {}
        matching_places = set[str]()
        for model, (target_name, target, target_settings, place) in itertools.product(
            models, targets
        ):
            over = [r for r in overrides if r.holds(model=model.name, target=target_name)]
            matching_places |= {r.place for r in over}
            settings = _merged(
                defaults, model.settings, target_settings, *(r.settings for r in over)
            )
            for axes in itertools.product(*(settings.get(axis) or (None,) for axis in AXES)):
                chosen = dict(zip(AXES, axes, strict=True))
                axis_values = {axis: value or AXES[axis][0] for axis, value in chosen.items()}
                out = [
                    r
                    for r in excludes
                    if r.holds(model=model.name, target=target_name, **axis_values)
                ]
                matching_places |= {r.place for r in out}
                if out:
                    continue
                row = self._row(model, target_name, target, {**settings, **chosen}, place)
                for name in row.names:
                    self._require_new(rows, name, row)
                rows[row.name] = row
                if len(rows) > MOST_ROWS:
                    raise self.wrong(f"it has more than {MOST_ROWS} rows", "manifest")
        for rule in (*overrides, *excludes):
            if rule.place not in matching_places:
                self._refuse_unused(rule, models, [name for name, *_ in targets])
        if not rows:
            raise self.wrong("everything is excluded", "manifest.exclude")
        return Manifest(self.source, tuple(rows.values()))

    def _require_new(self, rows: Mapping[str, ManifestRow], name: str, row: ManifestRow) -> None:
        former_row = (
            next((r for r in rows.values() if name in r.names), None) if name in rows else None
        )
        if former_row is not None:
            raise self.wrong(
                f"{name!r} would be the file of two rows, this and {former_row.model.place}",
                row.model.place,
                "give one of the models another name",
            )

    def _refuse_unused(
        self, rule: _Rule, models: Sequence[ManifestModel], targets: list[str]
    ) -> None:
        names_of_kind = {"model": [m.name for m in models], "target": targets}
        for key, names in names_of_kind.items():
            for pattern in rule.patterns.get(key, ()):
                if not any(fnmatchcase(name, pattern) for name in names):
                    message = f"no {key} is called {pattern!r}"
                    raise self.wrong(message, f"{rule.place}.{key}", nearest(pattern, names))
        raise self.wrong("no row matches it", rule.place)

    # -- models ------------------------------------------------------------------------------------

    def _models(self, whole: Reader) -> Iterator[ManifestModel]:
        place_of_name: dict[str, str] = {}
        for key, value in whole.items("models"):
            place = f"manifest.models.{key}"
            entry = {"path": value} if isinstance(value, str) else value
            reader = Reader(entry, f"{self.source}: {place}", CODE)
            settings = read_options(reader, ("path",), model=True)
            files = list(self._files(key, reader.get("path", str), place))
            if len(files) > 1 and "name" in settings:
                raise self.wrong("several models cannot have one name", f"{place}.name")
            for name, path in files:
                if name in place_of_name:
                    message = f"two models are called {name!r}: this and {place_of_name[name]}"
                    raise self.wrong(message, place)
                if not _NAME.fullmatch(name):
                    hint = "give it a name of its own: [models] NAME = PATH"
                    raise self.wrong(f"{name!r} is not {_NAME_TEXT}", place, hint)
                place_of_name[name] = place
                yield ManifestModel(name, path, place, settings)

    def _files(self, key: str, path: str, place: str) -> Iterator[tuple[str, str]]:
        """The names and locations of the models that an entry stands for."""
        if not path or "\0" in path:
            raise self.wrong(f"{path!r} is not a path", f"{place}.path")
        whole = path if is_url(path) else str(self.folder / Path(path).expanduser())
        if not any(c in path for c in "*?["):
            yield key, local_path(whole) or whole
            return
        matches = matches_of(whole)
        if not matches:
            raise self.wrong(f"no file matches {path!r}", f"{place}.path")
        for file in matches:
            yield PurePosixPath(file).stem, file

    # -- targets -----------------------------------------------------------------------------------

    def _targets(self, whole: Reader) -> Iterator[tuple[str, Target, Mapping[str, Any], str]]:
        for key, value in whole.items("targets"):
            place = f"manifest.targets.{key}"
            if not _NAME.fullmatch(key):
                raise self.wrong(f"{key!r} is not {_NAME_TEXT}", place)
            entry = {"target": value} if isinstance(value, str) else value
            reader = Reader(entry, f"{self.source}: {place}", CODE)
            settings = read_options(reader, ("target",))
            reader.require("target")
            spec = reader.get("target", object)
            yield key, self._target(spec, f"{place}.target"), settings, place

    def _target(self, spec: object, place: str) -> Target:
        if isinstance(spec, str) and spec.endswith(".json"):
            spec = self._json(spec, place)
        if not isinstance(spec, str | dict):
            raise self.wrong(f"expected text or a table, got {type(spec).__name__}", place)
        try:
            return target_of(spec)
        except TensorkilnError as error:
            raise self.wrong(str(error), place) from None

    def _json(self, name: str, place: str) -> object:
        path = self.folder / Path(name).expanduser()
        try:
            return parse_json(read_plain(path, MAX_BYTES), unique=True)
        except FileNotFoundError:
            hint = nearest(path.name, names_beside(path))
            raise self.wrong(f"no such file: {str(path)!r}", place, hint) from None
        except (OSError, ValueError) as error:
            raise self.wrong(f"{str(path)!r} cannot be read: {error}", place) from None

    def _records(self, paths: Sequence[str], place: str) -> str:
        """The merged text of the files of records; empty if there are none."""
        if not paths:
            return ""
        try:
            return records_of([self.folder / Path(p).expanduser() for p in paths]).text()
        except UserError as error:
            raise self.wrong(f"records: {error}", place) from None

    # -- rows --------------------------------------------------------------------------------------

    def _rule(self, reader: Reader, index: int, kind: str) -> _Rule:
        place = f"manifest.{kind}[{index}]"
        keys = ("model", "target") if kind == "override" else ("model", "target", *AXES)
        if kind == "override":
            settings = read_options(reader, keys)
            if not settings:
                raise self.wrong("it says nothing", place, f"one of {', '.join(KEYS)}")
        else:
            reader.only(keys)
            settings = {}
        patterns = {key: value for key in keys if (value := _patterns(reader, key))}
        if not patterns:
            raise self.wrong("it matches everything", place, f"one of {', '.join(keys)}")
        return _Rule(patterns, place, settings)

    def _row(
        self,
        model: ManifestModel,
        target_name: str,
        target: Target,
        settings: Mapping[str, Any],
        place: str,
    ) -> ManifestRow:
        records = self._records(settings.get("records") or (), place)
        options = Options.of({"name": library_name(model.name), **settings, "records": records})
        try:
            precision, optimize = settings.get("precision"), settings.get("optimize")
            row_target = with_options(target, precision=precision, optimize=optimize)
        except TensorkilnError as error:
            hint = "leave it out of these rows: [[exclude]]"
            raise self.wrong(f"{model.name}: {error}", place, hint) from None
        parts = [model.name]
        for option in ("precision", "optimize"):
            if settings.get(option) not in (None, AXES[option][0]):
                parts.append(str(settings[option]))
        name = f"{target_name}/{'-'.join(parts)}{SUFFIXES[options.format]}"
        if options.weights == "beside" and options.format != "so":
            message = f"weights lie beside shared libraries, not beside {name!r}"
            raise self.wrong(message, model.place)
        return ManifestRow(name, model, target_name, row_target, options)


def _patterns(reader: Reader, key: str) -> tuple[str, ...]:
    """The patterns of a key, which is text or a list of texts; empty if the key is missing."""
    if reader.is_null(key):
        return ()
    value = reader.get(key, object)
    patterns = (value,) if isinstance(value, str) else reader.texts(key)
    if not all(patterns) or not patterns:
        raise reader.wrong("expected the name, or a pattern of names", key)
    return patterns


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Options where later tables override earlier ones; sizes of dimensions and shapes of inputs
    are merged one by one."""
    merged: dict[str, Any] = {}
    for layer in layers:
        tables = {k: {**merged.get(k, {}), **layer.get(k, {})} for k in ("freeze", "shapes")}
        merged |= {**layer, **{k: table for k, table in tables.items() if table}}
    return merged
