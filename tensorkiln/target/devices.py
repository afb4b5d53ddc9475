"""The devices of a composite target, by their keys.

Which device computes what is decided by `transform/relax/pin_devices.py` (types that name a device)
and `transform/relax/assign_devices.py` (cost and the order of the target); each part becomes a
graph function with the attribute `target`. Later passes and the scheduler ask `target_in` for the
target of a function and name no device. `transform/relax/join_devices.py` puts parts back, with
copies between memories.
"""

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
    leaves = list(flat_devices(target))
    keys = {d.target_key for d in leaves}
    unnamed = Counter(d.kind for d in leaves if not d.target_key)
    devices: dict[str, Target] = {}
    for device in leaves:
        key, kind = device.target_key, device.kind
        if not key and unnamed[kind] == 1 and kind not in keys:
            key = kind
        numbered = (f"{kind}_{i}" for i in count())
        key = key or next(name for name in numbered if name not in keys and name not in devices)
        devices[key] = device
    return MappingProxyType(devices)


def device_named(text: str | None, target: Target, function: str) -> str:
    """What the attribute `target` of `function` names: the key of a device of a composite,
    `HOST`, or "" for all of `target` (without the attribute, too).

    It is a key, or the text of a target, with or without the device's `target_key` and `operators`.
    Raises UserError of an invalid text, and of one without a key that several devices have;
    UnsupportedError for one that names none of these.
    """
    if text is None:
        return ""
    devices = devices_of(target)
    if text in devices or (devices and text == HOST):
        return text
    try:
        named_target = Target(text)
    except UserError as error:
        hint = nearest(text, (HOST, *devices)) if devices else ""
        place = f"{function}.attrs.target"
        raise UserError(
            error.message, code=error.code, where=place, hint=hint or error.hint
        ) from None
    if with_host(named_target) == target:
        return ""
    equal = [key for key, device in devices.items() if _is_device(named_target, key, device)]
    if len(equal) == 1:
        return equal[0]
    if len(equal) > 1:
        raise UserError(
            f"several devices are {text}: {', '.join(equal)}",
            code="unknown-device",
            where=f"{function}.attrs.target",
            hint="the key of one of them",
        )
    if not named_target.target_key and named_target == cpu_target(target):
        return HOST if devices else ""
    raise UnsupportedError(
        f"its target is {text}, and the module is compiled for {target}",
        where=function,
        hint=f"a device by its key: {', '.join(devices)}"
        if devices
        else "compile it for its target, in a module of its own",
    )


def _is_device(candidate: Target, key: str, device: Target) -> bool:
    """Whether a target's text describes this device. If the text has a key, it must be the
    device's; hosts are not compared, since in a composite the host is not part of its devices."""
    if candidate.target_key not in ("", key) or candidate.operators not in ((), device.operators):
        return False
    return _plain(candidate) == _plain(device)


def _plain(device: Target) -> Target:
    """The device as a target of its own, without what only a composite gives it."""
    return device.replace(target_key=None, operators=None, host=None)


def target_in(target: Target, attrs: Mapping[str, object]) -> Target:
    """The target for which a function with these attributes is scheduled. In a composite, that is
    the device whose key is the attribute `target`, else the host's CPU; otherwise `target` itself.
    A device whose kind generates code by a hook, without schedules of the compiler's, is scheduled
    as the host is."""
    devices = devices_of(target)
    if not devices:
        return target
    device = devices.get(str(attrs.get("target", "")))
    return device if device is not None and _has_schedules(device) else cpu_target(target)


def schedule_target(target: Target) -> Target:
    """The target that kernels are scheduled for: a composite, of whose devices each has its own,
    else the target's CPU."""
    return with_host(target) if devices_of(target) else cpu_target(target)


def _has_schedules(device: Target) -> bool:
    return KINDS[device.kind].is_cpu or KINDS[device.kind].is_accelerator


def becomes_c(target: Target, attrs: Mapping[str, object]) -> bool:
    """Whether a kernel with these attributes is generated as C source: its CPU has kind `c`."""
    kernel_target = target_in(target, attrs)
    return (kernel_target if KINDS[kernel_target.kind].is_cpu else cpu_target(target)).kind == "c"


def device_key(target: Target, attrs: Mapping[str, object]) -> str:
    """The attribute `target` if it is the key of a device of a composite, else ""."""
    key = str(attrs.get("target", ""))
    return key if key and key in devices_of(target) else ""


def accelerators(target: Target) -> tuple[str, ...]:
    """The keys of the devices with memory of their own, in order."""
    devices = devices_of(target).items()
    return tuple(key for key, device in devices if KINDS[device.kind].is_accelerator)


__all__ = [
    "HOST",
    "accelerators",
    "becomes_c",
    "device_key",
    "device_named",
    "devices_of",
    "schedule_target",
    "target_in",
]
