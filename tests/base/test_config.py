from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from tensorkiln.base.cache import Cache
from tensorkiln.base.config import (
    KNOBS,
    Config,
    available_cpus,
    read_config,
    unknown_variables,
)
from tensorkiln.base.errors import UserError


def test_defaults_and_home_of_the_cache() -> None:
    config = read_config({"XDG_CACHE_HOME": "/x"})
    assert config == Config(cache_dir=Path("/x/tensorkiln"))
    assert read_config({}).cache_dir.is_absolute()


def test_every_knob_sets_its_field() -> None:
    texts = {
        "KILN_DEBUG": ("3", 3),
        "KILN_DUMP": ("/d", Path("/d")),
        "KILN_CACHE": ("0", False),
        "KILN_CACHE_DIR": ("/c", Path("/c")),
        "KILN_CACHE_LIMIT": ("3M", 3 << 20),
        "KILN_NUM_THREADS": ("2", 2),
        "KILN_COMPILE_JOBS": ("5", 5),
        "KILN_PROGRESS": ("plain", "plain"),
        "KILN_VERIFY_WEIGHTS": ("1", True),
        "CC": ("gcc -m64", "gcc -m64"),
        "SOURCE_DATE_EPOCH": ("1700000000", 1700000000),
    }
    assert set(texts) == {knob.variable for knob in KNOBS}
    assert {knob.field for knob in KNOBS} == {field.name for field in dataclasses.fields(Config)}
    for knob in KNOBS:
        text, value = texts[knob.variable]
        assert getattr(read_config({knob.variable: text}), knob.field) == value


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("KILN_DEBUG", "6"),
        ("KILN_DEBUG", "-1"),
        ("KILN_DEBUG", "yes"),
        ("KILN_CACHE", "maybe"),
        ("KILN_CACHE_LIMIT", "2Q"),
        ("KILN_CACHE_LIMIT", "-2G"),
        ("KILN_CACHE_LIMIT", "G"),
        ("KILN_NUM_THREADS", "1.5"),
        ("KILN_PROGRESS", "loud"),
    ],
)
def test_bad_value_names_variable_and_expectation(variable: str, text: str) -> None:
    with pytest.raises(UserError, match=f"{variable}={text!r}: expected") as caught:
        read_config({variable: text})
    assert caught.value.code == "bad-knob"


def test_empty_is_unset() -> None:
    assert read_config({"KILN_DEBUG": ""}).debug == 0


def test_typo_is_named_with_the_nearest_knob() -> None:
    found = unknown_variables({"KILN_DEBGU": "1", "KILN_DEBUG": "1", "PATH": "/"})
    assert len(found) == 1
    assert "KILN_DEBGU" in found[0]
    assert "'KILN_DEBUG'" in found[0]


def test_cpus_follow_the_affinity_mask() -> None:
    assert available_cpus() == len(os.sched_getaffinity(0))


def test_nobody_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home, as in containers: nothing is kept where others could write."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    folder = read_config({}).cache_dir
    assert folder == Path("/dev/null/tensorkiln")
    cache = Cache(folder)
    assert (cache.put("0" * 64, b"x"), cache.get("0" * 64), cache.size()) == (False, None, 0)
    with pytest.raises(UserError, match="KILN_CACHE_DIR='~/x': expected a folder"):
        read_config({"KILN_CACHE_DIR": "~/x"})
