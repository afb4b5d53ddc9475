"""A small model of each class of kernels of each device, in which the class computes something."""

from __future__ import annotations

from tensorkiln.kernels import folders
from tensorkiln.kernels.case import Case
from tensorkiln.kernels.folders import built_in_families

# WGSL is compiled, but no program of Python runs it: tests/wgsl has pages that do.
ONLY_IN_TILES = {"conv2d_tiles"}  # C has none
RUN_HERE = ("cpu", "opencl", "cuda")


def cases() -> dict[tuple[str, str], Case]:
    """By device and class of kernels, the first case of the class; others are missing."""
    first: dict[tuple[str, str], Case] = {}
    for device, op_class in families():
        table = folders.cases("CASES" if device == "cpu" else "GPU_CASES")
        for case in table.values():
            if case.op_class == op_class:
                first.setdefault((device, op_class), case)
    return first


def families() -> list[tuple[str, str]]:
    """The devices that run here, and the classes of kernels that they have."""
    pairs = (
        (d, f.op_class) for f in built_in_families() for d in sorted(f.devices) if d in RUN_HERE
    )
    return list(dict.fromkeys(pairs))
