"""The example graphs of families: each row has one that it computes."""

from __future__ import annotations

import numpy as np
import pytest

from tensorkiln.families.linear import case as linear
from tensorkiln.kernels.case import Case
from tensorkiln.kernels.family import Family
from tensorkiln.kernels.folders import _rows, built_in_families, cases
from tensorkiln.schedule.choose import schedule_group
from tensorkiln.target import Target
from tests.schedule.gpu.runner import groups_for
from tests.schedule.groups import groups_of

TABLES = {"cpu": "CASES", "opencl": "GPU_CASES", "cuda": "GPU_CASES", "webgpu": "GPU_CASES"}
ROWS = [(d, folder, row) for folder, row in _rows() for d in row.devices]


def _classes(case: Case, device: str) -> set[str]:
    target = Target(case.config(device))
    groups = (groups_of if device == "cpu" else groups_for)(case.module(), target)
    return {schedule_group(group, target).op_class for group in groups}


@pytest.mark.parametrize(
    ("device", "folder", "row"), ROWS, ids=[f"{d}-{r.op_class}-{f}" for d, f, r in ROWS]
)
def test_every_row_has_a_case_that_it_computes(device: str, folder: str, row: Family) -> None:
    case = next(c for c in cases(TABLES[device]).values() if c.op_class == row.op_class)
    assert (case.kernel or row.op_class) in _classes(case, device)


def test_every_case_is_of_a_row() -> None:
    for gpu, table in ((False, "CASES"), (True, "GPU_CASES")):
        rows = {row.op_class for row in built_in_families() if ("cpu" not in row.devices) == gpu}
        assert {case.op_class for case in cases(table).values()} == rows


def test_operands_are_those_of_the_graph() -> None:
    for table in ("CASES", "GPU_CASES"):
        for case in cases(table).values():
            x = case.operand(1)
            assert x.dtype.name == case.dtype and x.ndim == len(case.shape)
            np.testing.assert_array_equal(x, case.operand(1))


def test_two_cases_of_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = {"softmax": linear.CASES["linear"]}
    monkeypatch.setattr(linear, "CASES", twin)
    with pytest.raises(
        ValueError, match=r"normalization: other cases have the names \['softmax'\]"
    ):
        cases.__wrapped__("CASES")
