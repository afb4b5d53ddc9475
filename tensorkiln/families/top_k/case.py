"""Cases of top-k."""

from __future__ import annotations

from tensorkiln.kernels.case import Case, N

CASES: dict[str, Case] = {
    "top_of_rows": Case("top_k", lambda g, x: g.top_k(x, k=3, largest=True), (21, 17)),
    "top_of_rows_parallel": Case("top_k", lambda g, x: g.top_k(x, k=3, largest=False), (210, 30)),
    "top_of_rows_symbolic": Case("top_k", lambda g, x: g.top_k(x, k=2, largest=True), (N, 30)),
    "top_of_long_rows": Case("top_k", lambda g, x: g.top_k(x, k=40, largest=True), (21, 400)),
}
