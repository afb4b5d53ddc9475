"""Cases of coupled probabilities."""

from __future__ import annotations

from tensorkiln.kernels.case import Case

CASES: dict[str, Case] = {
    "coupled": Case("coupled", lambda g, x: g.coupled(g.sigmoid(x), classes=3), (2000, 3)),
}
