"""External dependencies: their fields, and that those of one name agree."""

from __future__ import annotations

import pytest

from tensorkiln.artifact.dependency import ExternalDependency, merge_dependencies
from tensorkiln.base.errors import UserError


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (("", "u"), "a short_name is"),
        (("a/b", "u"), "a short_name is"),
        (("a", " "), "is no place"),
        (("a", "x\ny"), "is no place"),
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
