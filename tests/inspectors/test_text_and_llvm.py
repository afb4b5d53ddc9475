"""JSON, text, bytes and LLVM modules; and files that are not what their names say."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable

import llvmlite.binding as llvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorkiln.artifact import Artifact, Later
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors import open_subject, text
from tensorkiln.inspectors.llvm import show_assembly, show_functions, show_ll
from tests.inspectors.conftest import Forms
from tests.inspectors.test_objects import PROGRAM


def artifact(name: str, content: bytes | str | Later) -> Artifact:
    return Artifact("x", "x", name, content.encode() if isinstance(content, str) else content)


class Pieces(Later):
    """Content that comes in pieces of odd sizes."""

    def __init__(self, data: bytes, step: int):
        self.data, self.step, self.size = data, step, len(data)

    def chunks(self) -> Iterable[memoryview]:  # type: ignore[override]
        for offset in range(0, len(self.data), self.step):
            yield memoryview(self.data[offset : offset + self.step])


def undumped(lines: str) -> bytes:
    """The bytes that a hexdump was made of."""
    out, repeat, last = b"", False, b""
    for line in lines.splitlines():
        if line == "*":
            repeat = True
            continue
        offset = int(line[:8], 16)
        while repeat and len(out) < offset:
            out += last
        assert len(out) == offset
        repeat = False
        if line[8:]:
            last = bytes.fromhex(line[10:58].replace(" ", ""))
            letters = line[61:-1]
            assert letters == "".join(chr(b) if 32 <= b < 127 else "." for b in last)
            out += last
    return out


@settings(max_examples=80)
@given(
    st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 90).map(bytes))).map(b"".join),
    st.integers(1, 40),
)
def test_a_hexdump_gives_its_bytes_back(data: bytes, step: int) -> None:
    dump = "".join(text.show_bytes(artifact("x", Pieces(data, step))))
    assert undumped(dump) == data
    assert dump == "".join(text.show_bytes(artifact("x", data)))


@settings(max_examples=60)
@given(st.recursive(st.none() | st.integers() | st.text(), st.lists), st.booleans())
def test_json_means_the_same(value: object, padded: bool) -> None:
    content = json.dumps(value).encode() + bytes(5 * padded)
    output = text.show_json(artifact("x.json", content))
    assert json.loads(output) == value and output.endswith("\n")


def test_json_that_fits_into_a_line_is_one() -> None:
    rows = [{"name": f"w{i}", "shape": [64, 3, 7, 7], "empty": {}, "odd": "é\n"} for i in range(2)]
    output = text.show_json(artifact("x.json", json.dumps(rows)))
    assert output.splitlines() == [
        "[",
        '  {"name": "w0", "shape": [64, 3, 7, 7], "empty": {}, "odd": "é\\n"},',
        '  {"name": "w1", "shape": [64, 3, 7, 7], "empty": {}, "odd": "é\\n"}',
        "]",
    ]
    deep = text.show_json(artifact("x.json", json.dumps({"a": {"b": list(range(40))}})))
    assert deep.splitlines()[:4] == ["{", '  "a": {', '    "b": [', "      0,"]


@settings(max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.integers(1, 5))
def test_text_stays_as_it_is(words: str, step: int) -> None:
    output = "".join(text.show_source(artifact("x.c", Pieces(words.encode(), step))))
    assert output == words + ("" if words.endswith("\n") else "\n")


JUNK = b"\x80\x81\xfe\xff\x00" * 20
WRONG: list[tuple[Callable[[Artifact], object], bytes, str]] = [
    (text.show_json, JUNK, "bad-json"),
    (text.show_json, b"", "bad-json"),
    (text.show_json, b"[" * 200_000, "bad-json"),
    (text.show_json, b'{"a": 1', "bad-json"),
    (text.show_json, b"9" * 5000, "bad-json"),
    (lambda a: list(text.show_source(a)), JUNK, "not-text"),
    (lambda a: list(text.show_source(a)), "ends inside é".encode()[:-1], "not-text"),
    (show_ll, b"BC\xc0\xde", "bad-llvm"),
    (show_ll, b"BC\xc0\xde" + JUNK, "bad-llvm"),
    (show_ll, b"\xde\xc0\x17\x0b" + JUNK, "bad-llvm"),
    (show_ll, b"define nothing", "bad-llvm"),
    (show_assembly, JUNK, "bad-llvm"),
    (show_assembly, b'target triple = "abacus-unknown-none"\n', "bad-llvm"),
    (show_assembly, b"define i32 @f() { ret float 1.0 }", "bad-llvm"),
    (show_functions, JUNK, "bad-llvm"),
]


@pytest.mark.parametrize(("show", "content", "code"), WRONG)
def test_what_is_not_what_its_name_says(
    show: Callable[[Artifact], object], content: bytes, code: str
) -> None:
    with pytest.raises(UserError) as caught:
        show(artifact("fake.x", content))
    assert caught.value.code == code and caught.value.where == "x/fake.x"


def bitcode(source: str = PROGRAM) -> bytes:
    module = llvm.parse_assembly(source)
    module.triple = "aarch64-unknown-linux-gnu"
    return bytes(module.as_bitcode())


def test_bitcode_as_text_and_back() -> None:
    ll_text = show_ll(artifact("p.bc", bitcode()))
    again = llvm.parse_assembly(ll_text)
    assert again.triple == "aarch64-unknown-linux-gnu"
    assert bytes(again.as_bitcode()) == bitcode() or str(again) == str(
        llvm.parse_bitcode(bitcode())
    )


def test_assembly_is_for_the_target_of_the_module() -> None:
    assembly = show_assembly(artifact("p.bc", bitcode()))
    assert assembly.startswith("# aarch64-unknown-linux-gnu, the baseline\n")
    assert re.search(r"\bfmul\s+d\d+, d\d+, d\d+", assembly) and re.search(
        r"\bbl\s+cos\b", assembly
    )
    haswell_program = PROGRAM.replace("double %y) {", "double %y) #0 {") + (
        'attributes #0 = { "target-cpu"="haswell" }\n'
    )
    assembly = show_assembly(
        artifact("p.ll", 'target triple = "x86_64-linux-gnu"\n' + haswell_program)
    )
    assert assembly.startswith("# x86_64-linux-gnu, haswell\n") and "vmulsd" in assembly


def test_functions_of_a_module() -> None:
    lines = show_functions(artifact("p.bc", bitcode())).splitlines()
    rows_by_name = {line.split()[-1]: line.split()[:2] for line in lines}
    assert rows_by_name == {
        "cos": ["declared", "double"],
        "outside": ["declared", "void"],
        "area": ["defined", "4"],
        "pick": ["defined", "3"],
        "twice": ["defined", "4"],
    }


def test_the_ll_of_a_kernel_compiles_to_its_assembly(forms: Forms) -> None:
    """The artifact holds what is needed: the triple, the processor and its features."""
    artifacts = open_subject(forms.folder).artifacts
    assembly = show_assembly(artifacts["linear.ll"])
    assert forms.executable.target.mcpu in assembly.partition("\n")[0]
    wide = "zmm" in artifacts["linear.s"].text()
    assert ("zmm" in assembly) is wide and "\nlinear:" in assembly


def test_damaged_bitcode_never_escapes() -> None:
    rng, source = random.Random(3), bitcode()
    for _ in range(12):
        damaged = bytearray(source)
        for _ in range(rng.choice((1, 8))):
            damaged[rng.randrange(4, len(damaged))] = rng.randrange(256)
        try:
            assert show_ll(artifact("p.bc", bytes(damaged)))
        except UserError as error:
            assert error.code == "bad-llvm"
