"""Fresh Python processes with chosen packages in reach."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Put before a script: importing any of the names raises, as if they were not installed.
BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked by the test", name=name)
sys.meta_path.insert(0, Blocked())
"""

# What every host script ends with: `y` must be the expected output.
CHECK = """
import numpy as np
want = np.load(sys.argv[3])
assert y.shape == want.shape, (y.shape, want.shape)
np.testing.assert_allclose(y, want, rtol=1e-3, atol=1e-4 * float(np.abs(want).max()))
print("same")
"""


def without(*names: str) -> str:
    """Script text that makes packages unimportable."""
    return BLOCK.format(names=names)


def python(
    script: str,
    arguments: Sequence[object] = (),
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    before: Callable[[], None] | None = None,
) -> str:
    """Runs a script in a new interpreter and returns its output; the test fails when it does.

    `before` runs in the child just before the interpreter starts.
    """
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    inherited["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, *flags, "-c", script, *map(str, arguments)],
        cwd=folder,
        env={**inherited, **(environment or {})},
        capture_output=True,
        text=True,
        preexec_fn=before,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout + done.stderr


def only(folder: Path, *packages: str) -> Path:
    """A folder that holds links to the named installed packages and to nothing else."""
    folder.mkdir()
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            pytest.skip(f"{package} is not installed")
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (folder / source.name).symlink_to(source)
        libraries = source.with_name(f"{package}.libs")
        if libraries.exists():
            (folder / libraries.name).symlink_to(libraries)
        # tvm-ffi reads its own version from its metadata.
        for metadata in source.parent.glob(f"*{package}-*.dist-info"):
            (folder / metadata.name).symlink_to(metadata)
    return folder
