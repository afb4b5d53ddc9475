"""Rooms grow and functions become complex by a decision (house.py), not unseen."""

from __future__ import annotations

import ast
import json

from tests.static import house

# Names of a class in two files: nodes of both levels of the IR, and definitions of the JSON schema
# of Model Library Format, which its readers know by these names.
SHARED_CLASS_NAMES = {"Function": 2, "If": 2, "Place": 2, "Tensor": 2}

HOW = "make it smaller, or run `python -m tests.static.house --write` and say why in the commit"


def test_rooms_are_within_their_limits() -> None:
    table = json.loads(house.TABLE.read_text(encoding="utf-8"))
    assert list(house.grown(table["lines"], house.lines_by_room())) == [], HOW


def test_no_function_becomes_complex() -> None:
    table = json.loads(house.TABLE.read_text(encoding="utf-8"))
    paths = house.complex_functions()
    assert list(house.too_complex(table["complex"], paths)) == []
    gone = {name for name, count in table["complex"].items() if paths.get(name, 0) < count}
    assert gone == set(), "simpler now: `python -m tests.static.house --write`"


def test_names_say_what_values_are() -> None:
    table = json.loads(house.TABLE.read_text(encoding="utf-8"))
    counts = house.words_by_room()
    assert list(house.unnamed(table["names"], counts)) == []
    fewer = {room for room, limit in table["names"].items() if counts.get(room, 0) < limit}
    assert fewer == set(), "fewer now: `python -m tests.static.house --write`"


def test_assigned_names() -> None:
    text = """
def f(found, *rest, given=1):
    for at, x in rest:
        match x:
            case [made, *left] if (kept := made):
                total: int = 0
"""
    names = sorted(house.assigned_names(ast.parse(text)))
    assert ",".join(names) == "at,found,given,kept,left,made,rest,total,x"


def test_no_room_names_more_element_types() -> None:
    table = json.loads(house.TABLE.read_text(encoding="utf-8"))
    counts = house.type_names()
    hint = "a field or property of the type's row (base/element_types.py) says it"
    assert list(house.names_more_types(table["type_names"], counts)) == [], hint
    fewer = {room for room, count in table["type_names"].items() if counts.get(room, 0) < count}
    assert fewer == set(), "fewer now: `python -m tests.static.house --write`"


def test_a_class_name_has_one_owner() -> None:
    assert house.shared_class_names() == SHARED_CLASS_NAMES


def test_what_is_told() -> None:
    assert list(house.grown({"a": 100}, {"a": 100, "b": 1})) == [
        "b has 1 lines, and its limit is 0"
    ]
    assert list(house.too_complex({"f": 20}, {"f": 20, "g": 16})) == [
        "g has 16 paths, at most 15 are allowed"
    ]
    assert list(house.names_more_types({"a": 1}, {"a": 1, "b": 2})) == [
        "b names element types in 2 comparisons and tables, at most 0 are allowed"
    ]
    assert list(house.too_complex({"f": 20}, {"f": 21})) == [
        "f has 21 paths, at most 20 are allowed"
    ]
    assert [house.rounded(n) for n in (0, 1, 100, 101)] == [0, 100, 100, 200]
