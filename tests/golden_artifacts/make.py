"""`python -m tests.golden_artifacts.make`: artifacts as this version writes them, in this folder.

They are kept for good: every later version loads them (test_golden_artifacts.py). What is there is
never written again; a new version of a format gets files of its own, with its number in the name.
parallel-1.so is of a version before this one, which has no such symbol.

    library-1.so      a library of metadata 1, for any x86-64 processor
    loaders-1.so      the same with a container 1.0 for a loader in C, which is in it too
    beside-1.so       a library whose weights lie in beside-1.safetensors
    parallel-1.so     exp of x[n, 4096]; libraries of its time find threads of another by its symbol
                      kiln_pool_v1, and keep it loaded for good
    compile-1.kilnset a whole compile as a container 1.0, with a link plan 1
    compile-1/        the same as a folder of manifest 1
    nested-1.kilnset  imports below imports, two target keys, an empty content
    recorded-1.json   what is in them, an input, and the result that all of them give

Those of number 2 are the same with a manifest 2, which ends with a hash of itself, and a hash of
the weights in their libraries; metadata, containers and link plans are of version 1 still.
Those of number 3 have metadata 2: library-3.so and all that is of the same compile need external
software, in every field of it. kept-3.so has metadata 3: it also returns what its kernels compute.
Those of number 4 have metadata 4: they say what they were made from. narrow-5.so has metadata 5: it
takes and gives arrays of element types that programs hold as bytes. levels-6.so has metadata 6: it
computes what beside-4.so does, with kernels for several processors.
Archives in Model Library Format (model_library.py) have the number of that format:

    mlf-8.tar.xz      two models
    mlf-8.json        the artifacts that each of them was made from
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.script import from_source
from tensorkiln.target import Target
from tests.artifact.test_loaders import MODULE, WANTED, X, launched
from tests.golden_artifacts import model_library
from tests.golden_artifacts.model_library import listing

HERE = Path(__file__).parent
VERSION = 4
NEEDED = tuple(
    ExternalDependency(*row)
    for row in (
        ("cmsis-nn", "https://example.org/cmsis-nn.git", "git", "v4.0.0", "Apache-2.0"),
        ("npu-tools", "/opt/npu", "path", "2.1", "LicenseRef-npu", "", (), True),
        (
            "vendor",
            "https://example.org/v.tar",
            "url",
            "1",
            "MIT OR ISC",
            "ab" * 32,
            ("libv.so.1",),
        ),
    )
)
NESTED = ArtifactSet(
    (
        Artifact("a", "front", "a.txt", b"front"),
        Artifact("b", "native", "entry.c", b"int main;"),
        Artifact("a", "back", "b.txt", b"x" * 64, "k0"),
        Artifact("a", "back", "b.txt", b"", "k1"),
        Artifact("a", "front", "c.txt", b"front again"),
    )
).importing("front", ("back", "k0"), ("back", "k1"))


WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
PRODUCT = """
@R.function
def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 3), "float32"):
    y: R.Tensor(("n", 3), "float32") = R.matmul(x, w)
    return y
"""


KEPT = """
@R.function
def main(x: R.Tensor((2, 4), "float32")) -> R.Tensor((2, 4), "float32"):
    y: R.Tensor((2, 4), "float32") = R.relu(x)
    z: R.Tensor((2, 4), "float32") = R.neg(y)
    return z
"""


NARROW = """
@R.function(
    attrs={"array_types": (("x", "uint4"), ("w", "float8_e4m3fn"), ("output0", "float8_e4m3fn"))}
)
def main(x: R.Tensor((4,), "uint8"), w: R.Tensor((4,), "uint8")):
    y = R.identity(w)
    z = R.cast(x, "float32")
    return y, z
"""


def main() -> None:
    """Write what is missing: the files of a version are written once."""
    if not (HERE / f"beside-{VERSION}.so").exists():
        write_beside()
    if not (HERE / f"recorded-{VERSION}.json").exists():
        write_rest(HERE / f"recorded-{VERSION}.json")
    if not (HERE / "kept-3.so").exists():
        write_kept()
    if not (HERE / "narrow-5.so").exists():
        write_narrow()
    if not (HERE / "levels-6.so").exists():
        write_levels()
    model_library.write_once()


def write_narrow() -> None:
    """A library of types that programs hold as bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the baseline is meant
        made = tk.compile(from_source(NARROW), Target({"kind": "llvm", "mcpu": "x86-64"}))
    made.export_library(HERE / "narrow-5.so")


def write_levels() -> None:
    """A library for every x86-64 processor, with kernels for newer ones too."""
    module = from_source(PRODUCT.replace('"n"', "2"), namespace={"w": WEIGHTS})
    levels = Target({"mcpu": ["x86-64", "x86-64-v3", "x86-64-v4"]})
    tk.compile(module, levels).export_library(HERE / "levels-6.so")


def write_kept() -> None:
    """A library that was made to be looked at."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the baseline is meant
        baseline = Target({"kind": "llvm", "mcpu": "x86-64"})
        made = tk.compile(kept_module(), baseline, relax_pipeline="minimal", debug=True)
    made.export_library(HERE / "kept-3.so")


def kept_module() -> IRModule:
    """What kept-3.so was made from: two kernels."""
    return from_source(KEPT)


def write_beside() -> None:
    """A library and its file of weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the baseline is meant
        module = from_source(PRODUCT, namespace={"w": WEIGHTS})
        made = tk.compile(module, Target({"kind": "llvm", "mcpu": "x86-64"}))
    made.export_library(HERE / f"beside-{VERSION}.so", weights="beside")


def write_rest(recorded: Path) -> None:
    """All that runs or records the same function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the baseline is meant
        baseline = Target({"kind": "llvm", "mcpu": "x86-64"})
        module = from_source(MODULE)
        main = module["main"]
        attrs = Attrs.of(**{**main.attrs, "kExternalDependency": NEEDED})
        needing = module.with_functions(
            [replace(f, attrs=attrs) if f is main else f for f in module.functions]
        )
        plain = tk.compile(needing, baseline)
        carrying = tk.compile(needing, baseline, externals=[launched("npu0", True)])
    plain.export_library(HERE / f"library-{VERSION}.so")
    carrying.export_library(HERE / f"loaders-{VERSION}.so")
    carrying.artifacts.save(HERE / f"compile-{VERSION}")
    (HERE / f"compile-{VERSION}.kilnset").write_bytes(carrying.artifacts.to_bytes())
    (HERE / f"nested-{VERSION}.kilnset").write_bytes(NESTED.to_bytes())
    text = {
        "input": X.tolist(),
        "result": WANTED.astype(np.float32).tolist(),
        "compile": listing(carrying.artifacts),
        "nested": listing(NESTED),
        "nested_imports": NESTED.imports,
    }
    recorded.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
