"""Every schedule as C, against the references of its own tests: integers bit for bit.

`make test` runs products of integers; `make fuzz` all loops and contractions without vectors.
"""

from __future__ import annotations

import json
from dataclasses import replace
from types import ModuleType

import pytest

from tensorkiln.artifact import Artifact, ArtifactSet
from tensorkiln.executable import Executable
from tensorkiln.runtime import Executor
from tensorkiln.target import Target
from tests.codegen.c_like.build import compiler
from tests.schedule import test_contractions, test_integer_products, test_loops
from tests.schedule.battery import Battery

TARGETS = {
    "avx2": Target({"kind": "c", "mcpu": "haswell"}),
    # No vectors: plain C, which any machine runs.
    "plain": Target({"kind": "c", "mtriple": "thumbv7em-none-eabi"}),
}


def on_this_machine(executable: Executable) -> Executable:
    """An executable for a machine without a linker of ours, whose C is linked for this one."""
    triple = Target("c").mtriple

    def here(a: Artifact) -> Artifact:
        if a.file_name != "link.json":
            return a
        return replace(a, content=json.dumps({**json.loads(a.text()), "triple": triple}).encode())

    artifact_set = ArtifactSet(tuple(map(here, executable.artifacts.plain)))
    return replace(executable, artifacts=artifact_set)


def run(battery: Battery, target: str) -> None:
    executable = on_this_machine(battery.compile(TARGETS[target]))
    library = Executor(executable.jit(compiler("gcc", "-O1")))
    for name in battery.cases:
        battery.check(name, library)


@pytest.mark.parametrize("target", TARGETS)
def test_products_of_integers(target: str) -> None:
    run(test_integer_products.BATTERY, target)


@pytest.mark.fuzz
@pytest.mark.parametrize("module", [test_loops, test_contractions], ids=lambda m: m.__name__)
@pytest.mark.parametrize("target", TARGETS)
def test_all_schedules(module: ModuleType, target: str) -> None:
    run(module.BATTERY, target)
