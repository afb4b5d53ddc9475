"""What shipped tags say of machines holds together: limits of architectures, plausible caches, and
one processor's numbers wherever it is sold. The latest version of each tag."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import Target
from tensorkiln.target.gpus import CUDA_ARCHS
from tensorkiln.target.tags import TAGS

KiB, MiB = 1 << 10, 1 << 20
LATEST = {tag.name: Target(tag.name) for tag in TAGS.all()}

# NVIDIA's CUDA guide, "maximum amount of shared memory per thread block", KiB by capability.
SHARED = {
    "5.0": 48,
    "5.2": 48,
    "5.3": 48,
    "6.0": 48,
    "6.1": 48,
    "6.2": 48,
    "7.0": 96,
    "7.2": 96,
    "7.5": 64,
    "8.0": 163,
    "8.6": 99,
    "8.7": 163,
    "8.9": 99,
    "9.0": 227,
    "10.0": 227,
    "10.3": 227,
    "11.0": 227,
    "12.0": 99,
    "12.1": 99,
}
# Second-level caches, MiB: of one chip the same wherever it is sold. H200 and Grace Hopper have all
# six memory stacks' share of it, H100 five.
GPU_CACHES = {
    "nvidia/a100": 40,
    "nvidia/a30": 24,
    "nvidia/a10": 6,
    "nvidia/rtx3090": 6,
    "nvidia/rtx-a6000": 6,
    "nvidia/l4": 48,
    "nvidia/rtx4090": 72,
    "nvidia/rtx4080": 64,
    "nvidia/rtx-6000-ada": 96,
    "nvidia/h100": 50,
    "nvidia/h200": 60,
    "nvidia/gh200": 60,
    "nvidia/rtx5090": 96,
    "aws/p4d.24xlarge": 40,
    "aws/g5.xlarge": 6,
    "aws/g6.xlarge": 48,
    "gcp/g2-standard-4": 48,
    "gcp/a2-highgpu-1g": 40,
    "azure/standard_nc24ads_a100_v4": 40,
    "azure/standard_nv36ads_a10_v5": 6,
    "aws/p5.48xlarge": 50,
    "gcp/a3-highgpu-8g": 50,
    "azure/standard_nc40ads_h100_v5": 50,
}
# Caches of one core, KiB: (first level, second level); clusters share theirs in SoCs.
CORES = {
    "haswell": (32, 256),
    "broadwell": (32, 256),
    "skylake": (32, 256),
    "skylake-avx512": (32, 1024),
    "cascadelake": (32, 1024),
    "icelake-server": (48, 1280),
    "icelake-client": (48, 512),
    "tigerlake": (48, 1280),
    "sapphirerapids": (48, 2048),
    "emeraldrapids": (48, 2048),
    "graniterapids": (48, 2048),
    "alderlake": (48, 1280),
    "znver1": (32, 512),
    "znver2": (32, 512),
    "znver3": (32, 512),
    "znver4": (32, 1024),
    "znver5": (48, 1024),
    "neoverse-n1": (64, 1024),
    "neoverse-v1": (64, 1024),
    "neoverse-v2": (64, 2048),
    "grace": (64, 1024),
    "cobalt-100": (64, 1024),
}
# Four cores of a cluster share two MiB in the first Graviton, one in smaller chips.
CLUSTERS = {
    "aws/a1.xlarge": 2048,
    "raspberrypi/4b": 1024,
    "raspberrypi/3b": 512,
    "nvidia/tx2-cpu": 2048,
    "nvidia/jetson-nano-cpu": 2048,
}


def processors() -> Iterator[tuple[str, Target]]:
    """Every CPU of a tag, itself or its host."""
    for name, target in LATEST.items():
        for cpu_target in (target, target.host):
            if cpu_target is not None and "mcpu" in cpu_target.attrs:
                yield name, cpu_target


def test_both_limits_of_shared_memory_are_those_of_the_architecture() -> None:
    limits = {f"sm_{name.replace('.', '')}": kib for name, kib in SHARED.items()}
    assert limits == {arch: kib for arch, kib in CUDA_ARCHS.items() if not arch.endswith("a")}
    assert all(kib == limits[arch.rstrip("a")] for arch, kib in CUDA_ARCHS.items())
    cuda_targets = {name: t for name, t in LATEST.items() if t.kind == "cuda"}
    assert len(cuda_targets) > 40
    for name, target in cuda_targets.items():
        assert target["max_shared_memory_per_block"] == 48 * KiB, name
        shared_limit = target["max_shared_memory_per_block_optin"]
        assert shared_limit == limits[target.arch.rstrip("a")] * KiB, name
        assert target["max_num_threads"] == 1024 and target["thread_warp_size"] == 32, name
        assert "max_shared_memory_per_block_optin" not in target.to_json()


@pytest.mark.parametrize("arch", CUDA_ARCHS)
def test_more_shared_memory_than_there_is(arch: str) -> None:
    shared_limit = CUDA_ARCHS[arch] * KiB
    cuda = {"kind": "cuda", "arch": arch}
    with pytest.raises(UserError, match="does not ask for more") as caught:
        Target({**cuda, "max_shared_memory_per_block": 48 * KiB + 1})
    assert caught.value.hint == f"max_shared_memory_per_block_optin is {shared_limit} for {arch}"
    for wrong in (shared_limit + 1, 48 * KiB - 1):
        with pytest.raises(UserError, match=f"{arch} has 49152 to {shared_limit} bytes"):
            Target({**cuda, "max_shared_memory_per_block_optin": wrong})
    explicit = Target({**cuda, "max_shared_memory_per_block_optin": shared_limit})
    assert explicit["max_shared_memory_per_block_optin"] == shared_limit
    assert explicit != Target(cuda) and "max_shared_memory_per_block_optin" in explicit.to_json()


def test_caches_of_gpus() -> None:
    have = {name: t["l2_bytes"] for name, t in LATEST.items() if t.kind == "cuda" and t["l2_bytes"]}
    assert have == {name: mib * MiB for name, mib in GPU_CACHES.items()}


def test_caches_of_cores() -> None:
    cpus = set()
    for name, target in processors():
        if target.mcpu in CORES:
            cache_sizes = (target.l1d_bytes // KiB, target.l2_bytes // KiB)
            assert cache_sizes == CORES[target.mcpu], name
            cpus.add(target.mcpu)
    assert cpus == set(CORES)
    for name, kib in CLUSTERS.items():
        assert LATEST[name].l2_bytes == kib * KiB, name


def test_caches_are_plausible_and_those_of_the_core_everywhere() -> None:
    first = defaultdict(set)
    for name, target in processors():
        assert 8 * KiB <= target.l1d_bytes <= 192 * KiB, name
        assert 128 * KiB <= target.l2_bytes <= 16 * MiB, name
        assert target.l1d_bytes < target.l2_bytes and target.l2_bytes % (64 * KiB) == 0, name
        if not target.mcpu.startswith("generic"):
            first[target.mcpu].add(target.l1d_bytes)
    assert {cpu for cpu, sizes in first.items() if len(sizes) > 1} == set()


def test_mistakes_that_were_mended_keep_their_version() -> None:
    mended = {"nvidia/h200": (50, 60), "nvidia/gh200": (50, 60), "aws/a1.xlarge": (1, 2)}
    for name, (old, new) in mended.items():
        assert Target(f"{name}:1")["l2_bytes"] == old * MiB
        assert Target(f"{name}:2")["l2_bytes"] == Target(name)["l2_bytes"] == new * MiB


def test_chips_of_hopper_have_their_own_instructions() -> None:
    """In versions of their own: a library for sm_90 runs on later chips too."""
    hopper = {name: t for name, t in LATEST.items() if "hopper" in t.keys}
    assert {"nvidia/h100", "nvidia/h200", "nvidia/gh200", "aws/p5.48xlarge"} <= set(hopper)
    assert {t.arch for t in hopper.values()} == {"sm_90a"}
    assert {Target(f"{name}:1").arch for name in hopper} == {"sm_90"}
