"""Check which object defines and which needs each symbol of a link, before the linker runs.

A linker takes the first of two definitions that it meets in archives, binds a reference to any
symbol of its name, and names intermediate files in its errors. Here every reference must resolve
inside the library or to a library that was named, and errors name the artifacts concerned.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from tensorkiln.artifact.c_library import MATHEMATICS
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.artifact.sections import METADATA, WEIGHTS_SYMBOL
from tensorkiln.base.errors import InternalError, UserError, nearest
from tensorkiln.base.schema import parsed_text

# Symbols that linkers define themselves.
_LINKERS = frozenset(("_GLOBAL_OFFSET_TABLE_", "_DYNAMIC", "__ehdr_start", "__dso_handle"))
_RUNTIME = "the runtime"  # the owner of the object that no artifact is
# The entry calls kernels, and none of these: such a name is that of a kernel that is missing.
_ENTRY = "host/entry.c"
EDITED = "take all artifacts from one compile, as they are; if they are, please report it"


def clash(name: str, owner: str, second_owner: str, clause: str = "") -> UserError:
    """The error for symbol `name` that both `owner` and `second_owner` define; `clause` follows the
    name in the message."""
    return UserError(
        f"symbol {name!r}{clause} is defined by {owner} and by {second_owner}",
        code="symbol-clash",
        hint="static functions of different files do not clash",
    )


def audit_symbols(
    objects: Iterable[tuple[str, bytes | memoryview]],
    provided: Collection[str] | None = None,
    exports: Collection[str] = (),
) -> None:
    """Check the symbols of `objects`, which are (owner, bytes) pairs.

    `provided` are the symbols of the libraries that are linked; None if they are not known, and
    then undefined symbols are left to the linker. `exports` are those that the library exports.
    Raises UserError: code `symbol-clash` for a symbol with two strong definitions,
    `undefined-symbol` for one that is needed or exported and defined nowhere (an InternalError if
    only the runtime needs it), `bad-artifact` if code needs weights and there are none, or an
    object is for another machine than the runtime.
    """
    objects = list(objects)
    _audit_machines(objects)
    defined: dict[str, str] = {}
    needed: dict[str, str] = {}
    weak: dict[str, str] = {}
    for owner, data in objects:
        for symbol in binary_of(memoryview(data), owner).symbols():
            if not symbol.is_global or not symbol.name:
                continue
            if not symbol.is_defined:
                if not symbol.is_weak:
                    needed.setdefault(symbol.name, owner)
            elif symbol.is_weak:
                weak.setdefault(symbol.name, owner)
            elif defined.setdefault(symbol.name, owner) is not owner:
                raise clash(symbol.name, defined[symbol.name], owner)
    unknown = sorted(set(exports) - defined.keys() - weak.keys())
    if unknown:
        raise UserError(
            f"exports name {unknown[0]!r}, which no linked object defines",
            code="undefined-symbol",
            hint=nearest(unknown[0], defined),
        )
    if provided is None:
        return
    lacking = [
        (name, owner)
        for name, owner in needed.items()
        if name not in defined
        and name not in weak
        and (name not in provided or (owner == _ENTRY and name in MATHEMATICS))
        and name not in _LINKERS
    ]
    if any(name == WEIGHTS_SYMBOL for name, _ in lacking):
        raise UserError(
            "there are no bytes of weights, and the code expects some",
            code="bad-artifact",
            where="host/weights.bin",
            hint="take it from the compile that host/entry.c is of",
        )
    if lacking:
        text = ", ".join(f"{name} (needed by {owner})" for name, owner in lacking)
        kind = InternalError if all(owner == _RUNTIME for _, owner in lacking) else UserError
        is_generated = all(owner.startswith(("llvm/", "host/")) for _, owner in lacking)
        raise kind(
            f"no linked object defines {text}",
            code="undefined-symbol",
            hint=_hidden(lacking[0][0], {**weak, **defined}) or (EDITED if is_generated else ""),
        )


def _audit_machines(objects: Iterable[tuple[str, bytes | memoryview]]) -> None:
    machines = {owner: binary_of(memoryview(data), owner).machine for owner, data in objects}
    expected = machines.get(_RUNTIME)
    for owner, machine in machines.items():
        if expected not in (None, machine):
            raise UserError(
                f"{owner} is for {machine}, the library for {expected}",
                code="bad-artifact",
                where=owner,
                hint=EDITED,
            )


def audit_weights(code: bytes | memoryview, size: int) -> None:
    """Raise UserError (code `bad-artifact`) if the metadata in the linked `code` expects another
    number of bytes of weights than `size`: kernels would read beyond them."""
    binary = binary_of(memoryview(code), "what was linked")
    section = binary.section(METADATA)
    if section is not None:
        require_weights(bytes(binary.content(section)).rstrip(b"\0"), size)


def require_weights(metadata: bytes, size: int) -> None:
    """As `audit_weights`, given the metadata itself; UserError also if it is not valid JSON."""
    parsed = parsed_text(metadata, "the metadata", "bad-artifact")
    expected = parsed.get("weights_bytes") if isinstance(parsed, dict) else None
    if expected != size:
        raise UserError(
            f"there are {size} bytes of weights, and the code expects {expected}",
            code="bad-artifact",
            where="host/weights.bin",
            hint="take it from the compile that host/entry.c is of",
        )


def _hidden(name: str, defined: Mapping[str, str]) -> str:
    """A hint that names the objects whose symbol `name` was renamed (link/isolate.py), or ''."""
    owners = [o for s, o in defined.items() if re.fullmatch(rf"kiln_of_\d+_\w+?_{name}", s)]
    return f"the symbol of {' and '.join(owners)} is hidden" if owners else ""
