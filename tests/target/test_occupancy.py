"""Occupancy: that of the header which CUDA's toolkit has for it, known cases, refusals."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import subprocess
from pathlib import Path

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target.gpus import CUDA_ARCHS
from tensorkiln.target.occupancy import MULTIPROCESSORS, WARP, occupancy
from tests.codegen.c_like.build import require_compiler

SOURCE = """
#include <cuda_occupancy.h>
int blocks(int capability, int warps, int shared_kib, int most_kib, int threads, int registers,
           long shared, int barriers)
{
    cudaOccDeviceProp device;
    cudaOccFuncAttributes kernel;
    cudaOccDeviceState state;
    cudaOccResult result;
    memset(&device, 0, sizeof device);
    memset(&kernel, 0, sizeof kernel);
    memset(&state, 0, sizeof state);
    device.computeMajor = capability / 10;
    device.computeMinor = capability % 10;
    device.maxThreadsPerBlock = 1024;
    device.maxThreadsPerMultiprocessor = warps * 32;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536;
    device.warpSize = 32;
    device.sharedMemPerBlock = 48 << 10;
    device.sharedMemPerMultiprocessor = (size_t)shared_kib << 10;
    device.numSms = 1;
    device.sharedMemPerBlockOptin = (size_t)most_kib << 10;
    device.reservedSharedMemPerBlock = capability < 80 ? 0 : 1 << 10;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = (size_t)shared;
    kernel.numBlockBarriers = barriers;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads,
                                                (size_t)shared) != CUDA_OCC_SUCCESS)
        return -1;
    return result.activeBlocksPerMultiprocessor;
}
"""


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) for p in spec.submodule_search_locations or ()] if spec else []
    headers = [h for f in folders for h in sorted(f.glob("*/include/cuda_occupancy.h"))]
    if not headers:
        pytest.skip("cuda_occupancy.h is not installed")
    folder = tmp_path_factory.mktemp("occupancy")
    (folder / "o.c").write_text(SOURCE)
    command = [require_compiler("gcc"), "-shared", "-fPIC", "-w", f"-I{headers[-1].parent}"]
    subprocess.run([*command, "-o", folder / "o.so", folder / "o.c"], check=True)
    return ctypes.CDLL(str(folder / "o.so"))


THREADS = (1, 32, 33, 64, 96, 128, 160, 256, 384, 512, 768, 1024)
REGISTERS = (1, 16, 24, 31, 32, 33, 40, 64, 65, 96, 128, 168, 255)
KIB = (0, 1, 8, 16, 31, 48, 64, 99, 100, 163, 227)
SHARED = (1, 400, 3200, *(k << 10 for k in KIB))


@pytest.mark.parametrize("capability", MULTIPROCESSORS)
def test_as_the_toolkit_computes_it(capability: int, header: ctypes.CDLL) -> None:
    arch, sm = f"sm_{capability}", MULTIPROCESSORS[capability]
    shared_bytes = CUDA_ARCHS[arch]
    for threads, registers, shared in itertools.product(THREADS, REGISTERS, SHARED):
        for barriers in (1, 2, 5):
            want = header.blocks(
                *(capability, sm.warps, sm.shared_kib, shared_bytes),
                *(threads, registers, ctypes.c_long(shared), barriers),
            )
            have = occupancy(arch, threads, registers, shared, barriers)
            assert have.blocks == want, (arch, threads, registers, shared, barriers, have)
            assert have.warps == want * -(-threads // WARP) and have.share == have.warps / sm.warps


KNOWN = [
    ("sm_80", 256, 32, 0, (8, 64, 1.0, "threads")),
    ("sm_80", 32, 32, 0, (32, 32, 0.5, "blocks")),
    ("sm_90a", 256, 255, 0, (1, 8, 0.125, "registers")),
    ("sm_90a", 128, 32, 100 << 10, (2, 8, 0.125, "shared memory")),
    ("sm_86", 256, 40, 40 << 10, (2, 16, 1 / 3, "shared memory")),
    ("sm_75", 1024, 128, 0, (0, 0, 0.0, "registers")),
    ("sm_75", 32, 32, 65 << 10, (0, 0, 0.0, "shared memory")),
]


@pytest.mark.parametrize(("arch", "threads", "registers", "shared", "want"), KNOWN)
def test_known(arch: str, threads: int, registers: int, shared: int, want: tuple[object]) -> None:
    have = occupancy(arch, threads, registers, shared)
    assert (have.blocks, have.warps, have.share, have.limit) == want


def test_every_architecture_of_today_has_figures() -> None:
    """Those before Turing, for which NVIDIA's assembler of today has no code either, have not."""
    without = []
    for arch in CUDA_ARCHS:
        try:
            assert occupancy(arch, 32, 32, 0).blocks > 0
        except UserError:
            without.append(arch)
    assert without == [a for a in CUDA_ARCHS if int(a[3:].rstrip("a")) < 75]


@pytest.mark.parametrize("arch", ["sm_52", "sm_", "volta", "sm_9000"])
def test_refused_by_name(arch: str) -> None:
    with pytest.raises(UserError, match=f"multiprocessors of {arch}") as caught:
        occupancy(arch, 32, 32, 0)
    assert caught.value.code == "no-occupancy" and "sm_90" in str(caught.value)
