"""Every public function with an argument of every wrong kind: an error that names the argument,
not one from inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from examples.make_mlp import make_mlp
from tensorkiln.base.errors import InternalError, TensorkilnError
from tensorkiln.runtime import Executor
from tensorkiln.script import from_source

VALUES = (
    None,
    5,
    -1,
    2.5,
    "text",
    "",
    "a\0b",
    "\ud800",
    b"by",
    [],
    [1],
    ["a"],
    {},
    {"a": 1},
    (1,),
    object(),
    int,
    len,
    np.ones(2),
    True,
)
MODULE = tk.frontend.from_onnx(make_mlp().SerializeToString())
FIXED = tk.frontend.from_onnx(make_mlp().SerializeToString(), freeze={"batch": 1})

# A model whose kernel has no knobs.
PLAIN = from_source(
    """
@R.function
def main(x: R.Tensor((4,), "float32")):
    return R.exp(x)
"""
)


def _tune(**options: Any) -> Any:
    return tk.tune(PLAIN, "llvm", **{"search": "random", **options})


# argument -> a call with a value for it, and the kinds of values that are right
CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "Artifact.codegen_id": (lambda v: tk.Artifact(v, "native", "a.o", b""), ("text",)),
    "Artifact.loader": (lambda v: tk.Artifact("llvm", v, "a.o", b""), ("text",)),
    "Artifact.file_name": (lambda v: tk.Artifact("llvm", "native", v, b""), ("text",)),
    "Artifact.content": (lambda v: tk.Artifact("llvm", "native", "a.o", v), (b"by",)),
    "ArtifactSet": (tk.ArtifactSet, ("", [], {})),
    "ArtifactSet.load": (tk.ArtifactSet.load, ()),
    "check": (tk.check, ()),
    "compile": (tk.compile, ()),
    "compile.externals": (lambda v: tk.compile(MODULE, "llvm", externals=v), ([], {})),
    "compile.instruments": (lambda v: tk.compile(MODULE, "llvm", instruments=v), ("", [], {})),
    "compile.jobs": (lambda v: tk.compile(MODULE, "llvm", jobs=v), (None, 5)),
    "compile.system_lib_prefix": (
        lambda v: tk.compile(MODULE, "llvm", system_lib_prefix=v),
        (None, "text"),
    ),
    "compile.max_workspace": (lambda v: tk.compile(FIXED, "llvm", max_workspace=v), (None, {})),
    "compile.precision": (lambda v: tk.compile(FIXED, "llvm", precision=v), (None,)),
    "compile.optimize": (lambda v: tk.compile(FIXED, "llvm", optimize=v), (None,)),
    "memory.sizes": (lambda v: tk.compile(FIXED, "llvm").memory(v), (None, {})),
    "compile.progress": (lambda v: tk.compile(MODULE, "llvm", progress=v), (None,)),
    "compile.relax_pipeline": (lambda v: tk.compile(MODULE, "llvm", relax_pipeline=v), (None, [])),
    "cpu": (tk.cpu, (5,)),
    "explain_dims": (tk.explain_dims, ()),
    "explain": (lambda v: tk.explain(v, "llvm", seconds=0), ()),
    "export_model_library_format": (lambda v: tk.export_model_library_format(v, "m.tar"), ()),
    "export_model_library_format.path": (
        lambda v: tk.compile(MODULE, "llvm").export_model_library_format(v),
        ("text",),
    ),
    "export_model_library_format.name": (
        lambda v: tk.compile(MODULE, "llvm").export_model_library_format("m.tar", v),
        (None, "text"),
    ),
    "load_model_library_format": (tk.load_model_library_format, ()),
    "trace": (tk.trace, ()),
    "trace.arguments": (lambda v: tk.trace(tk.compile(FIXED, "llvm"), v), ()),
    "trace.function": (lambda v: tk.trace(tk.compile(FIXED, "llvm"), function=v), ()),
    "trace.devices": (
        lambda v: tk.trace(tk.compile(FIXED, "llvm"), np.zeros((1, 784), np.float32), devices=v),
        (None, {}),
    ),
    "tune": (lambda v: tk.tune(v, "llvm", search="random"), ()),
    **{
        f"tune.{name}": (lambda v, name=name: _tune(**{name: v}), right)
        for name, right in {
            "seconds": (5, 2.5),
            "each": (5, 2.5),
            "limit": (5, 2.5),
            "kernels": (None, 5),
            "trials": (None, 5),
            "batch": (5,),
            "seed": (5,),
            "threads": (5,),
            "executor": (None,),
            "measure_executor": (None,),
            "measure": (),
            "search": (),
            "journal": (None, "text"),
            "records": (None, []),
            "sizes": (None, {}),
            "progress": (None,),
        }.items()
    },
    "verify": (lambda v: tk.verify(v, FIXED), ()),
    "verify.model": (lambda v: tk.verify(tk.compile(FIXED, "llvm"), v), ()),
    "verify.inputs": (lambda v: tk.verify(tk.compile(FIXED, "llvm"), FIXED, v), (None,)),
    "verify.dims": (lambda v: tk.verify(tk.compile(FIXED, "llvm"), FIXED, dims=v), (None, {})),
    "verify.seed": (lambda v: tk.verify(tk.compile(FIXED, "llvm"), FIXED, seed=v), (5,)),
    "compile.debug": (lambda v: tk.compile(FIXED, "llvm", debug=v), (True,)),
    "from_onnx": (tk.frontend.from_onnx, ()),
    "check_onnx": (tk.frontend.check_onnx, ()),
    "from_source": (from_source, ()),
    "Executor": (Executor, ()),
    "load_module": (tk.runtime.load_module, ()),
    "read_metadata": (tk.runtime.read_metadata, ()),
}


@pytest.mark.filterwarnings("ignore:x86-64 is the baseline")
@pytest.mark.in_turn()
@pytest.mark.parametrize("name", CALLS)
def test_wrong_kinds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, right = CALLS[name]
    for value in VALUES:
        try:
            call(value)
        except TensorkilnError as error:
            assert not isinstance(error, InternalError), (value, error)
        else:
            assert any(value is r or (type(value) is type(r) and value == r) for r in right), value
