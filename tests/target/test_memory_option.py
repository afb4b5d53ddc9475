"""The option `memory`: pools, their canonical form, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import MemoryPool, Target
from tensorkiln.target.memory import ALIGNS

SRAM = {"name": "sram", "size": 262144, "align": 8, "kind": "ram"}
FLASH = {"name": "flash", "size": "1M", "kind": "flash"}


def board(*pools: Any) -> Target:
    return Target({"kind": "llvm", "memory": list(pools)})


def test_canonical_form() -> None:
    target = board(SRAM, FLASH)
    assert target.memory == (
        MemoryPool("sram", 262144, 8, "ram"),
        MemoryPool("flash", 1 << 20, 64, "flash"),
    )
    assert target.to_json()["memory"] == [
        SRAM,
        {"name": "flash", "size": 1 << 20, "align": 64, "kind": "flash"},
    ]
    assert Target(str(target)) == target and hash(Target(str(target))) == hash(target)
    assert target == Target({"kind": "llvm", "memory": target.memory})
    assert target.replace(memory=None) == Target("llvm") and Target("llvm").memory == ()
    assert "memory" not in str(Target("llvm"))
    assert board({"name": "a", "size": "256K"}).memory[0].size == 256 << 10
    assert board({"name": "a"}).memory == (MemoryPool("a", None),)
    assert "size" not in board({"name": "a"}).to_json()["memory"][0]  # type: ignore[index]


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("kind", ["llvm", "llvmjit", "c"])
def test_kinds_of_cpus_have_it(kind: str, align: int) -> None:
    pool = {"name": "a", "align": align}
    assert Target({"kind": kind, "memory": [pool]}).memory[0].align == align


@pytest.mark.parametrize(
    ("memory", "code", "match"),
    [
        ([], "wrong-type", "expected a list of pools"),
        ("sram", "wrong-type", "expected a list of pools"),
        (5, "wrong-type", "expected a list of pools"),
        (SRAM, "wrong-type", "expected a list of pools"),
        (["sram"], "wrong-type", r"memory\[0\]: expected a dict, got 'sram'"),
        ([SRAM, None], "wrong-type", r"memory\[1\]: expected a dict"),
        ([{**SRAM, "bytes": 5}], "unknown-key", "unknown key 'bytes' of a pool"),
        ([{**SRAM, "algin": 8}], "unknown-key", "did you mean 'align'"),
        ([{"size": 4096}], "bad-name", "None cannot be the name"),
        ([{**SRAM, "name": 3}], "bad-name", "3 cannot be the name"),
        ([{**SRAM, "name": ""}], "bad-name", "'' cannot be the name"),
        ([{**SRAM, "name": "a b"}], "bad-name", "'a b' cannot be the name"),
        ([{**SRAM, "name": "workspace"}], "bad-name", "but not arg, constant, memory, workspace"),
        ([{**SRAM, "name": "\u00e9"}], "bad-name", "cannot be the name"),
        ([SRAM, SRAM], "given-twice", "two pools 'sram'"),
        ([{**SRAM, "size": 0}], "wrong-type", "expected a number of bytes, .* got 0"),
        ([{**SRAM, "size": -1}], "wrong-type", "got -1"),
        ([{**SRAM, "size": 1.5}], "wrong-type", "got 1.5"),
        ([{**SRAM, "size": True}], "wrong-type", "got True"),
        ([{**SRAM, "size": "much"}], "wrong-type", "got 'much'"),
        ([{**SRAM, "size": ""}], "wrong-type", "got ''"),
        ([{**SRAM, "size": 1 << 63}], "wrong-type", "got 9223372036854775808"),
        ([{**SRAM, "align": 4}], "unknown-value", r"memory\[0\].align: unknown value 4"),
        ([{**SRAM, "align": 128}], "unknown-value", "unknown value 128"),
        ([{**SRAM, "align": True}], "unknown-value", "unknown value True"),
        ([{**SRAM, "align": "8"}], "unknown-value", "unknown value '8'"),
        ([{**SRAM, "kind": "rom"}], "unknown-value", "did you mean 'ram'"),
        ([{**SRAM, "kind": None}], "unknown-value", "unknown value None"),
        ([FLASH], "contradiction", "no pool is of kind 'ram'"),
        ([{"name": "a"}, SRAM], "contradiction", "'sram' behind it would stay empty"),
    ],
)
def test_what_is_refused(memory: object, code: str, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        Target({"kind": "llvm", "memory": memory})
    assert caught.value.code == code and "target.memory" in str(caught.value)


def test_gpus_have_no_such_option() -> None:
    with pytest.raises(UserError, match="unknown key 'memory' for kind 'cuda'"):
        Target({"kind": "cuda", "memory": [SRAM]})
