"""How many rows one call of a library takes: within what its shapes allow, as many as a memory
budget holds.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorkiln.artifact.metadata import FunctionInfo, ParamInfo
from tensorkiln.base.errors import UserError
from tensorkiln.base.schema import Dim
from tensorkiln.measure.inputs import numpy_type

# The default for inputs, results and workspace of one call: about the caches of one core, beyond
# which a larger batch gains nothing. And the most rows of a call.
BATCH_BYTES = 32 << 20
MOST_ROWS = 1024
_UNKNOWN = 128  # the assumed size of other symbolic dimensions than the batch, in estimates


def batch_dim(params: Sequence[ParamInfo]) -> Dim:
    """The dimension of rows: the first dimension of every input. Raises UserError if the inputs do
    not share one."""
    for param in params:
        if not param.shape:
            raise UserError(
                f"input {param.name!r} has no dimension of rows",
                code="not-scorable",
                hint=f"constants={{{param.name!r}: ...}} is given to every call",
            )
    firsts = {param.shape[0] for param in params if param.shape}
    if len(firsts) != 1:
        shapes = ", ".join(f"{p.name}{p.shape_text}" for p in params)
        raise UserError(
            f"the first dimensions of the inputs differ, and none is that of rows: {shapes}",
            code="not-scorable",
            hint="constants= names inputs that are no rows",
        )
    (dim,) = firsts
    if (isinstance(dim, str) and not dim.isidentifier()) or dim == 0:
        raise UserError(f"the first dimension is {dim}, not one of rows", code="not-scorable")
    return dim


def rows_of_a_call(
    info: FunctionInfo, batch: Dim, batch_size: int | None, fits: int
) -> tuple[int, int]:
    """The most and the least rows of a call: `batch_size`, else `fits`, limited to what the library
    takes. Raises UserError (code `batch-size`) for a number that the library does not take."""
    if isinstance(batch, int):
        if batch_size not in (None, batch):
            raise UserError(
                f"the library takes {batch} rows at a time",
                code="batch-size",
                where=f"batch_size={batch_size}",
                hint="leave it out, or compile the model with a symbolic batch dimension",
            )
        return batch, batch
    lower = max(1, int(info.symbols.get(batch, 1)))
    upper = most_of(batch, info.requires)
    if batch_size is not None:
        if batch_size < lower or (upper is not None and batch_size > upper):
            span = f"{lower} or more" if upper is None else f"{lower} to {upper}"
            raise UserError(
                f"the library takes {span} rows at a time",
                code="batch-size",
                where=f"batch_size={batch_size}",
            )
        return batch_size, lower
    fits = max(lower, min(MOST_ROWS, fits))
    return fits if upper is None else min(fits, upper), lower


def bytes_of_a_row(info: FunctionInfo, batch: Dim, fed: Sequence[ParamInfo]) -> int:
    """About how many bytes one more row adds to a call: inputs, results and workspace."""
    tensors = sum(
        numpy_type(p.dtype).itemsize * math.prod(_sized(p.shape or ()))
        for p in (*fed, *info.outputs)
    )
    sizes = dict.fromkeys(info.symbols, _UNKNOWN)
    space = [size_of(info.workspace_bytes, {**sizes, str(batch): n}) for n in (1, 2)]
    return max(1, tensors + max(0, space[1] - space[0]))


def most_of(symbol: str, requires: Sequence[str]) -> int | None:
    """The largest value that conditions such as `batch <= 512` permit for a symbolic dimension;
    None if there is no such condition."""
    limit = re.compile(rf"{re.escape(symbol)} (<=?) (\d+)(?: \(.*\))?")
    matches = map(limit.fullmatch, requires)
    limits = [int(m[2]) - (m[1] == "<") for m in matches if m]
    return min(limits) if limits else None


def _sized(dims: Sequence[Dim]) -> Iterator[int]:
    for d in dims[1:]:
        yield d if isinstance(d, int) else _UNKNOWN


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # C's integer division, of sizes that are not negative
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[[int, int], int]] = {
    "kiln_max": max,
    "kiln_min": min,
    "floordiv": operator.floordiv,
    "floormod": operator.mod,
}


def size_of(size: Dim, sizes: Mapping[str, int]) -> int:
    """A size of metadata, such as `batch * 1536`; 0 for a formula of another kind."""
    if isinstance(size, int):
        return size
    try:
        return _value(ast.parse(size, mode="eval").body, sizes)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return 0


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(int(n)):
            return n
        case ast.Name(name):
            return sizes[name]
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(name), args=[left, right]):
            return _FUNCTIONS[name](_value(left, sizes), _value(right, sizes))
    raise ValueError("another formula")
