"""`make release-check`: whether this checkout can be released; the files of the release, in dist/.

One line per check, and the reasons of those that fail; the exit code is 1 if any does. Nothing is
fetched or sent.
"""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.message import Message
from pathlib import Path

from release.build import ROOT, build
from release.partition import index_readme, version

_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)\Z")
_PAGES = ("CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md")
_FIELDS = (
    *("Summary", "Author", "License-Expression", "Keywords", "Classifier", "Requires-Python"),
    *("License-File", "Description-Content-Type"),
)


def version_problems(root: Path) -> list[str]:
    """A version is three numbers: semantic versioning and pip spell anything else differently."""
    found = version(root)
    return [] if _VERSION.match(found) else [f"{found!r} is not MAJOR.MINOR.PATCH"]


def changelog_problems(root: Path) -> list[str]:
    """The newest section is this version's, with the day of its release and at least one line."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heads = re.findall(r"^## (.*)$", text, re.M)
    if not heads:
        return ["CHANGELOG.md has no section"]
    if not re.fullmatch(rf"{re.escape(version(root))}, \d{{4}}-\d\d-\d\d", heads[0]):
        return [f"CHANGELOG.md begins with {heads[0]!r}, expected '{version(root)}, YYYY-MM-DD'"]
    body = re.split(r"^## .*$", text, flags=re.M)[1]
    return [] if re.search(r"^- ", body, re.M) else ["CHANGELOG.md says nothing of this version"]


def tree_problems(root: Path) -> list[str]:
    """Everything is committed."""
    command = ["git", "status", "--porcelain"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if done.returncode != 0:
        return [f"git: {done.stderr.strip()}"]
    return [f"not committed: {line[3:]}" for line in done.stdout.splitlines()]


def metadata_of(path: Path) -> tuple[Message, set[str]]:
    """The metadata of a wheel or source distribution, and the names of its files."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = set(wheel.namelist())
            (place,) = [n for n in names if n.endswith(".dist-info/METADATA")]
            return email.message_from_bytes(wheel.read(place)), names
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
        file = sdist.extractfile(f"{path.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert file is not None
        return email.message_from_bytes(file.read()), names


def metadata_problems(path: Path, root: Path) -> list[str]:
    """What an index, or who reads its page, would miss in the metadata of a file."""
    found, names = metadata_of(path)
    problems = [f"no {field}" for field in _FIELDS if not found[field]]
    if found["Version"] != version(root):
        problems.append(f"Version is {found['Version']}")
    python = {c.rpartition(" :: ")[2] for c in found.get_all("Classifier") or () if "3." in c}
    if (found["Requires-Python"] or "").removeprefix(">=") not in python:
        problems.append(f"Requires-Python is {found['Requires-Python']}, classifiers {python}")
    page = found.get_payload()
    assert isinstance(page, str)
    if len(page) < 500:
        problems.append("the description is empty")
    if index_readme(page) != page:
        problems.append("the description links to files, which lead nowhere on an index")
    if path.suffix == ".whl":
        if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
            problems.append("the wheel has no LICENSE")
    else:
        problems += [f"no {page} in it" for page in _PAGES if page not in names]
    return [f"{path.name}: {problem}" for problem in problems]


def requirement_problems(paths: list[Path], root: Path) -> list[str]:
    """The compiler requires the runtime of its own version; the runtime requires NumPy alone."""
    problems = []
    for path in paths:
        found, _ = metadata_of(path)
        needs = [need for need in found.get_all("Requires-Dist") or () if "extra ==" not in need]
        if found["Name"] == "tensorkiln-runtime":
            if [re.split(r"[<>=]", need)[0] for need in needs] != ["numpy"]:
                problems.append(f"{path.name} requires {needs}")
        elif f"tensorkiln-runtime=={version(root)}" not in needs:
            problems.append(f"{path.name} does not require tensorkiln-runtime=={version(root)}")
    return problems


def build_problems(root: Path, out: Path) -> list[str]:
    """Build all files into an empty folder, and look at what was built."""
    shutil.rmtree(out, ignore_errors=True)
    try:
        made = build(root, out)
    except SystemExit as failed:
        return [str(failed)]
    names = {"-".join(path.name.split("-")[:2]).removesuffix(".tar.gz") for path in made}
    expected = {f"{name}-{version(root)}" for name in ("tensorkiln", "tensorkiln_runtime")}
    problems = [] if names == expected and len(made) == 4 else [f"built {sorted(names)}"]
    problems += [problem for path in made for problem in metadata_problems(path, root)]
    return problems + requirement_problems(made, root)


def test_problems(root: Path) -> list[str]:
    """Install and run what was built where nothing else is."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/release"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    return [] if done.returncode == 0 else [done.stdout[-4000:]]


CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "version": version_problems,
    "changelog": changelog_problems,
    "clean tree": tree_problems,
    "wheels, source distributions, metadata": lambda root: build_problems(root, root / "dist"),
    "clean environments": test_problems,
}


def main() -> int:
    """Run all checks, also after one that fails."""
    bad = 0
    for name, check in CHECKS.items():
        problems = check(ROOT)
        print(f"{'FAILED' if problems else 'ok':6}  {name}", flush=True)
        for problem in problems:
            print(f"        {problem}", flush=True)
        bad += bool(problems)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
