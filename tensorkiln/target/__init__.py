"""What to compile for: `Target`, its kinds and options, and the features of processors."""

from tensorkiln.target.options import Option
from tensorkiln.target.registry import (
    cpu_target,
    hooks_of,
    register_target_kind,
    require_codegen,
    unregister_target_kind,
    with_host,
)
from tensorkiln.target.target import Target

__all__ = [
    "Option",
    "Target",
    "cpu_target",
    "hooks_of",
    "register_target_kind",
    "require_codegen",
    "unregister_target_kind",
    "with_host",
]
