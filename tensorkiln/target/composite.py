"""Canonical place of the host in a composite target."""

from __future__ import annotations

from dataclasses import replace

from tensorkiln.base.errors import UserError
from tensorkiln.target.fields import Fields

PLAIN = "composite"


def settle_host(fields: Fields, where: str) -> Fields:
    """Move the hosts of devices to their composite; return other targets unchanged.

    A library has one host program, so a composite has the host and its devices have none:
    `{devices:[{a, host}, b]}` becomes `{host, devices:[a, b]}`. A composite of kind `composite`
    with one device, and no keys, libs or base_tag, becomes that device: `{a, host}`. Raises
    UserError (code `contradiction`) for two different hosts.
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
    """Make the device's tag its base_tag: with another host it is no longer what the tag stands
    for."""
    base = device.tag or device.base_tag
    return replace(device, tag="", tag_hash="", base_tag=base)


def _content(host: Fields) -> str:
    return host.content_hash()
