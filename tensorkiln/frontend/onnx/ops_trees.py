"""Tree ensembles as tensor programs: all samples walk all trees at once, a level at a time.

Each node is brought to one form: the feature, or its negative, is compared by <= with a threshold,
and the node to go to if not so, and for NaN, is the one behind that to go to if so. A leaf, whose
threshold is NaN, goes to itself. So a step of a walk is the same for all nodes: the operator
`tree_leaves` makes as many as the deepest tree has levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Array, Floats, Int, Ints, Str, Strs, Table
from tensorkiln.frontend.onnx.ops_ml import TRANSFORMS, labels, transformed
from tensorkiln.frontend.onnx.texts import Texts
from tensorkiln.ir.expr import int_value
from tensorkiln.ops.forest import packed_nodes

MOST_LEVELS = 128
MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_NEW = ("AVERAGE", "SUM", "MIN", "MAX")  # as TreeEnsemble numbers them
_JOIN = {"SUM": "sum", "AVERAGE": "sum", "MIN": "min", "MAX": "max"}


@dataclass(frozen=True, slots=True)
class TreeSplit:
    """A node of a tree as the model gives it: whether the feature is in `mode` relation to the
    values decides between two further ones; NaN goes to `yes` if `missing`."""

    mode: str
    feature: int
    values: tuple[float, ...]
    yes: int
    no: int
    missing: bool


@dataclass(slots=True)
class Forest:
    """Nodes of all trees in one form, as columns; `child` is where <= leads, the next one where it
    does not. Node 0 is of no tree: a leaf leads to the one behind the one before it. `leaf` is a
    number of the model's leaves, -1 for splits."""

    dtype: type[np.floating]
    feature: list[int] = field(default_factory=lambda: [0])
    negated: list[bool] = field(default_factory=lambda: [False])
    threshold: list[float] = field(default_factory=lambda: [np.nan])
    child: list[int] = field(default_factory=lambda: [0])
    leaf: list[int] = field(default_factory=lambda: [-1])
    roots: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)

    def grow(self, node: Callable[[int], TreeSplit | int], root: int) -> None:
        """Add a tree: `node` gives a split, or the number of a leaf."""
        self.roots.append(self._new(1))
        self.depths.append(0)
        waiting = [(self.roots[-1], root, 0)]
        steps = 0
        while waiting:
            slot, number, level = waiting.pop()
            steps += 1
            entry = node(number)
            if isinstance(entry, int):
                self.leaf[slot] = entry
                self.depths[-1] = max(self.depths[-1], level)
                continue
            if level >= MOST_LEVELS:
                raise unsupported(f"a tree of more than {MOST_LEVELS} levels, or a circle")
            waiting += self._split(slot, entry, level)

    def _new(self, count: int) -> int:
        first = len(self.child)
        for k in range(count):
            self.feature.append(0)
            self.negated.append(False)
            self.threshold.append(np.nan)
            self.child.append(first + k - 1)
            self.leaf.append(-1)
        return first

    def _set(self, slot: int, split: TreeSplit, threshold: float, missing: bool) -> tuple[int, int]:
        """Make a split of a node; return the nodes where <= and > lead. NaN goes with <= if
        `missing`: then what is asked is whether the feature is greater."""
        first = self._new(2)
        self.feature[slot], self.child[slot], self.negated[slot] = split.feature, first, missing
        self.threshold[slot] = _greater(self.dtype, threshold) if missing else threshold
        return (first + 1, first) if missing else (first, first + 1)

    def _split(self, slot: int, s: TreeSplit, level: int) -> list[tuple[int, int, int]]:
        """Make splits by <= of a node, and return what leads where: (node, the model's, level)."""
        if s.feature < 0:
            raise malformed(f"a node has feature {s.feature}")
        value, down = s.values[0], level + 1
        before = float(np.nextafter(self.dtype(value), self.dtype(-np.inf)))
        match s.mode:
            case "LEQ" | "LT":
                limit = value if s.mode == "LEQ" else before
                under, over = self._set(slot, s, limit, s.missing)
                return [(under, s.yes, down), (over, s.no, down)]
            case "GTE" | "GT":
                limit = before if s.mode == "GTE" else value
                under, over = self._set(slot, s, limit, not s.missing)
                return [(under, s.no, down), (over, s.yes, down)]
        # Equal to one of the values, from the greatest on: beyond it, it, and below it the next.
        yes, no = (s.no, s.yes) if s.mode == "NEQ" else (s.yes, s.no)
        missing = s.mode != "NEQ" and s.missing
        out = []
        for limit in sorted(set(s.values), reverse=True):
            before = float(np.nextafter(self.dtype(limit), self.dtype(-np.inf)))
            under, over = self._set(slot, s, limit, missing)
            lower, equal = self._set(under, s, before, False)
            out += [(over, no, down), (equal, yes, down + 1)]
            slot, down, missing = lower, down + 2, False
        return [*out, (slot, no, down - 1)]


def _greater(dtype: type[np.floating], limit: float) -> float:
    """The number b for which -x <= b where x is greater than `limit`. If `limit` is NaN, no x is
    at most `limit`, and b is infinite."""
    if np.isnan(limit):
        return np.inf
    return np.nan if limit == np.inf else -float(np.nextafter(dtype(limit), dtype(np.inf)))


def _walk(g: Context, x: Val, forest: Forest) -> Val:
    """The nodes [N, trees] of the leaves that the samples x [N, features] come to."""
    features = int_value(g.shape(x)[1]) or 0
    if features <= max(forest.feature):
        raise malformed(f"feature {max(forest.feature)} of {features}")
    compared = np.asarray(forest.feature) + features * np.asarray(forest.negated)
    nodes, bits = packed_nodes(compared, np.asarray(forest.child))
    order = np.argsort(forest.depths, kind="stable")
    roots, depths = (np.asarray(v)[order] for v in (forest.roots, forest.depths))
    tables = [g.const(v, "int32") for v in (roots, depths)]
    limits = g.const(forest.threshold, g.type(x).dtype)
    packed = g.const(nodes, str(nodes.dtype))
    return g.emit("tree_leaves", x, *tables, packed, limits, bits=bits, most=int(depths[-1]))


def _summed(g: Context, leaves: Val, forest: Forest, weights: np.ndarray, aggregate: str) -> Val:
    """The results [N, targets] of `leaves` [N, trees], whose weights are [leaves, targets]; NaN
    is no weight."""
    unit = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
    rows = np.full((len(forest.leaf), weights.shape[1]), unit)
    is_leaf = np.asarray(forest.leaf) >= 0
    rows[is_leaf] = weights[np.asarray(forest.leaf)[is_leaf]]
    rows = np.where(np.isnan(rows), unit, rows)
    dtype = np.dtype(forest.dtype).name
    if weights.shape[1] == 1:
        read = g.emit("take", g.const(rows[:, 0], dtype), leaves, axis=0, outside="clamp")
        y = g.reshape(
            g.emit(_JOIN[aggregate], read, axes=(1,), keepdims=False), (g.shape(leaves)[0], 1)
        )
    else:
        read = g.emit("take", g.const(rows, dtype), leaves, axis=0, outside="clamp")
        y = g.emit(_JOIN[aggregate], read, axes=(1,), keepdims=False)
    if aggregate == "AVERAGE":
        return g.emit("mul", y, g.like(1 / len(forest.roots), y))
    if aggregate == "SUM":
        return y
    is_empty = g.emit("equal", y, g.like(unit, y))
    return g.emit("where", is_empty, g.like(0, y), y)


def _samples(g: Context, x: Val) -> tuple[Val, type[np.floating]]:
    """x as [N, features] of float32 or float64."""
    if g.rank(x) == 1:
        x = g.reshape(x, (1, *g.shape(x)))
    if g.rank(x) != 2:
        raise malformed(f"expected x [N, features], got {g.rank(x)} dimensions")
    wide = g.dtype(x) == "float64"
    return (x if wide else g.cast(x, "float32")), np.float64 if wide else np.float32


# -- until version 3: lists in which a node is named by tree and number ---------------------------


def _listed(
    dtype: type[np.floating],
    trees: Sequence[int],
    numbers: Sequence[int],
    modes: Sequence[str],
    features: Sequence[int],
    values: Sequence[float],
    yes: Sequence[int],
    no: Sequence[int],
    missing: Sequence[int],
) -> tuple[Forest, dict[tuple[int, int], int]]:
    """The forest, and the number of each leaf by (tree, number)."""
    lists = (trees, numbers, modes, features, values, yes, no)
    if len({len(v) for v in lists}) != 1 or len(missing) not in (0, len(trees)) or not trees:
        raise malformed(f"lists of nodes have {[len(v) for v in lists]} entries")
    place = {key: k for k, key in enumerate(zip(trees, numbers, strict=True))}
    leaves: dict[tuple[int, int], int] = {}

    def node(k: int) -> TreeSplit | int:
        key = (trees[k], numbers[k])
        if modes[k] == "LEAF":
            return leaves.setdefault(key, len(leaves))
        mode = modes[k].removeprefix("BRANCH_")
        if mode not in MODES[:-1]:
            raise malformed(f"a node has mode {modes[k]!r}")
        nexts = [place.get((trees[k], v[k])) for v in (yes, no)]
        if nexts[0] is None or nexts[1] is None:
            raise malformed(f"a node of tree {trees[k]} leads to one that does not exist")
        tracks_true = bool(missing) and bool(missing[k])
        return TreeSplit(mode, features[k], (values[k],), nexts[0], nexts[1], tracks_true)

    forest = Forest(dtype)
    for tree in sorted(set(trees)):
        forest.grow(node, trees.index(tree))
    return forest, leaves


def _weights(
    leaves: dict[tuple[int, int], int],
    trees: Sequence[int],
    numbers: Sequence[int],
    ids: Sequence[int],
    values: Sequence[float],
    count: int,
) -> np.ndarray:
    """The weights [leaves, targets]; NaN where a leaf has none."""
    if len({len(trees), len(numbers), len(ids), len(values)}) != 1:
        raise malformed("lists of weights differ in length")
    out = np.full((max(len(leaves), 1), count), np.nan)
    for tree, number, target, value in zip(trees, numbers, ids, values, strict=True):
        leaf = leaves.get((tree, number))
        if leaf is None:
            continue  # a weight at a split, or at a node that no sample reaches
        if not 0 <= target < count:
            raise malformed(f"target {target} of {count}")
        out[leaf, target] = np.nansum([out[leaf, target], value])
    return out


def _numbers(values: Sequence[float], array: Array | None) -> list[float]:
    return list(values) if array is None else [float(v) for v in array.ravel()]


def _with_base(g: Context, y: Val, base: Sequence[float]) -> Val:
    return g.emit("add", y, g.const(base, g.type(y).dtype)) if base else y


def tree_regressor(
    g: Context,
    x: Val,
    *,
    nodes_treeids: Ints,
    nodes_nodeids: Ints,
    nodes_modes: Strs,
    nodes_featureids: Ints,
    nodes_truenodeids: Ints,
    nodes_falsenodeids: Ints,
    target_treeids: Ints,
    target_nodeids: Ints,
    target_ids: Ints,
    n_targets: Int,
    nodes_values: Floats = (),
    nodes_values_as_tensor: Array | None = None,
    target_weights: Floats = (),
    target_weights_as_tensor: Array | None = None,
    base_values: Floats = (),
    base_values_as_tensor: Array | None = None,
    nodes_hitrates: Floats = (),
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    aggregate_function: Str = "SUM",
    post_transform: Str = "NONE",
) -> Val:
    """The sum, mean, least or greatest of the weights of leaves, one for each tree."""
    if aggregate_function not in _JOIN:
        raise malformed(f"aggregate_function={aggregate_function!r}; expected {list(_JOIN)}")
    wide, dtype = _samples(g, x)
    forest, leaves = _listed(
        dtype,
        nodes_treeids,
        nodes_nodeids,
        nodes_modes,
        nodes_featureids,
        _numbers(nodes_values, nodes_values_as_tensor),
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_missing_value_tracks_true,
    )
    values = _numbers(target_weights, target_weights_as_tensor)
    rows = _weights(leaves, target_treeids, target_nodeids, target_ids, values, n_targets)
    y = _summed(g, _walk(g, wide, forest), forest, rows, aggregate_function)
    y = _with_base(g, y, _numbers(base_values, base_values_as_tensor))
    return transformed(g, g.cast(y, "float32"), post_transform)


def tree_classifier(
    g: Context,
    x: Val,
    *,
    nodes_treeids: Ints,
    nodes_nodeids: Ints,
    nodes_modes: Strs,
    nodes_featureids: Ints,
    nodes_truenodeids: Ints,
    nodes_falsenodeids: Ints,
    class_treeids: Ints,
    class_nodeids: Ints,
    class_ids: Ints,
    nodes_values: Floats = (),
    nodes_values_as_tensor: Array | None = None,
    class_weights: Floats = (),
    class_weights_as_tensor: Array | None = None,
    base_values: Floats = (),
    base_values_as_tensor: Array | None = None,
    nodes_hitrates: Floats = (),
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    classlabels_int64s: Ints = (),
    classlabels_strings: Strs = (),
    post_transform: Str = "NONE",
) -> Sequence[Val | Texts]:
    """Labels and scores: the sums of the weights of leaves for each class. With weights for one
    class of two, the scores are that one and its complement."""
    wide, dtype = _samples(g, x)
    forest, leaves = _listed(
        dtype,
        nodes_treeids,
        nodes_nodeids,
        nodes_modes,
        nodes_featureids,
        _numbers(nodes_values, nodes_values_as_tensor),
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_missing_value_tracks_true,
    )
    classes = len(classlabels_int64s) or len(classlabels_strings)
    if classes < 2:
        raise unsupported(f"{classes} classes", "2 or more are supported")
    values = _numbers(class_weights, class_weights_as_tensor)
    rows = _weights(leaves, class_treeids, class_nodeids, class_ids, values, classes)
    leaf_numbers = _walk(g, wide, forest)
    base = _numbers(base_values, base_values_as_tensor)
    single = classes == 2 and len(set(class_ids)) == 1
    if not single:
        y = _with_base(g, _summed(g, leaf_numbers, forest, rows, "SUM"), base)
        index = g.emit("argmax", y, axis=1, keepdims=False)
        label = labels(g, index, classlabels_int64s, classlabels_strings)
        return label, transformed(g, g.cast(y, "float32"), post_transform)
    column = rows[:, class_ids[0] : class_ids[0] + 1]
    if len(base) not in (0, 1):
        raise unsupported(f"{len(base)} base values for one score of two classes")
    y = _with_base(g, _summed(g, leaf_numbers, forest, column, "SUM"), base)
    positive = all(v >= 0 for v in values)
    return _single(g, y, positive, post_transform, classlabels_int64s, classlabels_strings)


def _single(
    g: Context, y: Val, positive: bool, transform: str, ints: Sequence[int], strings: Sequence[str]
) -> Sequence[Val | Texts]:
    """Labels and scores of two classes of which y [N, 1] is the second's: a probability if no
    weight is negative, else a distance from 0."""
    y = g.cast(y, "float32")
    over = g.emit("greater", y, g.like(0.5 if positive else 0.0, y))
    label = labels(g, g.cast(g.reshape(over, (g.shape(y)[0],)), "int64"), ints, strings)
    # A softmax of one score says nothing: as in ONNX Runtime it is not applied.
    logistic = transform == "LOGISTIC"
    y = transformed(g, y, "NONE" if transform.startswith("SOFTMAX") else transform)
    whole = positive or logistic
    first_score = g.emit("sub", g.like(1, y), y) if whole else g.emit("neg", y)
    return label, g.emit("concat", first_score, y, axis=1)


# -- from version 5 on: lists of splits and of leaves ---------------------------------------------


def tree_ensemble(
    g: Context,
    x: Val,
    *,
    tree_roots: Ints,
    nodes_modes: Array,
    nodes_featureids: Ints,
    nodes_splits: Array,
    nodes_truenodeids: Ints,
    nodes_trueleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_falseleafs: Ints,
    leaf_targetids: Ints,
    leaf_weights: Array,
    n_targets: Int = 1,
    membership_values: Array | None = None,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Ints = (),
    aggregate_function: Int = 1,
    post_transform: Int = 0,
) -> Val:
    """The mean, sum, least or greatest of the weights of leaves, one for each tree."""
    wide, dtype = _samples(g, x)
    modes = nodes_modes.ravel().tolist()
    lists = (nodes_featureids, nodes_truenodeids, nodes_trueleafs, nodes_falsenodeids)
    if {len(v) for v in (*lists, nodes_falseleafs, nodes_splits.ravel())} != {len(modes)}:
        raise malformed("lists of nodes differ in length")
    if len(leaf_targetids) != leaf_weights.size or not all(0 <= m < len(MODES) for m in modes):
        raise malformed("lists of leaves differ in length, or a node has no mode of the standard")
    if not 0 <= aggregate_function < len(_NEW) or not 0 <= post_transform < len(TRANSFORMS):
        raise malformed(f"aggregate_function={aggregate_function}, {post_transform=}")
    _check_places(nodes_truenodeids, nodes_trueleafs, leaf_weights.size)
    _check_places(nodes_falsenodeids, nodes_falseleafs, leaf_weights.size)
    if not tree_roots or not all(0 <= r < len(modes) for r in tree_roots):
        raise malformed(f"tree_roots={list(tree_roots)} for {len(modes)} nodes")
    if n_targets < 1 or not all(0 <= t < n_targets for t in leaf_targetids):
        raise malformed(f"leaf_targetids beyond {n_targets} targets")
    if len(nodes_missing_value_tracks_true) not in (0, len(modes)):
        raise malformed("lists of nodes differ in length")
    members = _members(modes, membership_values)

    def node(k: int) -> TreeSplit | int:
        if k < 0:
            return -1 - k
        mode = MODES[modes[k]]
        values = members[k] if mode == "MEMBER" else (float(nodes_splits.ravel()[k]),)
        yes = -1 - nodes_truenodeids[k] if nodes_trueleafs[k] else nodes_truenodeids[k]
        no = -1 - nodes_falsenodeids[k] if nodes_falseleafs[k] else nodes_falsenodeids[k]
        tracks_true = nodes_missing_value_tracks_true
        return TreeSplit(
            mode, nodes_featureids[k], values, yes, no, bool(tracks_true) and bool(tracks_true[k])
        )

    forest = Forest(dtype)
    for root in tree_roots:
        equal_children = nodes_truenodeids[root] == nodes_falsenodeids[root]
        alone = nodes_trueleafs[root] and nodes_falseleafs[root] and equal_children
        forest.grow(node, -1 - nodes_truenodeids[root] if alone else root)
    rows = np.full((len(leaf_targetids), n_targets), np.nan)
    rows[np.arange(len(rows)), list(leaf_targetids)] = leaf_weights.ravel()
    y = _summed(g, _walk(g, wide, forest), forest, rows, _NEW[aggregate_function])
    return transformed(g, y, TRANSFORMS[post_transform])


def _check_places(to: Sequence[int], leaf: Sequence[int], leaves: int) -> None:
    """Raise NodeProblem unless nodes lead to nodes, or to leaves where `leaf` says so."""
    for k, last in zip(to, leaf, strict=True):
        if not 0 <= k < (leaves if last else len(to)):
            raise malformed(f"a node leads to {'leaf' if last else 'node'} {k}, which is not there")


def _members(modes: Sequence[int], values: Array | None) -> dict[int, tuple[float, ...]]:
    """The values of each node of mode MEMBER; NaN ends those of one."""
    asking = [k for k, m in enumerate(modes) if MODES[m] == "MEMBER"]
    sets: list[list[float]] = [[]]
    for v in [] if values is None else values.ravel().tolist():
        if np.isnan(v):
            sets.append([])
        else:
            sets[-1].append(v)
    if len(sets) - 1 != len(asking) or not all(sets[:-1]):
        raise malformed(f"membership_values has {len(sets) - 1} sets for {len(asking)} nodes")
    return {k: tuple(s) for k, s in zip(asking, sets, strict=False)}


TABLE: Table = {
    "TreeEnsembleRegressor": {1: tree_regressor},
    "TreeEnsembleClassifier": {1: tree_classifier},
    "TreeEnsemble": {5: tree_ensemble},
}
