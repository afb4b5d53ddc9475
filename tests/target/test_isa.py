from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tensorkiln.target import host
from tensorkiln.target.gpus import CUDA_ARCHS, ROCM_ARCHS
from tensorkiln.target.host import cache_bytes, processor_fields
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.target import Target
from tensorkiln.target.triple import canonical_triple


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.arch)
def test_tables_are_closed(isa: Isa) -> None:
    for name, needs in isa.implied.items():
        assert set(needs.split()) <= set(isa.implied), name
    for cpu in isa.cpus:
        features = isa.cpu_features(cpu)
        assert features <= set(isa.implied), cpu
        assert isa.closure(features) == features, cpu
        assert isa.cpu_features(isa.baseline_cpu) <= features, cpu
    assert set(isa.not_generated.split()) <= set(isa.implied)


TRIPLES = {
    "armv6": "armv6-linux-gnueabihf",
    "armv7": "armv7-linux-gnueabihf",
    "wasm32": "wasm32-wasi",
    **{arch: f"{arch}-none-eabi" for arch in ISAS if arch.startswith("thumb")},
}

WALK = """
import json, sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
for triple, cpu, features in json.load(sys.stdin):
    module = llvm.parse_assembly(f'target triple = "{triple}" define void @f() {{ ret void }}')
    machine = llvm.Target.from_triple(triple)
    made = machine.create_target_machine(cpu=cpu, features=features)
    made.emit_assembly(module)
"""


def llvm_complaints(targets: list[Target], extra: str = "") -> str:
    """What LLVM says on stderr when it generates code for each target: unknown names, mostly."""
    rows = [(t.mtriple, t.mcpu, t.llvm_features + extra) for t in targets]
    command = [sys.executable, "-c", WALK]
    process = subprocess.run(
        command, input=json.dumps(rows), capture_output=True, text=True, check=False
    )
    return process.stderr if process.returncode == 0 else f"LLVM aborted: {process.stderr}"


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.arch)
def test_llvm_knows_every_name(isa: Isa) -> None:
    """Each processor, and each feature alone and taken from the richest processor."""
    triple = TRIPLES.get(isa.arch, f"{isa.arch}-linux-gnu")
    plain = Target({"mtriple": triple})
    targets = [Target({"mtriple": triple, "mcpu": cpu}) for cpu in isa.cpus]
    targets += [plain.replace(mattr=[f"+{name}"]) for name in (*isa.implied, *isa.tuning)]
    richest = max(targets, key=lambda t: len(t.features))
    free = sorted(richest.features - isa.cpu_features(isa.baseline_cpu))
    targets += [Target({**richest.to_json(), "mattr": [f"-{name}"]}) for name in free]
    assert llvm_complaints(targets) == ""
    assert "nonsense" in llvm_complaints([plain], ",+nonsense")


GPUS = """
import json, sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
for triple, cpus in json.load(sys.stdin).items():
    for cpu in cpus:
        llvm.Target.from_triple(triple).create_target_machine(cpu=cpu)
"""


def test_llvm_knows_every_gpu() -> None:
    def complaints(rows: dict[str, list[str]]) -> str:
        command = [sys.executable, "-c", GPUS]
        text = json.dumps(rows)
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stderr

    assert complaints({"amdgcn-amd-amdhsa": [*ROCM_ARCHS]}) == ""
    assert complaints({"nvptx64-nvidia-cuda": [*CUDA_ARCHS]}) == ""
    assert "gfx1" in complaints({"amdgcn-amd-amdhsa": ["gfx1"]})


def _pretend(
    monkeypatch: pytest.MonkeyPatch, cpu: str, features: Iterable[str], tiles: bool
) -> None:
    """Let LLVM name the processor at hand `cpu`, with these features."""
    monkeypatch.setattr(host, "host_triple", lambda: "x86_64-unknown-linux-gnu")
    monkeypatch.setattr(host, "_processor", lambda: (cpu, sorted(features)))
    monkeypatch.setattr(host, "system_has_tiles", lambda: tiles)


def test_virtual_machine_that_hides_features() -> None:
    isa = ISAS["x86_64"]
    full = isa.cpu_features("skylake-avx512")
    visible = full - {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd", "pku"}
    target = Target({"kind": "llvm", **processor_fields(isa, "skylake-avx512", visible)})
    assert target.mcpu == "skylake-avx512"
    assert target.features == visible
    assert target.vector_bytes == 32


def test_features_whose_need_is_hidden_are_not_used() -> None:
    isa = ISAS["x86_64"]
    target = Target({"kind": "llvm", **processor_fields(isa, "haswell", ["avx2", "fma"])})
    assert not target.has("avx2")
    assert target.is_baseline


def test_unknown_processor_keeps_its_features() -> None:
    isa = ISAS["x86_64"]
    visible = isa.closure(["avx512vnni", "bmi2"]) | {"some-new-thing"}
    target = Target({"kind": "llvm", **processor_fields(isa, "futurelake", visible)})
    assert target.mcpu == "x86-64"
    assert target.has("avx512vnni")
    assert target.has("bmi2")


@pytest.mark.parametrize("system", [False, True], ids=["no tiles", "tiles"])
def test_a_model_number_of_another_processor(system: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual machine with AMX showed the number of a Rocket Lake."""
    isa = ISAS["x86_64"]
    hidden = {"enqcmd", "pconfig", "pku", "ptwrite", "shstk", "uintr", "waitpkg", "wbnoinvd"}
    visible = (isa.cpu_features("sapphirerapids") | {"avx10.1"}) - hidden
    _pretend(monkeypatch, "rocketlake", visible, system)
    target = Target(host.describe_host())
    assert target.features == {f for f in visible if system or not f.startswith("amx")}
    assert isa.cpu_features(target.mcpu) == isa.cpu_features("sapphirerapids")


@pytest.mark.parametrize("hidden", [set(), {"pku", "shstk", "clwb"}], ids=["all", "hidden"])
def test_processors_keep_their_names(hidden: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    isa = ISAS["x86_64"]
    for cpu in isa.cpus:
        visible = isa.cpu_features(cpu) - hidden
        _pretend(monkeypatch, cpu, visible, tiles=True)
        target = Target(host.describe_host())
        assert isa.cpu_features(target.mcpu) == isa.cpu_features(cpu), cpu
        assert target.features == visible | isa.cpu_features(isa.baseline_cpu), cpu


def test_cache_sizes_from_sysfs(tmp_path: Path) -> None:
    rows = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    for index, (level, kind, size) in enumerate(rows):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert cache_bytes(1, tmp_path) == 48 << 10
    assert cache_bytes(2, tmp_path) == 2 << 20
    assert cache_bytes(3, tmp_path) == 0
    assert cache_bytes(1, tmp_path / "none") == 0


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("x86_64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"),
        ("x86_64-linux-gnu", "x86_64-unknown-linux-gnu"),
        ("x86-64-linux-gnu", "x86_64-unknown-linux-gnu"),
        ("amd64-pc-windows-msvc", "x86_64-pc-windows-msvc"),
        ("arm64-macos", "aarch64-apple-macos"),
        ("arm64-apple-macos13.0.0", "aarch64-apple-macos13.0.0"),
        ("aarch64-none-elf", None),
        ("aarch64-unknown-none-elf", "aarch64-unknown-none-elf"),
        ("aarch64-linux", "aarch64-unknown-linux"),
        ("armv7l-linux-gnueabihf", "armv7-unknown-linux-gnueabihf"),
        ("thumbv7em-none-eabi", "thumbv7em-unknown-none-eabi"),
        ("armv8.1m.main-none-eabihf", "thumbv8.1m.main-unknown-none-eabihf"),
        ("armv7-linux-gnu", None),
        ("riscv64-linux-gnu", "riscv64-unknown-linux-gnu"),
        ("wasm32-wasi", "wasm32-unknown-wasi"),
        ("wasm32-unknown-unknown", "wasm32-unknown-unknown"),
        ("x86_64-unknown-unknown", None),
        ("", None),
        ("x86_64-unknown-linux-gnu-extra", None),
    ],
)
def test_triples(text: str, canonical: str | None) -> None:
    if canonical is None:
        with pytest.raises(Exception, match="triple"):
            canonical_triple(text)
    else:
        assert canonical_triple(text) == canonical
        assert canonical_triple(canonical) == canonical


@pytest.mark.parametrize("system", [False, True])
def test_tiles_need_the_system(system: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor has them, but an old kernel or a sandbox does not keep them for processes."""
    cpu = "sapphirerapids"
    features = sorted(ISAS["x86_64"].cpu_features(cpu))
    _pretend(monkeypatch, cpu, features, system)
    target = Target(host.describe_host())
    assert target.mcpu == cpu
    assert [target.has(f) for f in ("amx-tile", "amx-bf16", "amx-int8")] == [system] * 3
    assert target.has("avx512bf16")
