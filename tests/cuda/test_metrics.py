"""What NVIDIA's assembler makes of every class of kernels: registers, nothing spilled, no advice,
how many blocks fit a multiprocessor, how many instructions of each kind."""

from __future__ import annotations

import functools
import math
from collections import Counter
from pathlib import Path

import pytest

from tensorkiln.base.errors import InternalError, UserError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.inspectors.table import table_lines
from tensorkiln.ir.launch import launch_of
from tensorkiln.target import cuda_tools
from tensorkiln.target.cuda_tools import Assembled, assembled, instruction_counts
from tensorkiln.target.occupancy import occupancy
from tests.cuda.classes import TARGET, TARGETS, Launched, all_launched

GOLDEN = Path(__file__).parent / "golden" / "metrics.txt"
# In the order of columns: products on tensor cores, alone, loads and stores of each memory.
INSTRUCTIONS = ("HGMMA", "HMMA", "IMMA", "FFMA", "LDS", "STS", "LDG", "STG", "BAR")
HEAD = """\
Of a thread: registers. Of a block: threads, barriers, bytes of shared memory. Of a multiprocessor:
blocks at once, the share of its warps, what there is too little of for more. Then instructions.
By ptxas {version}; `pytest --bless` writes this file.

"""
GOLDEN_ARCHS = ("sm_80", "sm_90a")
ARCHS = ("sm_75", *GOLDEN_ARCHS, "sm_86", "sm_89", "sm_90", "sm_100a", "sm_120a")
# Bytes that are spilled all the same: ptxas keeps 64 registers so that four blocks fit, and puts
# one away in code that has no loop. With `.minnctapersm 1` it would not, but take up to four times
# the registers in other kernels, which only a chip can judge.
SPILLED = {
    ("sm_75", "avg_pool_image"): 8,
    ("sm_80", "conv2d_channels"): 8,
    **{(arch, "top_k"): 16 for arch in ("sm_80", "sm_90", "sm_90a", "sm_100a")},
}


def require_tool(name: str) -> Path:
    """A tool of NVIDIA's; skips where it is not installed."""
    path = {"ptxas": cuda_tools.ptxas_path, "nvdisasm": cuda_tools.nvdisasm_path}[name]()
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def version() -> str:
    """The version of ptxas, as 13.0.88."""
    identity = cuda_tools.tool_identity(require_tool("ptxas"))
    return identity.rpartition(", V")[2].split()[0]


def classes(arch: str) -> dict[str, Launched]:
    """All classes, scheduled for what the architecture has."""
    return all_launched("sm_75" if arch == "sm_75" else "sm_80")


@functools.cache
def made(arch: str) -> Assembled:
    """All classes as one module."""
    target = TARGETS.get(arch, TARGET)
    irs = {name: emit_ptx_ir(x.func, target) for name, x in classes(arch).items()}
    return assembled(ptx_of(irs, [arch], jobs=2)[arch], arch)


def rows(arch: str) -> list[tuple[str, ...]]:
    counts = instruction_counts(made(arch).cubin)
    table_rows = []
    for name, x in classes(arch).items():
        k, launch = made(arch).kernels[name], launch_of(x.func)
        threads = math.prod(launch.block)
        shared = launch.shared_bytes + k.shared_bytes
        o = occupancy(arch, threads, k.registers, shared, k.barriers)
        numbers = [k.registers, threads, k.barriers, shared, o.blocks]
        cells = [*map(str, numbers), f"{o.share:.0%}", o.limit]
        opcode_counts = [counts[name][i] for i in INSTRUCTIONS]
        table_rows.append(
            (
                name,
                *cells,
                *(str(n) if n else "-" for n in opcode_counts),
                str(counts[name].total()),
            )
        )
    return table_rows


def test_golden(request: pytest.FixtureRequest) -> None:
    require_tool("nvdisasm")
    head = HEAD.format(version=version())
    bless = request.config.getoption("--bless")
    if not bless and not GOLDEN.read_text().startswith(head):
        pytest.skip(f"ptxas {version()} gives other figures")
    columns = ("registers", "threads", "barriers", "shared", "blocks", "warps", "for want of")
    text = head
    for arch in GOLDEN_ARCHS:
        names = (arch, *columns, *INSTRUCTIONS, "all")
        text += "".join(table_lines(names, rows(arch), "lrrrrrrl" + "r" * 10)) + "\n"
    if bless:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


# Their threads have arrays of their own, whose places are computed.
ARRAYS = {"coupled"}


@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=() if a in GOLDEN_ARCHS else pytest.mark.fuzz) for a in ARCHS]
)
def test_nothing_is_spilled_and_nothing_advised(arch: str) -> None:
    """Every class, on every architecture. Each kernel fits a multiprocessor."""
    require_tool("ptxas")
    assert made(arch).advice == ()
    assert {*made(arch).kernels} == {*classes(arch)}
    for name, k in made(arch).kernels.items():
        assert k.spills <= SPILLED.get((arch, name), 0), (name, k)
        assert k.spills or not k.stack or name in ARRAYS, (name, k)
        launch = launch_of(classes(arch)[name].func)
        threads, shared = math.prod(launch.block), launch.shared_bytes + k.shared_bytes
        assert occupancy(arch, threads, k.registers, shared, k.barriers).blocks > 0, (name, k)


# ---- what would be wrong is seen -----------------------------------------------------------------

SPILLING = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry spilling(.param .u64 to)
.maxnreg 16
{{
  .reg .u64 %a;
  .reg .f32 %f<64>;
  ld.param.u64 %a, [to];
{loads}
  bar.sync 0;
  bar.sync 3;
{stores}
  ret;
}}
"""
WAITING = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry waiting(.param .u64 to)
.reqntid 128, 1, 1
{
  .reg .f32 %f<5>;
  .reg .b64 %d;
  .reg .u64 %a;
  .shared .align 16 .b8 tile[1024];
  ld.param.u64 %a, [to];
  mov.b64 %d, 4611686293305294848;
  mov.f32 %f1, 0f00000000;
  mov.f32 %f2, %f1;
  mov.f32 %f3, %f1;
  mov.f32 %f4, %f1;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4}, %d, %d, 1, 1, 1, 0, 0;
  add.f32 %f1, %f1, 0f3F800000;
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4}, %d, %d, 1, 1, 1, 0, 0;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  st.shared.f32 [tile], %f2;
  st.global.f32 [%a], %f1;
  ret;
}
"""


def test_spills_are_seen() -> None:
    require_tool("ptxas")
    loads = "\n".join(f"  ld.volatile.global.f32 %f{i}, [%a+{4 * i}];" for i in range(64))
    stores = "\n".join(f"  st.volatile.global.f32 [%a+{4 * i}], %f{i};" for i in range(64))
    k = assembled(SPILLING.format(loads=loads, stores=stores), "sm_80").kernels["spilling"]
    assert k.registers < 32 and k.barriers == 4
    assert min(k.spill_stores, k.spill_loads, k.stack) > 100


def test_advice_is_seen() -> None:
    """A sum that is touched between products: each waits for the one before it."""
    require_tool("nvdisasm")
    assembly = assembled(WAITING, "sm_90a")
    assert len(assembly.advice) == 1 and "C7517" in assembly.advice[0]
    assert assembly.kernels["waiting"].shared_bytes == 1024
    counts = instruction_counts(assembly.cubin)["waiting"]
    assert counts == Counter(counts) and (counts["HGMMA"], counts["FADD"]) == (2, 1)


def test_refused() -> None:
    require_tool("nvdisasm")
    with pytest.raises(InternalError, match="ptxas refuses PTX") as caught:
        assembled(WAITING.replace("add.f32", "add.f33"), "sm_90a")
    assert caught.value.code == "bad-ptx"
    with pytest.raises(UserError, match="has no code for sm_52"):
        assembled(WAITING, "sm_52")
    with pytest.raises(InternalError, match="nvdisasm refuses code"):
        instruction_counts(b"no cubin")


def test_without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, call in (
        ("ptxas", lambda: assembled("", "sm_80")),
        ("nvdisasm", lambda: instruction_counts(b"")),
    ):
        monkeypatch.setattr(cuda_tools, f"{name}_path", lambda: None)
        with pytest.raises(UserError, match=f"{name} is not installed") as caught:
            call()
        assert caught.value.code == "no-tool" and "tensorkiln[cuda]" in str(caught.value)
