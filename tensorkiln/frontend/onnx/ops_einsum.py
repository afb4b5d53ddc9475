"""Einsum of any number of operands."""

from __future__ import annotations

from collections.abc import Sequence

from tensorkiln.frontend.graph import movement
from tensorkiln.frontend.graph.agreement import common_extent, fit
from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Str, Table
from tensorkiln.ir.expr import Expr, as_expr, int_value

# Letters that stand for the dimensions of an ellipsis, from the last one on.
_HIDDEN = "\u03b1\u03b2\u03b3\u03b4\u03b5\u03b6\u03b7\u03b8\u03b9\u03ba\u03bb\u03bc"


def einsum(g: Context, x: Val, *more: Val, equation: Str) -> Val:
    """Einsum. Operands are contracted from the left; a letter that one of them has twice takes its
    diagonal; dimensions of `...` broadcast.

    Without `->`, the result has the letters that occur once, in alphabetical order, as in NumPy,
    behind the dimensions of the ellipsis.
    """
    operands = [x, *more]
    terms, out = _terms(equation, [g.rank(v) for v in operands])
    for k, term in enumerate(terms):
        operands[k], terms[k] = _diagonals(g, operands[k], term)
    operands, terms = _broadcast(g, operands, terms)
    operands = _agreeing(g, operands, terms)
    while len(operands) > 1:
        later_letters = set(out).union(*terms[2:])
        result_letters = "".join(
            c for c in dict.fromkeys(terms[0] + terms[1]) if c in later_letters
        )
        y = _contract(g, operands[0], operands[1], terms[0], terms[1], result_letters)
        operands[:2], terms[:2] = [y], [result_letters]
    y, term = _summed(g, operands[0], terms[0], set(out))
    if set(out) - set(term):
        raise malformed(f"equation={equation!r}: the result names unknown letters")
    return g.transpose(y, [term.index(c) for c in out])


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, with letters for the ellipsis."""
    left_side, arrow, out = equation.replace(" ", "").partition("->")
    terms = left_side.split(",")
    if len(terms) != len(ranks):
        raise malformed(f"equation={equation!r} is of {len(terms)} operands, not {len(ranks)}")
    ellipsis_rank = 0
    for k, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        hidden = rank - len(term.replace("...", "", 1))
        if hidden < 0 or ("..." not in term and hidden) or hidden > len(_HIDDEN):
            raise malformed(f"equation={equation!r} does not fit operand {k} of rank {rank}")
        terms[k] = term.replace("...", _hidden(hidden), 1)
        ellipsis_rank = max(ellipsis_rank, hidden)
    if not arrow:
        letters = left_side.replace(",", "").replace(".", "")
        single = sorted(c for c in set(letters) if letters.count(c) == 1)
        out = _hidden(ellipsis_rank) + "".join(single)
    out = out.replace("...", _hidden(ellipsis_rank), 1)
    letters = "".join(terms) + out
    wrong = [c for c in letters if not (c.isascii() and c.isalpha()) and c not in _HIDDEN]
    if wrong or len(set(out)) != len(out) or set(out) - set("".join(terms)):
        raise malformed(f"equation={equation!r}: the result names unknown or repeated letters")
    return terms, out


def _hidden(count: int) -> str:
    return _HIDDEN[:count][::-1]


def _diagonals(g: Context, x: Val, term: str) -> tuple[Val, str]:
    """The diagonal of dimensions that have the same letter."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            order = [i for i in range(len(term)) if i not in (first, second)] + [first, second]
            moved = g.transpose(x, order)
            *lead, rows, columns = g.shape(moved)
            n = common_extent(rows, columns)
            square = fit(g, moved, (*lead, n, n))
            if g.shape(square)[-2:] != (n, n):
                raise malformed(f"the diagonal of dimensions {first} and {second}, not of one size")
            x = movement.diagonal(g, square, as_expr(0), n)
            term = "".join(term[i] for i in order[:-1])
    return x, term


def _broadcast(g: Context, operands: list[Val], terms: list[str]) -> tuple[list[Val], list[str]]:
    """Operands without dimensions of extent 1 that are larger in another operand."""
    wide = {
        c
        for x, term in zip(operands, terms, strict=True)
        for c, d in zip(term, g.shape(x), strict=True)
        if int_value(d) != 1
    }
    for k, (x, term) in enumerate(zip(operands, terms, strict=True)):
        mask = [
            not (int_value(d) == 1 and c in wide) for c, d in zip(term, g.shape(x), strict=True)
        ]
        operands[k] = g.reshape(x, [d for d, keep in zip(g.shape(x), mask, strict=True) if keep])
        terms[k] = "".join(c for c, keep in zip(term, mask, strict=True) if keep)
    return operands, terms


def _agreeing(g: Context, operands: list[Val], terms: list[str]) -> list[Val]:
    """Operands in which a letter has one extent: a call in which it has two is refused."""
    size: dict[str, Expr] = {}
    for x, term in zip(operands, terms, strict=True):
        for c, d in zip(term, g.shape(x), strict=True):
            size[c] = common_extent(size.get(c, d), d)
    return [
        fit(g, x, tuple(size[c] for c in term)) for x, term in zip(operands, terms, strict=True)
    ]


def _summed(g: Context, x: Val, term: str, keep: set[str]) -> tuple[Val, str]:
    """Sum `x` over the letters of `term` that are not in `keep`; return it with its new term."""
    axes = tuple(i for i, c in enumerate(term) if c not in keep)
    if axes:
        x = g.emit("sum", x, axes=axes, keepdims=False)
    return x, "".join(c for c in term if c in keep)


def _contract(g: Context, a: Val, b: Val, ta: str, tb: str, out: str) -> Val:
    """Contract two operands with terms `ta` and `tb` as [batch, m, k] @ [batch, k, n].

    In `abij,bjc->baic`, batch is b, m is (a, i), k is j and n is c. The product is reshaped and
    transposed to the order of `out`.
    """
    a, ta = _summed(g, a, ta, set(out) | set(tb))
    b, tb = _summed(g, b, tb, set(out) | set(ta))
    batch = [c for c in ta if c in tb and c in out]
    inner = [c for c in ta if c in tb and c not in out]
    rows = [c for c in ta if c not in tb]
    columns = [c for c in tb if c not in ta]
    size: dict[str, Expr] = dict(zip(tb, g.shape(b), strict=True))
    size |= dict(zip(ta, g.shape(a), strict=True))

    def grouped(x: Val, term: str, *groups: list[str]) -> Val:
        order = [c for group in groups for c in group]
        lead = [size[c] for c in groups[0]]
        folded = [g.dims.product(size[c] for c in group) for group in groups[1:]]
        return g.reshape(g.transpose(x, [term.index(c) for c in order]), (*lead, *folded))

    y = g.emit("matmul", grouped(a, ta, batch, rows, inner), grouped(b, tb, batch, inner, columns))
    letters = [*batch, *rows, *columns]
    y = g.reshape(y, [size[c] for c in letters])
    return g.transpose(y, [letters.index(c) for c in out])


TABLE: Table = {"Einsum": {12: einsum}}
