"""Names that people have for machines: products, processors and features mean what they say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.target import Target, require_codegen
from tensorkiln.target.cpu import LEVELS
from tensorkiln.target.isa import ISAS
from tensorkiln.target.kinds import INSTEAD, KINDS
from tensorkiln.target.lookup import choices_of, known_names
from tensorkiln.target.tags import TAGS, Tag
from tensorkiln.target.triple import LIBRARIES

M4 = {"kind": "c", "mtriple": "thumbv7em-none-eabi", "mcpu": "cortex-m4"}
MEANINGS: dict[str, object] = {
    "x86-64-v2": {"kind": "llvm", "mcpu": "x86-64-v2"},
    "x86-64-v3": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "x86-64-v4": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "skylake": {"kind": "llvm", "mcpu": "skylake"},
    "znver4": {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"},
    "neoverse-n1": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
    "cortex-m4": M4,
    "cortex-a7": {"kind": "c", "mtriple": "armv7-linux-gnueabihf", "mcpu": "cortex-a7"},
    "sifive-u74": {"kind": "llvm", "mtriple": "riscv64-linux-gnu", "mcpu": "sifive-u74"},
    "sifive-e31": {"kind": "c", "mtriple": "riscv32-unknown-none-elf", "mcpu": "sifive-e31"},
    "apple-m5": {"kind": "llvm", "mtriple": "aarch64-apple-macos", "mcpu": "apple-m5"},
    "apple-a18": {"kind": "llvm", "mtriple": "aarch64-apple-ios", "mcpu": "apple-a18"},
    "sse2": {"kind": "llvm", "mcpu": "x86-64"},
    "sse4.2": {"kind": "llvm", "mcpu": "x86-64-v2"},
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "fma": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "avx512f": {"kind": "llvm", "mcpu": "x86-64-v4"},
    "rpi1": {"tag": "raspberrypi/zero-w"},
    "rpi2": {"tag": "raspberrypi/2b"},
    "rpi3": {"tag": "raspberrypi/3b"},
    "rpi4": {"tag": "raspberrypi/4b"},
    "rpi4:1": {"tag": "raspberrypi/4b:1"},
    "rpi5": {"tag": "raspberrypi/pi5"},
    "raspberrypi-4b": {"tag": "raspberrypi/4b"},
    "apple-m1": {"tag": "apple/m1"},
    "apple-m4": {"tag": "apple/m4-pro"},
    "graviton1": {"tag": "aws/a1.xlarge"},
    "graviton2": {"tag": "aws/t4g.xlarge"},
    "graviton3": {"tag": "aws/c7g.xlarge"},
    "graviton4": {"tag": "aws/r8g.xlarge"},
    "jetson-nano": {"tag": "nvidia/jetson-nano"},
    "jetson-agx-orin": {"tag": "nvidia/jetson-agx-orin"},
    "h100": {"tag": "nvidia/h100"},
    "h100:1": {"tag": "nvidia/h100:1"},
    "nvidia-t4": {"tag": "nvidia/t4"},
    "grace": {"tag": "nvidia/grace"},
    "gb10": {"tag": "nvidia/dgx-spark"},
}


@pytest.fixture
def own_tags(tmp_path: Path) -> Iterator[Any]:
    def load(*rows: str) -> None:
        file = tmp_path / "mine.toml"
        file.write_text("\n".join(f"[[tag]]\n{row}" for row in rows))
        Target.load_tags(file)

    yield load
    TAGS.loaded = {}


@pytest.mark.parametrize("name", MEANINGS)
def test_a_name_is_the_same_as_all_of_it_in_full(name: str) -> None:
    """The text of both is equal, and so is whatever a cache finds by it; also as a part of another
    target."""
    meaning: Any = MEANINGS[name]
    assert str(Target(name)) == str(Target(meaning))
    assert Target(f" {name} ") == Target(name)
    inside: Any = {"devices": [name, "opencl"]}
    assert str(Target(inside)) == str(Target({"devices": [meaning, "opencl"]}))
    if KINDS[Target(name).kind].is_cpu:
        assert str(Target("opencl", host=name)) == str(Target({"kind": "opencl", "host": meaning}))
    if "tag" in meaning:
        assert Target({"tag": name}) == Target(name)


def _owners(spelling: str) -> set[str]:
    return {t.name for t in TAGS.all() if spelling in t.spellings}


@pytest.mark.parametrize("tag", TAGS.all(), ids=lambda tag: tag.reference)
def test_every_name_of_every_tag(tag: Tag) -> None:
    """With a slash, a hyphen for it, and, where the rest says enough, without the vendor."""
    latest = [t for t in TAGS.all() if t.name == tag.name][-1]
    for name in tag.names:
        vendor, word = name.split("/")
        want = str(Target({"tag": latest.name}))
        assert str(Target(name)) == str(Target(f"{vendor}-{word}")) == want
        assert Target(f"{vendor}-{word}:{tag.version}").tag == tag.reference
        if len(word) < 4 or not word[0].isalpha():
            assert not any(c == {"tag": latest.reference} for c in choices_of(word))
        else:
            assert _owners(word) == {tag.name}
            assert str(Target(word)) == want


def test_names_have_one_meaning() -> None:
    """No tag is called like a kind, or like another tag. One with the name of a processor is a
    machine that has it."""
    spellings = {s for t in TAGS.all() for s in t.spellings}
    assert not spellings & {*KINDS, *INSTEAD, "native", "host", "help"}
    assert all(len(_owners(s)) == 1 for s in spellings)
    cpus = {cpu for isa in ISAS.values() for cpu in isa.cpus}
    shared = spellings & cpus
    assert shared == {"a64fx", "apple-m1", "apple-m2", "apple-m3", "apple-m4", "gb10", "grace"}
    for name in shared:
        target = Target(name)
        assert target.tag and name == (target.host or target).mcpu
    assert not set(ISAS["x86_64"].implied) & (cpus | spellings)


# `x86-64` is that of a library for all.
CPUS = Counter(cpu for isa in ISAS.values() for cpu in isa.cpus if cpu not in LEVELS)


@pytest.mark.parametrize("cpu", CPUS)
def test_every_processor(cpu: str) -> None:
    owners = [arch for arch, isa in ISAS.items() if cpu in isa.cpus]
    if len(owners) > 1:
        with pytest.raises(UserError, match=f"'{cpu}' names {len(owners)} targets") as caught:
            Target(cpu)
        assert caught.value.code == "ambiguous-name"
        written = caught.value.hint.removeprefix("write ").split(" or ")
        assert [Target(text).arch for text in written] == owners
        assert all(Target(text).mcpu == cpu for text in written)
        return
    target = Target(cpu)
    if target.tag:
        assert cpu == (target.host or target).mcpu
        return
    (arch,) = owners
    assert (target.arch, target.mcpu, target.mattr) == (arch, cpu, ())
    without_floats = arch == "riscv64" and not target.has("d")
    assert target.kind == ("llvm" if arch in LIBRARIES and not without_floats else "c")
    if cpu.startswith(("apple-a", "apple-m")):
        with pytest.raises(UnsupportedError, match="no library is made for (macos|ios) yet"):
            require_codegen(target)
    else:
        require_codegen(target)


@pytest.mark.parametrize("feature", ISAS["x86_64"].implied)
def test_every_feature(feature: str) -> None:
    """The least level with it; for others a processor is named, which has it."""
    isa = ISAS["x86_64"]
    levels = [f"x86-64{end}" for end in ("", "-v2", "-v3", "-v4")]
    have = [level for level in levels if feature in isa.cpu_features(level)]
    if have:
        assert Target(feature) == Target({"mcpu": have[0]})
        return
    with pytest.raises(UserError, match=f"unknown kind '{feature}'") as caught:
        Target(feature)
    *processor, text = caught.value.hint.removeprefix("a feature of x86_64: write ").split(" or ")
    assert Target(text).has(feature)
    for part in processor:
        assert Target(part.split("'")[1]).has(feature)
    assert bool(processor) == any(feature in isa.cpu_features(cpu) for cpu in isa.cpus)


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        ("rpi44", "unknown-kind", "'rpi4b'"),
        ("skylak", "unknown-kind", "did you mean 'skylake'"),
        ("gravitn3", "unknown-kind", "'graviton3'"),
        ("cortex-m44", "unknown-kind", "'cortex-m4'"),
        ("avx512", "unknown-kind", "'avx512f'"),
        ("rpi4:2", "unknown-kind", "'rpi4'"),
        ("zvfh", "unknown-kind", '"mattr":["+m","+a","+f","+d","+c","+zvfh"]'),
        ("neon", "unknown-kind", "a feature of aarch64"),
        ("sve2", "unknown-kind", "such as 'cobalt-100'"),
        ({"kind": "skylake"}, "unknown-kind", '"mcpu":"skylake"'),
        ({"kind": "rpi4"}, "unknown-kind", '{"tag":"raspberrypi/4b:1"}'),
        ({"kind": "cortex-a72"}, "unknown-kind", "armv7"),
        ({"devices": ["llvm", "cortex-a72"]}, "ambiguous-name", "armv7"),
        ({"tag": "t4"}, "unknown-tag", "'nvidia/t4'"),
        ({"tag": "rpi4:7"}, "unknown-tag", "versions of 'rpi4': 1"),
    ],
)
def test_names_that_mean_nothing_or_too_much(spec: Any, code: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        Target(spec)
    assert caught.value.code == code and says in caught.value.hint
    assert caught.value.where.startswith("target")


def test_names_of_own_tags(own_tags: Any) -> None:
    row = 'name = "{0}"\ntarget = {{ mcpu = "{1}" }}'
    own_tags(
        row.format("acme/board", "haswell"),
        row.format("acme/skylake", "haswell"),
        row.format("acme/znver2", "znver2"),
        row.format("acme/avx2", "haswell"),
        row.format("acme/common", "haswell"),
        row.format("other/common", "skylake"),
        row.format("acme/llvm", "haswell"),
    )
    assert Target("board").tag == Target("acme-board").tag == "acme/board:1"
    assert Target("znver2").tag == "acme/znver2:1"  # that machine has the processor
    assert Target("llvm") == Target({"kind": "llvm"})
    for name, choices in {
        "skylake": ['{"tag":"acme/skylake:1"}', '"mcpu":"skylake"'],
        "avx2": ['{"tag":"acme/avx2:1"}', '"mcpu":"x86-64-v3"'],
        "common": ["acme/common:1", "other/common:1"],
    }.items():
        with pytest.raises(UserError, match=f"'{name}' names 2 targets") as caught:
            Target(name)
        assert all(choice in caught.value.hint for choice in choices)
        assert name not in known_names()
    with pytest.raises(UserError, match="unknown tag") as caught:
        Target({"tag": "common"})
    assert caught.value.hint == "one of acme/common, other/common"
    TAGS.loaded = {}
    assert Target("skylake") == Target({"mcpu": "skylake"}) and "board" not in known_names()


def test_known_names_are_all_targets() -> None:
    names = known_names()
    assert len(names) == len(set(names))
    assert {"rpi4", "graviton2", "jetson-nano", "skylake", "cortex-m4", "avx2"} <= set(names)
    assert not {"generic", "cortex-a72"} & set(names)
    assert all(Target(name) for name in names)


def test_compiled_by_name(tmp_path: Path) -> None:
    from tests.transform.graphs import graph

    mod = graph(lambda g, x: g.relu(x), x=(4, 8))
    by_name, in_full = (tk.compile(mod, target=t) for t in ("avx2", {"mcpu": "x86-64-v3"}))
    files = [e.export_library(tmp_path / f"{i}.so") for i, e in enumerate((by_name, in_full))]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert json.loads(str(by_name.target))["mcpu"] == "x86-64-v3"
    with pytest.raises(UnsupportedError, match="no library is made for macos") as caught:
        tk.compile(mod, target="apple-m1")
    assert "aarch64-linux-gnu" in str(caught.value)
