"""Libraries that carry artifacts for a loader, in hosts without Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.runtime import Executor, load_module
from tensorkiln.script import from_source
from tests.artifact.test_loaders import MODULE, STREAMER
from tests.hosts.build import CHECKED, HERE, c_program, run
from tests.hosts.conftest import EXAMPLES, program

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def carrying(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tanh, a multiplication that a command stream does, exp."""
    executable = tk.compile(from_source(MODULE), externals=[STREAMER])
    return Path(executable.export_library(tmp_path_factory.mktemp("carrying") / "net.so"))


def test_a_loader_of_the_host_in_c(carrying: Path, programs: Path) -> None:
    """Its module is made when it is first needed, and goes with the library."""
    host = c_program(HERE / "loaders.c", programs / "loaders", *CHECKED)
    done = run(host, carrying)
    assert done.returncode == 0, done.stdout + done.stderr
    refused, results = done.stdout.splitlines()
    assert refused.startswith("17 ") and "'stream'" in refused
    x = np.arange(12) / 4 - 1
    found = np.array(list(map(float, results.split())))
    np.testing.assert_allclose(found, np.exp(2 * np.tanh(x)), rtol=1e-5)


@pytest.mark.parametrize("language", EXAMPLES)
def test_a_missing_loader_elsewhere(carrying: Path, programs: Path, language: str) -> None:
    """The sentence that Python gives."""
    with pytest.raises(LookupError) as caught:
        Executor(load_module(carrying))["main"](np.zeros((3, 4), np.float32))
    done = run(program(EXAMPLES, language, programs), carrying, "main", "n=3")
    assert (done.returncode, done.stderr) == (1, f"error 17: {caught.value.message}\n")  # type: ignore[attr-defined]
