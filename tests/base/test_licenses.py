"""License expressions of SPDX, and which of them a policy permits."""

from __future__ import annotations

import itertools

import pytest

from tensorkiln.base.errors import UserError
from tensorkiln.base.licenses import EXCEPTIONS, IDENTIFIERS, LicensePolicy, checked_license

GOOD = [
    "MIT",
    "LicenseRef-Arm-Proprietary",
    "DocumentRef-a.b:LicenseRef-1",
    "NOASSERTION",
    "NONE",
    "CDDL-1.0+",
    "GPL-2.0-only WITH Classpath-exception-2.0",
    "MIT OR Apache-2.0 AND ISC",
    "(MIT OR Apache-2.0) AND (ISC)",
    "Apache-2.0 WITH LLVM-exception OR (NCSA AND (MIT OR BSD-3-Clause))",
]


@pytest.mark.parametrize("text", [*GOOD, *sorted(IDENTIFIERS)])
def test_what_is_an_expression(text: str) -> None:
    assert checked_license(text, "here") == text
    spaced = f"  {text.replace(' ', '   ').replace('(', '( ')} "
    assert checked_license(spaced, "here") == text


@pytest.mark.parametrize("name", sorted(IDENTIFIERS))
def test_another_spelling_is_an_error_with_the_right_one(name: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_license(f"{name.swapcase()}", "here")
    assert caught.value.code == "bad-license" and repr(name) in caught.value.hint


def test_every_exception_is_known() -> None:
    for name in EXCEPTIONS:
        checked_license(f"GPL-3.0-only WITH {name}", "here")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("MTI", "unknown license 'MTI'", "'MIT'"),
        ("MIT 2.0", "'2.0' is not expected there in 'MIT 2.0'", ""),
        ("Apache-2", "unknown license 'Apache-2'", "'Apache-2.0'"),
        ("BSD", "unknown license 'BSD'", "BSD-2-Clause"),
        ("GPL-2.0", "unknown license 'GPL-2.0'", "GPL-2.0-only or GPL-2.0-or-later"),
        ("LGPL-2.1+", "unknown license 'LGPL-2.1+'", "LGPL-2.1-only or LGPL-2.1-or-later"),
        ("AGPL-3.0", "unknown license 'AGPL-3.0'", "AGPL-3.0-only or AGPL-3.0-or-later"),
        ("", "expected a license, received 'the end'", "such as"),
        ("MIT AND", "expected a license, received 'the end'", "such as"),
        ("OR MIT", "expected a license, received 'OR'", "such as"),
        ("MIT and ISC", "'and' is not expected there", "such as"),
        ("MIT/Apache-2.0", "unknown license 'MIT/Apache-2.0'", ""),
        ("(MIT", "a parenthesis is not closed", "such as"),
        ("MIT)", "')' is not expected there", "such as"),
        ("()", "expected a license, received ')'", "such as"),
        ("MIT WITH", "unknown license exception ''", ""),
        ("MIT WITH LLVM-exeption", "unknown license exception 'LLVM-exeption'", "LLVM-exception"),
        ("LicenseRef-", "unknown license 'LicenseRef-'", ""),
        ("LicenseRef-a_b", "unknown license 'LicenseRef-a_b'", ""),
        ("(" * 65 + "MIT" + ")" * 65, "nested too deeply", ""),
        (3, "a license is text, not int", "such as 'MIT'"),
        (None, "a license is text, not NoneType", "such as 'MIT'"),
    ],
)
def test_what_is_none(text: object, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        checked_license(text, "dependency 'x'")
    error = caught.value
    assert (error.code, error.where) == ("bad-license", "dependency 'x'")
    assert message in error.message and hint in error.hint


def test_deep_but_legal_parentheses() -> None:
    text = "(" * 64 + "MIT" + ")" * 64
    assert checked_license(text, "here") == text


# -- policies -----------------------------------------------------------------------------------


def permits(expression: str, allow: object = (), deny: object = ()) -> bool:
    return not LicensePolicy.of(allow, deny).reason(expression)


@pytest.mark.parametrize("ok", list(itertools.product([True, False], repeat=3)))
def test_and_or_are_those_of_logic(ok: tuple[bool, ...]) -> None:
    """Against Python's own `and` and `or`, for all forms, by either list."""
    names = ("MIT", "ISC", "Zlib")
    allowed = [n for n, yes in zip(names, ok, strict=True) if yes] or ["X11"]
    denied = [n for n, yes in zip(names, ok, strict=True) if not yes]
    for first, second in itertools.product(("AND", "OR"), repeat=2):
        for form in ("{} {} {} {} {}", "({} {} {}) {} {}", "{} {} ({} {} {})"):
            expression = form.format(names[0], first, names[1], second, names[2])
            python = form.format(ok[0], first.lower(), ok[1], second.lower(), ok[2])
            assert permits(expression, allow=allowed) == eval(python), expression
            assert permits(expression, deny=denied) == eval(python), expression


@pytest.mark.parametrize(
    ("expression", "allow", "deny", "permitted"),
    [
        ("MIT", (), (), True),
        ("MIT", ("MIT",), ("MIT",), False),
        ("NOASSERTION", (), ("MIT",), True),
        ("NOASSERTION", (), ("NOASSERTION",), False),
        ("NOASSERTION", ("MIT",), (), False),
        ("NOASSERTION", ("NOASSERTION",), (), True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", ("GPL-2.0-only",), (), True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", (), ("GPL-2.0-only",), False),
        (
            "GPL-2.0-only WITH Classpath-exception-2.0",
            ("GPL-2.0-only WITH Classpath-exception-2.0",),
            (),
            True,
        ),
        ("GPL-2.0-only", ("GPL-2.0-only WITH Classpath-exception-2.0",), (), False),
        ("GPL-2.0-only", (), ("GPL-2.0-only WITH Classpath-exception-2.0",), True),
        ("CDDL-1.0+", (), ("CDDL-1.0",), False),
        ("LicenseRef-a", ("LicenseRef-a",), (), True),
        ("LicenseRef-a", ("LicenseRef-b",), (), False),
    ],
)
def test_terms(expression: str, allow: object, deny: object, permitted: bool) -> None:
    assert permits(expression, allow, deny) is permitted


def test_a_policy_says_why() -> None:
    policy = LicensePolicy.of(["MIT"], ["ISC", "GPL-3.0-only"])
    assert policy.reason("ISC") == "which is denied (deny_licenses: GPL-3.0-only, ISC)"
    assert policy.reason("Zlib") == "which is not allowed (allow_licenses: MIT)"
    assert policy and not LicensePolicy()


@pytest.mark.parametrize("name", ["allow", "deny"])
@pytest.mark.parametrize("wrong", ["MIT", b"MIT", 3, None, [3], ["MTI"], ["MIT OR ISC"], ["(MIT)"]])
def test_what_is_no_policy(name: str, wrong: object) -> None:
    with pytest.raises(UserError) as caught:
        LicensePolicy.of(**{name: wrong})
    assert caught.value.code == "bad-license" and caught.value.where == f"{name}_licenses"
