"""LLVM makes code for every processor that a target may name: none of its scheduling models, which
only some instructions meet, ends the process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tensorkiln.codegen.llvm.compile import options_of
from tensorkiln.codegen.llvm.texts import kernel_texts
from tensorkiln.ir.module import IRModule
from tensorkiln.pipeline import relax_passes, tir_passes
from tensorkiln.target import Target
from tensorkiln.target.isa import ISAS
from tensorkiln.target.triple import LIBRARIES
from tests.schedule.test_independent_rows import build

FAMILIES = ("argmax", "moved")
WALK = """
import json, sys
from tensorkiln.codegen.llvm.worker import compile_text
texts, rows = json.load(sys.stdin)
for options in rows:
    print(options["name"], flush=True)
    for text in texts:
        assert compile_text(text, options)
print("all")
"""


@pytest.mark.parametrize("arch", LIBRARIES)
def test_kernels_for_every_processor(arch: str) -> None:
    plain = Target({"mtriple": f"{arch}-linux-gnu"})
    cases = build().cases
    mod = IRModule(tuple(cases[name].function for name in FAMILIES))
    for step in (*relax_passes(plain), *tir_passes(plain)):
        mod = step(mod)
    texts = kernel_texts([f for f in mod.prim_funcs if f.op_class != "graph"], plain, "llvm")
    assert len(texts) >= len(FAMILIES)
    rows = []
    for cpu in ISAS[arch].cpus:
        target = Target({"mtriple": plain.mtriple, "mcpu": cpu})
        rows.append({**options_of(target, target.features, "assembly"), "name": cpu})
    process = subprocess.run(
        [sys.executable, "-c", WALK],
        input=json.dumps([texts, rows]),
        capture_output=True,
        text=True,
    )
    assert process.stdout.split() == [*ISAS[arch].cpus, "all"], process.stderr[:2000]
