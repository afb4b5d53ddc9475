"""The tests' own machinery: what it says of a run is so, and what a model must not do ends one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.capabilities import CAPABILITIES, capability
from tests.firmware.boards import BOARDS, Board, CompileError, Image, RunError, board_rows

BOARD = pytest.mark.parametrize("board", board_rows("cortex-m4", "rv32imac"))
ONE = pytest.mark.parametrize("board", [BOARDS["cortex-m4"]], ids=["cortex-m4"])
LOOPS, STACK, TOUCHED = 30_000, 3000, 21

MODEL = """
#include "model.h"
#include <stdlib.h>
#include <string.h>

static float in[4], out[4];
static unsigned char memory[2 * MODEL_BORDER + 32];
void *const model_input = in;
const size_t model_input_bytes = sizeof in;
void *const model_output = out;
const size_t model_output_bytes = sizeof out;
unsigned char *const model_memory = memory + MODEL_BORDER;
const size_t model_memory_bytes = 32;
extern const unsigned char table[1000];
extern unsigned char more[500];
extern volatile int sink;
const unsigned char table[1000] = {1, 2, 3};
unsigned char more[500] = {1};
volatile int sink;
FUNCTIONS
int model_run(void)
{
    int status = 0;
    for (int i = 0; i < 4; i++)
        out[i] = in[i] * 3;
    BODY
    return status;
}
"""
# Six instructions a round, in the assembly of both families.
COUNT = r"""
    size_t left = LOOPS;
#if defined(__arm__)
    __asm__ volatile(".syntax unified\n1: nop\nnop\nnop\nnop\nsubs %0, %0, #1\nbne 1b"
                     : "+l"(left) : : "cc");
#else
    __asm__ volatile("1: nop\nnop\nnop\nnop\naddi %0, %0, -1\nbnez %0, 1b" : "+r"(left));
#endif
    sink = table[left] + more[left];
""".replace("LOOPS", str(LOOPS))
PAINT = f"volatile char a[{STACK}]; for (int i = 0; i < {STACK}; i++) a[i] = 1; sink = a[7];"
INPUTS = [np.arange(4, dtype=np.float32), np.full(4, -2, np.float32), np.zeros(4, np.float32)]


def build(board: Board, folder: Path, body: str, functions: str = "") -> Image:
    board.require()
    source = folder / "model.c"
    source.write_text(MODEL.replace("BODY", body).replace("FUNCTIONS", functions))
    return board.build(folder / "image", [source])


@BOARD
def test_results_and_what_they_took(board: Board, tmp_path: Path) -> None:
    plain = build(board, tmp_path, f"model_memory[{TOUCHED - 1}] = 1;").run(INPUTS)
    counted, painted = (build(board, tmp_path, body).run(INPUTS) for body in (COUNT, PAINT))
    for x, p, c, s in zip(INPUTS, plain, counted, painted, strict=True):
        assert all(r.output == (x * 3).tobytes() for r in (p, c, s))
        assert c.instructions - p.instructions == pytest.approx(6 * LOOPS, abs=100)
        assert STACK <= s.stack_bytes <= STACK + 100 and p.stack_bytes <= 300
        assert (p.memory_bytes, c.memory_bytes) == (TOUCHED, 0)


@BOARD
def test_the_linker_map_says_what_lies_where(board: Board, tmp_path: Path) -> None:
    image = build(board, tmp_path, COUNT)
    own = r"0-model\.o"
    assert 1000 <= image.map.bytes(".rodata", files=own) <= 1100
    assert 500 <= image.map.bytes(".data", files=own) <= 508
    assert 192 <= image.map.bytes(".bss", files=own) <= 208
    assert 50 <= image.map.bytes(".text", files=own) <= 400
    command = [board.compiler.replace("gcc", "size"), "-A", str(image.elf)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sizes = {name: int(n) for name, n in re.findall(r"^(\.\S+)\s+(\d+)", text, re.MULTILINE)}
    for section in sizes.keys() - {name for name in sizes if name.startswith(".debug")}:
        assert image.map.bytes(section) == sizes[section], section


# One program does any of these, as its input says.
FORBIDDEN = {
    "nothing": ("", ""),
    "malloc": ("sink = malloc(4) != NULL;", "malloc was called"),
    "calloc": ("sink = calloc(2, (size_t)sink) != NULL;", "calloc was called"),
    "realloc": ("sink = realloc((void *)(size_t)sink, 8) != NULL;", "realloc was called"),
    "free": ("free((void *)(size_t)sink);", "free was called"),
    "below": ("model_memory[-1] = 0;", "the model wrote beside its memory"),
    "above": ("model_memory[32] = 0;", "the model wrote beside its memory"),
    "error": ("status = -1;", "the model returned an error"),
    "stack": ("overflow();", "the stack overflowed"),
    "fault": ("__builtin_trap();", "a fault"),
}
OVERFLOW = """
static __attribute__((noinline)) void overflow(void)
{
    volatile char a[3 << 20];
    for (size_t i = 0; i < sizeof a; i++)
        a[i] = 1;
}
"""


@BOARD
def test_what_ends_a_run(board: Board, tmp_path: Path) -> None:
    cases = "".join(f"case {i}: {body} break;\n" for i, (body, _) in enumerate(FORBIDDEN.values()))
    image = build(board, tmp_path, f"switch ((int)in[0]) {{ {cases} }}", OVERFLOW)
    for i, (what, (_, expected)) in enumerate(FORBIDDEN.items()):
        inputs = [np.full(4, i, np.float32)]
        if not expected:
            image.run(inputs)
            continue
        with pytest.raises(RunError) as caught:
            image.run(inputs)
        assert expected in str(caught.value), what


@pytest.mark.firmware
@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m4"])
def test_only_the_m0_cannot_read_at_any_address(name: str, tmp_path: Path) -> None:
    """Its code runs on an M3, which could: one that the start-up code tells to trap."""
    body = "int *volatile odd = (int *)(size_t)((char *)in + 1); sink = *odd;"
    image = build(BOARDS[name], tmp_path, body)
    if name == "cortex-m4":
        image.run(INPUTS)
        return
    with pytest.raises(RunError, match="a fault"):
        image.run(INPUTS)


@ONE
def test_warnings_are_errors(board: Board, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="unused"):
        build(board, tmp_path, "int unused = 1;")
    with pytest.raises(CompileError, match="undefined reference to `nobody'"):
        build(board, tmp_path, "extern int nobody(void); status = nobody();")


@BOARD
def test_a_board_whose_tools_are_missing_says_what_to_install(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert board.missing == f"no {board.compiler}, no {board.emulator}: {board.get}"
    name = capability(board.missing)
    assert name is not None and board.get in CAPABILITIES[name].get
    monkeypatch.delenv("REQUIRE_FIRMWARE", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"no {board.compiler}"):
        board.require()
    monkeypatch.setenv("REQUIRE_FIRMWARE", "1")
    with pytest.raises(pytest.fail.Exception, match=f"no {board.compiler}"):
        board.require()
