"""Blocks from Python syntax trees: `with T.block("C"):` and the declarations that begin it."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from tensorkiln.arith.regions import regions_of
from tensorkiln.base.errors import nearest
from tensorkiln.ir.attrs import NO_ATTRS, Attrs
from tensorkiln.ir.dtype import BOOL
from tensorkiln.ir.expr import Expr, IntImm, Var
from tensorkiln.ir.known_attrs import BLOCK_ATTRS
from tensorkiln.ir.stmt import ITER_KINDS, Block, BlockIter, If, Region, Stmt, seq
from tensorkiln.ir.visit import substitute
from tensorkiln.script.parse_attrs import parse_known_attrs
from tensorkiln.script.parse_body import parse_body
from tensorkiln.script.parse_buffer import parse_buffer, parse_ranges
from tensorkiln.script.parse_literals import parse_expr, parse_literal, parse_same
from tensorkiln.script.scope import NameScope

_KINDS = {"S": "spatial", "R": "reduce", "O": "opaque"}
BLOCK_WORDS = frozenset({"T.reads", "T.writes", "T.where", "T.block_attr"})


@dataclass(slots=True)
class _Head:
    """The declarations at the beginning of a block: axes, regions, `T.where`, attributes, init."""

    name: str
    iters: list[BlockIter] = field(default_factory=list)
    reads: tuple[Region, ...] | None = None
    writes: tuple[Region, ...] | None = None
    conditions: list[Expr] = field(default_factory=list)
    attrs: Attrs = NO_ATTRS
    init: Stmt | None = None


def parse_block(scope: NameScope, node: ast.With, call: ast.Call) -> Stmt:
    """Parse a block. `T.where(cond)` puts it into an `If`. Reads and writes that are not declared
    are derived from its body."""
    if len(call.args) != 1 or call.keywords or node.items[0].optional_vars is not None:
        raise scope.fail(call, "expected one name", 'as `with T.block("C"):`')
    name = parse_literal(scope, call.args[0])
    if not isinstance(name, str) or not name:
        raise scope.fail(call.args[0], "the name of a block is a string")
    head = _Head(name)
    with scope.inner():
        statements = node.body
        while statements and _take(scope, head, statements[0]):
            statements = statements[1:]
        body = parse_body(scope, statements)
    reads, writes = regions_of(seq(head.init, body))
    block: Stmt = Block(
        name,
        tuple(head.iters),
        reads if head.reads is None else head.reads,
        writes if head.writes is None else head.writes,
        body,
        head.init,
        head.attrs,
    )
    for cond in reversed(head.conditions):
        block = If(cond, block)
    return block


def _take(scope: NameScope, head: _Head, node: ast.stmt) -> bool:
    """Parse `node` into `head` if it is a declaration of the block; return whether it is one."""
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.Assign(targets=[target], value=ast.Call() as call):
            path = scope.dialect(call.func)
            if path.startswith("T.axis."):
                head.iters += _axes(scope, target, call, path.removeprefix("T.axis."))
                return True
        case ast.Expr(value=ast.Call() as call) if scope.dialect(call.func) in BLOCK_WORDS:
            _word(scope, head, call, scope.dialect(call.func))
            return True
        case ast.With(items=[ast.withitem(context_expr=call)]) if scope.is_call(call, "T.init"):
            if head.init is not None:
                raise scope.fail(call, "a second T.init in one block")
            head.init = parse_body(scope, node.body)
            return True
    return False


def _word(scope: NameScope, head: _Head, call: ast.Call, path: str) -> None:
    if path in ("T.reads", "T.writes"):
        before = head.reads if path == "T.reads" else head.writes
        if before is not None:
            raise scope.fail(call, f"a second {path} in one block")
        regions = tuple(_region(scope, a) for a in _listed(call))
        if path == "T.reads":
            head.reads = regions
        else:
            head.writes = regions
        return
    if len(call.args) != 1 or call.keywords:
        raise scope.fail(call, f"{path} takes one argument")
    if path == "T.block_attr":
        head.attrs = Attrs.of(
            **{**head.attrs, **parse_known_attrs(scope, call.args[0], BLOCK_ATTRS, head.name)}
        )
        return
    values = {i.var: i.value for i in head.iters}
    head.conditions.append(substitute(parse_expr(scope, call.args[0], BOOL), values))


def _listed(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of `T.reads` or `T.writes`, which may also be given as one list."""
    if len(call.args) == 1 and isinstance(call.args[0], ast.List | ast.Tuple):
        return call.args[0].elts
    return call.args


def _region(scope: NameScope, node: ast.expr) -> Region:
    if not isinstance(node, ast.Subscript):
        raise scope.fail(node, "expected a part of a buffer", "as A[i, 0:4]")
    buf = parse_buffer(scope, node.value)
    ranges = []
    for lo, extent in parse_ranges(scope, node.slice, buf):
        ranges.append((lo, IntImm(1, lo.dtype) if extent is None else extent))
    return Region(buf, tuple(ranges))


# ---- iteration variables ----------------------------------------------------------------------


def _axes(scope: NameScope, target: ast.expr, call: ast.Call, word: str) -> list[BlockIter]:
    """`vi = T.axis.spatial(extent, value)` or `vi, vk = T.axis.remap("SR", [i, k])`."""
    if word == "remap":
        return _remap(scope, target, call)
    kind = _KINDS.get(word, word)
    if kind not in ITER_KINDS:
        hint = nearest(word, [*ITER_KINDS, "remap"])
        raise scope.fail(call.func, f"unknown kind of axis {word!r}", hint or f"{ITER_KINDS}")
    if len(call.args) != 2 or call.keywords:
        raise scope.fail(call, f"expected T.axis.{word}(extent, value)")
    extent, value = parse_same(scope, call.args)
    return [_iter(scope, target, kind, extent, value, call)]


def _remap(scope: NameScope, target: ast.expr, call: ast.Call) -> list[BlockIter]:
    if len(call.args) != 2 or not isinstance(call.args[1], ast.List | ast.Tuple):
        raise scope.fail(call, "expected kinds and loops", 'as T.axis.remap("SR", [i, k])')
    kinds, values = parse_literal(scope, call.args[0]), call.args[1].elts
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not isinstance(kinds, str) or not all(k in _KINDS for k in kinds):
        raise scope.fail(call.args[0], f"kinds {kinds!r}", "S spatial, R reduce, O opaque")
    if not len(kinds) == len(values) == len(names):
        message = f"{len(names)} names, {len(kinds)} kinds and {len(values)} loops"
        raise scope.fail(call, message)
    out = []
    for name, letter, node in zip(names, kinds, values, strict=True):
        value = parse_expr(scope, node)
        extent = scope.ends.get(value) if isinstance(value, Var) else None
        if extent is None:
            hint = f"T.axis.{_KINDS[letter]}(extent, value) takes any value"
            raise scope.fail(node, "T.axis.remap takes loop variables", hint)
        out.append(_iter(scope, name, _KINDS[letter], extent, value, node))
    return out


def _iter(
    scope: NameScope, name: ast.expr, kind: str, extent: Expr, value: Expr, node: ast.expr
) -> BlockIter:
    if not isinstance(name, ast.Name):
        raise scope.fail(name, "expected one name")
    if not value.dtype.is_int or value.dtype != extent.dtype or value.dtype.lanes != 1:
        raise scope.fail(node, f"an axis of {value.dtype} with an extent of {extent.dtype}")
    var = Var(name.id, value.dtype)
    scope.bind(name, name.id, var)
    return BlockIter(var, extent, kind, value)
