"""Which products of narrow numbers one instruction of a CPU computes; `target/rates.py` says how
fast.

An instruction for pairs of bfloat16 leaves the order of its two additions, and what becomes of
denormals, to the processor. So these results may differ in the last bits between processors.
"""

from __future__ import annotations

from tensorkiln.target.target import Target


def multiplies_pairs(target: Target, dtype: str, bits: int = 0) -> bool:
    """Whether a CPU has an instruction that adds two products of `dtype` (bfloat16) to each float32
    of a vector of `bits`; 0 is the widest that kernels use."""
    if target.kind not in ("llvm", "llvmjit", "c") or dtype != "bfloat16":
        return False
    bits = bits or 32 * target.vector_lanes("float32")
    if target.arch == "x86_64" and target.has("avx512bf16"):
        return bits == 512 or (bits in (128, 256) and target.has("avx512vl"))
    return target.arch == "aarch64" and bits == 128 and target.has("bf16")


# Type of the right factor -> the feature with the product of two tiles, which implies amx-tile.
_OF_TILES = {"bfloat16": "amx-bf16", "int8": "amx-int8"}


def has_tiles(target: Target) -> bool:
    """Whether a CPU has tiles (ir/tiles.py) that code for it uses."""
    kind = target.kind in ("llvm", "llvmjit")
    return kind and target.arch == "x86_64" and target.has("amx-tile")


def multiplies_tiles(target: Target, dtype: str) -> bool:
    """Whether a CPU has an instruction that multiplies two tiles: of bfloat16, into float32, or of
    uint8 by int8 (`dtype`, of the right factor), into int32."""
    return has_tiles(target) and dtype in _OF_TILES and target.has(_OF_TILES[dtype])


__all__ = ["has_tiles", "multiplies_pairs", "multiplies_tiles"]
