"""Devices: where tensors live and functions run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorkiln.artifact.metadata import EXT_DEV, DeviceInfo
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.runtime.actual_types import is_a, shown
from tensorkiln.runtime.failures import ArgumentTypeError

CPU = 1  # kDLCPU of DLPack
CUDA = 2  # kDLCUDA
OPENCL = 4  # kDLOpenCL
_DL_EXT_DEV = 12  # kDLExtDev

_MADE_BY = "tk.cpu(), tk.opencl(), tk.cuda() and tk.ext_dev()"


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its kind (`"cpu"`, `"opencl"`, `"cuda"`), its index, and DLPack's number of the
    kind."""

    kind: str
    index: int = 0
    dlpack_type: int = CPU

    def __str__(self) -> str:
        """`cpu:0`."""
        return f"{self.kind}:{self.index}"


# What says which devices run a library: one of them, several, or by target key; None: by default.
Devices = Device | Sequence[Device] | Mapping[str, Device | Sequence[Device]] | None


def cpu(index: int = 0) -> Device:
    """The host processor. Raises ArgumentTypeError unless `index` is an int from 0 to 2^31 - 1."""
    return Device("cpu", _checked(index, "cpu"), CPU)


def opencl(index: int = 0) -> Device:
    """An OpenCL device: the devices of all platforms are counted, one platform after the other.
    Whether there is one is checked where it is used. Raises ArgumentTypeError as `cpu`."""
    return Device("opencl", _checked(index, "opencl"), OPENCL)


def cuda(index: int = 0) -> Device:
    """A CUDA device, as the driver counts them. Whether there is one is checked where it is used.
    Raises ArgumentTypeError as `cpu`."""
    return Device("cuda", _checked(index, "cuda"), CUDA)


def ext_dev(index: int = 0) -> Device:
    """A device of which only a loader knows what it is: an accelerator that a registered kind of
    target describes. What the index means is the loader's affair. Raises ArgumentTypeError as
    `cpu`."""
    return Device(EXT_DEV, _checked(index, EXT_DEV), _DL_EXT_DEV)


_MAKERS = {"cpu": cpu, "opencl": opencl, "cuda": cuda, EXT_DEV: ext_dev}


def example_devices(rows: Sequence[DeviceInfo]) -> str:
    """Devices that run a library, as Python text for a hint: `tk.cuda(0)`."""
    kinds = [row.kind for row in rows if row.number]
    examples = [f"tk.{kind}({kinds[:i].count(kind)})" for i, kind in enumerate(kinds)]
    return f"[{', '.join(examples)}]" if len(examples) > 1 else "".join(examples) or "tk.cpu()"


def _checked(index: object, kind: str) -> int:
    if not isinstance(index, int) or is_a(index, bool) or not 0 <= index < 1 << 31:
        raise ArgumentTypeError(
            f"tk.{kind}({shown(index)}): expected an integer from 0 to 2147483647", code="device"
        )
    return index


def device_list(devices: object) -> tuple[Device, ...]:
    """A device, or a list or tuple of them, as a tuple; None is the CPU. Raises ArgumentTypeError
    for anything else, and UserError for an empty one."""
    if devices is None:
        return (cpu(),)
    argument: Any = devices
    members = tuple(argument) if is_a(argument, list, tuple) else (argument,)
    for device in members:
        if not is_a(device, Device):
            raise ArgumentTypeError(
                f"devices are made by {_MADE_BY}, received {type(device).__name__}", code="device"
            )
    if not members:
        raise UserError(
            "expected at least one device, received none", code="device", hint="tk.cpu()"
        )
    return members


# ---- which device runs which code of a library -------------------------------------------------


def assign_devices(rows: Sequence[DeviceInfo], devices: Devices, label: str) -> tuple[Device, ...]:
    """The device that runs each row of a library's table of devices, in that order.

    Without `devices` that is the first one of the row's kind. A list has a device for each row:
    each row gets the next one of its kind. A mapping names rows by target key, and those that it
    leaves out have the default. Rows for the host, and for devices whose code a loader runs, need
    not be named in either. An empty table stands for the host.

    Raises ArgumentTypeError for what is not a device, and UserError (code
    `device`) for an unknown key, a row without a device, and a device without a row; `label` names
    the library.
    """
    table = tuple(rows) or (DeviceInfo("", "cpu", 0),)
    if devices is None:
        return tuple(_first(row, label) for row in table)
    if is_a(devices, dict) or isinstance(devices, Mapping):
        return _by_key(table, devices, label)  # type: ignore[arg-type]
    return _in_order(table, device_list(devices), label)


def _first(row: DeviceInfo, label: str) -> Device:
    if row.kind not in _MAKERS:
        raise UnsupportedError(f"{label} has code for {_named(row)}, of which there are none yet")
    return _MAKERS[row.kind](0)


def _named(row: DeviceInfo) -> str:
    return f"{row.kind} (target key {row.target_key!r})" if row.target_key else row.kind


def _table_text(table: Sequence[DeviceInfo]) -> str:
    return ", ".join(map(_named, table))


def _in_order(
    table: Sequence[DeviceInfo], devices: Sequence[Device], label: str
) -> tuple[Device, ...]:
    unused, chosen = list(devices), list[Device]()
    for row in table:
        device = next((d for d in unused if d.kind == row.kind), None)
        if device is not None:
            unused.remove(device)
        elif row.kind in ("cpu", EXT_DEV):
            device = _first(row, label)
        else:
            received = ", ".join(map(str, devices))
            example = f"tk.{row.kind}(0); " if row.kind in _MAKERS else ""
            raise UserError(
                f"{label} needs a device for {_named(row)}, received {received}",
                code="device",
                hint=f"{example}it has code for {_table_text(table)}",
            )
        chosen.append(device)
    if not any(row.kind == "cpu" for row in table) and cpu() in unused:
        unused.remove(cpu())  # any program may name the host
    if unused:
        raise UserError(
            f"{label} has no code for {', '.join(map(str, unused))}",
            code="device",
            hint=f"it has code for {_table_text(table)}",
        )
    return tuple(chosen)


def _by_key(
    table: Sequence[DeviceInfo],
    devices_of_key: Mapping[str, Device | Sequence[Device]],
    label: str,
) -> tuple[Device, ...]:
    keys = list(dict.fromkeys(row.target_key for row in table))
    if not devices_of_key:
        device_list(())
    for key in devices_of_key:
        if not is_a(key, str):
            raise ArgumentTypeError(
                f"devices by target key: expected a string, received {type(key).__name__}",
                code="device",
            )
        if key not in keys:
            key_names = ", ".join(map(repr, keys))
            raise UserError(
                f"{label} has no code of target key {key!r}; it has {key_names}",
                code="device",
                hint=nearest(key, keys),
            )
    unused = {key: list(device_list(devices)) for key, devices in devices_of_key.items()}
    chosen = []
    for row in table:
        if row.target_key not in unused:
            chosen.append(_first(row, label))
            continue
        if not unused[row.target_key]:
            raise UserError(f"{label} needs one more device for {_named(row)}", code="device")
        device = unused[row.target_key].pop(0)
        if device.kind != row.kind:
            raise UserError(
                f"{label} has code of {_named(row)}, which {device} does not run",
                code="device",
                hint=f"tk.{row.kind}(0)",
            )
        chosen.append(device)
    for key, devices in unused.items():
        if devices:
            raise UserError(
                f"{label} has no use for {', '.join(map(str, devices))}: too many devices for "
                f"target key {key!r}",
                code="device",
            )
    return tuple(chosen)
