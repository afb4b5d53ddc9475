"""The knobs: environment variables that configure the compiler, in one table.

Besides these only conventions of the system are read: XDG_CACHE_HOME here, and TERM, NO_COLOR and
FORCE_COLOR in base/terminal.py. A compiled library reads KILN_NUM_THREADS and KILN_VERIFY_WEIGHTS
itself (crt/threads.c, crt/weights.c), by the same rules.

Except for CC, which replaces the C compiler, no knob changes the bytes of a compiled library: what
does is an argument of `compile` or a field of the Target.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.errors import UserError, nearest

MOST_JOBS = 512  # kernels that are compiled at a time
MOST_THREADS = 4096  # of one run; KILN_MOST_THREADS in crt/crt.h


@dataclass(frozen=True, slots=True)
class Config:
    """The values of all knobs; `read_config()` fills it from the environment.

    `cache_limit` is in bytes; 0 `num_threads` means all CPUs the process may run on, 0
    `compile_jobs` that the compiler chooses, and empty `cc` the packaged C compiler.
    """

    debug: int = 0
    dump: Path | None = None
    cache: bool = True
    cache_dir: Path = Path("~/.cache/tensorkiln")
    cache_limit: int = 2 << 30
    num_threads: int = 0
    compile_jobs: int = 0
    progress: str = "auto"
    verify_weights: bool = False
    cc: str = ""
    source_date: int = 0


@dataclass(frozen=True, slots=True)
class ConfigVariable:
    """One environment variable and the Config field it sets.

    `parse` converts the text, and raises ValueError or KeyError; its docstring completes the error
    message: "expected 0 or 1". `doc` is the help text.
    """

    variable: str
    field: str
    parse: Callable[[str], object]
    doc: str


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of decimal whole numbers in `low..high`, which raises ValueError for any
    other text. Its docstring is the "expected ..." of the error message."""

    def read(text: str) -> int:
        value = _digits(text)
        if not low <= value <= high:
            raise ValueError
        return value

    read.__doc__ = f"a whole number from {low} to {high}"
    return read


def _digits(text: str) -> int:
    """Parse decimal digits, strictly: int() also accepts spaces, `1_000` and digits of other
    scripts."""
    if not re.fullmatch(r"-?[0-9]{1,40}", text):
        raise ValueError
    return int(text)


def _flag(text: str) -> bool:
    """0 or 1"""
    return {"0": False, "off": False, "1": True, "on": True}[text.lower()]


def _folder(text: str) -> Path:
    """a folder"""
    try:
        path = Path(text).expanduser()
        is_no_folder = path.exists() and not path.is_dir()
    except (OSError, RuntimeError):  # too long, or ~ of a user whose home is unknown
        raise ValueError from None
    if is_no_folder:
        raise ValueError
    return path


def byte_count(text: str) -> int:
    """a number of bytes, such as 500M or 2G"""
    if not text:
        raise ValueError
    unit = {"K": 10, "M": 20, "G": 30, "T": 40}.get(text[-1].upper())
    value = _digits(text) if unit is None else _digits(text[:-1]) << unit
    if value < 0:
        raise ValueError
    return value


def _mode(text: str) -> str:
    """auto, tty, plain or off"""
    return {"auto": "auto", "tty": "tty", "plain": "plain", "off": "off"}[text]


def _text(text: str) -> str:
    """text"""
    return text


KNOBS: tuple[ConfigVariable, ...] = (
    ConfigVariable(
        "KILN_DEBUG",
        "debug",
        whole(0, 5),
        "1 to 5: passes and times, their changes, sources, rules that fired, commands",
    ),
    ConfigVariable(
        "KILN_DUMP", "dump", _folder, "folder for the program after every pass that changed it"
    ),
    ConfigVariable("KILN_CACHE", "cache", _flag, "0 compiles without the kernel cache"),
    ConfigVariable(
        "KILN_CACHE_DIR", "cache_dir", _folder, "kernel cache; default ~/.cache/tensorkiln"
    ),
    ConfigVariable(
        "KILN_CACHE_LIMIT", "cache_limit", byte_count, "size cap of the cache; default 2G"
    ),
    ConfigVariable(
        "KILN_NUM_THREADS",
        "num_threads",
        whole(0, MOST_THREADS),
        "threads of a run; 0: all it may use",
    ),
    ConfigVariable(
        "KILN_COMPILE_JOBS", "compile_jobs", whole(0, MOST_JOBS), "compile workers; 0: chosen"
    ),
    ConfigVariable("KILN_PROGRESS", "progress", _mode, "how the command line shows progress"),
    ConfigVariable(
        "KILN_VERIFY_WEIGHTS",
        "verify_weights",
        _flag,
        "1 reads all weights of a library when it is opened, and holds them against their hash",
    ),
    ConfigVariable(
        "SOURCE_DATE_EPOCH",
        "source_date",
        whole(0, 253402300799),
        "seconds since 1970 that a list of licenses (SPDX) calls the time of its creation",
    ),
    ConfigVariable("CC", "cc", _text, "C compiler that links instead of the packaged one"),
)


def read_config(environ: Mapping[str, str] | None = None) -> Config:
    """Return the knobs as the environment sets them now.

    `environ` replaces `os.environ`. Raises UserError (code `bad-knob`) for a value that does not
    parse. An empty variable counts as unset.
    """
    env = os.environ if environ is None else environ
    values: dict[str, object] = {"cache_dir": _cache_home(env) / "tensorkiln"}
    for knob in KNOBS:
        text = env.get(knob.variable, "")
        if not text:
            continue
        try:
            values[knob.field] = knob.parse(text)
        except (ValueError, KeyError):
            expected = knob.parse.__doc__
            raise UserError(
                f"{knob.variable}={text!r}: expected {expected}", code="bad-knob", hint=knob.doc
            ) from None
    return Config(**values)  # type: ignore[arg-type]


def _cache_home(env: Mapping[str, str]) -> Path:
    """Return XDG_CACHE_HOME or `~/.cache`; `/dev/null` if the user has no home, so that nothing is
    cached: a folder that others can write to would not be safe for code."""
    try:
        return Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return Path(os.devnull)  # no folder exists or can be made below it


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each `KILN_` variable that is not a knob; a misspelt one would
    otherwise be ignored silently."""
    env = os.environ if environ is None else environ
    variables = [knob.variable for knob in KNOBS]
    odd = sorted(name for name in env if name.startswith("KILN_") and name not in variables)
    return [
        f"{name} is not a variable of Tensorkiln; {nearest(name, variables)}".rstrip("; ")
        for name in odd
    ]


def available_cpus() -> int:
    """Return the number of CPUs this process may run on (its affinity mask where the system has
    one and tells, else all CPUs)."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):  # a sandbox may refuse the call
        return os.cpu_count() or 1
