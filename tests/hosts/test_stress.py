"""Hosts of long standing: threads, many lives of a library, failing memory, damaged files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensorkiln.link.headers import HOSTS
from tensorkiln.link.shared import CRT
from tests.hosts.build import (
    CHECKED,
    HERE,
    WARN,
    build,
    c_program,
    cpp_program,
    require,
    run,
)
from tests.hosts.conftest import EXAMPLES, STRESS, program


@pytest.mark.parametrize("language", ["C++", "Rust"])
def test_lifetimes_threads_and_failures(library: Path, programs: Path, language: str) -> None:
    """C++ under the sanitizers, with each of its allocations failing once."""
    done = run(program(STRESS, language, programs), library)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stdout + done.stderr


def test_four_threads_in_c(library: Path, programs: Path) -> None:
    done = run(program(STRESS, "C", programs), library, "threads")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def plain(programs: Path) -> Path:
    """stress.c without the sanitizers, which keep what was freed."""
    return c_program(STRESS["C"], programs / "plain", "-O2")


@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_thousand_lives_at_flat_memory(library: Path, plain: Path, threads: str) -> None:
    """Resident memory and open files after 100 cycles, and after 1,000."""
    done = run(plain, library, "cycles", "1000", KILN_NUM_THREADS=threads)
    assert done.returncode == 0, done.stdout + done.stderr
    early, late = (list(map(int, line.split())) for line in done.stdout.splitlines())
    assert late[0] - early[0] < 512  # KiB
    assert late[1] == early[1]
    if threads == "1":  # else its thread pool stays, for other libraries
        assert late[2] == 0, "the library is still mapped"


def test_every_allocation_may_fail(library: Path, programs: Path) -> None:
    flags = (*CHECKED, "-DWRAP", "-Wl,--wrap=calloc")
    host = c_program(STRESS["C"], programs / "wrapped", *flags)
    done = run(host, library, "memory", KILN_NUM_THREADS="1")
    assert done.returncode == 0 and "failures" in done.stdout, done.stdout + done.stderr


def test_damaged_files_are_refused_or_read(library: Path, programs: Path) -> None:
    """20,000 of them under the sanitizers, each at the end of its memory."""
    done = run(program(STRESS, "C", programs), library, "mutate", "20000", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    refused, read = (int(word.split()[0]) for word in done.stdout.split(","))
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
    done = run(program(STRESS, "C", programs), library, "names", text)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        assert done.stdout == "no JSON\n"
    else:
        shown = value if isinstance(value, str) else text
        assert done.stdout == shown.replace("\r", "\n") + "\n"  # as text is read here


@pytest.mark.parametrize("language", ["C", "C++"])
def test_valgrind(library: Path, programs: Path, language: str) -> None:
    """One opening only: valgrind 3.19 itself ends at the second dlopen() of such a library."""
    valgrind = (require("valgrind"), "-q", "--leak-check=full", "--error-exitcode=9")
    compiler = c_program if language == "C" else cpp_program
    host = compiler(EXAMPLES[language], programs / f"example-{language}", "-O2", "-g")
    for words in (("main", "n=9"), ("split", "n=3"), ("mian",), ()):
        done = run(*valgrind, host, library, *words, KILN_NUM_THREADS="1")
        assert done.returncode == (1 if words == ("mian",) else 0), done.stdout + done.stderr


def test_declarations_are_those_of_kiln_h(tmp_path: Path) -> None:
    """The host's tables of functions against the header: a wrong type is an error."""
    source = tmp_path / "api.c"
    row = "{ result(*same) parameters = kiln_##name; (void)same; }"
    source.write_text(
        f'#include "kiln_host.h"\n#define SAME(name, result, parameters) {row}\n'
        "void check(void);\nvoid check(void)\n"
        "{ KILN_HOST_FUNCTIONS(SAME) KILN_HOST_VALUE_FUNCTIONS(SAME)"
        " KILN_HOST_LOADER_FUNCTIONS(SAME) }\n"
    )
    include = ("-I", CRT, "-I", HOSTS)
    build(require("gcc"), "-std=c99", *WARN, *include, "-c", source, "-o", tmp_path / "o")


@pytest.mark.parametrize(
    "compiler", ["gcc -std=c11", "g++ -x c++ -std=c++17", "g++ -x c++ -std=c++20"]
)
def test_the_header_is_c_and_cpp(compiler: str, tmp_path: Path) -> None:
    """In two files of one program, without a warning."""
    for name in ("one.c", "two.c"):
        (tmp_path / name).write_text(
            '#include "kiln_host.h"\n#include "kiln_host.h"\n'
            + ("int main(void) { return 0; }\n" if name == "one.c" else "")
        )
    tool, *flags = compiler.split()
    command = (require(tool), *flags, *WARN, "-I", CRT, "-I", HOSTS)
    build(*command, tmp_path / "one.c", tmp_path / "two.c", "-o", tmp_path / "both", "-ldl")


def test_the_sources_are_here() -> None:
    assert all(source.is_relative_to(HERE) and source.exists() for source in STRESS.values())
