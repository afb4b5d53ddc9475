"""Names of dimensions that are expressions of others, `batch*seq`, as exporters write them into
`dim_param`."""

from __future__ import annotations

import ast

from tensorkiln.frontend.graph.dimensions import Dims
from tensorkiln.ir.expr import Expr, as_expr, binary

_DIM_OPS: dict[type[ast.operator], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Div: "floordiv",
}


def parse_dim(text: str) -> tuple[ast.expr, list[str]] | None:
    """Parse a compound `dim_param`, `batch*seq` or `s0 + 1`, into its AST and the names in it.

    None for a plain name and for any other text; the caller takes the whole text as one name.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.Constant):
            if type(node.value) is not int:
                return None
        elif isinstance(node, ast.BinOp):
            if type(node.op) not in _DIM_OPS:
                return None
        elif not isinstance(node, (ast.operator, ast.expr_context)):
            return None
    return None if isinstance(tree, ast.Name) or not names else (tree, names)


def build_dim(tree: ast.expr, dims: Dims) -> Expr:
    """The expression of a compound dimension that `parse_dim` has parsed."""
    match tree:
        case ast.Name(id=name):
            return dims.named(name)
        case ast.Constant(value=int() as value):
            return as_expr(value)
        case ast.BinOp(left=a, op=op, right=b):
            return binary(_DIM_OPS[type(op)], build_dim(a, dims), build_dim(b, dims))
    raise AssertionError(tree)
