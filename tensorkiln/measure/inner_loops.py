"""Instruction counts of a kernel's innermost loops: a static cost, without running the kernel.

Counts come from LLVM's assembly for the target, whose comments mark loop headers, the loop of each
basic block, and spills and reloads of registers.
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
    """An architecture's instructions of each counted class, as patterns from their beginning."""

    multiply_add: re.Pattern[str]  # fused, of vectors
    multiply: re.Pattern[str]  # of vectors, followed by a separate addition
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
    """One innermost loop: its function, label and depth, and its instructions by class.

    `multiply_adds` counts fused multiply-adds of vectors or, in a loop without any, vector
    multiplications, each of which needs an addition as well. A memory operand of another
    instruction counts as a load. `spills` and `reloads` are register spills to the stack and loads
    of spilled values; reloads without spills are of values spilled before the loop.
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
        """Fraction of instructions that are multiply-adds; 0 for an empty loop."""
        return self.multiply_adds / self.instructions if self.instructions else 0.0


def inner_loops(f: PrimFunc, target: Target) -> list[InnerLoop]:
    """The innermost loops of one kernel, in code order. Raises as `inner_loops_of`."""
    return inner_loops_of([f], target)[0]


def inner_loops_of(funcs: Sequence[PrimFunc], target: Target) -> list[list[InnerLoop]]:
    """The innermost loops of each kernel. Raises UnsupportedError for an architecture other than
    x86_64 and aarch64."""
    if target.arch not in _WORDS:
        archs = ", ".join(_WORDS)
        raise UnsupportedError(f"inner loops of {target.arch} are not counted", hint=archs)
    texts = kernel_texts(funcs, target, "annotated")
    return [read_inner_loops(text, target.arch) for text in texts]


def read_inner_loops(text: str, arch: str) -> list[InnerLoop]:
    """Parse the innermost loops from assembly with LLVM's loop comments.

    A basic block belongs to the loop named in its comments: `in Loop: Header=BB0_3 Depth=2`. LLVM
    marks the header of an innermost loop with `Inner Loop Header`.
    """
    words, function = _WORDS[arch], ""
    depths: dict[tuple[str, str], int] = {}
    bodies: dict[tuple[str, str], list[str]] = {}
    label = inside = ""
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            function, label, inside = match[1], "", ""
        elif match := _BLOCK.match(line):
            label, inside = (match[1] or "").lstrip(".L"), ""
        if (head := _HEADER.search(line)) and head[2]:
            inside, depths[function, label] = label, int(head[3])
        elif match := _INSIDE.search(line):
            inside = match[1]
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
