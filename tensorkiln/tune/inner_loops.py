"""What the innermost loops of a kernel are made of: a cost that needs no machine to run on.

Counts come from the assembly that LLVM writes for the target. Its comments tell loops, and which
accesses of the stack are registers that did not fit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tensorkiln.base.errors import UnsupportedError
from tensorkiln.codegen.llvm.texts import kernel_texts
from tensorkiln.ir.stmt import PrimFunc
from tensorkiln.target import Target

_FUNCTION = re.compile(r"^([\w.$]+):\s*(?:#|//) @")
_BLOCK = re.compile(r"^(\.?L?BB\d+_\d+):|^(?:#|//) %bb\.\d+:")
_HEADER = re.compile(r"(=>)?\s*This (Inner )?Loop Header: Depth=(\d+)")
_INSIDE = re.compile(r"in Loop: Header=(BB\d+_\d+) Depth=(\d+)")
_SPILL = re.compile(r"-byte (?:Folded )?Spill")
_RELOAD = re.compile(r"-byte (?:Folded )?Reload")


@dataclass(frozen=True, slots=True)
class _Words:
    """How an architecture spells what is counted; patterns of whole instructions."""

    multiply_add: re.Pattern[str]  # of vectors: one instruction
    multiply: re.Pattern[str]  # of vectors, where a sum needs an addition of its own
    broadcast: re.Pattern[str]
    load: re.Pattern[str]
    store: re.Pattern[str]


_WORDS = {
    "x86_64": _Words(
        re.compile(r"vfn?m(?:add|sub)\d+p[sd]|vpdpbusds?|vpdpwssds?"),
        re.compile(r"v?mulp[sd]|v?pmaddwd"),
        re.compile(r"v(?:p)?broadcast|v?(?:p?shuf[pd]?[sd]?)\s+\$0,|.*\{1to\d+\}"),
        re.compile(r"(?!lea|prefetch|nop)\w+\s.*\(.*\).*,\s*%"),
        re.compile(r"v?p?mov\w*\s+%\w+.*,\s*[^%]*\("),
    ),
    "aarch64": _Words(
        re.compile(r"fml[as]\s+v|[su]dot|usdot|[su]mmla|bfmmla"),
        re.compile(r"fmul\s+v"),
        re.compile(r"ld\dr|dup\s+v"),
        re.compile(r"ld"),
        re.compile(r"st"),
    ),
}


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """One innermost loop: its place, and how many of its instructions are what.

    `multiply_adds` are those of vectors; where the target has none in one instruction, products,
    each of which takes an addition as well. A load inside another instruction counts as a load.
    `spills` and `reloads` are what goes to the stack and comes back because registers do not
    suffice; reloads alone are constants that were put there before the loop.
    """

    function: str
    label: str
    depth: int
    instructions: int
    multiply_adds: int
    loads: int
    stores: int
    broadcasts: int
    spills: int
    reloads: int

    @property
    def share(self) -> float:
        """Multiply-adds among all instructions."""
        return self.multiply_adds / self.instructions if self.instructions else 0.0


def inner_loops(f: PrimFunc, target: Target) -> list[InnerLoop]:
    """The innermost loops of one kernel in the order of its code."""
    return inner_loops_of([f], target)[0]


def inner_loops_of(funcs: Sequence[PrimFunc], target: Target) -> list[list[InnerLoop]]:
    """The same of several kernels. Raises UnsupportedError for an architecture whose assembly is
    not known."""
    if target.arch not in _WORDS:
        known = ", ".join(_WORDS)
        raise UnsupportedError(f"inner loops of {target.arch} are not counted", hint=known)
    texts = kernel_texts(funcs, target, "annotated")
    return [read_inner_loops(text, target.arch) for text in texts]


def read_inner_loops(text: str, arch: str) -> list[InnerLoop]:
    """The innermost loops of annotated assembly. A block belongs to the loop that its comments
    name; the innermost ones are marked by LLVM."""
    words, function = _WORDS[arch], ""
    depths: dict[tuple[str, str], int] = {}
    bodies: dict[tuple[str, str], list[str]] = {}
    label = inside = ""
    for line in text.splitlines():
        if found := _FUNCTION.match(line):
            function, label, inside = found[1], "", ""
        elif found := _BLOCK.match(line):
            label, inside = (found[1] or "").lstrip(".L"), ""
        if (head := _HEADER.search(line)) and head[2]:
            inside, depths[function, label] = label, int(head[3])
        elif found := _INSIDE.search(line):
            inside = found[1]
        code = re.split(r"\s#|//", line)[0].strip() if line.startswith("\t") else ""
        if inside and code and not code.startswith("."):
            bodies.setdefault((function, inside), []).append(line.strip())
    return [_counted(place, depth, bodies.get(place, []), words) for place, depth in depths.items()]


def _counted(place: tuple[str, str], depth: int, lines: list[str], words: _Words) -> InnerLoop:
    fused = sum(bool(words.multiply_add.match(x)) for x in lines)
    products = sum(bool(words.multiply.match(x)) for x in lines)
    return InnerLoop(
        *place,
        depth,
        len(lines),
        fused or products,
        sum(bool(words.load.match(x)) for x in lines),
        sum(bool(words.store.match(x)) for x in lines),
        sum(bool(words.broadcast.match(x)) for x in lines),
        sum(bool(_SPILL.search(x)) for x in lines),
        sum(bool(_RELOAD.search(x)) for x in lines),
    )
