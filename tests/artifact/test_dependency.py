"""External dependencies: their fields, and that those of one name agree."""

from __future__ import annotations

import pytest

from tensorkiln.artifact.dependency import (
    ExternalDependency,
    checked_libraries,
    merge_dependencies,
)
from tensorkiln.base.errors import UserError


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (("", "u"), "a short_name is"),
        (("a/b", "u"), "a short_name is"),
        (("a", " "), "is empty or holds a control character"),
        (("a", "x\ny"), "is empty or holds a control character"),
        (("a", "u", "urll"), "did you mean 'url'"),
        (("a", "u", "svn"), "one of path, url, git"),
        (("a", "u", "git"), "needs a version_spec"),
    ],
)
def test_malformed(fields: tuple[str, ...], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        ExternalDependency(*fields)
    assert caught.value.code == "bad-dependency"


def test_duplicates_merge_and_names_are_sorted() -> None:
    a = ExternalDependency("cmsis-nn", "https://example.org/cmsis.git", "git", "v4")
    b = ExternalDependency("blas", "/usr/lib/libblas.so", "path")
    assert merge_dependencies([("x", a), ("y", b), ("z", a)]) == (b, a)
    assert merge_dependencies([]) == ()


def test_different_ones_of_a_name_are_an_error_naming_both() -> None:
    a = ExternalDependency("blas", "https://a.org/x", "url", "1")
    b = ExternalDependency("blas", "https://b.org/x", "git", "1")
    with pytest.raises(UserError) as caught:
        merge_dependencies([("first", a), ("second", b)])
    text = str(caught.value)
    assert caught.value.code == "dependency-clash"
    assert "first and second" in text and "'https://a.org/x' against 'https://b.org/x'" in text
    assert "version_spec" not in text


GOOD = (
    "/usr/lib/libm.so",
    "/opt/a folder/libx.so.3",
    "/opt/ü/x.a",
    "-lm",
    "-l:libx.so.3",
    "-lstdc++",
    "-L/usr/lib",
    "-Wl,-rpath,/opt/x",
    "-Wl,-rpath=/opt/x",
    "-Wl,--rpath,$ORIGIN/x",
    "-Wl,--no-as-needed",
    "-Wl,--whole-archive",
)


def test_what_a_linker_may_be_told() -> None:
    assert checked_libraries(list(GOOD), "here") == GOOD
    assert checked_libraries((), "here") == ()


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("m", "did you mean '-lm'?"),
        ("stdc++", "did you mean '-lstdc++'?"),
        ("libx.so", "an absolute path, such as '/"),
        ("lib/libx.so", "an absolute path, such as '/"),
        ("~/libx.so", "an absolute path"),
        *[
            (text, "'/path/libx.so', '-lx'")
            for text in (
                "",
                " ",
                "-",
                "-l",
                "-l m",
                "-l/x",
                "-l../../x",
                "-L",
                "-Lrelative",
                "-o",
                "-o/tmp/x",
                "-shared",
                "-pthread",
                "@/tmp/options",
                "-Wl,",
                "-Wl,-o,/tmp/x",
                "-Wl,-rpath",
                "-Wl,-rpath,",
                "-Wl,-rpath,/x,-o,/tmp/x",
                "-Wl,-rpath=/x,-o,/tmp/x",
                "-Wl,--no-as-needed,-o,/tmp/x",
                "-Wl,-Map=/tmp/x",
                "-Wl,-T/tmp/x",
                "-Xlinker",
                "-fuse-ld=/tmp/x",
                "-B/tmp",
                "-specs=/tmp/x",
                "-L/x,-o,/tmp/x",
                "-lm\n",
                "-lm\0",
                "/lib/x\0.so",
                "/lib/\ud800.so",
                "/lib/",
                "/lib/x.so ",
            )
        ],
        (5, "'/path/libx.so', '-lx'"),
        (None, "'/path/libx.so', '-lx'"),
        (b"-lm", "'/path/libx.so', '-lx'"),
        (("-lm",), "'/path/libx.so', '-lx'"),
    ],
)
def test_what_a_linker_may_not_be_told(wrong: object, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_libraries(["-lm", wrong], "external 'x'")
    assert caught.value.code == "bad-library" and caught.value.where == "external 'x'"
    assert hint in caught.value.hint


@pytest.mark.parametrize("wrong", ["-lm", b"-lm", 5, None])
def test_libraries_are_several(wrong: object) -> None:
    with pytest.raises(UserError, match="libraries are a tuple of texts") as caught:
        checked_libraries(wrong, "external 'x'")
    assert caught.value.code == "bad-library"
    assert wrong != "-lm" or caught.value.hint == "libraries=('-lm',)"
