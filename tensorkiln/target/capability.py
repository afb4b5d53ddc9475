"""What GPUs of NVIDIA can do, by compute capability."""

from __future__ import annotations

from tensorkiln.target.devices import accelerators, devices_of
from tensorkiln.target.gpus import capability_of
from tensorkiln.target.target import Target

# The least compute capability that copies from global to shared memory while threads compute.
ASYNC_COPIES = 80


def archs_of(target: Target) -> tuple[str, ...]:
    """The architectures that code is generated for, the target's own first."""
    also = target["also"]
    return (target.arch, *(map(str, also) if isinstance(also, tuple) else ()))


def least_capability(target: Target) -> int:
    """The least compute capability of a target's architectures, 80 for 8.0: all code runs there."""
    return min(map(capability_of, archs_of(target)))


def most_shared(target: Target) -> int:
    """The bytes of shared memory that a block may use; on NVIDIA GPUs those for a kernel that opts
    in to more."""
    key = "max_shared_memory_per_block"
    limit = target[f"{key}_optin" if target.kind == "cuda" else key]
    assert isinstance(limit, int)
    return limit


def copies_ahead(target: Target) -> bool:
    """Whether a device copies from global to shared memory while its threads compute: cp.async of
    GPUs of NVIDIA from compute capability 8.0 on."""
    return target.kind == "cuda" and least_capability(target) >= ASYNC_COPIES


def multiprocessors(target: Target) -> int | None:
    """The processors of a GPU, each of which runs blocks of its own; None if it is not known."""
    count = target["multiprocessors"] if target.kind == "cuda" else None
    assert count is None or isinstance(count, int)
    return count


def shared_memory(target: Target) -> tuple[tuple[str, int], ...]:
    """The bytes that a block of each device with memory of its own may share, by key."""
    devices = devices_of(target)
    return tuple((key, most_shared(devices[key])) for key in accelerators(target))


def keys_with_copies(target: Target) -> tuple[str, ...]:
    """The keys of the devices with memory of their own that copy to shared memory while they
    compute."""
    devices = devices_of(target)
    return tuple(key for key in accelerators(target) if copies_ahead(devices[key]))


__all__ = [
    "ASYNC_COPIES",
    "archs_of",
    "capability_of",
    "copies_ahead",
    "keys_with_copies",
    "least_capability",
    "most_shared",
    "multiprocessors",
    "shared_memory",
]
