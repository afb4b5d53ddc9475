"""Devices: where tensors live and functions run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.base.errors import UserError
from tensorkiln.runtime.actual_types import is_a, shown
from tensorkiln.runtime.failures import ArgumentTypeError

CPU = 1  # kDLCPU of DLPack


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its kind (`"cpu"`), its index, and DLPack's number of the kind."""

    kind: str
    index: int = 0
    dlpack_type: int = CPU

    def __str__(self) -> str:
        """`cpu:0`."""
        return f"{self.kind}:{self.index}"


def cpu(index: int = 0) -> Device:
    """The host processor. Raises ArgumentTypeError unless `index` is an int from 0 to 2^31 - 1."""
    if not is_a(index, int) or is_a(index, bool) or not 0 <= index < 1 << 31:
        raise ArgumentTypeError(
            f"tk.cpu({shown(index)}): expected an integer from 0 to 2147483647", code="device"
        )
    return Device("cpu", index, CPU)


def device_list(devices: Device | Sequence[Device] | None) -> tuple[Device, ...]:
    """Devices as a tuple; None is the CPU. Raises ArgumentTypeError for what is not a Device, or a
    list or tuple of them, and UserError for an empty one."""
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
        raise UserError(
            "expected at least one device, received none", code="device", hint="tk.cpu()"
        )
    return found
