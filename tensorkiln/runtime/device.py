"""Devices: where tensors live and functions run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.runtime.failures import ArgumentTypeError
from tensorkiln.runtime.given import is_a, shown

CPU = 1  # DLPack's number


@dataclass(frozen=True, slots=True)
class Device:
    """A device by kind (`"cpu"`) and index, as DLPack numbers them."""

    kind: str
    index: int = 0
    dlpack_type: int = CPU

    def __str__(self) -> str:
        """`cpu:0`."""
        return f"{self.kind}:{self.index}"


def cpu(index: int = 0) -> Device:
    """The host processor."""
    if not is_a(index, int) or is_a(index, bool) or not 0 <= index < 1 << 31:
        raise ArgumentTypeError(f"tk.cpu({shown(index)}): expected a number from 0", code="device")
    return Device("cpu", index, CPU)


def device_list(devices: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """Devices as a tuple; the CPU when nothing is said. ArgumentTypeError for anything else."""
    if devices is None:
        return (cpu(),)
    given: Any = devices
    found = tuple(given) if is_a(given, list, tuple) else (given,)
    for device in found:
        if not is_a(device, Device):
            raise ArgumentTypeError(
                f"devices are made by tk.cpu(), received {type(device).__name__}", code="device"
            )
    if not found:
        raise UserError("a module needs a device", code="device", hint="tk.cpu()")
    return found
