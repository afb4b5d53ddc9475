"""Hosts of long standing: threads, many lives of a library, failing memory, damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorkiln.base.element_types import NARROW_TYPES
from tensorkiln.codegen.host.entry_c import exported_symbols
from tensorkiln.codegen.host.function import KernelCall, Ptr, ScalarExpr, host_function
from tensorkiln.link.headers import HOSTS
from tensorkiln.link.shared import CRT, link_shared
from tests.crt.formulas import N, entry_of, own, size, tensor
from tests.hosts.build import (
    CHECKED,
    WARN,
    build,
    c_program,
    cpp_program,
    require,
    run,
)
from tests.hosts.conftest import DTYPES, EXAMPLES, LOADERS, STRESS, VALUES, program
from tests.link import sample
from tests.rotation import rows_in_turn


@pytest.mark.parametrize("language", ["C++", "Rust"])
def test_lifetimes_threads_and_failures(library: Path, programs: Path, language: str) -> None:
    """C++ under the sanitizers, with each of its allocations failing once."""
    process = run(program(STRESS, language, programs), library)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stdout + process.stderr


WIDTHS = {
    **{"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2},
    **{"int8": 1, "int16": 2, "int32": 4, "int64": 8},
    **{"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1},
    **dict.fromkeys(NARROW_TYPES, 1),
}


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each element type a function that copies, called like it."""
    functions = [
        host_function(
            name,
            "graph",
            inputs=(tensor("x", name, ("s_n",)),),
            outputs=(tensor("y", name, ("s_n",), "out"),),
            symbols=own("n"),
            calls=(KernelCall("copy", (Ptr("arg"), Ptr("arg", 1), ScalarExpr(size(N * width)))),),
        )
        for name, width in WIDTHS.items()
    ]
    copy = (
        "#include <string.h>\n#include <stdint.h>\n"
        "void copy(void *x, void *y, int64_t bytes) { memcpy(y, x, (size_t)bytes); }\n"
    )
    return link_shared(
        [],
        {"entry.c": entry_of(functions, "copies"), "copy.c": copy},
        None,
        tmp_path_factory.mktemp("copies") / "copies.so",
        triple=sample.TRIPLE,
        exports=exported_symbols(functions, prefix="copies"),
    )


@pytest.mark.parametrize("language", DTYPES)
def test_every_element_type(copies: Path, programs: Path, language: str) -> None:
    process = run(program(DTYPES, language, programs), copies)
    assert process.stdout.split("\n") == [*WIDTHS, ""], process.stdout + process.stderr


def test_eight_threads_in_c(library: Path, programs: Path) -> None:
    process = run(program(STRESS, "C", programs), library, "threads")
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.fixture(scope="module")
def plain(programs: Path) -> Path:
    """stress.c without the sanitizers, which keep what was freed."""
    return c_program(STRESS["C"], programs / "plain", "-O2")


@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_thousand_lives_at_flat_memory(library: Path, plain: Path, threads: str) -> None:
    """Resident memory and open files after 100 cycles, and after 1,000."""
    process = run(plain, library, "cycles", "1000", KILN_NUM_THREADS=threads)
    assert process.returncode == 0, process.stdout + process.stderr
    early, late = (list(map(int, line.split())) for line in process.stdout.splitlines())
    assert late[0] - early[0] < 512  # KiB
    assert late[1] == early[1]
    assert late[2] == 0, "the library is still mapped"


def test_every_allocation_may_fail(library: Path, programs: Path) -> None:
    flags = (*CHECKED, "-DWRAP", "-Wl,--wrap=calloc")
    host = c_program(STRESS["C"], programs / "wrapped", *flags)
    process = run(host, library, "memory", KILN_NUM_THREADS="1")
    assert process.returncode == 0 and "failures" in process.stdout, process.stdout + process.stderr


def test_damaged_files_are_refused_or_read(library: Path, programs: Path) -> None:
    """20,000 of them under the sanitizers, each at the end of its memory."""
    process = run(program(STRESS, "C", programs), library, "mutate", "20000", "7")
    assert process.returncode == 0, process.stdout + process.stderr
    refused, read = (int(word.split()[0]) for word in process.stdout.split(","))
    assert refused > 5000 and read > 2000 and refused + read == 20000


@pytest.mark.parametrize(
    "text",
    [
        '"a name"',
        '"\\u00e9 \\ud83d\\ude00 \\n\\t\\"\\\\\\/\\b\\f\\r."',
        '"\u00e9\U0001f600"',
        "-12.5e+3",
        "[1, 2",
        "[01]",
        "[1,]",
        "{'a': 1}",
        '{"a" 1}',
        '"\\x"',
        '"\\u12g4"',
        "nul",
        "1.",
        "-",
        '"open',
        "[" * 100_000,
        "",
    ],
)
def test_json_is_read_like_pythons(library: Path, programs: Path, text: str) -> None:
    process = run(program(STRESS, "C", programs), library, "names", text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        assert process.stdout == "no JSON\n"
    else:
        expected = value if isinstance(value, str) else text
        assert process.stdout == expected.replace("\r", "\n") + "\n"  # as text is read here


VALGRIND = ("-q", "--leak-check=full", "--error-exitcode=9")


@pytest.mark.parametrize("language", ["C", "C++"])
def test_valgrind(library: Path, programs: Path, language: str) -> None:
    compiler = c_program if language == "C" else cpp_program
    host = compiler(EXAMPLES[language], programs / f"example-{language}", "-O2", "-g")
    for words in (("main", "n=9"), ("split", "n=3"), ("mian",), ()):
        process = run(require("valgrind"), *VALGRIND, host, library, *words)
        assert process.returncode == (1 if words == ("mian",) else 0), (
            process.stdout + process.stderr
        )


@pytest.mark.parametrize("threads", ["1", "3"])
def test_many_lives_under_valgrind(library: Path, plain: Path, threads: str) -> None:
    """Opened again and again, at other addresses, by several threads; nothing is left at last."""
    for words in (("cycles", "20"), ("threads",)):
        process = run(
            require("valgrind"), *VALGRIND, plain, library, *words, KILN_NUM_THREADS=threads
        )
        assert process.returncode == 0, process.stdout + process.stderr


def test_cpp_under_valgrind(library: Path, programs: Path) -> None:
    """Its operator new is its own and takes from malloc(), which is no mismatch."""
    host = cpp_program(STRESS["C++"], programs / "plain-cpp", "-O2", "-g")
    flags = (*VALGRIND, "--show-mismatched-frees=no")
    process = run(require("valgrind"), *flags, host, library)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stdout + process.stderr


def test_declarations_are_those_of_kiln_h(tmp_path: Path) -> None:
    """The host's tables of functions against the header: a wrong type is an error."""
    source = tmp_path / "api.c"
    row = "{ result(*same) parameters = kiln_##name; (void)same; }"
    source.write_text(
        f'#include "kiln_host.h"\n#define SAME(name, result, parameters) {row}\n'
        "void check(void);\nvoid check(void)\n"
        "{ KILN_HOST_FUNCTIONS(SAME) KILN_HOST_VALUE_FUNCTIONS(SAME)"
        " KILN_HOST_LOADER_FUNCTIONS(SAME) KILN_HOST_DEVICE_FUNCTIONS(SAME) }\n"
    )
    include = ("-I", CRT, "-I", HOSTS)
    build(require("gcc"), "-std=c99", *WARN, *include, "-c", source, "-o", tmp_path / "o")


C_COMPILERS = [
    f"{tool} -std={standard}" for tool in ("gcc", "clang") for standard in ("c99", "c11", "c17")
]
CPP_COMPILERS = [
    f"{tool} -std={standard}"
    for tool in ("g++", "clang++")
    for standard in ("c++17", "c++20", "c++2b")
]


def _tool(compiler: str) -> str:
    """Of which each run takes one standard."""
    return compiler.partition(" ")[0]


def two_files(folder: Path, header: str, command: str) -> None:
    """A program of two files that both include the header, twice, built without a warning."""
    for name in ("one", "two"):
        (folder / f"{name}.c").write_text(
            f'#include "{header}"\n#include "{header}"\n'
            + ("int main(void) { return 0; }\n" if name == "one" else "")
        )
    tool, *flags = command.split()
    command_line = (require(tool), *flags, *WARN, "-I", CRT, "-I", HOSTS)
    build(*command_line, folder / "one.c", folder / "two.c", "-o", folder / "both", "-ldl")


@pytest.mark.parametrize(
    "compiler",
    rows_in_turn([*C_COMPILERS, *(f"{c} -x c++" for c in CPP_COMPILERS)], family=_tool),
)
def test_the_c_header_in_c_and_cpp(compiler: str, tmp_path: Path) -> None:
    two_files(tmp_path, "kiln_host.h", compiler)


@pytest.mark.parametrize("compiler", rows_in_turn(CPP_COMPILERS, family=_tool))
def test_the_cpp_header(compiler: str, tmp_path: Path) -> None:
    """By itself in every standard, with programs in the oldest and in the newest, which refuse what
    the one between them does."""
    two_files(tmp_path, "kiln.hpp", f"{compiler} -x c++")
    tool, standard = compiler.split()
    if standard == "-std=c++20":
        return
    for source in (STRESS["C++"], VALUES["C++"], LOADERS["C++"], EXAMPLES["C++"]):
        head = (require(tool), standard, *WARN, "-I", CRT, "-I", HOSTS)
        build(*head, "-fsyntax-only", source)


@pytest.mark.parametrize("tool", ["gcc", "clang"])
def test_32_bits_are_refused_in_words(tool: str, tmp_path: Path) -> None:
    """Before a header of a system that may not be installed is asked for."""
    (tmp_path / "one.c").write_text('#include "kiln_host.h"\n')
    process = run(
        require(tool), "-m32", "-fsyntax-only", "-I", CRT, "-I", HOSTS, tmp_path / "one.c"
    )
    assert process.returncode != 0
    assert "Tensorkiln makes libraries for 64-bit systems only" in process.stderr
