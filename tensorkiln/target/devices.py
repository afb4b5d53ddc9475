"""The devices of a composite target, by their keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from types import MappingProxyType

from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.target.kinds import HOST, KINDS
from tensorkiln.target.registry import cpu_target, flat_devices, with_host
from tensorkiln.target.target import Target


@lru_cache(maxsize=64)  # every pass asks
def devices_of(target: Target) -> Mapping[str, Target]:
    """The devices of a composite by target key, in order, those of composites in it too. An
    accelerator that has a host is the one device of its own target; CPUs and other kinds have none.

    A device has the key that it gives (`target_key`), else the name of its kind, with a number
    where that is not unique: `llvm`, or `llvm_0` and `llvm_1`.
    """
    if KINDS[target.kind].is_accelerator and target.host is not None:
        return MappingProxyType({target.target_key or target.kind: target.replace(host=None)})
    found = list(flat_devices(target))
    given = {d.target_key for d in found}
    unnamed = Counter(d.kind for d in found if not d.target_key)
    devices: dict[str, Target] = {}
    for device in found:
        key, kind = device.target_key, device.kind
        if not key and unnamed[kind] == 1 and kind not in given:
            key = kind
        numbered = (f"{kind}_{i}" for i in count())
        key = key or next(name for name in numbered if name not in given and name not in devices)
        devices[key] = device
    return MappingProxyType(devices)


def device_named(text: str | None, target: Target, where: str) -> str:
    """What the attribute `target` of function `where` names: the key of a device of a composite,
    `HOST`, or "" for all of `target` (without the attribute, too).

    It is a key, or the text of a target. Raises UserError of an invalid text, UnsupportedError for
    one that names none of these.
    """
    if text is None:
        return ""
    devices = devices_of(target)
    if text in devices or (devices and text == HOST):
        return text
    try:
        own = with_host(Target(text))
    except UserError as error:
        hint = nearest(text, (HOST, *devices)) if devices else ""
        place = f"{where}.attrs.target"
        raise UserError(
            error.message, code=error.code, where=place, hint=hint or error.hint
        ) from None
    if own == target:
        return ""
    if own == cpu_target(target):
        return HOST if devices else ""
    found = [key for key, device in devices.items() if own == device]
    if len(found) == 1:
        return found[0]
    raise UnsupportedError(
        f"its target is {text}, and the module is compiled for {target}",
        where=where,
        hint=f"a device by its key: {', '.join(devices)}"
        if devices
        else "compile it for its target, in a module of its own",
    )


def target_in(target: Target, attrs: Mapping[str, object]) -> Target:
    """The target of a function with these attributes: the device of a composite whose key is its
    attribute `target`, else the CPU of the host; `target` itself if that is no composite."""
    devices = devices_of(target)
    if not devices:
        return target
    return devices.get(str(attrs.get("target", ""))) or cpu_target(target)


def device_key(target: Target, attrs: Mapping[str, object]) -> str:
    """The attribute `target` if it is the key of a device of a composite, else ""."""
    key = str(attrs.get("target", ""))
    return key if key and key in devices_of(target) else ""


def accelerators(target: Target) -> tuple[str, ...]:
    """The keys of the devices with memory of their own, in order."""
    found = devices_of(target).items()
    return tuple(key for key, device in found if KINDS[device.kind].is_accelerator)


__all__ = ["HOST", "accelerators", "device_key", "device_named", "devices_of", "target_in"]
