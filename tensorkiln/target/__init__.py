"""What to compile for: `Target`, its kinds and options, and the features of processors."""

from tensorkiln.target.annotated import annotated_target
from tensorkiln.target.devices import (
    HOST,
    accelerators,
    becomes_c,
    device_key,
    device_named,
    devices_of,
    schedule_target,
    target_in,
)
from tensorkiln.target.memory import MemoryPool
from tensorkiln.target.options import Option
from tensorkiln.target.registry import (
    cpu_target,
    hooks_of,
    register_target_kind,
    require_codegen,
    required_features,
    runnable_level,
    runs_kernels,
    target_of_kernels,
    unregister_target_kind,
    with_host,
)
from tensorkiln.target.target import Target

__all__ = [
    "HOST",
    "MemoryPool",
    "Option",
    "Target",
    "accelerators",
    "annotated_target",
    "becomes_c",
    "cpu_target",
    "device_key",
    "device_named",
    "devices_of",
    "hooks_of",
    "register_target_kind",
    "require_codegen",
    "required_features",
    "runnable_level",
    "runs_kernels",
    "schedule_target",
    "target_in",
    "target_of_kernels",
    "unregister_target_kind",
    "with_host",
]
