"""What a library needs of a processor is what its runtime can check there: one table, both ways,
for every processor and tag, on processors that a C program pretends to be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from tensorkiln.artifact.read_binary import binary_of
from tensorkiln.base.config import read_config
from tensorkiln.ir.module import IRModule
from tensorkiln.link.shared import CRT, crt_sources
from tensorkiln.link.toolchain import zig_path
from tensorkiln.pipeline import compile as compile_module
from tensorkiln.target import Target, x86
from tensorkiln.target.isa import ISAS, Isa
from tensorkiln.target.tags import TAGS
from tensorkiln.target.triple import LIBRARIES
from tests.schedule.test_independent_rows import build

COMPILED = {arch: ISAS[arch] for arch in LIBRARIES}
ZIG_LIB = zig_path().parent / "lib"


# -- the runtime's table is written from the compiler's -----------------------------------------


def test_the_table_of_the_runtime_is_this_one(golden: Callable[[Path, str], None]) -> None:
    golden(CRT / "cpu_features.h", header())


def header() -> str:
    """crt/cpu_features.h."""
    return "\n".join(
        [
            "/* How each feature of a processor is found: see cpu.c. Written from "
            "target/x86.py, arm.py and",
            " * riscv.py by `pytest tests/target/test_features.py --bless`. */",
            "static const feature features[] = {",
            "#if defined(__aarch64__)",
            *_rows(ISAS["aarch64"], lambda name: ""),
            "#elif defined(__riscv)",
            *_rows(ISAS["riscv64"], lambda name: ""),
            "#else",
            *_rows(ISAS["x86_64"], lambda name: f", {state(name)}"),
            "#endif",
            "};",
            "",
        ]
    )


def _rows(isa: Isa, further_fields: Callable[[str], str]) -> Iterator[str]:
    rows = [
        f'{{"{name}", {register}, {bit}{further_fields(name)}}},'
        for name, (register, bit) in sorted(isa.places().items())
    ]
    yield from (f"    {row}" for row in rows)


def state(name: str) -> str:
    """What the operating system saves for a feature of x86-64."""
    needs = ISAS["x86_64"].closure([name])
    return next((s for s, bits in x86.STATES.items() if needs & set(bits.split())), "NONE")


@pytest.mark.parametrize("isa", COMPILED.values(), ids=COMPILED)
def test_all_that_code_may_use_can_be_checked(isa: Isa) -> None:
    assert isa.generated(isa.implied) <= set(isa.places()) <= set(isa.implied)


# Other names of the same in the headers of a C compiler and of Linux, which say the bits as well.
CPUID_H = {
    "sse4.1": "SSE41",
    "sse4.2": "SSE42",
    "crc32": "SSE42",
    "cx16": "CMPXCHG16B",
    "sahf": "LAHF_LM",
    "egpr": "APXF",
    "ppx": "APXF",
    "push2pop2": "APXF",
    "aes": "AESNI",
    "pclmul": "PCLMULQDQ",
    "lzcnt": "ABM",
}
LEAVES = {
    "ecx for leaf 1": "LEAF1_ECX",
    "edx for leaf 1": "LEAF1_EDX",
    "ebx for leaf 7 sub-leaf 0": "LEAF7_EBX",
    "ecx for leaf 7 sub-leaf 0": "LEAF7_ECX",
    "edx for leaf 7 sub-leaf 0": "LEAF7_EDX",
    "eax for leaf 7 sub-leaf 1": "LEAF7_1_EAX",
    "edx for leaf 7 sub-leaf 1": "LEAF7_1_EDX",
    "ecx for leaf 0x80000001": "EXT1_ECX",
}
HWCAP_H = {
    "fp-armv8": "FP",
    "neon": "ASIMD",
    "crc": "CRC32",
    "lse": "ATOMICS",
    "rdm": "ASIMDRDM",
    "fullfp16": "ASIMDHP",
    "jsconv": "JSCVT",
    "complxnum": "FCMA",
    "rcpc": "LRCPC",
    "dotprod": "ASIMDDP",
    "fp16fml": "ASIMDFHM",
    "lse2": "USCAT",
    "rcpc-immo": "ILRCPC",
    "ccdp": "DCPODP",
    "altnzcv": "FLAGM2",
    "fptoint": "FRINT",
    "rand": "RNG",
    "f32mm": "SVEF32MM",
    "f64mm": "SVEF64MM",
    "rcpc3": "LRCPC3",
}


def _plain(name: str) -> str:
    return name.upper().replace("-", "").replace("_", "").replace("SVE2", "SVE").replace(".", "")


def test_bits_are_those_of_cpuid_h() -> None:
    bits, register = {}, ""
    for line in (ZIG_LIB / "include" / "cpuid.h").read_text().splitlines():
        if section := re.match(r"/\* Features in %(.*) \*/", line):
            register = LEAVES.get(section[1], "")
        elif bit := re.match(r"#define bit_(\w+)\s+(0x[0-9a-f]{8})", line):
            bits[register, _plain(bit[1])] = int(bit[2], 16).bit_length() - 1
    places = {n: p for n, p in ISAS["x86_64"].places().items() if p[0] not in ("AVX10", "APX")}
    for name, (register_name, bit) in places.items():
        assert bits[register_name, _plain(CPUID_H.get(name, name))] == bit, name


def test_bits_are_those_of_linux() -> None:
    text = (ZIG_LIB / "libc/include/aarch64-linux-any/asm/hwcap.h").read_text()
    definitions = re.findall(r"#define (HWCAP2?)_(\w+)\s+\(1(?:UL)? << (\d+)\)", text)
    bits = {(word, _plain(name)): int(bit) for word, name, bit in definitions}
    for name, (register_name, bit) in ISAS["aarch64"].places().items():
        c_name = HWCAP_H.get(name, name)
        candidates = {
            bits.get((register_name, _plain(n))) for n in (c_name, c_name.replace("sve2", "sve"))
        }
        # SVE2 itself, and SVE2.1, keep their number.
        exact = re.search(
            rf"{register_name}_{re.escape(c_name.upper())}\s+\(1(?:UL)? << (\d+)\)", text
        )
        assert bit in candidates or (exact and int(exact[1]) == bit), name


def test_bits_are_those_of_linux_on_riscv() -> None:
    """Letters of AT_HWCAP, and what riscv_hwprobe says of the others."""
    header_text = (ZIG_LIB / "libc/include/riscv-linux-any/asm/hwprobe.h").read_text()
    text = header_text.partition("KEY_IMA_EXT_1")[0]
    definitions = re.findall(r"#define\s+RISCV_HWPROBE_EXT_(\w+)\s+\(1(?:ULL)? << (\d+)\)", text)
    extensions = {name.lower(): int(bit) for name, bit in definitions}
    isa = ISAS["riscv64"]
    for name, (register, bit) in isa.places().items():
        if register == "HWPROBE":
            assert extensions[name] == bit, name
        elif register == "HWCAP":
            # Linux requires c and d, which together are zcd.
            assert name in isa.closure([chr(ord("a") + bit)]) | {"zcd"}, name
        else:
            assert name == f"zvl{1 << bit}b"


# -- every processor loads what was compiled for it ----------------------------------------------

HARNESS = r"""
#include "crt.h"
#include "os.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The processor that this is: answers to cpuid and the state that is saved, or Linux's words. */
static struct { unsigned long leaf, sub, r[4]; } answers[16];
static unsigned long words[3];
static int n_answers;

#if defined(ARCH_aarch64)
#undef __x86_64__
#define __aarch64__ 1
#define kiln_os_feature_word(number, word) (*(word) = words[number], 1)
#elif defined(ARCH_riscv64)
#undef __x86_64__
#define __riscv 1
#define __riscv_xlen 64
#define kiln_os_feature_word(number, word) (*(word) = words[number], 1)
#define VECTOR_BYTES words[2]
#else
static void pretend(uint32_t leaf, uint32_t sub, uint32_t r[4])
{
    memset(r, 0, 4 * sizeof *r);
    for (int i = 0; i < n_answers; i++)
        if (answers[i].leaf == leaf && answers[i].sub == sub)
            for (int k = 0; k < 4; k++)
                r[k] = (uint32_t)answers[i].r[k];
}
#define CPUID(leaf, sub, r) pretend(leaf, sub, r)
#define XGETBV(low, high) (low = (uint32_t)words[0], high = 0)
#define kiln_os_permit_tiles() (words[1] == 0)
#endif
#include "cpu.c"

static const char *wanted[256];
const kiln_library kiln_this_library = {.name = "pretended", .metadata = "{}",
                                        .cpu_features = wanted};

int main(void)
{
    static char line[1 << 16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        fflush(stdout);
        if (fork() == 0) { /* what the processor is, is asked once */
            int n = 0;
            char *at = strtok(line, " \n");
            words[0] = strtoul(at, NULL, 10);
            words[1] = strtoul(strtok(NULL, " \n"), NULL, 10);
            words[2] = strtoul(strtok(NULL, " \n"), NULL, 10);
            n_answers = atoi(strtok(NULL, " \n"));
            for (int i = 0; i < n_answers; i++) {
                answers[i].leaf = strtoul(strtok(NULL, " \n"), NULL, 10);
                answers[i].sub = strtoul(strtok(NULL, " \n"), NULL, 10);
                for (int k = 0; k < 4; k++)
                    answers[i].r[k] = strtoul(strtok(NULL, " \n"), NULL, 10);
            }
            while ((at = strtok(NULL, " \n")) != NULL)
                wanted[n++] = at;
            puts(kiln_prepare() == KILN_OK ? "loads" : kiln_last_error());
            fflush(stdout);
            _exit(0);
        }
        wait(NULL);
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runtime on pretended processors, by architecture."""
    folder = tmp_path_factory.mktemp("processors")
    (folder / "harness.c").write_text(HARNESS)
    other_sources = (path for path in crt_sources() if path.name != "cpu.c")
    (folder / "others.c").write_text("".join(f'#include "{path.name}"\n' for path in other_sources))
    place = str(read_config().cache_dir / "zig")
    environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": place, "ZIG_LOCAL_CACHE_DIR": place}
    # gcc links a program in a tenth of what the packaged compiler takes for its first one.
    compiler = ["gcc"] if shutil.which("gcc") else [str(zig_path()), "cc"]
    compiler += ["-std=c99", "-D_GNU_SOURCE", "-I", str(CRT)]
    subprocess.run([*compiler, "-c", "others.c"], cwd=folder, env=environ, check=True)
    executables = {}
    for arch in COMPILED:
        executables[arch] = folder / arch
        command = [*compiler, f"-DARCH_{arch}", "harness.c", "others.o"]
        command += ["-o", str(executables[arch]), "-lpthread", "-ldl", "-lm"]
        subprocess.run(command, cwd=folder, env=environ, check=True)
    return executables


# Where cpuid says what: leaf, the one below it, and which of eax, ebx, ecx, edx.
CPUID = {
    "LEAF1_ECX": (1, 0, 2),
    "LEAF1_EDX": (1, 0, 3),
    "LEAF7_EBX": (7, 0, 1),
    "LEAF7_ECX": (7, 0, 2),
    "LEAF7_EDX": (7, 0, 3),
    "LEAF7_1_EAX": (7, 1, 0),
    "LEAF7_1_EDX": (7, 1, 3),
    "APX": (0x29, 0, 1),
    "EXT1_ECX": (0x80000001, 0, 2),
}
XCR0 = {"YMM": 0x6, "ZMM": 0xE6, "TILE": 0x60000, "EGPR": 0x80000, "NONE": 0}


def processor(
    isa: Isa, features: Iterable[str], saved: Mapping[str, int] = XCR0, refused: bool = False
) -> str:
    """A line for the harness: the processor that has these features and no others. `refused`: the
    system does not let a process use tiles."""
    words = dict.fromkeys(isa.detected, 0)
    places = isa.places()
    for name in set(features) & set(places):
        register, bit = places[name]
        words[register] |= 1 << bit
    if isa.arch == "aarch64":
        return f"{words['HWCAP']} {words['HWCAP2']} 0 0"
    if isa.arch == "riscv64":
        vector_bytes = 1 << words["VECTOR_BITS"].bit_length() >> 4 or 16
        return f"{words['HWCAP']} {words['HWPROBE']} {vector_bytes} 0"
    rows = {(0, 0): [0x29, 0, 0, 0], (7, 0): [1, 0, 0, 0], (0x80000000, 0): [0x80000008, 0, 0, 0]}
    for register, (leaf, sub, register_index) in CPUID.items():
        rows.setdefault((leaf, sub), [0, 0, 0, 0])[register_index] |= words[register]
    version = words["AVX10"].bit_length()
    rows[0x24, 0] = [0, version | 7 << 16, 0, 0]
    rows[7, 1][3] |= bool(version) << 19
    rows[1, 0][2] |= 1 << 27  # the system's state can be asked for
    states = 0
    for name in features:
        states |= saved[state(name)]
    answers = " ".join(" ".join(map(str, (*key, *row))) for key, row in rows.items())
    return f"{states} {int(refused)} 0 {len(rows)} {answers}"


def ask(program: Path, lines: list[str]) -> list[str]:
    process = subprocess.run(
        [program],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return process.stdout.splitlines()


def targets(isa: Isa) -> dict[str, Target]:
    """Every processor that LLVM knows, and every tag of a processor, of one architecture."""
    triple = f"{isa.arch}-linux-gnu"
    cpu_targets = {cpu: Target({"mtriple": triple, "mcpu": cpu}) for cpu in isa.cpus}
    tags = {tag.reference: Target(tag.reference) for tag in TAGS.all()}
    hosts = {f"host of {name}": t.host for name, t in tags.items() if t.host is not None}
    return cpu_targets | {name: t for name, t in (tags | hosts).items() if t.arch == isa.arch}


@pytest.mark.parametrize("isa", COMPILED.values(), ids=COMPILED)
def test_every_processor_loads_what_was_compiled_for_it(
    isa: Isa, programs: dict[str, Path]
) -> None:
    isa_targets = targets(isa)
    lines = [
        f"{processor(isa, t.features)} {' '.join(t.required_features)}"
        for t in isa_targets.values()
    ]
    answers = dict(zip(isa_targets, ask(programs[isa.arch], lines), strict=True))
    assert {name: a for name, a in answers.items() if a != "loads"} == {}
    assert any(t.required_features for t in isa_targets.values())


@pytest.mark.parametrize("isa", COMPILED.values(), ids=COMPILED)
def test_a_processor_that_lacks_one_feature_is_refused_by_its_name(
    isa: Isa, programs: dict[str, Path]
) -> None:
    """Less one needed feature at a time, what needs it, and what is told by the same bit."""
    places, rows, lines = isa.places(), [], []
    for target in {t.features: t for t in targets(isa).values()}.values():
        for missing in target.required_features:
            features = target.features
            for name in [n for n, place in places.items() if place == places[missing]]:
                features = isa.without(features, name)
            if "egpr" not in features:  # then cpuid says nothing of the others
                features -= set(x86.STATES["EGPR"].split())
            rows.append(next(n for n in target.required_features if n not in features))
            lines.append(f"{processor(isa, features)} {' '.join(target.required_features)}")
    answers = ask(programs[isa.arch], lines)
    assert len(answers) == len(rows) > 300
    for lacking, answer in zip(rows, answers, strict=True):
        assert f"this processor lacks '{lacking}', which library pretended was" in answer


def test_registers_that_the_system_does_not_save_are_not_used(programs: dict[str, Path]) -> None:
    isa = ISAS["x86_64"]
    target = Target({"mcpu": "diamondrapids"})
    lacks = {"YMM": "avx", "ZMM": "avx10.1", "EGPR": "ccmp", "TILE": "amx-bf16"}
    for missing, lacking in lacks.items():
        unsaved = {missing} if missing != "YMM" else set(XCR0) - {"TILE"}
        saved = {name: 0 if name in unsaved else bits for name, bits in XCR0.items()}
        if missing == "ZMM":
            saved["ZMM"] = XCR0["YMM"]
        line = f"{processor(isa, target.features, saved)} {' '.join(target.required_features)}"
        (answer,) = ask(programs["x86_64"], [line])
        assert f"lacks '{lacking}'" in answer


def test_tiles_that_the_system_does_not_let_a_process_use_are_refused_by_name(
    programs: dict[str, Path],
) -> None:
    isa = ISAS["x86_64"]
    processor_text = processor(isa, isa.cpu_features("diamondrapids"), refused=True)
    needed = [Target({"mcpu": cpu}).required_features for cpu in ("sapphirerapids", "x86-64-v4")]
    with_tiles, without = ask(
        programs["x86_64"], [f"{processor_text} {' '.join(n)}" for n in needed]
    )
    assert "lacks 'amx-bf16', which library pretended was compiled for" in with_tiles
    assert without == "loads"


def test_a_name_that_the_runtime_does_not_know_is_refused(programs: dict[str, Path]) -> None:
    for arch, isa in COMPILED.items():
        (answer,) = ask(programs[arch], [f"{processor(isa, isa.implied)} warp-drive"])
        assert "needs CPU feature 'warp-drive', which its runtime cannot check" in answer


# -- what is not checked is not used ---------------------------------------------------------------

FAMILIES = (
    "linear",
    "conv3_winograd",
    "conv_depthwise",
    "softmax",
    "integer_conv",
    "integer_linear",
    "formulas",
    "product_in_half",
    "argmax",
    "sum_any",
)


def _sections(target: Target) -> dict[tuple[str, str], bytes]:
    """What objects consist of, but for the list of all features that those of RISC-V have."""
    cases = build().cases
    mod = IRModule(tuple(cases[name].function for name in FAMILIES), "b")
    artifacts = compile_module(mod, target).artifacts
    objects = [binary_of(a.view, a.file_name) for a in artifacts if a.file_name.endswith(".o")]
    return {
        (o.place, s.name): bytes(o.content(s))
        for o in objects
        if o is not None
        for s in o.sections
        if s.name != ".riscv.attributes"
    }


@pytest.mark.in_turn("arch")
@pytest.mark.parametrize(
    ("arch", "cpu"),
    [
        *(("x86_64", "diamondrapids"), ("x86_64", "bdver4"), ("aarch64", "fujitsu-monaka")),
        ("riscv64", "sifive-p870"),
    ],
)
def test_code_is_the_same_without_what_is_not_checked(arch: str, cpu: str) -> None:
    """All features that a library never needs, but for those that one it needs is made of."""
    isa = ISAS[arch]
    target = Target({"mtriple": f"{arch}-linux-gnu", "mcpu": cpu})
    needed = isa.closure(target.required_features) | isa.cpu_features(isa.baseline_cpu)
    # To fetch ahead, with hints: nothing, on a processor that does not know them.
    needed |= {"zicbop", "zihintntl"} & target.features
    disabled = [f"-{name}" for name in sorted(target.features - needed)]
    smaller_target = target.replace(mattr=disabled)
    assert smaller_target.required_features == target.required_features and len(disabled) > 9
    assert _sections(smaller_target) == _sections(target)
