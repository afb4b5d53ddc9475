"""Options of the GPU kinds, and checks against the limits of each GPU generation."""

from __future__ import annotations

import re

from tensorkiln.base.errors import nearest
from tensorkiln.target.options import Option, Values, contradiction

# Shared memory of one block, in KiB (CUDA C++ Programming Guide, compute capabilities): the limit
# for every kernel, and by architecture the limit for a kernel that opts in to more.
CUDA_STATIC = 48
CUDA_ARCHS: dict[str, int] = {
    **dict.fromkeys(("sm_50", "sm_52", "sm_53", "sm_60", "sm_61", "sm_62"), 48),
    **dict.fromkeys(("sm_70", "sm_72"), 96),
    **{"sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_87": 163, "sm_89": 99},
    **dict.fromkeys(("sm_90", "sm_100", "sm_103", "sm_110"), 227),
    **dict.fromkeys(("sm_120", "sm_121"), 99),
    # With instructions that other chips, later ones too, do not have.
    **dict.fromkeys(("sm_90a", "sm_100a", "sm_103a", "sm_110a"), 227),
    **dict.fromkeys(("sm_120a", "sm_121a"), 99),
}

# Multiprocessors of a common GPU of each architecture: Tesla M10, M40, TX1, P100, P40, TX2, V100,
# Xavier, T4, A100, A40, Orin, L40, H100, B200, B300, Thor, RTX PRO 6000, GB10.
CUDA_MULTIPROCESSORS: dict[str, int] = {
    **{"sm_50": 5, "sm_52": 24, "sm_53": 2, "sm_60": 56, "sm_61": 30, "sm_62": 2},
    **{"sm_70": 80, "sm_72": 8, "sm_75": 40, "sm_80": 108, "sm_86": 84, "sm_87": 16},
    **{"sm_89": 142, "sm_90": 132, "sm_100": 148, "sm_103": 148, "sm_110": 20},
    **{"sm_120": 188, "sm_121": 48},
}

# The least compute capability whose tensor cores multiply factors of a type by mma.sync.
TENSOR_CORES = {"float16": 75, "int8": 75, "uint8": 75, "bfloat16": 80, "float32": 80}
# The architecture whose warpgroups multiply (wgmma); no other one has that, later ones neither.
WGMMA = "sm_90a"
# The values of `matmul_copies` with which a warp of a block does nothing but copy.
OWN_WARP = ("warp", "tma")


def capability_of(arch: str) -> int:
    """The compute capability of an architecture: 80 for sm_80, 90 for sm_90a."""
    return int(arch.removeprefix("sm_").removesuffix("a"))


# Threads of a wavefront, by default (LLVM's AMDGPU guide).
ROCM_ARCHS: dict[str, int] = {
    **dict.fromkeys(
        ("gfx900", "gfx902", "gfx904", "gfx906", "gfx908", "gfx909", "gfx90a", "gfx90c"), 64
    ),
    **dict.fromkeys(("gfx942", "gfx950"), 64),
    **dict.fromkeys(("gfx1010", "gfx1011", "gfx1012", "gfx1013"), 32),
    **dict.fromkeys(
        ("gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036"), 32
    ),
    **dict.fromkeys(("gfx1100", "gfx1101", "gfx1102", "gfx1103"), 32),
    **dict.fromkeys(("gfx1150", "gfx1151", "gfx1152", "gfx1153", "gfx1200", "gfx1201"), 32),
}

# Kinds whose option `arch` names a processor.
GPUS = {"cuda": CUDA_ARCHS, "rocm": ROCM_ARCHS}

# What others call an architecture: `sm_90`, `SM90`, `compute_90`; `gfx90a`.
_ARCH = re.compile(r"(?:sm|compute)_?(\d+[a-z]?)|(gfx\w+)", re.IGNORECASE)


def hint_for_arch(name: str) -> str:
    """A hint for a text that is the name of an architecture rather than a target: what to write
    instead. Empty for other texts."""
    match = _ARCH.fullmatch(name)
    if match is None:
        return ""
    kind, arch = ("rocm", match[2]) if match[2] else ("cuda", f"sm_{match[1]}")
    if arch.lower() in GPUS[kind]:
        return f'write {{"kind":"{kind}","arch":"{arch.lower()}"}}'
    near = nearest(arch, GPUS[kind]) or f"known: {', '.join(GPUS[kind])}"
    return f'an architecture is an option: {{"kind":"{kind}","arch":...}}; {near}'


def _limits(threads: int, max_threads: int, shared: int, warp: int | None) -> tuple[Option, ...]:
    """Return the three limits that every GPU kind has as options. Their defaults, `threads`,
    `shared` bytes and `warp`, are what the kind's standard guarantees; `max_threads` bounds
    `threads`."""
    return (
        Option("max_num_threads", int, "threads one block may have", 1, max_threads, threads),
        Option("max_shared_memory_per_block", int, "bytes one block may share", 0, 1 << 20, shared),
        Option("thread_warp_size", int, "threads that run in lockstep", 1, 128, warp),
    )


# What work costs, to choose between devices; defaults are those of a GPU of the middle, with PCIe.
_COST_OPTIONS = (
    Option("gflops", int, "10^9 operations of float32 a second; not given: 1000", 1, 10**9),
    Option("bandwidth", int, "10^9 bytes a second of its memory; not given: 200", 1, 10**6),
    Option("launch_us", int, "microseconds to start a kernel; not given: 10", 0, 10**6),
    Option("copy_bandwidth", int, "10^9 bytes a second of copies; not given: 10", 1, 10**6),
    Option("copy_us", int, "microseconds to start a copy; not given: 20", 0, 10**6),
)
_COSTS: Values = {
    "gflops": 1000,
    "bandwidth": 200,
    "launch_us": 10,
    "copy_bandwidth": 10,
    "copy_us": 20,
}


def known_costs(values: Values) -> Values:
    """Return the cost parameters of targets that do not set them."""
    return _COSTS


CUDA_OPTIONS: tuple[Option, ...] = (
    Option("arch", str, "compute capability, as sm_XY", default="sm_75", choices=tuple(CUDA_ARCHS)),
    Option(
        "also",
        list,
        "further architectures that the library has code for",
        choices=tuple(CUDA_ARCHS),
    ),
    Option("cubin", bool, "also code that the driver need not compile, by ptxas; not given: false"),
    Option(
        "matmul_precision",
        str,
        "of products of float32: 'float32', or 'tf32', which rounds their factors to 11 bits for "
        "tensor cores; not given: float32",
        choices=("float32", "tf32"),
    ),
    Option(
        "matmul_kernel",
        str,
        "of products of float16 and bfloat16 on tensor cores: 'mma', by warps, or 'wgmma', by "
        "warpgroups, which sm_90a alone has; not given: the last that the architectures have",
        choices=("mma", "wgmma"),
    ),
    Option(
        "matmul_stages",
        int,
        "of products on tensor cores: parts of shared memory for their factors, all but one of "
        "which are filled while threads multiply; with 1 they copy and multiply in turns; fewer "
        "where there is no room for them; not given: 4",
        1,
        8,
    ),
    Option(
        "matmul_copies",
        str,
        "who copies the factors of products by warpgroups: 'threads', all of a block, between "
        "their products, 'warp', one of its own that runs ahead, or 'tma', hardware, for one "
        "thread of that warp, where tensors allow it; not given: tma where both factors are "
        "matrices, else threads",
        choices=("threads", "warp", "tma"),
    ),
    *_limits(1024, 1024, CUDA_STATIC << 10, 32),
    Option(
        "max_shared_memory_per_block_optin",
        int,
        "bytes one block may share if its kernel asks; not given: what the arch has",
        0,
        1 << 20,
    ),
    Option("l2_bytes", int, "second-level cache of the GPU", 1 << 12, 1 << 32),
    Option(
        "multiprocessors",
        int,
        "processors, each of which runs blocks of its own: products that would leave many idle are "
        "computed in parts; not given: those of a GPU that is common for the arch",
        1,
        1 << 12,
    ),
    *_COST_OPTIONS,
)
ROCM_OPTIONS: tuple[Option, ...] = (
    Option("arch", str, "GPU, in LLVM's spelling", default="gfx1100", choices=tuple(ROCM_ARCHS)),
    *_limits(1024, 1024, 64 << 10, None),
)
OPENCL_OPTIONS: tuple[Option, ...] = (
    Option(
        "version",
        str,
        "the OpenCL C version of the device; the text is OpenCL C 1.2, which all of them take",
        default="1.2",
        choices=("1.2", "2.0", "3.0"),
    ),
    Option("supports_float16", bool, "cl_khr_fp16 may be used", default=False),
    Option("supports_float64", bool, "cl_khr_fp64 may be used", default=False),
    Option(
        "supports_integer_dot_product",
        bool,
        "cl_khr_integer_dot_product may be used; not given: it may not",
    ),
    Option(
        "supports_subgroups",
        bool,
        "sub-groups of thread_warp_size threads may be used: cl_khr_subgroups and "
        "cl_intel_required_subgroup_size; not given: they may not",
    ),
    *_limits(256, 4096, 32 << 10, 1),
    *_COST_OPTIONS,
)
METAL_OPTIONS: tuple[Option, ...] = (
    Option(
        "family",
        str,
        "GPU family, as in Apple's Metal feature set tables",
        default="apple7",
        choices=tuple(f"apple{n}" for n in range(4, 11)),
    ),
    *_limits(1024, 1024, 32 << 10, 32),
)
VULKAN_OPTIONS: tuple[Option, ...] = (
    Option(
        "version",
        str,
        "the Vulkan version whose SPIR-V may be used",
        default="1.1",
        choices=("1.0", "1.1", "1.2", "1.3", "1.4"),
    ),
    Option("supports_float16", bool, "shaderFloat16 is there", default=False),
    Option("supports_int8", bool, "shaderInt8 is there", default=False),
    Option("supports_int64", bool, "shaderInt64 is there", default=False),
    Option("max_push_constants_size", int, "bytes of push constants", 128, 4096, 128),
    *_limits(128, 4096, 16 << 10, 1),
)
WEBGPU_OPTIONS: tuple[Option, ...] = (
    Option("supports_float16", bool, "the feature shader-f16 is there", default=False),
    Option("supports_subgroups", bool, "the feature subgroups is there", default=False),
    Option("max_storage_buffers", int, "storage buffers per shader stage", 8, 64, 8),
    *_limits(256, 1024, 16 << 10, 1),
    *_COST_OPTIONS,
)


def _all_archs(values: Values) -> tuple[str, ...]:
    also = values.get("also", ())
    assert isinstance(also, tuple)
    return tuple(dict.fromkeys((str(values["arch"]), *map(str, also))))


def _most_shared(values: Values) -> int:
    """The bytes of shared memory that a block may use on every one of the architectures, if its
    kernel opts in."""
    return min(CUDA_ARCHS[arch] for arch in _all_archs(values)) << 10


def canonical_cuda(values: Values, place: str) -> Values:
    """Check `also`, shared memory and precision against what each architecture has, and that a warp
    has 32 threads. Raises UserError (code `contradiction`)."""
    arch = str(values["arch"])
    if "also" in values:
        values = {**values, "also": tuple(sorted(_all_archs(values)[1:]))}
        if not values["also"]:
            del values["also"]
    shared_limit = _most_shared(values)
    optin = values.get("max_shared_memory_per_block_optin", shared_limit)
    shared = values["max_shared_memory_per_block"]
    assert isinstance(shared, int) and isinstance(optin, int)
    if shared > CUDA_STATIC << 10:
        raise contradiction(
            f"{arch} has {CUDA_STATIC << 10} bytes for a block that does not ask for more, not "
            f"{shared}",
            f"{place}.max_shared_memory_per_block",
            f"max_shared_memory_per_block_optin is {shared_limit} for {arch}",
        )
    if not shared <= optin <= shared_limit:
        raise contradiction(
            f"{arch} has {shared} to {shared_limit} bytes for a block that asks, not {optin}",
            f"{place}.max_shared_memory_per_block_optin",
            "bytes one block may share if its kernel asks",
        )
    _warp(values, (32,), arch, place)
    tf32_capability = TENSOR_CORES["float32"]
    old = next((a for a in _all_archs(values) if capability_of(a) < tf32_capability), None)
    if values.get("matmul_precision") == "tf32" and old is not None:
        raise contradiction(
            f"{old} has no tensor cores for tf32",
            f"{place}.matmul_precision",
            f"sm_{tf32_capability} or newer, for arch and each of also",
        )
    unfit_arch = next((a for a in _all_archs(values) if a != WGMMA), None)
    for option, wanting in (("matmul_kernel", ("wgmma",)), ("matmul_copies", OWN_WARP)):
        if values.get(option) in wanting and unfit_arch is not None:
            raise contradiction(
                f"{unfit_arch} has no warpgroups that multiply",
                f"{place}.{option}",
                f"{WGMMA} for arch, and nothing in also",
            )
    if values.get("matmul_copies") in OWN_WARP and values.get("matmul_kernel") == "mma":
        raise contradiction(
            "products by warps have no warp of their own that copies",
            f"{place}.matmul_copies",
            "matmul_kernel 'wgmma', or none",
        )
    return values


def known_of_cuda(values: Values) -> Values:
    """Return what follows from the architectures: cost parameters, the precision of products, which
    instructions compute them and with how many buffers in shared memory, the shared memory that a
    block may opt in to on all of them, and the number of multiprocessors."""
    shared = _most_shared(values)
    kernel = "wgmma" if set(_all_archs(values)) == {WGMMA} else "mma"
    defaults: Values = {
        "max_shared_memory_per_block_optin": shared,
        "matmul_precision": "float32",
        "matmul_kernel": kernel,
        "matmul_stages": 4,
        "multiprocessors": min(
            CUDA_MULTIPROCESSORS[arch.removesuffix("a")] for arch in _all_archs(values)
        ),
    }
    return defaults | _COSTS


def canonical_rocm(values: Values, path: str) -> Values:
    """Return the values with the default wavefront size of `arch` filled in.

    Raises UserError (code `contradiction`) for a size that the GPU does not have (gfx9: 64 only) or
    more shared memory than one block has.
    """
    arch = str(values["arch"])
    values = {"thread_warp_size": ROCM_ARCHS[arch], **values}
    _warp(values, (64,) if arch.startswith("gfx9") else (32, 64), arch, path)
    shared = values["max_shared_memory_per_block"]
    shared_limit = (160 if arch == "gfx950" else 64) << 10
    if isinstance(shared, int) and shared > shared_limit:
        message = f"{arch} has {shared_limit} bytes for a block, not {shared}"
        place = f"{path}.max_shared_memory_per_block"
        raise contradiction(message, place, "bytes one block may share")
    return values


def _warp(values: Values, sizes: tuple[int, ...], arch: str, place: str) -> None:
    if values["thread_warp_size"] not in sizes:
        raise contradiction(
            f"{arch} runs {' or '.join(map(str, sizes))} threads in lockstep, not "
            f"{values['thread_warp_size']}",
            f"{place}.thread_warp_size",
            "threads that run in lockstep",
        )
