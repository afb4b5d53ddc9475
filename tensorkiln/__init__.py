"""Tensorkiln: compiles trained models into plain artifacts and one self-contained library.

    import tensorkiln as tk

    mod = tk.frontend.from_onnx("model.onnx")
    exe = tk.compile(mod)                     # target=None: this machine
    exe.export_library("model.so")
    run = tk.runtime.Executor(tk.runtime.load_module("model.so"), tk.cpu())
    y = run["main"](x)

Importing this package is cheap: each public name is imported on its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tensorkiln.base.version import VERSION as __version__

if TYPE_CHECKING:
    from tensorkiln import external, frontend, inspectors, runtime, script
    from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
    from tensorkiln.artifact.mlf.load import load_model_library_format
    from tensorkiln.executable import Executable, export_model_library_format
    from tensorkiln.ir.module import IRModule
    from tensorkiln.library.export import export_library
    from tensorkiln.library.load import load_artifacts
    from tensorkiln.pipeline import check, compile
    from tensorkiln.report import explain
    from tensorkiln.runtime import cpu, cuda, nd, opencl
    from tensorkiln.target import Target
    from tensorkiln.verification import verify


# public name -> `module` or `module:attribute`
_PUBLIC = {
    "Artifact": "tensorkiln.artifact:Artifact",
    "ArtifactSet": "tensorkiln.artifact:ArtifactSet",
    "Executable": "tensorkiln.executable:Executable",
    "InMemoryArtifact": "tensorkiln.artifact:InMemoryArtifact",
    "IRModule": "tensorkiln.ir.module:IRModule",
    "Target": "tensorkiln.target:Target",
    "check": "tensorkiln.pipeline:check",
    "compile": "tensorkiln.pipeline:compile",
    "cpu": "tensorkiln.runtime.device:cpu",
    "cuda": "tensorkiln.runtime.device:cuda",
    "explain": "tensorkiln.report:explain",
    "export_library": "tensorkiln.library.export:export_library",
    "export_model_library_format": "tensorkiln.executable:export_model_library_format",
    "external": "tensorkiln.external",
    "frontend": "tensorkiln.frontend",
    "inspectors": "tensorkiln.inspectors",
    "load_artifacts": "tensorkiln.library.load:load_artifacts",
    "load_model_library_format": "tensorkiln.artifact.mlf.load:load_model_library_format",
    "nd": "tensorkiln.runtime.nd",
    "opencl": "tensorkiln.runtime.device:opencl",
    "runtime": "tensorkiln.runtime",
    "script": "tensorkiln.script",
    "verify": "tensorkiln.verification:verify",
}

__all__ = [
    "Artifact",
    "ArtifactSet",
    "Executable",
    "IRModule",
    "InMemoryArtifact",
    "Target",
    "__version__",
    "check",
    "compile",
    "cpu",
    "cuda",
    "explain",
    "export_library",
    "export_model_library_format",
    "external",
    "frontend",
    "inspectors",
    "load_artifacts",
    "load_model_library_format",
    "nd",
    "opencl",
    "runtime",
    "script",
    "verify",
]


def __getattr__(name: str) -> Any:
    try:
        module, _, attribute = _PUBLIC[name].partition(":")
    except KeyError:
        raise AttributeError(f"module 'tensorkiln' has no attribute {name!r}") from None
    value: Any = importlib.import_module(module)
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
