"""External dependencies: their fields, and that those of one name agree."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tensorkiln.artifact.dependency import (
    checked_libraries,
    dependencies_text,
    merge_dependencies,
)
from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.schema import Reader


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


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"license": "MTI"}, "unknown license 'MTI'"),
        ({"sha256": "0" * 63}, "is not 64 digits of lower-case hex"),
        ({"sha256": "A" * 64}, "is not 64 digits of lower-case hex"),
        ({"sha256": "0" * 64, "url_type": "git", "version_spec": "1"}, "the commit is the hash"),
        ({"libraries": "libx.so"}, "expected file names"),
        ({"libraries": (3,)}, "expected file names"),
        ({"libraries": ("/usr/lib/libx.so",)}, "is not the file name of a library"),
        ({"libraries": ("libx.so\n",)}, "is not the file name of a library"),
        ({"libraries": ("libx.so",), "build_time": True}, "needed only to build"),
        ({"build_time": "yes"}, "expected True or False"),
        ({"version_spec": "1\n2"}, "holds a control character"),
        ({"version_spec": None}, "expected text"),
        ({"url": "\ud800"}, "holds a control character"),
    ],
)
def test_malformed_fields(fields: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        ExternalDependency(**{"short_name": "a", "url": "u"} | fields)  # type: ignore[arg-type]
    assert caught.value.where == "dependency 'a'"


# One value of each field, other than those of BASE: what a field is, all of these tests see.
BASE = ExternalDependency("a", "u")
OTHER = {
    "short_name": "b",
    "url": "v",
    "url_type": "path",
    "version_spec": "2",
    "license": "MIT",
    "sha256": "0" * 64,
    "libraries": ("liba.so.1", "libb.so"),
    "build_time": True,
}


def test_the_table_has_every_field() -> None:
    assert tuple(OTHER) == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_counts_and_is_kept(name: str) -> None:
    changed = replace(BASE, **{name: OTHER[name]})
    assert changed != BASE and len({changed, BASE}) == 2
    (row,) = json.loads(dependencies_text([changed]))
    assert tuple(row) == FIELDS
    assert row == changed.to_json()
    assert ExternalDependency.read(Reader(row, "here", "bad")) == changed
    if name == "short_name":
        assert merge_dependencies([("x", BASE), ("y", changed)]) == (BASE, changed)
        return
    with pytest.raises(UserError) as caught:
        merge_dependencies([("one place", BASE), ("another", changed)])
    assert caught.value.code == "dependency-clash"
    assert f"{name} {getattr(BASE, name)!r} against {OTHER[name]!r}" in caught.value.message
    assert "one place and another ask for different dependencies 'a'" in caught.value.message


def test_rows_of_the_first_version_have_four_fields() -> None:
    row = {"short_name": "a", "url": "u", "url_type": "url", "version_spec": ""}
    assert ExternalDependency.read(Reader(row, "here", "bad")) == BASE
    with pytest.raises(UserError, match="expected true or false, got int"):
        ExternalDependency.read(Reader(row | {"build_time": 1}, "here", "bad"))


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
