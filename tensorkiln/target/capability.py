"""What GPUs of NVIDIA can do, by compute capability."""

from __future__ import annotations

from tensorkiln.target.gpus import capability_of
from tensorkiln.target.target import Target


def archs_of(target: Target) -> tuple[str, ...]:
    """The architectures that code is made for, the target's own first."""
    also = target["also"]
    return (target.arch, *(map(str, also) if isinstance(also, tuple) else ()))


def least_capability(target: Target) -> int:
    """The least compute capability of a target's architectures, 80 for 8.0: all code runs there."""
    return min(map(capability_of, archs_of(target)))


def most_shared(target: Target) -> int:
    """The bytes that a block may share, on GPUs of NVIDIA those for a kernel that asks."""
    key = "max_shared_memory_per_block"
    found = target[f"{key}_optin" if target.kind == "cuda" else key]
    assert isinstance(found, int)
    return found


__all__ = ["archs_of", "capability_of", "least_capability", "most_shared"]
