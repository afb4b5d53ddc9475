"""`python -m bench.estimators`: scikit-learn, LightGBM and XGBoost beside ONNX Runtime.

Each estimator is fitted on made-up data, converted with skl2onnx or onnxmltools, and run with
batches of 1, 100 and 10,000. Results are compared with ONNX Runtime's and with the estimator's own;
labels may differ only where the two best scores are as good as equal.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.beside import Model, main
from bench.contenders import Array

BATCHES = (1, 100, 10_000)
FEATURES = 20
OPSETS = {"": 18, "ai.onnx.ml": 3}


def _estimators() -> dict[str, Callable[[], Any]]:
    """By name: a classifier's begins with "C ", a regressor's with "R ", others' with "T "."""
    from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, svm, tree
    from sklearn.cluster import KMeans
    from sklearn.compose import ColumnTransformer
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    columns = [("a", StandardScaler(), list(range(8))), ("b", MinMaxScaler(), list(range(8, 20)))]
    return {
        "R LinearRegression": linear_model.LinearRegression,
        "R Ridge": linear_model.Ridge,
        "C LogisticRegression": lambda: linear_model.LogisticRegression(max_iter=500),
        "C SGDClassifier": lambda: linear_model.SGDClassifier(loss="log_loss", random_state=0),
        "C LinearSVC": lambda: svm.LinearSVC(random_state=0),
        "C SVC rbf": lambda: svm.SVC(random_state=0),
        "C SVC probability": lambda: svm.SVC(probability=True, random_state=0),
        "R SVR": svm.SVR,
        "C DecisionTree": lambda: tree.DecisionTreeClassifier(max_depth=10, random_state=0),
        "C RandomForest 8": lambda: ensemble.RandomForestClassifier(
            100, max_depth=8, random_state=0
        ),
        "C RandomForest 12": lambda: ensemble.RandomForestClassifier(
            100, max_depth=12, random_state=0
        ),
        "R RandomForest": lambda: ensemble.RandomForestRegressor(100, max_depth=10, random_state=0),
        "R ExtraTrees": lambda: ensemble.ExtraTreesRegressor(100, max_depth=10, random_state=0),
        "C GradientBoosting": lambda: ensemble.GradientBoostingClassifier(random_state=0),
        "R GradientBoosting": lambda: ensemble.GradientBoostingRegressor(random_state=0),
        "R HistGradientBoosting": lambda: ensemble.HistGradientBoostingRegressor(random_state=0),
        "C KNeighbors": lambda: neighbors.KNeighborsClassifier(5),
        "C GaussianNB": naive_bayes.GaussianNB,
        "C MLP": lambda: neural_network.MLPClassifier((64, 32), max_iter=60, random_state=0),
        "T KMeans": lambda: KMeans(8, n_init=1, random_state=0),
        "C pipeline scaler, PCA, LogisticRegression": lambda: make_pipeline(
            StandardScaler(), PCA(8), linear_model.LogisticRegression()
        ),
        "C pipeline ColumnTransformer, RandomForest": lambda: make_pipeline(
            ColumnTransformer(columns),
            ensemble.RandomForestClassifier(50, max_depth=8, random_state=0),
        ),
        "C LightGBM": _lightgbm,
        "R XGBoost": _xgboost,
    }


def _lightgbm() -> Any:
    from lightgbm import LGBMClassifier

    return LGBMClassifier(n_estimators=100, max_depth=8, random_state=0, verbose=-1)


def _xgboost() -> Any:
    from xgboost import XGBRegressor

    return XGBRegressor(n_estimators=100, max_depth=6, random_state=0)


def _converted(estimator: Any, sample: Array) -> bytes:
    module = type(estimator).__module__
    if module.startswith(("lightgbm", "xgboost")):
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType

        kind = module.split(".")[0]
        options = {"zipmap": False} if kind == "lightgbm" else {}
        model = getattr(onnxmltools, f"convert_{kind}")(
            estimator,
            initial_types=[("X", FloatTensorType([None, sample.shape[1]]))],
            target_opset=15,
            **options,
        )
    else:
        from skl2onnx import to_onnx

        try:
            zips = {"zipmap": False}
            model = to_onnx(estimator, sample, options=zips, target_opset=OPSETS)
        except NameError:  # it makes no dictionaries, and has no such option
            model = to_onnx(estimator, sample, target_opset=OPSETS)
    return bytes(model.SerializeToString())


def _near(a: Array, b: Array, label: str) -> str:
    scale = float(np.abs(b).max(initial=1e-30))
    worst = float(np.abs(a.astype(np.float64) - b).max(initial=0)) / scale
    return "" if worst <= 1e-3 else f"{label} is off by {worst:.2g} of its scale"


def _difference(estimator: Any, x: Array) -> Callable[[Sequence[Array], Sequence[Array]], str]:
    """What compares our results with those of ONNX Runtime and of the estimator."""

    def differ(outputs: Sequence[Array], peer_outputs: Sequence[Array]) -> str:
        predictions = np.asarray(estimator.predict(x))
        if len(outputs) == 1:
            difference = _near(outputs[0].ravel(), peer_outputs[0].ravel(), "the result")
            return difference or _near(
                outputs[0].ravel(), predictions.ravel(), "the result, beside the estimator,"
            )
        scores = peer_outputs[1]
        problem = _near(outputs[1], scores, "a score")
        wide = scores.reshape(len(x), -1)
        if wide.shape[1] == 1:
            wide = np.hstack([-wide, wide])
        best = np.sort(wide, axis=1)
        clear = best[:, -1] - best[:, -2] > 1e-4 * np.abs(best).max(initial=1e-30)
        for labels, who in ((peer_outputs[0], "ONNX Runtime"), (predictions, "the estimator")):
            count = int(np.sum((outputs[0] != labels) & clear))
            problem = problem or (f"{count} labels differ from those of {who}" if count else "")
        return problem

    return differ


def models(only: str) -> Iterator[Model]:
    """Every estimator, fitted, for every batch."""
    from sklearn.datasets import make_classification, make_regression

    warnings.filterwarnings("ignore")
    x, y = make_classification(2000, FEATURES, n_informative=10, n_classes=3, random_state=0)
    z = make_regression(2000, FEATURES, noise=5.0, random_state=0)[1]
    x = x.astype(np.float32)
    draw = np.random.default_rng(1)
    fresh = (
        x[draw.integers(0, len(x), max(BATCHES))] + draw.normal(size=(max(BATCHES), FEATURES)) / 4
    )
    fresh = fresh.astype(np.float32)
    for name, make in _estimators().items():
        if only.lower() not in name.lower():
            continue
        estimator = make().fit(x, z if name.startswith("R") else y)
        try:
            data, broken = _converted(estimator, x[:1]), ""
        except Exception as error:  # its row says so
            data, broken = b"", f"cannot be converted: {type(error).__name__}: {error}"[:150]
        for n in BATCHES:
            rows = np.ascontiguousarray(fresh[:n])
            yield Model(
                name[2:][:18], f"batch {n}", data, {"X": rows}, _difference(estimator, rows), broken
            )


if __name__ == "__main__":
    main("bench.estimators", models)
