"""What data decides in programs of torch: sizes, masks as indices, branches and loops; against
torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tensorkiln as tk  # noqa: E402 - after the skip
from tensorkiln.base.errors import UnsupportedError  # noqa: E402
from tensorkiln.frontend import from_torch  # noqa: E402
from tensorkiln.ops.evaluate import evaluate  # noqa: E402
from tests.frontend.onnx_models import main  # noqa: E402

X = torch.tensor([[1.0, 0, -2], [0, 3, 4]])
Z = torch.zeros(2, 3)


class Of(torch.nn.Module):
    """A module that is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def rows_of_a_mask(x: Any) -> Any:
    """As experts of a mixture take their rows, and add them."""
    rows = torch.where(x.sum(1) > 0)[0]
    return torch.zeros_like(x).index_add(0, rows, x[rows] * 3)


def pairs(x: Any) -> Any:
    places = torch.nonzero(x > 0)
    return x[places[:, 0], places[:, 1]] * 2, places.shape[0]


def first_elements(x: Any) -> Any:
    n = (x > 0).sum().item()
    torch._check(n >= 0)
    torch._check(n <= 6)
    return x.reshape(-1)[:n] + 1


def several(x: Any) -> Any:
    def yes(v: Any) -> Any:
        return v[v > 0].sum(), v * 2

    return torch.cond(x.mean() > 100, yes, lambda v: (v.min(), v * 3), (x,))


def nested(x: Any) -> Any:
    def inner(v: Any) -> Any:
        return torch.cond(v.max() > 3, lambda u: u * 2, lambda u: u * 3, (v,))

    return torch.cond(x.sum() > 0, inner, lambda v: v - 1, (x,))


def loop(x: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    start = (torch.zeros((), dtype=torch.int64), x + 0.5)
    return while_loop(lambda i, v: v.abs().sum() < 100, lambda i, v: (i + 1, v * 1.5), start)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "nonzero of a scalar": lambda x: x[1, 2].nonzero(),
    "mask": lambda x: x[x > 1],
    "mask of rows": lambda x: x[x.sum(1) > 0],
    "mask of columns": lambda x: x[:, x.sum(0) > 0],
    "masked_select": lambda x: torch.masked_select(x, x[0] != 0),
    "put": lambda x: x.index_put((x > 0,), torch.tensor(5.0)),
    "unique": lambda x: torch.unique(x),
    "all of unique": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "rows of a mask": rows_of_a_mask,
    "pairs": pairs,
    "first elements": first_elements,
    "between two places": lambda x: x.reshape(-1)[x.argmin().item() : x.argmax().item()] + 1,
    "from a negative place": lambda x: x[:, x.min().int().item() :: 2] * 2,
    "branch": lambda x: torch.cond(x.sum() > 0, lambda v: (v + 1).relu(), lambda v: v - 1, (x,)),
    "several results": several,
    "nested": nested,
    "loop": loop,
}


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def agree(result: Any, want: Any) -> None:
    for a, b in zip(flat(result), flat(want), strict=True):
        b = np.asarray(b)
        assert np.shape(a) == b.shape
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_evaluated(name: str) -> None:
    function = FUNCTIONS[name]
    module = from_torch(Of(function), (X,))
    (param,) = main(module).params
    for x in (X, -X, X * 30, Z):
        agree(evaluate(module, {param.name: x.numpy()}), function(x))


def test_compiled() -> None:
    """All in one library."""

    def every(x: Any) -> Any:
        return [v for f in FUNCTIONS.values() for v in flat(f(x))]

    call = tk.compile(from_torch(Of(every), (X,)))
    for x in (X, -X, X * 30, Z):
        agree(call(x.numpy()), every(x))


def test_a_branch_that_sizes_decide_is_taken() -> None:
    def by_size(x: Any) -> Any:
        return torch.cond(x.shape[0] > 4, lambda v: v * 2, lambda v: v * 3, (x,))

    for n in (3, 7):
        x = torch.ones(n, 2)
        module = from_torch(Of(by_size), (x,))
        (param,) = main(module).params
        agree(evaluate(module, {param.name: x.numpy()}), by_size(x))


def test_what_a_body_lacks_is_named_once() -> None:
    def branch(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda v: v + torch.rand(3), lambda v: v - 1, (x,)) * 2

    with pytest.raises(UnsupportedError) as caught:
        from_torch(Of(branch), (X,))
    assert [i.op for i in caught.value.issues] == ["aten.rand.default"]
