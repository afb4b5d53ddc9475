"""Kinds of one's own: what a registration gives, and that a bad one leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import (
    Option,
    Target,
    register_target_kind,
    unregister_target_kind,
)
from tensorkiln.target.kinds import KINDS
from tensorkiln.target.options import ELSEWHERE, Values


@pytest.fixture(autouse=True)
def forget_kinds() -> Iterator[None]:
    before = set(KINDS)
    yield
    for name in set(KINDS) - before:
        unregister_target_kind(name)


LANES = Option("lanes", int, "lanes of the unit", 1, 64, default=8)
MODE = Option("mode", str, "rounding", choices=("down", "nearest"))


def test_registered_kind() -> None:
    register_target_kind("dnnl", "cpu", [LANES, MODE], ["cpu", "dnnl"], doc="oneDNN")
    target = Target({"kind": "dnnl", "mode": "down", "host": "llvm"})
    assert target.keys == ("cpu", "dnnl")
    assert target["lanes"] == 8
    assert target["mode"] == "down"
    assert Target("dnnl")["mode"] is None
    assert "mode" not in Target("dnnl").to_json()
    assert Target(str(target)) == target
    with pytest.raises(UserError, match="out of range 1..64") as caught:
        Target({"kind": "dnnl", "lanes": 0})
    assert caught.value.hint == "lanes of the unit"
    with pytest.raises(UserError, match="did you mean 'lanes'. lanes: lanes of the unit"):
        Target({"kind": "dnnl", "lane": 1})
    with pytest.raises(UserError, match="unknown value 'dwon'") as caught:
        Target({"kind": "dnnl", "mode": "dwon"})
    assert caught.value.hint == "did you mean 'down'? mode: rounding"


def test_hooks_are_kept_as_given() -> None:
    def relax_codegen(target: Target) -> tuple[()]:
        return ()

    def pre_codegen(target: Target) -> list[Any]:
        return []

    kind = register_target_kind("dnnl", "cpu", relax_codegen=relax_codegen, pre_codegen=pre_codegen)
    assert KINDS["dnnl"] is kind
    assert kind.hooks.relax_codegen is relax_codegen
    assert kind.hooks.pre_codegen is pre_codegen
    assert kind.hooks.linker is None
    assert kind.has_codegen


def test_canonicalizer() -> None:
    def even(values: Values, place: str) -> Values:
        lanes = values["lanes"]
        assert isinstance(lanes, int)
        if lanes == 13:
            raise UserError("unlucky", where=place)
        return {**values, "lanes": lanes // 2 * 2}

    register_target_kind("unit", "cpu", [LANES], canonicalizer=even)
    assert Target({"kind": "unit", "lanes": 7}) == Target({"kind": "unit", "lanes": 6})
    with pytest.raises(UserError, match=r"target\.host: unlucky"):
        Target({"host": {"kind": "unit", "lanes": 13}})


def test_named_composite() -> None:
    register_target_kind("pipeline.split", "", composite=True, doc="one device per layer")
    spec = {"kind": "pipeline.split", "devices": ["llvm", "cuda"], "host": "llvm"}
    target = Target(spec)
    assert [device.kind for device in target.devices] == ["llvm", "cuda"]
    assert Target(str(target)) == target
    alone = Target({"kind": "pipeline.split", "devices": ["cuda"], "host": "llvm"})
    assert alone.kind == "pipeline.split", "its lowering is its own, even for one device"


def fail(values: Values, place: str) -> Values:
    raise KeyError("lanes")


def odd(values: Values, place: str) -> Any:
    return ["lanes"]


def grows(values: Values, place: str) -> Values:
    lanes = values["lanes"]
    assert isinstance(lanes, int)
    return {"lanes": lanes + 1}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"name": "Bad Name"}, "is not a name"),
    ({"name": "llvm"}, "'llvm' is taken"),
    ({"name": "native"}, "'native' is taken"),
    ({"name": "host"}, "'host' is taken"),
    ({"name": "dnnl", "device_type": ""}, "device_type is ''"),
    ({"name": "dnnl", "default_keys": [1]}, "default_keys"),
    ({"name": "dnnl", "options": ["lanes"]}, "'lanes' is not an Option"),
    ({"name": "dnnl", "options": [LANES, LANES]}, "the name is taken"),
    ({"name": "dnnl", "options": [Option("host", str, "x")]}, "the name is taken"),
    ({"name": "dnnl", "options": [Option("lto", bool, "x")]}, "the name is taken"),
    ({"name": "dnnl", "options": [Option("x", float, "x")]}, "is not str, int, bool or list"),
    ({"name": "dnnl", "options": [Option("x", int, "x")]}, "empty range"),
    ({"name": "dnnl", "options": [Option("x", str, "")]}, "no description"),
    ({"name": "dnnl", "options": [Option("x", int, "x", 1, 2, default=3)]}, "out of range"),
    ({"name": "dnnl", "options": [LANES], "canonicalizer": fail}, "failed on the defaults"),
    ({"name": "dnnl", "options": [LANES], "canonicalizer": odd}, "expected a dict"),
    ({"name": "dnnl", "options": [LANES], "canonicalizer": grows}, "is not idempotent"),
    ({"name": "dnnl", "canonicalizer": 5}, "expected a function"),
    ({"name": "dnnl", "relax_codegen": "dnnl"}, "relax_codegen is 'dnnl'"),
]


@pytest.mark.parametrize(("arguments", "says"), BAD)
def test_bad_registration_leaves_the_registry_as_it_was(
    arguments: dict[str, Any], says: str
) -> None:
    before = dict(KINDS)
    with pytest.raises(UserError, match=says):
        register_target_kind(**{"device_type": "cpu", **arguments})
    assert before == KINDS
    Target("llvm")


def test_kinds_of_the_compiler_stay() -> None:
    unregister_target_kind("llvm")
    unregister_target_kind("never-there")
    assert "llvm" in KINDS


def test_a_name_is_free_again() -> None:
    register_target_kind("dnnl", "cpu")
    with pytest.raises(UserError, match="'dnnl' is taken"):
        register_target_kind("dnnl", "cpu")
    unregister_target_kind("dnnl")
    register_target_kind("dnnl", "cpu")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_belongs_elsewhere_says_where(name: str) -> None:
    for kind in ("llvm", "cuda"):
        with pytest.raises(UserError, match="unknown key") as caught:
            Target({"kind": kind, name: True})
        assert "would this change the generated module?" in caught.value.hint
