"""How many blocks of a kernel a multiprocessor of a GPU of NVIDIA holds at once.

Figures are those of the CUDA C++ Programming Guide, "Technical Specifications per Compute
Capability", and how registers and shared memory are given out follows the occupancy calculator of
CUDA's toolkit: registers to warps in units of 256, each warp in one of four parts of the
multiprocessor; shared memory to blocks in units of 128 bytes, of which 1 KiB is the system's (on
7.5: 256 and none).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorkiln.base.errors import UserError
from tensorkiln.target.gpus import CUDA_ARCHS

WARP = 32
_REGISTERS = 64 << 10  # of a multiprocessor, and the most of a block
_MOST_REGISTERS = 255  # of a thread
_REGISTER_UNIT = 256
_PARTS = 4


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What a multiprocessor holds at once: warps, blocks, KiB of shared memory, and barriers, as
    many for each of its blocks; 0 where they are enough for any."""

    warps: int
    blocks: int
    shared_kib: int
    barriers: int = 0


# By compute capability.
MULTIPROCESSORS = {
    75: Multiprocessor(32, 16, 64),
    80: Multiprocessor(64, 32, 164),
    86: Multiprocessor(48, 16, 100),
    87: Multiprocessor(48, 16, 164),
    89: Multiprocessor(48, 24, 100),
    90: Multiprocessor(64, 32, 228, 2),
    100: Multiprocessor(64, 32, 228, 2),
    103: Multiprocessor(64, 32, 228, 1),
    110: Multiprocessor(48, 24, 228, 1),
    120: Multiprocessor(48, 24, 100, 1),
    121: Multiprocessor(48, 24, 100, 1),
}


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Blocks that a multiprocessor holds at once, their warps, the share of all warps that it could
    hold, and what there is too little of for more: "threads", "blocks", "registers", "shared
    memory" or "barriers"."""

    blocks: int
    warps: int
    share: float
    limit: str


def occupancy(
    arch: str, threads: int, registers: int, shared_bytes: int, barriers: int = 1
) -> Occupancy:
    """The occupancy of a kernel: `threads` of a block, `registers` of a thread, bytes of shared
    memory of a block. No block at all fits one that asks for more than there is. Raises UserError
    (code `no-occupancy`) for an architecture without figures."""
    sm = MULTIPROCESSORS.get(_number(arch))
    if sm is None:
        raise UserError(
            f"nothing is known of the multiprocessors of {arch}",
            code="no-occupancy",
            where="arch",
            hint=f"known: {', '.join(f'sm_{n}' for n in MULTIPROCESSORS)}",
        )
    warps = max(1, -(-threads // WARP))
    limits = {
        "threads": sm.warps // warps,
        "blocks": sm.blocks,
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared(arch, sm, shared_bytes),
    }
    if sm.barriers and barriers:
        limits["barriers"] = sm.blocks * sm.barriers // barriers
    limit = min(limits, key=lambda name: limits[name])
    blocks = limits[limit]
    return Occupancy(blocks, blocks * warps, blocks * warps / sm.warps, limit)


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af")) if arch in CUDA_ARCHS else 0


def _by_registers(warps: int, registers: int) -> int:
    of_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    if registers > _MOST_REGISTERS or of_warp * -(-warps // _PARTS) * _PARTS > _REGISTERS:
        return 0
    resident_warps = _PARTS * (_REGISTERS // _PARTS // max(1, of_warp))
    return resident_warps // warps


def _by_shared(arch: str, sm: Multiprocessor, shared_bytes: int) -> int:
    unit, of_system = (256, 0) if _number(arch) < 80 else (128, 1 << 10)
    if shared_bytes > CUDA_ARCHS[arch] << 10:
        return 0
    block_bytes = -(-(shared_bytes + of_system) // unit) * unit
    return (sm.shared_kib << 10) // max(1, block_bytes)
