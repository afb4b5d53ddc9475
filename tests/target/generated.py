"""Random targets as a user may write them: every kind, tags, overrides, hosts, composites."""

from __future__ import annotations

import random
from typing import Any

from tensorkiln.target import Option
from tensorkiln.target.gpus import OWN_WARP, TENSOR_CORES, WGMMA, capability_of
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import KINDS
from tensorkiln.target.tags import TAGS

CPU_KINDS = ("llvm", "llvmjit", "c")


def target(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A valid description; `depth` is how far hosts and composites may nest."""
    choice = rng.random()
    if depth and choice < 0.15:
        return composite(rng, depth)
    if choice < 0.35:
        return tagged(rng)
    kind = rng.choice([name for name in KINDS if name != "composite"])
    spec: dict[str, Any] = {"kind": kind}
    spec |= processor(rng) if kind in CPU_KINDS else gpu(rng, kind)
    if rng.random() < 0.3:
        spec["libs"] = rng.sample(["cudnn", "cublas", "openblas"], rng.randrange(3))
    if rng.random() < 0.2:
        spec["keys"] = rng.sample(["cpu", "gpu", "fast"], rng.randrange(1, 4))
    if depth and rng.random() < 0.3:
        spec[rng.choice(["host", "target_host"])] = target(rng, depth - 1)
    return spec


def composite(rng: random.Random, depth: int) -> dict[str, Any]:
    """Devices with one host, given at either place."""
    devices = [target(rng, 0) for _ in range(rng.randrange(1, 4))]
    plain = [device for device in devices if "tag" not in device]
    spec: dict[str, Any] = {"kind": "composite", rng.choice(["devices", "targets"]): devices}
    tags_have_hosts = len(plain) != len(devices)
    if rng.random() < 0.6 and not tags_have_hosts:
        host = {"kind": "llvm", **processor(rng)}
        for owner in [spec] if rng.random() < 0.5 else rng.sample(plain, 1):
            owner["host"] = host
    if tags_have_hosts:
        spec[next(k for k in ("devices", "targets") if k in spec)] = devices[:1]
    return spec


def tagged(rng: random.Random) -> dict[str, Any]:
    tag = rng.choice(TAGS.all())
    name = rng.choice([tag.name, tag.reference, *tag.aliases])
    spec: dict[str, Any] = {"tag": name}
    if rng.random() < 0.4:
        spec["libs"] = ["openblas"]
    if rng.random() < 0.2 and tag.target["kind"] in CPU_KINDS:
        spec["l2_bytes"] = rng.choice([1 << 18, 1 << 20])
    return spec


def processor(rng: random.Random) -> dict[str, Any]:
    isa = ISAS[rng.choice(sorted(ISAS))]
    base = isa.cpu_features(isa.baseline_cpu)
    free = sorted(set(isa.implied) - base)
    plus = rng.sample(free, min(len(free), rng.randrange(5)))
    minus = set(rng.sample(free, min(len(free), rng.randrange(3)))) - isa.closure(plus)
    flags = [*(f"+{f}" for f in plus), *(f"-{f}" for f in sorted(minus))]
    rng.shuffle(flags)
    spec: dict[str, Any] = {"mtriple": f"{isa.arch}-{system(isa.arch, rng)}"}
    if rng.random() < 0.8:
        spec["mcpu"] = rng.choice(sorted(isa.cpus))
    if flags:
        spec["mattr"] = ",".join(flags) if rng.random() < 0.3 else flags
    for name, low, high in (("l1d_bytes", 10, 30), ("l2_bytes", 12, 32)):
        if rng.random() < 0.3:
            spec[name] = rng.randrange(1 << low, (1 << high) + 1)
    if rng.random() < 0.2:
        spec["memory"] = pools(rng)
    return spec


def pools(rng: random.Random) -> list[dict[str, Any]]:
    """Pools of memory, each field given or not; only the last of RAM may be of any size."""
    count = rng.randrange(1, 4)
    out: list[dict[str, Any]] = [{"name": f"ram{i}"} for i in range(count)]
    for i, pool in enumerate(out):
        if i < count - 1 or rng.random() < 0.5:
            pool["size"] = rng.choice([rng.randrange(1, 1 << 40), f"{rng.randrange(1, 999)}K"])
        if rng.random() < 0.5:
            pool["align"] = rng.choice([8, 16, 32, 64])
    if rng.random() < 0.5:
        out.insert(rng.randrange(count + 1), {"name": "flash", "kind": "flash"})
    return out


def system(arch: str, rng: random.Random) -> str:
    if arch == "wasm32":
        return rng.choice(["wasi", "unknown-unknown"])
    if arch.startswith("thumb"):
        return rng.choice(["none-eabi", "unknown-none-eabihf"])
    if arch.startswith("arm"):
        return rng.choice(["linux-gnueabihf", "unknown-linux-musleabihf"])
    return rng.choice(["linux-gnu", "unknown-linux-musl", "unknown-none-elf"])


def gpu(rng: random.Random, kind: str) -> dict[str, Any]:
    """Any options; shared memory and lockstep width are the generation's own, so not drawn."""
    fixed = ("max_shared_memory", "thread_warp_size")
    options = [option for option in KINDS[kind].options if not option.name.startswith(fixed)]
    spec = {o.name: value(rng, o) for o in options if rng.random() < 0.4}
    archs = {str(spec.get(name, "sm_75")) for name in ("arch", "also")}
    if (
        spec.get("matmul_precision") == "tf32"
        and min(map(capability_of, archs)) < TENSOR_CORES["float32"]
    ):
        del spec["matmul_precision"]  # refused
    if spec.get("matmul_kernel") == "wgmma" and archs != {WGMMA}:
        del spec["matmul_kernel"]  # refused
    if spec.get("matmul_copies") in OWN_WARP and (
        archs != {WGMMA} or spec.get("matmul_kernel") == "mma"
    ):
        del spec["matmul_copies"]  # refused
    return spec


def value(rng: random.Random, option: Option) -> object:
    if option.type is bool:
        return rng.random() < 0.5
    if option.type is int:
        return rng.randint(option.low, option.high)
    return rng.choice(option.choices)


def shuffled(spec: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same, written otherwise: order of keys, aliases of fields, options under `attrs`."""
    names = {"kind": "id", "host": "target_host", "devices": "targets"}
    out = {}
    for key in rng.sample(list(spec), len(spec)):
        inner = spec[key]
        if isinstance(inner, dict):
            inner = shuffled(inner, rng)
        if key == "mattr" and isinstance(inner, list):
            inner = ",".join(rng.sample(inner, len(inner)))
        out[names.get(key, key)] = inner
    return out
