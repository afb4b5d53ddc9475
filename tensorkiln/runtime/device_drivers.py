"""The driver of each kind of device that has memory of its own."""

from __future__ import annotations

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.runtime.cuda_memory import CUDA_DRIVER
from tensorkiln.runtime.device import Device
from tensorkiln.runtime.device_memory import Driver
from tensorkiln.runtime.opencl_memory import OPENCL_DRIVER

_DRIVERS: dict[str, Driver] = {driver.kind: driver for driver in (CUDA_DRIVER, OPENCL_DRIVER)}


def driver_of(device: Device) -> Driver:
    """The driver of a device's kind, which is not opened by that. Raises UnsupportedError for the
    host."""
    if device.kind not in _DRIVERS:
        raise UnsupportedError(f"{device} has no memory of its own", hint="tk.opencl(0)")
    return _DRIVERS[device.kind]
