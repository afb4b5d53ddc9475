"""What the proposal of external dependencies for Model Library Format asks for, one by one.

The names of the tests follow it: the guide-level explanation, then the reference-level one. What an
archive's `metadata.json` holds is made of `ExternalDependency.to_json`, which is compared here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, InMemoryArtifact
from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.base.licenses import LicensePolicy
from tensorkiln.external import (
    External,
    declared_dependencies,
    in_memory_dependencies,
    settled_dependencies,
)
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function
from tensorkiln.pipeline import relax_passes
from tensorkiln.runtime import load_module, register_loader, unregister_loader
from tensorkiln.script import from_source
from tests.transform.graphs import graph

CMSIS_NN = ExternalDependency("cmsis-nn", "http://github.com/...", "git", "5.8.0")
DRIVER = ExternalDependency("cuda", "https://example.org/cuda.run", "url", "11.2")


def one_relu() -> IRModule:
    return graph(lambda g, x: g.relu(x), x=(4,))


def emits_c(f: Function, symbol: str) -> list[Artifact]:
    head = f"void {symbol}(const float *x, float *y)"
    text = f"{head};\n{head} {{ for (int i = 0; i < 4; i++) y[i] = x[i]; }}\n"
    return [Artifact("mine", "native", f"{symbol}.c", text.encode())]


def emits_source(f: Function, symbol: str) -> list[Artifact]:
    """Source for a device, which a library compiles when it is loaded."""
    return [Artifact("cuda", "cudasource", f"{symbol}.cu", b"__global__ ...")]


def takes_relu(**fields: Any) -> External:
    fields = {"emit": emits_c} | fields
    return External("byoc", lambda call, target: call.op == "relu", fields.pop("emit"), **fields)


# -- code depends on third-party libraries in at least two cases ---------------------------------


def test_when_a_call_extern_refers_to_a_function_of_an_external_library() -> None:
    module = from_source("""
@T.prim_func
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in range(4):
        Y[i] = T.call_extern("float32", "arm_relu", X[i], dependencies=[
            T.ExternalDependency("cmsis-nn", "http://github.com/...", "git", "5.8.0")])
""")
    assert tk.compile(module).external_dependencies == (CMSIS_NN,)


def test_when_loading_the_code_requires_an_external_library(tmp_path: Path) -> None:
    """The module that compiles the source when it is loaded says so itself."""

    def loader(files: object, devices: object) -> dict[str, Any]:
        return {"get_external_dependencies": lambda: [DRIVER], "byoc_relu": print}

    register_loader("cudasource", loader)
    try:
        executable = tk.compile(one_relu(), externals=[takes_relu(emit=emits_source)])
        library = load_module(executable.export_library(tmp_path / "net.so"))
        assert library.get_external_dependencies() == (DRIVER,)
    finally:
        unregister_loader("cudasource")


# -- the path by which a schedule or an external code generator tells the compiler ---------------


def test_tensor_programs_have_the_attribute_with_an_array_of_dependencies() -> None:
    """Here a pass of the caller's, in the place of a schedule, replaces a program by one that
    depends on a library."""

    def use_cmsis(mod: IRModule) -> IRModule:
        attrs = Attrs.of(kExternalDependency=[CMSIS_NN, DRIVER])
        functions = [replace(f, attrs=attrs) if f.name == "relu" else f for f in mod.functions]
        return mod.with_functions(functions)

    target = tk.Target("native")
    exe = tk.compile(one_relu(), target, relax_pipeline=[*relax_passes(target), use_cmsis])
    assert exe.external_dependencies == (CMSIS_NN, DRIVER)
    assert 'T.func_attr({"kExternalDependency": (T.ExternalDependency(' in exe.module.script()
    again = from_source(exe.module.script())
    assert again["relu"].attrs["kExternalDependency"] == (CMSIS_NN, DRIVER)


def test_a_module_has_a_function_get_external_dependencies() -> None:
    """That of a whole library, and that of the module of an external without a form as a file."""

    def in_memory(f: Function, symbol: str) -> list[InMemoryArtifact]:
        return [InMemoryArtifact("byoc", symbol, dict, dependencies=(DRIVER,))]

    exe = tk.compile(one_relu(), externals=[takes_relu(emit=in_memory)])
    assert exe.external_dependencies == (DRIVER,)
    assert exe.jit().get_external_dependencies() == (DRIVER,)
    (function,) = exe.module.externals
    assert takes_relu(dependencies=(CMSIS_NN,)).get_external_dependencies(function) == (CMSIS_NN,)


# -- the compiler assembles a list of ExternalDependency -----------------------------------------


def test_it_has_a_short_name_a_url_a_type_of_url_and_a_version() -> None:
    assert FIELDS[:4] == ("short_name", "url", "url_type", "version_spec")
    assert [getattr(CMSIS_NN, name) for name in FIELDS[:4]] == [
        "cmsis-nn",
        "http://github.com/...",
        "git",
        "5.8.0",
    ]


@pytest.mark.parametrize("kind", ["path", "url", "git"])
def test_the_type_of_url_is_one_of_path_url_git(kind: str) -> None:
    assert ExternalDependency("a", "b", kind, "1").url_type == kind
    with pytest.raises(UserError, match="unknown url_type"):
        ExternalDependency("a", "b", f"{kind}s-", "1")


def test_the_version_is_required_of_git() -> None:
    with pytest.raises(UserError, match="'git' needs a version_spec") as caught:
        ExternalDependency("a", "b", "git")
    assert caught.value.hint == "a commit or a tag"
    for kind in ("path", "url"):
        assert ExternalDependency("a", "b", kind).version_spec == ""


@pytest.mark.parametrize("field", FIELDS[1:])
def test_equal_short_names_must_match_in_all_other_attributes(field: str) -> None:
    base = ExternalDependency("same", "u", "url", "1")
    other_values = {
        "url": "v",
        "url_type": "path",
        "version_spec": "2",
        "license": "MIT",
        "sha256": "0" * 64,
        "libraries": ("libx.so",),
        "build_time": True,
    }
    other_dependency = replace(base, **{field: other_values[field]})
    second = External("other", lambda call, target: call.op == "neg", emits_c, (other_dependency,))
    module = graph(lambda g, x: g.neg(g.tanh(g.relu(x))), x=(4,))
    with pytest.raises(UserError) as caught:
        tk.compile(module, externals=[takes_relu(dependencies=(base,)), second])
    assert caught.value.code == "dependency-clash" and f"{field} " in caught.value.message
    assert "external 'byoc'" in caught.value.message and "external 'other'" in caught.value.message


def test_the_compiler_removes_exact_duplicates() -> None:
    second = External("other", lambda call, target: call.op == "neg", emits_c, (CMSIS_NN,))
    module = graph(lambda g, x: g.neg(g.tanh(g.relu(x))), x=(4,))
    first = takes_relu(dependencies=(CMSIS_NN, CMSIS_NN))
    assert tk.compile(module, externals=[first, second]).external_dependencies == (CMSIS_NN,)


# -- external_dependencies are part of the compiler's output --------------------------------------


def test_the_executable_has_external_dependencies() -> None:
    exe = tk.compile(one_relu(), externals=[takes_relu(dependencies=(CMSIS_NN,))])
    assert exe.external_dependencies == (CMSIS_NN,)
    assert tk.compile(one_relu()).external_dependencies == ()


def test_the_metadata_is_the_json_of_the_proposal_and_our_fields() -> None:
    (row,) = [CMSIS_NN.to_json()]
    proposed = json.loads("""{
        "short_name": "cmsis-nn",
        "url": "http://github.com/...",
        "url_type": "git",
        "version_spec": "5.8.0"
    }""")
    assert dict(list(row.items())[:4]) == proposed and list(row)[:4] == list(proposed)
    further_fields = {"license": "NOASSERTION", "sha256": "", "libraries": [], "build_time": False}
    assert row == proposed | further_fields


def test_a_library_surfaces_the_same_rows(tmp_path: Path) -> None:
    exe = tk.compile(one_relu(), externals=[takes_relu(dependencies=(CMSIS_NN,))])
    library = load_module(exe.export_library(tmp_path / "net.so"))
    assert library.metadata["dependencies"] == [CMSIS_NN.to_json()]


# -- reference-level: the pieces -------------------------------------------------------------------


def test_a_pass_finds_all_attributes_and_assembles_a_list_of_them() -> None:
    module = from_source("""
@tk.script.ir_module
class Module:
    @T.prim_func
    def first(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        T.func_attr({"kExternalDependency": [T.ExternalDependency("a", "u")]})
        Y[0] = X[0]

    @T.prim_func
    def second(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
        T.func_attr({"kExternalDependency": [T.ExternalDependency("b", "v"),
                                             T.ExternalDependency("a", "u")]})
        Y[0] = X[0]

    @R.function
    def third(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        R.func_attr({"kExternalDependency": [T.ExternalDependency("c", "w")]})
        return x
""")
    declared = [(place, d.short_name) for place, d in declared_dependencies(module, ())]
    assert declared == [
        ("function 'first'", "a"),
        ("function 'second'", "b"),
        ("function 'second'", "a"),
        ("function 'third'", "c"),
    ]


def test_a_collection_function_validates_and_uniquifies_them() -> None:
    artifact = InMemoryArtifact("byoc", "x", dict, dependencies=(DRIVER,))
    declared = [
        ("a function", CMSIS_NN),
        ("another", CMSIS_NN),
        *in_memory_dependencies([artifact]),
    ]
    assert settled_dependencies(declared, LicensePolicy()) == (CMSIS_NN, DRIVER)
    clash = [*declared, ("a third", replace(DRIVER, version_spec="12"))]
    with pytest.raises(UserError, match="artifact 'byoc/x' and a third ask for different"):
        settled_dependencies(clash, LicensePolicy())
