"""The domain ai.onnx.ml without trees: features, linear models, support vectors. Labels and
categories are numbers; strings are refused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Array, Float, Floats, Int, Ints, Str, Strs, Table
from tensorkiln.frontend.onnx.texts import Texts, is_one_of, looked_up
from tensorkiln.ir.expr import int_value
from tensorkiln.ir.relax import Constant, constant
from tensorkiln.ops.coupling import pairs

_NO_STRINGS = "strings are no elements of tensors; number the categories before the model"


def binarizer(g: Context, x: Val, *, threshold: Float = 0.0) -> Val:
    """1 where x is greater than the threshold, else 0."""
    return g.cast(g.emit("greater", x, g.like(threshold, x)), g.dtype(x))


def scaler(g: Context, x: Val, *, offset: Floats = (), scale: Floats = ()) -> Val:
    """(x - offset) * scale in float32, for each feature or for all."""
    wide = g.cast(x, "float32")
    if offset:
        wide = g.emit("sub", wide, _row(g, offset, x))
    return g.emit("mul", wide, _row(g, scale, x)) if scale else wide


def _row(g: Context, values: Sequence[float], x: Val) -> Constant:
    features = int_value(g.shape(x)[-1]) if g.rank(x) else 1
    if len(values) not in (1, features):
        raise malformed(f"{len(values)} values for {features} features")
    return g.const(values if len(values) > 1 else values[0], "float32")


def normalizer(g: Context, x: Val, *, norm: Str = "MAX") -> Val:
    """Rows [N, features] divided by their maximum, or L1 or L2 norm; rows of norm 0 stay."""
    wide = g.cast(x, "float32")
    last = (g.rank(x) - 1,)
    match norm:
        case "MAX":
            size = g.emit("max", wide, axes=last, keepdims=True)
        case "L1":
            size = g.emit("sum", g.emit("abs", wide), axes=last, keepdims=True)
        case "L2":
            size = g.emit("sum", g.emit("mul", wide, wide), axes=last, keepdims=True)
            size = g.emit("sqrt", size)
        case _:
            raise malformed(f"norm={norm!r}; expected 'MAX', 'L1' or 'L2'")
    empty = g.emit("equal", size, g.const(0, "float32"))
    return g.emit("div", wide, g.emit("where", empty, g.const(1, "float32"), size))


def imputer(
    g: Context,
    x: Val,
    *,
    imputed_value_floats: Floats = (),
    imputed_value_int64s: Ints = (),
    replaced_value_float: Float = 0.0,
    replaced_value_int64: Int = 0,
) -> Val:
    """`x` with other numbers, one for each feature or one for all, where it is the replaced one."""
    floats = g.type(x).dtype.is_float
    values = imputed_value_floats if floats else imputed_value_int64s
    features = int_value(g.shape(x)[-1]) if g.rank(x) else 1
    if len(values) not in (1, features):
        raise malformed(f"{len(values)} values for {features} features")
    old = replaced_value_float if floats else replaced_value_int64
    hit = g.emit("isnan", x) if np.isnan(old) else g.emit("equal", x, g.like(old, x))
    new = g.const(values if len(values) > 1 else values[0], g.type(x).dtype)
    return g.emit("where", hit, new, x)


def array_feature_extractor(g: Context, x: Val, index: Val) -> Val:
    """The features of these numbers."""
    if g.rank(x) == 0:
        raise malformed("the operand is a scalar")
    flat = g.reshape(g.cast(index, "int64"), (g.dims.product(g.shape(index)),))
    flat = g.inside(flat, g.shape(x)[-1], negative=False)
    y = g.emit("take", x, flat, axis=g.rank(x) - 1)
    return g.reshape(y, (1, *g.shape(y))) if g.rank(y) == 1 else y


def one_hot_encoder(
    g: Context, x: Val | Texts, *, cats_int64s: Ints = (), cats_strings: Strs = (), zeros: Int = 1
) -> Val:
    """A further dimension with 1 at the category that the element is, else 0."""
    if not zeros:
        raise unsupported("zeros=0, with which unknown categories are an error", "zeros=1")
    if isinstance(x, Texts):
        return is_one_of(g, x, cats_strings)
    if cats_strings or not cats_int64s:
        raise unsupported("cats_strings", _NO_STRINGS)
    elements = g.reshape(g.cast(x, "int64"), (*g.shape(x), 1))
    return g.cast(g.emit("equal", elements, g.const(cats_int64s, "int64")), "float32")


def feature_vectorizer(g: Context, x: Val, *more: Val, inputdimensions: Ints = ()) -> Val:
    """The first features of each operand, as many as `inputdimensions` says, side by side in
    float32."""
    parts, operands = [], (x, *more)
    if len(inputdimensions) != len(operands):
        raise malformed(f"{len(inputdimensions)} inputdimensions for {len(operands)} operands")
    for v, count in zip(operands, inputdimensions, strict=True):
        wide = g.cast(v, "float32")
        wide = g.reshape(wide, (1, *g.shape(v))) if g.rank(v) == 1 else wide
        samples, have = g.shape(wide)[0], int_value(g.shape(wide)[-1])
        if g.rank(wide) != 2 or have is None or have < count:
            raise malformed(f"an operand of {have} features, expected {count}")
        parts.append(g.emit("slice", wide, begin=(0, 0), strides=(1, 1), shape=(samples, count)))
    return parts[0] if len(parts) == 1 else g.emit("concat", *parts, axis=1)


def label_encoder_2(
    g: Context,
    x: Val | Texts,
    *,
    default_float: Float = -0.0,
    default_int64: Int = -1,
    default_string: Str = "_Unused",
    keys_floats: Floats = (),
    keys_int64s: Ints = (),
    keys_strings: Strs = (),
    values_floats: Floats = (),
    values_int64s: Ints = (),
    values_strings: Strs = (),
) -> Val | Texts:
    """The value that stands beside the element's key, else the default (until version 3)."""
    keys = _keys(x, keys_floats, keys_int64s, keys_strings, None)
    if values_strings:
        return _named(g, x, keys, (*values_strings, default_string), False)
    values = _given(values_floats, values_int64s)
    default = default_float if values.dtype.kind == "f" else default_int64
    return _encoded(g, x, keys, values, default, False)


def label_encoder_4(
    g: Context,
    x: Val | Texts,
    *,
    default_float: Float = -0.0,
    default_int64: Int = -1,
    default_string: Str = "_Unused",
    default_tensor: Array | None = None,
    keys_floats: Floats = (),
    keys_int64s: Ints = (),
    keys_strings: Strs = (),
    keys_tensor: Array | None = None,
    values_floats: Floats = (),
    values_int64s: Ints = (),
    values_strings: Strs = (),
    values_tensor: Array | None = None,
) -> Val | Texts:
    """The value that stands beside the element's key, else the default; NaN is a key like
    others."""
    keys = _keys(x, keys_floats, keys_int64s, keys_strings, keys_tensor)
    if values_strings:
        return _named(g, x, keys, (*values_strings, default_string), True)
    values = _given(values_floats, values_int64s, "values", values_tensor)
    default = default_float if values.dtype.kind == "f" else default_int64
    if default_tensor is not None:
        default = default_tensor.reshape(()).item()
    return _encoded(g, x, keys, values, default, True)


def _keys(
    x: Val | Texts, floats: Floats, ints: Ints, strings: Strs, array: Array | None
) -> np.ndarray:
    """The keys, an array of objects where they are strings."""
    if bool(strings) != isinstance(x, Texts):
        raise unsupported("strings as keys", _NO_STRINGS)
    return np.array(strings, object) if strings else _given(floats, ints, "keys", array)


def _named(
    g: Context, x: Val | Texts, keys: np.ndarray, table: Sequence[str], odd_keys: bool
) -> Texts:
    """Values that are strings; the last of the table stands for elements that are no key."""
    numbers = np.arange(len(table) - 1)
    return Texts(_encoded(g, x, keys, numbers, len(table) - 1, odd_keys), tuple(table))


def _encoded(
    g: Context, x: Val | Texts, keys: np.ndarray, values: np.ndarray, default: float, odd_keys: bool
) -> Val:
    """Of equal keys the first counts; with `odd_keys` NaN equals NaN."""
    if keys.shape != values.shape or keys.ndim != 1 or not keys.size:
        raise malformed(f"{keys.size} keys for {values.size} values")
    if isinstance(x, Texts):
        return looked_up(g, x, keys.tolist(), values, default)
    elements = g.reshape(x, (*g.shape(x), 1))
    hit = g.emit("equal", elements, g.const(keys, g.type(x).dtype))
    if odd_keys and keys.dtype.kind == "f" and np.isnan(keys).any():
        odd = g.emit("logical_and", g.emit("isnan", elements), g.const(np.isnan(keys), "bool"))
        hit = g.emit("logical_or", hit, odd)
    number = g.cast(hit, "int32")
    first = g.emit("argmax", number, axis=g.rank(x), keepdims=False)
    has_key = g.emit("max", number, axes=(g.rank(x),), keepdims=False)
    picked = g.emit("take", constant(values), first, axis=0)
    return g.emit("where", g.cast(has_key, "bool"), picked, g.const(default, str(values.dtype)))


def _given(
    floats: Floats, ints: Ints, subject: str = "values", array: Array | None = None
) -> np.ndarray:
    """The one list that is given."""
    pairs = ((floats, np.float32), (ints, np.int64))
    lists = [np.asarray(v, dtype) for v, dtype in pairs if len(v)]
    lists += [array] if array is not None else []
    if len(lists) != 1:
        raise malformed(f"expected one list of {subject}, got {len(lists)}")
    return lists[0]


# -- models -----------------------------------------------------------------------------------

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def transformed(g: Context, x: Val, name: str) -> Val:
    """Scores [N, classes] after a post transform."""
    match name:
        case "NONE":
            return x
        case "SOFTMAX":
            return g.emit("softmax", x, axis=1)
        case "LOGISTIC":
            return g.emit("sigmoid", x)
        case "SOFTMAX_ZERO":
            # What is (almost) 0 stays so small as it is beside the others.
            top = g.emit("max", x, axes=(1,), keepdims=True)
            tiny = g.emit("less_equal", g.emit("abs", x), g.like(1e-7, x))
            grown = g.emit("exp", g.emit("sub", x, top))
            small = g.emit("mul", x, g.emit("exp", g.emit("neg", top)))
            parts = g.emit("where", tiny, small, grown)
            total = g.emit("sum", parts, axes=(1,), keepdims=True)
            return g.emit("div", parts, total)
    choices = ", ".join(map(repr, TRANSFORMS[:-1]))
    raise unsupported(f"post_transform={name!r}", f"supported: {choices}")


def labels(g: Context, index: Val, ints: Sequence[int], strings: Sequence[str]) -> Val | Texts:
    """The labels of these class numbers."""
    if strings:
        return Texts(g.cast(index, "int64"), tuple(strings))
    table = g.const(ints, "int64")
    return g.emit("take", table, index, axis=0)


def linear_regressor(
    g: Context,
    x: Val,
    *,
    coefficients: Floats,
    intercepts: Floats = (),
    post_transform: Str = "NONE",
    targets: Int = 1,
) -> Val:
    """x [N, features] times the coefficients [targets, features], plus intercepts."""
    return transformed(g, _scores(g, x, coefficients, intercepts, targets), post_transform)


def _scores(
    g: Context, x: Val, coefficients: Sequence[float], intercepts: Sequence[float], count: int
) -> Val:
    if g.rank(x) == 1:
        x = g.reshape(x, (1, *g.shape(x)))
    features = int_value(g.shape(x)[-1])
    if g.rank(x) != 2 or features is None or len(coefficients) != count * features:
        raise malformed(f"{len(coefficients)} coefficients for {features} features")
    if len(intercepts) not in (0, count):
        raise malformed(f"{len(intercepts)} intercepts for {count} results")
    matrix = np.asarray(coefficients, np.float32).reshape(count, features).T
    bias = [g.const(intercepts, "float32")] if intercepts else []
    return g.emit("linear", g.cast(x, "float32"), g.const(matrix, "float32"), *bias)


def linear_classifier(
    g: Context,
    x: Val,
    *,
    coefficients: Floats,
    classlabels_ints: Ints = (),
    classlabels_strings: Strs = (),
    intercepts: Floats = (),
    multi_class: Int = 0,
    post_transform: Str = "NONE",
) -> Sequence[Val | Texts]:
    """Labels and scores of a linear model. With one row of coefficients for two classes, the scores
    are that of the second class and its complement."""
    classes = len(classlabels_ints) or len(classlabels_strings)
    rows = len(coefficients) // max(int_value(g.shape(x)[-1]) or 1, 1) if g.rank(x) else 0
    scores = _scores(g, x, coefficients, intercepts, rows)
    if rows == 1 and classes == 2:
        return _two_classes(g, scores, post_transform, classlabels_ints, classlabels_strings)
    if rows != classes:
        raise malformed(f"{rows} rows of coefficients for {classes} classes")
    index = g.emit("argmax", scores, axis=1, keepdims=False)
    label = labels(g, index, classlabels_ints, classlabels_strings)
    return label, transformed(g, scores, post_transform)


def _two_classes(
    g: Context, score: Val, transform: str, ints: Sequence[int], strings: Sequence[str]
) -> Sequence[Val | Texts]:
    """Labels and scores where `score` [N, 1] is that of the second class."""
    if transform not in ("NONE", "LOGISTIC"):
        raise unsupported(f"post_transform={transform!r} of one score for two classes")
    positive = g.reshape(g.emit("greater", score, g.like(0, score)), (g.shape(score)[0],))
    label = labels(g, g.cast(positive, "int64"), ints, strings)
    score = transformed(g, score, transform)
    first_score = g.emit("sub", g.like(1, score), score)
    return label, g.emit("concat", first_score, score, axis=1)


def svm_regressor(
    g: Context,
    x: Val,
    *,
    coefficients: Floats,
    kernel_params: Floats = (),
    kernel_type: Str = "LINEAR",
    n_supports: Int = 0,
    one_class: Int = 0,
    post_transform: Str = "NONE",
    rho: Floats = (0.0,),
    support_vectors: Floats = (),
) -> Val:
    """The sum of kernels of x and each support vector, times coefficients, plus rho; of one class
    its sign."""
    wide = g.cast(x, "float32")
    features = int_value(g.shape(x)[-1])
    if g.rank(x) != 2 or features is None:
        raise malformed("expected x [N, features]")
    if n_supports:
        if len(support_vectors) != n_supports * features or len(coefficients) != n_supports:
            raise malformed(f"{n_supports} support vectors of {features} features")
        vectors = np.asarray(support_vectors, np.float32).reshape(n_supports, features)
        wide = _kernel(g, wide, vectors, kernel_type, kernel_params)
    elif kernel_type != "LINEAR" or len(coefficients) != features:
        raise malformed(f"{len(coefficients)} coefficients for {features} features")
    column = np.asarray(coefficients, np.float32).reshape(-1, 1)
    y = g.emit("linear", wide, g.const(column, "float32"), g.const(rho[:1], "float32"))
    if one_class:
        positive = g.emit("greater", y, g.const(0, "float32"))
        y = g.emit("where", positive, g.const(1, "float32"), g.const(-1, "float32"))
    return transformed(g, y, post_transform)


def svm_classifier(
    g: Context,
    x: Val,
    *,
    classlabels_ints: Ints = (),
    classlabels_strings: Strs = (),
    coefficients: Floats,
    kernel_params: Floats = (),
    kernel_type: Str = "LINEAR",
    post_transform: Str = "NONE",
    prob_a: Floats = (),
    prob_b: Floats = (),
    rho: Floats,
    support_vectors: Floats = (),
    vectors_per_class: Ints = (),
) -> Sequence[Val | Texts]:
    """Labels, and scores: of classes their probabilities if `prob_a` is given, else of pairs of
    classes what is greater than 0 if the first is chosen; of two classes that score's opposite, and
    it. The label is that of the class with the most votes of pairs."""
    classes = len(classlabels_ints) or len(classlabels_strings)
    total, class_pairs = sum(vectors_per_class), pairs(classes)
    features = int_value(g.shape(x)[-1]) if g.rank(x) == 2 else None
    if features is None:
        raise malformed("expected x [N, features]")
    if not total:
        raise unsupported("no support vectors", "LinearClassifier has one row for each class")
    if classes < 2 or len(vectors_per_class) != classes or min(vectors_per_class) < 0:
        raise malformed(f"{list(vectors_per_class)} support vectors for {classes} classes")
    if len(support_vectors) != total * features or len(coefficients) != total * (classes - 1):
        raise malformed(f"{total} support vectors of {features} features for {classes} classes")
    if len(rho) != len(class_pairs) or {len(prob_a), len(prob_b)} not in ({0}, {len(class_pairs)}):
        raise malformed(
            f"{len(rho)} rho, {len(prob_a)} prob_a for {len(class_pairs)} pairs of classes"
        )
    vectors = np.asarray(support_vectors, np.float32).reshape(total, features)
    weights = np.asarray(coefficients, np.float32).reshape(classes - 1, total)
    ends = np.cumsum(vectors_per_class)
    matrix = np.zeros((total, len(class_pairs)), np.float32)
    for k, (i, j) in enumerate(class_pairs):
        for class_index, row in ((i, j - 1), (j, i)):
            part = slice(ends[class_index] - vectors_per_class[class_index], ends[class_index])
            matrix[part, k] = weights[row, part]
    near = _kernel(g, g.cast(x, "float32"), vectors, kernel_type, kernel_params)
    scores = g.emit("linear", near, g.const(matrix, "float32"), g.const(rho, "float32"))
    # A pair's vote is for the first class, or else for the second: a product counts the votes.
    votes = np.zeros((len(class_pairs), classes), np.float32)
    for k, (i, j) in enumerate(class_pairs):
        votes[k, i], votes[k, j] = 1, -1
    always = [sum(j == c for _, j in class_pairs) for c in range(classes)]
    chosen = g.cast(g.emit("greater", scores, g.like(0, scores)), "float32")
    count = g.emit("linear", chosen, g.const(votes, "float32"), g.const(always, "float32"))
    index = g.emit("argmax", count, axis=1, keepdims=False)
    if prob_a:
        value = g.emit("mul", scores, g.const([-a for a in prob_a], "float32"))
        value = g.emit("sigmoid", g.emit("sub", value, g.const(prob_b, "float32")))
        value = g.emit("minimum", value, g.const(1 - 1e-7, "float32"))
        value = g.emit("maximum", value, g.const(1e-7, "float32"))
        scores = g.emit("coupled", value, classes=classes)
    label = labels(g, index, classlabels_ints, classlabels_strings)
    if len(class_pairs) == 1 and not prob_a:
        if post_transform != "NONE":
            raise unsupported(f"post_transform={post_transform!r} of one score for two classes")
        return label, g.emit("concat", g.emit("neg", scores), scores, axis=1)
    return label, transformed(g, scores, post_transform)


def _kernel(g: Context, x: Val, vectors: np.ndarray, kind: str, params: Sequence[float]) -> Val:
    """The kernel of x [N, features] and each of the vectors, [N, vectors]."""
    gamma, shift, degree = (*params[:3], *(0.0, 0.0, 3.0)[len(params) :])
    if kind == "RBF":
        square = np.sum(vectors * vectors, axis=1)
        norms = g.emit("sum", g.emit("mul", x, x), axes=(1,), keepdims=True)
        dot = g.emit("linear", x, g.const(-2 * vectors.T, "float32"), g.const(square, "float32"))
        far = g.emit("maximum", g.emit("add", dot, norms), g.const(0, "float32"))
        return g.emit("exp", g.emit("mul", far, g.const(-gamma, "float32")))
    dot = g.emit("linear", x, g.const(vectors.T, "float32"))
    if kind == "LINEAR":
        return dot
    grown = g.emit("mul", dot, g.const(gamma, "float32"))
    grown = g.emit("add", grown, g.const(shift, "float32"))
    if kind == "POLY":
        return g.emit("pow", grown, g.const(degree, "float32"))
    if kind == "SIGMOID":
        return g.emit("tanh", grown)
    raise malformed(f"kernel_type={kind!r}; expected 'LINEAR', 'POLY', 'RBF' or 'SIGMOID'")


def zip_map(
    g: Context, x: Val, *, classlabels_int64s: Ints = (), classlabels_strings: Strs = ()
) -> Val:
    """A dictionary of scores for each sample: the scores as they are, in the order of its keys."""
    count = len(classlabels_int64s) or len(classlabels_strings)
    if not count or (classlabels_int64s and classlabels_strings):
        raise malformed("expected labels as numbers or as strings")
    if g.rank(x) > 2 or int_value(g.shape(x)[-1]) not in (None, count):
        raise malformed(
            f"{count} labels for scores of shape {[int_value(d) for d in g.shape(x)]}",
            "a label for each column",
        )
    return x


TABLE: Table = {
    "Binarizer": {1: binarizer},
    "Scaler": {1: scaler},
    "Normalizer": {1: normalizer},
    "Imputer": {1: imputer},
    "ArrayFeatureExtractor": {1: array_feature_extractor},
    "OneHotEncoder": {1: one_hot_encoder},
    "FeatureVectorizer": {1: feature_vectorizer},
    "LabelEncoder": {2: label_encoder_2, 4: label_encoder_4},
    "LinearRegressor": {1: linear_regressor},
    "LinearClassifier": {1: linear_classifier},
    "SVMClassifier": {1: svm_classifier},
    "SVMRegressor": {1: svm_regressor},
    "ZipMap": {1: zip_map},
}
