"""Reference evaluation of graph functions with NumPy: the oracle of every graph pass.

Values are logical arrays: memory layouts change nothing, packed constants are unpacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import DType
from tensorkiln.ir.expr import Expr, IntImm, Var, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    RVar,
    ShapeValue,
    TensorType,
    Tuple,
    TupleItem,
    Value,
)  # fmt: skip
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.ops import get
from tensorkiln.ops.rules import show, show_type

Env = dict[Var, int]
Result = np.ndarray | tuple["Result", ...]


def evaluate(
    program: IRModule | Function,
    inputs: Mapping[str, np.ndarray],
    symbols: Mapping[str, int] | None = None,
    *,
    dtype: str | None = None,
    function: str = "",
) -> list[np.ndarray]:
    """Run a graph function on `inputs` by parameter name; its results, tuples flattened.

    Symbolic dimensions are bound from the inputs' shapes, `symbols` adds others by name. With
    `dtype="float64"` every float is computed in that type. `function` picks one of a module's
    (default: `main`, or the only one). UserError when an input is missing or does not fit.
    """
    module = program if isinstance(program, IRModule) else IRModule((program,))
    f = _pick(module, function)
    names = [p.name for p in f.params]
    for name in inputs:
        if name not in names:
            raise UserError(
                f"{f.name} has no parameter {name!r}", code="unknown-input",
                hint=nearest(name, names),
            )  # fmt: skip
    missing = [n for n in names if n not in inputs]
    if missing:
        raise UserError(f"{f.name} needs input(s) {', '.join(missing)}", code="missing-input")
    run = _Run(module, DType(dtype) if dtype else None, dict(symbols or {}))
    arrays = [run.promote(np.asarray(inputs[n])) for n in names]
    return _flat(run.function(f, arrays, {}))


def _pick(module: IRModule, name: str) -> Function:
    graphs = {f.name: f for f in module.functions if isinstance(f, Function)}
    if not name:
        name = "main" if "main" in graphs or not module.graphs else module.graphs[0].name
    if name not in graphs:
        raise UserError(
            f"the module has no graph function {name!r}", code="unknown-function",
            hint=nearest(name, graphs),
        )  # fmt: skip
    return graphs[name]


def _flat(value: Result) -> list[np.ndarray]:
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _flat(part)]
    return [value]


def match_shapes(name: str, shape: Sequence[Expr], actual: Sequence[int], env: Env) -> None:
    """Bind the variables of a symbolic shape; UserError when the actual one does not fit."""
    fits = len(shape) == len(actual)
    for want, have in zip(shape, actual, strict=False):
        if isinstance(want, Var):
            fits = env.setdefault(want, have) == have and fits
    for want, have in zip(shape, actual, strict=False):
        known = int_value(substitute(want, {v: IntImm(n) for v, n in env.items()}))
        fits = fits and known in (None, have)
    if not fits:
        expected = f"[{', '.join(map(show, shape))}]"
        raise UserError(
            f"input {name!r}: expected shape {expected}, received {list(actual)}",
            code="shape-mismatch",
        )


@dataclass(slots=True)
class _Run:
    module: IRModule
    precision: DType | None
    symbols: dict[str, int]

    def promote(self, array: np.ndarray) -> np.ndarray:
        if self.precision is not None and array.dtype.kind == "f":
            return array.astype(self.precision.name)
        return array

    def number(self, e: Expr, env: Env) -> int:
        """The value of a shape expression."""
        known = {v: IntImm(n) for v, n in env.items()}
        e = substitute(e, known)
        if self.symbols:
            from_names = {
                v: IntImm(self.symbols[v.name]) for v in free_vars(e) if v.name in self.symbols
            }
            e = substitute(e, from_names)
        value = int_value(e)
        if value is None:
            names = sorted({v.name for v in free_vars(e)})
            raise UserError(
                f"the value of symbol(s) {', '.join(names)} is not known from the inputs",
                code="unknown-symbol", hint="pass it in symbols",
            )  # fmt: skip
        return value

    def function(self, f: Function, args: Sequence[Result], outer: Env) -> Result:
        env, values = dict(outer), dict[RVar, Result]()
        for param, arg in zip(f.params, args, strict=True):
            values[param] = arg
            if isinstance(param.type, TensorType) and isinstance(arg, np.ndarray):
                self._check(param, param.type, arg)
                match_shapes(param.name, param.type.shape, arg.shape, env)
        for binding in f.bindings:
            values[binding.var] = self.bound(binding.value, values, env)
        return self.value(f.result, values, env)

    def _check(self, param: RVar, t: TensorType, arg: np.ndarray) -> None:
        promoted = self.precision is not None and t.dtype.is_float
        wanted = self.precision.name if promoted and self.precision else t.dtype.name
        if arg.dtype.name != wanted:
            raise UserError(
                f"input {param.name!r}: expected {show_type(t)}, received dtype {arg.dtype}",
                code="dtype-mismatch",
            )

    def value(self, v: Value, values: Mapping[RVar, Result], env: Env) -> Result:
        if isinstance(v, RVar):
            return values[v]
        if isinstance(v, Constant):
            return self.promote(self._constant(v, env))
        if isinstance(v, Tuple):
            return tuple(self.value(x, values, env) for x in v.fields)
        if not isinstance(v, ShapeValue):
            raise UnsupportedError(f"evaluate: {type(v).__name__} is not a tensor")
        return np.array([self.number(e, env) for e in v.values], np.int64)

    def _constant(self, v: Constant, env: Env) -> np.ndarray:
        if v.type.layout is None:
            return v.array
        shape = [self.number(d, env) for d in v.type.shape]
        return v.type.layout.unpack(v.array, shape)

    def bound(self, b: Bound, values: Mapping[RVar, Result], env: Env) -> Result:
        if isinstance(b, TupleItem):
            return self.value(b.value, values, env)[b.index]
        if isinstance(b, If | Lambda | MatchCast):
            raise UnsupportedError(f"evaluate: {type(b).__name__}")
        if not isinstance(b, Call):
            return self.value(b, values, env)
        args = [self.value(a, values, env) for a in b.args]
        if isinstance(b.callee, GlobalRef):
            callee = self.module.get(b.callee.name)
            if not isinstance(callee, Function):
                raise UnsupportedError(
                    f"evaluate() runs graph functions; {b.callee.name!r} is not one", where=b.span
                )
            return self.function(callee, args, env)
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        return get(b.op).numpy(arrays, self._attrs(b.attrs, env))

    def _attrs(self, attrs: Attrs, env: Env) -> Attrs:
        """Symbols replaced by numbers, float dtypes by the precision of this run."""

        def plain(v: AttrValue) -> AttrValue:
            if isinstance(v, tuple):
                return tuple(plain(x) for x in v)
            return self.number(v, env) if isinstance(v, Expr) else v

        out = {k: plain(v) for k, v in attrs.items()}
        if self.precision is not None and "dtype" in out and DType(str(out["dtype"])).is_float:
            out["dtype"] = self.precision.name
        return Attrs.of(**out)
