"""Words of other compilers' scripts: those that are ours by another name, those that are a short
expression of ours, and what to write for some that are neither."""

from __future__ import annotations

import ast
from functools import cache

from tensorkiln import ops

# The path of a word -> that of ours, which means the same.
_SAME = {
    "T.Select": "T.select",
    "T.Add": "T.add",
    "T.Sub": "T.sub",
    "T.Mul": "T.mul",
    "T.Div": "T.div",
    "T.subtract": "T.sub",
    "T.multiply": "T.mul",
    "T.divide": "T.div",
    "T.FloorDiv": "T.floordiv",
    "T.indexdiv": "T.floordiv",
    "T.FloorMod": "T.floormod",
    "T.indexmod": "T.floormod",
    "T.Max": "T.max",
    "T.maximum": "T.max",
    "T.Min": "T.min",
    "T.minimum": "T.min",
    "T.negative": "T.neg",
    "T.fabs": "T.abs",
    "T.absolute": "T.abs",
    "T.power": "T.pow",
    "T.nearbyint": "T.round",
    "T.EQ": "T.eq",
    "T.NE": "T.ne",
    "T.LT": "T.lt",
    "T.LE": "T.le",
    "T.GT": "T.gt",
    "T.GE": "T.ge",
    "T.shift_left": "T.shl",
    "T.shift_right": "T.shr",
    "T.bitwise_and": "T.bitand",
    "T.bitwise_or": "T.bitor",
    "T.bitwise_xor": "T.bitxor",
    "T.call_pure_extern": "T.call_extern",
    "T.LetStmt": "T.let",
    "T.sblock": "T.block",
    "T.sblock_attr": "T.block_attr",
    "T.vectorize": "T.vectorized",
    "R.multiply": "R.mul",
    "R.subtract": "R.sub",
    "R.divide": "R.div",
    "R.negative": "R.neg",
    "R.power": "R.pow",
    "R.permute_dims": "R.transpose",
    "R.astype": "R.cast",
    "R.topk": "R.top_k",
}
# Words of ours for the same: a function of T -> the one that is printed.
ALIASES = {
    "if_then_else": "select",
    "where": "select",
    "cast": "Cast",
    "broadcast": "Broadcast",
    "ramp": "Ramp",
    "truncdiv": "div",
}
# A word -> an expression of ours over its operands a, b, c, in this order.
_EXPRESSIONS = {
    "T.rsqrt": "1.0 / T.sqrt(a)",
    "T.exp2": "T.pow(2.0, a)",
    "T.exp10": "T.pow(10.0, a)",
    "T.likely": "a",
    "T.isinf": "T.isnan(a - a) and not T.isnan(a)",
    "T.isfinite": "not T.isnan(a - a)",
    "T.And": "a and b",
    "T.Or": "a or b",
    "T.Not": "not a",
    "T.truncmod": "a - T.truncdiv(a, b) * b",
    "T.ceildiv": "(a + b - 1) // b",
    "T.bitwise_not": "a ^ -1",
    "T.clamp": "T.min(T.max(a, b), c)",
}
# A word -> what to write, for the hint of its error.
_INSTEAD = {
    "T.log2": "T.log(x) * 1.4426950408889634",
    "T.log10": "T.log(x) * 0.4342944819032518",
    "T.log1p": "T.log(1.0 + x)",
    "T.hypot": "T.sqrt(x * x + y * y)",
    "T.atan2": 'T.call_extern("float32", "atan2f", y, x)',
    "T.copysign": 'T.call_extern("float32", "copysignf", x, y)',
    "T.popcount": "sums of T.bitand and T.shr",
    "T.clz": "a loop over T.shr",
    "T.call_intrin": "the function's own word, as T.exp(x)",
    "T.call_packed": "T.call_extern of a C function, or R.call_packed in a graph",
    "T.tvm_call_packed": "T.call_extern of a C function, or R.call_packed in a graph",
    "T.StringImm": "a text in quotes",
    "T.launch_thread": 'for t in T.thread_binding(n, thread="threadIdx.x"):',
    "T.env_thread": 'for t in T.thread_binding(n, thread="threadIdx.x"):',
    "T.attr": "T.func_attr({...}), or annotations= of a loop",
    "T.tvm_storage_sync": 'T.sync("block"), or none: a pass derives barriers',
    "T.buffer_store": "A[i] = value",
    "T.comment": "a comment of Python's",
    "T.assume": 'assert condition, "message"',
    "T.ret": "nothing: a program writes to its buffers",
    "x.astype": 'T.Cast("int32", x)',
    "x.data": "T.address_of(A[0])",
    "x.access_ptr": "T.address_of(A[0])",
    "x.vload": "A[i], or A[i : i + 4] of several lanes",
    "x.vstore": "A[i] = value, or A[i : i + 4] = value of several lanes",
    "R.sort": "R.top_k of all elements of the last dimension",
    "R.argsort": "R.top_k of all elements of the last dimension",
    "R.one_hot": "R.equal of the indices and R.arange",
    "R.tril": "R.where of a comparison of two R.arange",
    "R.triu": "R.where of a comparison of two R.arange",
    "R.repeat": 'R.take(x, R.const([0, 0, 1, 1], "int64"), axis=0)',
    "R.floor_divide": "R.floor(R.div(x, y))",
    "R.trunc": "R.mul(R.sign(x), R.floor(R.abs(x)))",
    "R.selu": "R.where of R.greater(x, y)",
    "R.prelu": "R.where of R.greater(x, y)",
    "R.call_pure_packed": 'R.call_packed("name", x, R.Tensor(...))',
    "R.split": "R.slice, once for each part",
    "R.strided_slice": "R.slice(x, begin=(...), strides=(...), shape=(...))",
    "R.shape_of": "R.shape([n, 4]) of the tensor's own sizes",
    "R.dropout": "nothing: it does nothing but in training",
    "R.variance": "R.mean of the squares of x - mean",
    "R.std": "R.sqrt of R.mean of the squares of x - mean",
    "R.stack": "R.concat of R.expand_dims of each",
    "R.flip": "R.slice with strides of -1",
    "R.einsum": "R.matmul and R.transpose",
    "R.arange": "R.arange(start=0, step=1, count=4, dtype='float32')",
}


def spelled(path: str) -> str:
    """The path of our word for one of another compiler's; others as they are."""
    if path.startswith("R.nn."):
        short_path = f"R.{path[5:]}"
        if (
            short_path in _SAME
            or short_path in _INSTEAD
            or ops.declared(short_path[2:]) is not None
        ):
            path = short_path
    return _SAME.get(path, path)


def expression_of(path: str, node: ast.Call) -> ast.expr | None:
    """Our expression for a call of another compiler's word, over the operands of `node`; None if
    there is none, or the call has another number of operands."""
    text = _EXPRESSIONS.get(path)
    if text is None or node.keywords:
        return None
    operands = dict(zip("abc", node.args, strict=False))
    tree = _parsed(text)
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - {"T"}
    if names != set(operands) or len(operands) != len(node.args):
        return None
    expression = _Substitution(operands, node).visit(_copied(tree))
    return expression if isinstance(expression, ast.expr) else None


def instead_of(path: str) -> str:
    """A hint: what to write for another compiler's word; empty if it is not known."""
    return _INSTEAD.get(path, "")


@cache
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _copied(tree: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(tree), mode="eval").body


class _Substitution(ast.NodeTransformer):
    """Puts operands in the place of names, and everything else at the place of `call`."""

    def __init__(self, operands: dict[str, ast.expr], call: ast.Call):
        self._operands, self._call = operands, call

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.Name) and node.id in self._operands:
            return self._operands[node.id]
        ast.copy_location(node, self._call)
        return self.generic_visit(node)


__all__ = ["ALIASES", "expression_of", "instead_of", "spelled"]
