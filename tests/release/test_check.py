"""`make release-check`: what it says of this release's files, and of what is not ready."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from packaging.metadata import Metadata

from release.check import (
    changelog_problems,
    metadata_of,
    metadata_problems,
    requirement_problems,
    tree_problems,
    version_problems,
)
from release.partition import index_readme, version
from tests.release.conftest import ROOT, Release
from tests.release.environments import VERSIONS


def test_the_metadata(release: Release) -> None:
    files = [release.wheel, release.sdist, release.runtime_wheel, release.runtime_sdist]
    assert [p for file in files for p in metadata_problems(file, ROOT)] == []
    assert requirement_problems(files, ROOT) == []
    for file in files:
        message, _ = metadata_of(file)
        Metadata.from_email(message.as_string(), validate=True)
        runtime = file in (release.runtime_wheel, release.runtime_sdist)
        assert message["Name"] == ("tensorkiln-runtime" if runtime else "tensorkiln")
        assert message["Author"] == "The Tensorkiln authors"
        classifiers = message.get_all("Classifier") or []
        for python in VERSIONS:
            assert f"Programming Language :: Python :: {python}" in classifiers
    assert version_problems(ROOT) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [Targets](docs/targets.md).", "see Targets (`docs/targets.md`)."),
        ("[examples/c_host](examples/c_host) does", "examples/c_host does"),
        ("[a](https://x.org/b) and [c](#d)", "[a](https://x.org/b) and [c](#d)"),
        ("![Boxes.](docs/images/a.svg)", "Boxes."),
        ("x[0](y", "x[0](y"),
    ],
)
def test_links_of_the_readme_on_an_index(text: str, expected: str) -> None:
    assert index_readme(text) == expected


def _checkout(folder: Path, number: str, changelog: str) -> Path:
    (folder / "tensorkiln" / "base").mkdir(parents=True)
    (folder / "tensorkiln" / "base" / "version.py").write_text(f'VERSION = "{number}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    return folder


@pytest.mark.parametrize(
    ("number", "good"),
    [("0.1.0", True), ("12.0.30", True), ("1.0", False), ("1.02.3", False), ("1.0.0rc1", False)],
)
def test_versions(number: str, good: bool, tmp_path: Path) -> None:
    assert (version_problems(_checkout(tmp_path, number, "")) == []) is good
    assert version(tmp_path) == number


@pytest.mark.parametrize(
    ("changelog", "reason"),
    [
        ("# Changelog\n\n## 1.2.3, 2026-01-31\n\n- A line.\n\n## 1.2.2, 2026-01-01\n", ""),
        ("# Changelog\n\n## 1.2.3, unreleased\n\n- A line.\n", "begins with '1.2.3, unreleased'"),
        ("# Changelog\n\n## 1.2.2, 2026-01-31\n\n- A line.\n", "begins with '1.2.2, 2026-01-31'"),
        ("# Changelog\n\n## 1.2.3, 2026-01-31\n\n## 1.2.2, 2026-01-01\n\n- A.\n", "says nothing"),
        ("# Changelog\n", "has no section"),
    ],
)
def test_the_changelog(changelog: str, reason: str, tmp_path: Path) -> None:
    problems = changelog_problems(_checkout(tmp_path, "1.2.3", changelog))
    assert len(problems) == bool(reason)
    assert all(reason in problem for problem in problems)


def test_a_tree_that_is_not_clean(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert tree_problems(tmp_path) == []
    (tmp_path / "new.py").touch()
    assert tree_problems(tmp_path) == ["not committed: new.py"]


def test_files_that_are_not_ready(release: Release, tmp_path: Path) -> None:
    """Of another version, and of one whose requirements are another's."""
    other_checkout = _checkout(tmp_path, "9.9.9", "")
    assert "Version is" in metadata_problems(release.wheel, other_checkout)[0]
    assert (
        "does not require tensorkiln-runtime==9.9.9"
        in requirement_problems([release.wheel], other_checkout)[0]
    )
