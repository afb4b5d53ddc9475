"""The three kinds of error of Tensorkiln, and hints for misspelt names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass


class TensorkilnError(Exception):
    """Base of all errors of this package.

    `code` is stable over versions, e.g. `"shape-mismatch"`. `where` says in which input the error
    is (a file, a field, a node), and `hint` how to correct it; both may be empty.
    """

    code: str = "error"

    def __init__(self, message: str, *, code: str | None = None, where: str = "", hint: str = ""):
        self.message, self.where, self.hint = message, where, hint
        if code is not None:
            self.code = code
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        # The message may quote another error, including its hint.
        return f"{text}\n  hint: {self.hint}" if self.hint and self.hint not in text else text


class UserError(TensorkilnError):
    """The caller is wrong: the message says what was expected and received, the hint how to mend
    it, often with the nearest valid name."""

    code = "user-error"


class InternalError(TensorkilnError):
    """Tensorkiln is wrong: a bug. The message holds what is needed to reproduce it."""

    code = "internal-error"


@dataclass(frozen=True, slots=True)
class Issue:
    """One reason why a model cannot be compiled. `kind` is e.g. `"operator"`, `"attribute"`,
    `"dtype"`, `"opset"`, `"malformed"`; `node` is the node's name in the model, `op` its operator.

    For a node of ONNX, `opset` is the version of the operator's set, with its domain if that is not
    ONNX's own, `types` are the element types of its operands as far as they are known, and `place`
    is the line of the program that the model was exported from, if the exporter wrote it down.
    """

    kind: str
    node: str
    op: str
    message: str
    hint: str = ""
    opset: str = ""
    types: tuple[str, ...] = ()
    place: str = ""


class UnsupportedError(TensorkilnError):
    """Valid input that is not implemented; lists all issues, not only the first."""

    code = "unsupported"
    issues: tuple[Issue, ...]

    def __init__(self, issues: Iterable[Issue] | str, *, where: str = "", hint: str = ""):
        if isinstance(issues, str):
            issues = [Issue("unsupported", where, "", issues, hint)]
        self.issues = tuple(issues)
        lines = [f"{len(self.issues)} unsupported or malformed item(s):"]
        for issue in self.issues:
            place = f"{issue.node} ({issue.op})" if issue.op else issue.node
            tail = f" [{issue.hint}]" if issue.hint and issue.hint not in issue.message else ""
            lines.append(f"  {place + ': ' if place else ''}{issue.message}{tail}")
        TensorkilnError.__init__(self, "\n".join(lines))


def require(value: object, kinds: type | tuple[type, ...], subject: str) -> None:
    """Raise UserError (code `wrong-type`) unless `value` is an instance of one of `kinds`.

    The message calls the value `subject`. A bool is not accepted where `kinds` is `int`.
    """
    if isinstance(value, kinds) and not (isinstance(value, bool) and kinds is int):
        return
    expected = kinds if isinstance(kinds, tuple) else (kinds,)
    raise UserError(
        f"{subject} is {_article(type(value).__name__)}, expected "
        f"{' or '.join(_article(kind.__name__) for kind in expected)}",
        code="wrong-type",
    )


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aeiouAEIOU" else f"a {name}"


def nearest(name: str, valid: Iterable[str], aliases: Collection[str] = ()) -> str:
    """Return `"did you mean 'a' or 'b'?"`, or the empty string if no valid name is near.

    A valid name is near if, ignoring case, it is few edits away (an insertion, deletion or
    substitution of a letter, or a swap of neighbours): `(len(name) + 1) // 3`, at most 3. So is one
    that begins with `name`, or that `name` begins with (`auto` for `automatic`), and one that
    contains `name` as whole words or the reverse (`weight` for `c1.weight`). At most three names
    are given, the fewest edits first and, among equals, those in `aliases` last.
    """
    limit = min(3, (len(name) + 1) // 3)
    small = name.casefold()
    rows = []
    for candidate in dict.fromkeys(valid):
        edits = _edits(small, candidate.casefold(), limit)
        if edits <= limit or _is_part(small, candidate.casefold()):
            rows.append((edits, candidate in aliases, -_shared(name, candidate), candidate))
    names = [row[-1] for row in sorted(rows)[:3]]
    return f"did you mean {' or '.join(map(repr, names))}?" if names else ""


def _edits(a: str, b: str, limit: int) -> int:
    """Return the optimal string alignment distance of `a` and `b`, at most `limit + 1`.

    It counts insertions, deletions, substitutions and swaps of neighbours.
    """
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    start = _shared(a, b)
    a, b = a[start:], b[start:]
    end = _shared(a[::-1], b[::-1])
    a, b = a[: len(a) - end], b[: len(b) - end]
    if len(set(a) - set(b)) > limit:
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
    """Return the length of the common prefix."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _is_part(name: str, candidate: str) -> bool:
    """Whether one begins with the other (`auto`, `automatic`), or is contained in it as whole words
    (`weight`, `c1.weight`)."""
    if len(name) >= 3 and candidate.startswith(name):
        return True
    if len(candidate) >= 4 and name.startswith(candidate):
        return True
    short, long = sorted((name, candidate), key=len)
    if not short or short not in long:  # an expression is compiled for each pair of names
        return False
    return re.search(rf"(?<![a-z0-9]){re.escape(short)}(?![a-z0-9])", long) is not None
