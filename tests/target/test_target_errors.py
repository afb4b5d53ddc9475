"""Whatever is wrong with a field of a target, of any kind, is a UserError at that field with one
hint that helps: names that nobody knows or others own, wrong types, nothing, twice, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.target import Option, Target
from tensorkiln.target.isa import ISAS, example_triple
from tensorkiln.target.kinds import KINDS, Kind

WRONG: list[Any] = [
    None,
    7,
    True,
    1.5,
    "",
    "  ",
    "zzzzqqq",
    [],
    ["zzzzqqq"],
    {},
    {"a": 1},
    b"x",
    "\x00",
    "\ud800",
    "a" * 999,
    -1,
    1 << 70,
    float("nan"),
    [1],
    [None],
    [""],
    (),
]
FIELDS = (
    "kind",
    "tag",
    "tag_hash",
    "base_tag",
    "keys",
    "libs",
    "host",
    "devices",
    "attrs",
    "id",
    "target_host",
    "targets",
)
PLAIN = {name: {"kind": name} for name in KINDS} | {
    "composite": {"kind": "composite", "devices": ["llvm", "cuda"]}
}


def outcome(spec: Any, place: str = "") -> UserError | None:
    """The error of a description, which says where and gives a hint; None where it is a target."""
    try:
        target = Target(spec)
    except UserError as error:
        assert type(error) is UserError, spec
        assert error.where.startswith(place or "target"), (spec, error.where)
        assert error.message and str(error).count("hint:") <= 1
        assert str(error).count("did you mean") <= 1, spec
        for name in quoted(error.message):
            assert f"did you mean {name!r}" not in error.hint, f"{spec}: means what it says"
        return error
    assert Target(str(target)) == target
    return None


def quoted(message: str) -> Iterator[str]:
    yield from message.split("'")[1::2]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_wrong_value_of_every_field(kind: Kind) -> None:
    for field in FIELDS:
        for value in WRONG:
            outcome({**PLAIN[kind.name], field: value})
    for option in kind.options:
        for value in WRONG:
            error = outcome({**PLAIN[kind.name], option.name: value})
            if error is not None:
                place = error.where.partition("[")[0]  # an item of a list is said too
                assert place in (f"target.{option.name}", "target.mtriple", "target.mcpu")
                assert error.hint, (option.name, value)
            else:
                assert value is None or fits(option, value), (option.name, value)


def fits(option: Option, value: object) -> bool:
    """Whether a wrong value is one by its type, and by chance not wrong here."""
    if option.type is list:  # nothing in it, which is nothing said
        return value in ("", "  ", [], ())
    return type(value) is option.type and value != ""


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_slip_of_every_option_finds_it(kind: Kind) -> None:
    for option in kind.options:
        slip = option.name[:-1] + "q"
        error = outcome({**PLAIN[kind.name], slip: 1})
        assert error is not None and f"'{option.name}'" in error.hint, slip


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_slip_of_every_choice_finds_it(kind: Kind) -> None:
    for option in kind.options:
        for choice in option.choices:
            slip = choice + "~" if isinstance(choice, str) else choice + 1
            if slip not in option.choices:
                error = outcome({**PLAIN[kind.name], option.name: slip})
                assert error is not None and error.where == f"target.{option.name}"
                assert str(choice) in error.hint


def test_options_of_other_kinds() -> None:
    for kind in KINDS.values():
        own_names = {option.name for option in kind.options}
        for other_kind in KINDS.values():
            for option in other_kind.options:
                if option.name not in own_names:
                    error = outcome({**PLAIN[kind.name], option.name: option.default or 1})
                    assert error is not None and error.code == "unknown-key" and error.hint


def test_processors_and_features_of_other_architectures() -> None:
    """The hint names who owns it and the triple to write, which then works."""
    for isa in ISAS.values():
        triple = example_triple(isa.arch)
        for other_isa in ISAS.values():
            for cpu in set(other_isa.cpus) - set(isa.cpus):
                error = outcome({"mtriple": triple, "mcpu": cpu}, "target.mcpu")
                assert error is not None and error.code == "unknown-cpu"
                assert other_isa.arch in error.hint and "mtriple" in error.hint
                assert Target({"mtriple": error.hint.split("'")[1], "mcpu": cpu}).mcpu == cpu
            for name in set(other_isa.implied) - set(isa.implied) - set(isa.tuning):
                error = outcome({"mtriple": triple, "mattr": [f"+{name}"]}, "target.mattr")
                assert error is not None and error.code == "unknown-feature"
                assert other_isa.arch in error.hint and "mtriple" in error.hint


def test_features_both_ways_twice_and_without_a_sign() -> None:
    for isa in ISAS.values():
        triple = {"mtriple": example_triple(isa.arch)}
        base = isa.cpu_features(isa.baseline_cpu)
        for name in isa.implied:
            for sign in "+-":
                flag, contrary = f"{sign}{name}", f"{'-' if sign == '+' else '+'}{name}"
                error = outcome({**triple, "mattr": [flag, contrary]}, "target.mattr")
                assert error is not None and error.code == "contradiction" and error.hint
                once = outcome({**triple, "mattr": [flag]})
                twice = outcome({**triple, "mattr": [flag, flag]})
                assert (once is None) == (twice is None)
                fixed = sign == "-" and isa.fixed_baseline and isa.closure([name]) & base
                assert (once is None) != (name in base and bool(fixed)), flag
            error = outcome({**triple, "mattr": [name]}, "target.mattr")
            assert error is not None and f"'+{name}'" in error.hint


SLIPS = [
    ("nativ", "did you mean 'native'?"),
    ("NATIVE", "did you mean 'native'?"),
    ("", "known kinds: llvm, "),
    ({"mcpu": "native"}, "write the target 'native'"),
    ({"tag": "native"}, "write the target 'native'"),
    ({"tag": "llvm"}, "write the target 'llvm'"),
    ({"kind": "native", "mcpu": "haswell"}, "leave 'mcpu' out"),
    ({"kind": "native", "mattr": ["+avx2"]}, "leave 'mattr' out"),
    ({"kind": "native", "mtriple": "aarch64-linux-gnu"}, "leave 'mtriple' out"),
    ({"mcpu": "oryon-1"}, "a processor of aarch64: write mtriple 'aarch64-linux-gnu'"),
    ({"mcpu": "cortex-a72"}, "a processor of aarch64, armv7: write mtriple"),
    ({"mcpu": "gfx1100"}, 'write {"kind": "rocm", "arch": "gfx1100"}'),
    ({"mcpu": "sm_90"}, 'write {"kind": "cuda", "arch": "sm_90"}'),
    ({"winograd": 1}, "known: 0, 2, 4"),
    ({"winograd": 3}, "known: 0, 2, 4"),
    ({"mattr": ["avxx2"]}, "did you mean '+avx2'"),
    ({"mattr": ["+"]}, "for example '+avx2'"),
    ({"kind": "cuda", "arch": "gfx1100"}, "write kind 'rocm'"),
    ({"kind": "rocm", "arch": "sm_90"}, "write kind 'cuda'"),
]


@pytest.mark.parametrize(("spec", "hint"), SLIPS, ids=str)
def test_what_the_hint_says(spec: Any, hint: str) -> None:
    error = outcome(spec)
    assert error is not None and hint in error.hint


@pytest.mark.parametrize(
    "spec", ["native", " native ", {"kind": "native"}, {"id": "native", "keys": ["cpu"]}]
)
def test_native_however_it_is_written(spec: Any) -> None:
    assert Target(spec) == Target.native()


def test_native_wherever_a_target_is_written() -> None:
    native = Target.native()
    assert Target({"kind": "cuda", "host": "native"}).host == native
    assert Target({"devices": ["cuda", "native"]}).devices[1] == native
    assert Target({"kind": "native", "winograd": 0}) == native.replace(winograd=0)
