"""Numbers of dimensions of inputs that declare no shape, as far as the nodes tell them.

Ranks of the values of a graph follow from each other: a convolution's operand has that of its
weight, and a sum over two dimensions that are not kept takes two away. They are propagated along
nodes in both directions, from weights, attributes and what the model declares, until nothing is
new. Nodes within branches and loops tell nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tensorkiln.frontend.onnx.proto import (
    AttributeProto,
    Dim,
    NodeProto,
    OnnxGraph,
    OnnxShape,
    TensorProto,
    TypeProto,
    ValueInfo,
)

# Operators all of whose results have the rank of their first operand.
_ALIKE = """Abs Acos Acosh Asin Asinh Atan Atanh BatchNormalization Bernoulli BitwiseNot Cast
CastLike Ceil Celu Clip Cos Cosh CumSum CumProd Dropout Elu Erf Exp Floor Gelu GlobalAveragePool
GlobalLpPool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Hardmax Identity
InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization
MeanVarianceNormalization Mish Neg Not PRelu Pad RMSNormalization RandomNormalLike
RandomUniformLike Reciprocal Relu Resize ReverseSequence Round Scatter ScatterElements ScatterND
Selu Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign Split Sqrt Swish Tan Tanh
ThresholdedRelu Tile TopK Transpose Trilu Upsample QuantizeLinear DequantizeLinear Binarizer
Imputer"""
# Those of which other operands have it too, by number.
_ALIKE_TOO = {"GatherElements": (1,), "ScatterElements": (1, 2), "Scatter": (1, 2)}
_BROADCAST = """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual
Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor"""
_REDUCTIONS = """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
ReduceProd ReduceSum ReduceSumSquare"""
# Operands and results of fixed ranks.
_FIXED: Mapping[str, tuple[tuple[int | None, ...], tuple[int | None, ...]]] = {
    **dict.fromkeys(("RNN", "GRU"), ((3, 3, 3, 2, 1, 3), (4, 3))),
    "LSTM": ((3, 3, 3, 2, 1, 3, 3, 2), (4, 3, 3)),
    "Gemm": ((2, 2), (2,)),
    "Flatten": ((), (2,)),
    "Shape": ((), (1,)),
    "Size": ((), (0,)),
    "NonZero": ((), (2,)),
    "DepthToSpace": ((4,), (4,)),
    "SpaceToDepth": ((4,), (4,)),
    "RoiAlign": ((4, 2, 1), (4,)),
    "MaxRoiPool": ((4, 2), (4,)),
    "NonMaxSuppression": ((3, 3), (2,)),
    "STFT": ((3,), (4,)),
    "TreeEnsembleClassifier": ((2,), (1, 2)),
    "TreeEnsembleRegressor": ((2,), (2,)),
}
# Of nodes with more operands nothing is concluded from their broadcasting.
_MOST_MEETING = 64
# Windows: the number of the operand that is the weight, or None for a pool.
_WINDOWS = {
    "Conv": 1,
    "ConvInteger": 1,
    "QLinearConv": 3,
    "ConvTranspose": 1,
    "DeformConv": 1,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), None),
}


@dataclass(frozen=True, slots=True)
class _RankLink:
    """`second` has `more` dimensions than `first`."""

    first: str
    second: str
    more: int = 0


class _Ranks:
    """Ranks by name, and constants. The first rank that is learned stands: nodes that need another
    one refuse the value. `fresh` are names of which nothing has been concluded yet."""

    def __init__(self) -> None:
        self.ranks: dict[str, int] = {}
        self.fresh: list[str] = []
        self.constants: dict[str, TensorProto] = {}

    def learn(self, name: str, rank: int | None) -> None:
        """Take a rank, unless it is None or negative."""
        if name and rank is not None and rank >= 0 and name not in self.ranks:
            self.ranks[name] = rank
            self.fresh.append(name)

    def count(self, name: str) -> int | None:
        """The number of elements of a 1-D constant."""
        tensor = self.constants.get(name)
        dims = None if tensor is None else tensor.dims.tolist()
        return int(dims[0]) if dims is not None and len(dims) == 1 else None


def with_ranks(graph: OnnxGraph, declared: Mapping[str, TypeProto]) -> Sequence[ValueInfo]:
    """The graph's inputs, those without a shape as tensors of the rank that follows from the nodes
    that use them; unchanged where none follows. `declared` are types of other values.
    """
    if not any(map(lacks_shape, graph.input)):
        return graph.input
    ranks = _known(graph, declared)
    _propagate(graph.node, ranks)
    return [_ranked(v, ranks) if lacks_shape(v) else v for v in graph.input]


def lacks_shape(v: ValueInfo) -> bool:
    """Whether an input is a tensor that declares no shape."""
    return v.type is not None and v.type.tensor is not None and v.type.tensor.shape is None


def shaped(v: ValueInfo, dims: Sequence[Dim]) -> ValueInfo:
    """An input as a tensor of these dimensions."""
    assert v.type is not None and v.type.tensor is not None
    tensor = replace(v.type.tensor, shape=OnnxShape(tuple(dims)))
    return replace(v, type=replace(v.type, tensor=tensor))


def _ranked(v: ValueInfo, ranks: _Ranks) -> ValueInfo:
    rank = ranks.ranks.get(v.name)
    return v if rank is None else shaped(v, [Dim()] * rank)


def _known(graph: OnnxGraph, declared: Mapping[str, TypeProto]) -> _Ranks:
    """The ranks of weights, and those that the model declares."""
    ranks = _Ranks()
    ranks.constants = {t.name: t for t in graph.initializer}
    for node in graph.node:
        for a in node.attribute if node.op_type == "Constant" and node.output else ():
            if a.name == "value" and a.t is not None:
                ranks.constants[node.output[0]] = a.t
            elif a.name in ("value_ints", "value_floats"):
                count = np.array([max(a.ints.size, a.floats.size)])
                ranks.constants[node.output[0]] = TensorProto(dims=count)
    for name, tensor in ranks.constants.items():
        ranks.learn(name, len(tensor.dims))
    types = {v.name: v.type for v in (*graph.input, *graph.output) if v.type is not None}
    for name, type_ in {**declared, **types}.items():
        if type_.tensor is not None and type_.tensor.shape is not None:
            ranks.learn(name, len(type_.tensor.shape.dim))
    return ranks


def _propagate(nodes: Sequence[NodeProto], ranks: _Ranks) -> None:
    """Learn what follows, until nothing is new: from each rank once."""
    rules: dict[str, list[_RankLink | NodeProto]] = defaultdict(list)
    for node in nodes:
        if node.domain not in ("", "ai.onnx", "ai.onnx.ml"):
            continue
        _learn_fixed(node, ranks)
        for link in _links(node, ranks):
            rules[link.first].append(link)
            rules[link.second].append(link)
        if node.op_type in _MEETING and len(node.operands) <= _MOST_MEETING:
            for name in {*node.operands, *node.output[:1]}:
                rules[name].append(node)
    while ranks.fresh:
        for rule in rules.get(ranks.fresh.pop(), ()):
            if isinstance(rule, NodeProto):
                _learn_meeting(rule, ranks)
                continue
            first, second = ranks.ranks.get(rule.first), ranks.ranks.get(rule.second)
            if first is not None:
                ranks.learn(rule.second, first + rule.more)
            elif second is not None:
                ranks.learn(rule.first, second - rule.more)


def _learn_fixed(node: NodeProto, ranks: _Ranks) -> None:
    attributes = {a.name: a for a in node.attribute}
    op, operands = node.op_type, node.operands
    inputs, outputs = _FIXED.get(op, ((), ()))
    for names, fixed in ((operands, inputs), (node.output, outputs)):
        for name, rank in zip(names, fixed, strict=False):
            ranks.learn(name, rank)
    ranks.learn(operands[0] if operands else "", _rank_of_first(op, operands, attributes, ranks))
    shape = {"Reshape": 1, "ConstantOfShape": 0}.get(op)
    if shape is not None and shape < len(operands):
        ranks.learn(node.output[0], ranks.count(operands[shape]))
    if op == "Einsum" and "equation" in attributes:
        _learn_einsum(node, bytes(attributes["equation"].s or b"").decode(), ranks)


def _rank_of_first(
    op: str, operands: Sequence[str], attributes: Mapping[str, AttributeProto], ranks: _Ranks
) -> int | None:
    """The rank that attributes and constants tell of a node's first operand."""

    def listed(name: str) -> int | None:
        return len(attributes[name].ints) if name in attributes else None

    kernel = listed("kernel_shape")
    if op in _WINDOWS and kernel is not None:
        return kernel + 2
    if op == "Transpose":
        return listed("perm")
    if op == "Pad" and len(operands) < 4:
        pad_count = _counted(operands, (1,), ranks) or listed("pads") or listed("paddings")
        return None if pad_count is None else pad_count // 2
    if op == "Tile":
        return _counted(operands, (1,), ranks)
    if op in ("Resize", "Upsample") and "axes" not in attributes:
        scales = attributes.get("scales", AttributeProto()).floats.size
        return scales or _counted(operands, (3, 2) if len(operands) > 2 else (1,), ranks)
    return None


def _counted(operands: Sequence[str], places: Sequence[int], ranks: _Ranks) -> int | None:
    """The number of elements of the first of some operands that is a constant of any."""
    counts = (ranks.count(operands[k]) for k in places if k < len(operands))
    return next((n for n in counts if n), None)


def _learn_einsum(node: NodeProto, equation: str, ranks: _Ranks) -> None:
    left_side, _, right = equation.replace(" ", "").partition("->")
    for name, term in zip(node.operands, left_side.split(","), strict=False):
        ranks.learn(name, None if "." in term else len(term))
    if "->" in equation:
        ranks.learn(node.output[0], None if "." in right else len(right))


def _links(node: NodeProto, ranks: _Ranks) -> Iterator[_RankLink]:
    """How the ranks of a node's operands and results depend on the first operand's."""
    op, operands, outs = node.op_type, node.operands, [o for o in node.output if o]
    if not operands or not outs:
        return
    if op in _ALIKE_SET or op in _WINDOWS:
        # Behind the first result of a normalisation of batches there are statistics.
        targets = outs[:1] if op == "BatchNormalization" else outs
        yield from (_RankLink(operands[0], out) for out in targets)
    yield from (_RankLink(operands[0], name) for name in _like_first(op, operands, outs[0]))
    attributes = {a.name: a for a in node.attribute}
    increment = _added(op, operands, attributes, ranks)
    if increment is not None:
        yield _RankLink(operands[0], outs[0], increment)


def _like_first(op: str, operands: Sequence[str], out: str) -> Sequence[str]:
    """Other operands, and the result of some operators, that have the rank of the first operand."""
    if op in ("Concat", "GridSample"):
        return [*operands[1:], out]
    weight = _WINDOWS.get(op)
    places = _ALIKE_TOO.get(op, ()) if weight is None else (weight,)
    names = [operands[k] for k in places if k < len(operands)]
    return [*names, out] if op == "GatherElements" else names


def _added(
    op: str, operands: Sequence[str], attributes: Mapping[str, AttributeProto], ranks: _Ranks
) -> int | None:
    """How many dimensions a result has more than the first operand, for operators with axes."""
    if op == "OneHot":
        return 1
    if op in ("ArgMax", "ArgMin", *_REDUCTIONS.split()):
        keep = attributes["keepdims"].i if "keepdims" in attributes else 1
        if keep != 0:
            return 0
        if op.startswith("Arg"):
            return -1
    elif op not in ("Squeeze", "Unsqueeze"):
        return None
    count = len(attributes["axes"].ints) if "axes" in attributes else None
    if count is None and len(operands) > 1:
        count = ranks.count(operands[1])
    if not count:
        return None
    return count if op == "Unsqueeze" else -count


def _learn_meeting(node: NodeProto, ranks: _Ranks) -> None:
    """What operators tell whose results depend on the ranks of several operands."""
    operands, op = [name for name in node.operands if name], node.op_type
    if not operands or not node.output:
        return
    if op == "Expand":
        _learn_largest(operands[:1], [ranks.count(operands[-1])], node.output[0], ranks)
    elif op in _BROADCAST.split():
        _learn_largest(operands, [], node.output[0], ranks)
    elif len(operands) > 1 and op == "Gather":
        _learn_gather(operands, node.output[0], ranks)
    elif len(operands) > 1:
        _learn_product(operands, node.output[0], ranks)


def _learn_largest(
    operands: Sequence[str], further_ranks: Sequence[int | None], out: str, ranks: _Ranks
) -> None:
    """Broadcasting: the result has the largest rank of the operands, and of `further_ranks`."""
    operand_ranks = [*(ranks.ranks.get(name) for name in operands), *further_ranks]
    ranks_known = [n for n in operand_ranks if n is not None]
    result = ranks.ranks.get(out)
    if len(ranks_known) == len(operand_ranks):
        ranks.learn(out, max(ranks_known))
    lacking = {name for name in operands if name not in ranks.ranks}
    smaller = result is not None and all(n < result for n in ranks_known)
    if smaller and len(lacking) == 1 and None not in further_ranks:
        ranks.learn(lacking.pop(), result)


def _learn_gather(operands: Sequence[str], out: str, ranks: _Ranks) -> None:
    """The dimension that is indexed gives way to those of the indices."""
    x, indices, result = (ranks.ranks.get(name) for name in (*operands[:2], out))
    if x is not None and indices is not None:
        ranks.learn(out, x + indices - 1)
    elif result is not None and indices is not None:
        ranks.learn(operands[0], result + 1 - indices)
    elif result is not None and x is not None:
        ranks.learn(operands[1], result + 1 - x)


def _learn_product(operands: Sequence[str], out: str, ranks: _Ranks) -> None:
    """Products of matrices, for each of the dimensions in front; a vector has none of its own."""
    left_rank, right_rank, result = (ranks.ranks.get(name) for name in (*operands[:2], out))
    if left_rank is not None and right_rank is not None:
        matrices = left_rank > 1 and right_rank > 1
        ranks.learn(
            out, max(left_rank, right_rank) if matrices else max(left_rank + right_rank - 2, 0)
        )
    elif result is not None:
        operand_rank = left_rank if right_rank is None else right_rank
        name = operands[1] if right_rank is None else operands[0]
        if operand_rank == 1:
            ranks.learn(name, result + 1)
        elif operand_rank == 2:
            ranks.learn(name, max(result, 1))
        elif operand_rank is not None and result != operand_rank:
            ranks.learn(name, result if result > operand_rank else 1)


_ALIKE_SET = frozenset(_ALIKE.split())
_MEETING = frozenset((*_BROADCAST.split(), "MatMul", "MatMulInteger", "Expand", "Gather"))

__all__ = ["lacks_shape", "shaped", "with_ranks"]
