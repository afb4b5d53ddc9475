"""forward_values: copies are read where they came from."""

from __future__ import annotations

from tensorkiln.transform.relax.forward_values import forward_values
from tests.transform.graphs import check_text


def test_copies_and_constants() -> None:
    check_text(
        forward_values,
        """
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            y = x
            two = R.const(2.0, "float32")
            z = R.mul(y, two)
            return z
        """,
        """
        @R.function
        def main(x: R.Tensor((4,), "float32")):
            z = R.mul(x, R.const(2.0, "float32"))
            return z
        """,
    )
