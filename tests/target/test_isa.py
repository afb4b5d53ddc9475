from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.arch)
def test_llvm_knows_every_name(isa: Isa) -> None:
    """LLVM answers an unknown name with a line on stderr and nothing else."""
    script = (
        "import sys\n"
        "import llvmlite.binding as llvm\n"
        "from tensorkiln.target import Target\n"
        "llvm.initialize_all_targets()\n"
        "for cpu in sys.argv[3:]:\n"
        "    target = Target({'mtriple': sys.argv[1] + '-linux-gnu', 'mcpu': cpu})\n"
        "    features = target.llvm_features + sys.argv[2]\n"
        "    machine = llvm.Target.from_triple(target.mtriple)\n"
        "    machine.create_target_machine(cpu=target.mcpu, features=features)\n"
    )

    def stderr(extra: str, cpus: list[str]) -> str:
        command = [sys.executable, "-c", script, isa.arch, extra, *cpus]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert stderr("", list(isa.cpus)) == ""
    assert "nonsense" in stderr(",+nonsense", [isa.baseline_cpu])


def test_virtual_machine_that_hides_features() -> None:
    isa = ISAS["x86_64"]
    full = isa.cpu_features("skylake-avx512")
    seen = full - {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512cd", "pku"}
    target = Target({"kind": "llvm", **processor_fields(isa, "skylake-avx512", seen)})
    assert target.mcpu == "skylake-avx512"
    assert target.features == seen
    assert target.vector_bytes == 32


def test_features_whose_need_is_hidden_are_not_used() -> None:
    isa = ISAS["x86_64"]
    target = Target({"kind": "llvm", **processor_fields(isa, "haswell", ["avx2", "fma"])})
    assert not target.has("avx2")
    assert target.is_baseline


def test_unknown_processor_keeps_its_features() -> None:
    isa = ISAS["x86_64"]
    seen = isa.closure(["avx512vnni", "bmi2"]) | {"some-new-thing"}
    target = Target({"kind": "llvm", **processor_fields(isa, "futurelake", seen)})
    assert target.mcpu == "x86-64"
    assert target.has("avx512vnni")
    assert target.has("bmi2")


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
