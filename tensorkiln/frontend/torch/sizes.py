"""Sizes of torch (int, SymInt and the SymPy expressions within) as our expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.frontend.graph.issues import NodeProblem, unsupported
from tensorkiln.frontend.torch.ranges import conditions
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Expr, as_expr, binary, const, logical_and, maximum, minimum

_RELATIONS = {
    "Equality": "eq",
    "Unequality": "ne",
    "StrictLessThan": "lt",
    "LessThan": "le",
    "StrictGreaterThan": "gt",
    "GreaterThan": "ge",
}


def symbolic(value: Any) -> Any:
    """The SymPy expression of a SymInt, SymBool or SymFloat; None for other values."""
    node = getattr(value, "node", None)
    return None if node is None else getattr(node, "expr", None)


class Sizes:
    """The symbols of one program and what they are here.

    `names` are the names that the user gave to extents, by their SymPy expressions, and `ranges`
    torch's ranges (`lower`, `upper`) of symbols.
    """

    def __init__(self, dims: Dims, names: Mapping[Any, str], ranges: Mapping[Any, Any]) -> None:
        self.dims, self.names, self.ranges = dims, names, ranges
        self.symbols: dict[Any, Expr] = {}
        self._solved: dict[Any, Any] = {}
        # Of symbols that are elements of tensors, what binds them as sizes.
        self.later: dict[Any, Callable[[], Expr]] = {}

    # -- inputs ---------------------------------------------------------------------------

    def bind(self, shapes: Mapping[str, Any]) -> None:
        """Make dimensions of the symbols in the shapes of inputs, by input.

        A symbol that is not a whole extent of an input is found from one that has it as its only
        unknown, a * s + b. NodeProblem if a call would not determine a symbol.
        """
        extents = [
            (f"{input_name}_d{axis}", symbolic(d))
            for input_name, shape in shapes.items()
            for axis, d in enumerate(shape)
        ]
        exprs = [(name, e) for name, e in extents if e is not None and not e.is_number]
        for name, e in exprs:
            if e.is_Symbol and e not in self.symbols:
                self.symbols[e] = self.dims.named(self.names.get(e, name))
                self._bound(self.symbols[e], 1, 0, e)
        for name, e in exprs:
            self._solve(name, e)

    def _solve(self, name: str, e: Any) -> None:
        import sympy

        unknown = sorted(set(e.free_symbols) - set(self.symbols), key=str)
        if not unknown:
            return
        symbol = unknown[0]
        terms = sympy.Poly(e, symbol) if e.is_polynomial(symbol) else None
        if len(e.free_symbols) > 1 or terms is None or terms.degree() != 1:
            raise unsupported(
                f"the extent {e} ({name}) does not tell {symbol}",
                "give the dimension a torch.export.Dim of its own",
            )
        a, b = (int(v) for v in terms.all_coeffs())
        extent = self.dims.named(self.names.get(e, name))
        whole = sympy.Symbol(f"whole_{symbol}", integer=True)
        self.symbols[whole] = extent
        self._solved[symbol] = (whole - b) / a
        self.symbols[symbol] = self.dims.simplify((extent - b) // a)
        if a != 1:
            self.dims.assume(binary("eq", (extent - b) % a, as_expr(0)))
        self._bound(extent, a, b, symbol)

    def _bound(self, extent: Expr, a: int, b: int, symbol: Any) -> None:
        """Assume of an extent, a * symbol + b, what torch's range of the symbol says; UserError if
        it is frozen to another size."""
        symbol_range = self.ranges.get(symbol)
        if symbol_range is not None:
            subject = f"dimension {self.names.get(symbol, str(symbol))!r}"
            # torch takes dimensions without a bound of the user's as 2 or more while it traces, and
            # does not insist on it in calls.
            minimum = 2 if symbol in self.names else 3
            for condition in conditions(extent, symbol_range, a, b, subject, minimum):
                self.dims.assume(condition)

    # -- sizes that data decides --------------------------------------------------------------

    def are_open(self, shape: Sequence[Any]) -> bool:
        """Whether a shape has a symbol that data decides and that is not bound yet."""
        return any(
            e is not None and any(self._is_open(s) for s in e.free_symbols)
            for e in map(symbolic, shape)
        )

    def _is_open(self, symbol: Any) -> bool:
        is_known = symbol in self.symbols or symbol in self._solved or symbol in self.later
        return not is_known and str(symbol).startswith("u")

    def decide(self, size: Any, extent: Expr) -> None:
        """Let a symbol that data decides, if `size` is one, stand for an extent."""
        e = symbolic(size)
        if e is not None and e.is_Symbol and self._is_open(e):
            self.symbols[e] = extent

    # -- expressions ----------------------------------------------------------------------

    def expr(self, size: Any) -> Expr:
        """An int or SymInt as an expression; NodeProblem for what data decides."""
        if isinstance(size, bool | int):
            return as_expr(int(size))
        e = symbolic(size)
        if e is None:
            raise unsupported(f"{size!r} is no size")
        return self.convert(e)

    def convert(self, e: Any) -> Expr:
        """A SymPy expression of sizes as ours."""
        return self.dims.simplify(self._convert(e.subs(self._solved) if self._solved else e))

    def condition(self, value: Any) -> Expr:
        """A bool or SymBool as an expression."""
        e = symbolic(value)
        if e is None or (e.is_Boolean and e in (True, False)):
            return const(bool(value if e is None else e), BOOL)
        return self._relation(e.subs(self._solved) if self._solved else e)

    def _relation(self, e: Any) -> Expr:
        kind = type(e).__name__
        if kind in _RELATIONS:
            return binary(_RELATIONS[kind], self._convert(e.lhs), self._convert(e.rhs))
        if kind == "And":
            return logical_and(*map(self._relation, e.args))
        raise unsupported(f"the condition {e} on sizes")

    def _convert(self, e: Any) -> Expr:
        if e.is_Integer:
            return as_expr(int(e))
        if e.is_Symbol:
            if e in self.symbols:
                return self.symbols[e]
            if e in self.later:
                return self.symbols.setdefault(e, self.later[e]())
            raise NodeProblem(
                "operator",
                f"the size {e} is decided by data"
                if str(e).startswith(("u", "i"))
                else f"the size {e} follows from no input",
                "sizes must follow from shapes of inputs",
            )
        kind, args = type(e).__name__, e.args
        if kind in ("Add", "Mul"):
            return self._exact(e)
        if kind in ("FloorDiv", "CleanDiv"):
            return self._convert(args[0]) // self._convert(args[1])
        if kind in ("Mod", "PythonMod"):
            return self._convert(args[0]) % self._convert(args[1])
        if kind in ("Max", "Min"):
            fold = maximum if kind == "Max" else minimum
            total = self._convert(args[0])
            for part in args[1:]:
                total = fold(total, self._convert(part))
            return total
        if kind in ("Pow", "PowByNatural") and args[1].is_Integer and 0 <= int(args[1]) <= 8:
            return math.prod([self._convert(args[0])] * int(args[1]), start=as_expr(1))
        if kind in ("TruncToInt", "FloorToInt", "CeilToInt", "ToFloat", "Identity"):
            return self._whole(e)
        raise unsupported(f"the size {e}: there is no {kind} of sizes")

    def _whole(self, e: Any) -> Expr:
        """A quotient of sizes that is rounded to an integer, floor(a / b) or ceiling(a / b)."""
        kind, (inner,) = type(e).__name__, e.args
        if type(inner).__name__ == "IntTrueDiv":
            a, b = (self._convert(part) for part in inner.args)
            if kind in ("FloorToInt", "TruncToInt"):
                return a // b  # sizes are not negative
            if kind == "CeilToInt":
                return (a + b - 1) // b
        if kind in ("ToFloat", "Identity") or inner.is_integer:
            return self._convert(inner)
        raise unsupported(f"the size {e}")

    def _exact(self, e: Any) -> Expr:
        """A sum or product. Fractions in it come from solved symbols, and the whole is an integer:
        it is n // d for the numerator n over the common denominator d."""
        import sympy

        scale = math.lcm(*(int(r.q) for r in e.atoms(sympy.Rational)))
        if scale != 1:
            return self._convert(sympy.expand(e * scale)) // scale
        parts = [self._convert(part) for part in e.args]
        total = parts[0]
        for part in parts[1:]:
            total = total + part if type(e).__name__ == "Add" else total * part
        return total
