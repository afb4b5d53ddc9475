"""`python -m bench.firmware`: what a model takes on a microcontroller, beside another generator.

Flash is what the linker map has more than a program without a model: code, constants, and what they
use of the C library. RAM is what a program needs to run the model: inputs, outputs, workspace and
the deepest stack. Instructions are those of one inference. Both are built by the same compiler with
the same options and run in the same program (tests/firmware); a result that differs from the host's
is a row that says so. The peer is emmtrix's emx-onnx-cgen: C without a heap, all weights `const`.
It gets the model after ONNX Runtime's tool has folded batch normalisations, which it does not do
itself.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tensorkiln as tk
from bench.report import firmware_lines
from bench.store import add
from tests.firmware.archives import Archive
from tests.firmware.boards import BOARDS, Board, CompileError, Image, RunError
from tests.firmware.models import NETWORKS, PRECISIONS, folded, inputs, model

NETWORK = "kws"  # the name of the model in C, whichever it is
# Relative to the largest result; float32 results of a wrong program are off by far more.
TOLERANCE = 1e-4

# What the programs share, with a model that does nothing.
NOTHING = """
#include "model.h"
static unsigned char memory[2 * MODEL_BORDER];
static int value;
void *const model_input = &value;
const size_t model_input_bytes = sizeof value;
void *const model_output = &value;
const size_t model_output_bytes = sizeof value;
unsigned char *const model_memory = memory + MODEL_BORDER;
const size_t model_memory_bytes = 0;
int model_run(void) { return 0; }
"""
EMX = """
#include "model.h"
void model(const {type} *input, {type} *output);
static {type} input[{inputs}], output[{outputs}];
static unsigned char memory[2 * MODEL_BORDER];
void *const model_input = input;
const size_t model_input_bytes = sizeof input;
void *const model_output = output;
const size_t model_output_bytes = sizeof output;
unsigned char *const model_memory = memory + MODEL_BORDER;
const size_t model_memory_bytes = 0;
int model_run(void) {{ model(input, output); return 0; }}
"""


def ours(path: Path, proto: onnx.ModelProto, board: Board, folder: Path) -> Image:
    """Tensorkiln's archive in a program."""
    executable = tk.compile(tk.frontend.from_onnx(str(path)), tk.Target(board.target))
    executable.export_model_library_format(folder / "archive", NETWORK)
    return Archive(folder / "archive", NETWORK).build(board, folder / "ours")


def emx(path: Path, proto: onnx.ModelProto, board: Board, folder: Path) -> Image:
    """emx-onnx-cgen's C in a program. Its temporaries are on the stack, else in a heap."""
    command = [emx_path(), "compile", "--model-name", "model", "--restrict-arrays"]
    command += ["--large-weight-threshold", "0", "--large-temp-threshold", "0"]
    subprocess.run([*command, path, folder / "emx.c"], check=True, capture_output=True)
    kind = "float" if proto.graph.input[0].type.tensor_type.elem_type == 1 else "signed char"
    program = folder / "emx_program.c"
    sizes = [_size(v) for v in (proto.graph.input[0], proto.graph.output[0])]
    program.write_text(EMX.format(type=kind, inputs=sizes[0], outputs=sizes[1]))
    # Its text has warnings under -Wextra.
    return board.build(folder / "emx", [program, folder / "emx.c"], flags=("-std=c99", "-w"))


def emx_path() -> str | None:
    """Where emx-onnx-cgen is: beside this Python, or on the PATH."""
    program = Path(sys.executable).parent / "emx-onnx-cgen"
    return str(program) if program.exists() else shutil.which("emx-onnx-cgen")


def _size(value: onnx.ValueInfoProto) -> int:
    return int(np.prod([d.dim_value for d in value.type.tensor_type.shape.dim]))


GENERATORS: dict[str, Callable[..., Image]] = {"Tensorkiln": ours, "emx-onnx-cgen": emx}


def measure(network: str, precision: str, board: Board, folder: Path) -> Iterator[dict[str, Any]]:
    """A row per generator."""
    proto = model(network, precision)
    onnx.save(proto, folder / "ours.onnx")
    onnx.save(proto if precision == "int8" else folded(proto), folder / "folded.onnx")
    x = inputs(network, precision, 0)
    expected = tk.compile(tk.frontend.from_onnx(str(folder / "ours.onnx")))(x)
    source = folder / "nothing.c"
    source.write_text(NOTHING)
    empty = board.build(folder / "nothing", [source]).map
    for name, build in GENERATORS.items():
        row: dict[str, Any] = {"name": name, "label": name, "version": _version(name)}
        if name != "Tensorkiln" and emx_path() is None:
            yield {**row, "status": "not installed: pip install emx-onnx-cgen"}
            continue
        path = folder / ("ours.onnx" if name == "Tensorkiln" else "folded.onnx")
        try:
            image = build(path, proto, board, folder)
            (run,) = image.run([x])
        except (CompileError, RunError, subprocess.CalledProcessError) as error:
            yield {**row, "status": str(error).splitlines()[0]}
            continue
        output = np.frombuffer(run.output, expected.dtype).reshape(expected.shape)
        deviation = float(np.abs(output.astype(float) - expected).max() / np.abs(expected).max())
        row |= {
            "status": "ok"
            if deviation <= (TOLERANCE if precision == "float32" else 0)
            else f"off {deviation}",
            "flash": image.map.flash() - empty.flash(),
            "code": image.map.bytes(".text") - empty.bytes(".text"),
            "ram": image.map.ram() - empty.ram() + run.stack_bytes,
            "stack": run.stack_bytes,
            "instructions": run.instructions,
        }
        yield row


def _version(name: str) -> str:
    if name == "Tensorkiln":
        return str(tk.__version__)
    path = emx_path()
    python = Path(path).parent / "python" if path else None
    if python is None or not python.exists():
        return ""
    command = [
        str(python),
        "-c",
        f"from importlib.metadata import version; print(version({name!r}))",
    ]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    return process.stdout.strip()


def main() -> None:
    """Measure the models asked for, keep the records and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.firmware", description=__doc__)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--boards", nargs="+", default=["cortex-m4"], choices=BOARDS)
    parser.add_argument("--print", action="store_true", help="keep nothing")
    arguments = parser.parse_args()
    records = []
    for board in arguments.boards:
        if BOARDS[board].missing:
            sys.exit(BOARDS[board].missing)
        for network in arguments.networks:
            for precision in arguments.precisions:
                with tempfile.TemporaryDirectory(prefix="kiln-firmware-") as folder:
                    rows = list(measure(network, precision, BOARDS[board], Path(folder)))
                name = f"{network} {precision} on {board}"
                records.append({"model": name, "rows": rows})
                if not arguments.print:
                    add("firmware", name, 1, {"rows": rows})
                print(*firmware_lines(records[-1:])[2:], sep="\n", flush=True)
    print(*firmware_lines(records), sep="\n")


if __name__ == "__main__":
    main()
