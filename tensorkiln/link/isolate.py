"""Whose symbol a call means, where code of several origins is linked together.

A linker knows names only: a weak function of one code generator stands in for that of another, and
an external's `malloc` for the C library's. Here each reference is bound before the linker runs, by
who may see whose symbols; a name that two origins define, or that one defines and another means
something else by, becomes `kiln_of_<number>_<origin>_<name>` in the objects of its origin. Names
that are in nobody's way stay as they are.

| who        | sees, besides its own                              |
|------------|----------------------------------------------------|
| runtime    | host code                                          |
| host code  | the runtime; kernels, ours and those of externals  |
| our kernels, externals | the runtime, host code, addons         |
| addons     | the runtime, host code; they are one origin        |

Code of others that needs a function which none of these has, nor the C library, means that of the
one external that has it: one may come in several parts, such as kernels and a driver.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tensorkiln.artifact.elf import elf_of
from tensorkiln.base.errors import UserError
from tensorkiln.link.audit import clash
from tensorkiln.link.rename import rename_symbols
from tensorkiln.link.stubs import SYSTEM_SYMBOLS

OTHER = "kiln_of_"
ADDON = "addon "  # begins the owner of an addon
RUNTIME, HOST, KERNELS, ADDONS = "the runtime", "host", "llvm", "addons"
_OF_RUNTIME = (RUNTIME, "the container", "the weights")


@dataclass(slots=True)
class _Origin:
    """What the objects of one origin define and lack: names, with an owner for messages; `firmly`
    are those that are not weak."""

    defines: dict[str, str]
    needs: dict[str, str]
    groups: dict[str, str]
    others: dict[str, str]  # other names
    firmly: set[str]


def origin_of(owner: str) -> str:
    """The origin of an object by the name of its owner, such as `mine/kernel.c`."""
    if owner in _OF_RUNTIME:
        return RUNTIME
    return ADDONS if owner.startswith(ADDON) else owner.partition("/")[0]


def isolate(
    objects: Sequence[tuple[str, bytes | memoryview]],
    shown: Collection[str] = (),
    *,
    bitcode: Iterable[str] = (),
    unseen: bool = False,
) -> list[bytes | memoryview]:
    """The objects (owner and bytes), each reference bound to what its origin means by it; those
    that need no other names are the same objects.

    `shown` are symbols that the library exports under their names. `bitcode` are kernels of ours
    that have no symbols yet; `unseen` says that there is such code, so all names of others go.
    Raises UserError (code `symbol-clash`), naming both owners, where a name could mean two things.
    """
    origins = _origins(objects)
    for name in bitcode:
        origins.setdefault(KERNELS, _Origin({}, {}, {}, {}, set())).defines[name] = (
            f"{KERNELS}/{name}"
        )
    names = {n for o, found in origins.items() if _is_foreign(o)
             for n in (*found.defines, *found.groups)}  # fmt: skip
    for name in sorted(names):
        _settle(name, origins, shown, unseen)
    return [
        rename_symbols(data, others) if (others := origins[origin_of(owner)].others) else data
        for owner, data in objects
    ]


def _is_foreign(origin: str) -> bool:
    return origin not in (RUNTIME, HOST)


def _origins(objects: Sequence[tuple[str, bytes | memoryview]]) -> dict[str, _Origin]:
    """Names by origin. What an origin defines itself it needs of nobody."""
    origins: dict[str, _Origin] = {}
    strong: dict[tuple[str, str], str] = {}
    for owner, data in objects:
        own = origins.setdefault(origin_of(owner), _Origin({}, {}, {}, {}, set()))
        elf = elf_of(memoryview(data), owner)
        for symbol in elf.symbols():
            if symbol.is_global and symbol.name:
                table = own.defines if symbol.is_defined else own.needs
                table.setdefault(symbol.name, owner)
                if not symbol.is_weak:
                    own.firmly.add(symbol.name)
            if symbol.is_global and symbol.is_defined and not symbol.is_weak:
                first = strong.setdefault((origin_of(owner), symbol.name), owner)
                if first is not owner:
                    raise clash(symbol.name, first, owner)
        own.groups.update(dict.fromkeys(elf.group_names(), owner))
    for own in origins.values():
        own.needs = {n: owner for n, owner in own.needs.items() if n not in own.defines}
    return origins


def _sees(who: str, whose: str, name: str) -> bool:
    """Whether a reference to `name` may mean a symbol of another origin."""
    if whose in (RUNTIME, HOST):
        return True
    if who == HOST:  # kernels; the names of those of externals are none of the C library's
        return whose == KERNELS or (whose != ADDONS and not _is_systems(name))
    return whose == ADDONS and who != RUNTIME


def _is_systems(name: str) -> bool:
    """Whether compilers and the C library have a meaning for the name."""
    return name in SYSTEM_SYMBOLS or name.startswith("__")


def _settle(name: str, origins: dict[str, _Origin], shown: Collection[str], unseen: bool) -> None:
    """Bind all references to `name`, and give it other names where they would meet."""
    definers = [o for o, found in origins.items() if name in found.defines]
    groups = [o for o, found in origins.items() if name in found.groups and o not in definers]
    foreign = [o for o in definers if _is_foreign(o)]
    bound: dict[str, str | None] = {}
    for who, found in origins.items():
        if name in found.needs:
            seen = [o for o in definers if _sees(who, o, name)]
            if who == HOST and KERNELS in seen:  # no other kernel has the name of one of ours
                seen = [KERNELS]
            if not seen and _is_foreign(who) and name in found.firmly and not _is_systems(name):
                seen = [o for o in definers if o != KERNELS and name in origins[o].firmly]
            if len(seen) > 1 or (seen == [ADDONS] and _is_systems(name)):
                raise _ambiguous(name, found.needs[name], origins, seen)
            bound[who] = seen[0] if seen else None
    ours = [o for o in definers if not _is_foreign(o)]
    free = not ours and None not in bound.values()  # the name is nobody's yet
    keeper = next((o for o in foreign if o in bound.values()), foreign[0] if foreign else None)
    if name in shown and foreign and not ours:
        if len(foreign) > 1 or not free:
            needer = next((f.needs[name] for o, f in origins.items()
                           if o in bound and bound[o] is None), "")  # fmt: skip
            raise _exported(name, [origins[o].defines[name] for o in foreign], needer)
    elif not free or (
        ((unseen and keeper != KERNELS) or _is_systems(name)) and bound.get(HOST) != keeper
    ):
        keeper = None
    for origin in (*foreign, *groups):
        if origin == KERNELS != keeper and unseen:  # bitcode keeps its names
            others = [f.needs.get(name, f.defines.get(name, "")) for o, f in origins.items()
                      if o != KERNELS and bound.get(o) != KERNELS]  # fmt: skip
            raise clash(
                name, origins[KERNELS].defines[name], next(filter(None, others), "the C library")
            )
        if origin != keeper:
            _rename(name, origin, origins, [o for o, to in bound.items() if to == origin])


def _rename(name: str, origin: str, origins: dict[str, _Origin], users: Sequence[str]) -> None:
    word = re.sub(r"\W", "_", origin, flags=re.ASCII)
    other = f"{OTHER}{[*origins].index(origin)}_{word}_{name}"
    for who in (origin, *users):
        origins[who].others[name] = other


def _ambiguous(
    name: str, needer: str, origins: dict[str, _Origin], seen: Sequence[str]
) -> UserError:
    owners = [origins[o].defines[name] for o in seen]
    if len(owners) == 1:
        owners.insert(0, "the C library")
    return clash(name, owners[0], owners[1], f", which {needer} needs,")


def _exported(name: str, owners: Sequence[str], needer: str) -> UserError:
    """Two would have to bear the name that is to be exported."""
    if len(owners) > 1:
        message = f"symbol {name!r}, to be exported, is defined by {' and by '.join(owners)}"
    else:
        message = (
            f"symbol {name!r} of {owners[0]} is to be exported, and {needer} means another by it"
        )
    return UserError(message, code="symbol-clash", hint="another name for one of them")
