"""Every knob that the environment can turn, in one table. Nothing else reads the environment.

A knob never changes the bytes of a compiled library; what does is an argument of `compile` or a
field of the Target.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorkiln.base.errors import UserError, nearest

MOST_THREADS = 4096  # of a run; as in crt/crt.h


@dataclass(frozen=True, slots=True)
class Config:
    """The knobs with their defaults; `read_config()` fills it from the environment."""

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


@dataclass(frozen=True, slots=True)
class Knob:
    """One environment variable: the Config field it sets, how its text is read, and its meaning."""

    variable: str
    field: str
    parse: Callable[[str], object]
    doc: str


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers in `low..high`: decimal digits, ValueError for anything else. Its
    docstring says what is expected."""

    def read(text: str) -> int:
        value = _digits(text)
        if not low <= value <= high:
            raise ValueError
        return value

    read.__doc__ = f"a whole number from {low} to {high}"
    return read


def _digits(text: str) -> int:
    """int() takes more: spaces, `1_000`, digits of other scripts."""
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
        other = path.exists() and not path.is_dir()
    except (OSError, RuntimeError):  # too long, or ~ of a user whose home nobody knows
        raise ValueError from None
    if other:
        raise ValueError
    return path


def _size(text: str) -> int:
    """a number of bytes, such as 500M or 2G"""
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


KNOBS: tuple[Knob, ...] = (
    Knob(
        "KILN_DEBUG",
        "debug",
        whole(0, 5),
        "1 to 5: passes and times, their changes, sources, rules that fired, commands",
    ),
    Knob("KILN_DUMP", "dump", _folder, "folder for the program after every pass that changed it"),
    Knob("KILN_CACHE", "cache", _flag, "0 compiles without the kernel cache"),
    Knob("KILN_CACHE_DIR", "cache_dir", _folder, "kernel cache; default ~/.cache/tensorkiln"),
    Knob("KILN_CACHE_LIMIT", "cache_limit", _size, "size cap of the cache; default 2G"),
    Knob(
        "KILN_NUM_THREADS",
        "num_threads",
        whole(0, MOST_THREADS),
        "threads of a run; 0: all it may use",
    ),
    Knob("KILN_COMPILE_JOBS", "compile_jobs", whole(0, 512), "compile workers; 0: chosen"),
    Knob("KILN_PROGRESS", "progress", _mode, "how the command line shows progress"),
    Knob(
        "KILN_VERIFY_WEIGHTS",
        "verify_weights",
        _flag,
        "1 reads all weights of a library when it is opened, and holds them against their hash",
    ),
    Knob("CC", "cc", _text, "C compiler that links instead of the packaged one"),
)


def read_config(environ: Mapping[str, str] | None = None) -> Config:
    """The knobs as the environment sets them now.

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
    """Where programs keep their caches. Without a home nothing is kept: what lies in a folder that
    others can write to is not to be run."""
    try:
        return Path(env.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        return Path(os.devnull)  # below it there is no folder, nor can one be made


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """One sentence for each `KILN_` variable that is no knob: a typo would else do nothing."""
    env = os.environ if environ is None else environ
    known = [knob.variable for knob in KNOBS]
    odd = sorted(name for name in env if name.startswith("KILN_") and name not in known)
    return [f"{name} is no variable of kiln; {nearest(name, known)}".rstrip("; ") for name in odd]


def available_cpus() -> int:
    """CPUs this process may run on (its affinity mask, not the machine's size)."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
