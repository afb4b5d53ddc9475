"""Apply tables of rules to graph functions until no rule matches.

A rule is applied to a call if its pattern matches and the value it builds has the same type as the
call (extents proved equal). `add(x, 0) -> x` thus needs no condition for an x that the addition
broadcasts: there the types differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorkiln import ops
from tensorkiln.base.debug import RULES, say
from tensorkiln.base.errors import InternalError
from tensorkiln.ir.attrs import AttrValue
from tensorkiln.ir.expr import Expr, int_value
from tensorkiln.ir.module import IRModule
from tensorkiln.ir.relax import (
    Binding,
    Bound,
    Call,
    Constant,
    Function,
    RVar,
    TensorType,
    Value,
    constant,
)
from tensorkiln.ir.visit_graph import substitute, substitute_value, variables
from tensorkiln.transform.rewriting import pattern as P
from tensorkiln.transform.rewriting.graph import live, same_type, tensor_type, use_counts, users

# Sweeps over one function, and nested rule applications, after which a table does not terminate.
MAX_SWEEPS = 100


@dataclass(frozen=True, slots=True)
class Rule:
    """Replace what matches `before` by `after` if `condition` holds.

    `before` is a pattern (`pattern.py`) whose outermost part is an operator. `after` is a pattern
    over the names of `before`, or a function that builds the value with `Match.emit`, and returns
    None if the rule does not apply: `Rule("mul(x, sigmoid(x))", "silu(x)")`.
    """

    before: str
    after: str | Callable[[Match], Value | None]
    condition: Callable[[Match], bool] | None = None

    @property
    def name(self) -> str:
        """The rule as `before -> after`, for messages."""
        after = self.after if isinstance(self.after, str) else self.after.__name__.strip("_")
        return f"{self.before} -> {after}"


class Match:
    """One match of a rule's pattern: `m["x"]` is the value that `x` matched.

    `call` is the matched call, `type` the type of its result, `captures` everything by name.
    """

    __slots__ = ("_rewriter", "call", "captures", "type")

    def __init__(self, rewriter: Sweep, call: Call, captures: P.Found, type_: TensorType):
        self._rewriter = rewriter
        self.call, self.captures, self.type = call, captures, type_

    def __getitem__(self, name: str) -> Value:
        return self.captures[name]  # type: ignore[return-value]

    def attr(self, name: str) -> Any:
        """The value of the attribute that the pattern binds to `name`."""
        return self.captures[name]

    def rest(self, name: str) -> tuple[Value, ...]:
        """The operands that `*name` matched."""
        return self.captures[name]  # type: ignore[return-value]

    def constant(self, name: str) -> Constant:
        """The constant that a name with a capital letter matched."""
        value = self.captures[name]
        assert isinstance(value, Constant)
        return value

    def array(self, name: str) -> np.ndarray:
        """The elements of the constant that `name` matched."""
        return self.constant(name).array

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a value in integers, or None when it is symbolic."""
        return self.tensor(name).static_shape()

    def tensor(self, name: str) -> TensorType:
        """The type of the value that `name` matched."""
        return tensor_type(self[name])

    def lookup(self, v: RVar) -> Bound | None:
        """What a variable is bound to."""
        return self._rewriter.lookup(v)

    def use_count(self, v: Value) -> int:
        """An upper bound of the number of reads of a value, exact at the start of a sweep."""
        return self._rewriter.use_count(v)

    def users(self, v: Value) -> list[Call]:
        """The calls that read a value, as they were before this sweep. A read by anything else (the
        function's result, a tuple) is listed as a call of the function itself."""
        return self._rewriter.users.get(v, []) if isinstance(v, RVar) else []

    def once(self, *names: str) -> bool:
        """Whether each of these values has only the one reader in the match."""
        return all(self.use_count(self[n]) <= 1 for n in names)

    def definition(self, v: Value) -> Call | None:
        """The call that a value is bound to; None for parameters, constants and other bindings."""
        definition = self.lookup(v) if isinstance(v, RVar) else None
        return definition if isinstance(definition, Call) else None

    def producer(self, name: str) -> Call:
        """The call that the value of a name is bound to; it must be bound to one."""
        call = self.definition(self[name])
        assert call is not None
        return call

    def emit(self, op: str, *args: Value, span: str = "", **attrs: Any) -> Value:
        """Emit a call, to which the rules are applied too, and return its value.

        Its span is that of the matched call unless `span` is given.
        """
        plain: dict[str, Any] = {k: _plain(v) for k, v in attrs.items()}
        return self._rewriter.emit(ops.call(op, *args, span=span or self.call.span, **plain))

    def transposed(self, v: Value) -> Value:
        """Emit the transpose of the last two dimensions."""
        n = tensor_type(v).ndim
        return self.emit("transpose", v, axes=(*range(n - 2), n - 1, n - 2))

    def scalar(self, value: float) -> Constant:
        """A scalar constant with the dtype of the matched call's result."""
        return constant(np.asarray(value, self.type.dtype.name))


def _plain(v: AttrValue) -> AttrValue:
    """An attribute with IntImm replaced by int, so that equal attributes have one form."""
    if isinstance(v, tuple):
        return tuple(map(_plain, v))
    number = int_value(v) if isinstance(v, Expr) else None
    return v if number is None else number


def rewrite(mod: IRModule, rules: Sequence[Rule]) -> IRModule:
    """Apply the rules to every graph function; return `mod` itself if no rule matches.

    Raises InternalError if the rules still match after `MAX_SWEEPS` sweeps.
    """
    table = RuleTable(rules)
    return mod.map_graphs(lambda f: rewrite_function(f, table))


@dataclass(frozen=True, slots=True)
class RewriteOps:
    """Apply rules of the caller to every graph function until none matches.

    Before:  y = mul(x, sigmoid(x))          with Rule("mul(x, sigmoid(x))", "silu(x)")
    After:   y = silu(x)
    Needs:   types inferred.
    """

    rules: tuple[Rule, ...]

    def __call__(self, mod: IRModule) -> IRModule:
        """Return the rewritten module; `mod` itself if no rule matches.

        Raises UserError for a rule that is not a pattern (code `bad-rule`) or names an unknown
        operator (code `unknown-operator`).
        """
        for rule in self.rules:
            P.require_call(P.checked(rule.before, "Rule"), rule.before, "Rule")
            if isinstance(rule.after, str):
                P.checked(rule.after, "Rule")
        return rewrite(mod, self.rules)


class RuleTable:
    """Rules with parsed patterns, by the outermost operator of the pattern."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.by_op: dict[str, list[tuple[Rule, P.Pattern]]] = {}
        for rule in rules:
            p = P.parse(rule.before)
            for op in sorted(P.heads(p)):
                self.by_op.setdefault(op, []).append((rule, p))


def rewrite_function(f: Function, table: RuleTable) -> Function:
    """`f` after the rules, without bindings that became unused; `f` itself if no rule matches."""
    last: Rule | None = None
    for _ in range(MAX_SWEEPS):
        sweep = Sweep(f, table)
        new = sweep.run()
        if new is f:
            return f
        f, last = live(new), sweep.applied
    raise InternalError(
        f"{f.name}: rules never reach a fixed point; the last was {last and last.name}"
    )


class Sweep:
    """One sweep over one function, in the order of its bindings.

    `out` are the new bindings, `replaced` maps old variables to new values, `base` is the name from
    which variables of new calls are named.
    """

    def __init__(self, f: Function, table: RuleTable) -> None:
        self.f, self.table = f, table
        self.definitions: dict[RVar, Bound] = {}
        self.uses = use_counts(f)
        self.users = users(f)
        self.replaced: dict[RVar, Value] = {}
        self.out: list[Binding] = []
        self.names = {b.var.name for b in f.bindings} | {p.name for p in f.params}
        self.base = ""
        self.applied: Rule | None = None
        self._depth = 0

    def run(self) -> Function:
        """The function after the sweep; the same object if no rule matched."""
        for b in self.f.bindings:
            self._binding(b)
        if self.applied is None:
            return self.f
        result = substitute_value(self.f.result, self.replaced)
        return Function(self.f.name, self.f.params, tuple(self.out), result, self.f.attrs)

    def lookup(self, v: RVar) -> Bound | None:
        """What a variable is bound to, looking through `y = x`."""
        definition = self.definitions.get(v)
        while isinstance(definition, RVar):
            definition = self.definitions.get(definition)
        return definition

    def use_count(self, v: Value) -> int:
        """An upper bound: reads by calls that became unused count until the next sweep."""
        return self.uses[v] if isinstance(v, RVar) else 0

    def emit(self, call: Call) -> Value:
        """Apply the rules to a new call, or bind it if none matches, and return its value."""
        infer = ops.infer_tensor(call)
        new = self._apply(call, infer)
        if new is not None:
            return new
        var = RVar(self._fresh(), infer)
        self._bind(var, call)
        for a in call.args:
            self._count(a, 1)
        return var

    def _binding(self, b: Binding) -> None:
        definition = substitute(b.value, self.replaced)
        if not isinstance(definition, Call) or not isinstance(b.var.type, TensorType):
            self._bind(b.var, definition)
            return
        self.base = b.var.name
        new = self._apply(definition, b.var.type)
        if new is None:
            self._bind(b.var, definition)
        elif isinstance(new, RVar) and self._is_last(new):
            self._take_name(b.var, new)
        else:
            self.replaced[b.var] = new
            self._count(new, self.uses[b.var])

    def _is_last(self, new: RVar) -> bool:
        return bool(self.out) and self.out[-1].var is new and not self.uses[new]

    def _take_name(self, var: RVar, new: RVar) -> None:
        """Bind the call of the last binding, `new`, to `var` itself, so that it keeps its name."""
        call = self.out.pop().value
        del self.definitions[new]
        if var.type != new.type:
            named = RVar(var.name, new.type)
            self.replaced[var] = named
            self.uses[named] = self.uses[var]
            var = named
        self._bind(var, call)

    def _apply(self, call: Call, type_: TensorType) -> Value | None:
        rows = self.table.by_op.get(call.op)
        if not rows or self._depth > MAX_SWEEPS:
            return None
        self._depth += 1
        try:
            for rule, p in rows:
                for captures in P.match_call(p, call, self.lookup):
                    new = self._build(rule, Match(self, call, captures, type_))
                    if new is not None:
                        self.applied = rule
                        say(RULES, f"{self.f.name}: {call.span or self.base}: {rule.name}")
                        return new
        finally:
            self._depth -= 1
        return None

    def _build(self, rule: Rule, m: Match) -> Value | None:
        if rule.condition is not None and not rule.condition(m):
            return None
        mark, applied = len(self.out), self.applied
        new = build(P.parse(rule.after), m) if isinstance(rule.after, str) else rule.after(m)
        if new is not None and same_type(new.type, m.type):
            return new
        for b in self.out[mark:]:
            del self.definitions[b.var]
            if isinstance(b.value, Call):
                for a in b.value.args:
                    self._count(a, -1)
        del self.out[mark:]
        self.applied = applied
        return None

    def _bind(self, var: RVar, definition: Bound) -> None:
        self.definitions[var] = definition
        self.out.append(Binding(var, definition))

    def _count(self, v: Value, times: int) -> None:
        for var in variables(v):
            self.uses[var] += times

    def _fresh(self) -> str:
        number = 1
        while f"{self.base}_{number}" in self.names:
            number += 1
        name = f"{self.base}_{number}"
        self.names.add(name)
        return name


def build(p: P.Pattern, m: Match) -> Value:
    """Build the value that the right side of a rule describes, from the names in the match."""
    match p:
        case P.AnyValue(name=name) | P.AnyConstant(name=name):
            return m[name]
        case P.Uniform(value=value):
            return m.scalar(value)
        case P.Op():
            args = [build(a, m) for a in p.args] + list(m.rest(p.tail) if p.tail else ())
            attrs: dict[str, Any] = {
                k: v.value if isinstance(v, P.Literal) else m.attr(v.name) for k, v in p.attrs
            }
            return m.emit(p.name, *args, **attrs)
    raise InternalError(f"not the right side of a rule: {p}")
