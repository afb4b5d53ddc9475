"""The runtime's files stand in the order of a call: each calls only files below it in the list of
crt.h, and is declared in the paragraph that names it."""

from __future__ import annotations

import re

from tensorkiln.link.object_format import ELF, FORMATS
from tensorkiln.link.shared import ALL_KINDS, CRT, crt_sources


def code(text: str) -> str:
    """C without comments and without the contents of strings."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    return re.sub(r'"(\\.|[^"\\])*"', '""', text)


PUBLIC = {"kiln.h", "kiln_system.h"}  # in the order of a reader
C99 = {f"{h}.h" for h in ["limits", "stdarg", "stddef", "stdint", "stdio", "stdlib", "string"]}
HEADERS = {p.name: p.read_text() for p in sorted(CRT.glob("*.h")) if p.name not in PUBLIC}
SOURCES = {path.name: code(path.read_text()) for path in crt_sources(devices=ALL_KINDS)}
ORDER = re.findall(
    r"\b\w+\.c\b", HEADERS["crt.h"].partition("\n *     the library ")[2].partition("\n *\n")[0]
)


def definitions(text: str) -> set[str]:
    """Functions and variables of a file that others can use."""
    names = set()
    for line in re.findall(r"^(?!static|typedef|extern|struct \w+ \{)\w[^;{}#]*[;{]", text, re.M):
        head = re.sub(r"\(.*", "(", line.partition("=")[0], flags=re.S)
        names |= set(re.findall(r"\b(?:kiln_\w+|mem\w+)(?=\s*[,;(\[]|\s*$)", head))
    return names


DEFINED = {name: file for file, text in SOURCES.items() for name in definitions(text)}


def test_the_list_has_every_file_once() -> None:
    assert sorted(ORDER) == sorted(SOURCES)
    assert DEFINED["kiln_bind"] == "bind.c" and DEFINED["kiln_pool_lock"] == "lock.c"
    assert len(DEFINED) > 150


def test_no_file_calls_upwards() -> None:
    upwards = {
        (caller, name)
        for caller, text in SOURCES.items()
        for name in set(re.findall(r"\w+", text)) & set(DEFINED)
        if ORDER.index(DEFINED[name]) < ORDER.index(caller)
    }
    assert upwards == set()


def paragraphs(header: str) -> list[tuple[list[str], str]]:
    """The files that each paragraph of a header names, and what it declares."""
    _, *parts = re.split(r"^/\* ---- (.*?) -+ \*/$", HEADERS[header], flags=re.M)
    pairs = zip(parts[::2], parts[1::2], strict=True)
    if header == "os.h":  # one file has all of its paragraphs
        return [([ELF.os_source], code(body)) for _, body in pairs]
    return [(re.findall(r"\b\w+\.c\b", head.partition(":")[0]), code(body)) for head, body in pairs]


def test_headers_are_in_that_order() -> None:
    for header in HEADERS:
        files = [file for names, _ in paragraphs(header) for file in names if file in SOURCES]
        assert files == sorted(files, key=ORDER.index), header


def test_declarations_are_in_the_paragraph_of_their_file() -> None:
    wrong = [
        f"{header}: {name} of {DEFINED[name]} is declared with {' '.join(files)}"
        for header in HEADERS
        for files, body in paragraphs(header)
        for name in re.findall(r"^(?!static)\w[^;{}#(]*?\b(kiln_\w+)\(", body, re.M)
        if name in DEFINED and DEFINED[name] not in files
    ]
    assert wrong == []


def test_one_file_asks_the_system() -> None:
    """All others include headers of C99 only, and do not ask which system it is."""
    systems = {row.os_source for row in FORMATS.values()}
    assert systems == {path.name for path in CRT.glob("os_*.c")}
    for path in [*CRT.glob("*.c"), *CRT.glob("*.h")]:
        if path.name not in systems:
            text = code(path.read_text())
            assert set(re.findall(r"# *include <([^>]+)>", text)) <= C99, path.name
            asks = re.findall(r"\b__(?:linux|unix|APPLE|GLIBC)__\b|\b_WIN32\b", text)
            assert not asks or path.name == "os.h", path.name
