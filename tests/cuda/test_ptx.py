"""PTX as people read it, what stands beside it, what is refused; what NVIDIA's assembler says."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.codegen.ptx.compile import ptx_of
from tensorkiln.codegen.ptx.emit import emit_ptx_ir
from tensorkiln.codegen.ptx.kernels import cuda_kernels
from tensorkiln.ir.expr import intrin
from tensorkiln.ir.launch import launch_of
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.link import ptxas
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tensorkiln.transform.tir.lower_blocks import lower_blocks
from tensorkiln.transform.tir.vectorize_loops import vectorize_loops
from tests.codegen import test_elementary, test_emit_values
from tests.codegen.kernels import elementwise
from tests.codegen.opencl.test_text import STORE, scripted, scripted_device
from tests.cuda.emulator.build import build_all
from tests.cuda.test_kernels import CUDA
from tests.devices.test_opencl import _block
from tests.schedule.gpu.kernels import KERNELS
from tests.schedule.gpu.runner import Kernels, groups_for
from tests.transform.device_programs import device
from tests.transform.graphs import graph

GOLDEN = Path(__file__).parent / "golden"
ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")


def functions(*names: str, target: Target = CUDA) -> list[PrimFunc]:
    """The device functions of kernels of `KERNELS`, called after these."""
    device_functions = []
    for name in names:
        *_, group = groups_for(KERNELS[name].module(), target)
        kernels = Kernels([schedule_group(group, target)], target)
        parts = [kernels.func(call.name) for call in kernels.launches(kernels.names[0])]
        device_functions += [
            replace(f, name=f"{name}_{i}" if i else name) for i, f in enumerate(parts)
        ]
    return device_functions


@pytest.mark.parametrize("name", ["flat_odd", "sum_rows"])
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    cuda_files = cuda_kernels(functions(name), Target({"kind": "cuda", "arch": "sm_80"}))
    text = "\n".join(f"// {a.file_name}\n{a.text()}" for a in cuda_files.artifacts)
    path = GOLDEN / f"{name}.ptx"
    if request.config.getoption("--bless"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_what_stands_beside_the_text() -> None:
    scalars = STORE.replace("X[i * 4 + j]", 'T.Cast("float64", k) + T.Cast("float64", on)')
    target = Target({"kind": "cuda", "arch": "sm_80", "also": ["sm_90a", "sm_75", "sm_80"]})
    kernels = [*scripted("first"), *scripted("second", "float64", body=scalars)]
    cuda_files = cuda_kernels(kernels, target, {"first_device": ["node a (Add)"]})
    assert [(a.codegen_id, a.loader, a.file_name) for a in cuda_files.artifacts] == [
        *(("cuda", "cuda", f"kernels.{arch}.ptx") for arch in ("sm_80", "sm_75", "sm_90a")),
        ("cuda", "cuda", "kernels.fmap.json"),
    ]
    assert json.loads(cuda_files.artifacts[-1].text()) == {
        "format": 1,
        "archs": ["sm_80", "sm_75", "sm_90a"],
        "functions": {
            "first_device": {
                "params": ["buffer", "buffer"],
                "block": [4, 1, 1],
                "max_threads": 4,
                "shared_bytes": 0,
            },
            "second_device": {
                "params": ["buffer", "bool", "int64"],
                "block": [4, 1, 1],
                "max_threads": 4,
                "shared_bytes": 0,
            },
        },
    }
    for a, version in zip(cuda_files.artifacts, ("7.0", "6.5", "8.0"), strict=False):
        text = a.text()
        arch = a.file_name.split(".")[1]
        assert text.startswith(f".version {version}\n.target {arch}\n.address_size 64\n")
        assert re.findall(r"\.visible \.entry (\w+)\(", text) == ["first_device", "second_device"]
        assert text.count(".version") == 1 and text.count(".reqntid 4, 1, 1") == 2
    assert [(a.loader, a.file_name) for a in cuda_files.texts] == [
        ("text", "first_device.ll"),
        ("text", "second_device.ll"),
    ]
    assert (
        cuda_files.texts[0].text().startswith("; computes: node a (Add)\n; reads X: float32[8]\n")
    )
    again = cuda_kernels(kernels, target, {"first_device": ["node a (Add)"]})
    assert [a.content for a in again.artifacts] == [a.content for a in cuda_files.artifacts]
    assert cuda_kernels([], target).artifacts == ()
    nothing = cuda_kernels([], target, has_tensors=True).artifacts[0].text()
    assert nothing == ".version 7.0\n.target sm_80\n.address_size 64\n"


REFUSED = {
    "a name of PTX's": (lambda: scripted_device("WARP_SZ"), "'WARP_SZ' is not a name that PTX"),
    "no name": (lambda: scripted_device("a.b"), "'a.b' is not a name that PTX takes"),
    "threads": (lambda: scripted(threads=2048), "needs 2048 threads in a block, and the target"),
    "a C function": (
        lambda: scripted(body="            T.call_extern('void', 'f', k)\n" + STORE),
        "calls the C function 'f'",
    ),
    "an assertion": (
        lambda: scripted(body='            assert k > 0, "positive"\n' + STORE),
        "cannot report a failed assertion",
    ),
}


@pytest.mark.parametrize("refusal", REFUSED)
def test_refused_by_name(refusal: str) -> None:
    make, message = REFUSED[refusal]
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        cuda_kernels(make(), CUDA)


# ---- what the code consists of -------------------------------------------------------------------


def test_memory_and_arithmetic() -> None:
    """Address spaces are known, sums are fused with products, divisions round correctly, and what
    nothing writes is read through the read-only cache."""
    (f,) = functions("layer_norm_warps")
    text = ptx_of({f.name: emit_ptx_ir(f, CUDA)}, ["sm_80"])["sm_80"]
    for expected in ("ld.global.nc.b32", "st.global.b32", "ld.shared.v2.b32", "st.shared.b32"):
        assert expected in text, expected
    for expected in ("fma.rn.f32", "div.rn.f32", "sqrt.rn.f32", "bar.sync"):
        assert expected in text, expected
    generic = r"\b(ld|st)\.(?!global|shared|param|local)|\.ftz|\.approx|\blocal\b"
    assert not re.findall(generic, text)


def test_vectors_move_at_once_where_tensors_are_aligned() -> None:
    """Others may begin at any element: they have a body of their own."""
    (f,) = functions("flat")
    text = ptx_of({f.name: emit_ptx_ir(f, CUDA)}, ["sm_80"])["sm_80"]
    move_counts = [
        len(re.findall(rf"{move}\.global\.{t}", text)) for move in ("ld", "st") for t in WIDTHS
    ]
    assert move_counts == [1, 4, 1, 4]
    assert re.search(r"or\.b64 .*\n\s+and\.b64 .*, 15;", text)


WIDTHS = ("v4.b32", "b32")


# ---- NVIDIA's assembler --------------------------------------------------------------------------


def assembled(text: str, arch: str, folder: Path) -> dict[str, str]:
    """What ptxas says of each kernel of a module; skips where it is not installed."""
    if ptxas.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    (folder / "k.ptx").write_text(text)
    command = [str(ptxas.ptxas_path()), "-v", f"-arch={arch}", "k.ptx", "-o", "k.cubin"]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert "warning" not in process.stderr, process.stderr
    parts = re.split(r"Compiling entry function '(\w+)'", process.stderr)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def irs_of(funcs: Sequence[PrimFunc]) -> dict[str, str]:
    return {f.name: emit_ptx_ir(f, CUDA) for f in funcs}


# One kernel of each family, and what LLVM makes of loops that are not constant.
EACH = ("flat", "sum_rows", "softmax", "layer_norm", "linear", "conv2d", "depthwise", "attention")


@pytest.mark.parametrize(
    ("threads", "words", "two"),
    [(256, 63, False), (256, 64, True), (256, 96, True), (256, 97, False), (128, 80, False)],
)
def test_where_two_blocks_are_asked_for(threads: int, words: int, two: bool) -> None:
    """Not where a thread keeps so much that it could not have it in registers then."""
    f = device(
        f"for t in T.thread_binding({threads}, thread='threadIdx.x'):\n"
        f"    own = T.alloc_buffer(({words},), 'int32', scope='register')\n"
        f"    for k in T.unroll({words}):\n"
        "        own[k] = X[b, t % 8]\n"
        f"    for k in T.unroll({words}):\n"
        "        Y[b, t % 8] = own[k]"
    )
    assert ("nvvm.minctasm" in emit_ptx_ir(f, CUDA)) == two


def test_every_architecture_takes_every_family(tmp_path: Path) -> None:
    """Without spills or local memory, and with room for two blocks at once."""
    if ptxas.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    device_functions = functions(*EACH)
    threads = {f.name: math.prod(launch_of(f).block) for f in device_functions}
    ptx_by_arch = ptx_of(irs_of(device_functions), ARCHS, jobs=2)
    for arch in ARCHS:
        for name, message in assembled(ptx_by_arch[arch], arch, tmp_path).items():
            frame = r"0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
            assert re.search(frame, message), (arch, name, message)
            (registers,) = re.findall(r"Used (\d+) registers", message)
            assert int(registers) * threads[name] * 2 <= 1 << 16, (arch, name, registers)


def _expressions(step: int) -> list[PrimFunc]:
    """Every node of expressions, of every type, alone and in vectors; elementary functions."""
    kernels = [k for c in test_emit_values.CASES for k in c.kernels()]
    kernels += test_emit_values._statements()
    for name in test_elementary.ONE:
        for dtype, lanes in (("float32", 4), ("float64", 2), ("float16", 1)):
            kernels.append(
                elementwise(
                    f"{name}_{dtype}_math", lambda x, n=name: intrin(n, x), (dtype,), dtype, lanes
                )
            )
    mod = IRModule(tuple(kernels[::step]), "kernels")
    return [*vectorize_loops(lower_blocks(mod)).prim_funcs]


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.fuzz)])
def test_every_expression(step: int, tmp_path: Path) -> None:
    """LLVM has code for it (it would end its process), and the assembler takes it."""
    ptx = ptx_of(irs_of(_expressions(step)), ["sm_75"], jobs=2)["sm_75"]
    for name, message in assembled(ptx, "sm_75", tmp_path).items():
        assert " 0 bytes spill stores" in message, name


def test_code_for_a_chip() -> None:
    """By ptxas, where the target asks for it: each architecture has an ELF file of its own."""
    if ptxas.ptxas_path() is None:
        pytest.skip("ptxas is not installed")
    mod = graph(KERNELS["flat"].build, x=(6, 5))
    exe = tk.compile(mod, {"kind": "cuda", "arch": "sm_80", "also": ["sm_90a"], "cubin": True})
    for arch in ("sm_80", "sm_90a"):
        content = bytes(exe.artifacts[f"cuda/cuda/kernels.{arch}.cubin"].view)
        assert content.startswith(b"\x7fELF") and f".target {arch}".encode() not in content
    with pytest.raises(UserError, match="has no code for sm_52") as caught:
        tk.compile(mod, {"kind": "cuda", "arch": "sm_52", "cubin": True})
    assert "the driver compiles the PTX" in str(caught.value)


def test_no_assembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "ptxas_path", lambda: None)
    with pytest.raises(UserError, match=r"target.cubin: ptxas, .* is not installed") as caught:
        tk.compile(graph(KERNELS["flat"].build, x=(6, 5)), {"kind": "cuda", "cubin": True})
    assert "tensorkiln[cuda]" in str(caught.value)


# ---- models --------------------------------------------------------------------------------------


@pytest.mark.in_turn()
@pytest.mark.parametrize("target", ["cuda", "nvidia/a100", "nvidia/l4", "nvidia/h100"])
def test_a_model(target: str) -> None:
    exe = tk.compile(graph(_block, x=(10, 24)), target)
    assert {p.device for p in exe.placement()} == {"cuda"}
    arch = Target(target).arch
    names = [a.name for a in exe.artifacts if a.loader == "cuda"]
    assert names == [f"cuda/cuda/kernels.{arch}.ptx", "cuda/cuda/kernels.fmap.json"]
    text, table = (exe.artifacts[name].text() for name in names)
    rows = json.loads(table)["functions"]
    assert re.findall(r"\.visible \.entry (\w+)\(", text) == [*rows]
    again = tk.compile(graph(_block, x=(10, 24)), target)
    assert [again.artifacts[n].text() for n in names] == [text, table]
    texts = [a.name for a in exe.artifacts if a.codegen_id == "cuda" and a.loader == "text"]
    assert texts == [f"cuda/cuda/{name}.ll" for name in rows]


def test_kernels_of_a_model_are_emulated(tmp_path: Path) -> None:
    """Those of each PTX module, by the hash of its bytes."""
    exe = tk.compile(graph(KERNELS["flat"].build, x=(6, 5)), {"kind": "cuda", "also": ["sm_80"]})
    library_paths = build_all(exe.artifacts, tmp_path)
    modules = [a for a in exe.artifacts if a.file_name.endswith(".ptx")]
    assert [m.name for m in library_paths] == [
        f"{hashlib.sha256(a.text().encode()).hexdigest()}.so" for a in modules
    ]
    (name,) = json.loads(exe.artifacts["cuda/cuda/kernels.fmap.json"].text())["functions"]
    assert ctypes.CDLL(str(library_paths[0]))[f"emulate_{name}"]
