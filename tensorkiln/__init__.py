"""Tensorkiln: compiles trained models into plain artifacts and one self-contained library.

    import tensorkiln as tk

    f = tk.compile("model.onnx")              # for this machine
    y = f(x)                                  # NumPy arrays in and out; or torch tensors
    f.export_library("model.so")
    f = tk.load("model.so")                   # in a program without the compiler

Importing this package is cheap: each public name is imported on its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorkiln.base.version import VERSION as __version__

if TYPE_CHECKING:
    from tensorkiln import external, frontend, inspectors, runtime, scale, script
    from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
    from tensorkiln.artifact.mlf.load import load_model_library_format
    from tensorkiln.checks import check
    from tensorkiln.executable import Executable, export_model_library_format
    from tensorkiln.ir.module import IRModule
    from tensorkiln.library.export import export_library
    from tensorkiln.library.load import load_artifacts
    from tensorkiln.measure.placed import trace
    from tensorkiln.pipeline import compile
    from tensorkiln.report import explain
    from tensorkiln.report.dims import explain_dims
    from tensorkiln.runtime import cpu, cuda, ext_dev, nd, opencl
    from tensorkiln.runtime.loaded import load
    from tensorkiln.target import Target
    from tensorkiln.tuning import tune
    from tensorkiln.verification import verify


# public name -> `module` or `module:attribute`
_PUBLIC = {
    "Artifact": "tensorkiln.artifact:Artifact",
    "ArtifactSet": "tensorkiln.artifact:ArtifactSet",
    "Executable": "tensorkiln.executable:Executable",
    "IRModule": "tensorkiln.ir.module:IRModule",
    "InMemoryArtifact": "tensorkiln.artifact:InMemoryArtifact",
    "InternalError": "tensorkiln.base.errors:InternalError",
    "Target": "tensorkiln.target:Target",
    "TensorkilnError": "tensorkiln.base.errors:TensorkilnError",
    "UnsupportedError": "tensorkiln.base.errors:UnsupportedError",
    "UserError": "tensorkiln.base.errors:UserError",
    "check": "tensorkiln.checks:check",
    "compile": "tensorkiln.pipeline:compile",
    "cpu": "tensorkiln.runtime.device:cpu",
    "cuda": "tensorkiln.runtime.device:cuda",
    "ext_dev": "tensorkiln.runtime.device:ext_dev",
    "explain": "tensorkiln.report:explain",
    "explain_dims": "tensorkiln.report.dims:explain_dims",
    "export_library": "tensorkiln.library.export:export_library",
    "export_model_library_format": "tensorkiln.executable:export_model_library_format",
    "external": "tensorkiln.external",
    "frontend": "tensorkiln.frontend",
    "inspectors": "tensorkiln.inspectors",
    "load": "tensorkiln.runtime.loaded:load",
    "load_artifacts": "tensorkiln.library.load:load_artifacts",
    "load_model_library_format": "tensorkiln.artifact.mlf.load:load_model_library_format",
    "nd": "tensorkiln.runtime.nd",
    "opencl": "tensorkiln.runtime.device:opencl",
    "runtime": "tensorkiln.runtime",
    "scale": "tensorkiln.scale",
    "script": "tensorkiln.script",
    "trace": "tensorkiln.measure.placed:trace",
    "tune": "tensorkiln.tuning:tune",
    "verify": "tensorkiln.verification:verify",
}

__all__ = [
    "Artifact",
    "ArtifactSet",
    "Executable",
    "IRModule",
    "InMemoryArtifact",
    "InternalError",
    "Target",
    "TensorkilnError",
    "UnsupportedError",
    "UserError",
    "__version__",
    "check",
    "compile",
    "cpu",
    "cuda",
    "explain",
    "explain_dims",
    "export_library",
    "export_model_library_format",
    "ext_dev",
    "external",
    "frontend",
    "inspectors",
    "load",
    "load_artifacts",
    "load_model_library_format",
    "nd",
    "opencl",
    "runtime",
    "scale",
    "script",
    "trace",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = _PUBLIC[name].partition(":")
    except KeyError:
        raise AttributeError(f"module 'tensorkiln' has no attribute {name!r}") from None
    if not _is_here(module):
        raise _needs_the_compiler(name)
    value: Any = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def _is_here(module: str) -> bool:
    """Whether the room of a module is installed: `tensorkiln-runtime` alone has three of them."""
    from importlib.util import find_spec

    return find_spec(".".join(module.split(".")[:2])) is not None


def _needs_the_compiler(name: str) -> Exception:
    from importlib.metadata import PackageNotFoundError, version

    from tensorkiln.base.errors import UserError

    hint = "pip install tensorkiln"
    try:
        version("tensorkiln")
    except PackageNotFoundError:
        pass
    else:  # for example for one user, and the runtime for all
        hint += " into the folder where tensorkiln-runtime is: its files lie in another one"
    return UserError(
        f"tensorkiln.{name} needs the compiler, and only tensorkiln-runtime is installed",
        code="missing-package",
        hint=hint,
    )


def __dir__() -> list[str]:
    lacking = {name for name, place in _PUBLIC.items() if not _is_here(place.partition(":")[0])}
    return sorted({*__all__} - lacking)  # not what this file imports
