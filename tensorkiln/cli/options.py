"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

import argparse
import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tensorkiln.base.config import byte_count, read_config
from tensorkiln.base.element_types import PRECISIONS
from tensorkiln.base.errors import UserError, nearest
from tensorkiln.base.files import plain_path
from tensorkiln.base.progress import Progress, make_progress

T = TypeVar("T")
# What `--dim` and `--freeze` take: the sizes of ONNX and DLPack are int64.
MOST = 2**63 - 1
STDIO = "-"  # standard input, or output, in the place of a file


class WrongUsage(SystemExit):
    """The words of the command line cannot be parsed, as was already told on standard error."""

    def __init__(self, text: str):
        super().__init__(2)
        self.message, _, self.hint = text.partition("\n  hint: ")


class TargetsAsked(Exception):
    """`--target help`: whatever else is on the command line, the targets are listed."""


class Parser(argparse.ArgumentParser):
    """An argument parser that is strict: an option may be repeated only with the same value, option
    names cannot be abbreviated, and errors on unknown ones suggest the nearest name."""

    def __init__(self, **options: Any):
        super().__init__(**options, allow_abbrev=False)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class, but unknown arguments are an error here, with a hint, and are not
        returned."""
        options, extras = super().parse_known_args(args, namespace)
        if extras:
            word = extras[0].partition("=")[0]
            hint = nearest(word, self._option_string_actions) if word.startswith("-") else ""
            self.error(f"unknown argument(s): {' '.join(extras)}", hint)
        return options, extras

    def error(self, message: str, hint: str = "") -> NoReturn:
        """Print the usage and the message to standard error, and exit with code 2 (WrongUsage)."""
        text = f"{message}\n  hint: {hint}" if hint else message
        self.print_usage(sys.stderr)
        print(f"{self.prog}: error: {text}", file=sys.stderr)
        raise WrongUsage(text)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = nearest(str(value), choices)
            message = f"{value!r} is not one of {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"{message}\n  hint: {hint}" if hint else message)


class _Once(argparse.Action):
    """Stores a value; a second value for the same option must be equal to it."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Called by argparse for each use of the option."""
        uses = vars(namespace).setdefault("given", {})
        if uses.setdefault(self.dest, values) != values:
            first, second = str(uses[self.dest]), str(values)
            raise argparse.ArgumentError(self, f"given twice: {first!r} and {second!r}")
        setattr(namespace, self.dest, values)


class _TargetOption(_Once):
    """As `_Once`; the value `help` lists the targets, before what is missing is asked for."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Called by argparse for each use of the option."""
        if values == "help":
            raise TargetsAsked
        super().__call__(parser, namespace, values, option_string)


def option(read: Callable[[str], T]) -> Callable[[str], T]:
    """A function for `type=` of an argument: `read`, whose ValueError or KeyError becomes "expected
    ..., got ...". What is expected is the docstring of `read`, as for readers in `base.config`."""

    def checked(text: str) -> T:
        try:
            return read(text)
        except (ValueError, KeyError):
            raise argparse.ArgumentTypeError(f"expected {read.__doc__}, got {text!r}") from None

    checked.__doc__ = read.__doc__
    return checked


def number(low: float, high: float) -> Callable[[str], float]:
    """A reader of decimal numbers from `low` to `high`; ValueError for anything else."""

    def read(text: str) -> float:
        # float() also accepts other texts, such as nan and 1_0.
        value = float(text) if re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", text) else low - 1
        if not low <= value <= high:
            raise ValueError
        return value

    read.__doc__ = f"a number from {low:g} to {high:g}"
    return read


def _path(text: str) -> Path:
    """the name of a file or folder"""
    if text == STDIO:
        raise argparse.ArgumentTypeError(
            f"expected {_path.__doc__}, got '-': not written to standard output; "
            "./- is a file of that name"
        )
    return _source(text)


def _source(text: str) -> Path:
    """the name of a file, or - for standard input"""
    if not text:
        raise ValueError
    try:
        Path(text).lstat()  # ValueError for text that cannot be a file's name
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError from None
    return Path(text)


def _file(text: str) -> Path:
    """the name of a file"""
    if text == STDIO:
        raise ValueError
    return _source(text)


def _place(text: str) -> str:
    """the name of a folder, or a URL"""
    if text == STDIO:
        raise ValueError
    return _word(text) if "://" in text else str(_source(text))


def _folder_or_stdout(text: str) -> Path | str:
    """the name of a folder, or - for standard output"""
    return STDIO if text == STDIO else _source(text)


def _word(text: str) -> str:
    """a name"""
    if not text or "\0" in text:
        raise ValueError
    return text


# What is told apart here is completed in its own way, see `cli.completion`.
path, word = option(_path), option(_word)  # a file that is written; what only the user knows
folder, source = option(_path), option(_source)  # a folder that is written; a file that is read
folder_or_stdout = option(_folder_or_stdout)
file, place = option(_file), option(_place)  # a file that is read by its name; a folder or URL
target, external, inspector, array = (option(_word) for _ in range(4))


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add `--target`: a name, JSON text or `native`. Commands take None as `native`."""
    parser.add_argument(
        "--target",
        metavar="TARGET",
        action=_TargetOption,
        type=target,
        help="native (default: this CPU), llvm (x86-64 baseline), a tag such as raspberrypi/4b, a "
        "product, processor or feature (rpi4, skylake, avx2), or JSON text; help lists all",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add `--quiet`, of commands that show progress."""
    parser.add_argument("-q", "--quiet", action="store_true", help="show no progress")


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add `--records`, of commands that compile."""
    parser.add_argument(
        "--records",
        metavar="FILE",
        type=file,
        action="append",
        default=[],
        help="use measured choices for kernels (repeatable: the best of each kernel)",
    )


def add_precision(parser: argparse.ArgumentParser) -> None:
    """Add `--precision`, the target's option of this name."""
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="of the operands of products, whose sums are float32 (default: float32)",
    )


def add_optimize(parser: argparse.ArgumentParser) -> None:
    """Add `--optimize`, the target's option of this name."""
    parser.add_argument(
        "--optimize",
        choices=("speed", "size"),
        help="size: weights take no more than the model's (default: speed)",
    )


def add_indices(parser: argparse.ArgumentParser) -> None:
    """Add `--indices`, the target's option of this name."""
    parser.add_argument(
        "--indices",
        choices=("check", "clamp"),
        help="clamp: an index outside in data is the nearest inside (default: the call fails)",
    )


def add_denormals(parser: argparse.ArgumentParser) -> None:
    """Add `--denormals`, the target's option of this name."""
    parser.add_argument(
        "--denormals",
        choices=("keep", "flush"),
        help="flush: numbers below the smallest normal one count as 0 (default: keep)",
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the model file, `--freeze` and `--shape`."""
    parser.add_argument("model", type=source, help="an ONNX file, or - for standard input")
    parser.add_argument(
        "--freeze",
        metavar="DIM=N",
        type=dims,
        action="append",
        default=[],
        help="give a symbolic dimension a fixed size; may be repeated, or a list with commas",
    )
    add_shape(parser)


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Add `--shape`."""
    parser.add_argument(
        "--shape",
        metavar="NAME=N,...",
        type=option(_shape),
        action="append",
        default=[],
        help="shape of an input that declares none: sizes, and names of symbolic dimensions; "
        "may be repeated",
    )


def _shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """NAME=N,... with sizes from 0 or names of dimensions, or NAME= for a scalar"""
    name, is_named, listed = text.rpartition("=")
    words = [word.strip() for word in listed.split(",")] if listed.strip() else []
    if not (name and is_named and all(words)):
        raise ValueError
    sizes = [int(w) if w.isascii() and w.isdecimal() else w for w in words]
    if any(isinstance(n, int) and n > MOST for n in sizes):
        raise ValueError
    return name, tuple(sizes)


def shapes(pairs: Sequence[tuple[str, tuple[int | str, ...]]]) -> dict[str, tuple[int | str, ...]]:
    """The values of all uses of `--shape` as a dict. UserError (code `given-twice`) for two
    different shapes of one input."""
    out: dict[str, tuple[int | str, ...]] = {}
    for name, shape in pairs:
        if out.setdefault(name, shape) != shape:
            raise UserError(f"--shape: {name!r} is given two shapes", code="given-twice")
    return out


def _workspace(text: str) -> str:
    """bytes, such as 256K, or those of pools: sram=200K,dtcm=64K"""
    if "=" not in text:
        byte_count(text)
        return text
    for name, is_named, size in (part.partition("=") for part in text.split(",")):
        byte_count(size)
        if not (name and is_named):
            raise ValueError
    return text


def add_workspace(parser: argparse.ArgumentParser) -> None:
    """Add `--max-workspace`."""
    parser.add_argument(
        "--max-workspace",
        metavar="BYTES",
        type=option(_workspace),
        help="fail if intermediate results need more: 256K, or per pool: sram=200K,dtcm=64K",
    )


def add_dim(parser: argparse.ArgumentParser, suffix: str = "") -> None:
    """Add `--dim`; `suffix` goes into its help text: what the command uses the sizes for."""
    parser.add_argument(
        "--dim",
        metavar="DIM=N",
        type=dims,
        action="append",
        default=[],
        help=f"size of a symbolic dimension{suffix}; may be repeated, or a list with commas",
    )


def add_seconds(parser: argparse.ArgumentParser, default: float) -> None:
    """Add `--seconds`, the time for each measurement."""
    parser.add_argument(
        "--seconds",
        type=option(number(0.001, 86400)),
        default=default,
        help=f"time for each measurement; default {default:g}",
    )


def _dims(text: str) -> tuple[tuple[str, int], ...]:
    """NAME=N with N from 1 to 2**63-1, or a list of these with commas"""
    pairs = [part.partition("=") for part in text.split(",")]
    read = [(name.strip(), size.strip()) for name, _, size in pairs]
    for name, size in read:
        if not (_word(name) and size.isascii() and size.isdecimal() and 1 <= int(size) <= MOST):
            raise ValueError
    return tuple((name, int(size)) for name, size in read)


dims = option(_dims)


def sizes(uses: Sequence[Sequence[tuple[str, int]]], option: str) -> dict[str, int]:
    """The values of all uses of `--dim` or `--freeze` as a dict. UserError (code `given-twice`) for
    two different sizes of one dimension."""
    out: dict[str, int] = {}
    for name, size in (pair for pairs in uses for pair in pairs):
        if out.setdefault(name, size) != size:
            raise UserError(
                f"{option}: {name!r} is given two sizes, {out[name]} and {size}", code="given-twice"
            )
    return out


def refuse_together(options: Mapping[str, object]) -> None:
    """Raise UserError (code `conflict`) if more than one of these options is given, as one would
    have to be ignored. `options`: name -> value; None, False and empty text mean not given."""
    names = [name for name, value in options.items() if value not in (None, False, "")]
    if len(names) > 1:
        raise UserError(f"{names[0]} and {names[1]} do not go together", code="conflict")


def plain_file(path: Path) -> Path:
    """`path` itself. UserError (code `missing-file`) unless it is a regular file that can be
    read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return path
    except FileNotFoundError:
        raise UserError(f"no such file: {str(path)!r}", code="missing-file") from None
    except OSError as error:
        message = f"cannot read {str(path)!r}: {error.strerror}"
        raise UserError(message, code="missing-file") from None
    except ValueError:  # a zero byte, or a lone surrogate
        message = f"{str(path)!r} cannot be the name of a file"
        raise UserError(message, code="missing-file") from None
    kind = "a folder" if stat.S_ISDIR(mode) else "not a plain file"
    raise UserError(f"{str(path)!r} is {kind}; expected a file", code="missing-file")


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder, and permissions allow to know that: `Path.is_dir` may raise."""
    try:
        return path.is_dir()
    except OSError:
        return False


def writable_parent(path: Path, *, folder: bool = False) -> Path:
    """`path` itself. UserError (code `cannot-write`) if it is a folder (unless it is to be one), or
    its folder does not exist or is not writable: checked before minutes of compiling."""
    is_there = is_folder(plain_path(path))
    if is_there and not folder:
        raise UserError(f"cannot write {str(path)!r}: it is a folder", code="cannot-write")
    parent = path.parent
    if not is_folder(parent):
        raise UserError(
            f"cannot write {str(path)!r}: no folder {str(parent)!r}", code="cannot-write"
        )
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(
            f"cannot write {str(path)!r}: permission denied",
            code="cannot-write",
            hint="name a place that you may write to",
        )
    return path


def stderr_progress(quiet: bool = False) -> Progress:
    """Progress on standard error, in the form that KILN_PROGRESS selects; none with `quiet`."""
    return make_progress(sys.stderr, "off" if quiet else read_config().progress)
