"""Errors of failed passes: a pass that raised, or returned a malformed module.

The error names the pass; the module before it is written to disk with a script that reproduces it.
"""

from __future__ import annotations

import inspect
import tempfile
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path

import numpy as np

from tensorkiln.base.errors import InternalError, TensorkilnError, UserError
from tensorkiln.base.folders import write_files
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.text.printer import print_module
from tensorkiln.passes.step import Pass, Step
from tensorkiln.target import Target

# Most bytes of weights that are written with a reproducer.
_MOST_WEIGHTS = 256 << 20


def pass_failed(p: Pass, step: Step, error: Exception, folder: Path | None) -> TensorkilnError:
    """The error for a pass that raised: an InternalError for a pass of this package, a UserError
    for a pass of the caller."""
    message = error.message if isinstance(error, TensorkilnError) else str(error)
    kind = "" if isinstance(error, TensorkilnError) else f"{type(error).__name__}: "
    return _failure(p, step, f"raised {kind}{message}", "pass-failed", folder, error)


def pass_broke(p: Pass, step: Step, error: InternalError, folder: Path | None) -> TensorkilnError:
    """The error for a pass that returned a malformed module; its class is as in `pass_failed`."""
    place = f"{error.where}: " if error.where else ""
    message = f"broke the module: {place}{error.message}"
    return _failure(p, step, message, "malformed-ir", folder, error)


def _code(error: Exception, otherwise: str) -> str:
    has_code = isinstance(error, InternalError) and error.code != InternalError.code
    return error.code if has_code and isinstance(error, InternalError) else otherwise


def _failure(
    p: Pass, step: Step, message: str, code: str, folder: Path | None, error: Exception
) -> TensorkilnError:
    """The error with two hints: that of the original error, then where the reproducer is."""
    kind = InternalError if is_ours(p) else UserError
    hint = error.hint if isinstance(error, TensorkilnError) else ""
    return kind(
        f"pass {step.number} {step.name!r} {message}",
        code=_code(error, code),
        where=f"{step.pipeline}_pipeline" if step.pipeline in ("relax", "tir") else step.pipeline,
        hint="\n        ".join(filter(None, (hint, _saved(p, step, folder)))),
    )


def is_ours(p: Pass) -> bool:
    """Whether a pass belongs to this package."""
    inner = inspect.unwrap(getattr(p, "func", p))
    module = getattr(inner, "__module__", None) or ""
    return module.split(".")[0] == __name__.split(".")[0]


def _saved(p: Pass, step: Step, folder: Path | None) -> str:
    """Write the module before the pass, and return the sentence that says where it is.

    A temporary folder is used without `folder`. The sentence also reports a failure to write.
    """
    try:
        if folder is None:
            place = Path(tempfile.mkdtemp(prefix="kiln-failure-"))
            script = write_reproducer(place, p, step)
        else:
            place = folder / f"failure-{step.number:02d}-{step.name}"
            with tempfile.TemporaryDirectory(prefix="kiln-failure-") as temporary:
                script = place / write_reproducer(Path(temporary), p, step).name
                write_files(place, {file.name: file for file in Path(temporary).iterdir()})
    except (OSError, UserError) as error:
        return f"the module before it could not be written: {error}"
    return f"the module before it: {place / 'before.py'}; python {script} runs the pass on it"


def write_reproducer(folder: Path, p: Pass, step: Step) -> Path:
    """Write `before.py`, `constants.npz` and a script that runs the pass; return its path."""
    (folder / "before.py").write_text(print_module(step.before), encoding="utf-8")
    whole = _write_constants(folder / "constants.npz", step.before)
    imports, constructor = pass_source(p)
    lines = [
        '"""Runs one pass on the module that it failed on."""',
        "from pathlib import Path",
        "import numpy as np",
        "import ml_dtypes  # NumPy knows its types by name from here on",
        *imports,
        "from tensorkiln.ops.verify import verify",
        "from tensorkiln.script import from_source",
        "",
        "here = Path(__file__).parent",
        "constants = {}",
        "for key, data in np.load(here / 'constants.npz').items():",
        "    name, dtype, shape = key.rsplit('|', 2)",
        "    shape = [int(n) for n in shape.split('x') if n]",
        "    constants[name] = data.view(np.dtype(dtype)).reshape(shape)",
        "mod = from_source((here / 'before.py').read_text(), constants)",
        *([f"p = {constructor}"] if constructor else _to_fill_in(p)),
        "verify(p(mod))",
    ]
    if not whole:
        lines.insert(1, "# The weights were too large to be written: fill in `constants`.")
    script = folder / "reproduce.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return script


def _write_constants(path: Path, mod: IRModule) -> bool:
    """Write constants as bytes under keys `name|dtype|shape`, such as `w|float32|3x4`.

    NumPy's files do not keep the dtypes of ml_dtypes. If the constants exceed `_MOST_WEIGHTS`
    bytes, write none of them and return False.
    """
    from tensorkiln.script import constant_table

    table = {k: np.asarray(v) for k, v in constant_table(mod).items()}
    whole = sum(a.nbytes for a in table.values()) <= _MOST_WEIGHTS
    arrays = {
        f"{name}|{a.dtype.name}|{'x'.join(map(str, a.shape))}": np.frombuffer(
            np.ascontiguousarray(a).tobytes(), np.uint8
        )
        for name, a in table.items()
    }
    with path.open("wb") as stream:
        np.savez(stream, **(arrays if whole else {}))  # type: ignore[arg-type]
    return whole


def pass_source(p: Pass) -> tuple[list[str], str]:
    """Imports and an expression that construct the pass, such as `AssignLayouts(target=...)`.

    The expression is "" for a pass that cannot be imported (a lambda, a nested function, one of
    `__main__`) or whose options are other than Targets, strings, integers and empty tuples.
    """
    kind = p if inspect.isfunction(p) else type(p)
    module, name = kind.__module__, kind.__qualname__
    imports = [f"from {module} import {name}"]
    if name.isidentifier() and module != "__main__":
        if inspect.isfunction(p):
            return imports, name
        if is_dataclass(p):
            options = [f for f in fields(p) if f.repr]
            values = [getattr(p, f.name) for f in options]
            if all(isinstance(v, Target | str | int) or v == () for v in values):
                arguments = [f"{f.name}={v!r}" for f, v in zip(options, values, strict=True)]
                return ["from tensorkiln.target import Target", *imports], (
                    f"{name}({', '.join(arguments)})"
                )
    return [], ""


def _to_fill_in(p: Pass) -> list[str]:
    """Lines of the script for a pass that cannot be imported: a placeholder to fill in."""
    inner = inspect.unwrap(getattr(p, "func", p))
    kind = inner if inspect.isfunction(inner) else type(inner)
    place = kind.__qualname__
    with suppress(OSError, TypeError):
        place += f", {inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    message = f"fill in `p` of {{__file__}}: cannot import the pass {place}"
    return [
        f"p = None  # your pass: {place.splitlines()[0]}",
        "if p is None:",
        f"    raise SystemExit(f{message!r})",
    ]
