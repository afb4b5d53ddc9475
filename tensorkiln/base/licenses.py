"""SPDX license expressions: what an external dependency may be used under, and what a compile
allows.

    expression = term | expression ("AND" | "OR") expression | "(" expression ")"
    term       = identifier ["+"] ["WITH" exception]
    identifier = a short identifier of the SPDX list | "LicenseRef-" name

AND binds tighter than OR. `NOASSERTION` stands for a license that nobody stated, `NONE` for none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tensorkiln.base.errors import UserError, nearest

UNSTATED = "NOASSERTION"
RUNTIME_LICENSE = "Apache-2.0"  # of Tensorkiln, whose C sources are in every library
# Short identifiers of the SPDX list in common use. One that is missing here can be written as
# `LicenseRef-<identifier>` until it is added.
_IDENTIFIERS = """
0BSD AFL-3.0 AGPL-3.0-only AGPL-3.0-or-later Apache-1.1 Apache-2.0 APSL-2.0 Artistic-1.0
Artistic-2.0 BlueOak-1.0.0 BSD-1-Clause BSD-2-Clause BSD-2-Clause-Patent BSD-3-Clause
BSD-3-Clause-Clear BSD-3-Clause-LBNL BSD-3-Clause-Open-MPI BSD-4-Clause BSL-1.0 BUSL-1.1
bzip2-1.0.6 CC-BY-3.0 CC-BY-4.0 CC-BY-NC-4.0 CC-BY-NC-SA-4.0 CC-BY-SA-4.0 CC0-1.0 CDDL-1.0
CDDL-1.1 CECILL-2.1 CECILL-B CECILL-C CPL-1.0 curl ECL-2.0 EFL-2.0 EPL-1.0 EPL-2.0 EUPL-1.1
EUPL-1.2 FSFAP FTL GFDL-1.3-only GFDL-1.3-or-later GPL-1.0-only GPL-1.0-or-later GPL-2.0-only
GPL-2.0-or-later GPL-3.0-only GPL-3.0-or-later HPND ICU IJG Intel IPL-1.0 ISC LGPL-2.0-only
LGPL-2.0-or-later LGPL-2.1-only LGPL-2.1-or-later LGPL-3.0-only LGPL-3.0-or-later Libpng
libpng-2.0 libtiff LPL-1.02 MIT MIT-0 MIT-Modern-Variant MPL-1.1 MPL-2.0
MPL-2.0-no-copyleft-exception MS-PL MS-RL MulanPSL-2.0 NCSA NIST-PD NTP ODbL-1.0 OFL-1.1 OpenSSL
OSL-3.0 PHP-3.01 PostgreSQL PSF-2.0 Python-2.0 QPL-1.0 Ruby SGI-B-2.0 SISSL SSPL-1.0 TCL
Unicode-3.0 Unicode-DFS-2016 Unlicense UPL-1.0 Vim W3C WTFPL X11 Xnet Zlib zlib-acknowledgement
ZPL-2.1
"""
_EXCEPTIONS = """
Autoconf-exception-3.0 Bison-exception-2.2 Classpath-exception-2.0 Font-exception-2.0
GCC-exception-2.0 GCC-exception-3.1 GPL-CC-1.0 Libtool-exception Linux-syscall-note
LLVM-exception OpenJDK-assembly-exception-1.0 Qt-GPL-exception-1.0 Swift-exception
Universal-FOSS-exception-1.0
"""
IDENTIFIERS = frozenset(_IDENTIFIERS.split())
EXCEPTIONS = frozenset(_EXCEPTIONS.split())
_REFERENCE = re.compile(r"(DocumentRef-[A-Za-z0-9.-]+:)?LicenseRef-[A-Za-z0-9.-]+")
_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")
_GNU = re.compile(r"((?:A|L)?GPL-\d\.\d|GFDL-\d\.\d)\+?")
_CODE = "bad-license"
# A term's text and the identifier in it: ("GPL-2.0-only WITH GCC-exception-3.1", "GPL-2.0-only").
_Term = tuple[str, str]
_Accepts = Callable[[_Term], bool]


def checked_license(text: object, location: str) -> str:
    """Return `text` if it is a license expression, with single spaces between its words.

    Raises UserError (code `bad-license`) with the nearest identifier for one that is unknown.
    """
    if not isinstance(text, str):
        message = f"a license is text, not {type(text).__name__} ({text!r:.80})"
        raise UserError(
            message, code=_CODE, where=location, hint="an SPDX expression, such as 'MIT'"
        )
    _Expression(text, location, lambda term: True).value()
    return re.sub(r"\( | \)", lambda match: match[0].strip(), " ".join(text.split()))


@dataclass(frozen=True, slots=True)
class LicensePolicy:
    """Which licenses the dependencies of a compile may have.

    A term is refused if `deny` names it, or if `allow` is not empty and does not name it; naming an
    identifier also names it with any exception. An expression is permitted if its terms are, of the
    operands of an OR at least one. What nobody stated is the term NOASSERTION.
    Raises UserError (code `bad-license`) for a name that is not a term.
    """

    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()

    @classmethod
    def of(cls, allow: object = (), deny: object = ()) -> LicensePolicy:
        """Check what a user gave for either, an iterable of texts."""
        return cls(_terms(allow, "allow_licenses"), _terms(deny, "deny_licenses"))

    def __bool__(self) -> bool:
        return bool(self.allow or self.deny)

    def reason(self, expression: str) -> str:
        """Why a license expression is refused; empty if it is permitted."""
        if _Expression(expression, "", self._permits).value():
            return ""
        if self.deny and not _Expression(expression, "", self._undenied).value():
            return f"which is denied (deny_licenses: {', '.join(sorted(self.deny))})"
        return f"which is not allowed (allow_licenses: {', '.join(sorted(self.allow))})"

    def _undenied(self, term: _Term) -> bool:
        return self.deny.isdisjoint(term)

    def _permits(self, term: _Term) -> bool:
        allowed = not self.allow or not self.allow.isdisjoint(term)
        return allowed and self._undenied(term)


def _terms(identifiers: object, location: str) -> frozenset[str]:
    if isinstance(identifiers, str | bytes) or not isinstance(identifiers, Iterable):
        message = f"{location} is a list of license identifiers, not {identifiers!r:.80}"
        raise UserError(message, code=_CODE, where=location, hint=f"[{identifiers!r}]")
    licenses = [checked_license(text, location) for text in identifiers]
    for text in licenses:
        if "(" in text or " AND " in text or " OR " in text:
            message = f"{text!r} is an expression, expected one identifier"
            raise UserError(message, code=_CODE, where=location, hint="name each by itself")
    return frozenset(licenses)


class _Expression:
    """One pass over an expression by recursive descent: checks every word, and evaluates it."""

    def __init__(self, text: str, location: str, accepts: _Accepts):
        self._text, self._location, self._accepts = text, location, accepts
        self._words = _TOKEN.findall(text)
        self._position = 0

    def value(self) -> bool:
        """Whether the expression holds, where `accepts` says which terms do."""
        holds = self._disjunction(0)
        if self._position < len(self._words):
            raise self._bad(f"{self._words[self._position]!r} is not expected there")
        return holds

    def _next(self) -> str:
        return self._words[self._position] if self._position < len(self._words) else ""

    def _take(self) -> str:
        word = self._next()
        self._position += 1
        return word

    def _disjunction(self, depth: int) -> bool:
        holds = self._conjunction(depth)
        while self._next() == "OR":
            self._position += 1
            holds = self._conjunction(depth) or holds
        return holds

    def _conjunction(self, depth: int) -> bool:
        holds = self._operand(depth)
        while self._next() == "AND":
            self._position += 1
            holds = self._operand(depth) and holds
        return holds

    def _operand(self, depth: int) -> bool:
        if self._next() != "(":
            return self._accepts(self._term())
        if depth == 64:
            raise self._bad("its parentheses are nested too deeply")
        self._position += 1
        holds = self._disjunction(depth + 1)
        if self._take() != ")":
            raise self._bad("a parenthesis is not closed")
        return holds

    def _term(self) -> _Term:
        word = self._take()
        if word in ("", ")", "AND", "OR", "WITH"):
            raise self._bad(f"expected a license, received {word or 'the end'!r}")
        name = word.removesuffix("+")
        is_listed = name in IDENTIFIERS or word in (UNSTATED, "NONE")
        if not is_listed and not _REFERENCE.fullmatch(word):
            raise self._bad(f"unknown license {word!r}", _hint(word, IDENTIFIERS))
        if self._next() != "WITH":
            return word, name
        self._position += 1
        exception = self._take()
        if exception not in EXCEPTIONS:
            hint = _hint(exception, EXCEPTIONS)
            raise self._bad(f"unknown license exception {exception!r}", hint)
        return f"{word} WITH {exception}", name

    def _bad(self, problem: str, hint: str = "") -> UserError:
        whole = "" if len(self._words) <= 1 else f" in {self._text!r:.200}"
        hint = hint or "an SPDX expression, such as 'Apache-2.0' or 'MIT OR LicenseRef-mine'"
        return UserError(f"{problem}{whole}", code=_CODE, where=self._location, hint=hint)


def _hint(word: str, identifiers: Iterable[str]) -> str:
    gnu = _GNU.fullmatch(word)
    if gnu:  # SPDX no longer has the bare names, which left open which of the two is meant
        return f"{gnu[1]}-only or {gnu[1]}-or-later"
    spelling = next((k for k in sorted(identifiers) if k.lower() == word.lower()), "")
    return f"did you mean {spelling!r}?" if spelling else nearest(word, sorted(identifiers))
