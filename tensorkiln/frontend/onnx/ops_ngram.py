"""TfIdfVectorizer of numbers: how often runs of them (n-grams) occur in a row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from tensorkiln.frontend.graph.context import Context
from tensorkiln.frontend.graph.issues import malformed, unsupported
from tensorkiln.frontend.graph.values import Val
from tensorkiln.frontend.onnx.dispatch import Floats, Int, Ints, Str, Strs, Table
from tensorkiln.frontend.onnx.standard import NO_STRINGS
from tensorkiln.ir.expr import Expr


def tf_idf_vectorizer(
    g: Context,
    x: Val,
    *,
    max_gram_length: Int,
    max_skip_count: Int,
    min_gram_length: Int,
    mode: Str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints = (),
    pool_strings: Strs = (),
    weights: Floats = (),
) -> Val:
    """The counts of the n-grams of the pool, each at its place: [C], or [N, C] of rows.

    An n-gram occurs at a place with skips of 0 to `max_skip_count` between its elements; one of a
    single element once. "TF" counts, "IDF" gives the weight of those that occur, "TFIDF" both.
    """
    if pool_strings:
        raise unsupported("pool_strings", NO_STRINGS)
    if mode not in ("TF", "IDF", "TFIDF"):
        raise malformed(f"mode={mode!r}; expected 'TF', 'IDF' or 'TFIDF'")
    if g.rank(x) not in (1, 2) or not g.type(x).dtype.is_int:
        raise malformed("expected a row of integers, or rows")
    if not ngram_indexes or min(ngram_indexes) < 0:
        raise malformed("ngram_indexes must be places from 0")
    if mode == "IDF" and len(set(ngram_indexes)) < len(ngram_indexes):
        raise unsupported("mode='IDF' with n-grams that share a place", "a place for each")
    size = max(ngram_indexes) + 1
    if weights and len(weights) != len(ngram_indexes):
        raise malformed(f"{len(weights)} weights for {len(ngram_indexes)} n-grams")

    rows = x if g.rank(x) == 2 else g.reshape(x, (1, *g.shape(x)))
    lead, length = g.shape(rows)
    grams = _grams(pool_int64s, ngram_counts)
    count = sum(map(len, grams.values()))
    if count != len(ngram_indexes):
        raise malformed(f"{len(ngram_indexes)} ngram_indexes for the {count} n-grams of the pool")
    grams = {n: index for n, index in grams.items() if min_gram_length <= n <= max_gram_length}
    # Behind its end a row has a number that no n-gram has, so that one may begin at each place.
    after = (max(grams, default=1) - 1) * (max_skip_count + 1)
    padded = g.emit(
        "pad",
        g.cast(rows, "int64"),
        before=(0, 0),
        after=(0, after),
        value=min(pool_int64s, default=0) - 1,
    )
    columns: list[Val] = []
    places: list[int] = []
    scales: list[float] = []
    for index in grams.values():
        columns.append(_counts(g, padded, (lead, length), np.array(list(index)), max_skip_count))
        numbers = list(index.values())
        places += [ngram_indexes[k] for k in numbers]
        scales += [weights[k] if weights else 1.0 for k in numbers]
    if not columns:
        result = g.emit("full", value=0.0, shape=(lead, size), dtype="float32")
    else:
        counts = columns[0] if len(columns) == 1 else g.emit("concat", *columns, axis=1)
        if mode == "IDF":
            counts = g.cast(g.emit("greater", counts, g.like(0, counts)), "float32")
        if mode != "TF" and weights:
            counts = g.emit("mul", counts, g.const(scales, "float32"))
        result = _placed(g, counts, places, size)
    return result if g.rank(x) == 2 else g.reshape(result, (size,))


def _grams(pool: Sequence[int], first: Sequence[int]) -> dict[int, dict[tuple[int, ...], int]]:
    """By length the n-grams, each with its number in the pool."""
    grams: dict[int, dict[tuple[int, ...], int]] = {}
    number = 0
    for n, (begin, end) in enumerate(zip(first, [*first[1:], len(pool)], strict=True), 1):
        if not 0 <= begin <= end <= len(pool) or (end - begin) % n:
            raise malformed(f"ngram_counts={list(first)} does not divide the pool of {len(pool)}")
        runs = [tuple(pool[k : k + n]) for k in range(begin, end, n)]
        if runs:
            grams[n] = {run: number + k for k, run in enumerate(runs)}
            if len(grams[n]) < len(runs):
                raise malformed("the pool has an n-gram twice")
        number += len(runs)
    return grams


def _counts(g: Context, padded: Val, shape: tuple[Expr, ...], pool: np.ndarray, skips: int) -> Val:
    """How often each n-gram [P, n] occurs in each row, [N, P] in float32."""
    n = pool.shape[1]

    def same(k: int, distance: int) -> Val:
        window = g.emit("slice", padded, begin=(0, k * distance), strides=(1, 1), shape=shape)
        return g.emit("equal", g.reshape(window, (*shape, 1)), g.const(pool[:, k], "int64"))

    def found(distance: int) -> Val:
        parts = [same(k, distance) for k in range(n)]
        whole = reduce(lambda a, b: g.emit("logical_and", a, b), parts)
        return g.emit("sum", g.cast(whole, "float32"), axes=(1,))

    distances = range(1, skips + 2 if n > 1 else 2)
    return reduce(lambda a, b: g.emit("add", a, b), map(found, distances))


def _placed(g: Context, counts: Val, places: Sequence[int], size: int) -> Val:
    """The counts [N, size], each at its place; those of one place are added."""
    if list(places) == list(range(size)):
        return counts
    to = np.zeros((len(places), size), np.float32)
    to[np.arange(len(places)), list(places)] = 1
    return g.emit("linear", counts, g.const(to, "float32"))


TABLE: Table = {"TfIdfVectorizer": {9: tf_idf_vectorizer}}
