"""One host for a whole target, whichever way it was written."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import UserError
from tensorkiln.target.fields import Fields

PLAIN = "composite"


def settle_host(fields: Fields, where: str) -> Fields:
    """Bring both host conventions to one form.

    A library has one host program. A composite therefore holds the host and its devices none:
    `{host, devices:[a]}` and `{devices:[{a, host}]}` are the same, and a plain composite of one
    device that says nothing else is that device: `{a, host}`. Raises UserError (code
    `contradiction`) for two hosts.
    """
    if not fields.devices:
        return fields
    hosts = {_content(f.host): f.host for f in (fields, *fields.devices) if f.host is not None}
    if len(hosts) > 1:
        raise UserError(
            f"contradiction: {len(hosts)} different hosts in one composite",
            code="contradiction",
            where=f"{where}.devices",
            hint="one library has one host program: give it once, as host of the composite",
        )
    host = next(iter(hosts.values()), None)
    devices = tuple(_without_host(device) for device in fields.devices)
    alone = not fields.keys and not fields.libs and not fields.base_tag
    if fields.kind == PLAIN and len(devices) == 1 and alone:
        device = fields.devices[0]
        return device if device.host == host else replace(_untagged(device), host=host)
    return replace(fields, host=host, devices=devices)


def _without_host(device: Fields) -> Fields:
    return device if device.host is None else replace(_untagged(device), host=None)


def _untagged(device: Fields) -> Fields:
    """A device whose host is about to change is no longer what its tag says."""
    base = device.tag or device.base_tag
    return replace(device, tag="", tag_hash="", base_tag=base)


def _content(host: Fields) -> str:
    return host.content_hash()
