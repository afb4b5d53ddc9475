"""The three kinds of error every part of Tensorkiln raises (nothing else leaves the public API)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
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
        return f"{text}\n  hint: {self.hint}" if self.hint else text


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
            tail = f" [{issue.hint}]" if issue.hint else ""
            lines.append(f"  {at + ': ' if at else ''}{issue.message}{tail}")
        TensorkilnError.__init__(self, "\n".join(lines))


def nearest(name: str, valid: Iterable[str], count: int = 3) -> str:
    """`"did you mean 'a' or 'b'?"`, or the empty string when nothing is near."""
    found = difflib.get_close_matches(name, list(valid), n=count, cutoff=0.5)
    return f"did you mean {' or '.join(map(repr, found))}?" if found else ""
