"""`kiln`: reads the command line, calls a sub-command, turns errors into one message.

Exit codes: 0 done; 1 the command's negative answer (unsupported nodes found, results differ); 2 an
error of the caller, or out of memory or disk space; 3 valid input that is not supported; 4 a bug in
tensorkiln; 130 interrupted; 141 the reader of standard output has closed it (128 + SIGPIPE).
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

import tensorkiln
from tensorkiln.base.cache import untold_refusal
from tensorkiln.base.config import read_config, unknown_variables
from tensorkiln.base.errors import InternalError, TensorkilnError, UnsupportedError, UserError
from tensorkiln.cli import (
    bench,
    cache,
    check,
    compile,
    demo,
    explain,
    inspect,
    new_project,
    run,
    targets,
    verify,
)
from tensorkiln.cli.options import Parser
from tensorkiln.cli.screen import (
    ReaderGone,
    add_colour,
    print_error,
    standard_streams,
)

WRONG, UNSUPPORTED, BUG, INTERRUPTED, CUT = 2, 3, 4, 130, 141

# Name on the command line -> the module that implements it.
COMMANDS: dict[str, ModuleType] = {
    "demo": demo,
    "compile": compile,
    "run": run,
    "inspect": inspect,
    "new-project": new_project,
    "check": check,
    "verify": verify,
    "bench": bench,
    "explain": explain,
    "targets": targets,
    "cache": cache,
}


def make_parser() -> Parser:
    """The parser of the whole command line."""
    parser = Parser(
        prog="kiln", description="Compiles models into self-contained native libraries."
    )
    parser.add_argument("--version", action="version", version=f"kiln {tensorkiln.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        line = (module.__doc__ or "").splitlines()[0].partition(": ")[2]
        sub = commands.add_parser(name, help=line, description=line)
        module.add_arguments(sub)
        add_colour(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run `kiln` with `argv` (default: the process's arguments) and return the exit code."""
    colour = "auto"
    with standard_streams():
        try:
            try:
                args = make_parser().parse_args(argv)
                colour = args.color
                return _run(args)
            finally:
                sys.stdout.flush()
        except KeyboardInterrupt:
            print("kiln: interrupted", file=sys.stderr)
            return INTERRUPTED
        except ReaderGone as cut:
            (error,) = cut.args
            if isinstance(error, BrokenPipeError):
                return CUT
            reason = error.strerror or str(error)
            print_error(f"kiln: error: cannot write to standard output: {reason}", colour)
            return WRONG


def _run(args: argparse.Namespace) -> int:
    """Run a command and return its exit code. Every exception becomes a message and an exit code,
    except that of a closed standard output, which is raised."""
    try:
        read_config()  # a bad variable fails here, with its own message
        for sentence in unknown_variables():
            print(f"kiln: {sentence}", file=sys.stderr)
        if refusal := untold_refusal():
            print(f"kiln: warning: {refusal}", file=sys.stderr)
        code: int = COMMANDS[args.command].run(args)
        return code
    except ReaderGone:
        raise
    except Exception as error:
        return _report(error, args.color)


def _report(error: Exception, colour: str) -> int:
    """Print one message for `error`, or with KILN_DEBUG its traceback, and return the exit code."""
    if isinstance(error, MemoryError):
        error = UserError("out of memory", code="out-of-memory", hint=str(error))
    if _debug() >= 1:
        traceback.print_exception(error)
    elif isinstance(error, TensorkilnError) and not isinstance(error, InternalError):
        print_error(f"kiln: error: {error}", colour)
    else:
        kind = "" if isinstance(error, InternalError) else f"{type(error).__name__}: "
        print_error(f"kiln: internal error: {kind}{error}", colour)
        print("  KILN_DEBUG=1 shows where; please report it with that", file=sys.stderr)
    if isinstance(error, UnsupportedError):
        return UNSUPPORTED
    return WRONG if isinstance(error, UserError) else BUG


def _debug() -> int:
    try:
        return read_config().debug
    except UserError:  # KILN_DEBUG itself may be the variable with a bad value
        return 0
