"""Packages of others that are needed for some of what this one does, and may be missing."""

from __future__ import annotations

import importlib.util

from tensorkiln.base.errors import UserError

# By the name that is imported, what pip is asked for.
REQUIREMENTS = {
    "capstone": "tensorkiln[inspect]",
    "distributed": "tensorkiln[dask]",
    "fsspec": "tensorkiln[stores]",
    "islpy": "islpy",
    "llvmlite": "llvmlite==0.50.*",
    "ml_dtypes": "ml_dtypes",
    "nvidia": "tensorkiln[cuda]",
    "onnx": "tensorkiln[onnx]",
    "onnxruntime": "tensorkiln[demo]",
    "onnxscript": "tensorkiln[torch]",
    "pyarrow": "tensorkiln[arrow]",
    "ray": "tensorkiln[ray]",
    "shtab": "shtab",
    "sklearn": "tensorkiln[tune]",
    "torch": "tensorkiln[torch]",
    "ziglang": "ziglang==0.17.*",
}


def install_line(package: str) -> str:
    """The command that installs a package of REQUIREMENTS, as a shell takes it."""
    requirement = REQUIREMENTS[package]
    return f"pip install {requirement if requirement == package else repr(requirement)}"


def missing_package(
    package: str, subject: str, otherwise: str = "", *, where: str = ""
) -> UserError:
    """The error (code `missing-package`) for `subject`, which needs a package of REQUIREMENTS that
    is not installed. `otherwise`: what to do without it."""
    return UserError(
        f"{subject} needs the package {package!r}, which is not installed",
        code="missing-package",
        where=where,
        hint=f"{install_line(package)}{otherwise and ', or ' + otherwise}",
    )


def require_package(package: str, subject: str, otherwise: str = "") -> None:
    """Raise `missing_package` unless the package is installed; it is not imported."""
    if importlib.util.find_spec(package) is None:
        raise missing_package(package, subject, otherwise)
