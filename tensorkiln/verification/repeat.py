"""The folder that `tk.verify(output=)` writes: a report, the inputs of the first node that
diverges, and a script that reproduces the fault.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorkiln.artifact.metadata import KeptInfo
from tensorkiln.base.element_types import NARROW_TYPES
from tensorkiln.base.folders import write_files
from tensorkiln.base.trust import private_temporary
from tensorkiln.ir.kept import KEPT_VALUES
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Constant,
    Function,
    GlobalRef,
    RVar,
    Tuple,
    Value,
)
from tensorkiln.ir.visit_graph import bindings_in, map_bound, values_in, variables
from tensorkiln.verification.compiled import Compiled
from tensorkiln.verification.reference import Compared, ReferenceWalk, Tolerance
from tensorkiln.verification.result import Verification

Array = npt.NDArray[Any]
Files = dict[str, bytes | str | Path]
LIBRARY, SCRIPT = "library.so", "repeat.py"


def save(verification: Verification, folder: str | Path) -> Verification:
    """Write the report and the result's files to a folder; return the result with the folder's
    name."""
    saved_copy = replace(
        verification,
        saved=str(folder) if verification.files else "",
        repeats=SCRIPT in verification.files,
    )
    report = {
        "report.txt": f"{saved_copy}\n",
        "report.json": json.dumps(saved_copy.to_json(), indent=1) + "\n",
    }
    files: Files = {**verification.files, **report}
    make = files.pop(LIBRARY, None)
    with private_temporary("kiln-verify-") as place:
        if isinstance(make, Path):
            files[LIBRARY] = make
        elif make is not None:
            (Path(place) / LIBRARY).write_bytes(
                bytes(make, "utf-8") if isinstance(make, str) else make
            )
            files[LIBRARY] = Path(place) / LIBRARY
        write_files(folder, files)
    return saved_copy


def repeat_files(
    compiled: Compiled,
    mod: IRModule,
    f: Function,
    inputs: Mapping[str, Array],
    prefix: ReferenceWalk,
    row: KeptInfo,
    dtype: str,
    tolerance: Tolerance,
    position: tuple[int, int, int] | None,
) -> Files:
    """The files that reproduce the fault at the value where a walk ended: the library, its inputs,
    the node's operands with the expected result, the node as a program, and the script. `dtype` is
    the type in which the value was computed. A value that is not an output is reported by a
    function with control flow; `position` then says how to find it: the number of the first row of
    the report, the value's place in the report, and how many such reports come before."""
    c = prefix.compared[-1]
    assert c.want is not None
    node, operands = _node_alone(mod, prefix, c)
    may = tolerance.of(c.want, c.may, dtype)
    expected = {"expected": np.asarray(c.want), "tolerance": np.broadcast_to(may, c.want.shape)}
    names = dict(
        zip((p.name for p in f.params), (p.name for p in compiled.info.inputs), strict=True)
    )
    order = [names[p.name] for p in f.params]
    arrays = {f"input{i}": inputs[p.name] for i, p in enumerate(f.params)}
    text = _SCRIPT.format(
        function=compiled.info.name,
        output=row.output,
        what=f"its output {row.output}" if position is None else "a value that it shows",
        by=f"kernel\n             {row.kernel}"
        if row.kernel
        else "a step of the\n             host",
        shown=position,
        name=KEPT_VALUES,
        value=row.names[0],
        inputs=order,
        operands=list(operands),
        types={**_odd_types(arrays), **_narrow_types(compiled, order), **_odd_types(operands)},
        target=json.dumps(compiled.target.to_json()),
    )
    files: Files = {"inputs.npz": _npz(arrays), "node.npz": _npz({**operands, **expected})}
    if node:
        files["node.py"] = node
    library = _library(compiled)
    return files if library is None else {**files, LIBRARY: library, SCRIPT: text}


def _odd_types(arrays: Mapping[str, Array]) -> dict[str, str]:
    """The element types of arrays whose type a NumPy file cannot express."""
    return {name: a.dtype.name for name, a in arrays.items() if _is_odd(a)}


def _narrow_types(compiled: Compiled, names: Sequence[str]) -> dict[str, str]:
    """The element types of inputs that NumPy itself lacks, by the names `input0`, `input1`, ..."""
    types = {p.name: p.dtype for p in compiled.info.inputs}
    return {f"input{i}": types[n] for i, n in enumerate(names) if types[n] in NARROW_TYPES}


def _library(compiled: Compiled) -> bytes | Path | None:
    """The library's path or bytes; None for code that exists only in memory."""
    if compiled.executable is None:
        return Path(compiled.path)
    if compiled.target.kind == "llvmjit":
        return None
    with private_temporary("kiln-verify-") as place:
        return compiled.executable.export_library(Path(place) / LIBRARY).read_bytes()


def _node_alone(mod: IRModule, prefix: ReferenceWalk, c: Compared) -> tuple[str, dict[str, Array]]:
    """A program of only the bindings since compiled values, and the arrays for its parameters,
    which stand for those values and the constants. The program is empty if the bindings read
    anything but tensors or call functions."""
    inside = {b.var for b in bindings_in(c.since)}
    params: dict[int, RVar] = {}
    arrays: dict[str, Array] = {}

    def operand(v: Value) -> Value:
        if isinstance(v, Tuple):
            return Tuple(tuple(map(operand, v.fields)))
        if not isinstance(v, RVar | Constant) or v in inside:
            return v
        if id(v) not in params:
            p = params[id(v)] = RVar(f"x{len(params)}", v.type)
            arrays[p.name] = v.array if isinstance(v, Constant) else prefix.value(v)
        return params[id(v)]

    reads = {v for b in c.since for v in variables(b.value)} - inside
    calls = any(isinstance(v, GlobalRef) for b in c.since for v in values_in(b.value))
    if calls or not all(isinstance(prefix.values.get(v), np.ndarray) for v in reads):
        return "", {}
    bindings = [Binding(b.var, map_bound(b.value, operand)) for b in c.since]
    alone = Function("main", tuple(params.values()), tuple(bindings), c.binding.var)
    return IRModule((alone,), "node").script(), arrays


def _is_odd(a: Array) -> bool:
    """Whether a NumPy file cannot express the type."""
    return a.dtype.kind == "V"


def _npz(arrays: Mapping[str, Array]) -> bytes:
    stream = io.BytesIO()
    plain = {k: a.view(np.uint16) if _is_odd(a) else a for k, a in arrays.items()}
    np.savez(stream, allow_pickle=False, **plain)
    return stream.getvalue()


_SCRIPT = '''"""Repeats a fault that tk.verify found; the exit code is 1 if it is still there.

library.so   what was compiled; with the inputs in inputs.npz, {what} is what {by} computes
node.npz     what the kernel was given (x0, x1, ...), what it should compute of that, and what it
             may be off by
node.py      the node by itself, with these parameters, where it reads tensors only
"""

import sys
from pathlib import Path

import numpy as np

import tensorkiln as tk

HERE = Path(__file__).resolve().parent
INPUTS = {inputs}
OPERANDS = {operands}
TYPES = {types}  # of arrays that NumPy stores as bits
TARGET = r"""{target}"""
# Of a value that is no output: the number of the call that shows it, which of its values, when
SHOWN = {shown}


def load(file, names):
    with np.load(HERE / file) as arrays:
        return [typed(arrays[name], name) for name in names]


def typed(array, name):
    if name not in TYPES:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, TYPES[name]))


def flat(result):
    results = result if isinstance(result, (tuple, list)) else [result]
    return [r.numpy() if hasattr(r, "numpy") else r for r in results]


def differs(what, have):
    want, may = load("node.npz", ["expected", "tolerance"])
    have = np.asarray(have).reshape(want.shape)
    if have.dtype.itemsize == 1 and want.dtype.kind in "iu":  # expected are the bytes
        have = have.view(want.dtype)
    a, b = have.astype(np.float64), want.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        error = np.nan_to_num(np.where(same, 0.0, np.abs(a - b)), nan=np.inf)
        times = np.nan_to_num(np.where(same, 0.0, error / may), nan=np.inf)
    if times.max(initial=0.0) <= 1:
        print(f"{{what}}: within the tolerance, {{error.max(initial=0.0):.3g}} off")
        return False
    at = np.unravel_index(int(np.argmax(times)), times.shape)
    place = list(map(int, at))
    print(f"{{what}}: {{error[at]:.3g}} off at {{place}}: {{a[at]:.9g}}, expected {{b[at]:.9g}}")
    return True


def in_library():
    library = tk.runtime.load_module(HERE / "library.so")
    call = tk.runtime.Executor(library)["{function}"]
    given = load("inputs.npz", [f"input{{i}}" for i in range(len(INPUTS))])
    if SHOWN is None:
        return flat(call(*given))[{output}]
    calls = []

    def show(number, values):
        if number == SHOWN[0]:
            calls.append(np.array(values[SHOWN[1]]))

    tk.runtime.register_function("{name}", show)
    call(*given)
    return calls[SHOWN[2]]


def alone():
    module = tk.script.from_source((HERE / "node.py").read_text())
    call = tk.runtime.Executor(tk.compile(module, TARGET))["main"]
    return flat(call(*load("node.npz", OPERANDS)))[0]


found = differs("{value} in the library", in_library())
try:
    if (HERE / "node.py").exists():
        differs("the node compiled by itself", alone())
except tk.runtime.DeviceError as error:
    print(f"the node compiled by itself: {{error}}")
sys.exit(found)
'''


__all__ = ["repeat_files", "save"]
