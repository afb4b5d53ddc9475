"""The domain ai.onnx.ml against ONNX Runtime: features, linear models, support vectors, trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tensorkiln as tk
from tensorkiln.frontend import check_onnx, from_onnx
from tests.frontend.onnx_models import agree, main, ours, theirs, value

R = np.random.default_rng(23)
ML = "ai.onnx.ml"


def f(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def ml_model(
    op: str, operands: list[np.ndarray], outputs: list[Any], version: int = 3, **attrs: Any
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One node; ONNX Runtime wants types of outputs: (element type, rank)."""
    names = [f"x{k}" for k in range(len(operands))]
    outs = [f"y{k}" for k in range(len(outputs))]
    node = helper.make_node(op, names, outs, name="it", domain=ML, **attrs)
    feeds = dict(zip(names, operands, strict=True))
    graph = helper.make_graph(
        [node],
        "g",
        [value(n, v.dtype, v.shape) for n, v in feeds.items()],
        [
            helper.make_tensor_value_info(n, code, [None] * rank)
            for n, (code, rank) in zip(outs, outputs, strict=True)
        ],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
NUMBERS = np.array([[1, 5, 7], [7, 2, -4]], np.int64)
FEATURES: list[tuple[str, list[np.ndarray], tuple[int, int], dict[str, Any]]] = [
    ("Binarizer", [f(3, 4)], (FLOAT, 2), {"threshold": 0.2}),
    (
        "Scaler",
        [f(3, 4)],
        (FLOAT, 2),
        {"offset": [0.1, 0.2, 0.3, 0.4], "scale": [1.0, 2.0, 3.0, 4.0]},
    ),
    ("Scaler", [f(3, 4)], (FLOAT, 2), {"offset": [0.5], "scale": [2.0]}),
    ("Scaler", [NUMBERS], (FLOAT, 2), {"offset": [0.5], "scale": [2.0]}),
    *(("Normalizer", [abs(f(3, 4))], (FLOAT, 2), {"norm": n}) for n in ("MAX", "L1", "L2")),
    ("Normalizer", [f(3, 4) * np.float32([[1], [0], [1]])], (FLOAT, 2), {"norm": "L2"}),
    (
        "Imputer",
        [np.float32([[1, np.nan], [np.nan, 2]])],
        (FLOAT, 2),
        {"imputed_value_floats": [3.0, 4.0], "replaced_value_float": float("nan")},
    ),
    ("Imputer", [np.float32([[1, 0], [0, 2]])], (FLOAT, 2), {"imputed_value_floats": [3.0]}),
    ("Imputer", [NUMBERS], (INT, 2), {"imputed_value_int64s": [3], "replaced_value_int64": 7}),
    ("ArrayFeatureExtractor", [f(3, 5), np.array([[4, 0, 4]])], (FLOAT, 2), {}),
    ("OneHotEncoder", [NUMBERS], (FLOAT, 3), {"cats_int64s": [7, 1, 2]}),
    ("FeatureVectorizer", [f(3, 4), f(3, 2)], (FLOAT, 2), {"inputdimensions": [4, 2]}),
    ("LabelEncoder", [NUMBERS], (INT, 2), {"keys_int64s": [7, 1], "values_int64s": [70, 10]}),
    (
        "LabelEncoder",
        [NUMBERS],
        (FLOAT, 2),
        {"keys_int64s": [7, 1], "values_floats": [0.7, 0.1], "default_float": -3.5},
    ),
    (
        "LabelEncoder",
        [np.float32([0.5, np.nan, 2])],
        (INT, 1),
        {"keys_floats": [float("nan"), 0.5], "values_int64s": [4, 6], "default_int64": 9},
    ),
    (
        "LinearRegressor",
        [f(5, 3)],
        (FLOAT, 2),
        {"coefficients": f(6).tolist(), "intercepts": [0.5, -1.0], "targets": 2},
    ),
    ("LinearRegressor", [f(5, 3)], (FLOAT, 2), {"coefficients": f(3).tolist()}),
    *(
        (
            "SVMRegressor",
            [f(5, 3)],
            (FLOAT, 2),
            {
                "coefficients": f(4).tolist(),
                "support_vectors": f(12).tolist(),
                "n_supports": 4,
                "rho": [0.3],
                "kernel_type": k,
                "kernel_params": [0.4, 0.2, 2.0],
            },
        )
        for k in ("LINEAR", "RBF", "SIGMOID")
    ),
    (
        "SVMRegressor",
        [f(5, 3)],
        (FLOAT, 2),
        {
            "coefficients": f(4).tolist(),
            "support_vectors": f(12).tolist(),
            "n_supports": 4,
            "rho": [0.3],
            "kernel_type": "RBF",
            "kernel_params": [0.4, 0.0, 3.0],
            "one_class": 1,
        },
    ),
]


@pytest.mark.parametrize(
    ("op", "operands", "output", "attrs"),
    FEATURES,
    ids=[f"{c[0]}-{k}" for k, c in enumerate(FEATURES)],
)
def test_features_and_models(op: str, operands: Any, output: Any, attrs: Any) -> None:
    for version in (2, 4) if op == "LabelEncoder" else (3,):
        model_proto, feeds = ml_model(op, operands, [output], version, **attrs)
        agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_linear_classifiers(classes: int, transform: str) -> None:
    model_proto, feeds = ml_model(
        "LinearClassifier",
        [f(20, 4)],
        [(INT, 1), (FLOAT, 2)],
        coefficients=f(4 * classes).tolist(),
        intercepts=f(classes).tolist(),
        classlabels_ints=list(range(10, 10 + classes)),
        post_transform=transform,
    )
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC"])
def test_linear_classifiers_of_one_score(transform: str) -> None:
    model_proto, feeds = ml_model(
        "LinearClassifier",
        [f(20, 4)],
        [(INT, 1), (FLOAT, 2)],
        coefficients=f(4).tolist(),
        intercepts=[0.1],
        classlabels_ints=[3, 4],
        post_transform=transform,
    )
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_classifiers_of_support_vectors(kernel: str, classes: int, probabilities: bool) -> None:
    counts = [3 + c % 2 for c in range(classes)]
    total, pair_count = sum(counts), classes * (classes - 1) // 2
    probability_attrs = {
        "prob_a": (-abs(f(pair_count)) - 0.5).tolist(),
        "prob_b": (f(pair_count) / 4).tolist(),
    }
    model_proto, feeds = ml_model(
        "SVMClassifier",
        [f(40, 4)],
        [(INT, 1), (FLOAT, 2)],
        classlabels_ints=list(range(7, 7 + classes)),
        coefficients=f(total * (classes - 1)).tolist(),
        support_vectors=f(total * 4).tolist(),
        vectors_per_class=counts,
        rho=f(pair_count).tolist(),
        kernel_type=kernel,
        kernel_params=[0.3, 0.2, 3.0],
        **(probability_attrs if probabilities else {}),
    )
    agree(model_proto, feeds, rtol=2e-4, atol=1e-5)


MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")


def trees(
    count: int,
    depth: int,
    features: int,
    ids: list[int],
    modes: tuple[str, ...],
    prefix: str,
    whole: bool = False,
) -> dict[str, Any]:
    """Random trees with thresholds that some samples meet exactly; leaves have weights for some of
    the targets `ids`, or with `whole` for all."""
    out: dict[str, list[Any]] = {
        f"nodes_{k}": []
        for k in (
            "treeids",
            "nodeids",
            "modes",
            "featureids",
            "values",
            "truenodeids",
            "falsenodeids",
            "missing_value_tracks_true",
        )
    }
    weights: dict[str, list[Any]] = {
        f"{prefix}_{k}": [] for k in ("treeids", "nodeids", "ids", "weights")
    }
    for tree in range(count):
        waiting, node_count = [(0, 0)], 1
        while waiting:
            number, level = waiting.pop(0)
            leaf = level == depth or (level > 1 and R.random() < 0.3)
            mode = "LEAF" if leaf else f"BRANCH_{R.choice(modes)}"
            split = (0, 0) if leaf else (node_count, node_count + 1)
            row = [
                tree,
                number,
                mode,
                int(R.integers(features)),
                float(R.integers(-2, 3)) / 2,
                *split,
                int(R.integers(2)),
            ]
            for column, v in zip(out.values(), row, strict=True):
                column.append(v)
            if leaf:
                for target in R.permutation(ids)[
                    : len(ids) if whole else R.integers(1, len(ids) + 1)
                ]:
                    row = [tree, number, int(target), float(R.standard_normal())]
                    for column, v in zip(weights.values(), row, strict=True):
                        column.append(v)
            else:
                waiting += [(node_count, level + 1), (node_count + 1, level + 1)]
                node_count += 2
    return {**out, **weights}


def samples(count: int, features: int, missing: bool) -> np.ndarray:
    x = (R.integers(-4, 5, (count, features)) / 2).astype(np.float32)
    if missing:
        x[R.random(x.shape) < 0.2] = np.nan
    return x


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("aggregation", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("modes", [("LEQ",), ("LT",), MODES])
def test_tree_regressors(
    modes: tuple[str, ...], targets: int, aggregation: str, missing: bool
) -> None:
    # Where no tree has a weight for a target, ONNX Runtime leaves out its base value.
    forest = trees(7, 5, 6, list(range(targets)), modes, "target", aggregation == "SUM")
    model_proto, feeds = ml_model(
        "TreeEnsembleRegressor",
        [samples(40, 6, missing)],
        [(FLOAT, 2)],
        n_targets=targets,
        aggregate_function=aggregation,
        **({"base_values": f(targets).tolist()} if aggregation == "SUM" else {}),
        **forest,
    )
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize(("classes", "ids"), [(3, [0, 1, 2]), (5, [0, 1, 2, 3, 4]), (2, [0])])
@pytest.mark.parametrize("positive", [False, True])
def test_tree_classifiers(positive: bool, classes: int, ids: list[int], transform: str) -> None:
    forest = trees(6, 4, 5, ids, ("LEQ",), "class")
    if positive:
        forest["class_weights"] = [abs(v) / 6 for v in forest["class_weights"]]
    model_proto, feeds = ml_model(
        "TreeEnsembleClassifier",
        [samples(50, 5, True)],
        [(INT, 1), (FLOAT, 2)],
        classlabels_int64s=[7 + k for k in range(classes)],
        post_transform=transform,
        **forest,
    )
    agree(model_proto, feeds, rtol=1e-4, atol=1e-5)


def test_deep_trees_compile_for_any_number_of_samples() -> None:
    forest = trees(10, 12, 6, [0], ("LEQ",), "target")
    x = samples(33, 6, False)
    model_proto, _ = ml_model("TreeEnsembleRegressor", [x], [(FLOAT, 2)], n_targets=1, **forest)
    model_proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    exe = tk.compile(from_onnx(model_proto))
    for count in (1, 5, 33):
        (want,) = theirs(model_proto, {"x0": x[:count]})
        np.testing.assert_allclose(np.asarray(exe(x[:count])), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("aggregation", [0, 1, 2, 3])
def test_trees_of_the_new_form(aggregation: int) -> None:
    """All modes, sets among them, against the tree's own meaning."""
    splits = np.array([0.5, 1.0, np.nan, -0.5], np.float32)
    attrs = {
        "tree_roots": [0, 2],
        "nodes_modes": numpy_helper.from_array(np.array([0, 3, 6, 4], np.uint8)),
        "nodes_featureids": [0, 1, 2, 0],
        "nodes_splits": numpy_helper.from_array(splits),
        "nodes_truenodeids": [1, 0, 3, 4],
        "nodes_trueleafs": [0, 1, 0, 1],
        "nodes_falsenodeids": [2, 1, 3, 5],
        "nodes_falseleafs": [1, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1],
        "leaf_weights": numpy_helper.from_array(f(6)),
        "membership_values": numpy_helper.from_array(np.array([1, -1, 2, np.nan], np.float32)),
        "n_targets": 2,
        "aggregate_function": aggregation,
    }
    x = samples(60, 3, False)
    model_proto, feeds = ml_model("TreeEnsemble", [x], [(FLOAT, 2)], version=5, **attrs)
    (output,) = ours(from_onnx(model_proto), feeds)
    leaf = numpy_helper.to_array(attrs["leaf_weights"])
    for row, mine in zip(x, output, strict=True):
        first = (0 if row[1] > 1.0 else 1) if row[0] <= 0.5 else 2
        second = (4 if row[0] == -0.5 else 5) if row[2] in (1, -1, 2) else 3
        for target in (0, 1):
            leaf_weights = [leaf[k] for k in (first, second) if k % 2 == target]
            want = 0.0
            if leaf_weights:
                want = [
                    sum(leaf_weights) / 2,
                    sum(leaf_weights),
                    min(leaf_weights),
                    max(leaf_weights),
                ][aggregation]
            np.testing.assert_allclose(mine[target], want, rtol=1e-5)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("ZipMap", {"classlabels_int64s": [1, 2]}, "2 labels for scores"),
    ("OneHotEncoder", {"cats_strings": ["a"]}, "cats_strings"),
    ("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}, "strings"),
    ("LabelEncoder", {"keys_floats": [1.0], "values_int64s": [1, 2]}, "1 keys for 2 values"),
    ("Normalizer", {"norm": "L3"}, "norm='L3'"),
    ("LinearRegressor", {"coefficients": [1.0]}, "1 coefficients for 3 features"),
    ("Scaler", {"scale": [1.0, 2.0]}, "2 values for 3 features"),
    ("SVMClassifier", {"coefficients": [1.0], "rho": [0.0]}, "no support vectors"),
    (
        "SVMClassifier",
        {
            "coefficients": [1.0],
            "rho": [0.0],
            "classlabels_ints": [0, 1],
            "vectors_per_class": [1, 1],
            "support_vectors": [1.0] * 6,
        },
        "2 support vectors of 3 features",
    ),
]


@pytest.mark.parametrize(("op", "attrs", "says"), REFUSED)
def test_refusals(op: str, attrs: dict[str, Any], says: str) -> None:
    model_proto, _ = ml_model(op, [f(2, 3)], [(FLOAT, 2)], **attrs)
    (issue,) = check_onnx(model_proto)
    assert says in issue.message
    assert issue.hint or "features" in says or "norm" in says or says.endswith("values")


SMALL: dict[str, Any] = {
    "tree_roots": [0],
    "nodes_modes": np.array([0], np.uint8),
    "nodes_featureids": [0],
    "nodes_splits": np.array([0.5], np.float32),
    "nodes_truenodeids": [0],
    "nodes_trueleafs": [1],
    "nodes_falsenodeids": [1],
    "nodes_falseleafs": [1],
    "leaf_targetids": [0, 0],
    "leaf_weights": np.array([1, 2], np.float32),
    "n_targets": 1,
}
BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"tree_roots": [3]}, "tree_roots"),
    ({"nodes_featureids": [-1]}, "feature -1"),
    ({"nodes_featureids": [3]}, "feature 3 of 3"),
    ({"nodes_truenodeids": [7]}, "leaf 7, which is not there"),
    ({"nodes_trueleafs": [0], "nodes_truenodeids": [2]}, "node 2, which is not there"),
    ({"nodes_trueleafs": [0]}, "128 levels, or a circle"),
    ({"nodes_modes": np.array([9], np.uint8)}, "no mode"),
    ({"nodes_modes": np.array([6], np.uint8)}, "0 sets for 1 nodes"),
    ({"leaf_targetids": [0, 4]}, "beyond 1 targets"),
    ({"leaf_targetids": [0]}, "differ in length"),
    ({"nodes_falseleafs": [1, 1]}, "differ in length"),
    ({"aggregate_function": 9}, "aggregate_function=9"),
    ({"post_transform": -1}, "post_transform=-1"),
    ({"post_transform": 4}, "PROBIT"),
    ({"nodes_missing_value_tracks_true": [1, 1]}, "differ in length"),
]


@pytest.mark.parametrize(("change", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_trees_that_are_broken(change: dict[str, Any], says: str) -> None:
    attrs = {
        k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v
        for k, v in {**SMALL, **change}.items()
    }
    model_proto, _ = ml_model("TreeEnsemble", [f(2, 3)], [(FLOAT, 2)], version=5, **attrs)
    (issue,) = check_onnx(model_proto)
    assert says in issue.message


def test_one_row_of_coefficients_without_an_intercept() -> None:
    model_proto, feeds = ml_model(
        "LinearClassifier",
        [f(20, 4)],
        [(INT, 1), (FLOAT, 2)],
        coefficients=f(4).tolist(),
        classlabels_ints=[3, 4],
        post_transform="LOGISTIC",
    )
    label, scores = ours(from_onnx(model_proto), feeds)
    attributes = {a.name: np.array(a.floats) for a in model_proto.graph.node[0].attribute}
    coefficients = attributes["coefficients"]
    want = 1 / (1 + np.exp(-feeds["x0"] @ coefficients))
    np.testing.assert_allclose(scores, np.stack([1 - want, want], 1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(label, 3 + (want > 0.5))


@pytest.mark.parametrize("version", [2, 4])
def test_labels_that_are_strings(version: int) -> None:
    """As a pipeline with text labels: the numbers of the strings, and what encoders make of them;
    scores that ZipMap makes dictionaries of."""
    texts = ["low", "mid", "high"]
    linear = {"coefficients": f(3, 4).ravel().tolist(), "intercepts": [0.1, 0.2, -0.1]}
    pairs = {"keys_strings": ["high", "low", "high"]}

    def node(op: str, x: str, ys: list[str], **attrs: Any) -> Any:
        return helper.make_node(op, [x], ys, domain=ML, **attrs)

    nodes = [
        node("LinearClassifier", "x", ["label", "p"], classlabels_strings=texts, **linear),
        node("ZipMap", "p", ["maps"], classlabels_strings=texts),
        node("LabelEncoder", "label", ["number"], values_int64s=[7, 8, 9], **pairs),
        node("LabelEncoder", "label", ["float"], values_floats=[1.5, 2, 3], **pairs),
        node("LabelEncoder", "label", ["name"], values_strings=["H", "L", "-"], **pairs),
        node("LabelEncoder", "name", ["again"], keys_strings=["L", "?"], values_int64s=[4, 5]),
        node("OneHotEncoder", "label", ["hot"], cats_strings=["mid", "low", "?"]),
        node("LabelEncoder", "number", ["back"], keys_int64s=[7, 8], values_strings=["up", "down"]),
    ]
    outputs = ["label", "maps", "number", "float", "name", "again", "hot", "back"]
    x = f(12, 4)
    graph = helper.make_graph(
        nodes, "g", [value("x", x.dtype, x.shape)], [onnx.ValueInfoProto(name=o) for o in outputs]
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    model_proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    module = from_onnx(model_proto)
    tables = {name: rows for name, *rows in main(module).attrs["texts"]}
    assert set(tables) == {"label", "name", "back"} and tables["label"] == texts
    compiled = tk.compile(module)
    want = theirs(model_proto, {"x": x})
    assert len(set(want[0])) > 1
    for results in (ours(module, {"x": x}), [np.asarray(v) for v in compiled(x)]):
        for name, a, b in zip(outputs, results, want, strict=True):
            if name in tables:
                assert a.dtype == np.int64 and [tables[name][k] for k in a] == list(b)
            elif name == "maps":
                b = np.array([[row[k] for k in texts] for row in b], np.float32)
                np.testing.assert_allclose(a, b, rtol=1e-5)
            else:
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                np.testing.assert_array_equal(a, b)


def test_labels_that_are_strings_may_be_left_unread() -> None:
    forest = trees(3, 3, 4, [0, 1, 2], ("LEQ",), "class")
    model_proto, feeds = ml_model(
        "TreeEnsembleClassifier",
        [samples(9, 4, False)],
        [(TensorProto.STRING, 1), (FLOAT, 2)],
        classlabels_strings=["a", "b", "c"],
        **forest,
    )
    want = theirs(model_proto, feeds)[1]
    del model_proto.graph.output[0]
    np.testing.assert_allclose(ours(from_onnx(model_proto), feeds)[0], want, rtol=1e-5)
