"""What innermost loops hold, and that registers suffice for the main ones on every level."""

from __future__ import annotations

import pytest

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.kernels.case import Build, rand
from tensorkiln.measure.inner_loops import InnerLoop, inner_loops, inner_loops_of, read_inner_loops
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.target import Target
from tests.codegen.kernels import TARGETS
from tests.transform.graphs import graph

LEVELS = {
    "sse4.2": Target({"kind": "llvm", "mcpu": "x86-64-v2"}),
    "avx2": Target({"kind": "llvm", "mcpu": "x86-64-v3"}),
    "avx512": Target({"kind": "llvm", "mcpu": "x86-64-v4"}),
    "neon": TARGETS["neon"],
    "dotprod": TARGETS["dotprod"],
}

X86 = """
f:                                      # @f
\t.cfi_startproc
# %bb.0:
\tvmovaps\t%ymm3, 32(%rsp)            # 32-byte Spill
.LBB0_1:                                # =>This Loop Header: Depth=1
                                        #     Child Loop BB0_2 Depth 2
\tvxorps\t%xmm0, %xmm0, %xmm0
.LBB0_2:                                #   Parent Loop BB0_1 Depth=1
                                        # =>  This Inner Loop Header: Depth=2
\tvbroadcastss\t(%rdi,%rax,4), %ymm1
\tvfmadd231ps\t(%rsi), %ymm1, %ymm0
\tvmulps\t32(%rsp), %ymm0, %ymm2     # 32-byte Folded Reload
\tvmovups\t%ymm2, (%rdx,%rax)
\tprefetcht0\t(%rdi)
\tleaq\t(%rdi,%rdi), %rdi
# %bb.3:                                #   in Loop: Header=BB0_2 Depth=2
\tvmovaps\t%ymm1, 64(%rsp)           # 32-byte Spill
\tjne\t.LBB0_2
# %bb.4:                                #   in Loop: Header=BB0_1 Depth=1
\tjne\t.LBB0_1
# %bb.5:
\tretq
g.body0:                                // @g.body0
.LBB1_1:                                // =>This Inner Loop Header: Depth=1
\tldp\tq0, q1, [x0]
\tfmla\tv2.4s, v0.4s, v1.s[2]
\tst1\t{ v2.4s }, [x1]
\tb.ne\t.LBB1_1
"""


def test_annotated_assembly() -> None:
    loops = read_inner_loops(X86, "x86_64")
    assert [(x.function, x.label) for x in loops] == [("f", "BB0_2"), ("g.body0", "BB1_1")]
    assert loops[0] == InnerLoop("f", "BB0_2", 2, 8, 1, 3, 2, 1, 1, 1)
    assert loops[0].share == 1 / 8
    arm = read_inner_loops(X86, "aarch64")[1]
    assert arm == InnerLoop("g.body0", "BB1_1", 1, 4, 1, 1, 1, 0, 0, 0)


def test_an_architecture_that_is_not_known() -> None:
    target = Target({"kind": "llvm", "mtriple": "riscv64-unknown-linux-gnu"})
    with pytest.raises(UnsupportedError, match="inner loops of riscv64 are not counted"):
        inner_loops(_lowered(lambda g, x: g.exp(x), (8,), target)[0], target)


def _conv(filters: int, channels: int, size: int, stride: int = 1, groups: int = 1) -> Build:
    attrs = {"padding": (size // 2,) * 4, "strides": (stride, stride), "groups": groups}
    w = rand(filters, channels // groups, size, size)
    return lambda g, x: g.relu(g.conv2d(x, w, rand(filters), **attrs))


def _product(k: int, n: int) -> Build:
    return lambda g, x: g.linear(x, rand(k, n), rand(n))


def _attention(g, x):  # noqa: ANN001, ANN202
    return g.attention(x, x, x, scale=0.125)


# Layers of ResNet-50, MobileNetV2, ConvNeXt and BERT, with the shape of their input.
LAYERS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "conv1_56": (_conv(64, 64, 1), (1, 64, 56, 56)),
    "conv1_56_wide": (_conv(256, 64, 1), (1, 64, 56, 56)),
    "conv1_28": (_conv(128, 512, 1), (1, 512, 28, 28)),
    "conv1_14": (_conv(256, 1024, 1), (1, 1024, 14, 14)),
    "conv1_7": (_conv(2048, 512, 1), (1, 512, 7, 7)),
    "conv1_stride": (_conv(512, 256, 1, 2), (1, 256, 56, 56)),
    "conv3_56": (_conv(64, 64, 3), (1, 64, 56, 56)),
    "conv3_28": (_conv(128, 128, 3), (1, 128, 28, 28)),
    "conv3_14": (_conv(256, 256, 3), (1, 256, 14, 14)),
    "conv3_7": (_conv(512, 512, 3), (1, 512, 7, 7)),
    "conv3_stride": (_conv(256, 256, 3, 2), (1, 256, 28, 28)),
    "conv3_grouped": (_conv(32, 32, 3, groups=4), (1, 32, 14, 14)),
    "stem7": (_conv(64, 3, 7, 2), (1, 3, 224, 224)),
    "stem3": (_conv(32, 3, 3, 2), (1, 3, 224, 224)),
    "depthwise_112": (_conv(32, 32, 3, groups=32), (1, 32, 112, 112)),
    "depthwise_56_stride": (_conv(144, 144, 3, 2, groups=144), (1, 144, 56, 56)),
    "depthwise_14": (_conv(384, 384, 3, groups=384), (1, 384, 14, 14)),
    "depthwise_7": (_conv(960, 960, 3, groups=960), (1, 960, 7, 7)),
    "depthwise7_56": (_conv(96, 96, 7, groups=96), (1, 96, 56, 56)),
    "product_768": (_product(768, 768), (128, 768)),
    "product_3072": (_product(768, 3072), (128, 768)),
    "product_long": (_product(3072, 768), (197, 3072)),
    "product_odd": (_product(256, 1000), (33, 256)),
    "product_row": (_product(768, 768), (1, 768)),
    "attention_128": (_attention, (1, 12, 128, 64)),
    "attention_197": (_attention, (1, 12, 197, 64)),
}
MAIN = {
    "conv2d_direct",
    "conv2d_depthwise",
    "conv2d_winograd",
    "linear_packed",
    "linear_strassen",
    "attention_fused",
}
# What stays on the stack although fewer outputs at a time would not: 14 sums and 9 weights leave 9
# registers of NEON, and a multiply-add takes none of its operands from memory, but half as many
# outputs cost 7% more instructions each.
NOT_EMBEDDED = {
    (level, name): 4 for level in ("neon", "dotprod") for name in ("depthwise_14", "depthwise_7")
}
# Around the prefetch of the next panel LLVM loads weights so early that one sum of 28 goes to the
# stack and back, 3 times in 192 instructions; without the prefetch none does, and ResNet-50 takes
# 1.25 times as long on a processor whose weights come from memory.
NOT_EMBEDDED |= {("avx512", name): 6 for name in ("conv1_14", "conv3_14", "conv3_stride")}
# A weight of the next tap, in 120 instructions; tiles of four pixels have up to 11 in 158 instead.
NOT_EMBEDDED |= {("sse4.2", "conv3_stride"): 2}
# Multiply-adds among the instructions of the loop that has most of them, at least, in percent.
# Without fused ones each takes two instructions, and a copy more where the result is an operand's.
SHARES = {"sse4.2": 23, "avx2": 43, "avx512": 50, "neon": 47, "dotprod": 47}


def _lowered(build: Build, shape: tuple[int, ...], target: Target) -> tuple[PrimFunc, ...]:
    """The kernels of one layer, as the code generator gets them."""
    mod = graph(build, x=shape)
    for p in (*relax_passes(target), *tir_passes(target)):
        mod = p(mod)
    return mod.prim_funcs


@pytest.mark.parametrize("level", LEVELS)
def test_registers_suffice(level: str) -> None:
    """No layer's main kernel goes to the stack in an innermost loop."""
    target, kernels = LEVELS[level], []
    for name in LAYERS:
        build, shape = LAYERS[name]
        options: list[dict[str, int]] = [{"winograd": 0}]
        options += [{"winograd": 4}] if name.startswith("conv3_") else []
        # Strassen's tiles multiply by broadcasts, never by lanes.
        by_lane = target.multiplies_by_lane
        options += [{"strassen": True}] if name.startswith("product_") and not by_lane else []
        for given in options:
            funcs = _lowered(build, shape, target.replace(**given))
            kernels += [(name, f) for f in funcs if f.op_class in MAIN]
    kinds = MAIN - {"linear_strassen"} if target.multiplies_by_lane else MAIN
    assert {f.op_class for _, f in kernels} == kinds
    assert {name for name, _ in kernels} == set(LAYERS)
    shares, crowded = {}, {}
    counted = inner_loops_of([f for _, f in kernels], target)
    for (name, f), loops in zip(kernels, counted, strict=True):
        hot = [x for x in loops if x.multiply_adds]
        best = max(hot, key=lambda x: (x.multiply_adds, x.share))
        shares[f"{name}: {f.op_class}"] = round(best.share * 100)
        if f.op_class == "attention_fused":  # the constants of exp may come from the stack
            hot = [x for x in hot if x.spills or not x.stores]
        worst = max(x.spills + x.reloads for x in hot)
        if worst > NOT_EMBEDDED.get((level, name), 0):
            crowded[name] = worst
    assert not crowded
    few = {name: share for name, share in shares.items() if share < SHARES[level]}
    assert not few
