"""Every family of device kernels: each step of its schedule proved, its device functions free of
races, and its rows in the order in which they are meant."""

from __future__ import annotations

from operator import itemgetter

import pytest

from tensorkiln.kernels import families
from tensorkiln.kernels.family import GPUS
from tensorkiln.kernels.folders import built_in_families
from tensorkiln.schedule.choose import schedule_group, trace_of
from tensorkiln.target import Target
from tensorkiln.transform.tir.check_races import races_of
from tests.rotation import rows_in_turn
from tests.schedule.gpu.kernels import KERNELS, TARGETS, group_of
from tests.schedule.gpu.runner import OPENCL, Kernels

# Limits of a device change tiles and blocks: one kernel of each class for the others.
FIRST = {case.op_class: name for name, case in reversed(KERNELS.items())}
PROVED = [("opencl", name) for name in KERNELS]
ALONE = "tensor cores"  # differs in one class from another target
PROVED += [
    (target, name)
    for target in TARGETS
    for op_class, name in FIRST.items()
    if target not in ("opencl", "copies ahead", ALONE)
    or (target == ALONE and op_class == "gpu_contraction")
]
PROVED += [("copies ahead", name) for name in ("linear", "linear_symbolic", "matmul", "conv2d")]
# Of halves alone, whose kernels tests/cuda/test_attention.py, tests/cuda/test_wgmma.py and
# tests/cuda/test_attention_warpgroups.py prove.
HALVES = {"gpu_attention_tensor_cores", "gpu_attention_wgmma", "gpu_wgmma"}
# The class of kernels that a target has in the place of another; tests/cuda/test_tensor_cores.py
# has those of other types.
INSTEAD = {("tensor cores", "gpu_contraction"): "gpu_tensor_cores"}

# Data decides which elements are accessed; the emulator of tests/cuda/ looks at each access.
COMPUTED = ("gpu_scalar", "bounds")


def class_of(target: str, name: str) -> str:
    op_class = KERNELS[name].op_class
    return INSTEAD.get((target, op_class), op_class)


@pytest.mark.parametrize(("target", "name"), rows_in_turn(PROVED, family=itemgetter(1)))
def test_every_step_is_proved_and_no_thread_races(target: str, name: str) -> None:
    group = group_of(name, target)
    f = schedule_group(group, TARGETS[target], check=True)
    assert f.op_class == class_of(target, name)
    kernels = Kernels([f], TARGETS[target])
    for launch in kernels.launches(f.name):
        races = races_of(kernels.checked(launch.name), notes=f.op_class == "gpu_contraction")
        assert not races.faults, races.faults[0]
        doubts = [d for d in races.doubts if (f.op_class, d.kind) != COMPUTED]
        assert not doubts, doubts
        assert not [n for n in races.notes if n.kind == "bank conflict"], races.notes


def test_every_family_has_a_kernel_here() -> None:
    classes = {class_of(target, name) for target, name in PROVED}
    # Transposed convolutions are other operators here.
    rows = {f.op_class for f in built_in_families() if set(f.devices) & set(GPUS)}
    assert rows - {"conv2d_transposed"} == classes | HALVES


@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_devices_have_rows_and_cpus_keep_theirs(kind: str) -> None:
    rows = families(Target(kind)).all
    assert rows == tuple(f for f in built_in_families() if kind in f.devices)
    assert not set(families(Target("llvm")).all) & set(rows)


@pytest.mark.parametrize("name", ["sum_rows", "softmax", "conv2d", "depthwise", "attention"])
def test_a_trace_makes_the_schedule_again(name: str) -> None:
    assert trace_of(group_of(name), OPENCL).count("bind(") > 1
