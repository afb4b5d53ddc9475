"""Which dot products of narrow numbers one instruction of a CPU computes."""

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


__all__ = ["multiplies_pairs"]
