"""Find the files for `-lx` in `libraries` of externals: the packaged linker has no search path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tensorkiln.artifact.artifact import FileContent
from tensorkiln.artifact.artifact_set import ArtifactSet
from tensorkiln.artifact.components import set_metadata
from tensorkiln.artifact.dependency import checked_libraries, dependencies_of
from tensorkiln.artifact.read_binary import binary_format, binary_of, read_binary
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.text import listed
from tensorkiln.link.object_format import ObjectFormat

# Stubs of these libraries are in every link (link/elf/stubs.py).
_ALWAYS = ("-lc", "-lm", "-lpthread", "-ldl")


def found_libraries(libraries: Sequence[str], row: ObjectFormat) -> list[str]:
    """Return linker arguments with each `-lx` replaced by the file found in the `-L` folders; `-lc`
    and others that are in every link are left out.

    Raises UserError: code `missing-library` for a file that does not exist or is in none of the
    folders, `bad-library` for an argument that says nothing about a library.
    """
    checked_libraries(libraries, "the libraries of a link")
    folders = [Path(text[2:]) for text in libraries if text.startswith("-L")]
    arguments: list[str] = []
    for text in libraries:
        if text.startswith("-l"):
            if text not in _ALWAYS:
                arguments.append(str(_searched(text[2:], folders, row)))
        elif text.startswith("-") or Path(text).is_file():
            arguments.append(text)
        else:
            raise UserError(f"there is no library {text!r}", code="missing-library")
    return arguments


def _searched(name: str, folders: Sequence[Path], row: ObjectFormat) -> Path:
    names = [f"lib{name}{suffix}" for suffix in (row.shared_suffix, row.archive_suffix)]
    if name.startswith(":"):
        names = [name[1:]]
    places = [folder / n for folder in folders for n in names]
    for place in places:
        if place.is_file():
            return place
    search_text = f"in {', '.join(map(str, folders))}" if folders else "no -L folder"
    raise UserError(
        f"library '-l{name}': no {' or '.join(names)} ({search_text})",
        code="missing-library",
        hint="'-L/folder', or its whole path; fcompile='gcc' looks in the system's folders",
    )


@contextmanager
def naming_dependencies(artifacts: ArtifactSet) -> Iterator[None]:
    """Let the error for a library or a C function that is missing say which dependency of the
    artifacts it comes with, and where that is; of a function, those that the external declares
    whose code calls it."""
    try:
        yield
    except UserError as error:
        from_: list[ExternalDependency] = []
        if error.code == "missing-library":
            needs = dependencies_of(artifacts)
            from_ = [
                d for d in needs if any(_is_named(file, error.message) for file in d.libraries)
            ]
        elif error.code == "undefined-symbol":
            from_ = _of_owners(artifacts, error.message)
        if not from_:
            raise
        hint = f"it comes with dependency {listed(map(str, from_))}; {error.hint}".rstrip("; ")
        raise UserError(error.message, code=error.code, where=error.where, hint=hint) from None


def _of_owners(artifacts: ArtifactSet, message: str) -> list[ExternalDependency]:
    """The dependencies that the code generators declare of which a message names an object."""
    owners = {f"external {name!r}," for name in re.findall(r"needed by ([^/)]+)/", message)}
    needs = [d for d in dependencies_of(artifacts) if not d.build_time]
    uses = {u.short_name: u.why for u in set_metadata(artifacts).origin.uses} if needs else {}
    return [d for d in needs if any(uses.get(d.short_name, "").startswith(o) for o in owners)]


def _is_named(file: str, message: str) -> bool:
    """Whether a message names a library, as a path or as `-lx`."""
    short = file.partition(".so")[0].removeprefix("lib")
    return f"/{file}'" in message or f"'-l{short}'" in message or f"'-l:{file}'" in message


def symbols_of_libraries(libraries: Sequence[str]) -> dict[str, str] | None:
    """Map each symbol that the libraries define to the first library with it; None if the symbols
    of one cannot be read, as for a linker script."""
    owners: dict[str, str] = {}
    for text in libraries:
        if text.startswith("-"):
            continue
        try:
            for name in _archived(Path(text)) if text.endswith(".a") else _shared(Path(text)):
                owners.setdefault(name, text)
        except UserError:
            return None
    return owners


def _shared(path: Path) -> Iterator[str]:
    for symbol in read_binary(path).symbols(dynamic=True):
        if symbol.is_defined and symbol.is_global:
            yield symbol.name


def _archived(path: Path) -> Iterator[str]:
    """Symbols of the members of a System V archive."""
    data = FileContent(path).view
    if bytes(data[:8]) != b"!<arch>\n":
        raise UserError(f"{str(path)!r} is not a readable archive", code="not-a-library")
    position = 8
    while position + 60 <= len(data):
        try:
            size = int(bytes(data[position + 48 : position + 58]))
        except ValueError:
            raise UserError(f"{str(path)!r} is a damaged archive", code="not-a-library") from None
        member = data[position + 60 : position + 60 + size]
        if binary_format(bytes(member[:8])) is not None:
            for symbol in binary_of(member, str(path)).symbols():
                if symbol.is_defined and symbol.is_global:
                    yield symbol.name
        position += 60 + size + size % 2
