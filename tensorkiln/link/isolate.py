"""Resolve symbols between code of several origins, before the linker runs.

A linker goes by names alone: a weak function of one code generator would replace that of another,
and an external's `malloc` would replace the C library's. Here each reference is bound to a
definition that its origin can see, by the table below. A name that two origins define, or that one
origin defines while another refers to a different definition, is renamed in the objects of its
origin and of those that refer to it: `kiln_of_<number>_<origin>_<name>`. Names without a conflict
are kept.

| origin     | sees symbols of, besides its own                   |
|------------|----------------------------------------------------|
| runtime    | host code                                          |
| host code  | the runtime; kernels, ours and those of externals  |
| our kernels, externals | the runtime, host code, addons         |
| addons     | the runtime, host code; they are one origin        |

A reference of kernels, externals or addons that is not weak, and for which neither an origin that
they see nor the C library has a definition, is bound to the one external that defines the name: an
external may come as several origins, such as kernels and a driver.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tensorkiln.artifact.c_library import SYSTEM_SYMBOLS
from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.errors import UserError
from tensorkiln.link.audit import clash
from tensorkiln.link.object_format import rename_symbols

OTHER = "kiln_of_"
ADDON = "addon "  # begins the owner of an addon
RUNTIME, HOST, KERNELS, ADDONS = "the runtime", "host", "llvm", "addons"
OUR_GENERATORS = (KERNELS, "c")  # their objects are our kernels
_OF_RUNTIME = (RUNTIME, "the container", "the weights")


@dataclass(slots=True)
class _Origin:
    """The symbols of the objects of one origin. `defines`, `needs` (undefined symbols) and `groups`
    (COMDAT groups) map names to an owner for messages; `firmly` holds the names that are defined or
    needed by a symbol that is not weak."""

    defines: dict[str, str]
    needs: dict[str, str]
    groups: dict[str, str]
    others: dict[str, str]  # names to replace -> new names
    firmly: set[str]


def origin_of(owner: str) -> str:
    """The origin of an object, given its owner: `mine` for `mine/kernel.c`."""
    if owner in _OF_RUNTIME:
        return RUNTIME
    origin = ADDONS if owner.startswith(ADDON) else owner.partition("/")[0]
    return KERNELS if origin in OUR_GENERATORS else origin


def isolate(
    objects: Sequence[tuple[str, bytes | memoryview]],
    exports: Collection[str] = (),
    *,
    bitcode: Iterable[str] = (),
    unseen: bool = False,
) -> list[bytes | memoryview]:
    """Return the bytes of `objects`, (owner, bytes) pairs, with symbols renamed so that each
    reference resolves to the definition its origin sees. Objects without a renamed symbol come back
    as they are (the same Python objects).

    `exports` are what the library exports, under the names they have. `bitcode` are names of
    our kernels that are still bitcode; `unseen` says that such code will be linked. Since its
    references are unknown, symbols of externals and addons are then renamed unless host code needs
    them. Raises UserError (code `symbol-clash`), naming both owners, for an ambiguous reference.
    """
    origins = _origins(objects)
    for name in bitcode:
        origins.setdefault(KERNELS, _Origin({}, {}, {}, {}, set())).defines[name] = (
            f"{KERNELS}/{name}"
        )
    names = {
        n
        for o, symbols in origins.items()
        if _is_foreign(o)
        for n in (*symbols.defines, *symbols.groups)
    }
    for name in sorted(names):
        _settle(name, origins, exports, unseen)
    return [
        rename_symbols(data, new_names) if (new_names := origins[origin_of(owner)].others) else data
        for owner, data in objects
    ]


def _is_foreign(origin: str) -> bool:
    return origin not in (RUNTIME, HOST)


def _origins(objects: Sequence[tuple[str, bytes | memoryview]]) -> dict[str, _Origin]:
    """Collect the symbols of each origin. A name that an origin defines itself is not among its
    `needs`. UserError if two objects of one origin define a symbol that is not weak."""
    origins: dict[str, _Origin] = {}
    strong: dict[tuple[str, str], str] = {}
    for owner, data in objects:
        symbols = origins.setdefault(origin_of(owner), _Origin({}, {}, {}, {}, set()))
        binary = binary_of(memoryview(data), owner)
        for symbol in binary.symbols():
            if symbol.is_global and symbol.name:
                table = symbols.defines if symbol.is_defined else symbols.needs
                table.setdefault(symbol.name, owner)
                if not symbol.is_weak:
                    symbols.firmly.add(symbol.name)
            if symbol.is_global and symbol.is_defined and not symbol.is_weak:
                first = strong.setdefault((origin_of(owner), symbol.name), owner)
                if first is not owner:
                    raise clash(symbol.name, first, owner)
        symbols.groups.update(dict.fromkeys(binary.group_names(), owner))
    for symbols in origins.values():
        symbols.needs = {n: owner for n, owner in symbols.needs.items() if n not in symbols.defines}
    return origins


def _sees(who: str, definer: str, name: str) -> bool:
    """Whether a reference to `name` in origin `who` may be bound to a symbol of `definer`."""
    if definer in (RUNTIME, HOST):
        return True
    if who == HOST:  # sees kernels; those of externals never have a name of the C library
        return definer == KERNELS or (definer != ADDONS and not _is_systems(name))
    return definer == ADDONS and who != RUNTIME


def _is_systems(name: str) -> bool:
    """Whether the C library defines the name, or it is reserved for compilers (`__name`)."""
    return name in SYSTEM_SYMBOLS or name.startswith("__")


def _settle(name: str, origins: dict[str, _Origin], exports: Collection[str], unseen: bool) -> None:
    """Bind all references to `name`, and rename its definitions where two would conflict."""
    definers = [o for o, symbols in origins.items() if name in symbols.defines]
    groups = [o for o, symbols in origins.items() if name in symbols.groups and o not in definers]
    foreign = [o for o in definers if _is_foreign(o)]
    bindings: dict[str, str | None] = {}
    for who, symbols in origins.items():
        if name in symbols.needs:
            candidates = [o for o in definers if _sees(who, o, name)]
            if who == HOST and KERNELS in candidates:  # no other kernel has the name of one of ours
                candidates = [KERNELS]
            if (
                not candidates
                and _is_foreign(who)
                and name in symbols.firmly
                and not _is_systems(name)
            ):
                candidates = [o for o in definers if o != KERNELS and name in origins[o].firmly]
            if len(candidates) > 1 or (candidates == [ADDONS] and _is_systems(name)):
                raise _ambiguous(name, symbols.needs[name], origins, candidates)
            bindings[who] = candidates[0] if candidates else None
    own_definers = [o for o in definers if not _is_foreign(o)]
    # Neither our own code defines the name, nor is a reference left to the C library.
    free = not own_definers and None not in bindings.values()
    keeper = next((o for o in foreign if o in bindings.values()), foreign[0] if foreign else None)
    if name in exports and foreign and not own_definers:
        if len(foreign) > 1 or not free:
            needer = next(
                (
                    f.needs[name]
                    for o, f in origins.items()
                    if o in bindings and bindings[o] is None
                ),
                "",
            )
            raise _exported(name, [origins[o].defines[name] for o in foreign], needer)
    elif not free or (
        ((unseen and keeper != KERNELS) or _is_systems(name)) and bindings.get(HOST) != keeper
    ):
        keeper = None
    for origin in (*foreign, *groups):
        if origin == KERNELS != keeper and unseen:  # symbols in bitcode cannot be renamed
            users = [
                f.needs.get(name, f.defines.get(name, ""))
                for o, f in origins.items()
                if o != KERNELS and bindings.get(o) != KERNELS
            ]
            raise clash(
                name, origins[KERNELS].defines[name], next(filter(None, users), "the C library")
            )
        if origin != keeper:
            _rename(name, origin, origins, [o for o, to in bindings.items() if to == origin])


def _rename(name: str, origin: str, origins: dict[str, _Origin], users: Sequence[str]) -> None:
    word = re.sub(r"\W", "_", origin, flags=re.ASCII)
    new_name = f"{OTHER}{[*origins].index(origin)}_{word}_{name}"
    for who in (origin, *users):
        origins[who].others[name] = new_name


def _ambiguous(
    name: str, needer: str, origins: dict[str, _Origin], definers: Sequence[str]
) -> UserError:
    owners = [origins[o].defines[name] for o in definers]
    if len(owners) == 1:
        owners.insert(0, "the C library")
    return clash(name, owners[0], owners[1], f", which {needer} needs,")


def _exported(name: str, owners: Sequence[str], needer: str) -> UserError:
    """The error for an exported name that two symbols of the library would have to keep."""
    if len(owners) > 1:
        message = f"symbol {name!r}, to be exported, is defined by {' and by '.join(owners)}"
    else:
        message = (
            f"symbol {name!r} of {owners[0]} is to be exported, but {needer} needs another symbol "
            "of this name"
        )
    return UserError(message, code="symbol-clash", hint="another name for one of them")
