"""Instructions of AArch64, counted in qemu."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import tensorkiln as tk
from tensorkiln.base.errors import UserError
from tensorkiln.kernels.case import rand
from tensorkiln.runtime.measuring import measure_kernel
from tensorkiln.runtime.trial import Trial
from tensorkiln.target import Target
from tensorkiln.tuning import InstructionCount, emulated
from tensorkiln.tuning.workloads import fused_module, library_of, trial_for, workloads_of
from tests.transform.graphs import graph

TARGET = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "cortex-a72"}
pytestmark = pytest.mark.emulated


@pytest.fixture(autouse=True)
def machine() -> None:
    if missing := InstructionCount.missing():
        (pytest.fail if os.environ.get("REQUIRE_QEMU") else pytest.skip)(missing)


def kernel(rows: int, columns: int = 64) -> tuple[bytes, Trial]:
    target = Target(TARGET)
    mod = graph(lambda g, x: g.linear(x, rand(32, columns)), x=(rows, 32))
    (w,), _ = workloads_of(fused_module(mod, target), target, {})
    library, symbol = library_of(w.text, w.target, w.family.op_class)
    return library, trial_for(w.text, symbol, {}, {})


def test_counts_are_those_of_the_work(tmp_path: Path) -> None:
    """Multiply-adds of four lanes each, and little besides; twice the rows, twice the counts."""
    counts = {}
    for rows in (48, 96):
        library, trial = kernel(rows)
        path = tmp_path / "kernel.so"
        path.write_bytes(library)
        instructions, accesses = counts[rows] = InstructionCount().count(path, trial)
        products = rows * 32 * 64 // 4
        assert products < instructions < 2 * products and 0 < accesses < instructions / 2
        assert InstructionCount().count(path, trial) == counts[rows]
        assert InstructionCount()(path, trial) == instructions + accesses
    for a, b in zip(counts[48], counts[96], strict=True):
        assert 1.9 < b / a < 2.1


def test_a_wrong_result_and_a_library_of_another_machine() -> None:
    library, trial = kernel(8)
    wrong = replace(trial, want=bytes(len(trial.want)))
    assert measure_kernel(wrong, library, InstructionCount()).state == "wrong"
    measurement = measure_kernel(replace(trial, symbol="absent"), library, InstructionCount())
    assert (measurement.state, "absent" in measurement.reason) == ("error", True)
    measurement = measure_kernel(trial, b"\x7fELF", InstructionCount())
    assert (
        measurement.state == "error"
        and "emulated: " in measurement.reason
        and len(measurement.reason) > 12
    )


def test_a_search_by_counts(tmp_path: Path) -> None:
    mod = graph(lambda g, x: g.linear(x, rand(32, 60)), x=(13, 32))
    with ThreadPoolExecutor(1) as executor:
        result = tk.tune(
            mod, TARGET, measure="instructions", executor=executor, trials=6, search="random"
        )
    (row,) = result.rows
    assert row.tried == 6 and not row.failures and row.unit == "instructions"
    for record in result.records:
        assert record.machine == "qemu-aarch64 -cpu max"
        tk.compile(mod, TARGET, records=result.records)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = graph(lambda g, x: g.linear(x, rand(32, 64)), x=(8, 32))
    monkeypatch.setenv("QEMU_LD_PREFIX", "/nowhere")
    with pytest.raises(UserError, match="no C library in /nowhere") as caught:
        tk.tune(mod, TARGET, measure="instructions", search="random")
    assert caught.value.code == "no-tool" and "apt-get install qemu-user" in caught.value.hint
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="no qemu-aarch64"):
        tk.tune(mod, TARGET, measure="instructions", search="random")


def test_an_emulator_without_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "qemu-aarch64"
    fake.write_text("#!/bin/sh\necho 'unknown option -plugin' >&2\nexit 1\n")
    fake.chmod(0o755)
    library, trial = kernel(8)
    monkeypatch.setattr(emulated, "EMULATOR", str(fake))
    measurement = measure_kernel(trial, library, InstructionCount())
    assert measurement.state == "error" and "loads no plugins: " in measurement.reason
