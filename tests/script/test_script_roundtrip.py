"""Printing and parsing are inverses, for every node, on random modules of both languages."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tensorkiln.base.dependency import ExternalDependency
from tensorkiln.ir.buffer import Buffer
from tensorkiln.ir.dtype import INT64, DType
from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.expr import CallExtern, Var
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import Function, RVar
from tensorkiln.ir.stmt import PrimFunc, Seq
from tensorkiln.ir.verify import verify
from tensorkiln.script import constant_table, from_source, print_function, print_module

from .generate import graphs, modules, prim_funcs
from .generate_outer import outers

FAST = settings(max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True)


def spans(mod: IRModule) -> list[str]:
    return [
        getattr(b.value, "span", "")
        for f in mod.functions
        if isinstance(f, Function)
        for b in f.bindings
    ]


def check(mod: IRModule) -> None:
    text = print_module(mod)
    again = from_source(text, constant_table(mod))
    assert first_difference(mod, again) is None, text
    assert print_module(again) == text
    assert again.name == mod.name
    assert spans(again) == spans(mod)


@pytest.mark.parametrize("text", ["the", "it's", 'a "b"', "\\", "a\\n", "é", "'\"\\'", "T.call"])
def test_texts_within_extents_in_quotes(text: str) -> None:
    """An extent in quotes may hold texts, with quotes and escapes of their own."""
    needs = ExternalDependency("a", text)
    n = Var("n")
    extent = CallExtern("size", (n,), INT64, (needs,))
    x = Buffer("x", DType("float32"), (n, extent))
    check(IRModule((PrimFunc("f", (x,), Seq(()), outputs=0),), "m"))


@FAST
@given(prim_funcs())
def test_tensor_programs_come_back(f: PrimFunc) -> None:
    verify(IRModule((f,)))
    check(IRModule((f,)))


@FAST
@given(graphs())
def test_graphs_come_back(f: Function) -> None:
    verify(IRModule((f,)))
    check(IRModule((f,)))


@FAST
@given(outers())
def test_outer_functions_come_back(mod: IRModule) -> None:
    verify(mod)
    check(mod)


@settings(FAST, max_examples=60)
@given(modules())
def test_modules_come_back(mod: IRModule) -> None:
    verify(mod)
    check(mod)


def renamed(node: Any, seen: dict[int, Any]) -> Any:
    """A copy in which every variable, buffer and graph value is another object named `z`."""
    if isinstance(node, tuple):
        return tuple(renamed(x, seen) for x in node)
    if not is_dataclass(node):
        return node
    bound = isinstance(node, (Var, Buffer, RVar))
    if bound and id(node) in seen:
        return seen[id(node)]
    values = {f.name: renamed(getattr(node, f.name), seen) for f in fields(node) if f.init}
    if bound:
        values["name"] = "z"
    copy = replace(node, **values)
    if bound:
        seen[id(node)] = copy
    return copy


@FAST
@given(prim_funcs())
def test_canonical_text_forgets_names(f: PrimFunc) -> None:
    other = replace(renamed(f, {}), name="other")
    text = print_function(f, canonical=True)
    assert print_function(other, canonical=True) == text
    assert first_difference(f, replace(other, name=f.name)) is None
    assert print_function(replace(f, outputs=f.outputs - 1), canonical=True) != text


@FAST
@given(prim_funcs(), prim_funcs())
def test_canonical_text_tells_programs_apart(f: PrimFunc, g: PrimFunc) -> None:
    same_text = print_function(f, canonical=True) == print_function(g, canonical=True)
    assert same_text == (first_difference(f, g) is None)
