"""Branches, loops and extents that data decides, compiled, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

import tensorkiln as tk
from tensorkiln.base.errors import UnsupportedError, UserError
from tensorkiln.frontend import from_onnx
from tensorkiln.ops.evaluate import evaluate

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
RANDOM = np.random.default_rng(5)
Feeds = list[tuple[np.ndarray, ...]]


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def number(value: int) -> np.ndarray:
    return np.array(value, np.int64)


TRUE, FALSE = np.array(True), np.array(False)

# name -> (graph, calls of it)
MODELS: dict[str, tuple[str, Feeds]] = {
    # ---- extents of results
    "elements other than 0": (
        """(float[N, 4] x) => (float[K] y, float total) {
            i = NonZero(x)
            t = Transpose(i)
            v = GatherND(x, t)
            y = Mul(v, v)
            total = ReduceSum<keepdims = 0>(y)
        }""",
        [
            (np.array([[1, 0, 2, 0], [0, 0, 3, 4]], np.float32),),
            (floats(5, 4),),
            (np.zeros((3, 4), np.float32),),
            (np.zeros((0, 4), np.float32),),
        ],
    ),
    "of a scalar": ("(float x) => (int64[A, B] y) { y = NonZero(x) }", [(floats(),)]),
    "compress": (
        """(float[N, 3] x, bool[M] c) => (float[K, 3] y, float[J] z) {
            rows = Compress<axis = 0>(x, c)
            y = Exp(rows)
            z = Compress(x, c)
        }""",
        [(floats(4, 3), np.array([1, 0, 1, 1], bool)), (floats(2, 3), np.zeros(2, bool))],
    ),
    "unique": (
        """(float[N] x) => (float[K] y, int64[K] c, int64[N] i) {
            u, f, i, n = Unique<sorted = 1>(x)
            c = Add(n, f)
            y = Neg(u)
        }""",
        [(np.array([3, 1, 3, 2, 1], np.float32),), (np.zeros(0, np.float32),)],
    ),
    "boxes": (
        """(float[1, N, 4] boxes, float[1, 2, N] scores) => (float[K, 4] y, float[K] v) {
            most = Constant<value = int64[1] {3}>()
            overlap = Constant<value = float[1] {0.5}>()
            least = Constant<value = float[1] {0.2}>()
            s = NonMaxSuppression(boxes, scores, most, overlap, least)
            two = Constant<value = int64[1] {2}>()
            three = Constant<value = int64[1] {3}>()
            one = Constant<value = int64[1] {1}>()
            column = Slice(s, two, three, one)
            which = Squeeze(column, one)
            zero = Constant<value = int64[1] {0}>()
            flat = Squeeze(boxes, zero)
            y = Gather<axis = 0>(flat, which)
            v = GatherND(scores, s)
        }""",
        [
            (RANDOM.random((1, 20, 4)).astype("f4"), RANDOM.random((1, 2, 20)).astype("f4")),
            (np.zeros((1, 3, 4), np.float32), np.zeros((1, 2, 3), np.float32)),
        ],
    ),
    "two extents that agree": (
        """(float[N] x, float[N] z) => (float[K] y) {
            i = NonZero(x)
            t = Transpose(i)
            a = GatherND(x, t)
            j = NonZero(z)
            u = Transpose(j)
            b = GatherND(z, u)
            y = Add(a, b)
        }""",
        [(np.array([0, 1, 2], "f4"), np.array([3, 0, 4], "f4")), (floats(6), floats(6))],
    ),
    "an extent that must be a number": (
        """(float[N] x, float[3, 5] w) => (float[1, 5] y) {
            i = NonZero(x)
            t = Transpose(i)
            a = GatherND(x, t)
            zero = Constant<value = int64[1] {0}>()
            row = Unsqueeze(a, zero)
            y = MatMul(row, w)
        }""",
        [(np.array([0, 1, 2, 0, 4], "f4"), floats(3, 5)), (floats(3), floats(3, 5))],
    ),
    # ---- sizes that are computed
    "reshape": (
        "(float[N, 4] x, int64[2] s) => (float[A, B] y) { z = Reshape(x, s)\n y = Relu(z) }",
        [(floats(6, 4), ints(*s)) for s in ((2, 12), (-1, 3), (0, -1), (24, 1), (0, 0))]
        + [(floats(0, 4), ints(0, 7)), (floats(0, 4), ints(0, 0))],
    ),
    "reshape that keeps zeros": (
        "(float[N, 4] x, int64[2] s) => (float[A, B] y) { y = Reshape<allowzero = 1>(x, s) }",
        [(floats(0, 4), ints(0, 9)), (floats(3, 4), ints(2, -1))],
    ),
    "expand": (
        "(float[1, 4] x, int64[2] s) => (float[A, B] y) { y = Expand(x, s) }",
        [(floats(1, 4), ints(*s)) for s in ((3, 4), (2, 1), (0, 4))],
    ),
    "range": (
        "(int64 a, int64 b, int64 c) => (int64[M] y) { y = Range(a, b, c) }",
        [
            tuple(map(number, v))
            for v in ((0, 7, 2), (7, 0, -2), (3, 3, 1), (5, 2, 1), (-4, 4, 3), (9, -9, -4))
        ],
    ),
    "range of floats": (
        "(float a, float b, float c) => (float[M] y) { y = Range(a, b, c) }",
        [tuple(np.array(v, "f4") for v in t) for t in ((0, 1, 0.25), (1, -1, -0.5), (2, 1, 1))],
    ),
    "zeros": (
        "(int64[3] s) => (float[A, B, C] y) { y = ConstantOfShape(s) }",
        [(ints(2, 3, 4),), (ints(0, 3, 4),)],
    ),
    "tile": (
        "(float[2, 3] x, int64[2] n) => (float[A, B] y) { y = Tile(x, n) }",
        [(floats(2, 3), ints(*n)) for n in ((2, 1), (1, 3), (0, 2))],
    ),
    "slice": (
        """(float[N, 6] x, int64[1] a, int64[1] b) => (float[K, 6] y) {
            z = Slice(x, a, b)
            y = Softmax<axis = 1>(z)
        }""",
        [(floats(5, 6), ints(a), ints(b)) for a, b in ((1, -1), (4, 2), (-9, 99), (0, 5))],
    ),
    "slice by steps": (
        """(float[N, 6] x, int64[2] a, int64[2] b, int64[2] s) => (float[K, M] y) {
            axes = Constant<value = int64[2] {1, 0}>()
            y = Slice(x, a, b, axes, s)
        }""",
        [(floats(5, 6), ints(5, 0), ints(-7, 4), ints(-2, 3))],
    ),
    "one hot": (
        """(int64[N] x, int64 n) => (float[N, D] y) {
            values = Constant<value = float[2] {0.0, 1.0}>()
            y = OneHot(x, n, values)
        }""",
        [(ints(0, 2, 1), number(4)), (ints(), number(3))],
    ),
    # ---- If
    "branches of different extents": (
        """(float[N, 4] x, bool c) => (float[M, 4] y) {
            z = If (c) <
                then_branch = a () => (float[P, 4] p) { p = Concat<axis = 0>(x, x) },
                else_branch = b () => (float[Q, 4] q) { q = Neg(x) }>
            y = Exp(z)
        }""",
        [(floats(n, 4), c) for n in (0, 1, 3) for c in (TRUE, FALSE)],
    ),
    "branches of two results": (
        """(float[N, 4] x) => (float[4] y, float[N, 4] z) {
            s = ReduceSum<keepdims = 0>(x)
            zero = Constant<value = float {0.0}>()
            c = Greater(s, zero)
            y, z = If (c) <
                then_branch = a () => (float[4] p, float[N, 4] p2) {
                    axes = Constant<value = int64[1] {0}>()
                    p = ReduceSum<keepdims = 0>(x, axes)
                    p2 = Exp(x)
                },
                else_branch = b () => (float[4] q, float[N, 4] q2) {
                    q = Constant<value = float[4] {1.0, 2.0, 3.0, 4.0}>()
                    q2 = Identity(x)
                }>
        }""",
        [(np.ones((3, 4), "f4"),), (-np.ones((3, 4), "f4"),)],
    ),
    # ---- Loop
    "while": (
        """(float[N] x) => (float[N] y, int64 n) {
            t = Constant<value = bool {1}>()
            zero = Constant<value = int64 {0}>()
            none = Identity()
            y, n = Loop (, t, x, zero) <body = b (int64 i, bool c, float[N] v, int64 k)
                => (bool c2, float[N] v2, int64 k2) {
                v2 = Add(v, v)
                one = Constant<value = int64 {1}>()
                k2 = Add(k, one)
                sum = ReduceSum<keepdims = 0>(v2)
                most = Constant<value = float {100.0}>()
                c2 = Less(sum, most)
            }>
        }""".replace("            none = Identity()\n", "").replace("(, t,", '("", t,'),
        [(np.ones(5, "f4"),), (np.full(3, 60, "f4"),)],
    ),
    "stacked until a condition": (
        """(int64 m, float[N] x) => (float[N] y, float[M, N] z) {
            t = Constant<value = bool {1}>()
            y, z = Loop (m, t, x) <body = b (int64 i, bool c, float[N] v)
                => (bool c2, float[N] v2, float[N] s) {
                v2 = Add(v, v)
                s = Identity(v)
                sum = ReduceSum<keepdims = 0>(v2)
                most = Constant<value = float {100.0}>()
                c2 = Less(sum, most)
            }>
        }""",
        [(number(m), np.ones(5, "f4")) for m in (1, 3, 50)],
    ),
    "a state that grows": (
        """(int64 m, float[N] x) => (float[M] y) {
            t = Constant<value = bool {1}>()
            z = Loop (m, t, x) <body = b (int64 i, bool c, float[P] v) => (bool c2, float[Q] v2) {
                v2 = Concat<axis = 0>(v, x)
                c2 = Identity(c)
            }>
            y = Relu(z)
        }""",
        [(number(m), floats(n)) for m in (0, 1, 3) for n in (0, 5)],
    ),
    "a branch in a loop, a loop in a branch": (
        """(int64 m, float[N] x) => (float[N] y) {
            t = Constant<value = bool {1}>()
            y = Loop (m, t, x) <body = b (int64 i, bool c, float[N] v) => (bool c2, float[N] v2) {
                two = Constant<value = int64 {2}>()
                r = Mod(i, two)
                zero = Constant<value = int64 {0}>()
                even = Equal(r, zero)
                w = If (even) <
                    then_branch = aa () => (float[N] p) { p = Add(v, x) },
                    else_branch = bb () => (float[N] q) {
                        q = Loop (i, c, v) <body = b3 (int64 j, bool cc, float[N] u)
                            => (bool cc2, float[N] u2) { u2 = Mul(u, u)
                            cc2 = Identity(cc) }>
                    }>
                v2 = Identity(w)
                c2 = Identity(c)
            }>
        }""",
        [(number(m), np.full(3, 0.5, "f4")) for m in (0, 1, 4, 7)],
    ),
    "elements of a loop's choice": (
        """(int64 m, float[N] x) => (float[K] y) {
            t = Constant<value = bool {1}>()
            y = Loop (m, t, x) <body = b (int64 i, bool c, float[P] v) => (bool c2, float[Q] v2) {
                f = CastLike(i, v)
                big = Greater(v, f)
                v2 = Compress(v, big)
                c2 = Identity(c)
            }>
        }""",
        [(number(m), np.arange(-3, 6).astype("f4")) for m in (0, 1, 4, 9)],
    ),
    "text that is generated, token by token": (
        """(int64[1, N] start, int64 most, float[11, 8] table, float[8, 8] wq, float[8, 8] wk,
            float[8, 8] wv, float[8, 11] head) => (int64[1, M] tokens, int64 steps) {
            t = Constant<value = bool {1}>()
            zero = Constant<value = int64 {0}>()
            tokens, steps = Loop (most, t, start, zero) <body = one
                (int64 i, bool c, int64[1, P] ids, int64 n)
                => (bool again, int64[1, Q] longer, int64 n2) {
                x = Gather<axis = 0>(table, ids)
                q = MatMul(x, wq)
                k = MatMul(x, wk)
                v = MatMul(x, wv)
                kt = Transpose<perm = [0, 2, 1]>(k)
                scores = MatMul(q, kt)
                p = Softmax<axis = -1>(scores)
                y = MatMul(p, v)
                z = Add(x, y)
                last = Constant<value = int64[1] {-1}>()
                end = Constant<value = int64[1] {1000}>()
                axis = Constant<value = int64[1] {1}>()
                row = Slice(z, last, end, axis)
                logits = MatMul(row, head)
                next = ArgMax<axis = -1, keepdims = 0>(logits)
                longer = Concat<axis = 1>(ids, next)
                stop = Constant<value = int64 {3}>()
                token = Squeeze(next)
                same = Equal(token, stop)
                again = Not(same)
                one = Constant<value = int64 {1}>()
                n2 = Add(n, one)
            }>
        }""",
        [
            (start, number(m), floats(11, 8), *(floats(8, 8) for _ in "qkv"), floats(8, 11))
            for start in (ints(1, 2).reshape(1, 2), ints(7).reshape(1, 1))
            for m in (0, 1, 12)
        ],
    ),
    # ---- Scan
    "scan": (
        """(float[3] s, float[N, 3] x, float[3, N] w)
            => (float[3] y, float[N, 3] z, float[3, N] r) {
            y, z, r = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1],
                scan_input_directions = [0, 1], scan_output_axes = [0, 1],
                scan_output_directions = [1, 0],
                body = b (float[3] v, float[3] a, float[3] c)
                    => (float[3] v2, float[3] o, float[3] o2) {
                    v1 = Add(v, a)
                    v2 = Mul(v1, c)
                    o = Identity(v2)
                    o2 = Neg(a)
                }> (s, x, w)
        }""",
        [(floats(3), floats(n, 3), floats(3, n)) for n in (1, 5, 100)],
    ),
}


def parsed(text: str) -> onnx.ModelProto:
    model = parser.parse_model(f"{HEAD}g {text}")
    onnx.checker.check_model(model)
    return model


def results(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(y) for y in (outputs if isinstance(outputs, tuple) else (outputs,))]


def compare(outputs: list[np.ndarray], want: list[np.ndarray]) -> None:
    for a, b in zip(outputs, want, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    text, calls = MODELS[name]
    model = parsed(text)
    session = ort.InferenceSession(model.SerializeToString())
    names = [i.name for i in model.graph.input]
    module = from_onnx(model)
    run = tk.compile(module)
    for feeds in calls:
        inputs = dict(zip(names, feeds, strict=True))
        want = session.run(None, inputs)
        compare(results(run(*feeds)), want)
        with np.errstate(all="ignore"):
            compare(list(evaluate(module, inputs)), want)


def test_no_iteration_keeps_the_shape_of_rows() -> None:
    text, _ = MODELS["stacked until a condition"]
    _, z = tk.compile(from_onnx(parsed(text)))(number(0), floats(5))
    assert np.asarray(z).shape == (0, 5)


FOR_LOOP = """(float[2] x) => (float[M, 2] y) {
    m = Constant<value = int64 {COUNT}>()
    n, y = Loop (m, "", x) <body = b (int64 i, bool c, float[2] v)
        => (bool c2, float[2] v2, float[2] s) {
        v2 = Add(v, x)
        s = Identity(v2)
        c2 = Constant<value = bool {AGAIN}>()
    }>
}"""


@pytest.mark.parametrize("count", [0, 3, 100])
@pytest.mark.parametrize("again", [0, 1])
def test_for_loops(count: int, again: int) -> None:
    """Unrolled or not, a loop without a condition makes a known number of iterations, and what
    follows knows the extent. A body's condition counts even where none is given, as in ONNX
    Runtime."""
    model = parsed(FOR_LOOP.replace("COUNT", str(count)).replace("AGAIN", str(again)))
    module, x, trips = from_onnx(model), floats(2), count if again else min(count, 1)
    output = np.asarray(tk.compile(module)(x))
    np.testing.assert_allclose(output, np.outer(np.arange(trips) + 2, x), rtol=1e-5)
    if count:
        (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
        np.testing.assert_allclose(output, want, rtol=1e-5)
    result = module["main"].result.type
    is_static = getattr(result, "static_shape", lambda: None)() == (trips, 2)
    assert is_static or not again


ERRORS = {
    "elements do not fit": (
        "reshape",
        (floats(6, 4), ints(5, 5)),
        r"Reshape:z: shape is \[5, 5\], expected sizes of as many elements",
    ),
    "two of -1": ("reshape", (floats(6, 4), ints(-1, -1)), "expected"),
    "a negative size": (
        "zeros",
        (ints(2, -3, 4),),
        r"ConstantOfShape:y: input is \[2, -3, 4\], expected 0 or more",
    ),
    "extents differ": (
        "two extents that agree",
        (np.array([0, 1, 2], "f4"), np.array([3, 0, 0], "f4")),
        "dimension 0 is 1, expected 2",
    ),
    "not the number": (
        "an extent that must be a number",
        (np.array([0, 1, 2], "f4"), floats(3, 5)),
        "dimension 1 is 2, expected 3",
    ),
    "step of 0": (
        "slice by steps",
        (floats(5, 6), ints(5, 0), ints(0, 4), ints(0, 3)),
        "step of axis 1 is 0",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_of_calls(case: str) -> None:
    """What the data makes impossible is an error of the call, after which the next one is right."""
    name, feeds, message = ERRORS[case]
    text, calls = MODELS[name]
    run = tk.compile(from_onnx(parsed(text)))
    want = results(run(*calls[0]))
    with pytest.raises(ValueError, match=message):
        run(*feeds)
    compare(results(run(*calls[0])), want)


REFUSED = {
    "ranks of branches": (
        """(float[N, 4] x, bool c) => (float[M] y) {
            y = If (c) <then_branch = a () => (float[P, 4] p) { p = Neg(x) },
                else_branch = b () => (float q) { q = ReduceSum<keepdims = 0>(x) }>
        }""",
        "output 0 has 2 or 0 dimensions, as the data decides",
    ),
    "rows of different shapes": (
        """(int64 m, float[N] x) => (float[M, K] y) {
            t = Constant<value = bool {1}>()
            y = Loop (m, t) <body = b (int64 i, bool c) => (bool c2, float[Q] s) {
                f = CastLike(i, x)
                big = Greater(x, f)
                s = Compress(x, big)
                c2 = Identity(c)
            }>
        }""",
        "what an iteration adds to a stacked output has no fixed shape",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(UnsupportedError, match=message):
        from_onnx(parser.parse_model(f"{HEAD}g {text}"))


def test_conditions_on_sizes_hold_in_functions_with_branches() -> None:
    model = parsed(
        """(float[N, 4] x, float[8, 4] table, bool c) => (float[M, 4] y) {
            s = Shape<start = 0, end = 1>(x)
            z = Constant<value = int64[1] {0}>()
            r = Slice(table, z, s, z)
            w = Add(r, x)
            y = If (c) <then_branch = a () => (float[P, 4] p) { p = Concat<axis = 0>(w, w) },
                else_branch = b () => (float[Q, 4] q) { q = Neg(w) }>
        }"""
    )
    run = tk.compile(from_onnx(model))
    assert np.asarray(run(floats(8, 4), floats(8, 4), TRUE)).shape == (16, 4)
    with pytest.raises(UserError, match="N is 9; expected N <= 8"):
        run(floats(9, 4), floats(8, 4), TRUE)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-2, 4), min_size=3, max_size=3), st.integers(0, 4))
def test_any_shape_of_reshape(shape: list[int], rows: int) -> None:
    """As ONNX Runtime, or an error where it gives one."""
    model = _any_reshape()
    x, s = np.arange(rows * 12, dtype=np.float32).reshape(rows, 12), np.array(shape, np.int64)
    try:
        (want,) = model[0].run(None, {"x": x, "s": s})
    except Exception:  # its errors have no common class
        if rows == 0 and -1 in shape:  # of no elements none are left: 0, where it refuses
            return
        with pytest.raises(ValueError):
            model[1](x, s)
        return
    compare(results(model[1](x, s)), [want])


_RESHAPES: list[Any] = []


def _any_reshape() -> list[Any]:
    if not _RESHAPES:
        model_proto = parsed(
            "(float[N, 12] x, int64[3] s) => (float[A, B, C] y) { y = Reshape(x, s) }"
        )
        session = ort.InferenceSession(model_proto.SerializeToString())
        _RESHAPES.extend((session, tk.compile(from_onnx(model_proto))))
    return _RESHAPES
