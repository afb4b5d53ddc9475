"""Target triples: `arch-vendor-os[-environment]`, checked and brought to one spelling."""

from __future__ import annotations

from tensorkiln.base.errors import UserError, nearest

DEFAULT = "x86_64-unknown-linux-gnu"

_ARCHS: dict[str, str] = {
    "x86_64": "x86_64",
    "x86-64": "x86_64",
    "amd64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",
}
_VENDORS = ("unknown", "pc", "apple", "none")
_SYSTEMS = ("linux", "macos", "darwin", "windows", "none", "freebsd")
_ENVIRONMENTS = ("", "gnu", "musl", "android", "msvc", "elf")


def canonical_triple(text: str, where: str = "target.mtriple") -> str:
    """`text` as `arch-vendor-os[-environment]`; a left-out vendor becomes `unknown`.

    Raises UserError (code `bad-triple`) naming the part that is not known. An architecture LLVM
    has but this version does not compile for is refused in the same way, with the list.
    """
    # x86-64 holds the separator itself.
    parts = text.replace("x86-64", "x86_64", 1).split("-")
    parts[0] = _ARCHS.get(parts[0], parts[0])
    _known(parts[0], ("x86_64", "aarch64"), "architecture", text, where)
    if len(parts) > 1 and _system(parts[1]) in _SYSTEMS and parts[1] != "none":
        parts.insert(1, "apple" if _system(parts[1]) in ("macos", "darwin") else "unknown")
    if not 3 <= len(parts) <= 4:
        raise UserError(
            f"triple {text!r}: expected arch-vendor-os[-environment]",
            code="bad-triple",
            where=where,
            hint=f"for example {DEFAULT!r}",
        )
    _known(parts[1], _VENDORS, "vendor", text, where)
    _known(_system(parts[2]), _SYSTEMS, "operating system", text, where)
    if len(parts) == 4:
        _known(parts[3], _ENVIRONMENTS[1:], "environment", text, where)
    return "-".join(parts)


def _system(part: str) -> str:
    """The operating system without its version: `macos13.0.0` -> `macos`."""
    return part.rstrip("0123456789.")


def _known(part: str, known: tuple[str, ...], noun: str, text: str, where: str) -> None:
    if part not in known:
        raise UserError(
            f"triple {text!r}: unknown {noun} {part!r}",
            code="bad-triple",
            where=where,
            hint=nearest(part, known) or f"known: {', '.join(known)}",
        )
