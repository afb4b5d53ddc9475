"""The files of a release, built once, and environments that hold them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from release.build import build
from tests.release.environments import ROOT, Environment, has_pip, make_environment


class Release:
    """The four files of a release, in a folder."""

    def __init__(self, folder: Path):
        (self.wheel,) = folder.glob("tensorkiln-*.whl")
        (self.sdist,) = folder.glob("tensorkiln-*.tar.gz")
        (self.runtime_wheel,) = folder.glob("tensorkiln_runtime-*.whl")
        (self.runtime_sdist,) = folder.glob("tensorkiln_runtime-*.tar.gz")


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    if not has_pip():
        pytest.skip("pip is not installed")
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("release")
    build(ROOT, folder)
    return Release(folder)


Make = Callable[..., Environment]


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """`environment(wheels, packages, python)`: a new one, with packages numpy by default."""

    def make(
        wheels: list[Path], packages: tuple[str, ...] = ("numpy",), **python: str
    ) -> Environment:
        folder = tmp_path_factory.mktemp("environment")
        make_environment(folder, packages, **python)
        environment = Environment(folder)
        if wheels:
            environment.install(wheels)
        return environment

    return make
