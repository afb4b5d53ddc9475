"""Libraries whose metadata says something else than their code, loaded and called in children.

The code is whole, so whatever the metadata says, a load or a call may only fail with a type.
"""

from __future__ import annotations

import copy
import json
import os
import random as random_module
import signal
import struct
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tensorkiln.base.errors import UnsupportedError, UserError
from tests.artifact.damage_files import elf_sections, section, without_digest

_BATCH = 250  # libraries of one child
_NUMBERS = (0, -1, 1, 3, 17, 300, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 70, 0.5)
_WORDS = ("", "x", "main", "tensor", "outer", "graph", "n", "n * 4", "float64", "int8", "é", "a\0b")


def with_metadata(library: bytes, text: bytes) -> bytes:
    """The library with other metadata, of any size, at the end of the file."""
    data = bytearray(without_digest(library))
    (table,) = struct.unpack_from("<Q", data, 40)
    index = [name for name, *_ in elf_sections(library)].index(b".kiln.meta")
    struct.pack_into("<QQ", data, table + 64 * index + 24, len(data), len(text))
    return bytes(data) + text


def metadata_of(library: bytes) -> bytes:
    """Its text."""
    return (section(library, b".kiln.meta") or b"").rstrip(b"\0")


def damaged_metadata(random: random_module.Random, text: bytes) -> bytes:
    """The text with one byte changed, or with counts, names and kinds of its functions changed."""
    if random.random() < 0.3:
        data = bytearray(text)
        data[random.randrange(len(data))] = random.choice((random.randrange(256), 0x31, 0x61))
        return bytes(data)
    parsed = json.loads(text)
    for _ in range(random.randint(1, 3)):
        _damage(random, parsed)
    return json.dumps(parsed).encode()


def _damage(random: random_module.Random, parsed: dict[str, Any]) -> None:
    functions: Any = parsed.get("functions")
    fault = random.randrange(8)
    f = random.choice(functions) if isinstance(functions, list) and functions else None
    rows = f.get(random.choice(("inputs", "outputs"))) if isinstance(f, dict) else None
    if fault == 0 and isinstance(f, dict):
        name = random.choice((*_WORDS, f.get("name")))
        functions.append({**copy.deepcopy(f), "name": name})
    elif fault == 1 and isinstance(rows, list) and rows and isinstance(rows[-1], dict):
        count = len(rows) + random.choice((1, 2, 255, 300))
        rows += [{**rows[-1], "name": f"more{i}"} for i in range(len(rows), count)]
    elif fault == 2 and isinstance(rows, list) and rows:
        rows.pop(random.randrange(len(rows)))
    elif fault == 3 and isinstance(f, dict):
        f["kind"] = random.choice(_WORDS)
    elif fault == 4 and isinstance(f, dict):
        f["inputs"], f["outputs"] = f.get("outputs"), f.get("inputs")
    elif fault == 5 and isinstance(f, dict):
        _change(random, f, random.choice(list(f)))
    elif fault == 6 and isinstance(rows, list) and rows and isinstance(rows[0], dict):
        _change(random, rows[0], random.choice(list(rows[0])))
    else:
        _change(random, parsed, random.choice(list(parsed)))


def _change(random: random_module.Random, row: dict[str, Any], key: str) -> None:
    value = row[key]
    if isinstance(value, list) and value and random.random() < 0.8:
        index = random.randrange(len(value))
        if isinstance(value[index], dict) and value[index]:
            _change(random, value[index], random.choice(list(value[index])))
        else:
            value[index] = random.choice((*_NUMBERS, *_WORDS))
    elif isinstance(value, dict) and value and random.random() < 0.8:
        _change(random, value, random.choice(list(value)))
    else:
        row[key] = random.choice((*_NUMBERS, *_WORDS, None, True, [], {}, [1, 2], ["n"]))


def called(path: Path) -> int:
    """Load a library and call all its functions with what its metadata asks for; how many ran."""
    import tensorkiln as tk

    ran = 0
    library = tk.load(path)
    library._repr_html_()
    for name, info in library.functions.items():
        arguments = [_argument(p.dtype, p.shape) for p in info.inputs[:400]]
        for values in (arguments, arguments[:1], [*arguments, *arguments]):
            try:
                library[name](*values)
                ran += 1
            except (UserError, UnsupportedError):
                pass
    library.close()
    return ran


def _argument(dtype: str, shape: Sequence[Any] | None) -> Any:
    if shape is None:
        return 1
    sizes = [s if isinstance(s, int) and 0 <= s < 64 else 4 for s in shape[:8]]
    try:
        return np.ones(sizes, dtype)
    except TypeError:
        return np.ones(sizes, "float32")


def run(folder: Path, libraries: Sequence[bytes], count: int, start: int) -> list[str]:
    """Load and call that many damaged ones; what went wrong: signals and errors without a type."""
    wrong = []
    for first in range(0, count, _BATCH):
        seeds = range(start + first, start + min(count, first + _BATCH))
        wrong += _run_in_child(folder, libraries, seeds)
    return wrong


def _run_in_child(folder: Path, libraries: Sequence[bytes], seeds: range) -> list[str]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(write, "w") as report:
            for seed in seeds:
                outcome = _one(folder, libraries, seed)
                print(seed, outcome.replace("\n", " | "), file=report, flush=True)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        lines = stream.read().splitlines()
    status = os.waitpid(child, 0)[1]
    wrong = [line for line in lines if not line.endswith(" fine")]
    if os.WIFSIGNALED(status):
        next_seed = seeds[len(lines)]
        wrong.append(f"{next_seed} {signal.Signals(os.WTERMSIG(status)).name}")
        return wrong + _run_in_child(folder, libraries, seeds[len(lines) + 1 :])
    return wrong


def _one(folder: Path, libraries: Sequence[bytes], seed: int) -> str:
    random = random_module.Random(seed)
    library = random.choice(libraries)
    path = folder / f"damaged{seed % _BATCH}.so"
    path.unlink(missing_ok=True)
    path.write_bytes(with_metadata(library, damaged_metadata(random, metadata_of(library))))
    try:
        called(path)
    except (UserError, UnsupportedError):
        return "fine"
    except BaseException:
        return traceback.format_exc()
    return "fine"
