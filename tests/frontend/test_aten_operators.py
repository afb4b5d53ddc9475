"""Every importer of an ATen operator against torch: element types, shapes, options."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tensorkiln.frontend.torch import aten_complex, aten_random  # noqa: E402 - after the skip
from tests.frontend import aten_cases as cases  # noqa: E402 - after the skip

# Results that importers do not compute, since only gradients need them.
_LEFT_OUT = {
    "_native_batch_norm_legit_no_training": [0],
    "_native_batch_norm_legit": [0],
}
# What new memory holds is not specified; random numbers are in tests/frontend/test_torch_random.py,
# complex ones in tests/frontend/test_torch_complex.py,
# those of which data decides the size in tests/frontend/test_torch_data.py, the others in
# tests/frontend/test_torch_compile.py.
OTHERWISE = {
    *aten_complex.TABLE,
    "_neg_view",
    *aten_random.TABLE,
    "_unique2",
    "masked_select",
    "nonzero",
    "empty.memory_format",
    "empty_strided",
    "empty_like",
    "empty_permuted",
    "new_empty",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention",
    "prims::convert_element_type",
    "_grouped_mm",
    "transformers::grouped_mm_fallback",
    *(f"tensorkiln::{name}" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
}
_TOLERANCE = {"float16": (4e-3, 4e-3), "float32": (2e-5, 1e-5), "float64": (1e-7, 1e-8)}

BY_OPERATOR: dict[str, list[cases.Case]] = defaultdict(list)
for _case in cases.CASES:
    BY_OPERATOR[_case.op].append(_case)


def _places(case: cases.Case, dtype: str) -> list[int]:
    if case.op in _LEFT_OUT:
        return _LEFT_OUT[case.op]
    args, options = cases.arguments(case, dtype)
    result = case.target(*args, **options)
    return list(range(len(result))) if isinstance(result, tuple | list) else [0]


def check(case: cases.Case, dtype: str) -> None:
    places = _places(case, dtype)
    outputs = cases.run(case, dtype, places)
    plain, wide = cases.expected(case, dtype, places)
    assert len(outputs) == len(plain)
    for mine, torch_output, exact in zip(outputs, plain, wide, strict=True):
        assert str(mine.dtype) == str(torch_output.dtype).removeprefix("torch.")
        assert mine.shape == tuple(torch_output.shape)
        if torch_output.is_floating_point():
            rtol, atol = _TOLERANCE[str(mine.dtype)]
            np.testing.assert_allclose(mine, exact.double().numpy(), rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(mine, torch_output.numpy())


@pytest.mark.parametrize("op", BY_OPERATOR)
def test_values(op: str) -> None:
    for case in BY_OPERATOR[op]:
        for dtype in case.dtypes:
            try:
                check(case, dtype)
            except Exception as error:
                raise AssertionError(
                    f"{case.op}{case.args} {dict(case.options)} of {dtype}"
                ) from error
