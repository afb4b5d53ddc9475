"""A shared library that a compiled one needs was there when that was linked, and is gone when it is
loaded: every host names it, and the dependency that it comes with, in the same words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import load_module
from tests.external.halve import HALVE, build_halve, halver
from tests.hosts.conftest import REFUSALS, program
from tests.hosts.test_refusals import elsewhere
from tests.transform.graphs import graph

BARE = ExternalDependency("bare", "https://example.org/bare", libraries=("libhalve.so.1",))
# What is said of a dependency, by what it states.
SAID = {
    "all": (HALVE, ": dependency 'halve' 1.2 (MIT) from https://example.org/halve.tar.gz"),
    "bare": (BARE, ": dependency 'bare' from https://example.org/bare"),
    "another": (replace(BARE, libraries=("libother.so",)), ""),
    "quoted": (replace(BARE, url='a "b" \\ é'), ": dependency 'bare' from a \"b\" \\ é"),
}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A library for each of SAID; that which all of them need is not there any more."""
    folder = tmp_path_factory.mktemp("linked")
    shared = build_halve(folder)
    mod = graph(lambda g, x: g.relu(x), x=(4,))
    libraries = {
        name: tk.compile(mod, externals=[halver(shared, needs)]).export_library(
            folder / f"{name}.so"
        )
        for name, (needs, _) in SAID.items()
    }
    run = tk.runtime.Executor(load_module(libraries["all"]), tk.cpu())["main"]
    assert run(np.ones(4, np.float32)).numpy().tolist() == [0.5] * 4
    shared.unlink()
    return libraries


def sentence(name: str, path: Path) -> str:
    return f"cannot load '{path}': it needs 'libhalve.so.1', which is not there{SAID[name][1]}"


@pytest.mark.parametrize("name", SAID)
def test_in_python(linked: dict[str, Path], name: str, tmp_path: Path) -> None:
    path = tmp_path / "net.so"  # glibc knows what it has loaded by its path
    path.write_bytes(linked[name].read_bytes())
    with pytest.raises(UserError) as caught:
        load_module(path)
    assert (caught.value.code, caught.value.message) == ("cannot-load", sentence(name, path))
    assert "kiln inspect" in caught.value.hint


@pytest.mark.in_turn("language")
@pytest.mark.parametrize("language", REFUSALS)
@pytest.mark.parametrize("name", SAID)
def test_elsewhere(linked: dict[str, Path], name: str, programs: Path, language: str) -> None:
    path = linked[name]
    answer = elsewhere(program(REFUSALS, language, programs), path)
    assert answer == (104, sentence(name, path))


def test_a_library_that_is_missing_at_the_link_is_named(tmp_path: Path) -> None:
    shared = build_halve(tmp_path)
    shared.unlink()
    exe = tk.compile(graph(lambda g, x: g.relu(x), x=(4,)), externals=[halver(shared)])
    with pytest.raises(UserError) as caught:
        exe.export_library(tmp_path / "net.so")
    assert caught.value.code == "missing-library" and str(shared) in caught.value.message
    assert "dependency 'halve' 1.2 (MIT) from" in caught.value.hint
