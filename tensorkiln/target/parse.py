"""From what a user writes to the canonical fields of a Target, with every check on the way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.kinds import ELSEWHERE, FIELD_ALIASES, KINDS, Kind, Option
from tensorkiln.target.triple import DEFAULT, canonical_triple

_FIELDS = ("kind", "tag", "keys", "libs", "host", "attrs")
# Cache sizes that every CPU of the last ten years has at least; `native` writes its own.
_L1D_BYTES, _L2_BYTES = 32 << 10, 256 << 10


@dataclass(frozen=True, slots=True)
class Fields:
    """A checked description; `host` is still a plain mapping."""

    kind: str
    tag: str
    keys: tuple[str, ...]
    libs: tuple[str, ...]
    host: Mapping[str, object] | None
    mtriple: str
    mcpu: str
    mattr: tuple[str, ...]
    l1d_bytes: int
    l2_bytes: int


def parse(spec: str | Mapping[str, object], where: str = "target") -> Fields:
    """Check `spec` (JSON text, kind name or mapping) and bring it to canonical fields."""
    raw = _rename(_as_mapping(spec, where), where)
    name = _string(raw, "kind", where, "llvm")
    if name not in KINDS:
        hint = nearest(name, (*KINDS, "native")) or f"known kinds: {', '.join(KINDS)}"
        raise UserError(f"unknown kind {name!r}", code="unknown-kind", where=where, hint=hint)
    kind = KINDS[name]
    options = _options(kind, raw, where)
    triple = canonical_triple(str(options.get("mtriple", DEFAULT)), f"{where}.mtriple")
    isa = ISAS[triple.split("-")[0]]
    cpu = str(options.get("mcpu") or isa.baseline_cpu)
    isa.check_cpu(cpu, f"{where}.mcpu")
    flags = _flags(isa, options.get("mattr", ()), f"{where}.mattr")
    tag = _string(raw, "tag", where, "")
    if tag:
        raise UserError(
            f"unknown tag {tag!r}: this version has no tags",
            code="unknown-tag",
            where=where,
            hint="give kind, mtriple, mcpu and mattr",
        )
    return Fields(
        kind=name,
        tag=tag,
        keys=_names(raw, "keys", where) or kind.keys,
        libs=_names(raw, "libs", where),
        host=_host(raw.get("host"), f"{where}.host"),
        mtriple=triple,
        mcpu=cpu,
        mattr=isa.canonical_mattr(cpu, flags),
        l1d_bytes=_int(options.get("l1d_bytes", _L1D_BYTES)),
        l2_bytes=_int(options.get("l2_bytes", _L2_BYTES)),
    )


def _as_mapping(spec: object, where: str) -> Mapping[str, object]:
    if isinstance(spec, Mapping):
        return spec
    if not isinstance(spec, str):
        raise UserError(
            f"expected JSON text, a dict or a kind name, got {type(spec).__name__}", where=where
        )
    text = spec.strip()
    if not text.startswith("{"):
        return _from_name(text, where)
    try:
        parsed = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {error}", code="bad-json", where=where) from None
    return dict(parsed)


def _from_name(text: str, where: str) -> Mapping[str, object]:
    if " -" in text:
        raise UserError(
            f"the option string {text!r} is not read",
            code="option-string",
            where=where,
            hint='write JSON: {"kind":"llvm","mcpu":"skylake-avx512"}',
        )
    return {"kind": text}


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} appears twice")
    return out


def _rename(raw: Mapping[str, object], where: str) -> dict[str, object]:
    """Aliases to their canonical names, `attrs` folded in; two spellings of one field clash."""
    out: dict[str, object] = {}
    inner = raw.get("attrs", {})
    if not isinstance(inner, Mapping):
        raise UserError(
            f"expected a dict, got {type(inner).__name__}",
            code="wrong-type",
            where=f"{where}.attrs",
        )
    for name, value in [*raw.items(), *inner.items()]:
        if not isinstance(name, str):
            raise UserError(f"key {name!r} is not text", code="wrong-type", where=where)
        canonical = FIELD_ALIASES.get(name, name)
        if canonical in out:
            raise UserError(f"field {canonical!r} is given twice", code="given-twice", where=where)
        if name != "attrs":
            out[canonical] = value
    if "devices" in out or out.get("kind") == "composite":
        raise UserError(
            "composite targets are not supported yet",
            code="unsupported-target",
            where=where,
            hint="give one target of kind llvm",
        )
    return out


def _options(kind: Kind, raw: Mapping[str, object], where: str) -> dict[str, object]:
    """The kind's options in `raw`, each of the declared type and range."""
    known = {option.name: option for option in kind.options}
    out: dict[str, object] = {}
    for name, value in raw.items():
        if name in _FIELDS:
            continue
        if name not in known:
            hint = ELSEWHERE.get(name) or nearest(name, (*known, *_FIELDS))
            raise UserError(
                f"unknown key {name!r} for kind {kind.name!r}",
                code="unknown-key",
                where=where,
                hint=hint or f"known: {', '.join(known)}",
            )
        if value is not None:
            out[name] = _typed(known[name], value, f"{where}.{name}")
    return out


def _typed(option: Option, value: object, where: str) -> object:
    if option.type is list and isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if option.type is list and isinstance(value, tuple):
        value = list(value)
    # bool is an int to Python, and True cache bytes is a mistake
    if not isinstance(value, option.type) or isinstance(value, bool):
        raise UserError(
            f"expected {_TYPE_NAMES[option.type]}, got {value!r}",
            code="wrong-type",
            where=where,
            hint=option.doc,
        )
    if isinstance(value, int) and not option.low <= value <= option.high:
        raise UserError(
            f"{value} is out of range {option.low}..{option.high}",
            code="out-of-range",
            where=where,
            hint=option.doc,
        )
    return value


_TYPE_NAMES: dict[type, str] = {str: "text", int: "a whole number", list: "a list of text"}


def _flags(isa: Isa, value: object, where: str) -> tuple[str, ...]:
    """`mattr` entries: each `+name` or `-name` with a known name, no name both ways."""
    flags = tuple(value) if isinstance(value, list | tuple) else ()
    seen: dict[str, str] = {}
    for flag in flags:
        if not isinstance(flag, str) or flag[:1] not in ("+", "-"):
            raise UserError(
                f"{flag!r}: expected '+feature' or '-feature'",
                code="wrong-type",
                where=where,
                hint=f"did you mean '+{flag}'?" if flag in isa.implied else "",
            )
        isa.check_feature(flag[1:], where)
        if seen.setdefault(flag[1:], flag) != flag:
            raise UserError(
                f"contradiction: '+{flag[1:]}' and '-{flag[1:]}'", code="contradiction", where=where
            )
    _check_implied(isa, flags, where)
    return flags


def _check_implied(isa: Isa, flags: tuple[str, ...], where: str) -> None:
    """`+avx2,-avx` cannot both hold: the first needs what the second takes."""
    minus = {flag[1:] for flag in flags if flag[0] == "-"}
    fixed = sorted(minus & isa.cpu_features(isa.baseline_cpu))
    if fixed:
        raise UserError(
            f"'-{fixed[0]}': every {isa.arch} has it and its calls need it",
            code="contradiction",
            where=where,
        )
    for flag in flags:
        if flag[0] == "+" and flag[1:] in isa.implied:
            clash = sorted(isa.closure([flag[1:]]) & minus)
            if clash:
                raise UserError(
                    f"contradiction: {flag!r} needs {clash[0]!r}, which '-{clash[0]}' takes away",
                    code="contradiction",
                    where=where,
                )


def _string(raw: Mapping[str, object], name: str, where: str, default: str) -> str:
    value = raw.get(name, default)
    if value is None:
        return default
    if not isinstance(value, str):
        raise UserError(
            f"expected text, got {value!r}", code="wrong-type", where=f"{where}.{name}"
        )
    return value


def _names(raw: Mapping[str, object], name: str, where: str) -> tuple[str, ...]:
    """A list of names, or text with commas; order kept, repeats dropped."""
    value = raw.get(name) or ()
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) and v for v in value):
        raise UserError(
            f"expected a list of text, got {value!r}", code="wrong-type", where=f"{where}.{name}"
        )
    return tuple(dict.fromkeys(value))


def _host(value: object, where: str) -> Mapping[str, object] | None:
    if value is None:
        return None
    mapping = _as_mapping(value, where)
    parse(mapping, where)  # so that the error says target.host, however deep
    return mapping


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
