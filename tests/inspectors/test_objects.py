"""Symbols against readelf, instructions against the assembly that LLVM itself writes."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from tensorkiln.artifact import Artifact, FileContent
from tensorkiln.base.errors import UserError
from tensorkiln.codegen.llvm.texts import kernel_texts
from tensorkiln.inspectors import objects, open_subject
from tensorkiln.inspectors.signatures import list_functions
from tests.inspectors.conftest import Forms

PROGRAM = """
@table = internal constant [4 x i32] [i32 3, i32 1, i32 4, i32 1]
declare double @cos(double)
declare void @outside(ptr)

define double @area(double %x, double %y) {
  %a = fmul double %x, %y
  %b = call double @cos(double %a)
  %c = fadd double %b, %x
  ret double %c
}

define internal i32 @pick(i32 %i) noinline {
  %p = getelementptr [4 x i32], ptr @table, i32 0, i32 %i
  %v = load i32, ptr %p
  ret i32 %v
}

define i32 @twice(i32 %i) {
  call void @outside(ptr @table)
  %a = call i32 @pick(i32 %i)
  %b = mul i32 %a, %a
  ret i32 %b
}
"""
TRIPLES = {
    "x86_64": ("x86_64-unknown-linux-gnu", "x86-64-v3"),
    "aarch64": ("aarch64-unknown-linux-gnu", "cortex-a72"),
    "riscv": ("riscv64-unknown-linux-gnu", "generic-rv64"),
    "arm": ("armv7-unknown-linux-gnueabihf", "generic"),
    "i386": ("i686-unknown-linux-gnu", "pentium4"),
}
INSTRUCTION = re.compile(r"\s+([a-z][\w.]*)\s*(.*)")


def compiled(machine: str, text: str = PROGRAM) -> tuple[bytes, str]:
    """The object of a module, and its assembly."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu = TRIPLES[machine]
    maker = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(text)
    module.triple = triple
    return bytes(maker.emit_object(module)), maker.emit_assembly(module)


def assembly_words(text: str) -> dict[str, list[str]]:
    """Mnemonics by function of what LLVM wrote."""
    words_by_function: dict[str, list[str]] = {}
    words: list[str] | None = None
    for line in text.splitlines():
        label = re.match(r"([A-Za-z_][\w.]*):", line)
        if label:
            words = words_by_function.setdefault(label[1], [])
        elif line.startswith((".L", ".Lfunc_end")):
            words = None if line.startswith(".Lfunc_end") else words
        elif words is not None and (m := INSTRUCTION.match(line)):
            words.append(m[1])
    return {name: words for name, words in words_by_function.items() if words}


def shown_words(artifact: Artifact) -> dict[str, list[str]]:
    """The same of what the inspector shows."""
    words_by_function: dict[str, list[str]] = {}
    words: list[str] = []
    for line in "".join(objects.show_instructions(artifact)).splitlines()[1:]:
        if m := re.match(r"(\S+):  # \d+ bytes in ", line):
            words = words_by_function.setdefault(m[1], [])
        elif m := re.match(r" *[0-9a-f]+  (\S+)", line):
            words.append(m[1])
    return words_by_function


def same_mnemonic(a: str, b: str) -> bool:
    """Two writers of assembly agree but for suffixes of size and a few conditions."""
    alike = {"jae": "jnb", "jb": "jc", "je": "jz", "jne": "jnz", "sete": "setz", "setne": "setnz"}
    a, b = (alike.get(x, x).rstrip("qlwb") for x in (a, b))
    return a == b or {a, b} <= {"movab", "mov"} or {a, b} <= {"ret", "bx"} or "nop" in a + b


def test_instructions_of_kernels_are_those_llvm_wrote(forms: Forms) -> None:
    executable = forms.executable
    kernels = [f for f in executable.module.kernels if f.name == "linear_relu"]
    (text,) = kernel_texts(kernels, executable.target, "assembly")
    expected = assembly_words(text)
    for form, name in (("folder", "llvm/linear_relu.o"), ("library", "llvm/linear_relu.code")):
        words_by_function = shown_words(open_subject(getattr(forms, form)).artifacts[name])
        assert set(words_by_function) == {
            "linear_relu",
            "linear_relu.body0",
            "linear_relu.body0.entry",
        }
        assert set(words_by_function) == set(expected)
        for function, words in words_by_function.items():
            # Padding before loops is no line of assembly.
            mnemonics = [w for w in words if "nop" not in w and not w.startswith("data")]
            llvm_mnemonics = [w for w in expected[function] if "nop" not in w]
            assert len(mnemonics) == len(llvm_mnemonics)
            odd = [p for p in zip(mnemonics, llvm_mnemonics, strict=True) if not same_mnemonic(*p)]
            assert not odd, odd[:5]


@pytest.mark.parametrize("machine", TRIPLES)
def test_other_machines(machine: str) -> None:
    code, text = compiled(machine)
    artifact = Artifact("llvm", "native", "p.o", code)
    expected, words_by_function = assembly_words(text), shown_words(artifact)
    assert set(words_by_function) == {"area", "pick", "twice"}
    for function, words in words_by_function.items():
        assert len(words) >= 3 and not any(".byte" in w for w in words)
        if machine in ("x86_64", "aarch64"):  # where LLVM writes no pseudo instructions
            expected_words = expected[function]
            assert len(words) == len(expected_words), (words, expected_words)


def test_calls_are_named() -> None:
    code, _ = compiled("x86_64")
    text = "".join(objects.show_instructions(Artifact("llvm", "native", "p.o", code)))
    area, twice = text.partition("area:")[2], text.partition("twice:")[2]
    assert re.search(r"call\S* .*# cos", area.partition("pick:")[0])
    assert re.search(r"call\S* .*# outside", twice)


def test_calls_inside_a_library_are_named(forms: Forms) -> None:
    """`linear_relu` hands the address of its body to the pool through the entry of the body."""
    itself = open_subject(forms.library).itself
    assert itself is not None
    text = "".join(objects.show_instructions(itself))
    body = text.partition("\nlinear_relu.body0.entry:")[2].partition("\n\n")[0]
    assert re.search(r"(call|jmp)\S* .*# linear_relu\.body0\n", body + "\n"), body


@pytest.mark.parametrize("form", ["library", "folder"])
def test_symbols_agree_with_readelf(forms: Forms, form: str) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    path = forms.library if form == "library" else forms.folder / "llvm" / "linear_relu.o"
    lines = (
        subprocess.run(["readelf", "-sW", str(path)], capture_output=True, text=True, check=True)
        .stdout.partition(".symtab")[2]
        .splitlines()
    )
    expected = {}
    for line in lines:
        fields = line.split()
        if len(fields) == 8 and fields[3] == "FUNC" and fields[6] != "UND":
            expected[fields[7]] = (int(fields[1], 16), int(fields[2], 0))
    artifact = Artifact("x", "native", path.name, FileContent(path))
    functions = {f.name: f for f in objects.functions_in(artifact)}
    assert len(functions) > 2 and set(functions) == set(expected)
    for name, (address, size) in expected.items():
        f = functions[name]
        start = f.start if form == "folder" else f.address
        assert (start, f.size) == (address, size)
    rows = "".join(objects.show_symbols(artifact)).splitlines()[1:]
    rows_by_name = {row.split()[-1]: row.split() for row in rows if " function " in row}
    for name, (address, size) in expected.items():
        assert rows_by_name[name][:2] == [f"{address:x}", str(size)]
    sections = "".join(objects.show_sections(artifact))
    listed = subprocess.run(["readelf", "-SW", str(path)], capture_output=True, text=True).stdout
    for name in re.findall(r"\] (\.\S+)", listed):
        assert f"  {name}\n" in sections


def test_list_functions_sums_up_to_the_code(forms: Forms) -> None:
    subject = open_subject(forms.library)
    kernel_objects = [a for a in subject.artifacts if a.codegen_id == "llvm"]
    rows = "".join(list_functions(kernel_objects)).splitlines()[1:]
    sizes = [int(row.split()[0]) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == sum(a.size for a in kernel_objects)
    folder = [a for a in open_subject(forms.folder).artifacts if a.codegen_id == "llvm"]
    names = [row.split()[1] for row in "".join(list_functions(folder)).splitlines()]
    assert sorted(names) == sorted(["function", *(row.split()[1] for row in rows)])


def test_list_functions_of_bitcode() -> None:
    code, _ = compiled("x86_64")
    bitcode = bytes(llvm.parse_assembly(PROGRAM).as_bitcode())
    artifacts = [Artifact("llvm", "x", "a.o", code), Artifact("llvm", "x", "b.bc", bitcode)]
    rows = [line.split() for line in "".join(list_functions(artifacts)).splitlines()[1:]]
    assert [r for r in rows if r[0] == "-"] == [
        ["-", "area", "llvm/b.bc"],
        ["-", "pick", "llvm/b.bc"],
        ["-", "twice", "llvm/b.bc"],
    ]
    assert {r[1] for r in rows if r[0] != "-"} == {"area", "pick", "twice"}


def test_without_capstone_everything_else_works(
    forms: Forms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "capstone", None)
    artifact = open_subject(forms.folder).artifacts["linear.o"]
    with pytest.raises(UserError) as caught:
        list(objects.show_instructions(artifact))
    assert caught.value.code == "missing-package"
    assert "tensorkiln[inspect]" in caught.value.hint
    assert "linear" in "".join(objects.show_symbols(artifact))


def test_unknown_machines_are_named() -> None:
    code = bytearray(compiled("x86_64")[0])
    code[18:20] = (22).to_bytes(2, "little")  # S/390
    with pytest.raises(UserError) as caught:
        list(objects.show_instructions(Artifact("llvm", "native", "p.o", bytes(code))))
    assert caught.value.code == "unknown-machine" and "x86_64" in caught.value.hint


@pytest.mark.parametrize(
    "show", [objects.show_instructions, objects.show_symbols, objects.show_sections]
)
def test_damaged_objects_never_escape(show: object, forms: Forms) -> None:
    rng = random.Random(7)
    for source in (compiled("x86_64")[0], (forms.folder / "llvm" / "linear.o").read_bytes()):
        for round_ in range(150):
            damaged = bytearray(source)
            if round_ % 3 == 0:
                del damaged[rng.randrange(len(damaged)) :]
            for _ in range(rng.choice((1, 4, 30))):
                if damaged:
                    place = rng.randrange(len(damaged))
                    # The headers decide most.
                    place = rng.choice((place, place % 64, len(damaged) - 1 - place % 900))
                    damaged[place % len(damaged)] = rng.choice((0, 255, rng.randrange(256)))
            try:
                for _ in show(Artifact("llvm", "native", "p.o", bytes(damaged))):  # type: ignore[operator]
                    pass
            except UserError as error:
                assert error.code in ("bad-library", "unknown-machine")


def test_objects_that_are_none(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF", b"junk" * 100, b"\x7fELF\x02\x01" + bytes(58)):
        with pytest.raises(UserError) as caught:
            list(objects.show_instructions(Artifact("llvm", "native", "p.o", content)))
        assert caught.value.code == "bad-library"
