"""The argument `fallback`: devices to use instead of those that are not available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorkiln.artifact.metadata import DeviceInfo
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.text import listed
from tensorkiln.runtime.actual_types import is_a
from tensorkiln.runtime.device import Device, Devices, device_list
from tensorkiln.runtime.device_drivers import driver_of
from tensorkiln.runtime.failures import DeviceError

# By number in compiled code: the device that runs its code, then those in its place.
Candidates = Mapping[int, Sequence[Device]]
# What keeps a device from being had. Code that does not compile is a fault, which others hide.
_LACKING = ("no-driver", "no-device", "device-capability")


def candidates(
    rows: Sequence[DeviceInfo], devices: Sequence[Device], fallback: Devices, label: str
) -> dict[int, tuple[Device, ...]]:
    """The devices to try for each row of a library's table that has a number, in order: that of
    `devices`, then those of its kind in `fallback`, or of its target key in a mapping.

    Raises ArgumentTypeError for what is not a device, and UserError (code `device`) for an unknown
    key and for a device that the library has no code for.
    """
    table = [(r, d) for r, d in zip(rows, devices, strict=False) if r.number]
    by_key = is_a(fallback, dict) or isinstance(fallback, Mapping)
    keys = [r.target_key for r, _ in table]
    devices_of_key: Mapping[str, Sequence[Device]] = {}
    if by_key:
        named: Any = fallback
        for key in named:
            if key not in keys:
                raise UserError(
                    f"fallback: {label} has no device of target key {key!r}",
                    code="device",
                    hint=nearest(str(key), keys) or f"it has {listed(map(repr, keys)) or 'none'}",
                )
        devices_of_key = {key: _listed(named[key], label) for key in named}
    elif fallback is not None:
        devices_of_key = dict.fromkeys(keys, _listed(fallback, label))
    devices_of_number = {}
    for row, device in table:
        choices = devices_of_key.get(row.target_key, ())
        wrong = next((d for d in choices if by_key and d.kind != row.kind), None)
        if wrong is not None:
            raise _no_code(wrong, label)
        devices_of_number[row.number] = (device, *(d for d in choices if d.kind == row.kind))
    kinds = {row.kind for row, _ in table}
    for device in (d for choices in devices_of_key.values() for d in choices):
        if device.kind not in kinds:
            raise _no_code(device, label)
    if fallback is not None and not table:
        raise UserError(f"fallback: {label} has code for the host alone", code="device")
    return devices_of_number


def _listed(fallback: Any, label: str) -> tuple[Device, ...]:
    if is_a(fallback, str) and fallback == "host":
        raise _no_code(Device("cpu"), label)
    return device_list(fallback)


def _no_code(device: Device, label: str) -> UserError:
    return UserError(
        f"fallback: {label} has no code for {device} in the place of a device",
        code="device",
        hint="compile the model for it, too, and load that library on DeviceError",
    )


def open_first(library: Any, executor: Any, devices: Candidates) -> dict[int, Device]:
    """Choose and open the devices, by number, that run code of an executor of a library; None: of
    all calls without one. Of those for a number it is the first that can be had. They share our
    contexts with tensors. Raises DeviceError (codes `no-driver`, `no-device`, `device-capability`,
    `device-memory`, `device-build`)."""
    return {
        number: _open(library, executor, number, choices) for number, choices in devices.items()
    }


def _open(library: Any, executor: Any, number: int, choices: Sequence[Device]) -> Device:
    errors = []
    for device in choices:
        try:
            context = driver_of(device).context_of(device.index).handle or None
            choose = library.dll.kiln_executor_set_device
            library.check(choose(executor, number, device.index, context))
            return device
        except DeviceError as error:
            if error.code not in _LACKING:
                raise
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    message = "; in its place, ".join(error.message for error in errors)
    raise DeviceError(message, code=errors[0].code, hint=errors[0].hint) from errors[-1]


__all__ = ["Candidates", "candidates", "open_first"]
