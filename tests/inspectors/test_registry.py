"""Which inspector is taken, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.base.errors import UserError
from tensorkiln.inspectors import Inspectors
from tensorkiln.inspectors.builtin import builtin_inspectors
from tensorkiln.inspectors.registry import Inspector, make_inspector

BIN = Artifact("npu", "npu", "stream.cmd.bin", b"")


def show(artifact: Artifact) -> str:
    return artifact.name


def count(artifacts: Sequence[Artifact]) -> str:
    return str(len(artifacts))


def row(name: str, **keys: Any) -> Inspector:
    return make_inspector(name, show, **keys)


def test_the_most_specific_comes_first_whatever_the_order() -> None:
    rows = [
        row("any", suffix="*"),
        row("short", suffix=".bin"),
        row("long", suffix=".cmd.bin"),
        row("own-any", suffix="*", codegen_id="npu"),
        row("own-short", suffix="bin", codegen_id="npu"),
        row("own-long", suffix=".CMD.bin", codegen_id="npu"),
        row("other", suffix=".bin", codegen_id="gpu"),
        row("second", suffix=".bin"),
    ]
    expected = ["own-long", "own-short", "own-any", "long", "short", "second", "any"]
    assert [r.name for r in Inspectors(rows).of(BIN)] == expected
    rows_kept = [r for r in reversed(rows) if r.name != "second"]
    assert [r.name for r in Inspectors(rows_kept).of(BIN)] == [n for n in expected if n != "second"]
    chosen = Inspectors(rows)
    assert chosen.choose(BIN).name == "own-long"
    assert chosen.choose(BIN, "long").name == "long"
    assert chosen.choose(BIN, "inspect_npu_bin_own-short").name == "own-short"
    assert chosen.choose(BIN, "artifact.inspect_any_any").name == "any"


def test_of_one_name_the_most_specific_is_meant() -> None:
    rows = [row("view", suffix=".bin"), row("view", suffix=".bin", codegen_id="npu")]
    assert Inspectors(rows).choose(BIN, "view").codegen_id == "npu"
    assert Inspectors(rows).choose(BIN, "inspect_bin_view").codegen_id == ""


def test_names_follow_one_scheme() -> None:
    names = {r.full_name for r in builtin_inspectors()}
    assert {
        "artifact.inspect_json_prettyprint",
        "artifact.inspect_o_disassemble",
        "artifact.inspect_any_hexdump",
        "codegen.inspect_llvm_list-functions",
        "loader.inspect_any_print-signatures",
    } <= names
    default_row = row("default", suffix=".bin", codegen_id="mycodegenid")
    assert default_row.full_name == "artifact.inspect_mycodegenid_bin_default"
    # A code generator and a loader may have one name; their inspectors still have two.
    Inspectors(
        [
            make_inspector("all", count, codegen_id="cuda"),
            make_inspector("all", count, loader="cuda"),
        ]
    )


def test_groups_get_all_artifacts_of_theirs() -> None:
    artifacts = ArtifactSet(
        (BIN, Artifact("npu", "other", "b", b""), Artifact("c", "npu", "c.c", b""))
    )
    table = Inspectors(
        [
            make_inspector("list", count, codegen_id="npu"),
            make_inspector("list", count, loader="npu"),
            make_inspector("none", count, loader="absent"),
            row("one", suffix=".bin"),
        ]
    )
    names_by_inspector = {
        r.full_name: [a.name for a in group] for r, group in table.groups(artifacts)
    }
    assert names_by_inspector == {
        "codegen.inspect_npu_list": ["npu/stream.cmd.bin", "npu/b"],
        "loader.inspect_npu_list": ["npu/stream.cmd.bin", "c/c.c"],
    }


def test_a_second_registration_is_refused_whole_and_names_both() -> None:
    table = Inspectors([row("view", suffix=".bin", owner="package first")])
    with pytest.raises(UserError) as caught:
        table.add(
            [
                row("more", suffix=".bin", owner="package second"),
                row("view", suffix=".BIN", owner="package second"),
            ]
        )
    assert caught.value.code == "inspector-clash"
    assert "artifact.inspect_bin_view" in caught.value.message
    assert "package first" in caught.value.message and "package second" in caught.value.message
    assert [r.name for r in table] == ["view"]
    with pytest.raises(UserError, match="package third; now by package third"):
        table.add([row("x", suffix=".x", owner="package third") for _ in range(2)])
    assert [r.name for r in table] == ["view"]


# keys; a word of the message; a word of the hint
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("Name", {"suffix": ".x"}, "name", "small letters"),
    ("", {"suffix": ".x"}, "name", "small letters"),
    ("a_b", {"suffix": ".x"}, "name", "'-'"),
    ("a", {}, "it has no key", "'*'"),
    ("a", {"suffix": ".x", "loader": "l"}, "another key", "one inspector for each"),
    ("a", {"codegen_id": "c", "loader": "l"}, "another key", "one inspector for each"),
    ("a", {"codegen_id": "../c"}, "codegen_id '../c'", "letters"),
    ("a", {"loader": "l/m"}, "loader 'l/m'", "letters"),
    ("a", {"suffix": "../x"}, "suffix", ".json"),
    ("a", {"suffix": ".x", "writes": "/etc/x"}, "writes '/etc/x'", ".json"),
    ("a", {"suffix": ".x", "writes": ".."}, "writes '..'", ".json"),
]


@pytest.mark.parametrize(("name", "keys", "says", "hint"), WRONG)
def test_wrong_rows(name: str, keys: dict[str, Any], says: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        Inspectors([row(name, **keys)])
    assert caught.value.code == "bad-inspector"
    assert f"inspector {name!r}" in caught.value.where and "test_registry" in caught.value.where
    assert says in caught.value.message and hint in caught.value.hint


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(UserError, match="cannot be called"):
        Inspectors([Inspector("a", None, ".x")])  # type: ignore[arg-type]


def test_unknown_names_get_the_nearest() -> None:
    table = Inspectors(builtin_inspectors())
    artifact = Artifact("llvm", "native", "k.o", b"")
    with pytest.raises(UserError) as caught:
        table.choose(artifact, "disasemble")
    assert caught.value.code == "unknown-inspector"
    assert "'disassemble'" in caught.value.hint and caught.value.where == "artifact llvm/k.o"
    with pytest.raises(UserError) as caught:
        table.choose(artifact, "xyzzy")
    assert caught.value.hint == "there is: disassemble, symbols, sections, hexdump"
