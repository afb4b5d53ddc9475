"""Imports or compiles what a table has, in a process of limited memory, and prints a line for each:
its name, and the class of the error or `result`."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterable

import tensorkiln as tk
from tensorkiln.frontend import from_onnx
from tensorkiln.script import from_source
from tests.growth import chains, scripts

MEMORY = 8 << 30


def main(kind: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tables: dict[str, tuple[Iterable[tuple[str, object]], Callable[[object], object]]] = {
        "onnx": (models(), lambda m: from_onnx(m)),
        "constants": (constants(), lambda m: tk.compile(m)),
        "scripts": (programs(), lambda text: tk.compile(from_source(str(text)))),
    }
    table, run = tables[kind]
    for name, item in table:
        try:
            run(item)
            outcome = "result"
        except tk.InternalError as error:
            outcome = f"InternalError {error}"
        except tk.TensorkilnError:
            outcome = "error"
        except BaseException as error:
            outcome = f"{type(error).__name__} {error}"
        print(f"{name}: {outcome}".replace("\n", " "), flush=True)


def models() -> Iterable[tuple[str, object]]:
    for table in (chains.chains, chains.numbers, chains.ranks):
        yield from ((name, m.SerializeToString()) for name, m in table())


def constants() -> Iterable[tuple[str, object]]:
    names = ("concat", "concat of copies", "tile")
    yield from ((name, m.SerializeToString()) for name, m in chains.chains() if name in names)


def programs() -> Iterable[tuple[str, object]]:
    for table in (scripts.loops, scripts.nested, scripts.graphs, scripts.macros):
        yield from table()


if __name__ == "__main__":
    main(sys.argv[1])
