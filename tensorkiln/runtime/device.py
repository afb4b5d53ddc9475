"""Devices: where tensors live and functions run."""

from __future__ import annotations

from dataclasses import dataclass

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
    return Device("cpu", index, CPU)
