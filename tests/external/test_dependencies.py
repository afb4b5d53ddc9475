"""Where dependencies are declared, what places messages name, and what is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorkiln as tk
from tensorkiln.artifact import Artifact, ArtifactSet, InMemoryArtifact
from tensorkiln.artifact.dependency import DEPENDENCIES
from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.base.errors import UserError
from tensorkiln.cli import main as kiln
from tensorkiln.external import External
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Call, Function
from tensorkiln.runtime import load_module, register_loader, unregister_loader
from tensorkiln.script import from_source
from tests.transform.graphs import graph

ONE = ExternalDependency("one", "https://example.org/one.git", "git", "v1", "MIT")
OTHER = replace(ONE, version_spec="v2")
TEXT = 'T.ExternalDependency("one", "https://example.org/one.git", "git", "v1", license="MIT")'


def network() -> IRModule:
    """relu and neg of two nodes."""
    return graph(lambda g, x: g.neg(g.tanh(g.relu(x))), x=(4,))


def takes(op: str) -> Callable[[Call, tk.Target], bool]:
    return lambda call, target: call.op == op


def emit(f: Function, symbol: str) -> list[Artifact]:
    text = f"void {symbol}(const float *x, float *y);\nvoid {symbol}(const float *x, float *y)"
    text += " { for (int i = 0; i < 4; i++) y[i] = x[i] + 1; }\n"
    return [Artifact("mine", "native", f"{symbol}.c", text.encode())]


def in_memory(f: Function, symbol: str) -> list[InMemoryArtifact]:
    def load() -> dict[str, Any]:
        return {symbol: lambda x, y: np.copyto(np.from_dlpack(y), np.from_dlpack(x))}

    return [InMemoryArtifact("mine", symbol, load, dependencies=(ONE,))]


def external(name: str = "mine", op: str = "relu", **fields: Any) -> External:
    return External(name, takes(op), fields.pop("emit", emit), **fields)


PROGRAM = """
@T.prim_func
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    T.func_attr({{'kExternalDependency': [{attr}]}})
    for i in range(4):
        Y[i] = T.call_extern("float32", "fabsf", X[i]{call})
"""
OUTER = """
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Object:
    y: R.Object = R.call_packed("mine.f", x, kExternalDependency=[{d}])
    return y
"""
# By place: a compile that declares ONE there, as the message names it.
PLACES: dict[str, Callable[[], tk.Executable]] = {
    "external 'mine', function 'mine_relu' (node relu)": lambda: tk.compile(
        network(), externals=[external(dependencies=(ONE,))]
    ),
    "external 'mine', function 'mine_neg' (node neg)": lambda: tk.compile(
        network(), externals=[external(op="neg", dependencies=lambda f: [ONE])]
    ),
    "function 'f'": lambda: tk.compile(from_source(PROGRAM.format(attr=TEXT, call=""))),
    "function 'main'": lambda: tk.compile(from_source(OUTER.format(d=TEXT))),
    "artifact 'mine/mine_relu'": lambda: tk.compile(
        network(), externals=[external(emit=in_memory)]
    ),
}
CALL = PROGRAM.format(attr="", call=f", dependencies=[{TEXT}]")
_CALL: Callable[[], tk.Executable] = lambda: tk.compile(from_source(CALL))  # noqa: E731


@pytest.mark.parametrize("make", [*PLACES.values(), _CALL])
def test_each_place_reaches_the_executable(make: Callable[[], tk.Executable]) -> None:
    executable = make()
    assert executable.external_dependencies == (ONE,)
    assert json.loads(executable.artifacts[DEPENDENCIES].text()) == [ONE.to_json()]


@pytest.mark.parametrize("place", PLACES)
def test_a_refused_license_names_the_place(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compile = tk.compile
    monkeypatch.setattr(tk, "compile", lambda *a, **k: compile(*a, **k, deny_licenses=["MIT"]))
    with pytest.raises(UserError) as caught:
        PLACES[place]()
    assert (caught.value.code, caught.value.where) == ("license-refused", place)
    assert "dependency 'one' has the license 'MIT', which is denied" in caught.value.message


def test_a_call_of_a_c_function_is_in_its_function() -> None:
    with pytest.raises(UserError) as caught:
        tk.compile(from_source(CALL), allow_licenses=["ISC", "Zlib"])
    assert caught.value.where == "function 'f'"
    assert "which is not allowed (allow_licenses: ISC, Zlib)" in caught.value.message


def test_a_policy_that_permits_changes_nothing(tmp_path: Path) -> None:
    mine = [external(dependencies=(ONE,))]
    plain = tk.compile(network(), externals=mine)
    policed = tk.compile(
        network(), externals=mine, allow_licenses=["MIT", "Apache-2.0"], deny_licenses=["ISC"]
    )
    assert plain.artifacts == policed.artifacts


def test_a_clash_names_both_places() -> None:
    two_externals = [
        external(dependencies=(ONE,)),
        external("second", "neg", dependencies=(OTHER,)),
    ]
    with pytest.raises(UserError) as caught:
        tk.compile(network(), externals=two_externals)
    assert caught.value.code == "dependency-clash"
    assert caught.value.message == (
        "external 'mine', function 'mine_relu' (node relu) and external 'second', function "
        "'second_neg' (node neg) ask for different dependencies 'one': version_spec 'v1' "
        "against 'v2'"
    )


def test_one_of_a_script_and_one_of_an_external_clash() -> None:
    mod = from_source(f"""
@R.function
def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    R.func_attr({{"kExternalDependency": [{TEXT}]}})
    y: R.Tensor((4,), "float32") = R.relu(x)
    return y
""")
    assert tk.compile(mod, externals=[external(dependencies=(ONE,))]).external_dependencies == (
        ONE,
    )
    with pytest.raises(UserError, match="external 'mine'.* and function 'main'"):
        tk.compile(mod, externals=[external(dependencies=(OTHER,))])


def test_what_is_not_compiled_is_not_needed() -> None:
    unused = external("unused", "exp", dependencies=(OTHER,))
    exe = tk.compile(network(), externals=[unused, external(dependencies=(ONE,))])
    assert exe.external_dependencies == (ONE,)
    assert tk.compile(network(), externals=[unused]).external_dependencies == ()
    assert DEPENDENCIES not in {a.file_name for a in tk.compile(network()).artifacts}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "received None"),
        ("one", "received 'one'"),
        (["one"], "received 'one'"),
        ([("one", "https://example.org")], "received ('one', 'https://example.org')"),
        (ONE, "received ExternalDependency"),
    ],
)
@pytest.mark.parametrize("place", ["tuple", "function", "artifact", "module"])
def test_anything_else_is_refused(answer: object, says: str, place: str) -> None:
    def artifact(f: Function, symbol: str) -> Sequence[Any]:
        return [InMemoryArtifact("mine", symbol, dict, dependencies=answer)]  # type: ignore[arg-type]

    def module(f: Function, symbol: str) -> Sequence[Any]:
        symbols = {"get_external_dependencies": lambda: answer, symbol: print}
        return [InMemoryArtifact("mine", symbol, lambda: symbols)]

    with pytest.raises(UserError) as caught:
        if place == "tuple":
            external(dependencies=answer)
        elif place == "function":
            tk.compile(network(), externals=[external(dependencies=lambda f: answer)])
        elif place == "artifact":
            tk.compile(network(), externals=[external(emit=artifact)])
        else:
            exe = tk.compile(network(), externals=[external(emit=module)])
            exe.jit().get_external_dependencies()
    assert says in caught.value.message and "expected a list of ExternalDependency" in str(
        caught.value
    )


def test_a_function_that_raises_is_named() -> None:
    def broken(f: Function) -> list[ExternalDependency]:
        raise KeyError(f.name)

    with pytest.raises(UserError, match=r"external 'mine': dependencies\(mine_relu\) raised KeyEr"):
        tk.compile(network(), externals=[external(dependencies=broken)])


# -- externals and loaded modules ---------------------------------------------------------------


def test_an_external_says_what_functions_need() -> None:
    exe = tk.compile(network(), externals=[external()])
    (f,) = exe.module.externals
    assert external(dependencies=(ONE, ONE)).get_external_dependencies(f) == (ONE,)
    assert external(dependencies=lambda f: [ONE]).get_external_dependencies(f) == (ONE,)
    assert external(dependencies=lambda f: [ONE]).get_external_dependencies() == ()
    with pytest.raises(UserError, match="different dependencies 'one'"):
        external(dependencies=lambda f: [ONE, OTHER]).get_external_dependencies(f)


def test_a_library_says_what_it_needs(tmp_path: Path, capsys: Any) -> None:
    exe = tk.compile(network(), externals=[external(dependencies=(ONE,))])
    path = exe.export_library(tmp_path / "net.so")
    assert load_module(path).get_external_dependencies() == (ONE,)
    assert exe.jit().get_external_dependencies() == (ONE,)
    assert kiln(["inspect", str(path)]) == 0
    output = capsys.readouterr().out
    assert "dependency  one v1, MIT, git https://example.org/one.git" in output
    assert kiln(["inspect", str(path), "--json"]) == 0
    dependencies = json.loads(capsys.readouterr().out)["metadata"]["dependencies"]
    assert dependencies == [ONE.to_json()]


def test_an_artifact_set_keeps_them(tmp_path: Path, capsys: Any) -> None:
    exe = tk.compile(network(), externals=[external(dependencies=(ONE,))])
    exe.artifacts.save(tmp_path / "set")
    assert tk.load_artifacts(ArtifactSet.load(tmp_path / "set")).get_external_dependencies() == (
        ONE,
    )
    assert kiln(["inspect", str(tmp_path / "set"), "--artifact", DEPENDENCIES]) == 0
    assert json.loads(capsys.readouterr().out) == [ONE.to_json()]


class Stream:
    """What a loader made: its functions by name, and what it needs to run."""

    def __init__(self, *needs: ExternalDependency):
        self.needs = needs

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name == "get_external_dependencies":
            raise KeyError(name)
        return lambda x, y: None

    def get_external_dependencies(self) -> tuple[ExternalDependency, ...]:
        return self.needs


DRIVER = ExternalDependency("driver", "https://example.org/driver")


@pytest.mark.parametrize("form", ["method", "entry"])
@pytest.mark.parametrize("clash", [False, True])
def test_modules_of_loaders_say_what_they_need(form: str, clash: bool, tmp_path: Path) -> None:
    needs = (OTHER if clash else ONE, DRIVER)

    def device(f: Function, symbol: str) -> list[Artifact]:
        return [Artifact("mine", "mystream", f"{symbol}.bin", b"1")]

    def loader(files: object, devices: object) -> object:
        if form == "method":
            return Stream(*needs)
        return {"get_external_dependencies": lambda: list(needs), "mine_relu": print}

    register_loader("mystream", loader)
    try:
        exe = tk.compile(network(), externals=[external(emit=device, dependencies=(ONE,))])
        lib = load_module(exe.export_library(tmp_path / "net.so"))
    finally:
        unregister_loader("mystream")
    (module,) = lib.imports
    assert module.get_external_dependencies() == (DRIVER, needs[0])
    assert exe.external_dependencies == (ONE,)
    if clash:
        with pytest.raises(UserError, match="<module of loader 'mystream'> ask for different"):
            lib.get_external_dependencies()
    else:
        assert lib.get_external_dependencies() == (DRIVER, ONE)


def test_a_loader_in_c_says_nothing(tmp_path: Path) -> None:
    def device(f: Function, symbol: str) -> list[Artifact]:
        return [Artifact("mine", "unknownstream", f"{symbol}.bin", b"1")]

    lib = tk.compile(network(), externals=[external(emit=device)]).jit()
    assert lib.imports[0].get_external_dependencies() == ()
    assert lib.get_external_dependencies() == ()
