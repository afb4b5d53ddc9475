"""What a pass changed, as a unified diff of the script, function by function."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import takewhile

from tensorkiln.ir.equal import first_difference
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.text.printer import print_function

# Most lines times lines to compare: matching takes time quadratic in the length of the text.
_MOST_WORK = 4_000_000


def module_diff(before: IRModule, after: IRModule, context: int = 2) -> list[str]:
    """Lines of a unified diff per changed function, with `context` equal lines around each hunk.

    Functions that differ in attributes only, which the text does not show, get one line saying so.
    """
    lines: list[str] = []
    names = dict.fromkeys([*before, *after])
    for name in names:
        old, new = before.get(name), after.get(name)
        if old is new:
            continue
        changes = text_diff(_lines(old), _lines(new), context)
        if changes:
            lines += [f"--- {name if old else '(new)'}", f"+++ {name if new else '(gone)'}"]
            lines += changes
        elif old is not None and new is not None and first_difference(old, new) is not None:
            lines.append(f"=== {name}: equal text, different attributes")
    return lines


def _lines(f: AnyFunction | None) -> list[str]:
    return [] if f is None else print_function(f).splitlines()


def text_diff(old: Sequence[str], new: Sequence[str], context: int = 2) -> list[str]:
    """Hunks `@@ -a,b +c,d @@` of lines marked `-`, `+` or blank; empty when the texts are equal.

    The common prefix and suffix are cut off first. If the rest is too long to compare line by line,
    all of it is shown as removed and added.
    """
    line_pairs = zip(old, new, strict=False)
    head = sum(1 for _ in takewhile(lambda p: p[0] == p[1], line_pairs))
    line_pairs_reversed = zip(reversed(old[head:]), reversed(new[head:]), strict=False)
    tail = sum(1 for _ in takewhile(lambda p: p[0] == p[1], line_pairs_reversed))
    if head + tail == len(old) == len(new):
        return []
    start = max(0, head - context)
    stop = max(0, tail - context)
    a, b = old[start : len(old) - stop], new[start : len(new) - stop]
    if len(a) * len(b) > _MOST_WORK:
        context_lines = head - start, tail - stop
        return [_hunk(start, len(a), start, len(b)), *_replaced(a, b, *context_lines)]
    return list(_hunks(a, b, start, context))


def _hunks(a: Sequence[str], b: Sequence[str], start: int, context: int) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        yield _hunk(start + first[1], last[2] - first[1], start + first[3], last[4] - first[3])
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (f" {line}" for line in a[i:j])
                continue
            yield from (f"-{line}" for line in a[i:j])
            yield from (f"+{line}" for line in b[k:m])


def _replaced(a: Sequence[str], b: Sequence[str], head: int, tail: int) -> list[str]:
    end_a, end_b = len(a) - tail, len(b) - tail
    lines = [f" {line}" for line in a[:head]]
    lines += [f"-{line}" for line in a[head:end_a]] + [f"+{line}" for line in b[head:end_b]]
    return lines + [f" {line}" for line in a[end_a:]]


def _hunk(i: int, n: int, k: int, m: int) -> str:
    return f"@@ -{i + 1},{n} +{k + 1},{m} @@"
