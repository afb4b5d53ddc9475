"""Parse and check what a user writes as a target, into the canonical fields of a Target."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tensorkiln.base.errors import UserError, nearest
from tensorkiln.target.composite import settle_host
from tensorkiln.target.fields import Fields
from tensorkiln.target.gpus import hint_for_arch
from tensorkiln.target.kinds import FIELDS, HOST, INSTEAD, KINDS, Kind
from tensorkiln.target.lookup import hint_for_kind, known_names, meaning
from tensorkiln.target.options import FIELD_ALIASES, contradiction, names
from tensorkiln.target.tags import TAGS, Tag, bad_hash, check_reference, read_file

NATIVE = "native"
_OF_A_PROCESSOR = '{"kind":"llvm","mcpu":"skylake-avx512"}'
_KEY = re.compile(r"[A-Za-z0-9_]{1,64}")
_DEEPEST = 16  # levels of nested targets, well below Python's recursion limit


def parse(spec: object, place: str = "target") -> Fields:
    """Check `spec` (JSON text, kind, tag, name of a machine, mapping); return its canonical fields.

    Raises UserError; `place` is the path of the target in its message: `target.devices[1]`.
    """
    if place.count(".") > _DEEPEST:
        raise UserError("targets nested too deeply", code="too-deep", where=place)
    raw = _rename(_as_mapping(spec, place), place)
    if raw.get("kind") == NATIVE:
        raw = _native(raw, place)
    tag = _string(raw, "tag", place)
    return _tagged(tag, raw, place) if tag else _plain(raw, place)


def _native(raw: dict[str, object], place: str) -> dict[str, object]:
    """Replace kind `native` by the fields of this machine's CPU; other given fields win over
    them."""
    from tensorkiln.target.host import describe_host  # needs llvmlite

    for name in ("mtriple", "mcpu", "mattr", "tag"):
        if raw.get(name):
            raise contradiction(
                f"kind {NATIVE!r} is this machine's processor, and has no {name!r}",
                f"{place}.{name}",
                f"leave {name!r} out, or write kind 'llvm'",
            )
    return {**describe_host(), **{k: v for k, v in raw.items() if k != "kind" and v is not None}}


def _plain(raw: dict[str, object], place: str) -> Fields:
    """Check a target that is given by its fields rather than a tag."""
    default = "composite" if "devices" in raw else "llvm"
    kind = _kind(default if raw.get("kind") is None else _string(raw, "kind", place), place)
    options = {name: value for name, value in raw.items() if name not in FIELDS}
    base = _string(raw, "base_tag", place)
    if base:
        check_reference(base, f"{place}.base_tag")
    fields = Fields(
        kind=kind.name,
        keys=names(raw.get("keys"), f"{place}.keys") or kind.keys,
        libs=names(raw.get("libs"), f"{place}.libs"),
        target_key=_target_key(raw, place),
        operators=names(raw.get("operators"), f"{place}.operators"),
        host=None if raw.get("host") is None else parse(raw["host"], f"{place}.host"),
        devices=_devices(kind, raw.get("devices"), place),
        attrs=tuple(kind.values(options, place).items()),
        base_tag=base,
    )
    return settle_host(fields, place)


def _tagged(name: str, raw: dict[str, object], place: str) -> Fields:
    """Check a target that is given by its tag; fields given beside the tag replace those of it.

    The tag stays if the content does not change, else it becomes `base_tag`. An unknown tag is
    accepted if the spec holds the whole content and the hash of that as `tag_hash`.
    """
    fields = {k: v for k, v in raw.items() if k not in ("tag", "tag_hash", "base_tag")}
    claimed = _string(raw, "tag_hash", place)
    tag = TAGS.find(name)
    if tag is None:
        return _self_certified(name, claimed, fields, place)
    if claimed and claimed != tag.hash:
        raise bad_hash(tag.reference, claimed, tag.hash, place)
    content = tag_content(tag)
    if "kind" in fields and fields["kind"] != content.kind:
        raise UserError(
            f"tag {tag.reference!r} is of kind {content.kind!r}, not {fields['kind']!r}",
            code="contradiction",
            where=f"{place}.kind",
        )
    merged = content if not fields else _plain({**content.to_json(), **fields}, place)
    if merged.to_json(tags=False) == content.to_json(tags=False):
        return replace(content, tag=tag.reference, tag_hash=tag.hash)
    return replace(merged, base_tag=tag.reference)


def _self_certified(name: str, claimed: str, fields: dict[str, object], place: str) -> Fields:
    if not claimed:
        raise TAGS.unknown(name, place, (*KINDS, NATIVE))
    check_reference(name, f"{place}.tag")
    content = _plain(fields, place)
    if content.content_hash() != claimed:
        raise bad_hash(name, claimed, content.content_hash(), place)
    return replace(content, tag=name, tag_hash=claimed)


def tag_content(tag: Tag) -> Fields:
    """Return the fields that a tag stands for; UserError (code `tag-hash`) if they do not match its
    hash."""
    place = f"tag {tag.reference!r}"
    content = replace(_plain(_rename(tag.target, place), place), base_tag="")
    content_hash = content.content_hash()
    if tag.hash and content_hash != tag.hash:
        raise bad_hash(tag.reference, tag.hash, content_hash, tag.file)
    return content


def load_tags(path: str | Path) -> tuple[str, ...]:
    """Register the tags of a file, all or none; return their canonical names with versions.

    An entry without a hash gets that of its content. Raises UserError: code `bad-tag`, `tag-hash`,
    or that of an invalid target.
    """
    tags = [replace(tag, hash=tag_content(tag).content_hash()) for tag in read_file(path)]
    TAGS.add(tags)
    return tuple(tag.reference for tag in tags)


# -- reading -----------------------------------------------------------------------------


def _as_mapping(spec: object, place: str) -> Mapping[str, object]:
    to_json = getattr(spec, "to_json", None)  # of a Target: a host, a device
    spec = to_json() if callable(to_json) else spec
    if isinstance(spec, Mapping):
        return spec
    if not isinstance(spec, str):
        raise UserError(
            f"expected JSON text, a dict, a tag or a kind name, got {type(spec).__name__}",
            where=place,
        )
    text = spec.strip()
    if not text.startswith("{"):
        return _from_name(text, place)
    try:
        parsed = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {error}", code="bad-json", where=place) from None
    return dict(parsed)


def _from_name(text: str, place: str) -> Mapping[str, object]:
    if " -" in text:
        cuda = text.split()[0] == "cuda"
        example = '{"kind":"cuda","arch":"sm_90"}' if cuda else _OF_A_PROCESSOR
        raise UserError(
            f"the option string {text!r} is not read",
            code="option-string",
            where=place,
            hint=f"write JSON: {example}",
        )
    if "/" in text:
        return {"tag": text}
    named = meaning(text, place) if text not in (*KINDS, NATIVE) else None
    return named or {"kind": text}


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"key {twice!r} appears twice")
    return out


def _rename(raw: Mapping[str, object], place: str) -> dict[str, object]:
    """Return the fields under their canonical names (`id` becomes `kind`), with those in `attrs`
    moved to the top level. UserError if a field is given twice."""
    out: dict[str, object] = {}
    inner = raw.get("attrs", {})
    if not isinstance(inner, Mapping):
        raise UserError(
            f"expected a dict, got {type(inner).__name__}",
            code="wrong-type",
            where=f"{place}.attrs",
        )
    for name, value in [*raw.items(), *inner.items()]:
        if not isinstance(name, str):
            raise UserError(f"key {name!r} is not text", code="wrong-type", where=place)
        canonical = FIELD_ALIASES.get(name, name)
        if canonical in out:
            raise UserError(f"field {canonical!r} is given twice", code="given-twice", where=place)
        if name != "attrs":
            out[canonical] = value
    return out


def _kind(name: str, place: str) -> Kind:
    kind = KINDS.get(name)
    if kind is None:
        kinds = (*KINDS, NATIVE)
        hint = INSTEAD.get(name) or hint_for_kind(name) or hint_for_arch(name)
        machines = (*known_names(), *TAGS.names())
        hint = hint or nearest(name, (*kinds, *machines), machines)
        raise UserError(
            f"unknown kind {name!r}",
            code="unknown-kind",
            where=place,
            hint=hint
            or f"known kinds: {', '.join(KINDS)}; `kiln targets WORD` searches tags and processors",
        )
    return kind


def _devices(kind: Kind, value: object, place: str) -> tuple[Fields, ...]:
    if not kind.composite:
        if value is not None:
            raise UserError(
                f"kind {kind.name!r} has no devices",
                code="wrong-type",
                where=f"{place}.devices",
                hint='a composite has: {"kind":"composite","devices":[...]}',
            )
        return ()
    if not isinstance(value, list | tuple) or not value:
        raise UserError(
            f"expected a list of targets, got {value!r}",
            code="wrong-type",
            where=f"{place}.devices",
            hint='for example {"kind":"composite","devices":["llvm","cuda"]}',
        )
    return tuple(parse(device, f"{place}.devices[{i}]") for i, device in enumerate(value))


def _target_key(raw: dict[str, object], place: str) -> str:
    key = _string(raw, "target_key", place)
    if key and (not _KEY.fullmatch(key) or key == HOST):
        raise UserError(
            f"{key!r} is not a target key: expected letters, digits and '_', and not 'host'",
            code="bad-key",
            where=f"{place}.target_key",
            hint="it names the device in files: 'dsp', 'gpu_0'",
        )
    return key


def _string(raw: Mapping[str, object], name: str, place: str) -> str:
    value = raw.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"expected text, got {value!r}", code="wrong-type", where=f"{place}.{name}")
    return value
