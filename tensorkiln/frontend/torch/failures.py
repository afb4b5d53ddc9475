"""Turn an exception of torch's exporter into one error that names the operator or module and gives
the reason."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from tensorkiln.base.errors import Issue, TensorkilnError, UnsupportedError, UserError

_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'")
_NODE = re.compile(r"translating node %(\S+)")
_ADVICE = (
    "Caused by:",
    "For more",
    "For extended",
    "Suggested fixes:",
    "The error above",
    "(Refer to",
)
_FIXES = re.compile(r"^Suggested fixes:\n((?:[ \t]+\S.*\n?)+)", re.MULTILINE)
_FIXED = re.compile(
    r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)"
)
_MOST = 4  # lines of torch's message that an error repeats


def export_error(module: Any, error: Exception) -> tuple[TensorkilnError, Exception]:
    """The error to raise for an `error` in exporting `module`, and its `__cause__`.

    The cause is the first exception in the chain from `error` along `__cause__` that the exporter
    itself does not define. An operator without ONNX function gives UnsupportedError, everything
    else UserError (code `export-failed`).
    """
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and type(chain[-1]).__module__.startswith(
        "torch.onnx"
    ):
        if not isinstance(cause, Exception):
            break
        chain.append(cause)
    cause = chain[-1]
    name = type(module).__name__
    texts = [_ESCAPE.sub("", str(e)) for e in chain]
    operator = _OPERATOR.search(texts[-1])
    if operator:
        node = next((m[1] for m in map(_NODE.search, texts) if m), "")
        reason = texts[-1].partition("Failure message: ")[2]
        text = f"torch cannot export it to ONNX ({reason})" if reason else "torch cannot export it"
        return UnsupportedError([Issue("operator", node, operator[1], text)], where=name), cause
    fixed = _FIXED.search(texts[-1])
    if fixed:
        text = f"dimension {fixed[1]!r} cannot stay open: the module takes {fixed[2]} only"
        return UserError(text, code="bad-dynamic-shapes", where="dynamic_shapes"), cause
    message = "\n  ".join(_without_advice(texts[-1])) or "no reason given"
    place = _place(module, cause)
    return UserError(
        f"torch cannot export {name}: {place}{type(cause).__name__}: {message}",
        code="export-failed",
        hint="; ".join(
            filter(None, (_fixes(texts[-1]), "this error's __cause__ has the full message"))
        ),
    ), cause


def _fixes(text: str) -> str:
    """What torch would write for the sizes, such as `h = 8*_h`, in one line; or ""."""
    match = _FIXES.search(text)
    if match is None:
        return ""
    fixes = ", ".join(line.strip() for line in match[1].splitlines())
    return f"torch suggests {fixes.replace(', max=oo', '').replace('max=oo', '')}"


def _without_advice(text: str) -> list[str]:
    """The first `_MOST` lines of a message, without advice on how to debug torch."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    advice = (i for i, line in enumerate(lines) if i and line.startswith(_ADVICE))
    return lines[: min(next(advice, _MOST), _MOST)]


def _place(module: Any, cause: Exception) -> str:
    """The innermost public method of a submodule that was running, with file and line; or "".

    An example: `in layers.0 (Block), forward, model.py:12: `.
    """
    names = {id(m): name for name, m in module.named_modules()}
    place = ""
    for frame, line in traceback.walk_tb(cause.__traceback__):
        code = frame.f_code
        instance = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        method = getattr(type(instance), code.co_name, None)
        if (
            id(instance) in names
            and getattr(method, "__code__", None) is code
            and code.co_name[0] != "_"
        ):
            called = (
                f"{names[id(instance)]} ({type(instance).__name__})" if names[id(instance)] else ""
            )
            file = f"{Path(code.co_filename).name}:{line}"
            place = f"in {called + ', ' if called else ''}{code.co_name}, {file}: "
    return place
