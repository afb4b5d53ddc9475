"""Canonical place of the host in a composite target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensorkiln.target.fields import Fields
from tensorkiln.target.options import contradiction

PLAIN = "composite"


def settle_host(fields: Fields, place: str) -> Fields:
    """Move the hosts of devices to their composite; return other targets unchanged.

    A library has one host program, so a composite has the host and its devices have none:
    `{devices:[{a, host}, b]}` becomes `{host, devices:[a, b]}`. A composite of kind `composite`
    with one device, and no keys, libs or base_tag, becomes that device: `{a, host}`. Raises
    UserError (code `contradiction`) for two different hosts.
    """
    if not fields.devices:
        return fields
    hosts = {f.host.content_hash(): f.host for f in (fields, *fields.devices) if f.host is not None}
    if len(hosts) > 1:
        hint = "one library has one host program: give it once, as host of the composite"
        message = f"{len(hosts)} different hosts in one composite"
        raise contradiction(message, f"{place}.devices", hint)
    host = next(iter(hosts.values()), None)
    devices = tuple(_without_host(device) for device in fields.devices)
    _require_distinct(devices, place)
    alone = not fields.keys and not fields.libs and not fields.base_tag
    alone = alone and not any(d.target_key or d.operators for d in devices)
    if fields.kind == PLAIN and len(devices) == 1 and alone:
        device = fields.devices[0]
        return device if device.host == host else replace(_untagged(device), host=host)
    return replace(fields, host=host, devices=devices)


def _require_distinct(devices: tuple[Fields, ...], place: str) -> None:
    """Raise UserError (code `contradiction`) if two devices give one key."""
    places: dict[str, str] = {}
    for path, device in _named(devices, f"{place}.devices"):
        first = places.setdefault(device.target_key, path)
        if first != path:
            message = f"{first} and {path} both have the key {device.target_key!r}"
            raise contradiction(message, path, "the key is what tells devices apart")


def _named(devices: tuple[Fields, ...], place: str) -> Iterator[tuple[str, Fields]]:
    """The devices that have a key, including those of nested composites, with their places in the
    text."""
    for i, device in enumerate(devices):
        path = f"{place}[{i}]"
        yield from [(path, device)] if device.target_key else ()
        yield from _named(device.devices, f"{path}.devices")


def _without_host(device: Fields) -> Fields:
    return device if device.host is None else replace(_untagged(device), host=None)


def _untagged(device: Fields) -> Fields:
    """Turn the device's tag into its base_tag: with another host, it is not the tag's target any
    more."""
    base = device.tag or device.base_tag
    return replace(device, tag="", tag_hash="", base_tag=base)
