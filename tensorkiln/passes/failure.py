"""A pass that raised, or whose module is malformed: an error that names it, and the module before
it on disk."""

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

# Weights beyond this many bytes are not copied beside a failure.
_MOST_WEIGHTS = 256 << 20


def pass_failed(p: Pass, step: Step, error: Exception, folder: Path | None) -> TensorkilnError:
    """The error for a pass that raised: ours is an InternalError, a caller's own a UserError."""
    said = error.message if isinstance(error, TensorkilnError) else str(error)
    kind = "" if isinstance(error, TensorkilnError) else f"{type(error).__name__}: "
    return _failure(p, step, f"raised {kind}{said}", "pass-failed", folder, error)


def pass_broke(p: Pass, step: Step, error: InternalError, folder: Path | None) -> TensorkilnError:
    """The error for a pass whose module is malformed."""
    at = f"{error.where}: " if error.where else ""
    said = f"broke the module: {at}{error.message}"
    return _failure(p, step, said, "malformed-ir", folder, error)


def _code(error: Exception, otherwise: str) -> str:
    known = isinstance(error, InternalError) and error.code != InternalError.code
    return error.code if known and isinstance(error, InternalError) else otherwise


def _failure(
    p: Pass, step: Step, said: str, code: str, folder: Path | None, error: Exception
) -> TensorkilnError:
    """What was wrong comes with its own hint, before the one that says how to see it again."""
    kind = InternalError if _is_ours(p) else UserError
    own = error.hint if isinstance(error, TensorkilnError) else ""
    return kind(
        f"pass {step.number} {step.name!r} {said}",
        code=_code(error, code),
        where=f"{step.pipeline}_pipeline" if step.pipeline in ("relax", "tir") else step.pipeline,
        hint="\n        ".join(filter(None, (own, _saved(p, step, folder)))),
    )


def _is_ours(p: Pass) -> bool:
    inner = inspect.unwrap(getattr(p, "func", p))
    module = getattr(inner, "__module__", None) or ""
    return module.split(".")[0] == __name__.split(".")[0]


def _saved(p: Pass, step: Step, folder: Path | None) -> str:
    """Write the module before the pass; the sentence that says where it is."""
    try:
        if folder is None:
            place = Path(tempfile.mkdtemp(prefix="kiln-failure-"))
            script = write_reproducer(place, p, step)
        else:
            place = folder / f"failure-{step.number:02d}-{step.name}"
            with tempfile.TemporaryDirectory(prefix="kiln-failure-") as made:
                script = place / write_reproducer(Path(made), p, step).name
                write_files(place, {file.name: file for file in Path(made).iterdir()})
    except (OSError, UserError) as error:
        return f"the module before it could not be written: {error}"
    return f"the module before it: {place / 'before.py'}; python {script} runs the pass on it"


def write_reproducer(folder: Path, p: Pass, step: Step) -> Path:
    """`before.py`, its constants, and a script that runs the pass on it; the script's path."""
    (folder / "before.py").write_text(print_module(step.before), encoding="utf-8")
    whole = _write_constants(folder / "constants.npz", step.before)
    imports, made = pass_source(p)
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
        *([f"p = {made}"] if made else _to_fill_in(p)),
        "verify(p(mod))",
    ]
    if not whole:
        lines.insert(1, "# The weights were too large to be written: fill in `constants`.")
    script = folder / "reproduce.py"
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return script


def _write_constants(path: Path, mod: IRModule) -> bool:
    """Constants as bytes, `name|dtype|shape` for a key; False when they are too large."""
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
    """Python that makes the pass again: imports, and an expression; "" where no import gives it,
    or its options cannot be written down."""
    kind = p if inspect.isfunction(p) else type(p)
    module, name = kind.__module__, kind.__qualname__
    imports = [f"from {module} import {name}"]
    if name.isidentifier() and module != "__main__":
        if inspect.isfunction(p):
            return imports, name
        if is_dataclass(p):
            values = [getattr(p, f.name) for f in fields(p)]
            if all(isinstance(v, Target | str | int) or v == () for v in values):
                given = [f"{f.name}={v!r}" for f, v in zip(fields(p), values, strict=True)]
                return ["from tensorkiln.target import Target", *imports], (
                    f"{name}({', '.join(given)})"
                )
    return [], ""


def _to_fill_in(p: Pass) -> list[str]:
    """A pass that no import gives: the lines that say what stands in its place."""
    inner = inspect.unwrap(getattr(p, "func", p))
    kind = inner if inspect.isfunction(inner) else type(inner)
    place = kind.__qualname__
    with suppress(OSError, TypeError):
        place += f", {inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    message = f"fill in `p` of {{__file__}}: no import gives the pass {place}"
    return [
        f"p = None  # your pass: {place.splitlines()[0]}",
        "if p is None:",
        f"    raise SystemExit(f{message!r})",
    ]
