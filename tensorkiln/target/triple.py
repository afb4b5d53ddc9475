"""Target triples, `arch-vendor-os[-environment]`: parsing and canonical spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.target.isa import ISAS

DEFAULT = "x86_64-unknown-linux-gnu"

# Architectures that the compiler itself generates code for.
LIBRARIES = ("x86_64", "aarch64", "riscv64")


@dataclass(frozen=True, slots=True)
class Environment:
    """What libraries are made for: the architectures, and the oldest version that a triple may name
    (`android26`), which is meant where it names none; '' where triples name no version."""

    architectures: tuple[str, ...] = LIBRARIES
    oldest: str = ""

    @property
    def number(self) -> int:
        """The oldest version, 0 for none."""
        return int(self.oldest or 0)


# Operating systems that libraries are made for -> environments, of which each has a row in
# `link/object_format.py`. A triple without an environment has the first one.
LIBRARY_SYSTEMS: Mapping[str, Mapping[str, Environment]] = {
    "linux": {
        "gnu": Environment(),
        "musl": Environment(),
        "android": Environment(("x86_64", "aarch64"), "24"),
    }
}

_ALIASES: dict[str, str] = {
    "x86-64": "x86_64",
    "amd64": "x86_64",
    "arm64": "aarch64",
    "armv6l": "armv6",
    "armv7a": "armv7",
    "armv7l": "armv7",
    "armv6m": "thumbv6m",
    "armv7m": "thumbv7m",
    "armv7em": "thumbv7em",
    "armv8m.base": "thumbv8m.base",
    "armv8m.main": "thumbv8m.main",
    "armv8.1m.main": "thumbv8.1m.main",
}
_VENDORS = ("unknown", "pc", "apple", "none")
_SYSTEMS = ("linux", "macos", "darwin", "ios", "windows", "none", "freebsd", "wasi", "unknown")
_ARM = "gnueabi gnueabihf musleabi musleabihf eabi eabihf androideabi"
_ARM_ENVIRONMENTS = tuple(_ARM.split())
_ENVIRONMENTS = ("gnu", "musl", "android", "msvc", "elf", *_ARM_ENVIRONMENTS)


def canonical_triple(text: str, place: str = "target.mtriple") -> str:
    """Return `text` as canonical `arch-vendor-os[-environment]`.

    Aliases are replaced, a missing vendor and the level of Android's API are filled in:
    `arm64-linux` becomes `aarch64-unknown-linux`, `arm64-macos` becomes `aarch64-apple-macos`, and
    `arm64-linux-android` becomes `aarch64-unknown-linux-android24`. Raises UserError (code
    `bad-triple`) naming the unknown part.
    """
    # The architecture x86-64 contains the separator.
    parts = text.replace("x86-64", "x86_64", 1).split("-")
    parts[0] = _ALIASES.get(parts[0], parts[0])
    _known(parts[0], tuple(ISAS), "architecture", text, place)
    parts = _with_vendor(parts)
    if not 3 <= len(parts) <= 4:
        raise UserError(
            f"triple {text!r}: expected arch-vendor-os[-environment]",
            code="bad-triple",
            where=place,
            hint=f"for example {DEFAULT!r}",
        )
    _known(parts[1], _VENDORS, "vendor", text, place)
    systems = _SYSTEMS if parts[0] == "wasm32" else _SYSTEMS[:-2]
    system = _system(parts[2])
    # Only the others may carry a version: `macos13` is known, `linux5` is not.
    system = parts[2] if system in ("linux", "windows", "none", "wasi", "unknown") else system
    _known(system, systems, "operating system", text, place)
    if len(parts) == 4:
        arm = parts[0].startswith(("arm", "thumb"))
        environments = _ARM_ENVIRONMENTS if arm else _ENVIRONMENTS
        level = parts[3].removeprefix("android")
        is_level = level != parts[3] and level.isdecimal() and level.isascii() and len(level) < 4
        _known("android" if is_level else parts[3], environments, "environment", text, place)
        if parts[3] == "android":
            parts[3] += LIBRARY_SYSTEMS["linux"]["android"].oldest
    return "-".join(parts)


def require_library(triple: str, place: str) -> str:
    """Return the architecture of a triple that libraries can be linked for: one of LIBRARIES, with
    a system of LIBRARY_SYSTEMS.

    Raises UserError (code `bad-triple`) for an invalid triple, UnsupportedError for any other
    machine.
    """
    arch, _, system, *environment = canonical_triple(triple, place).split("-")
    environments = LIBRARY_SYSTEMS.get(system, {})
    if arch not in LIBRARIES:
        raise UnsupportedError(
            f"no code is generated for {arch} yet, as triple {triple!r} asks",
            where=place,
            hint=f"architectures that work: {', '.join(LIBRARIES)}; kind 'c' makes C for any",
        )
    text = environment[0] if environment else next(iter(environments), "")
    name = text.rstrip("0123456789")
    row = environments.get(name)
    if row is None or arch not in row.architectures or int(text[len(name) :] or 0) < row.number:
        system_text = "-".join((system, *environment))
        is_other = row is not None and arch not in row.architectures
        raise UnsupportedError(
            f"no library is made for {system_text}{f' on {arch}' if is_other else ''} yet, as "
            f"triple {triple!r} asks",
            where=place,
            hint=f"triples that work: {', '.join(library_triples())}",
        )
    return arch


def library_triples() -> tuple[str, ...]:
    """A triple, `x86_64-linux-gnu`, of each machine that libraries are made for."""
    return tuple(
        f"{arch}-{system}-{name}{row.oldest}"
        for system, environments in LIBRARY_SYSTEMS.items()
        for name, row in environments.items()
        for arch in row.architectures
    )


def library_system(triple: str) -> str:
    """System and environment of a triple as `link/object_format.py` names them, `linux-musl`; of a
    compiler's triple, such as `armv7-linux-gnueabihf`, the nearest ones. Empty for a system that no
    libraries are made for."""
    parts = triple.split("-")
    for i, system in enumerate(map(_system, parts)):
        environments = list(LIBRARY_SYSTEMS.get(system, ()))
        end = "".join(parts[i + 1 :])
        if environments:
            name = next((e for e in environments if end.startswith(e)), environments[0])
            return f"{system}-{name}"
    return ""


def _with_vendor(parts: list[str]) -> list[str]:
    """Insert the vendor into the parts of `arch-os[-environment]`."""
    if len(parts) == 3 and parts[1] == "none" and parts[2] in _ARM_ENVIRONMENTS:
        return [parts[0], "unknown", *parts[1:]]  # thumbv7em-none-eabi, as compilers spell it
    system = _system(parts[1]) if len(parts) > 1 else ""
    if system not in _SYSTEMS or system in ("none", "unknown"):
        return parts
    return [parts[0], "apple" if system in ("macos", "darwin", "ios") else "unknown", *parts[1:]]


def _system(part: str) -> str:
    """The operating system without its version: `macos13.0.0` -> `macos`."""
    return part.rstrip("0123456789.")


def _known(part: str, choices: tuple[str, ...], noun: str, text: str, place: str) -> None:
    if part not in choices:
        raise UserError(
            f"triple {text!r}: unknown {noun} {part!r}",
            code="bad-triple",
            where=place,
            hint=nearest(part, choices) or f"known: {', '.join(choices)}",
        )
