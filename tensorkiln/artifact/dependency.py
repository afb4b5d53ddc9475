"""External dependencies as a list without contradictions and as JSON, and the linker arguments that
name libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.record import plain
from tensorkiln.base.schema import Reader, parsed_text

DEPENDENCIES = "external_dependencies.json"
# Linker arguments that an artifact set may hold. None of them writes a file, reads options from a
# file (`@file`), or changes what the runtime relies upon (exports, page sizes, entry).
LIBRARY_FORMS = "'/path/libx.so', '-lx', '-L/path', '-Wl,-rpath,/path'"
_NAMED = re.compile(r"-l:?[A-Za-z0-9_][\w.+-]*\Z", re.ASCII)
_FOLDER = re.compile(r"-L/[^,]*\Z")
_RPATH = re.compile(r"-Wl,-{1,2}rpath(-link)?[,=](/|\$ORIGIN|\$\{ORIGIN\})[^,]*\Z")
_SWITCH = re.compile(r"-Wl,--(no-)?(as-needed|whole-archive)\Z")


def checked_library(argument: object, place: str) -> str:
    """Return `argument` if it is a linker argument that an external's `libraries` and a link plan
    may hold: one of LIBRARY_FORMS, or a switch such as `-Wl,--no-as-needed` or
    `-Wl,--whole-archive`.

    Raises UserError (code `bad-library`), with a hint at the form that was probably meant.
    """
    if not isinstance(argument, str):
        message = f"a library is text, not {type(argument).__name__} ({argument!r:.80})"
        raise UserError(message, code="bad-library", where=place, hint=LIBRARY_FORMS)
    forms = (_NAMED, _FOLDER, _RPATH, _SWITCH)
    plain = argument.startswith("/") and not argument.endswith("/")
    readable = argument.isprintable() and not argument.endswith(" ")
    if readable and (plain or any(form.match(argument) for form in forms)):
        return argument
    if _NAMED.match(f"-l{argument}") and "." not in argument:
        hint = f"did you mean '-l{argument}'?"
    elif argument[:1] not in ("-", "@", "/") and argument.strip():
        hint = f"an absolute path, such as {str(Path(argument).absolute())!r}"
    else:
        hint = LIBRARY_FORMS
    message = f"{argument!r:.200} is not a linker argument that names a library"
    raise UserError(message, code="bad-library", where=place, hint=hint)


def checked_libraries(libraries: object, place: str) -> tuple[str, ...]:
    """Return `libraries` as a tuple, each checked by `checked_library`. UserError (code
    `bad-library`) also for a single string instead of a sequence."""
    if isinstance(libraries, str | bytes) or not isinstance(libraries, Iterable):
        raise UserError(
            f"libraries are a tuple of texts, not {type(libraries).__name__} ({libraries!r:.80})",
            code="bad-library",
            where=place,
            hint=f"libraries=({libraries!r},)" if isinstance(libraries, str) else LIBRARY_FORMS,
        )
    return tuple(checked_library(argument, place) for argument in libraries)


def merge_dependencies(
    declared: Iterable[tuple[str, ExternalDependency]],
) -> tuple[ExternalDependency, ...]:
    """Return each dependency once, sorted by name. `declared` holds pairs (who declares it,
    dependency).

    Raises UserError (code `dependency-clash`), naming both declarers, if two dependencies of one
    name differ.
    """
    dependency_of_name: dict[str, tuple[str, ExternalDependency]] = {}
    for source, dependency in declared:
        first, former = dependency_of_name.setdefault(dependency.short_name, (source, dependency))
        fields = [n for n in FIELDS if getattr(former, n) != getattr(dependency, n)]
        if fields:
            pairs = "; ".join(
                f"{name} {getattr(former, name)!r} against {getattr(dependency, name)!r}"
                for name in fields
            )
            raise UserError(
                f"{first} and {source} ask for different dependencies "
                f"{dependency.short_name!r}: {pairs}",
                code="dependency-clash",
            )
    return tuple(dependency for _, (_, dependency) in sorted(dependency_of_name.items()))


def dependencies_text(dependencies: Iterable[ExternalDependency]) -> str:
    """The rows as a JSON list, one dependency per line: artifact `host/external_dependencies.json`
    of what needs any."""
    return rows_text(map(plain, dependencies))


def rows_text(rows: Iterable[Mapping[str, object]]) -> str:
    """A JSON list with one row per line."""
    return "[\n{}\n]\n".format(",\n".join(map(json.dumps, rows)))


def dependencies_of(artifacts: ArtifactSet) -> tuple[ExternalDependency, ...]:
    """What the artifacts of a compile need, from `host/external_dependencies.json`; nothing without
    that file. UserError (code `bad-artifact`) if it is damaged."""
    files = [a for a in artifacts.plain if a.codegen_id == "host" and a.file_name == DEPENDENCIES]
    if not files:
        return ()
    name = files[0].name
    rows = {"rows": parsed_text(files[0].view, name, "bad-artifact")}
    reader = Reader(rows, name, "bad-artifact")
    return tuple(map(ExternalDependency.read, reader.rows("rows")))
