"""`kiln`: reads the command line, calls a sub-command, turns errors into one message.

Exit codes: 0 done; 1 the command's negative answer (unsupported nodes found, results differ); 2 an
error of the caller, or out of memory or disk space; 3 valid input that is not supported; 4 a bug in
tensorkiln; 128 and the number of a signal: 130 interrupted (SIGINT), 143 and 129 ended by SIGTERM
and SIGHUP, 141 the reader of standard output has closed it (SIGPIPE).
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from tensorkiln.base.cache import untold_refusal
from tensorkiln.base.config import read_config, unknown_variables
from tensorkiln.base.errors import InternalError, TensorkilnError, UnsupportedError, UserError
from tensorkiln.base.frames import with_frame_room
from tensorkiln.base.interrupts import HeldInterrupts, report_interrupt, terminations
from tensorkiln.base.version import VERSION
from tensorkiln.cli.options import Parser, TargetsAsked, WrongUsage
from tensorkiln.cli.screen import (
    ReaderGone,
    Screen,
    add_output_options,
    print_error,
    standard_streams,
)
from tensorkiln.cli.stdin import standard_input

WRONG, UNSUPPORTED, BUG, CUT = 2, 3, 4, 141

# Name on the command line -> what it does. The module of that name implements it; it is imported
# only if the command is called, so that `kiln --help` and completions take no time.
COMMANDS: dict[str, str] = {
    "demo": "ResNet-18 compiled, exported, run in a fresh process, held against ONNX Runtime.",
    "compile": "a model becomes one shared library, or an archive to build firmware from.",
    "run": "calls a compiled library once.",
    "inspect": "what a library, a model, a container or a folder holds; nothing of it is run.",
    "new-project": "a project that builds firmware from an archive in Model Library Format.",
    "check": "every node of a model that cannot be compiled, at once, and whether the target can.",
    "farm": "many models for many targets, on this machine or a cluster, as a manifest says.",
    "verify": "where a compiled model begins to differ from the model, node by node.",
    "bench": "latency and throughput of a library or a model, on request beside ONNX Runtime's.",
    "tune": "measures which choices make a model's kernels fast, and records them.",
    "explain": "what the compiler does with a model, as one page to look at.",
    "targets": "what can be compiled for, or what one target means.",
    "cache": "how much the kernel cache holds; removes what was not used for longest.",
    "completion": "a script by which a shell completes the words of this command line.",
}
_WITHOUT_NUMPY = ("targets", "cache", "completion")


def make_parser(only: str | None = None) -> Parser:
    """The parser of the whole command line; with `only`, of that command's arguments alone."""
    parser = Parser(
        prog="kiln", description="Compiles models into self-contained native libraries."
    )
    parser.add_argument("--version", action="version", version=f"kiln {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        sub = commands.add_parser(name, help=line, description=line)
        if only in (None, name):
            _module(name).add_arguments(sub)
            add_output_options(sub)
    return parser


def _module(command: str) -> Any:
    """The module of a command. An interrupt is raised when it has been imported: NumPy, interrupted
    while it is loaded, raises ImportError instead."""
    with HeldInterrupts():
        if command not in _WITHOUT_NUMPY:
            importlib.import_module("numpy")
        return importlib.import_module(f"tensorkiln.cli.{command.replace('-', '_')}")


@with_frame_room
def main(argv: Sequence[str] | None = None) -> int:
    """Run `kiln` with `argv` (default: the process's arguments) and return the exit code."""
    words = [*(sys.argv[1:] if argv is None else argv)]
    with standard_streams(), terminations():
        screen = Screen(json=_asks_for_json(words), command=_command(words))
        try:
            try:
                return _run(words, screen)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt as interrupt:  # while the answer is written
            return report_interrupt(interrupt)
        except ReaderGone as reader_gone:
            (error,) = reader_gone.args
            if isinstance(error, BrokenPipeError):
                return CUT
            reason = error.strerror or str(error)
            print_error(f"kiln: error: cannot write to standard output: {reason}", screen.choice)
            return WRONG


def _command(words: Sequence[str]) -> str:
    """The command that is named, empty if there is none: no option before it takes a value."""
    return next((w for w in words if not w.startswith("-")), "")


def _asks_for_json(words: Sequence[str]) -> bool:
    """Whether the answer is to be JSON, which is known even of words that cannot be parsed."""
    return "--json" in (words[: words.index("--")] if "--" in words else words)


def _run(words: Sequence[str], screen: Screen) -> int:
    """Parse the words, run the command and return its exit code; `screen` has its answer, or its
    error. Every exception becomes a message and an exit code, except that of a closed standard
    output, and that of wrong usage."""
    try:
        with screen.only_documents():
            code = _called(words, screen)
    except ReaderGone:
        raise
    except WrongUsage as usage:
        screen.fail(UserError(usage.message, code="usage", hint=usage.hint))
        screen.write_document()
        raise
    except KeyboardInterrupt as interrupt:
        code = report_interrupt(interrupt)
        screen.fail(UserError("interrupted", code="interrupted"))
    except Exception as error:
        code = _report(error, screen)
    screen.write_document()
    return code


def _called(words: Sequence[str], screen: Screen) -> int:
    try:
        args = make_parser(screen.command).parse_args(words)
    except TargetsAsked:
        args = make_parser("targets").parse_args(["targets"])
    screen.configure(args.color)
    read_config()  # a bad variable fails here, with its own message
    for sentence in unknown_variables():
        print(f"kiln: {sentence}", file=sys.stderr)
    if refusal := untold_refusal():
        print(f"kiln: warning: {refusal}", file=sys.stderr)
    with standard_input(args, screen):
        code: int = _module(args.command).run(args, screen)
    if screen.json and not screen.answered:
        raise InternalError(f"kiln {args.command} gave no document")
    return code


def _report(error: Exception, screen: Screen) -> int:
    """Print one message for `error`, or with KILN_DEBUG its traceback, and return the exit code."""
    if isinstance(error, MemoryError):
        error = UserError("out of memory", code="out-of-memory", hint=str(error))
    if _debug() >= 1:
        traceback.print_exception(error)
    elif isinstance(error, TensorkilnError) and not isinstance(error, InternalError):
        print_error(f"kiln: error: {screen.named(str(error))}", screen.choice)
    else:
        kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
        print_error(f"kiln: internal error: {kind}{error}", screen.choice)
        print("  KILN_DEBUG=1 shows where; please report it with that", file=sys.stderr)
    screen.fail(error)
    if isinstance(error, UnsupportedError):
        return UNSUPPORTED
    return WRONG if isinstance(error, UserError) else BUG


def _debug() -> int:
    try:
        return read_config().debug
    except UserError:  # KILN_DEBUG itself may be the variable with a bad value
        return 0
