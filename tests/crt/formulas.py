"""Host functions of tests, and sizes over `n` and `m` as these hold them."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.artifact.metadata import Metadata
from tensorkiln.codegen.c_text.sizes import Size, size_of
from tensorkiln.codegen.host.entry_c import entry_c
from tensorkiln.codegen.host.function import HostFunction, Param, tensor_param
from tensorkiln.ir.expr import Expr, Var

N, M, Q = Var("n"), Var("m"), Var("q")


def size(e: Expr) -> Size:
    """The size, with symbols called as the variables are."""
    return size_of(e, {v: v.name for v in (N, M, Q)})


def own(*symbols: str) -> dict[str, str]:
    """Symbols whose names are also the model's."""
    return {symbol: symbol for symbol in symbols}


def tensor(name: str, dtype: str, dims: Sequence[Size], role: str = "in", align: int = 0) -> Param:
    """A parameter over symbols that the model calls as C does."""
    return tensor_param(name, dtype, dims, own("n", "m", "q"), role=role, align=align)


def entry_of(
    functions: Sequence[HostFunction],
    name: str,
    *,
    weights: int = 0,
    prefix: str = "",
    features: tuple[str, ...] = (),
    compiler: str = "",
) -> str:
    """The entry file of a library of these functions."""
    infos = tuple(f.info for f in functions)
    meta = Metadata(name, prefix or name, compiler, {}, features, weights, infos)
    return entry_c(functions, meta)
