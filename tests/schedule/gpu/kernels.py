"""A kernel of each class that devices have, in the forms that its schedule tells apart."""

from __future__ import annotations

from functools import cache

from tensorkiln.kernels.folders import cases
from tensorkiln.schedule.group import Group
from tensorkiln.target import Target
from tests.schedule.gpu.runner import OPENCL, groups_for

# Of all devices; others have options of NVIDIA's.
KERNELS = {
    name: case for name, case in cases("GPU_CASES").items() if not case.options and not case.kernel
}
# Limits of other devices: smaller blocks, less shared memory.
TARGETS = {
    "opencl": OPENCL,
    "small": Target({"kind": "opencl", "max_num_threads": 64, "max_shared_memory_per_block": 4096}),
    "cuda": Target("cuda"),
    "tensor cores": Target({"kind": "cuda", "arch": "sm_80", "matmul_precision": "tf32"}),
    "copies ahead": Target({"kind": "cuda", "arch": "sm_80"}),
}


@cache
def group_of(name: str, target: str = "opencl") -> Group:
    """The last group of a graph of the table."""
    *_, group = groups_for(KERNELS[name].module(), TARGETS[target])
    return group
