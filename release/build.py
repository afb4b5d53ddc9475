"""`python -m release.build FOLDER`: source distributions and wheels of both distributions.

Nothing is fetched: what builds them, setuptools and pip, is that of the Python that runs this.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from release.archives import unpack

ROOT = Path(__file__).resolve().parents[1]
_MADE = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "kiln-demo")
_SDIST = (
    "import sys; sys.path.insert(0, sys.argv[1]); import backend; backend.build_sdist(sys.argv[2])"
)


def repository_files(root: Path) -> list[str] | None:
    """The files of the repository, tracked or new, by their paths; None outside of git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if not (root / ".git").exists():
        return None
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file())


def copy_repository(root: Path, target: Path) -> None:
    """Copy a repository without what was made in it: builds leave files in their folder."""
    names = repository_files(root)
    if names is None:
        shutil.copytree(root, target, ignore=_MADE, dirs_exist_ok=True)
        return
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / name, target / name)


def build_sdist(project: Path, backend: Path, out: Path) -> Path:
    """The source distribution of a project, whose backend is in the folder `backend`."""
    before = set(out.glob("*.tar.gz"))
    _run([sys.executable, "-c", _SDIST, str(backend), str(out)], project)
    (made,) = set(out.glob("*.tar.gz")) - before
    return made


def build_wheel(sdist: Path, out: Path) -> None:
    """The wheel of an unpacked source distribution, by pip."""
    with tempfile.TemporaryDirectory(prefix="kiln-release-") as name:
        with tarfile.open(sdist) as archive:
            unpack(archive, name)
        (project,) = Path(name).iterdir()
        pip = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
        offline = ["--no-build-isolation", "--no-deps", "--no-index"]
        _run([*pip, *offline, "-w", str(out), str(project)], project)


def build(root: Path, out: Path) -> list[Path]:
    """Build all four files into the folder `out`, the wheels from the source distributions."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kiln-release-") as name:
        copy = Path(name)
        copy_repository(root, copy)
        runtime = copy / "release" / "runtime"
        for project, backend in ((copy, copy / "release"), (runtime, runtime)):
            build_wheel(build_sdist(project, backend, out), out)
    return sorted(out.iterdir())


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    for path in build(ROOT, Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve()):
        print(path)
