"""Every file of the package belongs to one of the two distributions, and those of the runtime need
none of the compiler's."""

from __future__ import annotations

import ast
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from release.build import copy_repository
from release.partition import RUNTIME_ROOMS, in_runtime, package_files
from tests.release.conftest import ROOT, Make, Release
from tests.test_import_floors import ONLY, imported, modules


def _package(wheel: Path) -> list[PurePosixPath]:
    """Files of the package in a wheel, relative to `tensorkiln/`."""
    names = [PurePosixPath(name) for name in zipfile.ZipFile(wheel).namelist()]
    return [name.relative_to("tensorkiln") for name in names if name.parts[0] == "tensorkiln"]


def test_the_wheels_are_a_partition_of_the_package(release: Release) -> None:
    files = package_files(ROOT)
    runtime, compiler = _package(release.runtime_wheel), _package(release.wheel)
    assert Counter(runtime + compiler) == Counter(files)
    assert sorted(runtime) == [file for file in files if in_runtime(file)]


def test_the_runtime_is_what_it_may_import() -> None:
    assert frozenset(RUNTIME_ROOMS) == ONLY["runtime"]


def _runtime_modules() -> list[tuple[str, bool, Path]]:
    package = ROOT / "tensorkiln"
    rows = [row for row in modules() if in_runtime(row[2].relative_to(package))]
    assert len(rows) > 60
    return rows


def _imports() -> Iterator[tuple[str, str]]:
    """(where, imported module) of every import in the runtime, inside functions or not, but those
    for types alone and the table of public names."""
    for name, is_package, path in _runtime_modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if name == "tensorkiln":
            tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
        for line, imported_module in imported(tree, name, is_package):
            yield f"{name}:{line}", imported_module


def test_the_runtime_imports_nothing_of_the_compiler() -> None:
    runtime_names = {name for name, _, _ in _runtime_modules()}
    for place, name in _imports():
        if name.split(".")[0] == "tensorkiln":
            assert name in runtime_names or name.rpartition(".")[0] in runtime_names - {
                "tensorkiln"
            }, (place, name)


def test_the_runtime_imports_numpy_and_ml_dtypes_where_it_must() -> None:
    first_party = {"tensorkiln", *sys.stdlib_module_names}
    foreign_imports = {(name.split(".")[0], place.split(":")[0]) for place, name in _imports()}
    foreign_imports = {row for row in foreign_imports if row[0] not in first_party}
    assert {package for package, _ in foreign_imports} == {"numpy", "ml_dtypes"}
    assert {module for package, module in foreign_imports if package == "ml_dtypes"} == {
        "tensorkiln.runtime.tensor"
    }


def test_every_module_of_the_runtime_imports_without_the_compiler(
    release: Release, environment: Make, tmp_path: Path
) -> None:
    alone = environment([release.runtime_wheel])
    names = [name for name, _, _ in _runtime_modules()]
    script = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    process = alone.run("python", "-I", "-c", script, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")


def test_the_source_distribution_is_the_repository(release: Release, tmp_path: Path) -> None:
    copy_repository(ROOT, tmp_path)
    names = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    with tarfile.open(release.sdist) as archive:
        names_in_archive = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    egg_info = {name for name in names_in_archive if name.startswith("tensorkiln.egg-info/")}
    assert names_in_archive - egg_info - {"PKG-INFO", "setup.cfg"} == names
    for page in ("SECURITY.md", "CHANGELOG.md", "LICENSE", "docs/install.md", "release/check.py"):
        assert page in names_in_archive, page


def test_the_runtimes_source_distribution_stands_alone(release: Release) -> None:
    with tarfile.open(release.runtime_sdist) as archive:
        names_in_archive = {name.partition("/")[2] for name in archive.getnames()}
        (project,) = [m for m in archive.getmembers() if m.name.endswith("/pyproject.toml")]
        text = archive.extractfile(project)
        assert text is not None and b"setuptools.build_meta" in text.read()
    assert {
        f"tensorkiln/{file}" for file in package_files(ROOT) if in_runtime(file)
    } <= names_in_archive
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"} <= names_in_archive


@pytest.mark.parametrize(
    ("file", "runtime"),
    [
        ("__init__.py", True),
        ("runtime/load.py", True),
        ("artifact/mlf/metadata.schema.json", True),
        ("pipeline.py", False),
        ("crt/kiln.h", False),
        ("schedule/__init__.py", False),
    ],
)
def test_the_table(file: str, runtime: bool) -> None:
    assert in_runtime(PurePosixPath(file)) is runtime
