"""Which products of narrow numbers one instruction of a CPU computes; `target/rates.py` says how
fast.

An instruction for pairs of bfloat16 leaves the order of its two additions, and what becomes of
denormals, to the processor. So these results may differ in the last bits between processors.
"""

from __future__ import annotations

from tensorkiln.target.target import Target

# Bits of a vector -> alternative sets of features of x86-64 with an instruction for all of it that
# adds four products of bytes, or two of 16 bits, to each int32.
_INTEGER_DOTS = {
    512: ("avx512vnni",),
    256: ("avx512vnni avx512vl", "avxvnni"),
    128: ("avx512vnni avx512vl", "avxvnni"),
}
# Bits of a vector -> the feature of x86-64 with an instruction that sums two products of 16 bits,
# in 32 bits; and that with one that sums two of bytes, in 16 bits, in which it saturates.
_WORD_PAIRS = {512: "avx512bw", 256: "avx2", 128: "sse2"}
_BYTE_PAIRS = {512: "avx512bw", 256: "avx2", 128: "ssse3"}
# The largest magnitude of weights whose products with uint8 two of which never saturate 16 bits:
# 2 * 255 * 64 is less than 2**15. Tools that quantize name it a reduced range, or 7 bits.
SMALL_WEIGHT = 64


def integer_dot(target: Target, bits: int) -> str:
    """The features of x86-64 by which a CPU adds four products of bytes, or two of 16 bits, to
    each int32 of a vector of `bits`; empty without them."""
    choices = _INTEGER_DOTS.get(bits, ()) if target.arch == "x86_64" else ()
    return next((c for c in choices if all(map(target.has, c.split()))), "")


def sums_word_pairs(target: Target, bits: int) -> bool:
    """Whether an x86-64 CPU has an instruction that sums two products of 16 bits in each int32 of a
    vector of `bits`."""
    return target.arch == "x86_64" and bits in _WORD_PAIRS and target.has(_WORD_PAIRS[bits])


def saturates_byte_pairs(target: Target, bits: int = 0) -> bool:
    """Whether the widest sum of products of bytes that an x86-64 CPU has an instruction for is one
    of two, in 16 bits, in which it saturates. Such sums are exact where the int8 factor is at most
    SMALL_WEIGHT in magnitude. `bits` of a vector; 0 is the widest that kernels use."""
    bits = bits or 32 * target.vector_lanes("float32")
    has_pairs = sums_word_pairs(target, bits) and target.has(_BYTE_PAIRS[bits])
    return has_pairs and not integer_dot(target, bits)


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


__all__ = [
    "SMALL_WEIGHT",
    "has_tiles",
    "integer_dot",
    "multiplies_pairs",
    "multiplies_tiles",
    "saturates_byte_pairs",
    "sums_word_pairs",
]
