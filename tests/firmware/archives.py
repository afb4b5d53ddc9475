"""Programs of archives in Model Library Format: what a user writes around one, and its build."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.firmware.boards import Board, Image

# Bytes around the workspace that the program watches (MODEL_BORDER of board/model.h).
BORDER = 64

# A user's program but for the borders: buffers of the sizes that the header says, and one call.
PROGRAM = """\
#include "kiln_{name}.h"
#include "model.h"

#define ALIGNED(bytes) __attribute__((aligned(bytes)))
static unsigned char input[KILN_{NAME}_INPUT_{INPUT}_SIZE] ALIGNED(8);
static unsigned char output[KILN_{NAME}_OUTPUT_{OUTPUT}_SIZE] ALIGNED(8);
static unsigned char memory[KILN_{NAME}_WORKSPACE_SIZE + 2 * MODEL_BORDER] ALIGNED(64);

void *const model_input = input;
const size_t model_input_bytes = sizeof input;
void *const model_output = output;
const size_t model_output_bytes = sizeof output;
unsigned char *const model_memory = memory + MODEL_BORDER;
const size_t model_memory_bytes = KILN_{NAME}_WORKSPACE_SIZE;

int model_run(void)
{{
    const struct kiln_{name}_inputs inputs = {{(const void *)input}};
    const struct kiln_{name}_outputs outputs = {{(void *)output}};
    const struct kiln_{name}_pools pools = {{memory + MODEL_BORDER}};
    return (int)kiln_{name}_run(&inputs, &outputs, &pools);
}}
"""


@dataclass(frozen=True)
class Archive:
    """An unpacked archive of one model with one function of one input and one output."""

    folder: Path
    name: str

    @cached_property
    def module(self) -> dict[str, Any]:
        """What the metadata says of the model."""
        metadata = json.loads((self.folder / "metadata.json").read_text())
        found: dict[str, Any] = metadata["modules"][self.name]
        return found

    @property
    def function(self) -> dict[str, Any]:
        """What the metadata says of its function."""
        (found,) = self.module["functions"].values()
        return dict(found)

    @property
    def constants_bytes(self) -> int:
        """Bytes that the metadata says lie in flash beside the code."""
        return int(self.function["constants_size_bytes"])

    @property
    def ram_bytes(self) -> int:
        """Bytes that the metadata says a program provides: workspace, inputs and outputs."""
        return int(self.function["workspace_size_bytes"] + self.function["io_size_bytes"])

    @property
    def sources(self) -> list[Path]:
        """The C files of the archive, as the metadata lists them."""
        return [self.folder / path for path in self.module["sources"]]

    def build(self, board: Board, folder: Path) -> Image:
        """The archive's files, unedited, in a program for a board."""
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / "program.c"
        (given,), (result,) = self.function["inputs"], self.function["outputs"]
        names = {"name": self.name, "NAME": self.name.upper()}
        names |= {"INPUT": given["member"].upper(), "OUTPUT": result["member"].upper()}
        program.write_text(PROGRAM.format(**names))
        headers = [(self.folder / self.module["header"]).parent, self.folder / "runtime"]
        return board.build(folder, [program, *self.sources], include=headers)
