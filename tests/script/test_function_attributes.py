"""Attributes of functions: each is honoured, kept, or refused by name; none is dropped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.dependency import FIELDS, ExternalDependency
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.ir.attrs import Attrs
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.known_attrs import GRAPH_ATTRS, PROGRAM_ATTRS
from tensorkiln.ir.module import IRModule
from tensorkiln.runtime.library_file import read_library_file
from tensorkiln.script import from_source

PROGRAM = """
@T.prim_func
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    T.func_attr({attrs})
    for i in range(4):
        Y[i] = X[i] + T.float32(1)
"""
GRAPH = """
@R.function
def f(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
    R.func_attr({attrs})
    y: R.Tensor((4,), "float32") = R.neg(x)
    return y
"""
LEVELS = pytest.mark.parametrize("text", [PROGRAM, GRAPH], ids=["program", "graph"])


def read(text: str, attrs: str) -> IRModule:
    return from_source(text.replace("{attrs}", attrs), file="net.py")


WRONG = [
    ("{'note': 1}", "no attribute 'note'", "mine.note"),
    ("{'globl_symbol': 'f'}", "no attribute 'globl_symbol'", "global_symbol"),
    ("{'global_symbol': 3}", "'global_symbol' is the name that a library has", "write"),
    ("{'target': 3}", "'target' is a target's text", "write"),
    ("{'target': ''}", "'target' is a target's text", "write"),
    ("{'kExternalDependency': 'cmsis'}", "'kExternalDependency' is a list of T", "write"),
    ("{'kExternalDependency': (('cmsis', 'url'),)}", "'kExternalDependency' is a list", "write"),
]


@LEVELS
@pytest.mark.parametrize(("attrs", "message", "hint"), WRONG)
def test_what_is_refused(text: str, attrs: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        read(text, attrs)
    assert caught.value.where.startswith("net.py:4:") and message in caught.value.message
    assert hint in caught.value.hint
    # And of modules that no script made.
    good = read(text, "{'mine.note': 1}")["f"]
    name, value = next(iter(eval(attrs).items()))
    made = type(good)(
        **{k: getattr(good, k) for k in good.__dataclass_fields__}
        | {"attrs": Attrs.of(**{name: value})}
    )
    with pytest.raises(UserError) as caught:
        tk.compile(IRModule((made,)))
    assert message in caught.value.message and caught.value.where == f"f.attrs.{name}"


@LEVELS
def test_every_attribute_of_the_tables_has_a_type(text: str) -> None:
    table = PROGRAM_ATTRS if text is PROGRAM else GRAPH_ATTRS
    for name in table.names:
        with pytest.raises(UserError, match=name):
            read(text, f"{{{name!r}: -0.5}}")


@LEVELS
def test_what_is_kept_is_printed_and_survives_the_passes(text: str) -> None:
    attrs = "{'global_symbol': 'f', 'mine.note': (1, 'a'), 'target': 'native'}"
    mod = read(text, attrs)
    again = from_source(mod.script())
    exe = tk.compile(mod)
    for found in (mod["f"], again["f"], exe.module["f"]):
        kept = {k: v for k, v in found.attrs.items() if k != "planned"}
        assert kept == {"global_symbol": "f", "mine.note": (1, "a"), "target": "native"}


@LEVELS
def test_another_target_is_refused(text: str) -> None:
    other = '{"kind": "llvm", "mcpu": "znver3"}'
    mod = read(text, f"{{'target': {other!r}}}")
    with pytest.raises(UnsupportedError) as caught:
        tk.compile(mod, "native")
    assert f"f: its target is {other}" in str(caught.value)
    assert tk.compile(mod, other).target == tk.Target(other)
    with pytest.raises(UserError) as wrong:
        tk.compile(read(text, "{'target': 'llvn'}"), "native")
    assert wrong.value.where == "f.attrs.target" and "'llvm'" in wrong.value.hint


def test_a_graph_function_has_its_own_name() -> None:
    with pytest.raises(UserError, match="global_symbol 'g' of a graph function called 'f'") as e:
        read(GRAPH, "{'global_symbol': 'g'}")
    assert "name='g'" in e.value.hint


def test_graph_attributes_are_given_once() -> None:
    text = GRAPH.replace("@R.function", "@R.function(attrs={'mine.a': 1})")
    assert read(text, "{'mine.a': 1}")["f"].attrs["mine.a"] == 1
    with pytest.raises(UserError, match=r"'mine\.a' is given twice"):
        read(text, "{'mine.a': 2}")


CMSIS = 'T.ExternalDependency("cmsis-nn", "http://example.org/cmsis", "git", "5.8.0")'


@LEVELS
def test_dependencies_of_functions_reach_the_library(text: str, tmp_path: Path) -> None:
    mod = read(text, f"{{'kExternalDependency': [{CMSIS}]}}")
    assert from_source(mod.script()).script() == mod.script()
    path = tk.compile(mod).export_library(tmp_path / "net.so")
    (found,) = json.loads(json.dumps(read_library_file(path).metadata))["dependencies"]
    row = ("cmsis-nn", "http://example.org/cmsis", "git", "5.8.0", "NOASSERTION", "", [], False)
    assert found == dict(zip(FIELDS, row, strict=True))
    two = f"{{'kExternalDependency': [{CMSIS}, {CMSIS.replace('5.8.0', '5.9.0')}]}}"
    with pytest.raises(UserError, match=r"version_spec '5\.8\.0' against '5\.9\.0'"):
        tk.compile(read(text, two))


DEPENDENCY_ERRORS = [
    ("'a', 'b', 'svn'", "dependency 'a': unknown url_type 'svn'", "one of path, url, git"),
    ("'a'", "an external dependency needs its url", ""),
    ("", "an external dependency needs its short_name", ""),
    ("'a', 'b', licence='MIT'", "unknown option 'licence' of an external dependency", "'license'"),
    ("'a', 'b', license='MTI'", "unknown license 'MTI'", "'MIT'"),
    ("'a', 'b', url='c'", "'url' is given twice", ""),
    (
        "'a', 'b', 'url', '', 'MIT', '', (), False, 9",
        "takes at most 8 arguments",
        "short_name, url",
    ),
    ("'a', 3", "url is 3, expected text", ""),
    ("'a', 'b', libraries='x.so'", "libraries are 'x.so', expected file names", ""),
    ("'a', 'b', build_time=1", "build_time is 1, expected True or False", ""),
]


@LEVELS
@pytest.mark.parametrize(("fields", "message", "hint"), DEPENDENCY_ERRORS)
@pytest.mark.parametrize("letter", ["T", "R"])
def test_malformed_dependencies(
    text: str, fields: str, message: str, hint: str, letter: str
) -> None:
    with pytest.raises(UserError) as caught:
        read(text, f"{{'kExternalDependency': [{letter}.ExternalDependency({fields})]}}")
    assert caught.value.where.startswith("net.py:4:")
    assert message in caught.value.message and hint in caught.value.hint


def test_dependencies_around_a_script() -> None:
    """A decorated function may name one that Python made, T's word for which makes it there."""
    cmsis = tk.script.T.ExternalDependency("cmsis-nn", "http://example.org/cmsis")
    found = from_source(
        PROGRAM.replace("{attrs}", "{'kExternalDependency': [cmsis]}"), namespace={"cmsis": cmsis}
    )["f"].attrs["kExternalDependency"]
    assert found == (ExternalDependency("cmsis-nn", "http://example.org/cmsis"),)
    assert tk.script.R.ExternalDependency is tk.script.T.ExternalDependency


CALLS = [
    ("dependencies=[{d}]", ""),
    ("dependencies=3", "'kExternalDependency' is a list of T.ExternalDependency"),
    ("dependencies=['a']", "'kExternalDependency' is a list of T.ExternalDependency"),
    ("needs=[{d}]", "unknown option 'needs' of T.call_extern"),
]


@pytest.mark.parametrize(("option", "message"), CALLS)
def test_dependencies_of_calls_of_c_functions(option: str, message: str) -> None:
    option = option.replace("{d}", CMSIS)
    call = f'T.call_extern("float32", "fabsf", X[i], {option})'
    text = PROGRAM.replace("X[i] + T.float32(1)", call).replace("{attrs}", "{'mine.a': 1}")
    if message:
        with pytest.raises(UserError, match=message):
            from_source(text)
        return
    mod = from_source(text)
    again = from_source(mod.script())
    assert again.script() == mod.script() and "dependencies=(" in mod.script()
    assert first_difference(again, mod) is None
    other = from_source(text.replace("5.8.0", "5.9.0"))
    assert "dependencies" in str(first_difference(mod, other))
    assert [d.short_name for d in tk.compile(mod).external_dependencies] == ["cmsis-nn"]


OPTIONS = [
    ("outputs='x'", "option 'outputs' is a number of buffers"),
    ("outputs=True", "option 'outputs' is a number of buffers"),
    ("name=3", "option 'name' is a text"),
    ("op_class=3", "option 'op_class' is a text"),
    ("private='yes'", "option 'private' is True or False"),
    ("inplace='X'", "option 'inplace' is a tuple"),
    ("privat=True", "unknown option 'privat'"),
]


@pytest.mark.parametrize(("option", "message"), OPTIONS)
def test_options_of_the_decorator(option: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(PROGRAM.replace("@T.prim_func", f"@T.prim_func({option})"), "{}")


@pytest.mark.parametrize("option", ["name=3", "private='yes'", "privat=True", "attrs=3"])
def test_options_of_graphs(option: str) -> None:
    with pytest.raises(UserError):
        read(GRAPH.replace("@R.function", f"@R.function({option})"), "{}")


NEST = """
@T.prim_func
def f(X: T.Buffer((4,), "float32"), Y: T.Buffer((4,), "float32")):
    for i in T.serial(4, annotations={loop}):
        with T.block("B"):
            v = T.axis.spatial(4, i)
            T.block_attr({block})
            Y[v] = X[v] + T.float32(1)
"""
OWN = "{'mine.note': 'a'}"
IN_BLOCK = "f.body.for(i).block(B)"
WRONG_PLACES = [
    ("{'unroll': 4}", OWN, "loops have no attribute 'unroll'", "f.body.for(i).attrs.unroll"),
    ("{'thread': 'blockIdx.x'}", OWN, "a thread loop, and no other", "f"),
    (
        OWN,
        "{'unroll': 4}",
        "blocks have no attribute 'unroll'",
        f"{IN_BLOCK}.attrs.unroll",
    ),
    (
        OWN,
        "{'orgin': 'C'}",
        "blocks have no attribute 'orgin'",
        f"{IN_BLOCK}.attrs.orgin",
    ),
    (OWN, "{'origin': 3}", "attribute 'origin' is the name", f"{IN_BLOCK}.attrs.origin"),
]


@pytest.mark.parametrize(("loop", "block", "message", "place"), WRONG_PLACES)
def test_attributes_of_loops_and_blocks(loop: str, block: str, message: str, place: str) -> None:
    with pytest.raises(UserError) as caught:
        from_source(NEST.replace("{loop}", loop).replace("{block}", block), file="net.py")
    assert message in caught.value.message and caught.value.where.startswith("net.py:")
    # And of modules that no script made.
    good = from_source(NEST.replace("{loop}", OWN).replace("{block}", OWN))
    assert from_source(good.script()).script() == good.script()
    nest = good["f"].body
    if loop == OWN:
        nest = replace(nest, body=replace(nest.body, attrs=Attrs.of(**eval(block))))
    else:
        nest = replace(nest, attrs=Attrs.of(**eval(loop)))
    with pytest.raises(UserError) as caught:
        tk.compile(IRModule((replace(good["f"], body=nest),)))
    assert message in caught.value.message and caught.value.where.startswith(place)
