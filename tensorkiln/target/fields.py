"""`Fields`: the checked contents of a target, its canonical JSON and its content hash."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tensorkiln.target.options import Value
from tensorkiln.target.options import to_json as option_json


@dataclass(frozen=True, slots=True)
class Fields:
    """The checked fields of a target. `attrs` are the kind's options, sorted by name; `tag_hash` is
    the content hash of `tag`. `target_key` and `operators` are set for a device of a composite: its
    name among the devices, and the operators that it computes (empty: all that it can)."""

    kind: str
    keys: tuple[str, ...] = ()
    libs: tuple[str, ...] = ()
    host: Fields | None = None
    devices: tuple[Fields, ...] = ()
    attrs: tuple[tuple[str, Value], ...] = ()
    tag: str = ""
    tag_hash: str = ""
    base_tag: str = ""
    target_key: str = ""
    operators: tuple[str, ...] = ()

    def to_json(self, tags: bool = True) -> dict[str, object]:
        """Return JSON values in canonical order, with or without tag, tag_hash and base_tag."""
        out: dict[str, object] = {"kind": self.kind}
        if tags:
            named = (("tag", self.tag), ("tag_hash", self.tag_hash), ("base_tag", self.base_tag))
            out |= {name: value for name, value in named if value}
        if self.target_key:
            out["target_key"] = self.target_key
        out["keys"] = list(self.keys)
        if self.libs:
            out["libs"] = list(self.libs)
        if self.operators:
            out["operators"] = list(self.operators)
        if self.host is not None:
            out["host"] = self.host.to_json(tags)
        if self.devices:
            out["devices"] = [device.to_json(tags) for device in self.devices]
        return out | {k: option_json(v) for k, v in self.attrs}

    def content_hash(self) -> str:
        """Return `sha256:...` of the canonical text without tags: equal for equal contents."""
        text = canonical_text(self.to_json(tags=False))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def canonical_text(value: dict[str, object]) -> str:
    """Return canonical JSON text: ASCII, no spaces, keys in the order of `Fields.to_json`."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)
