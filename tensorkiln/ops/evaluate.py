"""Reference evaluation of graph functions with NumPy, all at once or binding by binding: what
`tk.verify` and tests of graph passes compare with.

Tensors are NumPy arrays of the logical shape: memory layouts do not matter, and packed constants
are unpacked. Graph tuples become Python tuples, shapes int64 arrays of rank 1, numbers and strings
Python numbers and strings, and functions Python callables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from tensorkiln.base.element_types import PROGRAM_TYPES
from tensorkiln.base.errors import UnsupportedError, UserError, nearest
from tensorkiln.ir.attrs import Attrs, AttrValue
from tensorkiln.ir.dtype import BOOL, DType
from tensorkiln.ir.expr import Expr, FloatImm, IntImm, int_value
from tensorkiln.ir.known_attrs import DEPENDENCIES
from tensorkiln.ir.module import AnyFunction, IRModule
from tensorkiln.ir.relax import (
    Binding,
    Body,
    Bound,
    Call,
    Constant,
    Function,
    GlobalRef,
    If,
    Lambda,
    MatchCast,
    PrimValue,
    RVar,
    ShapeValue,
    StringValue,
    TensorType,
    Tuple,
    TupleItem,
    TupleType,
    Type,
    Value,
)
from tensorkiln.ir.visit import free_vars, substitute
from tensorkiln.ops import DYNAMIC, get
from tensorkiln.ops.match_value import Env, match_value

Result = Any
Values = dict[RVar, Result]
Packed = Mapping[str, Callable[..., Any]]
Watch = Callable[[Binding, Result], None]


def evaluate(
    program: IRModule | Function,
    inputs: Mapping[str, Any],
    symbols: Mapping[str, int] | None = None,
    *,
    dtype: str | None = None,
    function: str = "",
    packed: Packed | None = None,
    watch: Watch | None = None,
) -> list[Any]:
    """Run a graph function on `inputs`, by parameter name, and return its results as a flat list:
    nested tuples are flattened.

    Symbolic dimensions get their values from the shapes of inputs; `symbols` gives further values
    by name. With `dtype="float64"`, all floats are computed as float64. `function` is the name of
    the function to run; without it, `main` or else the first public graph function. `packed` maps
    names to Python functions: those that `call_packed` and `call_dps_packed` call, and for each
    tensor program a replacement, which receives all buffers and writes into the outputs. Raise
    UserError if an input is missing or does not fit, and UnsupportedError if a tensor program has
    no replacement. `watch` is called with each binding, those of functions that are called too, and
    its value.
    """
    module = program if isinstance(program, IRModule) else IRModule((program,))
    f = _pick(module, function)
    _require_inputs(f, inputs)
    run = Evaluation(
        module, DType(dtype) if dtype else None, dict(symbols or {}), packed or {}, watch
    )
    return _flat(run.function(f, [run.promote(inputs[p.name], p.type) for p in f.params], {}, {}))


class Steps:
    """A graph function of a module on `inputs`, one binding after the other; options are those of
    `evaluate`.

    The caller sets `values` of each binding, to what `value` returns or to something else that the
    bindings after it then read. Raises UserError as `evaluate`.
    """

    def __init__(self, module: IRModule, f: Function, inputs: Mapping[str, Any], dtype: str):
        self._run = Evaluation(module, DType(dtype))
        self.values, self._env = self._run.start(f, inputs)

    def promote(self, value: Any) -> Any:
        """An array as this evaluation holds it: floats in its dtype."""
        return self._run.promote(value)

    def value(self, definition: Bound, t: Type) -> Result:
        """What a binding of type `t` computes from `values`."""
        return self._run.bound(Binding(RVar("", t), definition), self.values, self._env)

    def operand(self, v: Value) -> Result:
        """The value of an operand."""
        return self._run.value(v, self.values, self._env)


def _require_inputs(f: Function, inputs: Mapping[str, Any]) -> None:
    names = [p.name for p in f.params]
    for name in inputs:
        if name not in names:
            raise UserError(
                f"{f.name} has no parameter {name!r}",
                code="unknown-input",
                hint=nearest(name, names),
            )
    missing = [n for n in names if n not in inputs]
    if missing:
        raise UserError(f"{f.name} needs input(s) {', '.join(missing)}", code="missing-input")


def _pick(module: IRModule, name: str) -> Function:
    graphs = {f.name: f for f in module.functions if isinstance(f, Function)}
    open_ = [f.name for f in (*module.graphs, *module.outers) if not f.attrs.get("private", False)]
    if not name:
        name = "main" if "main" in graphs or not open_ else open_[0]
    if name not in graphs:
        raise UserError(
            f"the module has no graph function {name!r}",
            code="unknown-function",
            hint=nearest(name, graphs),
        )
    return graphs[name]


def _flat(value: Result) -> list[Any]:
    if isinstance(value, tuple):
        return [leaf for part in value for leaf in _flat(part)]
    return [value]


@dataclass(frozen=True, slots=True)
class _Closure:
    """A function together with the values and the symbols that it captured."""

    run: Evaluation
    function: Function
    values: Values = field(default_factory=dict)
    env: Env = field(default_factory=dict)

    def __call__(self, *args: Result) -> Result:
        return self.run.function(self.function, args, self.values, self.env)


@dataclass(slots=True)
class Evaluation:
    """The evaluation of functions of a module; arguments are those of `evaluate`.

    `bound` is asked for the value of every binding: a subclass that has another value for one
    overrides it. `path` says where the evaluation is within outer functions, from the outside:
    branches taken, iterations (from 0) and calls.
    """

    module: IRModule
    precision: DType | None
    symbols: dict[str, int] = field(default_factory=dict)
    packed: Packed = field(default_factory=dict)
    watch: Watch | None = None
    path: list[str] = field(default_factory=list)

    def start(self, f: Function, inputs: Mapping[str, Any]) -> tuple[Values, Env]:
        """The values of the parameters of `f`, and of symbols, for inputs by name. UserError as
        `evaluate`."""
        _require_inputs(f, inputs)
        values: Values = {}
        env: Env = {}
        for p in f.params:
            values[p] = self.promote(inputs[p.name], p.type)
            match_value(p.name, p.type, values[p], env, self.precision)
        return values, env

    @contextmanager
    def _within(self, place: str) -> Iterator[None]:
        self.path.append(place)
        yield
        self.path.pop()

    def promote(self, value: Any, t: Type | None = None) -> Any:
        """Convert an input, a constant or a result of Python code to a value of this run: float
        arrays get the run's precision. Numbers and lists become arrays only if `t` is a tensor
        type; otherwise numbers are kept, and lists become tuples."""
        if isinstance(value, tuple | list) and not isinstance(t, TensorType):
            fields = t.fields if isinstance(t, TupleType) else (None,) * len(value)
            return tuple(map(self.promote, value, fields))
        if isinstance(value, str | bool | int | float) and not isinstance(t, TensorType):
            return value
        if value is None or callable(value):
            return value
        array = np.asarray(value)
        row = PROGRAM_TYPES.get(array.dtype.name)
        is_float = array.dtype.kind == "f" or (row is not None and row.is_float)
        if self.precision is not None and is_float:
            return array.astype(self.precision.name)
        return array

    def number(self, e: Expr, env: Env) -> int:
        """Return the value of a shape expression; raise UserError `unknown-symbol` if a variable
        of it has no value."""
        values = {v: IntImm(n) for v, n in env.items()}
        e = substitute(e, values)
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
                code="unknown-symbol",
                hint="pass it in symbols",
            )
        return value

    def function(self, f: Function, args: Sequence[Result], values: Values, outer: Env) -> Result:
        """Call `f`. `values` and `outer` are the values and the symbols that it captured."""
        if len(args) != len(f.params):
            message = f"{f.name} takes {len(f.params)} operands, received {len(args)}"
            raise UserError(message, code="operand-count")
        env, values = dict(outer), dict(values)
        for param, arg in zip(f.params, args, strict=True):
            values[param] = arg
            match_value(param.name, param.type, arg, env, self.precision)
        return self.body(f, values, env)

    def body(self, body: Function | Body, values: Values, env: Env) -> Result:
        """The result of bindings, which are added to `values`."""
        for b in body.bindings:
            values[b.var] = output = self.bound(b, values, env)
            if self.watch is not None:
                self.watch(b, output)
        return self.value(body.result, values, env)

    def value(self, v: Value, values: Values, env: Env) -> Result:
        """The value of an operand."""
        match v:
            case RVar():
                return values[v]
            case Constant():
                return self.promote(self._constant(v, env))
            case Tuple(fields):
                return tuple(self.value(x, values, env) for x in fields)
            case ShapeValue(extents):
                return np.array([self.number(e, env) for e in extents], np.int64)
            case PrimValue(e):
                return self._prim(e, env)
            case StringValue(text):
                return text
            case GlobalRef(name):
                f = self.module[name]
                return _Closure(self, f) if isinstance(f, Function) else self._kernel(name)

    def _prim(self, e: Expr, env: Env) -> Any:
        """Return the value of a scalar expression as a Python number."""
        e = substitute(e, {v: IntImm(n) for v, n in env.items()})
        if isinstance(e, FloatImm):
            return e.value
        number = self.number(e, env)
        return bool(number) if e.dtype == BOOL else number

    def _constant(self, v: Constant, env: Env) -> np.ndarray:
        if v.type.layout is None:
            return v.array
        shape = [self.number(d, env) for d in v.type.shape]
        return v.type.layout.unpack(v.array, shape)

    # ---- bindings ----------------------------------------------------------------------------

    def bound(self, b: Binding, values: Values, env: Env) -> Result:
        """What a binding computes of `values`, and of the symbols `env`."""
        match b.value:
            case Call() as call:
                return self._call(call, b.var.type, values, env)
            case TupleItem(value, index):
                return self.value(value, values, env)[index]
            case If(cond, then_body, orelse):
                truth = _truth(self.value(cond, values, env))
                with self._within(f"{'then' if truth else 'else'} of {b.var.name}"):
                    return self.body(then_body if truth else orelse, dict(values), dict(env))
            case Lambda(function):
                return _Closure(self, function, dict(values), dict(env))
            case MatchCast(value, t):
                operand = self.value(value, values, env)
                match_value(b.var.name, t, operand, env, self.precision)
                return operand
        return self.value(b.value, values, env)

    def _call(self, call: Call, t: Type, values: Values, env: Env) -> Result:
        args = [self.value(a, values, env) for a in call.args]
        if isinstance(call.callee, RVar):
            return self.promote(values[call.callee](*args))
        if isinstance(call.callee, GlobalRef):
            return self._call_function(self.module[call.callee.name], call, args, t, env)
        impure = _IMPURE.get(call.op)
        if impure is not None:
            return impure(self, call, args, t, env)
        attrs = self.attrs(call.attrs, env)
        if call.op == "bitcast":  # of the bits of the operand's own type
            args = [_in_own_type(v, a) for v, a in zip(call.args, args, strict=True)]
            attrs = call.attrs
        if call.op in DYNAMIC:
            op = DYNAMIC[call.op]
            return op.numpy(args, op.complete(dict(attrs)))
        plain = get(call.op)
        output = plain.numpy([a for a in args if isinstance(a, np.ndarray)], plain.complete(attrs))
        return self.promote(output) if call.op == "bitcast" else output

    def operator(self, call: Call, env: Env) -> Callable[[Sequence[np.ndarray]], np.ndarray]:
        """The operator of a call, with its attributes, as a function of arrays."""
        op = get(call.op)
        attrs = op.complete(self.attrs(call.attrs, env))
        return lambda args: np.asarray(op.numpy(args, attrs))

    def _call_function(
        self, f: AnyFunction, call: Call, args: list[Result], t: Type, env: Env
    ) -> Result:
        if isinstance(f, Function):
            # A fused group uses the symbols of its caller; other functions bind their own.
            shared = env if f.is_primitive else {}
            if f.external:
                args = [a for a, v in zip(args, call.args, strict=True) if _is_operand(v)]
            if f.is_primitive:
                return self.function(f, args, {}, shared)
            with self._within(f.name):
                return self.function(f, args, {}, shared)
        run = self._kernel(f.name, call.span)
        outs = self._new_outputs(t, env)
        run(*(a for a, v in zip(args, call.args, strict=True) if _is_operand(v)), *outs)
        return tuple(outs) if isinstance(t, TupleType) else outs[0]

    def _kernel(self, name: str, node: str = "") -> Callable[..., Any]:
        if name not in self.packed:
            raise UnsupportedError(
                f"evaluate() runs graph functions; {name!r} is not one",
                where=node,
                hint=f"packed={{{name!r}: function}} says what it does",
            )
        return self.packed[name]

    def _new_outputs(self, t: Type, env: Env) -> list[np.ndarray]:
        outs = []
        for field_type in t.fields if isinstance(t, TupleType) else (t,):
            assert isinstance(field_type, TensorType), field_type
            shape = [self.number(d, env) for d in field_type.shape]
            outs.append(self.promote(np.zeros(shape, field_type.dtype.name)))
        return outs

    # ---- operators with side effects ---------------------------------------------------------

    def _named(self, call: Call) -> tuple[Callable[..., Any], list[Any]]:
        """Return the Python function that a call names, and the call's other attributes: they are
        passed after the operands."""
        name = str(call.attrs["name"])
        if name not in self.packed:
            message = f"call_packed: no function {name!r}"
            raise UserError(message, code="unknown-function", hint=nearest(name, self.packed))
        return self.packed[name], [
            v for k, v in call.attrs.items_ if k not in ("name", DEPENDENCIES)
        ]

    def _call_packed(self, call: Call, args: list[Result], t: Type, env: Env) -> Result:
        run, extra = self._named(call)
        output = self.promote(run(*args, *extra), t)
        match_value(str(call.attrs["name"]), t, output, dict(env), self.precision)
        return output

    def _call_dps_packed(self, call: Call, args: list[Result], t: Type, env: Env) -> Result:
        run, extra = self._named(call)
        outs = self._new_outputs(t, env)
        run(*args, *extra, *outs)
        return tuple(outs) if isinstance(t, TupleType) else outs[0]

    def _call_tir_inplace(self, call: Call, args: list[Result], t: Type, env: Env) -> Result:
        run, buffers = args[0], args[1:]
        types = t.fields if isinstance(t, TupleType) else (t,)
        fresh = [
            self._new_outputs(f, env)[0]
            for i, f in zip(call.attrs["inplace"], types, strict=True)
            if i < 0
        ]
        run(*buffers, *fresh)
        new = iter(fresh)
        outs = tuple(buffers[i] if i >= 0 else next(new) for i in call.attrs["inplace"])
        return outs if isinstance(t, TupleType) else outs[0]

    def _while_loop(self, call: Call, args: list[Result], t: Type, env: Env) -> Result:
        cond, body, *state = args
        for i in count():
            with self._within(f"iteration {i} of {call.span or 'a loop'}"):
                if not _truth(cond(*state)):
                    break
                next_state = self.promote(body(*state))
            state = [next_state] if len(state) == 1 else list(next_state)
        return state[0] if len(state) == 1 else tuple(state)

    def attrs(self, attrs: Attrs, env: Env) -> Attrs:
        """Replace symbolic values by numbers, and a float `dtype` by the precision of the run."""

        def plain(v: AttrValue) -> AttrValue:
            if isinstance(v, tuple):
                return tuple(plain(x) for x in v)
            return self.number(v, env) if isinstance(v, Expr) else v

        out = {k: plain(v) for k, v in attrs.items()}
        if self.precision is not None and "dtype" in out and DType(str(out["dtype"])).is_float:
            out["dtype"] = self.precision.name
        return Attrs.of(**out)


_IMPURE: dict[str, Callable[[Evaluation, Call, list[Result], Type, Env], Result]] = {
    "call_packed": Evaluation._call_packed,
    "call_dps_packed": Evaluation._call_dps_packed,
    "call_tir_inplace": Evaluation._call_tir_inplace,
    "while_loop": Evaluation._while_loop,
}


def _in_own_type(v: Value, array: Result) -> Result:
    """A tensor in the type that `v` has where nothing is evaluated in another precision."""
    is_tensor = isinstance(v.type, TensorType) and isinstance(array, np.ndarray)
    return array.astype(v.type.dtype.name) if is_tensor else array  # type: ignore[union-attr]


def _truth(value: Any) -> bool:
    return bool(np.asarray(value).reshape(()))


def _is_operand(v: Value) -> bool:
    """Whether `v` is an operand of the function. Calls of kernels also pass shape values, for the
    sizes; Python functions are not given them."""
    return not isinstance(v, ShapeValue)
