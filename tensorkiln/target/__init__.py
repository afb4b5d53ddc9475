"""What to compile for: `Target`, its kinds and options, and what is known about processors."""

from tensorkiln.target.options import Option
from tensorkiln.target.registry import (
    register_target_kind,
    require_codegen,
    unregister_target_kind,
)
from tensorkiln.target.target import Target

__all__ = [
    "Option",
    "Target",
    "register_target_kind",
    "require_codegen",
    "unregister_target_kind",
]
