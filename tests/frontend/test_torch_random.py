"""Random operators of torch: numbers of a seed, whose distributions are checked by statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorkiln as tk  # noqa: E402 - after the skip
from tensorkiln.base.errors import UnsupportedError, UserError  # noqa: E402
from tensorkiln.ir.module import IRModule  # noqa: E402
from tensorkiln.ops.evaluate import evaluate  # noqa: E402

F = torch.nn.functional
COUNT = 20_000
X = np.linspace(0.0, 1.0, COUNT, dtype=np.float32)


class Calls(torch.nn.Module):
    """Several functions of one tensor."""

    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Any) -> Any:
        return tuple(f(x) for f in self.functions)


def program(*functions: Callable[..., Any], x: Any = None, **options: Any) -> Any:
    operand = torch.from_numpy(X) if x is None else x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(Calls(list(functions)), (operand,), strict=False, **options)


def imported(*functions: Callable[..., Any], x: Any = None, seed: int | None = 5) -> IRModule:
    return tk.frontend.from_torch(program(*functions, x=x), seed=seed)


def values(*functions: Callable[..., Any], x: Any = None, seed: int = 5) -> list[np.ndarray]:
    operand = torch.from_numpy(X) if x is None else x
    return evaluate(imported(*functions, x=x, seed=seed), {"x": operand.numpy()})


def erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


def of_normal(mean: float, std: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: (1 + erf((x - mean) / (std * math.sqrt(2)))) / 2


# Functions of a tensor that give COUNT numbers, and the distribution of these; infinite moments are
# left out of the comparison of means.
CONTINUOUS: dict[str, tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = {
    "rand": (lambda x: torch.rand(COUNT) + 0 * x, lambda v: v),
    "rand_like": (torch.rand_like, lambda v: v),
    "randn": (lambda x: torch.randn(COUNT) + 0 * x, of_normal(0, 1)),
    "randn_like": (torch.randn_like, of_normal(0, 1)),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-2, 3), lambda v: (v + 2) / 5),
    "normal numbers": (lambda x: torch.normal(2.0, 3.0, (COUNT,)) + 0 * x, of_normal(2, 3)),
    "normal_": (lambda x: torch.empty_like(x).normal_(2, 3), of_normal(2, 3)),
    "normal mean": (lambda x: torch.normal(x, 0.5) - x, of_normal(0, 0.5)),
    "normal std": (lambda x: (torch.normal(1.0, x + 1) - 1) / (x + 1), of_normal(0, 1)),
    "normal both": (lambda x: (torch.normal(x, x + 1) - x) / (x + 1), of_normal(0, 1)),
    "exponential": (lambda x: torch.empty_like(x).exponential_(2), lambda v: 1 - np.exp(-2 * v)),
    "cauchy": (
        lambda x: torch.empty_like(x).cauchy_(1, 2),
        lambda v: np.arctan((v - 1) / 2) / np.pi + 0.5,
    ),
    "log_normal": (
        lambda x: torch.empty_like(x).log_normal_(0.5, 0.7).log(),
        of_normal(0.5, 0.7),
    ),
    "gumbel": (
        lambda x: -torch.empty_like(x).exponential_().log(),
        lambda v: np.exp(-np.exp(-v)),
    ),
    "rrelu": (
        lambda x: F.rrelu(-x - 1, 0.2, 0.6, training=True) / (-x - 1),
        lambda v: v / 0.4 - 0.5,
    ),
}


def test_continuous_distributions() -> None:
    """By Kolmogorov and Smirnov: at a level of 0.1%, the distance is below 1.95 / sqrt(count)."""
    results = values(*(f for f, _ in CONTINUOUS.values()))
    for (name, (_, distribution)), numbers in zip(CONTINUOUS.items(), results, strict=True):
        assert numbers.shape == (COUNT,) and numbers.dtype == np.float32, name
        order = np.sort(numbers.astype(np.float64))
        steps = np.arange(COUNT + 1) / COUNT
        exact = distribution(order)
        distance = max(np.max(exact - steps[:-1]), np.max(steps[1:] - exact))
        assert distance < 1.95 / math.sqrt(COUNT), (name, distance)
        serial = np.corrcoef(distribution(numbers[:-1]), distribution(numbers[1:]))[0, 1]
        assert abs(serial) < 4 / math.sqrt(COUNT), (name, serial)


# Functions of a tensor that give whole numbers, and the probabilities of these from `first` on.
DISCRETE: dict[str, tuple[Callable[..., Any], int, list[float]]] = {
    "randint": (lambda x: torch.randint(3, 9, (COUNT,)) + (0 * x).long(), 3, [1 / 6] * 6),
    "randint to": (lambda x: torch.randint(5, (COUNT,)) + (0 * x).long(), 0, [0.2] * 5),
    "randint_like": (lambda x: torch.randint_like(x, -2, 2), -2, [0.25] * 4),
    "randint_like to": (lambda x: torch.randint_like(x, 4), 0, [0.25] * 4),
    "bernoulli p": (lambda x: torch.bernoulli(x, 0.3), 0, [0.7, 0.3]),
    "bernoulli in place": (lambda x: torch.empty_like(x).bernoulli_(0.3), 0, [0.7, 0.3]),
    "bernoulli of it": (lambda x: torch.bernoulli(x * 0 + 0.25), 0, [0.75, 0.25]),
    "geometric": (
        lambda x: torch.empty_like(x).geometric_(0.3),
        1,
        [0.3 * 0.7**k for k in range(20)],
    ),
    "multinomial": (
        lambda x: torch.multinomial((0 * x)[:, None] + torch.tensor([1.0, 2, 0, 5]), 1)[:, 0],
        0,
        [0.125, 0.25, 0, 0.625],
    ),
    "multinomial again": (
        lambda x: torch.multinomial(torch.tensor([1.0, 2, 0, 5]), COUNT, True) + (0 * x).long(),
        0,
        [0.125, 0.25, 0, 0.625],
    ),
    "dropout": (lambda x: F.dropout(x * 0 + 1, 0.2, True) * 0.8, 0, [0.2, 0.8]),
    "dropout1d": (
        lambda x: F.dropout1d((x * 0 + 1)[:, None], 0.2, True)[:, 0] * 0.8,
        0,
        [0.2, 0.8],
    ),
}


def test_discrete_distributions() -> None:
    """Counts against the binomial distribution of each, within four deviations."""
    results = values(*(f for f, _, _ in DISCRETE.values()))
    for (name, (_, first, shares)), numbers in zip(DISCRETE.items(), results, strict=True):
        whole = np.rint(numbers).astype(np.int64)
        np.testing.assert_allclose(numbers, whole, atol=1e-5, err_msg=name)
        counts = np.bincount(whole - first, minlength=len(shares))
        for count, share in zip(counts, shares, strict=False):
            deviation = math.sqrt(COUNT * share * (1 - share))
            assert abs(count - COUNT * share) <= 4 * deviation + 1e-9, (name, counts)
        assert counts[: len(shares)].sum() > 0.99 * COUNT, name


def test_samples_without_replacement_differ_and_have_the_right_second_place() -> None:
    """The second place has the weights without the first: 1/8 * 2/7 + 5/8 * 2/3 for the second."""
    weights = torch.tensor([1.0, 2, 5])
    (pairs,) = values(lambda x: torch.multinomial((0 * x)[:, None] + weights, 2))
    assert pairs.dtype == np.int64 and pairs.shape == (COUNT, 2)
    assert np.all(pairs[:, 0] != pairs[:, 1])
    share = 1 / 8 * 2 / 7 + 5 / 8 * 2 / 3
    deviation = math.sqrt(COUNT * share * (1 - share))
    assert abs(np.sum(pairs[:, 1] == 1) - COUNT * share) < 4 * deviation


def test_permutations_edges_and_types() -> None:
    order, never, always, certain, halves, equal_halves, unchanged = values(
        lambda x: torch.randperm(COUNT) + (0 * x).long(),
        lambda x: F.dropout(x, 0.0, True),
        lambda x: F.dropout(x, 1.0, True),
        lambda x: torch.bernoulli(torch.ones(COUNT, dtype=torch.float16) + 0 * x.half()),
        lambda x: torch.rand_like(x.half()),
        lambda x: torch.empty_like(x).uniform_(2, 2),
        lambda x: F.dropout(x, 0.5, False),
    )
    assert np.array_equal(np.sort(order), np.arange(COUNT)) and np.any(order != np.arange(COUNT))
    assert np.array_equal(never, X) and np.array_equal(unchanged, X) and not np.any(always)
    assert certain.dtype == np.float16 and np.all(certain == 1)
    assert halves.dtype == np.float16 and np.all((halves >= 0) & (halves < 1))
    assert np.all(equal_halves == 2)


def test_equal_seeds_and_compilers_give_equal_numbers() -> None:
    """The same bits in two imports and on two targets; other ones with another seed, and in the
    next node."""
    functions = (
        lambda x: torch.rand_like(x) + torch.rand_like(x) * 1000,
        lambda x: torch.randn_like(x),
        lambda x: torch.multinomial(x + 0.1, 2),
        lambda x: F.dropout(x, 0.5, True),
    )
    x = torch.from_numpy(X[:60].reshape(6, 10).copy())
    first, second, third = (imported(*functions, x=x, seed=s) for s in (5, 5, 6))
    assert first.script() == second.script()
    results = [evaluate(m, {"x": x.numpy()}) for m in (first, second, third)]
    for compiled in (tk.compile(first), tk.compile(first, target="c")):
        run = tk.runtime.Executor(compiled)["main"]
        for _ in range(2):
            results.append([np.asarray(r.numpy()) for r in run(x.numpy())])
    for kind in (1, 3, 4, 5, 6):
        for mine, expected in zip(results[kind], results[0], strict=True):
            np.testing.assert_array_equal(mine, expected)
    for k, numbers in enumerate(results[2]):
        assert not np.array_equal(numbers, results[0][k])
    pairs = results[0][0]
    assert len(np.unique(pairs)) == pairs.size


def test_refusals() -> None:
    for f in (torch.rand_like, torch.bernoulli, lambda x: F.dropout(x, 0.5, True)):
        with pytest.raises(UnsupportedError, match="without a seed") as caught:
            imported(f, seed=None)
        assert "seed=" in str(caught.value)
    n = torch.export.Dim("n")
    shapes = {"x": {0: n}}
    open_program = program(torch.rand_like, dynamic_shapes=shapes)
    with pytest.raises(UnsupportedError, match="symbolic shape"):
        tk.frontend.from_torch(open_program, seed=1)
    with pytest.raises(UnsupportedError, match="decides the distribution"):
        imported(torch.poisson)
    for seed in (-1, 2**32, 0.5, True, "1"):
        with pytest.raises(UserError, match="seed is"):
            imported(torch.rand_like, seed=seed)  # type: ignore[arg-type]
    module = torch.nn.Dropout(0.5)
    with pytest.raises(UserError, match="seed needs"):
        tk.frontend.from_torch(module, (torch.ones(3),), via="onnx", seed=1)


def test_loops_have_no_random_numbers() -> None:
    """A constant would be the same in each iteration."""

    def loop(x: Any) -> Any:
        from torch._higher_order_ops.while_loop import while_loop

        def test(k: Any, y: Any) -> Any:
            return k < 3

        def body(k: Any, y: Any) -> Any:
            return k + 1, y + torch.rand_like(y)

        return while_loop(test, body, (torch.zeros((), dtype=torch.int64), x * 1))[1]

    with pytest.raises(UnsupportedError, match="body of a loop"):
        imported(loop)
