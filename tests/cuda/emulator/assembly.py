"""Inline assembly in the LLVM IR of kernels -> a function with a call of the emulator for each of
its instructions."""

from __future__ import annotations

import re

_CALL = re.compile(
    r'  (?:(%\S+) = )?call (void|\{[^}]*\}) asm sideeffect "([^"]*)", "([^"]*)"\((.*)\)$'
)
_PRODUCT = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(f16|bf16)\.\2 "
    r"\{([^}]*)\}, (\$\d+|\{[^}]*\}), \$(\d+), ([01]), 1, 1, ([01])(?:, ([01]))?"
)
_BULK = re.compile(
    r"cp\.async\.bulk\.tensor\.([2-5])d\.shared::cluster\.global(\.im2col)?"
    r"\.mbarrier::complete_tx::bytes \[\$0\], \[\$1, \{([^}]*)\}\], \[\$(\d+)\](?:, \{([^}]*)\})?"
)
_OUTPUTS = ("=f", "=&f")
_TYPES = {"f16": 0, "bf16": 1}  # as warps.h numbers them
# What takes no operands but a number.
_ALONE = {
    "fence.proxy.async.shared::cta": "emulator_proxy_fence()",
    "wgmma.fence.sync.aligned": "emulator_wgmma_fence()",
    "wgmma.commit_group.sync.aligned": "emulator_wgmma_commit()",
}
_WAIT = re.compile(r"wgmma\.wait_group\.sync\.aligned (\d+)")
DECLARATIONS = """\
declare void @emulator_proxy_fence()
declare void @emulator_wgmma_fence()
declare void @emulator_wgmma_commit()
declare void @emulator_wgmma_wait(i32)
declare void @emulator_wgmma_used(ptr)
declare void @emulator_wgmma(ptr, i64, i64, i32, i32, i32)
declare void @emulator_wgmma_fragment(ptr, ptr, i64, i32, i32, i32)
declare void @emulator_bulk(i32, ptr, ptr, ptr, ptr, ptr)
"""


def is_assembly(line: str) -> bool:
    """Whether a line of LLVM IR calls inline assembly."""
    return " asm " in line


def translated(line: str, name: str, site: int) -> tuple[str, str]:
    """(the line with a call of function `name` instead, the definition of this function). `site`:
    the number of the line in its program."""
    match = _CALL.match(line)
    assert match, f"assembly in a form that the emulator does not know: {line}"
    into, result, text, bounds, arguments = match.groups()
    args = arguments.split(", ") if arguments else []
    outputs = sum(b in _OUTPUTS for b in bounds.split(","))
    types = [a.rpartition(" ")[0] for a in args]
    body = ["  %m = alloca [256 x float], align 16"]
    operands: dict[int, str] = {}
    inputs = [b for b in bounds.split(",") if b not in _OUTPUTS and not b.startswith("~")]
    for k, constraint in enumerate(inputs):
        if constraint in ("l", "r", "h"):
            operands[outputs + k] = f"%a{k}"
            continue
        body += [f"  %i{k} = getelementptr float, ptr %m, i32 {constraint}"]
        body += [f"  store float %a{k}, ptr %i{k}, align 4"]
    steps = [s for s in (s.strip() for s in text.replace("\\0A", "\n").split(";")) if s]
    for k, step in enumerate(steps):
        if bulk := _BULK.fullmatch(step):
            body += _copied(*bulk.groups(), types)
            continue
        body += _step(step, operands, outputs, site * 64 + k)
    body += _returned(result, outputs)
    params = ", ".join(f"{t} %a{k}" for k, t in enumerate(types))
    called = f"  {into} = " if into else "  "
    return (
        f"{called}call {result} @{name}({arguments})",
        "\n".join([f"define internal {result} @{name}({params}) {{", *body, "}"]),
    )


def _copied(
    rank: str, windows: str | None, places: str, barrier: str, offsets: str | None, types: list[str]
) -> list[str]:
    """The call for the copy of a box: operands are its destination, the map, an index for each
    dimension, the innermost first, a barrier and, of windows, the column and row of the tap."""
    count, taps = int(rank), 2 if windows else 0
    assert places == ", ".join(f"${k + 2}" for k in range(count)) and int(barrier) == count + 2
    assert (offsets or "") == ", ".join(f"${count + 3 + k}" for k in range(taps))
    shared = "ptr addrspace(3)"
    assert types == [shared, "ptr", *["i32"] * count, shared, *["i16"] * taps], types
    lines = [
        f"  %at = alloca [{count} x i32], align 4",
        "  %tap = alloca [2 x i16], align 4",
        f"  %to = addrspacecast {shared} %a0 to ptr",
        f"  %b = addrspacecast {shared} %a{barrier} to ptr",
    ]
    stored = [(f"%at{k}", "%at", k, "i32", k + 2) for k in range(count)]
    stored += [(f"%tap{k}", "%tap", k, "i16", count + 3 + k) for k in range(taps)]
    for name, array, k, t, operand in stored:
        lines.append(f"  {name} = getelementptr {t}, ptr {array}, i32 {k}")
        lines.append(f"  store {t} %a{operand}, ptr {name}")
    tap = "%tap" if taps else "null"
    call = f"@emulator_bulk(i32 {count}, ptr %to, ptr %a1, ptr %at, ptr %b, ptr {tap})"
    return [*lines, f"  call void {call}"]


def _step(step: str, operands: dict[int, str], outputs: int, site: int) -> list[str]:
    """The call for one instruction."""
    if step in _ALONE:
        return [f"  call void @{_ALONE[step]}"]
    if wait := _WAIT.fullmatch(step):
        return [f"  call void @emulator_wgmma_wait(i32 {wait[1]})"]
    product = _PRODUCT.fullmatch(step)
    assert product, f"an instruction that the emulator does not know: {step}"
    columns, t, registers, left_operand, right, adds, *flips = product.groups()
    assert registers == ", ".join(f"${k}" for k in range(outputs)) and int(columns) == 2 * outputs
    a, b = flips if flips[1] else ("0", flips[0])
    shape_code = _TYPES[t] | int(a) << 4 | int(b) << 5 | (adds == "0") << 6
    tail = f"i64 {operands[int(right)]}, i32 {columns}, i32 {shape_code}, i32 {site}"
    if left_operand[0] == "$":
        return [
            f"  call void @emulator_wgmma(ptr %m, i64 {operands[int(left_operand[1:])]}, {tail})"
        ]
    words = [operands[int(x[1:])] for x in left_operand[1:-1].split(", ")]
    assert len(words) == 4 and not flips[1]
    lines = [f"  %w{site} = alloca [4 x i32], align 16"]
    for k, word in enumerate(words):
        lines.append(f"  %w{site}.{k} = getelementptr i32, ptr %w{site}, i32 {k}")
        lines.append(f"  store i32 {word}, ptr %w{site}.{k}, align 4")
    return [*lines, f"  call void @emulator_wgmma_fragment(ptr %m, ptr %w{site}, {tail})"]


def _returned(result: str, outputs: int) -> list[str]:
    if not outputs:
        return ["  ret void"]
    lines, aggregate = ["  call void @emulator_wgmma_used(ptr %m)"], "poison"
    for k in range(outputs):
        lines.append(f"  %o{k} = getelementptr float, ptr %m, i32 {k}")
        lines.append(f"  %v{k} = load float, ptr %o{k}, align 4")
        lines.append(f"  %r{k} = insertvalue {result} {aggregate}, float %v{k}, {k}")
        aggregate = f"%r{k}"
    return [*lines, f"  ret {result} {aggregate}"]
