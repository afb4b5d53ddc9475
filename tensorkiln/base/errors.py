"""The three kinds of error every part of Tensorkiln raises (nothing else leaves the public API)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass


class TensorkilnError(Exception):
    """Base of all errors of this package. `code` is stable, e.g. `"shape-mismatch"`."""

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None, where: str = "", hint: str = ""):
        self.message, self.where, self.hint = message, where, hint
        if code is not None:
            self.code = code
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        # An error that quotes another one may have its hint already.
        return f"{text}\n  hint: {self.hint}" if self.hint and self.hint not in text else text


class UserError(TensorkilnError):
    """The caller is wrong: says what, where, what was expected and received, the nearest name."""

    code = "user-error"


class InternalError(TensorkilnError):
    """Tensorkiln is wrong: a bug, with what is needed to reproduce it."""

    code = "internal-error"


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing a model needs that is not there. `kind` is e.g. `"operator"`, `"attribute"`,
    `"dtype"`, `"opset"`, `"malformed"`; `node` is the name in the model."""

    kind: str
    node: str
    op: str
    message: str
    hint: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain form for `kiln check --json`."""
        return {
            "kind": self.kind,
            "node": self.node,
            "op": self.op,
            "message": self.message,
            "hint": self.hint,
        }


class UnsupportedError(TensorkilnError):
    """Valid input that is not implemented; lists every issue at once, not the first one."""

    code = "unsupported"
    issues: tuple[Issue, ...]

    def __init__(self, issues: Iterable[Issue] | str, *, where: str = "", hint: str = ""):
        if isinstance(issues, str):
            issues = [Issue("unsupported", where, "", issues, hint)]
        self.issues = tuple(issues)
        lines = [f"{len(self.issues)} unsupported or malformed item(s):"]
        for issue in self.issues:
            at = f"{issue.node} ({issue.op})" if issue.op else issue.node
            tail = f" [{issue.hint}]" if issue.hint and issue.hint not in issue.message else ""
            lines.append(f"  {at + ': ' if at else ''}{issue.message}{tail}")
        TensorkilnError.__init__(self, "\n".join(lines))


def require(value: object, kinds: type | tuple[type, ...], what: str) -> None:
    """UserError (code `wrong-type`) unless `value`, which is called `what`, is one of `kinds`."""
    if isinstance(value, kinds) and not (isinstance(value, bool) and kinds is int):
        return
    expected = kinds if isinstance(kinds, tuple) else (kinds,)
    raise UserError(
        f"{what} is {_article(type(value).__name__)}, expected "
        f"{' or '.join(_article(kind.__name__) for kind in expected)}",
        code="wrong-type",
    )


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def nearest(name: str, valid: Iterable[str], less: Collection[str] = ()) -> str:
    """`"did you mean 'a' or 'b'?"`, or the empty string when nothing is near.

    Near is what a slip of the hand makes: an edit (letter more, less or other, neighbours swapped)
    for every three letters of `name`, three edits at most; what begins with `name`; what `name`
    begins with (`auto` for `automatic`); and names of which one is whole words of the other. The
    fewest edits come first, of as many the names in `less` (aliases) last; three names at most.
    """
    limit = min(3, (len(name) + 1) // 3)
    small = name.casefold()
    rows = []
    for other in dict.fromkeys(valid):
        edits = _edits(small, other.casefold(), limit)
        if edits <= limit or _is_part(small, other.casefold()):
            rows.append((edits, other in less, -_shared(name, other), other))
    found = [row[-1] for row in sorted(rows)[:3]]
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""


def _edits(a: str, b: str, limit: int) -> int:
    """Insertions, deletions, substitutions, swaps of neighbours from `a` to `b`.

    Anything above `limit` is told as `limit + 1`.
    """
    start = _shared(a, b)
    a, b = a[start:], b[start:]
    end = _shared(a[::-1], b[::-1])
    a, b = a[: len(a) - end], b[: len(b) - end]
    if abs(len(a) - len(b)) > limit or len(set(a) - set(b)) > limit:
        return limit + 1
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        older, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if older and j > 1 and x == b[j - 2] and y == a[i - 2]:
                best = min(best, older[j - 2] + 1)
            row.append(best)
        if min(row) > limit and min(before) > limit:
            return limit + 1
    return min(row[-1], limit + 1)


def _shared(a: str, b: str) -> int:
    """How many letters both begin with."""
    equal = (x == y for x, y in zip(a, b, strict=False))
    return sum(1 for _ in itertools.takewhile(bool, equal))


def _is_part(name: str, other: str) -> bool:
    """Whether one begins with the other, or is words of it (`weight`, `c1.weight`)."""
    if len(name) >= 3 and other.startswith(name):
        return True
    if len(other) >= 4 and name.startswith(other):
        return True
    short, long = sorted((name, other), key=len)
    pattern = rf"(?<![a-z0-9]){re.escape(short)}(?![a-z0-9])"
    return bool(short) and re.search(pattern, long) is not None
