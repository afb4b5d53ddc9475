"""Libraries that carry artifacts for a loader, in hosts without Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact.container import MAGIC
from tensorkiln.base.errors import UserError
from tensorkiln.runtime import Executor, load_module
from tensorkiln.script import from_source
from tests.artifact.damage_files import without_digest
from tests.artifact.test_loaders import MODULE, STREAMER
from tests.hosts.build import run
from tests.hosts.conftest import EXAMPLES, LOADERS, program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def carrying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tanh, a multiplication that a command stream does, exp."""
    executable = tk.compile(from_source(MODULE), externals=[STREAMER])
    return Path(executable.export_library(tmp_path_factory.mktemp("carrying") / "net.so"))


def in_python(carrying: Path) -> str:
    """The sentence for a loader that nobody registered."""
    with pytest.raises(LookupError) as caught:
        Executor(load_module(carrying))["main"](np.zeros((3, 4), np.float32))
    return str(caught.value.message)  # type: ignore[attr-defined]


@pytest.mark.parametrize("language", LOADERS)
def test_a_loader_of_the_host(carrying: Path, programs: Path, language: str) -> None:
    """Its module is made when it is first needed, and goes with the library; what it and its loader
    say when they fail arrives."""
    process = run(program(LOADERS, language, programs), carrying, KILN_NUM_THREADS="1")
    assert process.returncode == 0, process.stdout + process.stderr
    missing, refused, results, stopped, live = process.stdout.splitlines()
    assert missing == f"17 {in_python(carrying)}"
    assert (refused, stopped) == ("13 the device is on fire", "13 the device has stopped")
    x = np.arange(12) / 4 - 1
    numbers = np.array(list(map(float, results.split())))
    np.testing.assert_allclose(numbers, np.exp(2 * np.tanh(x)), rtol=1e-5)
    assert live == "0 live"


@pytest.mark.parametrize("language", EXAMPLES)
def test_a_missing_loader_elsewhere(carrying: Path, programs: Path, language: str) -> None:
    """The sentence that Python gives."""
    process = run(program(EXAMPLES, language, programs), carrying, "main", "n=3")
    assert (process.returncode, process.stderr) == (1, f"error 17: {in_python(carrying)}\n")


@pytest.mark.parametrize("language", EXAMPLES)
def test_newer_artifacts_elsewhere(
    carrying: Path, programs: Path, language: str, tmp_path: Path
) -> None:
    """Python reads them when it opens the library, the others when a function needs them."""
    raw, path = without_digest(carrying.read_bytes()), tmp_path / "net.so"
    version_offset = raw.rindex(MAGIC) + len(MAGIC)
    path.write_bytes(raw[:version_offset] + b"\x09" + raw[version_offset + 1 :])
    sentence = "container version 9.0; this Tensorkiln reads 1.x"
    with pytest.raises(UserError) as caught:
        load_module(path)
    assert caught.value.message == sentence
    process = run(program(EXAMPLES, language, programs), path, "main", "n=3")
    assert (process.returncode, process.stderr) == (1, f"error 16: {sentence}\n")
